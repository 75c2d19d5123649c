"""Triggers that fire when a reported value is better than ever before."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpchain.serializer import AbstractSerializer
from mpchain.training.named_parts import listing
from mpchain.training.states import serialize_part
from mpchain.training.triggers.interval import IntervalMeans, TriggerLike

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer


class BestValueTrigger:
    """Fires when the mean of a reported value over an interval is the best so far.

    The first mean counts as the best so far; NaN never does.

    Args:
        key: name of the value in the trainer's observation, such as ``'validation/main/loss'``.
        compare: function of the best value so far and a new value that returns whether the new
            value is better.
        trigger: the interval; see :func:`get_trigger`.

    Example:
        >>> closest_to_1 = BestValueTrigger("loss", lambda best, new: abs(new - 1) < abs(best - 1))
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(extensions.snapshot(), trigger=closest_to_1)
    """

    def __init__(
        self, key: str, compare: Callable[[float, float], bool], trigger: TriggerLike = (1, "epoch")
    ) -> None:
        self.key = key
        self.best_value: float | None = None
        self._compare = compare
        self._means = IntervalMeans(trigger, [key])

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether an interval ends here and its mean is the best so far.

        Raises:
            KeyError: an interval ends, but the value was not reported in it.
        """
        means = self._means(trainer)
        if means is None:
            return False
        if self.key not in means:
            raise KeyError(
                f"{type(self).__name__}: {self.key!r} was not reported in the interval that ends "
                f"at iteration {trainer.updater.iteration}; the values reported there are: "
                f"{listing(trainer.observation)}"
            )
        value, best = float(means[self.key]), self.best_value
        is_best = value == value and (best is None or self._compare(best, value))
        if is_best:
            self.best_value = value
        return is_best

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the best value, the interval and the sum so far."""
        self._means.serialize(serializer, serialize_part, "interval_trigger", "summary")
        best_value = serializer("best_value", self.best_value)
        self.best_value = None if best_value is None else float(best_value)


class MaxValueTrigger(BestValueTrigger):
    """Fires when the mean of a reported value over an interval is the greatest so far.

    Args:
        key: see :class:`BestValueTrigger`.
        trigger: see :class:`BestValueTrigger`.

    Example:
        >>> trigger = MaxValueTrigger("loss", (1, "iteration"))
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> def fires(value):
        ...     trainer.updater.update(), trainer.observation.update(loss=value)
        ...     return trigger(trainer)
        >>> [fires(value) for value in (1.0, 3.0, 2.0)]
        [True, True, False]
    """

    def __init__(self, key: str, trigger: TriggerLike = (1, "epoch")) -> None:
        super().__init__(key, operator.lt, trigger)


class MinValueTrigger(BestValueTrigger):
    """Fires when the mean of a reported value over an interval is the smallest so far.

    Args:
        key: see :class:`BestValueTrigger`.
        trigger: see :class:`BestValueTrigger`.

    Example:
        >>> best = MinValueTrigger("validation/main/loss")
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(extensions.snapshot(filename="best"), trigger=best)
    """

    def __init__(self, key: str, trigger: TriggerLike = (1, "epoch")) -> None:
        super().__init__(key, operator.gt, trigger)
