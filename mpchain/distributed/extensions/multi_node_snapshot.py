"""Snapshots of ranks with different states: one file for each set of ranks with the same state."""

import pathlib
import tempfile
from collections.abc import Iterable

from mpchain.distributed.communicators import Communicator
from mpchain.training import Trainer
from mpchain.training.extensions.snapshot import Snapshot, load


def multi_node_snapshot(
    comm: Communicator, snapshot: Snapshot, replica_sets: Iterable[int | Iterable[int]]
) -> Snapshot:
    """Makes a snapshot extension save once for each set of ranks with the same state; collective.

    The lowest rank of each set saves, to a file whose name has the suffix ``.<rank>``. With
    ``autoload`` this rank loads the file, and sends it to the other ranks of its set. The number of
    ranks may therefore change, as long as the lowest ranks of the sets stay the same.

    Args:
        comm: the communicator of the ranks.
        snapshot: a result of :func:`mpchain.training.extensions.snapshot`, equal on all ranks.
        replica_sets: the sets; each is a rank, or an iterable of ranks. The ranks that are in no
            set form one more set.

    Returns:
        The extension; add it on all ranks.

    Raises:
        TypeError: ``snapshot`` is not a snapshot extension.
        ValueError: a rank is in two sets, or does not exist.

    Example:
        A model that is the same on all ranks:

        >>> from mpchain.distributed.extensions import multi_node_snapshot
        >>> snapshot = extensions.snapshot(filename="at_{.updater.iteration}")
        >>> multi_node_snapshot(comm, snapshot, [range(comm.size)]).filename
        'at_{.updater.iteration}.0'
    """
    if not isinstance(snapshot, Snapshot):
        raise TypeError(
            "multi_node_snapshot: snapshot must come from training.extensions.snapshot, "
            f"but is {type(snapshot).__name__}"
        )
    members = _set_of(comm.rank, comm.size, replica_sets)
    part = comm.split(members[0], comm.rank)
    return _MultiNodeSnapshot(snapshot, part, members[0])


def _set_of(rank, size, replica_sets):
    """Returns the ranks of the set that a rank is in."""
    sets = [[s] if isinstance(s, int) else sorted(s) for s in replica_sets]
    known = [r for members in sets for r in members]
    for r in known:
        if not 0 <= r < size:
            raise ValueError(
                f"multi_node_snapshot: replica_sets must hold ranks from 0 to {size - 1}, not {r!r}"
            )
        if known.count(r) > 1:
            raise ValueError(
                "multi_node_snapshot: replica_sets must not contain a rank more than once, but "
                f"contains rank {r} {known.count(r)} times"
            )
    sets.append([r for r in range(size) if r not in known])
    return next(members for members in sets if rank in members)


class _MultiNodeSnapshot(Snapshot):
    """The snapshot of one set of ranks; its lowest rank saves."""

    def __init__(self, snapshot, part, least):
        vars(self).update(vars(snapshot))
        self._part = part
        name = snapshot.filename
        self.filename = f"{name}.{least}"
        if callable(name):
            self.filename = lambda trainer: f"{name(trainer)}.{least}"

    def initialize(self, trainer: Trainer) -> None:
        if self._part.rank == 0:
            super().initialize(trainer)
        if self.autoload:
            self._share(trainer)

    def _share(self, trainer):
        """Sends the state that the first rank of the set has loaded to the other ranks."""
        content = None if self._loaded is None else pathlib.Path(self._loaded).read_bytes()
        content = self._part.bcast_obj(content)
        if content is None or self._part.rank == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "snapshot")
            path.write_bytes(content)
            load(path, self._get_target(trainer))

    def _save(self, trainer):
        if self._part.rank == 0:
            super()._save(trainer)

    def _remove_old_files(self):
        if self._part.rank == 0 and self._folder is not None:
            super()._remove_old_files()
