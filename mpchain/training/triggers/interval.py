"""Progress of training in epochs or iterations, and the trigger that fires periodically."""

import math
import numbers

from mpchain.serializer import SerializationError

UNITS = ("epoch", "iteration")

# An epoch's progress is a quotient: 3 batches of 10 in 100 samples, over a period of 0.1 epochs,
# is 2.9999999999999996. A period counts as reached when it is short by no more than this part.
TOLERANCE = 1e-9


def progress(updater, unit):
    """Returns how many epochs (with the fraction of the current one) or iterations were done."""
    return updater.epoch_detail if unit == "epoch" else updater.iteration


def has_reached(updater, length, unit) -> bool:
    """Returns whether training has lasted ``length`` epochs or iterations."""
    return progress(updater, unit) / length >= 1 - TOLERANCE


def training_length(trigger):
    """Returns ``(length, unit)`` for a stop trigger that knows when it fires, else None."""
    return trigger.get_training_length() if hasattr(trigger, "get_training_length") else None


def get_trigger(trigger):
    """Returns the trigger that a specification means.

    Args:
        trigger: ``(period, unit)``, which means an :class:`IntervalTrigger`; a function of the
            trainer; or None, which means never.

    Raises:
        TypeError: it is none of these.
        ValueError: the period or the unit is wrong.
    """
    if trigger is None:
        return _never
    if isinstance(trigger, tuple) and len(trigger) == 2:
        return IntervalTrigger(*trigger)
    if callable(trigger):
        return trigger
    raise TypeError(
        "get_trigger: trigger must be (period, unit), a function of the trainer or None, "
        f"not {trigger!r}"
    )


def _never(trainer):
    return False


def check_unit(caller, unit):
    """Raises ValueError unless ``unit`` is ``'epoch'`` or ``'iteration'``."""
    if unit not in UNITS:
        raise ValueError(f"{caller}: unit must be 'epoch' or 'iteration', not {unit!r}")


class ProgressTrigger:
    """Base of triggers that compare the progress of training with that at their last call."""

    def __init__(self, unit):
        check_unit(type(self).__name__, unit)
        self.unit = unit
        self._previous = {"epoch": 0.0, "iteration": 0}

    def advance(self, trainer):
        """Returns the progress in :attr:`unit` at the last call (0 at first), and the one now."""
        previous = self._previous[self.unit]
        # Both units are kept, so that a snapshot can be resumed with a trigger of the other unit.
        self._previous = {unit: progress(trainer.updater, unit) for unit in UNITS}
        return previous, self._previous[self.unit]

    def serialize(self, serializer):
        """Saves or restores the progress at the last call."""
        self._previous = {
            "epoch": serializer("previous_epoch_detail", self._previous["epoch"]),
            "iteration": serializer("previous_iteration", self._previous["iteration"]),
        }
        for unit, done in self._previous.items():
            if not (isinstance(done, numbers.Real) and 0 <= done < math.inf):
                raise SerializationError(
                    f"{type(self).__name__}: the saved progress in {unit}s is {done!r}, but must "
                    "be a finite number not below 0"
                )


class IntervalTrigger(ProgressTrigger):
    """Fires each time that training has passed a multiple of a period.

    Args:
        period: length of the period, greater than 0; for epochs it may be a fraction.
        unit: ``'epoch'`` or ``'iteration'``.

    Example:
        >>> IntervalTrigger(10, "epoch")
        IntervalTrigger(10, 'epoch')
    """

    def __init__(self, period, unit):
        super().__init__(unit)
        if not isinstance(period, numbers.Real) or not period > 0:
            raise ValueError(
                f"IntervalTrigger: period must be a number greater than 0, not {period!r}"
            )
        self.period = period

    def __call__(self, trainer):
        """Returns whether a multiple of the period was passed since the last call."""
        previous, now = map(self._count_periods, self.advance(trainer))
        return previous != now

    def _count_periods(self, done):
        return math.floor(done / self.period + TOLERANCE)

    def get_training_length(self):
        """Returns ``(period, unit)``: when the trigger first fires."""
        return self.period, self.unit

    def __repr__(self):
        return f"IntervalTrigger({self.period!r}, {self.unit!r})"
