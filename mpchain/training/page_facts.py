"""Facts that the live page shows besides curves: rates, settings, learning rates."""

import collections
import os
from typing import TYPE_CHECKING, Any

from mpchain.optimizer import GradientMethod

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer

SECONDS = 10.0
"""Seconds over which recent rates are averaged: shorter averages fluctuate within an epoch."""

MOST_SETTINGS = 100
_LEARNING_RATES = ("lr", "alpha")


class Rates:
    """The number of iterations and epochs per second, recently and since the beginning.

    Args:
        start: tuple of the seconds on a monotonic clock, the iterations and the epochs at the
            beginning.

    Example:
        >>> rates = Rates((0.0, 0, 0.0))
        >>> rates.add((5.0, 10, 1.0)), rates.add((20.0, 20, 2.0)), rates.add((30.0, 60, 6.0))
        (None, None, None)
        >>> rates.lately, rates.mean
        ((4.0, 0.4), (2.0, 0.2))
    """

    def __init__(self, start: tuple[float, int, float]) -> None:
        self._points = collections.deque([start])
        self._total = (0.0, 0, 0.0)

    def add(self, point: tuple[float, int, float]) -> None:
        """Adds a tuple of the current time in seconds, iterations and epochs."""
        passed = tuple(b - a for a, b in zip(self._points[-1], point))
        # After training has gone back to an earlier iteration, the earlier points no longer count.
        if min(passed[1:]) < 0:
            self._points.clear()
            passed = passed[0], 0, 0.0
        self._total = tuple(a + b for a, b in zip(self._total, passed))
        self._points.append(point)
        while len(self._points) > 2 and point[0] - self._points[1][0] >= SECONDS:
            self._points.popleft()

    @property
    def lately(self) -> tuple[float, float] | None:
        """Iterations and epochs per second in the last ten seconds; None at the beginning."""
        return _per_second(b - a for a, b in zip(self._points[0], self._points[-1]))

    @property
    def mean(self) -> tuple[float, float] | None:
        """Iterations and epochs per second since the beginning; None at the beginning."""
        return _per_second(self._total)


def _per_second(passed):
    seconds, n_iterations, n_epochs = passed
    return (n_iterations / seconds, n_epochs / seconds) if seconds > 0 else None


def about(trainer: "Trainer") -> dict[str, Any]:
    """Returns a dict of the folder of the results and of the settings, a dict from name to text.

    >>> about(testing.get_trainer_with_mock_updater())["settings"]
    {}
    """
    settings = {}
    for extension in trainer.extensions.values():
        # Extensions such as Hyperparameters have an attribute ``settings``.
        settings |= getattr(extension, "settings", {})
    for name, optimizer in _optimizers(trainer).items():
        key = "optimizer" if name == "main" else f"optimizer {name}"
        settings[key] = _describe(optimizer.actual_optimizer)
    settings = dict(list(settings.items())[:MOST_SETTINGS])
    return {"folder": os.path.abspath(trainer.out), "settings": settings}


def learning_rates(trainer: "Trainer") -> dict[str, float]:
    """Returns the learning rates of the optimizers, by the names of their curves. A rate is ``lr``
    or ``alpha``, without Adam's correction of biases.

    >>> learning_rates(testing.get_trainer_with_mock_updater())
    {}
    """
    optimizers, found = _optimizers(trainer), {}
    for name, optimizer in optimizers.items():
        values = _hyperparameters(optimizer)
        value = next((values[name] for name in _LEARNING_RATES if name in values), None)
        if isinstance(value, (int, float)):
            key = "learning rate" if len(optimizers) == 1 else f"{name}/learning rate"
            found[key] = float(value)
    return found


def _describe(optimizer):
    """Returns a text of the class, the learning rate, and settings that differ from the
    defaults."""
    rule = optimizer.rule if isinstance(optimizer, GradientMethod) else None
    defaults = {} if rule is None else rule.hyperparameters
    values = [
        f"{name}={value}"
        for name, value in _hyperparameters(optimizer).items()
        if name in _LEARNING_RATES or value != defaults.get(name)
    ]
    return f"{type(optimizer).__name__}({', '.join(values)})"


def _optimizers(trainer):
    try:
        return trainer.updater.get_all_optimizers()
    except (AttributeError, NotImplementedError):  # a user's updater may have no optimizers
        return {}


def _hyperparameters(optimizer):
    return {} if optimizer.hyperparam is None else optimizer.hyperparam.get_dict()
