"""Selects the pieces of the parameters whose fingerprints a step records."""

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
"""Number of steps in which the fingerprint of each piece is recorded at least once."""

MOST_AT_ONCE = 46
"""Maximum number of fingerprints in the line of an update."""

SMALL = 1 << 16
"""Number of elements up to which a parameter is not divided."""

_MOST_PIECES = 300


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive parameters, or a part of one large parameter.

    Attributes:
        first, last: the index of the first parameter, and 1 plus the index of the last parameter.
        start, stop: the range of elements, if the piece is a part of one parameter.
    """

    first: int
    last: int
    start: int = 0
    stop: int | None = None

    def name(self, names: Sequence[str]) -> str:
        """Returns the name of the piece in messages.

        >>> Piece(0, 1, 10, 20).name(["/l1/W"]), Piece(0, 3).name(["/a", "/b", "/c"])
        ('/l1/W[10:20]', '/a to /c')
        """
        if self.stop is not None:
            return f"{names[self.first]}[{self.start}:{self.stop}]"
        if self.last == self.first + 1:
            return names[self.first]
        return f"{names[self.first]} to {names[self.last - 1]}"


def divide(sizes: Sequence[int]) -> list[Piece]:
    """Divides parameters of these sizes into pieces.

    >>> divide([10, 20])
    [Piece(first=0, last=1, start=0, stop=None), Piece(first=1, last=2, start=0, stop=None)]
    """
    most = max(sum(sizes) // (4 * PERIOD), SMALL)
    n_together = -(-len(sizes) // _MOST_PIECES)
    pieces = []
    for first in range(0, len(sizes), n_together):
        last = min(first + n_together, len(sizes))
        n = sizes[first]
        if n_together > 1 or n <= most:
            pieces.append(Piece(first, last))
            continue
        n_parts = -(-n // most)
        ends = [n * i // n_parts for i in range(n_parts + 1)]
        pieces += [Piece(first, last, *part) for part in itertools.pairwise(ends)]
    return pieces


class Table:
    """The pieces of a model, and which of them each step records.

    The pieces form ``PERIOD`` shares. Step ``t`` records share ``t % PERIOD``, and as many adjacent
    shares as time allows, so that any two records have fingerprints in common.

    Args:
        params: initialized parameters by name.

    Attributes:
        names: the names of the parameters.
        ids: the values of ``id`` of the parameters.
        shape: the description of the parameters in a record.
        pieces: the pieces.
        ends: 0, and the number of elements up to the end of each piece.
        key: the id of the optimizer in a record.
    """

    key = ""

    def __init__(self, params: Mapping[str, Parameter]):
        self.names = list(params)
        self.ids = tuple(map(id, params.values()))
        self.shape = [[name, list(p.shape), p.dtype.name] for name, p in params.items()]
        sizes = [param.size for param in params.values()]
        self.pieces = divide(sizes)
        of_pieces = [
            sum(sizes[p.first : p.last]) if p.stop is None else p.stop - p.start
            for p in self.pieces
        ]
        self.ends = [0, *itertools.accumulate(of_pieces)]
        self._shares = _shares(of_pieces)

    def turn(self, t: int, n_elements: float) -> tuple[int, int]:
        """Returns the index of the first piece that a step records, and 1 plus the index of the
        last piece.

        Args:
            t: the number of the step.
            n_elements: the number of elements whose fingerprints the allowed time suffices for.
        """
        if self.ends[-1] <= max(SMALL, n_elements) and len(self.pieces) <= MOST_AT_ONCE:
            return 0, len(self.pieces)
        own = t % PERIOD
        chosen = self._range(own, own + 1)
        for n in range(2, PERIOD + 1):
            begin = min(own, PERIOD - n)
            first, last = self._range(begin, begin + n)
            if self.n_elements(first, last) > n_elements or last - first > MOST_AT_ONCE:
                break
            chosen = first, last
        return chosen

    def _range(self, begin, end):
        return self._shares[begin], self._shares[end]

    def n_elements(self, first: int, last: int) -> int:
        """Returns the number of elements of the pieces from ``first`` to ``last - 1``."""
        return self.ends[last] - self.ends[first]

    def take(self, params: Sequence[Parameter], first: int, last: int) -> list[Fingerprint]:
        """Returns the fingerprints of the pieces from ``first`` to ``last - 1``."""
        return [_of_piece(params, piece) for piece in self.pieces[first:last]]


def _shares(sizes):
    """Divides pieces into shares of about equal work; returns the index of the first piece of each
    share, and the number of pieces."""
    total = sum(sizes) or 1
    work = [0.0, *itertools.accumulate(n / total + 1 / len(sizes) for n in sizes)]
    ends = [bisect.bisect_left(work, 2 * i / PERIOD - 1e-9) for i in range(PERIOD)]
    return [*ends, len(sizes)]


def _of_piece(params: Sequence[Any], piece: Piece) -> Fingerprint:
    if piece.stop is None:
        of_params = [fingerprints.take(p.array) for p in params[piece.first : piece.last]]
        return fingerprints.join(of_params)
    return fingerprints.take(params[piece.first].array.reshape(-1)[piece.start : piece.stop])


def checksum(shape: object) -> str:
    """Returns the key of a table in a record.

    >>> checksum([["/W", [2, 3], "float32"]])
    'ac80f0cd'
    """
    return f"{zlib.crc32(repr(shape).encode()):08x}"
