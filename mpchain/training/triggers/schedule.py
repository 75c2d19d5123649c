"""Triggers that fire at given points of training or of time."""

from mpchain.training.triggers.interval import TOLERANCE, ProgressTrigger


class ManualScheduleTrigger(ProgressTrigger):
    """Fires when training passes any of the given points.

    Args:
        points: number, or list of numbers, of epochs (fractions allowed) or iterations.
        unit: ``'epoch'`` or ``'iteration'``.
    """

    def __init__(self, points, unit):
        super().__init__(unit)
        self.points = list(points) if isinstance(points, (list, tuple)) else [points]

    def __call__(self, trainer):
        """Returns whether a point was passed since the last call."""
        previous, now = (done * (1 + TOLERANCE) for done in self.advance(trainer))
        return any(previous < point <= now for point in self.points)


class OnceTrigger:
    """Fires at its first call.

    Args:
        call_on_resume: whether to fire once more when training was resumed from a snapshot.
    """

    def __init__(self, call_on_resume=False):
        self._is_first = True
        self._is_resumed = call_on_resume

    @property
    def finished(self) -> bool:
        """Whether the trigger has fired and will not again."""
        return not (self._is_first or self._is_resumed)

    def __call__(self, trainer):
        """Returns whether this is the first call."""
        fires = not self.finished
        self._is_first = self._is_resumed = False
        return fires

    def serialize(self, serializer):
        """Saves or restores whether the first call is still to come."""
        self._is_first = bool(serializer("_flag_first", self._is_first))


class TimeTrigger:
    """Fires each time that training has lasted a multiple of a period.

    Args:
        period: seconds, greater than 0.
    """

    def __init__(self, period):
        if not period > 0:
            raise ValueError(f"TimeTrigger: period must be greater than 0 seconds, not {period!r}")
        self.period = period
        self._next_time = period

    def __call__(self, trainer):
        """Returns whether a multiple of the period was passed since the last call."""
        elapsed = trainer.elapsed_time
        fires = elapsed >= self._next_time
        if fires:
            self._next_time = (elapsed // self.period + 1) * self.period
        return fires

    def serialize(self, serializer):
        """Saves or restores the time at which the trigger fires next."""
        self._next_time = serializer("next_time", self._next_time)
