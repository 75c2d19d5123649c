"""Triggers that fire at given points of training or of time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpchain.serializer import AbstractSerializer
from mpchain.training.triggers.interval import TOLERANCE, ProgressTrigger
from mpchain.utils.type_check import is_real

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer


class ManualScheduleTrigger(ProgressTrigger):
    """Fires when training passes any of the given points.

    Args:
        points: number, or list of numbers, of epochs (fractions allowed) or iterations.
        unit: ``'epoch'`` or ``'iteration'``.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trigger = ManualScheduleTrigger([2, 3], "iteration")
        >>> [(trainer.updater.update(), trigger(trainer))[1] for _ in range(4)]
        [False, True, True, False]
    """

    def __init__(self, points: float | Sequence[float], unit: str) -> None:
        super().__init__(unit)
        self.points: list[float] = [points] if is_real(points) else list(points)

    @property
    def finished(self) -> bool:
        """Whether training had passed the last point when the trigger was last called."""
        return self._previous[self.unit] * (1 + TOLERANCE) >= max(self.points)

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether a point was passed since the last call."""
        previous, now = (done * (1 + TOLERANCE) for done in self.advance(trainer))
        return any(previous < point <= now for point in self.points)


class OnceTrigger:
    """Fires at its first call.

    Args:
        call_on_resume: whether to fire once more when training was resumed from a snapshot.

    Example:
        >>> trainer, trigger = testing.get_trainer_with_mock_updater(), OnceTrigger()
        >>> trigger(trainer), trigger(trainer)
        (True, False)
    """

    def __init__(self, call_on_resume: bool = False) -> None:
        self._is_first = True
        self._is_resumed = call_on_resume

    @property
    def finished(self) -> bool:
        """Whether the trigger has fired and will not fire again."""
        return not (self._is_first or self._is_resumed)

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether this is the first call, or with ``call_on_resume`` the first in this
        run."""
        fires = not self.finished
        self._is_first = self._is_resumed = False
        return fires

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores whether the trigger has not fired yet."""
        self._is_first = bool(serializer("_flag_first", self._is_first))


class TimeTrigger:
    """Fires each time that training has lasted a multiple of a period.

    Args:
        period: length of the period in seconds, greater than 0.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(extensions.snapshot(), trigger=TimeTrigger(600))
    """

    def __init__(self, period: float) -> None:
        if not period > 0:
            raise ValueError(f"TimeTrigger: period must be greater than 0 seconds, not {period!r}")
        self.period = period
        self._next_time = period

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether a multiple of the period was passed since the last call."""
        elapsed = trainer.elapsed_time
        fires = elapsed >= self._next_time
        if fires:
            self._next_time = (elapsed // self.period + 1) * self.period
        return fires

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the time at which the trigger fires next."""
        self._next_time = serializer("next_time", self._next_time)
