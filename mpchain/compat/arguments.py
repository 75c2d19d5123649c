"""Arguments that Chainer's functions take and mpchain's refuse; mpchain's take them while compat is
installed."""

import contextlib
import sys
import warnings
from typing import Any

import numpy as np

from mpchain import function, function_node, variable
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import using_config
from mpchain.distributed.optimizers.counts import Counts
from mpchain.functions import broadcast, cast, recompute, regression_loss
from mpchain.training.extensions import Evaluator
from mpchain.training.progress import print_line
from mpchain.typing import Input
from mpchain.variable import Variable

_PROMOTING = ("gaussian_nll", "bernoulli_nll", "gaussian_kl_divergence")
_alike = regression_loss._alike
_as_gradients = function._as_gradients
_check_ends = Evaluator._check_ends
_sum_counts = Counts._sum_counts
_as_variable = variable.as_variable
_noted = recompute._Environment.noted
_said: list[bool] = []


def _promoted(name: str, **arrays: Input) -> list[Variable]:
    """Returns the arguments of a loss: of those named above, with one shape and the last dtype."""
    *_, last = arrays.values()
    if name not in _PROMOTING or not is_floating(last.dtype):
        return _alike(name, **arrays)
    return list(broadcast(*[cast(x, last.dtype) for x in arrays.values()]))


def _unpacked(label: str, gradients: Any, n_inputs: int) -> Any:
    """Takes the gradients of an old-style function that are rows of an array, too."""
    if isinstance(gradients, np.ndarray):
        gradients = tuple(gradients[:n_inputs])
    return _as_gradients(label, gradients, n_inputs)


def _warn_of_repeat(evaluator: Evaluator) -> None:
    """Warns, where mpchain refuses: a subclass may end the evaluation by itself."""
    try:
        _check_ends(evaluator)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=4)


def _weigh_by_samples(evaluator: Evaluator, value: Any, notes: Any, batch: Any) -> int:
    """Chainer's means are of batches, whatever a mean of one is over."""
    return len(batch)


def _say_whose_counts(counts: Counts, *args: Any) -> Any:
    """Says once that losses are not ChainerMN's means of the ranks' means."""
    if counts._comm.size > 1 and not _said:
        _said.append(True)
        if counts._comm.rank == 0:
            print_line(
                "mpchain: losses are means over the labels that count on all ranks, as in one "
                "process; for the means of the ranks' means of ChainerMN pass batch_counts=False "
                "to create_multi_node_optimizer",
                sys.stderr,
            )
    return _sum_counts(counts, *args)


def _or_empty(obj: Any) -> Variable:
    """Returns ``obj`` as a Variable: an empty one, without gradient, for None."""
    return Variable(requires_grad=False) if obj is None else _as_variable(obj)


def _is_mpchain(frame):
    return frame.f_globals.get("__name__", "").startswith("mpchain.")


class _FalseForPrograms:
    """False for a program, True for mpchain, by who asks."""

    def __bool__(self):
        return _is_mpchain(sys._getframe(1))

    def __eq__(self, other):
        return other is self or other == _is_mpchain(sys._getframe(1))

    __hash__ = None

    def __repr__(self):
        return "False"


@contextlib.contextmanager
def _noted_without_graph(environment: Any) -> Any:
    """The first call by ``forget``: Chainer's makes no graph, and programs ask for that.

    mpchain needs its graph, to know which parameters the function uses.
    """
    with _noted(environment), using_config("enable_backprop", _FalseForPrograms()):
        yield


REPLACED: list[tuple[Any, str, Any]] = [
    (regression_loss, "_alike", _promoted),
    (function, "_as_gradients", _unpacked),
    (variable, "as_variable", _or_empty),
    (function_node, "as_variable", _or_empty),
    (recompute._Environment, "noted", _noted_without_graph),
    (Evaluator, "_check_ends", _warn_of_repeat),
    (Evaluator, "_weight", _weigh_by_samples),
    (Counts, "_sum_counts", _say_whose_counts),
]
"""Owner, name, and what stands there while compat is installed."""
