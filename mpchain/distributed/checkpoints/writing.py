"""Writes a checkpoint: all ranks write their parts in parallel, while training continues."""

import numbers
import os
import threading
import warnings
from typing import Any

from mpchain import observers
from mpchain.distributed.checkpoints import layout, manifests
from mpchain.distributed.checkpoints.agreement import on_all_ranks
from mpchain.distributed.checkpoints.layout import Path
from mpchain.distributed.checkpoints.states import StateSerializer
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.progress import wait_until
from mpchain.distributed.watch import waiting_for
from mpchain.serializers.npz import write_npz
from mpchain.training.output_files import FileLock

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.03
_ENTRY = 300  # bytes of a file that each array takes besides its elements


def save_checkpoint(
    folder: Path, target: object, comm: Communicator, iteration: int, n_retains: int = -1
) -> None:
    """Saves an object on all ranks together, and waits until all is written; collective.

    Args:
        folder: folder of the checkpoints, which all ranks see; it is created if necessary.
        target: the object, which has ``serialize``: a trainer, a model, ...
        comm: the communicator of the ranks.
        iteration: number of the checkpoint; the checkpoint with the greatest number is the latest.
        n_retains: the number of checkpoints to keep; 0 or less keeps all.

    Raises:
        FileNotFoundError: some ranks do not see the folder of rank 0; raised on all ranks.
        OSError: this rank's part cannot be written. The other ranks then wait for that part.
        RuntimeError: another job is writing checkpoints to the folder.
        ValueError: ``iteration`` is not an integer of at least 0.

    Example:
        >>> import tempfile
        >>> from mpchain.distributed import save_checkpoint
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(folder, L.Linear(3, 2), comm, iteration=7)
        ...     sorted(os.listdir(f"{folder}/iteration_7"))
        ['manifest.json', 'part_0.npz']
    """
    if not isinstance(iteration, numbers.Integral) or iteration < 0:
        raise ValueError(
            f"save_checkpoint: iteration must be an integer of at least 0, not {iteration!r}"
        )
    folder = observers.folder(folder)
    run, lock = open_folder(folder, comm)
    try:
        Saving(folder, layout.name_of(iteration), run, comm, target, n_retains).wait()
    finally:
        lock.release()


def open_folder(folder: Path, comm: Communicator) -> tuple[str, FileLock]:
    """Prepares a folder for checkpoints of this run, and locks it; collective.

    Returns:
        The id of the run, and the lock. Only rank 0 holds the lock, but all ranks release it.

    Raises:
        FileNotFoundError: some ranks do not see the folder of rank 0.
        RuntimeError: another job is writing checkpoints to the folder; raised on all ranks.
    """
    run = comm.bcast_obj(os.urandom(4).hex())
    probe = os.path.join(folder, f".{run}.probe")
    lock = FileLock(os.path.join(os.path.realpath(folder), ".lock"))

    def prepare():
        if comm.rank != 0:
            return None
        layout.make_folder(folder)
        if not lock.acquire():
            return lock.holder_text()
        if lock.is_unsupported:
            warnings.warn(
                f"checkpoint: the file system of {folder} has no locks: another job could write "
                "checkpoints there at the same time",
                RuntimeWarning,
                stacklevel=4,
            )
        # If this process already held the lock, it may still be writing the files.
        if lock.is_new or lock.is_unsupported:
            layout.remove_leftovers(folder)
        with open(probe, "wb"):
            pass
        return None

    holder = on_all_ranks(comm, "checkpoint", prepare)[0]
    if holder is not None:
        raise RuntimeError(
            f"checkpoint: another job ({holder}) is writing checkpoints to {folder}: use another "
            "folder, or wait until it has ended"
        )
    sees = comm.allgather_obj(os.path.exists(probe))
    if comm.rank == 0:
        os.unlink(probe)
    if not all(sees):
        lock.release()
        blind = ", ".join(str(rank) for rank in range(comm.size) if not sees[rank])
        raise FileNotFoundError(
            f"checkpoint: all ranks must see the folder {folder}, but a file that rank 0 wrote "
            f"there is not seen by rank {blind}"
        )
    return run, lock


class Abandoned(Exception):
    """Raised in the writing thread, because the checkpoint was abandoned."""


class Saving:
    """A checkpoint that is being written. The state is copied before the constructor returns.

    Args:
        folder, run: see :func:`open_folder`.
        name: name of the checkpoint.
        comm: the communicator of the ranks.
        target: the object to save.
        n_retains: the number of checkpoints to keep.
    """

    def __init__(
        self, folder: Path, name: str, run: str, comm: Communicator, target: object, n_retains: int
    ):
        self._folder, self.name, self._run = folder, name, run
        self._temporary = os.path.join(folder, layout.temporary_name_of(name, run))
        self._comm, self._rank, self._size = comm, comm.rank, comm.size
        self._n_retains = n_retains
        serializer = StateSerializer()
        serializer.save(target)
        self._values: Any = serializer.target
        self._error = None
        self._is_abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name=f"writes {name}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until the checkpoint is whole.

        Raises:
            Exception: the error that ended the writing on this rank.
        """
        with waiting_for(self._comm, f"the writing of the checkpoint {self.name} by all ranks"):
            wait_until(lambda: not self._thread.is_alive())
        if self._error is not None:
            self._error.add_note(f"raised while the checkpoint {self.name} was written")
            error, self._error = self._error, None
            raise error

    def abandon(self) -> None:
        """Ends the writing as soon as possible; the checkpoint does not become valid."""
        self._is_abandoned.set()
        self._thread.join()

    def _run_thread(self):
        try:
            self._write()
        except Abandoned:
            pass
        except Exception as error:  # wait() raises it, in the program's own thread
            self._error = error

    # The writing thread runs these methods.

    def _write(self):
        os.makedirs(self._temporary, exist_ok=True)
        own = {key: value.index_entry() for key, value in self._values.items()}
        layout.write_message(self._path(f"index_{self._rank}.json"), own)
        indexes, writers = self._plan() if self._rank == 0 else (None, None)
        keys = self._read_when_there(f"plan_{self._rank}.json")
        part = self._path(f"part_{self._rank}.npz")
        write_npz(part, {key: self._values[key].array for key in keys})
        self._values = None
        layout.write_message(self._path(f"seal_{self._rank}.json"), layout.seal_of(part))
        if self._rank == 0:
            self._complete(indexes, writers)
        else:
            self._wait_until(lambda: not os.path.exists(self._temporary))

    def _plan(self):
        """Sends each rank the names of the values that it writes; called on rank 0."""
        indexes = [self._read_when_there(f"index_{rank}.json") for rank in range(self._size)]
        writers = assign(indexes)
        keys = [[] for _ in indexes]
        for (key, _), writer in writers.items():
            keys[writer].append(key)
        for rank, of_rank in enumerate(keys):
            layout.write_message(self._path(f"plan_{rank}.json"), of_rank)
        return indexes, writers

    def _complete(self, indexes, writers):
        parts = [self._read_when_there(f"seal_{rank}.json") for rank in range(self._size)]
        for kind in ("index", "plan", "seal"):
            for rank in range(self._size):
                os.unlink(self._path(f"{kind}_{rank}.json"))
        content = {
            "format": manifests.FORMAT,
            "name": self.name,
            "ranks": self._size,
            "parts": parts,
            "values": list_values(indexes, writers),
        }
        layout.write_json(self._path(layout.MANIFEST), content)
        layout.commit(self._folder, self.name, self._run)
        if self._n_retains > 0:
            for name in layout.find(self._folder)[: -self._n_retains]:
                if name != self.name:
                    layout.remove(self._folder, name, self._run)

    def _path(self, name):
        return os.path.join(self._temporary, name)

    def _read_when_there(self, name):
        path = self._path(name)
        self._wait_until(lambda: os.path.exists(path))
        return layout.read_json(path)

    def _wait_until(self, is_so):
        pause = _FIRST_PAUSE
        while not is_so():
            if self._is_abandoned.wait(pause):
                raise Abandoned
            pause = min(2 * pause, _LONGEST_PAUSE)


def assign(indexes: list[dict[str, dict]]) -> dict[tuple[str, str], int]:
    """Chooses the rank that writes each value, so that all ranks write about the same amount.

    Args:
        indexes: for each rank, a dict from the name of each value to its digest and size in bytes.

    Returns:
        A dict from (name, digest) to the rank that writes the value.

    Example:
        >>> assign([{"W": {"digest": "d0", "bytes": 8}}, {"W": {"digest": "d1", "bytes": 8}}])
        {('W', 'd0'): 0, ('W', 'd1'): 1}
    """
    holders, sizes = {}, {}
    for rank, index in enumerate(indexes):
        for key, entry in index.items():
            holders.setdefault((key, entry["digest"]), []).append(rank)
            sizes[key, entry["digest"]] = entry["bytes"]
    loads, writers = [0] * len(indexes), {}
    for value in sorted(holders, key=lambda value: (-sizes[value], value)):
        writer = min(holders[value], key=lambda rank: (loads[rank], rank))
        writers[value] = writer
        loads[writer] += sizes[value] + _ENTRY
    return writers


def list_values(
    indexes: list[dict[str, dict]], writers: dict[tuple[str, str], int]
) -> dict[str, list[dict]]:
    """Returns the table of a manifest, which says where each value is.

    Args:
        indexes: see :func:`assign`.
        writers: the result of :func:`assign`.

    Returns:
        A dict from each name to a list with one entry per different value or part: ``part`` is the
        number of the file that holds it; ``ranks`` are the ranks that have the value; for a part of
        an array, ``start`` is the index of its first element and ``shape`` the shape of the whole
        array; ``persistent`` marks a persistent value of a link.
    """
    table = {}
    for rank, index in enumerate(indexes):
        for key, entry in index.items():
            part = {"part": writers[key, entry["digest"]], "ranks": []}
            found = table.setdefault(key, {}).setdefault(entry["digest"], part)
            if entry.get("is_persistent"):
                found["persistent"] = True
            if entry["start"] is not None:
                found |= {"start": entry["start"], "shape": entry["shape"]}
            found["ranks"].append(rank)
    return {key: list(of_key.values()) for key, of_key in table.items()}
