"""The trainer extension that writes checkpoints on all ranks together."""

import os

from mpchain.distributed.checkpoints import layout
from mpchain.distributed.checkpoints.reading import load_checkpoint
from mpchain.distributed.checkpoints.writing import Saving, open_folder
from mpchain.training.extension import Extension
from mpchain.training.progress import print_line


def checkpoint(
    comm, folder="checkpoints", *, n_retains=2, autoload=True, on_interrupt=True, wait=False
):
    """Returns an extension by which all ranks save the trainer once an epoch, and go on from it.

    To be added on every rank. The state is copied, then written in the background, each value by
    one rank: what all ranks hold alike once, what is divided among them in parts. A checkpoint
    counts as soon as all ranks' parts are on the disk, and not before; older ones are deleted after
    that. It can be loaded with any number of ranks, and continues in mid-epoch.

    While training runs, another job that would write to the same folder is refused, with a
    RuntimeError that names the first one.

    What fails is raised at the next checkpoint or at the end of training, on the rank on which it
    failed.

    Args:
        comm (Communicator): the ranks; one process, too.
        folder: folder of the checkpoints, in the trainer's folder unless it is absolute; all ranks
            must see it.
        n_retains (int): how many checkpoints to keep; 0 or less keeps all.
        autoload (bool): whether to go on from the latest checkpoint, if there is one, when training
            begins. A damaged one is passed over, with a warning, if an older one is whole. Training
            does not begin where all are damaged, or where one cannot be read; see
            :func:`~mpchain.distributed.load_checkpoint`.
        on_interrupt (bool): whether to save also when Ctrl-C or SIGTERM ends training.
        wait (bool): whether training waits until each checkpoint is written.

    Example:
        >>> from mpchain.distributed import create_communicator
        >>> extension = checkpoint(create_communicator(), n_retains=3)
    """
    return Checkpoint(comm, folder, n_retains, autoload, on_interrupt, wait)


class Checkpoint(Extension):
    """The extension that :func:`checkpoint` returns."""

    trigger = (1, "epoch")
    priority = -100
    default_name = "_Checkpoint"

    def __init__(self, comm, folder, n_retains, autoload, on_interrupt, wait):
        self._comm, self._folder, self._n_retains = comm, folder, n_retains
        self._autoload, self._on_interrupt, self._waits = autoload, on_interrupt, wait
        self._path = self._run = self._lock = self._saving = self._latest = None
        self._has_failed = False

    def initialize(self, trainer):
        """Loads the latest checkpoint, if asked to."""
        self._path = os.path.join(trainer.out, self._folder)
        self._run, self._lock = open_folder(self._path, self._comm)
        if self._autoload:
            iteration = load_checkpoint(self._path, trainer, self._comm)
            if iteration is not None:
                self._latest = layout.name_of(iteration)
                if self._comm.rank == 0:
                    print_line(f"training goes on from {os.path.join(self._path, self._latest)}")

    def __call__(self, trainer):
        """Saves the trainer."""
        name = layout.name_of(trainer.updater.iteration)
        self._finish()
        self._latest = name
        self._saving = Saving(self._path, name, self._run, self._comm, trainer, self._n_retains)
        if self._waits:
            self._finish()

    def on_error(self, trainer, exc, tb):
        """Saves the trainer where Ctrl-C or SIGTERM has ended training, if asked to."""
        # All ranks end by the same signal, after the same iteration; any other failure is this
        # rank's own, and the others would be waited for in vain.
        if not trainer.is_interrupted:
            self._has_failed = True
        elif self._on_interrupt and self._latest != layout.name_of(trainer.updater.iteration):
            self(trainer)

    def finalize(self):
        """Waits until the last checkpoint is whole; after a failure, leaves it as it is."""
        try:
            if self._has_failed and self._saving is not None:
                self._saving.abandon()
            else:
                self._finish()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _finish(self):
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()
