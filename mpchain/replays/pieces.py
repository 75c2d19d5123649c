"""Which pieces of the parameters a step's fingerprints are of."""

import bisect
import dataclasses
import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from mpchain.replays import fingerprints
from mpchain.replays.fingerprints import Fingerprint
from mpchain.variable import Parameter

PERIOD = 16
"""In so many steps each piece has its turn."""

MOST_AT_ONCE = 46
"""Pieces whose fingerprints fit into a line of the record."""

_SHARE = 0.012
"""How much of a step's time fingerprints may take, before they are of fewer pieces."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive parameters, or a part of a large one.

    Attributes:
        first, last: numbers of the first parameter and of the one after the last.
        start, stop: the elements, if they are a part of one parameter.
    """

    first: int
    last: int
    start: int = 0
    stop: int | None = None

    def name(self, names: Sequence[str]) -> str:
        """Returns how messages call it.

        >>> Piece(0, 1, 10, 20).name(["/l1/W"]), Piece(0, 3).name(["/a", "/b", "/c"])
        ('/l1/W[10:20]', '/a to /c')
        """
        if self.stop is not None:
            return f"{names[self.first]}[{self.start}:{self.stop}]"
        if self.last == self.first + 1:
            return names[self.first]
        return f"{names[self.first]} to {names[self.last - 1]}"


def divide(sizes: Sequence[int]) -> list[Piece]:
    """Divides parameters of these sizes into pieces, such that each can have its turn in a period.

    >>> divide([10, 20])
    [Piece(first=0, last=1, start=0, stop=None), Piece(first=1, last=2, start=0, stop=None)]
    """
    most_bytes = max(1, sum(sizes) // (4 * PERIOD))
    n_together = -(-len(sizes) // (MOST_AT_ONCE * PERIOD // 2))
    pieces = []
    for first in range(0, len(sizes), n_together):
        last = min(first + n_together, len(sizes))
        n = sizes[first]
        if n_together > 1 or n <= max(most_bytes, 1 << 16):
            pieces.append(Piece(first, last))
            continue
        n_parts = -(-n // most_bytes)
        ends = [n * i // n_parts for i in range(n_parts + 1)]
        pieces += [Piece(first, last, *part) for part in itertools.pairwise(ends)]
    return pieces


class Table:
    """The pieces of a model, and whose turn it is.

    Args:
        params: initialized parameters by name.

    Attributes:
        names: of the parameters.
        shape: what a record says of them.
        pieces: the pieces.
        at: the piece whose turn is next.
    """

    def __init__(self, params: Mapping[str, Parameter]):
        self.names = list(params)
        self.ids = tuple(map(id, params.values()))
        self.shape = [[name, list(p.shape), p.dtype.name] for name, p in params.items()]
        sizes = [param.size for param in params.values()]
        self.pieces = divide(sizes)
        self._ends = [0]
        for piece in self.pieces:
            n = sum(sizes[piece.first : piece.last])
            self._ends.append(
                self._ends[-1] + (n if piece.stop is None else piece.stop - piece.start)
            )
        self.at = 0

    def turn(self, seconds_per_element: float | None, step: float | None) -> tuple[int, int]:
        """Returns number of the first piece and of the one after the last of the next turn.

        Args:
            seconds_per_element: what a fingerprint takes; None if unknown.
            step: seconds that a step takes; None if unknown.
        """
        total, begin = self._ends[-1], self._ends[self.at]
        n = 2 * total / PERIOD  # pieces are smaller: a period is enough for all
        if seconds_per_element and step:
            n = max(n, _SHARE * step / seconds_per_element)
        last = max(self.at + 1, bisect.bisect_right(self._ends, begin + n) - 1)
        last = min(last, self.at + MOST_AT_ONCE, len(self.pieces))
        first, self.at = self.at, last % len(self.pieces)
        return first, last

    def n_elements(self, first: int, last: int) -> int:
        """Returns how many elements pieces have."""
        return self._ends[last] - self._ends[first]

    def take(self, params: Sequence[Parameter], first: int, last: int) -> list[Fingerprint]:
        """Returns the fingerprints of pieces."""
        return [_of_piece(params, piece) for piece in self.pieces[first:last]]


def _of_piece(params: Sequence[Any], piece: Piece) -> Fingerprint:
    if piece.stop is None:
        of_params = [fingerprints.take(p.array) for p in params[piece.first : piece.last]]
        return fingerprints.join(of_params)
    return fingerprints.take(params[piece.first].array.reshape(-1)[piece.start : piece.stop])


def checksum(shape: Any) -> str:
    """Returns what identifies a table in a record.

    >>> checksum([["/W", [2, 3], "float32"]])
    'ac80f0cd'
    """
    return f"{zlib.crc32(repr(shape).encode()):08x}"
