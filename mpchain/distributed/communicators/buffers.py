"""Arrays that ranks sum often."""

import functools
from collections.abc import Generator, Mapping
from typing import Any

from mpchain.distributed.communicators import progress
from mpchain.distributed.shared_memory import SharedArray, sum_in_shared_memory
from mpchain.typing import Array


class Buffer:
    """An array that is summed by messages with tags that no others have: sums of several buffers
    can begin in any order. It is the base of the array that users see, and so is kept.

    Args:
        array: the array.
        group: the ranks; None if :meth:`sum` is another.
        tag: tag of the messages; the next one is used, too.

    Attributes:
        array: as given.

    Example:
        >>> buffer = Buffer(np.zeros(3), None, 0)
        >>> np.asarray(buffer), buffer.fits(np.ones(2))
        (array([0., 0., 0.]), False)
    """

    def __init__(self, array: Array, group: progress.Group | None, tag: int):
        self.array, self._group, self._tag = array, group, tag
        self.__array_interface__ = array.__array_interface__

    def fits(self, x: Array) -> bool:
        """Whether ``x`` is the whole array."""
        return x.dtype == self.array.dtype and x.size == self.array.size

    def sum(self, narrow: Any) -> Generator[None, None, None]:
        """Sums over the ranks, as a generator; for ``narrow`` see
        :func:`~mpchain.distributed.communicators.progress.sum_over`."""
        return progress.sum_over(self._group, self.array, self._tag, narrow)


class SharedBuffer(Buffer):
    """The same if the ranks of a host share memory: only sums of a host's ranks are sent.

    Args:
        shared: the arrays of the host's ranks.
        room: which of this rank's arrays this is.
        groups: the ranks that sum a part over the hosts, by part.
        n_parts: the number of parts.
        tag: see :class:`Buffer`.
    """

    def __init__(
        self,
        shared: SharedArray,
        room: int,
        groups: Mapping[int, progress.Group],
        n_parts: int,
        tag: int,
    ):
        super().__init__(shared.rooms[room], None, tag)
        self._shared, self._room, self._groups, self._n_parts = shared, room, groups, n_parts

    def sum(self, narrow: Any) -> Generator[None, None, None]:
        sums = {
            part: functools.partial(progress.sum_over, group, tag=self._tag, narrow=narrow)
            if len(group.ranks) > 1
            else None
            for part, group in self._groups.items()
        }
        return sum_in_shared_memory(self._shared, sums, self._n_parts, self._room)
