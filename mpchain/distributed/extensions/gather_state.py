"""The extension that lets one rank save state that is divided among all ranks."""

from types import TracebackType

from mpchain.training import Extension, Trainer


class GatherState(Extension):
    """Gathers the state of sharded optimizers on one rank, right before that rank saves it.

    Add the extension on all ranks, with the trigger of the snapshot; the default is once an epoch.
    It also gathers when Ctrl-C or SIGTERM ends training.

    Args:
        root: the rank that saves.

    Example:
        >>> from mpchain.distributed.extensions import GatherState
        >>> GatherState(root=0).trigger
        (1, 'epoch')
    """

    trigger = (1, "epoch")
    priority = -99  # this priority runs the extension just before snapshots

    def __init__(self, root: int = 0):
        self.root = root

    def __call__(self, trainer: Trainer) -> None:
        """Gathers the states of all sharded optimizers on the root; collective."""
        for optimizer in trainer.updater.get_all_optimizers().values():
            optimizer.gather_state(self.root)

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        """Gathers the states if a signal ended training, because a signal ends it on all ranks at
        once."""
        if trainer.is_interrupted:
            self(trainer)
