"""The stop trigger that ends training when a value no longer improves."""

import math
import operator
import warnings
from typing import TYPE_CHECKING

from mpchain.serializer import AbstractSerializer
from mpchain.training.named_parts import listing
from mpchain.training.states import FrozenState, serialize_optional, serialize_part_if_stored
from mpchain.training.triggers import interval

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer


class EarlyStoppingTrigger:
    """Fires when a reported value has not improved for a number of checks, or at a limit.

    Args:
        check_trigger: determines when the value is compared; see :func:`get_trigger`. The mean
            since the last check is compared.
        monitor: name of the value in the trainer's observation.
        patience: number of checks in a row without improvement; None means 3.
        mode: whether greater (``'max'``) or smaller (``'min'``) values are better; ``'auto'`` means
            ``'max'`` for a name that contains ``accuracy``, and otherwise ``'min'``.
        verbose: whether to print a line when the trigger fires because of ``patience``.
        max_trigger: the limit; see :func:`get_trigger`.
        restore_best: whether to restore the models of all optimizers, when the trigger fires, to
            their state at the best check. Until then, this state is kept in host memory and saved
            in snapshots.

    Example:
        >>> stop = EarlyStoppingTrigger(monitor="validation/main/loss", patience=5)
        >>> stop.get_training_length()
        (100, 'epoch')
        >>> trainer = testing.get_trainer_with_mock_updater(stop)
    """

    def __init__(
        self,
        check_trigger: interval.TriggerLike = (1, "epoch"),
        monitor: str = "main/loss",
        patience: int | None = None,
        mode: str = "auto",
        verbose: bool = False,
        max_trigger: interval.TriggerLike = (100, "epoch"),
        *,
        restore_best: bool = False,
    ) -> None:
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
        self._max_trigger = interval.get_trigger(max_trigger)
        self._means = interval.IntervalMeans(check_trigger, [monitor])
        self._best_models = FrozenState() if restore_best else None

    def __call__(self, trainer: "Trainer") -> bool:
        """Returns whether training should stop.

        A check before which the value was not reported is left out, with a warning.
        """
        # Both triggers are called each time, because each of them compares the progress with the
        # progress at its last call.
        is_over, means = self._max_trigger(trainer), self._means(trainer)
        fires = (means is not None and self._check(trainer, means)) or is_over
        if fires and self._best_models:
            self._best_models.restore(_Models(trainer))
        return fires

    def _check(self, trainer, means):
        if self.monitor not in means:
            warnings.warn(
                f"EarlyStoppingTrigger: {self.monitor!r} was not reported before the check at "
                f"iteration {trainer.updater.iteration}; the values reported there are: "
                f"{listing(trainer.observation)}",
                stacklevel=3,
            )
            return False
        value = float(means[self.monitor])
        if self._is_better(value, self.best):
            self.best, self.count = value, 0
            if self._best_models is not None:
                self._best_models = FrozenState(_Models(trainer))
        else:
            self.count += 1
        fires = self.count >= self.patience
        if fires and self.verbose:
            print(
                f"training ends early, after {trainer.updater.epoch} epochs: the best "
                f"{self.monitor} was {self.best:g}, {self.count} checks ago"
            )
        return fires

    def get_training_length(self) -> tuple[float, str] | None:
        """Returns the limit as ``(length, unit)``, or None if ``max_trigger`` has no known
        limit."""
        return interval.training_length(self._max_trigger)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the best value and models, the count, the triggers and the sum."""
        # Chainer saves no state of its trigger, so these entries are optional.
        self.count = serialize_optional(serializer, "count", self.count)
        self.best = serialize_optional(serializer, "best", self.best)
        self._means.serialize(serializer, serialize_part_if_stored, "check_trigger", "summary")
        serialize_part_if_stored(self._max_trigger, serializer["max_trigger"])
        if self._best_models is not None:
            self._best_models.serialize_with_names(serializer["best_models"])


class _Models:
    """The models of all optimizers, saved and restored as one object."""

    def __init__(self, trainer):
        self._optimizers = trainer.updater.get_all_optimizers()

    def serialize(self, serializer):
        for name, optimizer in self._optimizers.items():
            optimizer.target.serialize(serializer[name])
