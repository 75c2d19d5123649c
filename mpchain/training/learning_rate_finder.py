"""The learning rate range test, which finds a learning rate in about a hundred iterations."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpchain.serializers.files import open_atomic
from mpchain.training.named_parts import reporter_of
from mpchain.training.random_states import restore_random_states, serialize_random_states
from mpchain.training.states import FrozenState
from mpchain.training.updaters.updater import Updater

_SMOOTHING = 0.9  # a mean loss covers about ten iterations
_GROWTH = 4.0  # training has diverged when the loss is this many times the smallest loss


@dataclasses.dataclass(repr=False)
class RangeTest:
    """The losses that :func:`find_learning_rate` has recorded.

    Attributes:
        rates: the learning rates, ascending, one for each iteration.
        losses: the loss of each iteration, averaged with the losses of earlier iterations.

    Example:
        >>> test = RangeTest([0.001, 0.01, 0.1, 1.0], [2.0, 1.9, 0.5, 3.0])
        >>> round(test.suggestion, 3)
        0.032
        >>> test
        RangeTest of 4 rates, 0.001 to 1: suggestion 0.032
    """

    rates: list[float]
    losses: list[float]

    def __repr__(self) -> str:
        if not self.rates:
            return "RangeTest of no rates"
        rates = f"{self.rates[0]:.2g} to {self.rates[-1]:.2g}"
        return f"RangeTest of {len(self.rates)} rates, {rates}: suggestion {self.suggestion:.2g}"

    @property
    def suggestion(self) -> float:
        """The rate at which the loss fell fastest; NaN if it never fell.

        A line is fitted to the losses, over the logarithms of the rates, in each window of
        consecutive iterations up to the least loss; a window has a fifth of all iterations. The
        suggestion is the middle of the window whose line falls most steeply.
        """
        if not self.losses or math.isclose(self.losses[0], min(self.losses)):
            return math.nan
        end = int(np.argmin(self.losses)) + 1
        length = min(max(len(self.losses) // 5, 2), end)
        windows = [slice(start, start + length) for start in range(end - length + 1)]
        logarithms = np.log(self.rates)
        slopes = [np.polyfit(logarithms[w], self.losses[w], 1)[0] for w in windows]
        return float(np.exp(logarithms[windows[int(np.argmin(slopes))]].mean()))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plots the losses against the rates to an image file, whose ending determines the format.

        The method needs matplotlib (``pip install 'mpchain[plot]'``).
        """
        from matplotlib.figure import Figure

        figure = Figure()
        axes = figure.add_subplot(xlabel="learning rate", ylabel="loss", xscale="log")
        axes.plot(self.rates, self.losses)
        axes.grid(True)
        if not math.isnan(self.suggestion):
            axes.axvline(self.suggestion, linestyle="--", label=f"{self.suggestion:.2g}")
            axes.legend()
        image_format = os.path.splitext(path)[1].lstrip(".") or "png"
        with open_atomic(path, "wb") as file:
            figure.savefig(file, format=image_format, bbox_inches="tight")


def find_learning_rate(
    updater: Updater,
    lowest: float = 1e-6,
    highest: float = 1.0,
    n_iterations: int = 100,
    *,
    key: str = "main/loss",
    optimizer: str = "main",
    attr: str | None = None,
) -> RangeTest:
    """Trains with a learning rate that grows at each iteration, and records the losses.

    A good rate is somewhat below the rate at which the loss falls fastest. The test ends early when
    the loss is not finite, or exceeds four times its least value. Afterwards the state of the
    model, the optimizers, the iterators and the random generators (except CuPy's) is restored, but
    parameters that were not initialized have initial values. See L. Smith, Cyclical Learning Rates
    for Training Neural Networks, WACV 2017, `arXiv:1506.01186 <https://arxiv.org/abs/1506.01186>`_;
    here the rate grows by equal factors.

    On several ranks the function is collective, and the losses are means over the ranks.

    Args:
        updater: an updater that has a method ``serialize``, as the updaters of mpchain have.
        lowest: the first rate.
        highest: the last rate.
        n_iterations: number of iterations, at least 2.
        key: name of the loss among the reported values.
        optimizer: name of the optimizer.
        attr: name of its rate; None means ``'alpha'`` if the optimizer has it, like Adam, or else
            ``'lr'``.

    Returns:
        A :class:`RangeTest` with the rates, the losses, and a suggestion.

    Raises:
        KeyError: the updater reports no value named ``key``, or has no optimizer of this name.
        ValueError: the lowest rate is not positive or not below the highest, or the number of
            iterations is below 2.

    Example:
        >>> np.random.seed(0)
        >>> x = np.random.rand(64, 3).astype(np.float32)
        >>> data = mpchain.datasets.TupleDataset(x, (x.sum(axis=1) > 1.5).astype(np.int32))
        >>> iterator = mpchain.iterators.SerialIterator(data, batch_size=16)
        >>> optimizer = optimizers.SGD().setup(L.Classifier(L.Linear(3, 2)))
        >>> updater = training.StandardUpdater(iterator, optimizer)
        >>> test = training.find_learning_rate(updater, 1e-4, 10)
        >>> optimizer.lr = test.suggestion  # or look at test.plot("rates.png")
    """
    if not 0 < lowest < highest or n_iterations < 2:
        raise ValueError(
            "find_learning_rate: 0 < lowest < highest and at least 2 iterations are required, not "
            f"lowest={lowest!r}, highest={highest!r}, n_iterations={n_iterations!r}"
        )
    solver: Any = updater.get_optimizer(optimizer)
    attr = attr or ("alpha" if hasattr(solver.hyperparam, "alpha") else "lr")
    rates, losses, mean = [], [], 0.0
    with _restored(updater, solver, attr):
        for i in range(n_iterations):
            rate = lowest * (highest / lowest) ** (i / (n_iterations - 1))
            setattr(solver, attr, rate)
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * _update(updater, solver, key)
            loss = mean / (1 - _SMOOTHING ** (i + 1))
            if not math.isfinite(loss) or (losses and loss > _GROWTH * abs(min(losses))):
                break
            rates.append(rate)
            losses.append(loss)
    return RangeTest(rates, losses)


@contextlib.contextmanager
def _restored(updater, solver, attr) -> Iterator[None]:
    """Context manager: restores the previous state at the end of the block."""
    rate = getattr(solver, attr)
    state, random_states = FrozenState(updater), FrozenState(_RandomStates(updater))
    optimizers = updater.get_all_optimizers().values()
    lacking = [p for o in optimizers for p in o.target.params() if not p.is_initialized]
    initial = [None for _ in lacking]

    def restore():
        for param in lacking:
            param.array = None  # this parameter had no values when the state was saved
        state.restore(updater)
        for param, array in zip(lacking, initial, strict=True):
            param.array = None if array is None else array.copy()

    try:
        if lacking:  # an update with a rate of 0 only initializes parameters
            setattr(solver, attr, 0.0)
            updater.update()
            initial = [None if p.array is None else p.array.copy() for p in lacking]
            restore()
        yield
    finally:
        setattr(solver, attr, rate)
        restore()
        random_states.restore(_RandomStates(updater))


class _RandomStates:
    """The states of random generators as an object that can be saved."""

    def __init__(self, updater):
        self._updater = updater

    def serialize(self, serializer):
        states = serialize_random_states(serializer, (), self._updater.iteration)
        restore_random_states(states, ())


def _update(updater, solver, key):
    """Runs one iteration; returns the mean of the loss over all ranks."""
    observation, optimizers = {}, updater.get_all_optimizers().items()
    with reporter_of({name: each.target for name, each in optimizers}).scope(observation):
        updater.update()
    if key not in observation:
        reported = ", ".join(map(repr, observation))
        raise KeyError(f"find_learning_rate: {key!r} is not reported; reported: {reported}")
    loss = float(getattr(observation[key], "array", observation[key]))
    comm = solver.communicator
    return loss if comm is None else float(np.mean(comm.allgather_obj(loss)))
