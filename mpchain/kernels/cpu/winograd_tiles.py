"""Winograd's transforms of tiles, for convolutions with fewer multiplications.

An image is divided into tiles of m x m outputs. A tile reads q x q inputs, where q = m + r - 1 for
a filter of r x r taps. Polynomials of degree q - 1 can be multiplied by their values at q points,
so

    tile of y = A^T [(G W G^T) * (B^T x B)] A,    * elementwise,

which takes q^2 multiplications instead of m^2 r^2. At each of the q^2 positions, one matrix product
of all tiles and all filters computes the sums over channels. Gradients use the transposed matrices.
See Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from mpchain.kernels.cpu.compiler import compile_written_loop
from mpchain.typing import Array

_Matrix = Sequence[Sequence[Fraction]]


class Tiles(NamedTuple):
    """The tiles of a convolution F(m, r).

    The points are the small fractions for which single-precision results were closest to exact
    results. Most of the remaining error comes from the sums over channels, not from the transforms,
    so channels are summed in parts (:data:`mpchain.kernels.thresholds.tile_channels`).

    Attributes:
        outputs: the number m of outputs along each axis.
        taps: r.
        points: all points except the last, which is infinity; each point is next to its negative.

    Example:
        >>> tiles = Tiles(2, 3, (0, 1, -1))
        >>> tiles.size
        4
    """

    outputs: int
    taps: int
    points: tuple

    def __hash__(self) -> int:
        return hash((self.outputs, self.taps))  # hashes of fractions take longer than small loops

    @property
    def size(self) -> int:
        """The number q of inputs along each axis."""
        return self.outputs + self.taps - 1

    def of_outputs(self) -> _Matrix:
        """Returns A^T (m, q)."""
        powers = [[point**i for i in range(self.outputs)] for point in map(Fraction, self.points)]
        return _transposed([*powers, _last(self.outputs)])

    def of_filters(self) -> _Matrix:
        """Returns G (q, r)."""
        points = list(map(Fraction, self.points))
        rows = []
        for point in points:
            scale = math.prod(point - other for other in points if other != point)
            rows.append([point**i / scale for i in range(self.taps)])
        return [*rows, _last(self.taps)]

    def of_inputs(self) -> _Matrix:
        """Returns B^T (q, q)."""
        points = list(map(Fraction, self.points))
        rows = [_polynomial([other for other in points if other != point]) for point in points]
        return [[*row, Fraction(0)] for row in rows] + [_polynomial(points)]


F4_3 = Tiles(4, 3, (0, Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)))
F4_2 = Tiles(4, 2, (Fraction(1, 2), Fraction(-1, 2), Fraction(5, 4), Fraction(-5, 4)))


def _last(n):
    return [Fraction(i == n - 1) for i in range(n)]


def _polynomial(roots):
    """Returns the coefficients of the product of all (x - root), starting with the constant."""
    product = [Fraction(1)]
    for root in roots:
        product = [a - root * b for a, b in zip([Fraction(0), *product], [*product, Fraction(0)])]
    return product


def _transposed(matrix):
    return list(zip(*matrix))


@functools.cache
def filter_matrix(tiles: Tiles, is_flipped: bool = False) -> Array:
    """Returns the matrix (q * q, r * r) that computes the tile of a filter from its taps, which are
    flipped along both axes if ``is_flipped`` is True.

    Example:
        >>> filter_matrix(F4_3).shape
        (36, 9)
    """
    step = -1 if is_flipped else 1
    G = np.array([[float(value) for value in row[::step]] for row in tiles.of_filters()])
    return np.kron(G, G).astype(np.float32)


@functools.cache
def loop_of(tiles: Tiles, name: str) -> Callable:
    """Returns the function of a transform, which calls a compiled loop.

    Args:
        tiles: the convolution.
        name: ``"inputs"`` or ``"phases of inputs"`` and ``"gradients of outputs"`` read images;
            ``"outputs"`` writes images.

    Returns:
        A function of numbers and arrays. An image has shape (N, height, width, C), its tiles have
        shape (q, q, number of tiles, channels). The first arguments of each function are ``begin,
        end, first``: the function computes the rows of tiles from ``begin`` to ``end``, and the
        array of tiles begins with row ``first``. The further arguments of functions that

        * read: image, tiles, the numbers of tiles along height and width; the step between
          neighbors in the image; where it is read for the first tile, along both axes; the first
          channel of a phase, 0 without phases;
        * write: image, tiles, a bias of C elements, or an empty bias; the numbers of tiles; the
          numbers of outputs along both axes; the step between neighbors in the image; where the
          first output goes, along both axes.

    Example:
        >>> import mpchain.kernels.cpu.compiler
        >>> write = loop_of(F4_3, "outputs") if mpchain.kernels.cpu.compiler.load_numba() else None
    """
    if name == "outputs":
        return _writing(tiles.of_outputs())
    if name == "gradients of outputs":
        return _reading(_transposed(tiles.of_outputs()), tiles.outputs)
    return _reading(tiles.of_inputs(), tiles.outputs, has_phases=name == "phases of inputs")


# Loops get their temporary arrays as arguments, because numba takes a second to compile functions
# that make and reshape arrays.

_READING = """
def read(begin, end, first, x, whole, rows, flat_rows, flat_down, columns, ny, nx, step, top, left,
         channel):
    C = x.shape[3]
    for r in range(begin, end):
        n, row = r // ny, r - first
        for i in range({p}):
            y = ((r - n * ny) * {m} + i) * step + top
            if y < 0 or y >= x.shape[1]:
                for c in range(flat_rows.shape[1]):
                    flat_rows[i, c] = 0
                continue
            for column in range((nx - 1) * {m} + {p}):
                j = column * step + left
                if j < 0 or j >= x.shape[2]:
                    for c in range(C):
                        rows[i, column % {m}, column // {m}, c] = 0
                else:
                    for c in range(C):
                        rows[i, column % {m}, column // {m}, c] = x[n, y, j, c]
        for c in range(flat_rows.shape[1]):
            {down}
        for k in range({q}):
            {across}
"""


_OF_WHOLE_ROWS = """
            for c in range(nx * C):
                {sums}
"""
_OF_PHASES = """
            for t in range(nx):
                place = t * (whole.shape[3] // nx) + channel
                for c in range(C):
                    {sums}
"""


def _reading(matrix, m, has_phases=False):
    """Returns a function that applies a matrix (q, p) to tiles of p x p elements at distances of m.

    Without phases, the channels of all tiles of a row are contiguous, so that one long loop
    computes the row.
    """
    q, p = len(matrix), len(matrix[0])
    more = -(-p // m) - 1  # a tile reads columns of up to this many following tiles
    place = "t * C + c" if has_phases else "c"
    columns = [f"columns[k, {i % m}, {place} + {i // m} * C]" for i in range(p)]
    result = "whole[k, {}, row, place + c]" if has_phases else "whole[k, {}, row, c]"
    sums = _lines(5 if has_phases else 4, _unrolled(matrix, columns, result))
    text = _READING.format(
        p=p,
        q=q,
        m=m,
        down=_lines(3, _unrolled(matrix, "flat_rows[{}, c]", "flat_down[{}, c]")),
        across=(_OF_PHASES if has_phases else _OF_WHOLE_ROWS).strip().format(sums=sums),
    )
    loop = _compiled(text)

    def read(begin, end, first, x, tiles, ny, nx, step, top, left, channel):
        # Column i of the image is [:, i % m, i // m].
        rows = np.zeros((p, m, nx + more, x.shape[3]), np.float32)
        down = np.zeros((q, *rows.shape[1:]), np.float32)
        arrays = rows, rows.reshape(p, -1), down.reshape(q, -1), down.reshape(q, m, -1)
        whole = tiles.reshape(q, q, -1, nx * tiles.shape[3])
        loop(begin, end, first, x, whole, *arrays, ny, nx, step, top, left, channel)

    return read


_WRITING = """
def write(begin, end, first, y, whole, bias, across, flat_across, rows, flat_rows, ny, nx, height,
          width, step, top, left):
    C = y.shape[3]
    for r in range(begin, end):
        n = r // ny
        for k in range({q}):
            for c in range(nx * C):
                {across}
        for c in range(flat_across.shape[1]):
            {rows}
        i0 = (r - n * ny) * {m}
        for i in range(min({m}, height - i0)):
            for j in range(width):
                v, u = (i0 + i) * step + top, j * step + left
                if bias.size:
                    for c in range(C):
                        y[n, v, u, c] = rows[i, j % {m}, j // {m}, c] + bias[c]
                else:
                    for c in range(C):
                        y[n, v, u, c] = rows[i, j % {m}, j // {m}, c]
"""


def _writing(matrix):
    """Returns a function that applies a matrix (m, q) to q x q tiles and writes m x m elements."""
    m, q = len(matrix), len(matrix[0])
    text = _WRITING.format(
        q=q,
        m=m,
        across=_lines(4, _unrolled(matrix, "whole[k, {}, r - first, c]", "across[k, {}, c]")),
        rows=_lines(3, _unrolled(matrix, "flat_across[{}, c]", "flat_rows[{}, c]")),
    )
    loop = _compiled(text)

    def write(begin, end, first, y, tiles, bias, ny, nx, *places):
        across = np.empty((q, m, nx * y.shape[3]), np.float32)
        # Column i of the image is [:, i % m, i // m].
        rows = np.empty((m, m, nx, y.shape[3]), np.float32)
        arrays = across, across.reshape(q, -1), rows, rows.reshape(m, -1)
        whole = tiles.reshape(q, q, -1, nx * y.shape[3])
        loop(begin, end, first, y, whole, bias, *arrays, ny, nx, *places)

    return write


def _compiled(text):
    return compile_written_loop("Winograd's tiles", text, fastmath={"reassoc", "nsz", "contract"})


def _lines(depth, lines):
    return f"\n{' ' * 4 * depth}".join(lines)


def _unrolled(matrix, read, written):
    """Returns statements that multiply a matrix by a vector. A point and its negative share half of
    their sums.

    Args:
        matrix: rows of fractions.
        read, written: the text of an element of the vector and of the result, with a placeholder
            for the index, or a list of the texts of all elements.
    """
    n = len(matrix[0])
    reads = [read.format(j) for j in range(n)] if isinstance(read, str) else read
    lines = [f"x{j} = {text}" for j, text in enumerate(reads)]
    columns = {f"x{j}": column for j, column in enumerate(_transposed(matrix))}
    # two columns that differ only in signs are read as their sum and difference
    for j in range(n - 1):
        a, b = columns.get(f"x{j}"), columns.get(f"x{j + 1}")
        if a and b and all(abs(u) == abs(v) for u, v in zip(a, b)):
            lines += [f"s{j} = x{j} + x{j + 1}", f"d{j} = x{j} - x{j + 1}"]
            columns[f"s{j}"] = [u if u == v else 0 for u, v in zip(a, b)]
            columns[f"d{j}"] = [u if u != v else 0 for u, v in zip(a, b)]
            del columns[f"x{j}"], columns[f"x{j + 1}"]
    rows = _transposed(columns.values())
    i = 0
    while i < len(rows):
        row, after = rows[i], rows[i + 1] if i + 1 < len(rows) else ()
        is_pair = any(after) and all(abs(u) == abs(v) for u, v in zip(row, after))
        # two rows that differ only in signs are computed from their common part and the part that
        # changes its sign
        if is_pair:
            lines.append(f"e = {_sum(columns, [u if u == v else 0 for u, v in zip(row, after)])}")
            lines.append(f"o = {_sum(columns, [u if u != v else 0 for u, v in zip(row, after)])}")
            lines += [f"{written.format(i)} = e + o", f"{written.format(i + 1)} = e - o"]
        else:
            lines.append(f"{written.format(i)} = {_sum(columns, row)}")
        i += 1 + is_pair
    return lines


def _sum(names, factors):
    terms = [
        name if factor == 1 else f"np.float32({float(factor)!r}) * {name}"
        for name, factor in zip(names, factors)
        if factor
    ]
    return " + ".join(terms) or "np.float32(0)"
