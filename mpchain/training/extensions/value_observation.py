"""Extensions that put a value of the program into the observation."""

from collections.abc import Callable
from typing import Any

from mpchain.training.extension import PRIORITY_WRITER, make_extension
from mpchain.training.trainer import Trainer


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
    def _observe_value(trainer):  # its name in Chainer's snapshots
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
