"""Snapshots of ranks that do not all hold the same: one file for each set of ranks that do."""

import os
import tempfile

from mpchain.training.extensions.snapshot import Snapshot, load


def multi_node_snapshot(comm, snapshot, replica_sets):
    """Makes a snapshot extension save once for each set of ranks that hold the same; collective.

    The least rank of each set saves, to a file whose name has the suffix ``.<rank>``. With
    ``autoload`` it loads, and sends what it has loaded to the others of its set. So the number of
    ranks may change, as long as the sets begin with the same ranks.

    Args:
        comm (Communicator): the ranks.
        snapshot: what :func:`mpchain.training.extensions.snapshot` returned, alike on all ranks.
        replica_sets: list of sets: a rank, or an iterable of ranks. The ranks that are in none of
            them are one more set.

    Returns:
        The extension, to be added on all ranks.

    Raises:
        TypeError: ``snapshot`` is no snapshot extension.
        ValueError: a rank is in two sets, or there is no such rank.

    Example:
        A model that is the same on all ranks:

        >>> from mpchain.distributed import create_communicator
        >>> from mpchain.training import extensions
        >>> comm = create_communicator()
        >>> extension = multi_node_snapshot(comm, extensions.snapshot(), [range(comm.size)])
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
                f"multi_node_snapshot: replica_sets must hold ranks from 0 to {size - 1}, not {r}"
            )
        if known.count(r) > 1:
            raise ValueError(f"multi_node_snapshot: rank {r} is in two of the replica_sets")
    sets.append([r for r in range(size) if r not in known])
    return next(members for members in sets if rank in members)


class _MultiNodeSnapshot(Snapshot):
    """The snapshot of one set of ranks, on one of them."""

    def __init__(self, snapshot, part, least):
        vars(self).update(vars(snapshot))
        self._part = part
        if callable(self._filename):
            make_name = self._filename
            self._filename = lambda trainer: f"{make_name(trainer)}.{least}"
        else:
            self._filename = f"{self._filename}.{least}"

    def initialize(self, trainer):
        """Loads the latest snapshot of the set, if asked to."""
        if self._part.rank == 0:
            super().initialize(trainer)
        if self._autoload:
            self._share(trainer)

    def _share(self, trainer):
        content = None
        if self._loaded is not None:
            with open(self._loaded, "rb") as file:
                content = file.read()
        content = self._part.bcast_obj(content)
        if content is None or self._part.rank == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot")
            with open(path, "wb") as file:
                file.write(content)
            load(path, self._get_target(trainer))

    def _save(self, trainer):
        if self._part.rank == 0:
            super()._save(trainer)

    def _remove_old_files(self):
        if self._part.rank == 0 and self._folder is not None:
            super()._remove_old_files()
