"""ChainerMN's checkpointer: one file per rank and iteration, for the same number of ranks."""

import functools
import os
import re
import time

from mpchain.distributed.checkpoints.agreement import on_all_ranks
from mpchain.serializer import DamagedFileError, SerializationError
from mpchain.serializers import load_npz, save_npz
from mpchain.serializers.npz import read_npz
from mpchain.training.extension import Extension
from mpchain.training.progress import print_line


def create_multi_node_checkpointer(name, comm, cp_interval=5, gc_interval=5, path=None):
    """Returns an extension that saves the trainer on each rank once an epoch.

    It is there for ChainerMN's programs: :func:`~mpchain.distributed.extensions.checkpoint` writes
    what all ranks hold alike only once, does so in the background, and can be loaded with any
    number of ranks.

    Files are called ``<name>.<rank>.<iteration>``. They are deleted at the end of a training that
    has not failed.

    Args:
        name (str): name of the job.
        comm (Communicator): the ranks.
        cp_interval (int): how many checkpoints to keep at least.
        gc_interval (int): after how many checkpoints older ones are deleted.
        path: folder of the files; None means the trainer's.

    Returns:
        MultiNodeCheckpointer

    Raises:
        ValueError: an interval is below 1.
    """
    for argument, value in (("cp_interval", cp_interval), ("gc_interval", gc_interval)):
        if value < 1:
            raise ValueError(
                f"create_multi_node_checkpointer: {argument} must be at least 1, not {value}"
            )
    return MultiNodeCheckpointer(name, comm, cp_interval, gc_interval, path)


class MultiNodeCheckpointer(Extension):
    """What :func:`create_multi_node_checkpointer` returns."""

    trigger = (1, "epoch")
    priority = -100

    def __init__(self, name, comm, cp_interval, gc_interval, path):
        self.path = path
        self._job, self._comm = name, comm
        self._cp_interval, self._gc_interval = cp_interval, gc_interval
        self._saved = []  # iterations whose files are there
        self._stats = {"saved": 0, "deleted": 0, "bytes": 0, "seconds": 0.0}
        self._has_failed = False

    def initialize(self, trainer):
        if self.path is None:
            self.path = trainer.out
        self._saved = self._find()

    def __call__(self, trainer):
        """Saves the trainer."""
        self.save(trainer, trainer.updater.iteration)

    def on_error(self, trainer, exc, tb):
        self._has_failed = True

    def save(self, target, iteration):
        """Saves an object on this rank.

        Args:
            target: the object, which has ``serialize``.
            iteration (int): the number in the file's name.
        """
        begun = time.perf_counter()
        os.makedirs(self._folder(), exist_ok=True)
        save_npz(self._file(iteration), target)
        self._saved = sorted({*self._saved, iteration})
        self._stats["saved"] += 1
        self._stats["bytes"] += os.path.getsize(self._file(iteration))
        self._stats["seconds"] += time.perf_counter() - begun
        if self._stats["saved"] % self._gc_interval == 0:
            self._comm.barrier()  # the newer ones are there on all ranks
            self._delete(self._saved[: -self._cp_interval])

    def maybe_load(self, trainer, optimizer=None, path=None):
        """Restores the trainer from the latest iteration that all ranks have; collective.

        Files whose content is damaged on any rank are passed over.

        Args:
            trainer: the trainer, or another object that was saved.
            optimizer: not needed; it is there for ChainerMN's programs.
            path: folder of the files; None means that of the constructor, or the trainer's.

        Returns:
            int: the iteration; None if there is nothing to load.

        Raises:
            OSError: a rank cannot read its files; raised on all ranks.
            SerializationError: a rank has files of several iterations, but all ranks have none in
                common, or each of these is damaged on some rank; or a file does not fit.
        """
        if self.path is None:
            self.path = path if path is not None else trainer.out
        folder = self.path if path is None else path
        agree = functools.partial(on_all_ranks, self._comm, "maybe_load")
        held = agree(self._find, folder)
        common = sorted(set.intersection(*map(set, held)), reverse=True)
        damages = []
        for iteration in common:
            file = self._file(iteration, folder)
            troubles = list(filter(None, agree(_find_damage, file)))
            if not troubles:
                agree(load_npz, file, trainer)
                if self._comm.rank == 0:
                    print_line(f"training goes on from {file}")
                return iteration
            damages.append(f"checkpoint {iteration} is passed over: {'; '.join(troubles)}")
            if self._comm.rank == 0:
                print_line(damages[-1])
        # The very first files may be those of a job that ended before each rank had its own.
        if damages or max(map(len, held)) > 1:
            rules = [f"rank {rank} has {found or 'none'}" for rank, found in enumerate(held)]
            raise SerializationError(
                f"maybe_load: {folder} has files of {self._job!r}, but no iteration whose files "
                f"are whole on all ranks ({'; '.join([*rules, *damages])}); restore the missing "
                "ones, or move them all elsewhere to begin from the start"
            )
        return None

    def get_stats(self):
        """Returns a dict of what this rank has done: numbers ``saved`` and ``deleted``, ``bytes``
        and ``seconds`` of saving."""
        return dict(self._stats)

    def finalize(self):
        """Deletes this rank's files, unless training has failed."""
        if self.path is not None and not self._has_failed:
            self._delete(self._find())

    def _find(self, folder=None):
        pattern = re.compile(rf"{re.escape(self._job)}\.{self._comm.rank}\.(\d+)")
        folder = self._folder() if folder is None else folder
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            names = []
        return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)

    def _delete(self, iterations):
        for iteration in iterations:
            os.unlink(self._file(iteration))
            self._stats["deleted"] += 1
        self._saved = [i for i in self._saved if i not in set(iterations)]

    def _folder(self):
        return "." if self.path is None else self.path

    def _file(self, iteration, folder=None):
        name = f"{self._job}.{self._comm.rank}.{iteration}"
        return os.path.join(self._folder() if folder is None else folder, name)


def _find_damage(file):
    """Says what is wrong with a file; None if its content is whole."""
    try:
        read_npz(file)
    except DamagedFileError as error:
        return str(error)
    return None
