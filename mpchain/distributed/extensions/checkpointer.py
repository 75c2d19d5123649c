"""ChainerMN's checkpointer: one file per rank and iteration, for the same number of ranks."""

import functools
import os
import re
import time
from types import TracebackType

from mpchain.dataset.dataset_mixin import check_least
from mpchain.distributed.checkpoints import layout
from mpchain.distributed.checkpoints.agreement import on_all_ranks
from mpchain.distributed.checkpoints.reading import latest_whole
from mpchain.distributed.communicators import Communicator
from mpchain.optimizer import Optimizer
from mpchain.serializer import DamagedFileError, SerializationError
from mpchain.serializers import load_npz, save_npz
from mpchain.serializers.npz import read_npz
from mpchain.training import Extension, Trainer
from mpchain.training.progress import print_line


class MultiNodeCheckpointer(Extension):
    """Saves the trainer on each rank once an epoch, as ChainerMN's extension does.

    ``create_multi_node_checkpointer`` is another name of this class. New programs should use
    :func:`~mpchain.distributed.extensions.checkpoint`: it writes shared values only once, in the
    background, and any number of ranks can load its checkpoints. Both extensions find, verify and
    choose files with the same functions; this one keeps ChainerMN's file format, in which only the
    rank that wrote a file can load it.

    Files are called ``<name>.<rank>.<iteration>``. They are deleted when training ends without a
    failure.

    Args:
        name: name of the job.
        comm: the communicator of the ranks.
        cp_interval: the least number of checkpoints to keep.
        gc_interval: the number of checkpoints after which older ones are deleted.
        path: folder of the files; None means the trainer's folder.

    Raises:
        ValueError: an interval is below 1.

    Example:
        >>> from mpchain.distributed import create_multi_node_checkpointer
        >>> checkpointer = create_multi_node_checkpointer("job", comm)
        >>> checkpointer.get_stats()
        {'saved': 0, 'deleted': 0, 'bytes': 0, 'seconds': 0.0}
    """

    trigger = (1, "epoch")
    priority = -100

    def __init__(
        self,
        name: str,
        comm: Communicator,
        cp_interval: int = 5,
        gc_interval: int = 5,
        path: str | None = None,
    ):
        intervals = {"cp_interval": cp_interval, "gc_interval": gc_interval}
        check_least("create_multi_node_checkpointer", **intervals)
        self.path = path
        self._prefix, self._comm = f"{name}.{comm.rank}.", comm
        comm.refuse_to_lose_ranks(self, "create_multi_node_checkpointer saves for all ranks")
        self._cp_interval, self._gc_interval = cp_interval, gc_interval
        self._saved = []  # iterations for which files exist
        self._stats = {"saved": 0, "deleted": 0, "bytes": 0, "seconds": 0.0}
        self._has_failed = False

    def initialize(self, trainer: Trainer) -> None:
        if self.path is None:
            self.path = trainer.out
        self._saved = self._find(self.path)

    def __call__(self, trainer: Trainer) -> None:
        """Saves the trainer."""
        self.save(trainer, trainer.updater.iteration)

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        self._has_failed = True

    def save(self, target: object, iteration: int) -> None:
        """Saves an object on this rank.

        Args:
            target: the object, which has ``serialize``.
            iteration: the number in the file's name.
        """
        begun = time.perf_counter()
        folder = self.path or "."
        os.makedirs(folder, exist_ok=True)
        save_npz(self._file(folder, iteration), target)
        self._saved = sorted({*self._saved, iteration})
        self._stats["saved"] += 1
        self._stats["bytes"] += os.path.getsize(self._file(folder, iteration))
        self._stats["seconds"] += time.perf_counter() - begun
        if self._stats["saved"] % self._gc_interval == 0:
            self._comm.barrier()  # after this, all ranks have written the newer files
            self._delete(self._saved[: -self._cp_interval])

    def maybe_load(
        self, trainer: Trainer, optimizer: Optimizer | None = None, path: str | None = None
    ) -> int | None:
        """Restores the trainer from the latest iteration that all ranks have saved; collective.

        Files whose content is damaged on any rank are skipped.

        Args:
            trainer: the trainer, or another object that was saved.
            optimizer: not used; ChainerMN's programs pass it.
            path: folder of the files; None means the constructor's ``path``, or the trainer's
                folder.

        Returns:
            The iteration; None if there is nothing to load.

        Raises:
            OSError: a rank cannot read its files; raised on all ranks.
            SerializationError: ranks have files, but all ranks have no iteration in common, or each
                common iteration is damaged on some rank; or a file does not fit.
        """
        if self.path is None:
            self.path = path if path is not None else trainer.out
        folder = self.path if path is None else path
        agree = functools.partial(on_all_ranks, self._comm, "maybe_load")
        held = agree(self._find, folder)

        def find_damage(iteration):
            damages = filter(None, agree(_find_damage, self._file(folder, iteration)))
            return "; ".join(damages)

        iteration, damages = latest_whole(sorted(set.intersection(*map(set, held))), find_damage)
        skipped = [f"skipping checkpoint {i}: {damage}" for i, damage in damages.items()]
        if self._comm.rank == 0:
            for line in skipped:
                print_line(line)
        if iteration is not None:
            agree(load_npz, self._file(folder, iteration), trainer)
            if self._comm.rank == 0:
                print_line(f"resuming from {self._file(folder, iteration)}")
            return iteration
        # When a job ends, one rank may already have its first file while another rank has none.
        if damages or max(map(len, held)) > 1:
            rules = [f"rank {rank} has {found or 'none'}" for rank, found in enumerate(held)]
            raise SerializationError(
                f"maybe_load: no iteration in {folder} has whole files on all ranks: "
                f"{'; '.join([*rules, *skipped])}; restore the missing files, or move all of them "
                "elsewhere to train from the start"
            )
        return None

    def get_stats(self) -> dict[str, float]:
        """Returns this rank's statistics: the numbers of files that were ``saved`` and ``deleted``,
        and the
        ``bytes`` and ``seconds`` of saving."""
        return dict(self._stats)

    def finalize(self) -> None:
        """Deletes this rank's files, unless training has failed."""
        if self.path is not None and not self._has_failed:
            self._delete(self._find(self.path))

    def _find(self, folder):
        names = layout.find(folder, re.escape(self._prefix) + r"(\d+)", are_folders=False)
        return [int(name.removeprefix(self._prefix)) for name in names]

    def _delete(self, iterations):
        for iteration in iterations:
            os.unlink(self._file(self.path or ".", iteration))
            self._stats["deleted"] += 1
        self._saved = [i for i in self._saved if i not in set(iterations)]

    def _file(self, folder, iteration):
        return os.path.join(folder, f"{self._prefix}{iteration}")


create_multi_node_checkpointer = MultiNodeCheckpointer


def _find_damage(file):
    """Returns what is damaged in a file; the empty string if nothing is."""
    try:
        read_npz(file)
    except DamagedFileError as error:
        return str(error)
    return ""
