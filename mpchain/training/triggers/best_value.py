"""Triggers that fire when a reported value is better than ever before."""

import operator

from mpchain.reporter import DictSummary
from mpchain.training.triggers.interval import get_trigger


class MeanSince:
    """The mean of one reported value over the calls since it was last taken.

    Args:
        key: name of the value in the trainer's observation.
    """

    def __init__(self, key):
        self.key = key
        self._summary = DictSummary()

    def add(self, observation):
        """Adds the value, if it was reported."""
        if self.key in observation:
            self._summary.add({self.key: observation[self.key]})

    def take(self):
        """Returns the mean as a float, None if nothing was added, and starts anew."""
        mean = self._summary.compute_mean().get(self.key)
        self._summary = DictSummary()
        return None if mean is None else float(mean)

    def serialize(self, serializer):
        """Saves or restores the sum so far."""
        self._summary.serialize(serializer)


class BestValueTrigger:
    """Fires when the mean of a reported value over an interval is the best so far.

    The first mean is the best so far; NaN never is.

    Args:
        key: name of the value in the trainer's observation, such as ``'validation/main/loss'``.
        compare: function of the best value so far and a new one that returns whether the new one
            is better.
        trigger: the interval; see :func:`get_trigger`.
    """

    def __init__(self, key, compare, trigger=(1, "epoch")):
        self.key = key
        self.best_value = None
        self._compare = compare
        self._interval = get_trigger(trigger)
        self._mean = MeanSince(key)

    def __call__(self, trainer):
        """Returns whether an interval ends here and its mean is the best so far.

        Raises:
            KeyError: an interval ends, but the value was not reported in it.
        """
        self._mean.add(trainer.observation)
        if not self._interval(trainer):
            return False
        value = self._mean.take()
        if value is None:
            known = ", ".join(map(repr, trainer.observation)) or "none"
            raise KeyError(
                f"{type(self).__name__}: {self.key!r} was not reported in the interval that ends "
                f"at iteration {trainer.updater.iteration}; reported there: {known}"
            )
        is_best = value == value and (
            self.best_value is None or self._compare(self.best_value, value)
        )
        if is_best:
            self.best_value = value
        return is_best

    def serialize(self, serializer):
        """Saves or restores the best value, the interval and the sum so far."""
        if hasattr(self._interval, "serialize"):
            self._interval.serialize(serializer["interval_trigger"])
        self._mean.serialize(serializer["summary"])
        best_value = serializer("best_value", self.best_value)
        self.best_value = None if best_value is None else float(best_value)


class MaxValueTrigger(BestValueTrigger):
    """Fires when the mean of a reported value over an interval is the greatest so far.

    Args:
        key: see :class:`BestValueTrigger`.
        trigger: see :class:`BestValueTrigger`.
    """

    def __init__(self, key, trigger=(1, "epoch")):
        super().__init__(key, operator.lt, trigger)


class MinValueTrigger(BestValueTrigger):
    """Fires when the mean of a reported value over an interval is the smallest so far.

    Args:
        key: see :class:`BestValueTrigger`.
        trigger: see :class:`BestValueTrigger`.
    """

    def __init__(self, key, trigger=(1, "epoch")):
        super().__init__(key, operator.gt, trigger)
