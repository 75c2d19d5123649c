"""Extensions that put a value of the program into the observation."""

from mpchain.training.extension import PRIORITY_WRITER, make_extension


def observe_value(observation_key, target_func):
    """Returns an extension that observes a value once an epoch.

    Args:
        observation_key: name of the value in the observation.
        target_func: function of the trainer that returns the value.
    """

    @make_extension(trigger=(1, "epoch"), priority=PRIORITY_WRITER)
    def _observe_value(trainer):  # the name that it has in Chainer's snapshots
        trainer.observation[observation_key] = target_func(trainer)

    return _observe_value


def observe_lr(optimizer_name="main", observation_key="lr"):
    """Returns an extension that observes the learning rate of an optimizer once an epoch.

    Args:
        optimizer_name: name of the optimizer in the updater.
        observation_key: name of the value in the observation.
    """
    return observe_value(
        observation_key, lambda trainer: trainer.updater.get_optimizer(optimizer_name).lr
    )
