"""Buffers: arrays that are made once and summed or gathered in again and again."""

import functools
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from mpchain.distributed.communicators import progress
from mpchain.distributed.shared_memory import (
    SharedArray,
    gather_in_shared_memory,
    sum_in_shared_memory,
    sum_pieces_in_shared_memory,
)
from mpchain.typing import Array


class Buffer:
    """An array that is summed with messages that have their own tags, so that sums of several
    buffers can begin in any order. The buffer is the base of the user's array, so that the array
    keeps the buffer alive.

    Args:
        array: the flat host array that ranks sum.
        group: the group of the ranks; None if a subclass overrides :meth:`sum`.
        tag: tag of the messages; the next tag is used, too.

    Attributes:
        array: the argument of the same name.
        address: the address of the first element of ``array``.

    Example:
        >>> buffer = Buffer(np.zeros(3), None, 0)
        >>> np.asarray(buffer), buffer.fits(np.ones(2))
        (array([0., 0., 0.]), False)
    """

    def __init__(self, array: Array, group: progress.Group | None, tag: int):
        self.array, self._group, self._tag = array, group, tag
        self.__array_interface__ = array.__array_interface__
        self.address = self.__array_interface__["data"][0]

    def fits(self, x: Array) -> bool:
        """Returns whether ``x`` has the dtype and the size of the array."""
        return x.dtype == self.array.dtype and x.size == self.array.size

    def sum(self, narrow: object) -> Generator[None, None, None]:
        """Returns a generator that sums the array over the ranks; for ``narrow`` see
        :func:`~mpchain.distributed.communicators.progress.sum_over`."""
        assert self._group is not None  # only SharedBuffer, which overrides this, has no group
        return progress.sum_over(self._group, self.array, self._tag, narrow)

    def sum_pieces(self, narrow: object) -> Generator[None, None, None]:
        """Sums one segment of the array over the ranks, as a generator. The array consists of one
        equal segment for each rank, in the order of the ranks. The segments for other ranks are
        undefined afterwards."""
        assert self._group is not None  # only SharedBuffer, which overrides this, has no group
        pieces = list(self.array.reshape(len(self._group.ranks), -1))
        stages = _stages(self._group, narrow)
        total = yield from progress.sum_pieces(stages, pieces, self._tag, narrow)
        pieces[self._group.index][...] = total

    def gather(self, piece: Array, n_ranks: int) -> Generator[None, None, Array]:
        """Gathers a flat array of each rank at the beginning of the buffer, as a generator.

        Returns:
            The flat view of the buffer that holds the gathered arrays.
        """
        whole = self.array.view(piece.dtype)[: piece.size * n_ranks]
        pieces = list(whole.reshape(n_ranks, -1))
        assert self._group is not None  # only SharedBuffer, which overrides this, has no group
        pieces[self._group.index][...] = piece
        stages = _stages(self._group)
        yield from progress.exchange_pieces(stages, pieces, self._tag + 1)
        return whole


class SharedBuffer(Buffer):
    """A :class:`Buffer` for ranks that share memory: each host sums the arrays of its ranks first,
    and sums are formed over hosts from these sums.

    Args:
        shared: the arrays of the host's ranks.
        slot: the index of this array among this rank's arrays.
        groups: for each part of the buffer, the group of ranks that sums the part over the hosts.
        n_parts: the number of parts into which a sum is divided.
        hosts: the ranks of each host, in the order of the hosts.
        rank: this rank.
        tag: see :class:`Buffer`.
    """

    def __init__(
        self,
        shared: SharedArray,
        slot: int,
        groups: Mapping[int, progress.Group],
        n_parts: int,
        hosts: Sequence[Sequence[int]],
        rank: int,
        tag: int,
    ):
        super().__init__(shared.slots[slot], None, tag)
        self._shared, self._slot, self._groups, self._n_parts = shared, slot, groups, n_parts
        self._hosts, self._rank = hosts, rank

    def sum(self, narrow: object) -> Generator[None, None, None]:
        sums = {
            part: functools.partial(progress.sum_over, group, tag=self._tag, narrow=narrow)
            if len(group.ranks) > 1
            else None
            for part, group in self._groups.items()
            if part < self._n_parts
        }
        return sum_in_shared_memory(self._shared, sums, self._n_parts, self._slot)

    def _places(self, n):
        """Returns for each part a list, by host, of the slices that hold its segments of ``n``
        elements: rank ``part`` of each host owns the segments of that part, if the host has that
        many ranks."""
        owners = {part: [host[part : part + 1] for host in self._hosts] for part in self._groups}
        return {
            part: [slice(n * ranks[0], n * (ranks[0] + 1)) if ranks else slice(0) for ranks in of]
            for part, of in owners.items()
        }

    def sum_pieces(self, narrow: object) -> Generator[None, None, None]:
        n = self.array.size // sum(map(len, self._hosts))

        def sum_between_hosts(part, pieces):
            stages = _stages(self._groups[part], narrow)
            return progress.sum_pieces(stages, pieces, self._tag, narrow)

        own = slice(n * self._rank, n * (self._rank + 1))
        places = self._places(n)
        return sum_pieces_in_shared_memory(self._shared, places, sum_between_hosts, own, self._slot)

    def gather(self, piece: Array, n_ranks: int) -> Generator[None, None, Array]:
        n = piece.nbytes
        of_host = self._shared.of_host().view(np.uint8)
        exchanges = [
            progress.exchange_pieces(
                _stages(self._groups[part]), [of_host[place] for place in places], self._tag + 1
            )
            for part, places in self._places(n).items()
        ]
        own = of_host[n * self._rank : n * (self._rank + 1)]
        yield from gather_in_shared_memory(self._shared, own, piece.view(np.uint8), exchanges)
        return of_host[: n * n_ranks].view(piece.dtype)


def _stages(group, narrow=None):
    """Returns the groups in which segments are summed or gathered, one after another; an empty list
    for one rank. Sums of rounded messages have one stage, so that they round once."""
    if len(group.ranks) == 1:
        return []
    return group.stages if narrow is None else [group]
