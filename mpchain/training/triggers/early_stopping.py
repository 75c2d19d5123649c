"""The stop trigger that ends training when a value gets no better."""

import math
import operator
import warnings

from mpchain.training.triggers.best_value import MeanSince
from mpchain.training.triggers.interval import get_trigger, training_length


class EarlyStoppingTrigger:
    """Fires when a reported value has not become better for some checks, or at a limit.

    Args:
        check_trigger: when to compare; see :func:`get_trigger`. What is compared is the mean
            since the last check.
        monitor: name of the value in the trainer's observation.
        patience: number of checks in a row that may bring no improvement; None means 3.
        mode: ``'max'`` or ``'min'``: what is better; ``'auto'`` means ``'max'`` for a name that
            contains ``accuracy``, else ``'min'``.
        verbose: whether to print a line when it fires.
        max_trigger: the limit; see :func:`get_trigger`.
    """

    def __init__(
        self,
        check_trigger=(1, "epoch"),
        monitor="main/loss",
        patience=None,
        mode="auto",
        verbose=False,
        max_trigger=(100, "epoch"),
    ):
        if mode not in ("auto", "max", "min"):
            raise ValueError(
                f"EarlyStoppingTrigger: mode must be 'auto', 'max' or 'min', not {mode!r}"
            )
        is_max = mode == "max" or (mode == "auto" and "accuracy" in monitor)
        self.monitor = monitor
        self.patience = 3 if patience is None else patience
        self.count = 0
        self.best = -math.inf if is_max else math.inf
        self.verbose = verbose
        self._is_better = operator.gt if is_max else operator.lt
        self._max_trigger = get_trigger(max_trigger)
        self._check_trigger = get_trigger(check_trigger)
        self._mean = MeanSince(monitor)

    def __call__(self, trainer):
        """Returns whether training should stop.

        A check before which the value was not reported is left out, with a warning.
        """
        self._mean.add(trainer.observation)
        # Both are asked each time, because each compares with the progress at its last call.
        is_over, is_check = self._max_trigger(trainer), self._check_trigger(trainer)
        if is_over or not is_check:
            return is_over
        value = self._mean.take()
        if value is None:
            self._warn_missing(trainer)
            return False
        if self._is_better(value, self.best):
            self.best, self.count = value, 0
        else:
            self.count += 1
        return self._has_lost_patience(trainer)

    def _warn_missing(self, trainer):
        known = ", ".join(map(repr, trainer.observation)) or "none"
        warnings.warn(
            f"EarlyStoppingTrigger: {self.monitor!r} was not reported before the check at "
            f"iteration {trainer.updater.iteration}; reported there: {known}",
            stacklevel=3,
        )

    def _has_lost_patience(self, trainer):
        fires = self.count >= self.patience
        if fires and self.verbose:
            print(
                f"training ends early, after {trainer.updater.epoch} epochs: {self.monitor} was "
                f"best {self.count} checks ago: {self.best:g}"
            )
        return fires

    def get_training_length(self):
        """Returns the limit as ``(length, unit)``, or None if ``max_trigger`` does not know it."""
        return training_length(self._max_trigger)

    def serialize(self, serializer):
        """Saves or restores the best value, the count, both triggers and the sum so far."""
        self.count = serializer("count", self.count)
        self.best = serializer("best", self.best)
        self._mean.serialize(serializer["summary"])
        for key, trigger in [
            ("max_trigger", self._max_trigger),
            ("check_trigger", self._check_trigger),
        ]:
            if hasattr(trigger, "serialize"):
                trigger.serialize(serializer[key])
