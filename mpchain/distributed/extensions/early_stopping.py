"""The stop trigger that ends training on all ranks when a value no longer improves."""

from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.extensions.aggregation import ObservationAggregator
from mpchain.serializer import AbstractSerializer
from mpchain.training import Trainer
from mpchain.training.triggers import EarlyStoppingTrigger
from mpchain.training.triggers.interval import TriggerLike


class MultiNodeEarlyStoppingTrigger:
    """An :class:`mpchain.training.triggers.EarlyStoppingTrigger` that fires on all ranks at once.

    It monitors the mean of the value over all ranks, and also reports this mean.

    Args:
        comm: the communicator of the ranks.
        check_trigger, monitor, patience, mode, max_trigger, restore_best: see
            :class:`mpchain.training.triggers.EarlyStoppingTrigger`.
        verbose: whether rank 0 prints a line when the trigger fires.
        suffix: appended to ``monitor`` in the name of the mean.

    Example:
        >>> from mpchain.distributed.extensions import MultiNodeEarlyStoppingTrigger
        >>> stop = MultiNodeEarlyStoppingTrigger(comm, patience=3, max_trigger=(20, "epoch"))
        >>> stop.get_training_length()
        (20, 'epoch')
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        check_trigger: TriggerLike = (1, "epoch"),
        monitor: str = "main/loss",
        patience: int | None = None,
        mode: str = "auto",
        verbose: bool = False,
        max_trigger: TriggerLike = (100, "epoch"),
        suffix: str = "_aggregated",
        restore_best: bool = False,
    ):
        mean = monitor + suffix
        self._aggregator = ObservationAggregator(comm, monitor, mean, comm_trigger=check_trigger)
        is_verbose = verbose and comm.rank == 0
        self._trigger = EarlyStoppingTrigger(
            *(check_trigger, mean, patience, mode, is_verbose, max_trigger),
            restore_best=restore_best,
        )

    def __call__(self, trainer: Trainer) -> Any:
        """Returns whether training should stop, the same on all ranks."""
        self._aggregator(trainer)
        return self._trigger(trainer)

    def get_training_length(self) -> tuple[Any, str] | None:
        """Returns the limit as ``(length, unit)``, or None if ``max_trigger`` has no known
        limit."""
        return self._trigger.get_training_length()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state of the comparison and of all triggers."""
        self._trigger.serialize(serializer)
        self._aggregator.serialize(serializer["aggregator"])
