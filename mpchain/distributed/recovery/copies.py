"""Copies of a training state in the memory of several ranks, some of which may be lost."""

import contextlib
import dataclasses

from mpchain.distributed.checkpoints.reading import RANDOM, Values
from mpchain.distributed.checkpoints.states import StateSerializer
from mpchain.distributed.checkpoints.writing import list_values
from mpchain.distributed.communicators import Communicator
from mpchain.optimizer import Optimizer
from mpchain.serializer import SerializationError
from mpchain.serializers.values import header_of
from mpchain.typing import Array

SMALL = 1 << 20
"""A value that rank 0 and at most one other rank have is copied to all ranks if it has at most this
many bytes."""


@dataclasses.dataclass
class Copy:
    """One rank's copy of a training state, with values of other ranks.

    Attributes:
        iteration: the iteration of the copy.
        rank, size: the rank of this process, and the number of ranks, when the copy was made.
        table: dict from name to the different values of that name, with the ranks that have each
            value; the same on all ranks, see
            :func:`~mpchain.distributed.checkpoints.writing.list_values`.
        arrays: dict from name and number (``part`` of the table) to an array: this rank's values
            and parts, and those that only other ranks had.
        settings: hyperparameters that are set on optimizers and update rules themselves, and
            whether a rule is enabled, which are not serialized; keyed by the number of the
            optimizer and the path of the parameter.
        uninitialized: the keys of the parameters that had no values.
    """

    iteration: int
    rank: int
    size: int
    table: dict[str, list[dict]]
    arrays: dict[tuple[str, int], Array]
    settings: dict[tuple[int, str], tuple[dict, bool | None]]
    uninitialized: list[tuple[int, str]]

    @property
    def place(self) -> tuple[int, int]:
        """A key that is equal for the same copy on all ranks, and greater for later copies."""
        return self.iteration, -self.size

    @classmethod
    def take(cls, target: object, comm: Communicator, iteration: int) -> "Copy":
        """Copies the values that an object saves; collective.

        Values that one or two ranks have are mirrored on other ranks (:func:`mirrors`), so that at
        least three ranks have them, if there are three; such a value of rank 0 is copied to all
        ranks if it is small.
        """
        serializer = StateSerializer()
        serializer.save(target)
        values = serializer.target
        indexes = comm.allgather_obj({key: value.index_entry() for key, value in values.items()})
        table = _tabulate(indexes)
        arrays = {
            (key, entry["part"]): values[key].array
            for key, entries in table.items()
            for entry in entries
            if comm.rank in entry["ranks"]
        }
        owners, params = _optimized(comm)
        settings = {name: _settings(owner) for name, owner in owners.items()}
        uninitialized = [name for name, param in params.items() if not param.is_initialized]
        copy = cls(iteration, comm.rank, comm.size, table, arrays, settings, uninitialized)
        copy._mirror(comm)
        return copy

    def _mirror(self, comm):
        lonely = [
            (key, self.rank)
            for key, entries in self.table.items()
            for entry in entries
            if entry["ranks"][0] == self.rank and len(entry["ranks"]) < min(3, comm.size)
        ]
        of_all = []
        if self.rank == 0:
            of_all = [place for place in lonely if self.arrays[place].nbytes <= SMALL]
        self.arrays |= comm.bcast_obj({place: self.arrays[place] for place in of_all})
        rest = {place: self.arrays[place] for place in lonely if place not in of_all}
        partners = mirrors(comm)[self.rank]
        parcels = [rest if rank in partners else None for rank in range(comm.size)]
        for received in comm.alltoall_obj(parcels):
            self.arrays |= received or {}

    def values_for(self, comm: Communicator) -> "KeptValues":
        """Returns the values from which this rank is restored; collective.

        Args:
            comm: the communicator of the surviving ranks. A rank without values gets them from a
                peer.
        """
        is_new = not self.arrays
        held = comm.allgather_obj((is_new, self._uncommon()))
        peers = [rank for rank, (other_is_new, _) in enumerate(held) if not other_is_new]
        holdings = [places for _, places in held]
        kept = KeptValues(self, comm)
        asked = [[] for _ in range(comm.size)]
        for place in kept.wanted():
            if place not in self.arrays:
                holder = _first(place, holdings)
                if holder is None and self._is_common(place):
                    holder = peers[comm.rank % len(peers)]
                if holder is not None:
                    asked[holder].append(place)
        answers = [
            {place: self.arrays[place] for place in places} for places in comm.alltoall_obj(asked)
        ]
        kept.add({place: x for parcel in comm.alltoall_obj(answers) for place, x in parcel.items()})
        if is_new:
            self.arrays = dict(kept.arrays)
        return kept

    def without_arrays(self) -> "Copy":
        """Returns a copy without arrays, for a rank that gets its values from other ranks."""
        return dataclasses.replace(self, arrays={})

    def restore_settings(self, comm: Communicator) -> None:
        """Restores state that is not serialized; uninitializes parameters that had no values."""
        owners, params = _optimized(comm)
        for name in owners.keys() & self.settings.keys():
            own, is_enabled = self.settings[name]
            hyperparam = owners[name].hyperparam
            for attribute in _own_hyperparameters(hyperparam).keys() - own.keys():
                delattr(hyperparam, attribute)
            vars(hyperparam).update(own)
            if is_enabled is not None:
                owners[name].enabled = is_enabled
        for name in params.keys() & set(self.uninitialized):
            params[name].cleargrad()
            params[name].array = None

    def _uncommon(self):
        """Returns the keys of the arrays on this rank that are not the same on all ranks."""
        return {place for place in self.arrays if not self._is_common(place)}

    def _is_common(self, place):
        entries = self.table[place[0]]
        return len(entries) == 1 and len(entries[0]["ranks"]) == self.size


def _optimized(comm):
    """Returns two dicts with keys (number of the optimizer, path): the optimizers and update rules
    that have hyperparameters, and the parameters."""
    owners, params = {}, {}
    dependents = [x for x in comm.dependents if isinstance(x, Optimizer) and x.target is not None]
    for i, optimizer in enumerate(dependents):
        owners[i, ""] = optimizer
        for path, param in optimizer.target.namedparams():
            params[i, path] = param
            if param.update_rule is not None:
                owners[i, path] = param.update_rule
    return owners, params


def _settings(owner):
    return _own_hyperparameters(owner.hyperparam), getattr(owner, "enabled", None)


def _own_hyperparameters(hyperparam):
    """Returns the hyperparameters that are set here. The parent is left out, because a program that
    begins again has made another parent."""
    return {name: value for name, value in vars(hyperparam).items() if name != "_parent"}


def _first(place, holdings):
    return next((rank for rank, held in enumerate(holdings) if place in held), None)


def _tabulate(indexes):
    # Empty slices are left out: no rank needs them, so their loss must not matter.
    indexes = [
        {
            key: entry
            for key, entry in index.items()
            if entry["start"] is None or entry["bytes"] or 0 in entry["shape"]
        }
        for index in indexes
    ]
    writers = {}
    for rank, index in enumerate(indexes):
        for key, entry in index.items():
            writers.setdefault((key, entry["digest"]), rank)
    return list_values(indexes, writers)


def mirrors(comm: Communicator) -> list[list[int]]:
    """Returns for each rank the two ranks that mirror its values, so that any two ranks can be
    lost at once; fewer if there are fewer other ranks.

    The mirrors are on the next two hosts; if there are fewer other hosts, the next ranks of the
    same host are mirrors, too.

    >>> mirrors(comm)
    [[]]
    """
    hosts, found = comm.hosts, {}
    for number, host in enumerate(hosts):
        others = [*hosts[number + 1 :], *hosts[:number]]
        for i, rank in enumerate(host):
            near = [host[(i + k) % len(host)] for k in range(1, len(host))]
            found[rank] = [*(other[i % len(other)] for other in others[:2]), *near][:2]
    return [found[rank] for rank in range(comm.size)]


class KeptValues(Values):
    """Maps names to the values that a rank gets from a copy, as it would get them from a
    checkpoint.

    Args:
        copy: the copy.
        comm: the communicator of the surviving ranks.

    Attributes:
        arrays: dict from name and number to each array that this rank has.
    """

    def __init__(self, copy: Copy, comm: Communicator):
        manifest = {"ranks": copy.size, "values": copy.table}
        super().__init__("", manifest, comm.rank, comm.size, contextlib.ExitStack())
        self.arrays = dict(copy.arrays)
        self._replaced = set()

    def add(self, received: dict[tuple[str, int], Array]) -> None:
        """Adds values that other ranks have sent.

        A random state that no surviving rank holds is left out: its generator keeps its state.

        Args:
            received: dict from name and number to each array that another rank has sent.
        """
        self.arrays |= received
        lost = {place[0] for place in self.wanted() if place not in self.arrays}
        self._replaced = {key for key in lost if key.startswith(RANDOM)}

    def __contains__(self, key: object) -> bool:
        return key not in self._replaced and super().__contains__(key)

    def wanted(self) -> list[tuple[str, int]]:
        """Returns the keys of the arrays that this rank needs."""
        return [place for key in self._table for place in self._places(key)]

    def _places(self, key):
        return [(key, entry["part"]) for entry in self._chosen(key)]

    def _part(self, entry):
        return _Part(self.arrays, entry["part"])


@dataclasses.dataclass
class _Part:
    arrays: dict[tuple[str, int], Array]
    number: int

    def __getitem__(self, key):
        if (key, self.number) not in self.arrays:
            raise SerializationError(
                f"{key!r} was lost with the ranks that had it: restart from a checkpoint on disk"
            )
        return self.arrays[key, self.number]

    def header(self, key):
        return header_of(self[key])
