"""The extension that lets one rank save what is divided among all."""

from mpchain.training import Extension


class GatherState(Extension):
    """Gathers the state of sharded optimizers at one rank, right before that rank saves it.

    To be added on all ranks, with the trigger of the snapshot: once an epoch, if none is given. It
    gathers also when Ctrl-C or SIGTERM ends training.

    Args:
        root (int): the rank that saves.
    """

    trigger = (1, "epoch")
    priority = -99  # just before snapshots

    def __init__(self, root=0):
        self.root = root

    def __call__(self, trainer):
        """Gathers the states."""
        for optimizer in trainer.updater.get_all_optimizers().values():
            if hasattr(optimizer, "gather_state"):
                optimizer.gather_state(self.root)

    def on_error(self, trainer, exc, tb):
        """Gathers the states if a signal has ended training, as it does on all ranks at once."""
        if trainer.is_interrupted:
            self(trainer)
