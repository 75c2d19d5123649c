"""Extensions that put a value into the observation."""

from collections.abc import Callable
from typing import Any

from mpchain.serializer import AbstractSerializer
from mpchain.training.extension import PRIORITY_EDITOR, PRIORITY_WRITER, Extension, make_extension
from mpchain.training.states import serialize_part_if_stored
from mpchain.training.trainer import Trainer
from mpchain.training.triggers.interval import TriggerLike, get_trigger


def observe_value(
    observation_key: str, target_func: Callable[[Trainer], Any]
) -> Callable[[Trainer], None]:
    """Returns an extension that observes a value once an epoch.

    Args:
        observation_key: name of the value in the observation.
        target_func: function of the trainer that returns the value.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> observe_value("minutes", lambda trainer: trainer.elapsed_time / 60)(trainer)
        >>> trainer.observation
        {'minutes': 0.0}
    """

    @make_extension(trigger=(1, "epoch"), priority=PRIORITY_WRITER)
    def _observe_value(trainer):  # Chainer's snapshots use the name of this function
        trainer.observation[observation_key] = target_func(trainer)

    return _observe_value


def observe_lr(
    optimizer_name: str = "main", observation_key: str = "lr"
) -> Callable[[Trainer], None]:
    """Returns an extension that observes the learning rate of an optimizer once an epoch.

    Args:
        optimizer_name: name of the optimizer in the updater.
        observation_key: name of the value in the observation.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(observe_lr(), trigger=(1, "iteration"))
    """
    return observe_value(
        observation_key, lambda trainer: trainer.updater.get_optimizer(optimizer_name).lr
    )


class MicroAverage(Extension):
    """Observes the quotient of the sums of two observed values over an interval of iterations.

    For example, it computes a mean over samples from sums over batches of different sizes.

    Args:
        numerator_key: name of the value to sum in the numerator.
        denominator_key: name of the value to sum in the denominator.
        result_key: name of the quotient.
        trigger: the interval; see :func:`get_trigger`.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> average = MicroAverage("n_correct", "n", "accuracy", lambda trainer: True)
        >>> trainer.observation = {"n_correct": 3, "n": 4}
        >>> average(trainer)
        >>> trainer.observation["accuracy"]
        0.75
    """

    priority = PRIORITY_EDITOR

    def __init__(
        self,
        numerator_key: str,
        denominator_key: str,
        result_key: str,
        trigger: TriggerLike = (1, "epoch"),
    ) -> None:
        self._keys = [numerator_key, denominator_key]
        self._result_key = result_key
        self._trigger = get_trigger(trigger)
        self._numerator = self._denominator = 0

    def __call__(self, trainer: Trainer) -> None:
        """Adds the values of this iteration; observes the quotient if the interval ends here.

        An iteration that reports neither value is left out.

        Raises:
            KeyError: only one of the values was reported.
            ZeroDivisionError: the interval ends, and the denominator is 0.
        """
        observation = trainer.observation
        missing = [key for key in self._keys if key not in observation]
        if len(missing) == 1:
            raise KeyError(
                f"MicroAverage: {missing[0]!r} was not reported at iteration "
                f"{trainer.updater.iteration}, but the other value was; report both or neither"
            )
        if not missing:
            numerator, denominator = (_as_number(observation[key]) for key in self._keys)
            self._numerator += numerator
            self._denominator += denominator
        if self._trigger(trainer):
            if self._denominator == 0:
                raise ZeroDivisionError(
                    f"MicroAverage: the sum of {self._keys[1]!r} over the interval is 0, or it was "
                    "never reported"
                )
            observation[self._result_key] = self._numerator / self._denominator
            self._numerator = self._denominator = 0

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the interval and the sums so far."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        self._numerator = serializer("_numerator", self._numerator)
        self._denominator = serializer("_denominator", self._denominator)


def _as_number(value):
    value = getattr(value, "array", value)
    return value.item() if hasattr(value, "item") else value
