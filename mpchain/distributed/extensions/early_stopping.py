"""The stop trigger that ends training on all ranks when a value gets no better."""

from mpchain.distributed.extensions.aggregation import ObservationAggregator
from mpchain.training.triggers import EarlyStoppingTrigger


class MultiNodeEarlyStoppingTrigger:
    """An :class:`mpchain.training.triggers.EarlyStoppingTrigger` that fires on all ranks at once.

    It compares the mean of the value over all ranks, which it also reports.

    Args:
        comm (Communicator): the ranks.
        check_trigger, monitor, patience, mode, max_trigger, restore_best: see
            :class:`mpchain.training.triggers.EarlyStoppingTrigger`.
        verbose (bool): whether rank 0 prints a line when it fires.
        suffix (str): what the name of the mean has after ``monitor``.
    """

    def __init__(
        self,
        comm,
        *,
        check_trigger=(1, "epoch"),
        monitor="main/loss",
        patience=None,
        mode="auto",
        verbose=False,
        max_trigger=(100, "epoch"),
        suffix="_aggregated",
        restore_best=False,
    ):
        self._aggregator = ObservationAggregator(
            comm, monitor, monitor + suffix, comm_trigger=check_trigger
        )
        self._trigger = EarlyStoppingTrigger(
            check_trigger,
            monitor + suffix,
            patience,
            mode,
            verbose and comm.rank == 0,
            max_trigger,
            restore_best=restore_best,
        )

    def __call__(self, trainer):
        """Returns whether training should stop, the same on all ranks."""
        self._aggregator(trainer)
        return self._trigger(trainer)

    def get_training_length(self):
        """Returns the limit as ``(length, unit)``, or None if ``max_trigger`` does not know it."""
        return self._trigger.get_training_length()

    def serialize(self, serializer):
        """Saves or restores the state of the comparison and of all triggers."""
        self._trigger.serialize(serializer)
        self._aggregator.serialize(serializer["aggregator"])
