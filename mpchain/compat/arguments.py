"""Replaces functions and methods of mpchain by those that behave as Chainer's."""

import contextlib
import re
import sys
import warnings
from typing import Any, ClassVar

import numpy as np

from mpchain import annexes, function, function_node, functions, gradient_check, variable
from mpchain.backends.dtypes import is_floating
from mpchain.compat.user_communicators import call_generic_evaluator, share_of_few
from mpchain.configuration import using_config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.datasets import scatter
from mpchain.distributed.extensions import GenericMultiNodeEvaluator
from mpchain.distributed.links import MultiNodeChainList
from mpchain.distributed.optimizers.counts import Counts
from mpchain.functions import (
    broadcast,
    cast,
    recompute,
    regression_loss,
)
from mpchain.link_hooks import SpectralNormalization
from mpchain.links.recurrent import StatefulGRU
from mpchain.testing import helper
from mpchain.training.extensions import Evaluator
from mpchain.training.progress import print_line
from mpchain.typing import Input
from mpchain.variable import Variable

_PROMOTING = ("gaussian_nll", "bernoulli_nll", "gaussian_kl_divergence")
_alike = regression_loss._alike
_as_gradients = function._as_gradients
_send_to = gradient_check._send_to
_check_ends = Evaluator._check_ends
_sum_counts = Counts._sum_counts
_as_variable = variable.as_variable
_is_met = helper._is_met
_noted = recompute._Environment.noted
_singular_vectors = vars(SpectralNormalization)["_singular_vectors"]
_said: list[bool] = []


def _promoted(name: str, **arrays: Input) -> list[Variable]:
    """Returns a loss's arguments as Variables; a loss in ``_PROMOTING`` gets arguments of one shape
    and of the last argument's dtype."""
    *_, last = arrays.values()
    if name not in _PROMOTING or not is_floating(last.dtype):
        return _alike(name, **arrays)
    return list(broadcast(*[cast(x, last.dtype) for x in arrays.values()]))


def _unpacked(label: str, gradients: Any, n_inputs: int) -> Any:
    """Returns the gradients of an old-style function as a tuple; rows of an array are accepted."""
    if isinstance(gradients, np.ndarray):
        gradients = tuple(gradients[:n_inputs])
    return _as_gradients(label, gradients, n_inputs)


def _warn_of_repeat(evaluator: Evaluator) -> None:
    """Warns instead of raising an error, because a subclass may end the evaluation by itself."""
    try:
        _check_ends(evaluator)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=4)


def _weigh_by_samples(evaluator: Evaluator, value: Any, notes: Any, batch: Any) -> int:
    """Returns the number of samples as a batch's weight, which Chainer uses for every mean."""
    return len(batch)


def _say_whose_counts(counts: Counts, *args: Any) -> Any:
    """Warns once that losses are means over all ranks' labels, not means of the ranks' means."""
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
    """Returns ``obj`` as a Variable; for None, an empty Variable without gradient."""
    return Variable(requires_grad=False) if obj is None else _as_variable(obj)


def _is_mpchain(frame):
    return frame.f_globals.get("__name__", "").startswith("mpchain.")


class _FalseForPrograms:
    """A flag that is False for programs and True for mpchain."""

    def __bool__(self):
        return _is_mpchain(sys._getframe(1))

    def __eq__(self, other):
        return other is self or other == _is_mpchain(sys._getframe(1))

    __hash__: ClassVar[None] = None

    def __repr__(self):
        return "False"


@contextlib.contextmanager
def _noted_without_graph(environment: Any) -> Any:
    """Makes ``enable_backprop`` false for programs in the first call of ``forget``, as in Chainer.

    Programs check ``enable_backprop``, but mpchain needs the graph of this call to find the
    parameters that the function uses.
    """
    with _noted(environment), using_config("enable_backprop", _FalseForPrograms()):
        yield


def _tuple_as_one_argument(model: Any, received: list[Variable]) -> list[Any]:
    """Passes several results of one link of a MultiNodeChainList to the next link as one tuple."""
    return received if len(received) == 1 else [tuple(received)]


def _get_config(self, name=None):
    """Returns an entry of the configuration, or all; raises KeyError for an unknown entry."""
    return dict(self._config) if name is None else self._config[name]


def _batched_copy(self):
    return self.get_config("batched_copy")


def _set_batched_copy(self, value):
    self.set_config("batched_copy", value)


def _keep_v(self, link, matrix):
    """Returns a weight's singular vectors, and stores the right one, as Chainer's hook does."""
    u, self.v = _singular_vectors(self, link, matrix)
    return u, self.v


def _step_of_gru(self, h, x):
    """Runs a step of a GRU that draws weights of unknown size in Chainer's order: the weights of
    the gate r only if there is a state."""
    z, candidate = self.W_z(x), self.W(x)
    if h is None:
        return functions.sigmoid(z) * functions.tanh(candidate)
    r = functions.sigmoid(self.W_r(x) + self.U_r(h))
    z = z + self.U_z(h)
    new = functions.tanh(candidate + self.U(r * h))
    return functions.linear_interpolate(functions.sigmoid(z), new, h)


def _directions_as_drawn(points: list[Any]) -> list[Any]:
    """Draws the direction of a gradient check as Chainer does: a unit vector without tiny elements.

    Whether a seeded check passes in float32 often depends only on its direction.
    """
    drawn = np.random.standard_normal(n := sum(x.size for x in points))
    squares = 0.99 * drawn**2 / max(np.sum(drawn**2), 1e-30) + 0.01 / max(n, 1)
    signed = np.where(drawn < 0, -1.0, 1.0) * np.sqrt(squares)
    parts = np.split(signed, np.cumsum([x.size for x in points])[:-1])
    return [_send_to(x, part.reshape(x.shape)) for x, part in zip(points, parts)]


def _is_met_by_chainer(requirement: str) -> bool:
    """Returns whether a requirement is met; a requirement of chainer is compared with 7.8.1."""
    found = re.fullmatch(r"\s*chainer\b(.*)", requirement, re.DOTALL)
    if found is None:
        return _is_met(requirement)
    message = "with_requires and without_requires need packaging: pip install 'mpchain[test]'"
    specifiers = annexes.library("packaging.specifiers", message)
    return specifiers.SpecifierSet(found[1]).contains("7.8.1")


REPLACED: list[tuple[Any, str, Any]] = [
    (regression_loss, "_alike", _promoted),
    (Communicator, "batched_copy", property(_batched_copy, _set_batched_copy)),
    (Communicator, "get_config", _get_config),
    (GenericMultiNodeEvaluator, "__call__", call_generic_evaluator),
    (SpectralNormalization, "_singular_vectors", _keep_v),
    (SpectralNormalization, "v", None),
    (MultiNodeChainList, "_as_arguments", _tuple_as_one_argument),
    (function, "_as_gradients", _unpacked),
    (gradient_check, "_direction", _directions_as_drawn),
    (variable, "as_variable", _or_empty),
    (function_node, "as_variable", _or_empty),
    (helper, "_is_met", _is_met_by_chainer),
    (StatefulGRU, "_step", _step_of_gru),
    (scatter, "_share", share_of_few),
    (recompute._Environment, "noted", _noted_without_graph),
    (Evaluator, "_check_ends", _warn_of_repeat),
    (Evaluator, "_weight", _weigh_by_samples),
    (Counts, "_sum_counts", _say_whose_counts),
]
"""Rows of owner, attribute name, and the attribute's value while compat is installed."""
