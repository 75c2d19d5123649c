"""Progress of training in epochs or iterations, periodic triggers, and means between them."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from mpchain.reporter import DictSummary
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.utils.type_check import is_real

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer
    from mpchain.training.updaters.updater import Updater

Trigger: TypeAlias = Callable[["Trainer"], bool]
"""The type of a function of the trainer that returns whether to call an extension, or to stop."""

TriggerLike: TypeAlias = tuple[float, str] | Trigger | None
"""The type of a trigger's specification: ``(period, unit)``, a trigger, or None for never."""

UNITS = ("epoch", "iteration")

# The progress within an epoch is a quotient, so rounding may put it below a multiple: after 3
# batches of 10 in 100 samples, it is 2.9999999999999996 periods of 0.1. A period counts as reached
# within this relative tolerance.
TOLERANCE = 1e-9


def progress(updater: "Updater", unit: str) -> float:
    """Returns the completed epochs (with the fraction of the current epoch) or iterations."""
    return updater.epoch_detail if unit == "epoch" else updater.iteration


def has_reached(updater: "Updater", length: float, unit: str) -> bool:
    """Returns whether training has lasted ``length`` epochs or iterations."""
    return progress(updater, unit) / length >= 1 - TOLERANCE


def training_length(trigger: TriggerLike) -> tuple[float, str] | None:
    """Returns ``(length, unit)`` of a stop trigger that knows when it will fire, or None.

    Example:
        >>> training_length(IntervalTrigger(20, "epoch"))
        (20, 'epoch')
    """
    get_length: Any = getattr(trigger, "get_training_length", None)
    return None if get_length is None else get_length()


def get_trigger(trigger: TriggerLike) -> Trigger:
    """Returns the trigger for a specification.

    Args:
        trigger: ``(period, unit)``, which means an :class:`IntervalTrigger`; a function of the
            trainer; or None, which means never.

    Raises:
        TypeError: ``trigger`` is none of these.
        ValueError: the period or the unit is wrong.

    Example:
        >>> get_trigger((10, "epoch"))
        IntervalTrigger(10, 'epoch')
    """
    if trigger is None:
        return lambda trainer: False
    if isinstance(trigger, tuple) and len(trigger) == 2:
        return IntervalTrigger(*trigger)
    if callable(trigger):
        return trigger
    raise TypeError(
        "get_trigger: trigger must be (period, unit), a function of the trainer or None, "
        f"not {trigger!r}"
    )


class ProgressTrigger:
    """Base of triggers that compare the progress of training with the progress at their last call.

    Args:
        unit: ``'epoch'`` or ``'iteration'``.
    """

    def __init__(self, unit: str) -> None:
        if unit not in UNITS:
            name = type(self).__name__
            raise ValueError(f"{name}: unit must be 'epoch' or 'iteration', not {unit!r}")
        self.unit = unit
        self._previous = {"epoch": 0.0, "iteration": 0}

    def advance(self, trainer: "Trainer") -> tuple[float, float]:
        """Returns the progress in ``unit`` at the last call (0 before the first call), and now."""
        previous = self._previous[self.unit]
        # The progress is kept in both units, so that a snapshot can be resumed with a trigger of
        # the other unit.
        self._previous = {unit: progress(trainer.updater, unit) for unit in UNITS}
        return previous, self._previous[self.unit]

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the progress at the last call."""
        self._previous = {
            "epoch": serializer("previous_epoch_detail", self._previous["epoch"]),
            "iteration": serializer("previous_iteration", self._previous["iteration"]),
        }
        for unit, done in self._previous.items():
            if not (is_real(done) and 0 <= done < math.inf):
                raise SerializationError(
                    f"{type(self).__name__}: the saved progress in {unit}s must be a finite number "
                    f"of at least 0, not {done!r}"
                )


class IntervalTrigger(ProgressTrigger):
    """Fires each time that training has passed a multiple of a period.

    Args:
        period: length of the period, greater than 0; for epochs it may be a fraction.
        unit: ``'epoch'`` or ``'iteration'``.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trigger = IntervalTrigger(2, "iteration")
        >>> [(trainer.updater.update(), trigger(trainer))[1] for _ in range(4)]
        [False, True, False, True]
    """

    def __init__(self, period: float, unit: str) -> None:
        super().__init__(unit)
        if not is_real(period) or not period > 0:
            raise ValueError(
                f"IntervalTrigger: period must be a number greater than 0, not {period!r}"
            )
        self.period = period

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether a multiple of the period was passed since the last call, or this is the
        last iteration of a trainer's test."""
        before, now = (math.floor(n / self.period + TOLERANCE) for n in self.advance(trainer))
        return before != now or getattr(trainer, "calls_all", False)

    def get_training_length(self) -> tuple[float, str]:
        """Returns ``(period, unit)``, the progress at which the trigger first fires."""
        return self.period, self.unit

    def __repr__(self) -> str:
        return f"IntervalTrigger({self.period!r}, {self.unit!r})"


class IntervalMeans:
    """Means of reported values over the iterations of an interval.

    Args:
        trigger: trigger that fires where an interval ends; see :func:`get_trigger`.
        keys: names of the values; None means all reported values.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> means = IntervalMeans(lambda trainer: True)
        >>> means.add({"loss": 1.0})
        >>> trainer.observation = {"loss": 3.0}
        >>> means(trainer)
        {'loss': 2.0}
    """

    def __init__(self, trigger: TriggerLike, keys: Iterable[str] | None = None) -> None:
        self._trigger = get_trigger(trigger)
        self._keys = None if keys is None else list(keys)
        self._summary = DictSummary()

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds values to the means; see :meth:`mpchain.DictSummary.add`."""
        self._summary.add(values)

    def __call__(self, trainer: "Trainer") -> dict[str, Any] | None:
        """Adds the observation; returns the means if an interval ends here, or None."""
        observation = trainer.observation
        keys = observation if self._keys is None else self._keys
        self.add({key: observation[key] for key in keys if key in observation})
        if not self._trigger(trainer):
            return None
        means, self._summary = self._summary.compute_mean(), DictSummary()
        return means

    def serialize(
        self,
        serializer: AbstractSerializer,
        serialize_part: Callable[[Any, Any], None],
        trigger: str = "_trigger",
        summary: str = "_summary",
    ) -> None:
        """Saves or restores the interval and the sums so far.

        Args:
            serializer: a serializer or deserializer.
            serialize_part: ``serialize_part`` or ``serialize_part_if_stored`` of
                :mod:`mpchain.training.states`.
            trigger: name of the trigger in the file.
            summary: name of the sums in the file.
        """
        serialize_part(self._trigger, serializer[trigger])
        serialize_part(self._summary, serializer[summary])
