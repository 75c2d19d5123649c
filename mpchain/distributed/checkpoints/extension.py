"""The trainer extension that writes checkpoints on all ranks together."""

import dataclasses
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from mpchain import observers
from mpchain.distributed.checkpoints import layout
from mpchain.distributed.checkpoints.reading import load_checkpoint
from mpchain.distributed.checkpoints.writing import Saving, open_folder
from mpchain.distributed.communicators import Communicator
from mpchain.training import Extension, Trainer
from mpchain.training.progress import print_line


@dataclasses.dataclass(eq=False, repr=False)
class Checkpoint(Extension):
    """Saves the trainer on all ranks once an epoch, and resumes from the latest checkpoint.

    ``checkpoint`` is another name of this class. Add the extension on every rank. It copies the
    state, then writes the copy in the background: one rank writes each value that several ranks
    share, and each rank writes its part of a divided value. A checkpoint is valid only when the
    parts of all ranks are on the disk; older checkpoints beyond ``n_retains`` are then deleted. Any
    number of ranks can load a checkpoint, and training continues in mid-epoch.

    While training runs, a second job that would write to the same folder fails with a RuntimeError
    that names the first job.

    An error of writing is raised at the next checkpoint or at the end of training, on the rank on
    which writing failed.

    Args:
        comm: the communicator of the ranks; one process may use the extension, too.
        folder: folder of the checkpoints, in the trainer's folder unless it is absolute; all ranks
            must see it.
        n_retains: the number of checkpoints to keep; 0 or less keeps all.
        autoload: whether to resume from the latest checkpoint, if there is one, when training
            begins. A damaged checkpoint is skipped, with a warning, if an older one is intact.
            Training does not begin if all are damaged, or if one cannot be read; see
            :func:`~mpchain.distributed.load_checkpoint`.
        on_interrupt: whether to save also when Ctrl-C or SIGTERM ends training.
        wait: whether training waits until each checkpoint is written.

    Example:
        >>> from mpchain.distributed.extensions import checkpoint
        >>> extension = checkpoint(comm, n_retains=3)
        >>> extension.trigger
        (1, 'epoch')
    """

    comm: Communicator
    folder: layout.Path = "checkpoints"
    _: dataclasses.KW_ONLY
    n_retains: int = 2
    autoload: bool = True
    on_interrupt: bool = True
    wait: bool = False

    trigger = (1, "epoch")
    priority = -100
    default_name = "_Checkpoint"

    def __post_init__(self):
        self._path: Path | None = None
        self._run: str | None = None
        self._latest: str | None = None
        self._lock: Any = None
        self._saving: Saving | None = None
        self._has_failed = False

    def initialize(self, trainer: Trainer) -> None:
        """Loads the latest checkpoint if ``autoload`` is set."""
        self._path = path = observers.folder(os.path.join(trainer.out, self.folder))
        self._run, self._lock = open_folder(path, self.comm)
        if self.autoload:
            iteration = load_checkpoint(path, trainer, self.comm)
            if iteration is not None:
                self._latest = layout.name_of(iteration)
                if self.comm.rank == 0:
                    print_line(f"resuming from {os.path.join(path, self._latest)}")

    def __call__(self, trainer: Trainer) -> None:
        """Saves the trainer."""
        self._finish()
        # `initialize` has set the path and the run.
        assert self._path is not None and self._run is not None
        self._latest = name = layout.name_of(trainer.updater.iteration)
        self._saving = Saving(self._path, name, self._run, self.comm, trainer, self.n_retains)
        if self.wait:
            self._finish()

    def on_ranks_lost(self, trainer: Trainer) -> None:
        """Abandons a checkpoint that is being written; the surviving ranks write the next one."""
        if self._saving is not None:
            self._saving.abandon()
            self._saving = None
        self._latest = None
        assert self._path is not None  # `initialize` has set the path
        self._lock.release()
        self._run, self._lock = open_folder(self._path, self.comm)

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        """Saves the trainer if Ctrl-C or SIGTERM ended training and ``on_interrupt`` is set."""
        # A signal ends training on all ranks after the same iteration. Any other failure is only on
        # this rank, so the other ranks would not take part in a checkpoint.
        if not trainer.is_interrupted:
            self._has_failed = True
        elif self.on_interrupt and self._latest != layout.name_of(trainer.updater.iteration):
            self(trainer)

    def finalize(self) -> None:
        """Waits until the last checkpoint is complete; after a failure, abandons it."""
        try:
            if self._has_failed and self._saving is not None:
                self._saving.abandon()
            else:
                self._finish()
        finally:
            if self._lock is not None:
                self._lock.release()

    @property
    def latest(self) -> str | None:
        """Path of the latest checkpoint that was loaded, or whose writing has begun; None if there
        is none."""
        return os.path.join(self._path, self._latest) if self._path and self._latest else None

    def _finish(self):
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()


checkpoint = Checkpoint
