"""Convolutions with small filters by Winograd's tiles, which need fewer multiplications.

The filters have 3 or 2 taps along both axes. With a stride of 2, the filters have 3 to 6 taps, at
most 3 in each of four phases, and each phase is a convolution of every second input element with
stride 1. Compiled loops read and write tiles, and oneDNN multiplies them. Each block of tiles fits
into the caches.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from mpchain.configuration import config
from mpchain.kernels import reference, thresholds
from mpchain.kernels.cpu.blas import one_thread
from mpchain.kernels.cpu.channels_last import as_last, empty, result_last
from mpchain.kernels.cpu.compiler import why_not_compiled
from mpchain.kernels.cpu.onednn_library import load, n_threads, why_absent
from mpchain.kernels.cpu.onednn_matmul import matmul
from mpchain.kernels.cpu.threads import in_parts
from mpchain.kernels.cpu.winograd_tiles import F4_2, F4_3, Tiles, filter_matrix, loop_of
from mpchain.kernels.operation import SINGLE
from mpchain.kernels.window import Window
from mpchain.typing import Array

_TILES = {2: F4_2, 3: F4_3}  # the keys are numbers of taps
_NONE = np.empty(0, np.float32)


class _Geometry(NamedTuple):
    """A convolution with the same stride and filter size on both axes, and its tiles."""

    tiles: Tiles
    stride: int
    ksize: int
    pad: tuple
    in_size: tuple
    out_size: tuple

    @property
    def phases(self):
        return list(itertools.product(range(self.stride), repeat=2))

    @property
    def reads(self):
        """Returns, for each phase, the distance between its elements in the input, and the position
        of its first element."""
        return [(self.stride, self.starts(phase)) for phase in self.phases]

    def starts(self, phase):
        """Returns the position, in the input, of the first element of a phase in the first
        window."""
        return [f - p for f, p in zip(phase, self.pad)]


@functools.lru_cache(maxsize=1024)
def _geometry(window):
    """Returns the geometry of a window, or the reason (str) why tiles cannot compute it."""
    k, stride = window.ksize[0], window.stride[0]
    is_square = len(window.ksize) == 2 and window.ksize == (k, k)
    if not is_square or window.stride != (stride, stride) or max(window.dilate) > 1:
        return "not a window of equal sizes and strides on two axes"
    if window.groups > 1:
        return "groups"
    tiles = _TILES.get(-(-k // stride))
    if tiles is None or stride > 2:
        return "not 2 or 3 taps"
    return _Geometry(tiles, stride, k, window.pad, window.in_size, window.out_size)


def _known(window) -> "_Geometry":
    """Returns the geometry of a window that :func:`refusal` accepts."""
    geometry = _geometry(window)
    assert not isinstance(geometry, str)
    return geometry


def _channels(operation, first, second):
    """Returns the number of channels of the input and the number of channels of the output."""
    W_or_y = second.shape
    return (first.shape[1], W_or_y[1]) if operation == "filter" else (W_or_y[1], W_or_y[0])


@thresholds.remembered(maxsize=1024)
def _is_worth_it(n, in_channels, out_channels, window, has_threads, is_wide):
    """Returns whether tiles take less time than other convolution kernels, according to
    measurements."""
    geometry = _known(window)
    rows, columns = (-(-size // geometry.tiles.outputs) for size in window.out_size)
    n_tiles, n_phases = n * rows * columns, len(geometry.phases)
    pairs = in_channels * out_channels
    in_windows = n * math.prod(window.out_size) * window.n_elements * pairs
    multiplied = n_tiles * n_phases * pairs
    of_tiles = n_tiles * (n_phases * in_channels + out_channels)
    moved = (thresholds.of_tile_for_threads if has_threads else thresholds.of_tile) * of_tiles
    moved += thresholds.of_filter * n_phases * pairs
    in_tiles = geometry.tiles.size**2 * (multiplied + moved)
    saved = thresholds.saved_by_wide if is_wide else thresholds.saved
    return in_windows >= thresholds.tiles and in_tiles < (1 - saved) * in_windows


def refusal(operation: str, first: Array, second: Array, window: Window) -> str | None:
    """Returns the reason to refuse a convolution; None if tiles compute it.

    Example:
        >>> refusal("output", np.ones((0, 1, 3)), np.ones((1, 1, 3)), Window((3,), *[(1,)] * 6))
        'not a window of equal sizes and strides on two axes'
    """
    geometry = _geometry(window)
    if isinstance(geometry, str):
        return geometry
    if not first.size or not second.size or not math.prod(window.out_size):
        return "an array without elements"
    if reason := why_absent():
        return reason
    if not config.autotune and "winograd" not in (config.kernels or ()):
        channels = _channels(operation, first, second)
        if not _is_worth_it(len(first), *channels, window, n_threads() > 1, load().has_avx512):
            return "not worth it: windows are as fast"
    return why_not_compiled()


def _last(x):
    """Returns an array (N, C, height, width) as an image (N, height, width, C) without gaps."""
    return as_last(x).transpose(0, 2, 3, 1)


def _filters(W, geometry, phases, is_flipped=False):
    """Returns the tiles (q * q, O, len(phases) * C) of the taps of phases of filters (O, C, k,
    k)."""
    taps, r, stride = W, geometry.tiles.taps, geometry.stride
    if stride == 1:
        taps = W.reshape(-1, r * r).T
    else:
        taps = np.zeros((r, r, len(W), len(phases), W.shape[1]), np.float32)
        for i, (first, second) in enumerate(phases):
            part = W[:, :, first::stride, second::stride].transpose(2, 3, 0, 1)
            taps[: len(part), : part.shape[1], :, i] = part
        taps = taps.reshape(r * r, -1)
    U = np.empty((geometry.tiles.size**2, taps.shape[1]), np.float32)
    _transform(filter_matrix(geometry.tiles, is_flipped), taps, U)
    return U.reshape(len(U), len(W), -1)


def _taps_of(sums, W, geometry):
    """Writes filters W (O, C, k, k) whose tiles are sums (q * q, O, phases * C)."""
    matrix, r, stride = filter_matrix(geometry.tiles).T, geometry.tiles.taps, geometry.stride
    taps = np.empty((r * r, sums[0].size), np.float32)
    _transform(matrix, sums.reshape(len(sums), -1), taps)
    taps = taps.reshape(r, r, len(W), -1, W.shape[1]).transpose(3, 2, 4, 0, 1)
    for part, (first, second) in zip(taps, geometry.phases):
        view = W[:, :, first::stride, second::stride]
        view[...] = part[:, :, : view.shape[2], : view.shape[3]]


def _transform(matrix, x, y):
    """Writes the product of a small matrix and a wide one to ``y``, on all threads."""
    run = lambda begin, end: np.matmul(matrix, x[:, begin:end], out=y[:, begin:end])
    with one_thread:
        in_parts(run, x.shape[1], y.size)


def _blocks(n_rows, n_columns, filters):
    """Returns the blocks of rows of tiles that are computed together. Each block reads all
    filters."""
    n_elements = n_rows * n_columns * len(filters) * sum(filters.shape[1:])
    step = -(
        -n_rows
        // max(1, round(n_elements / max(thresholds.tiles_at_once * n_threads(), filters.size)))
    )
    return [(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def _numbers_of_tiles(size, tiles):
    return [-(-n // tiles.outputs) for n in size]


def _read(name, tiles, block, image, into, numbers, step, starts, channel=0):
    """Reads a block of rows of tiles, on all threads."""
    begin, end = block
    loop = loop_of(tiles, name)

    def run(i, stop):
        loop(begin + i, begin + stop, begin, image, into, *numbers, step, *starts, channel)

    in_parts(run, end - begin, into.size)


def _read_inputs(tiles, block, x, reads, numbers):
    """Returns the tiles of a block of rows for all phases: (q, q, tiles, channels)."""
    begin, end = block
    V = _empty_tiles(tiles, (end - begin) * numbers[1], len(reads) * x.shape[3])
    name = "phases of inputs" if len(reads) > 1 else "inputs"
    for i, (step, starts) in enumerate(reads):
        _read(name, tiles, block, x, V, numbers, step, starts, i * x.shape[3])
    return V


def _empty_tiles(tiles, n, channels):
    return np.empty((tiles.size, tiles.size, n, channels), np.float32)


def _stack(x):
    """Returns tiles (q, q, n, channels) as a stack of matrices."""
    return x.reshape(-1, *x.shape[2:])


def _multiply(V, U, products):
    """Multiplies tiles by filters, a part of the channels at a time, because a sum of fewer terms
    has smaller rounding errors."""
    n = U.shape[1]
    step = thresholds.tile_channels * (2 if n > 128 else 1)
    for i in range(0, n, step):
        matmul(V[:, :, i : i + step], U[:, i : i + step], products, is_sum=i > 0)


def _correlate(x, reads, U, y, size, step, start, tiles, bias=_NONE):
    """Writes elements of an image, which are correlations of filters with another image.

    Args:
        x: the image that is read.
        reads: the distances and positions of the elements that are read; see
            :attr:`_Geometry.reads`.
        U: filters (q * q, phases * channels of x, channels of y).
        y: the image that is written.
        size: the numbers of elements that are written along both axes.
        step, start: the distance between the written elements in y, and the position of the first
            one.
        tiles: the :class:`Tiles` of the convolution.
        bias: an array with an element for each channel of y, or an empty array.
    """
    numbers = ny, nx = _numbers_of_tiles(size, tiles)
    write = loop_of(tiles, "outputs")
    for begin, end in _blocks(len(x) * ny, nx, U):
        V = _read_inputs(tiles, (begin, end), x, reads, numbers)
        products = _empty_tiles(tiles, V.shape[2], U.shape[2])
        _multiply(_stack(V), U, _stack(products))

        def run(i, stop, first=begin, products=products):
            rows = first + i, first + stop, first
            write(*rows, y, products, bias, *numbers, *size, step, *start)

        in_parts(run, end - begin, products.size)


@reference.convolution_output.kernel("winograd", functools.partial(refusal, "output"), SINGLE)
def _output(x, W, window, b=None, *, out=None):
    """Returns y = x * W, plus ``b`` if it is given."""
    geometry = _known(window)
    y = result_last((len(x), len(W), *window.out_size), np.float32, out=out)
    U = _filters(W, geometry, geometry.phases).swapaxes(1, 2)
    written = y.transpose(0, 2, 3, 1), window.out_size, 1, (0, 0)
    bias = _NONE if b is None else np.ascontiguousarray(b)
    _correlate(_last(x), geometry.reads, U, *written, geometry.tiles, bias)
    return y


def _refuse_with_bias(x, W, b, window):
    return refusal("output", x, W, window)


@reference.convolution_with_bias.kernel("winograd", _refuse_with_bias, SINGLE)
def _output_with_bias(x, W, b, window, out=None):
    """Returns y = x * W + b."""
    return _output(x, W, window, b, out=out)


@reference.convolution_input.kernel("winograd", functools.partial(refusal, "input"), SINGLE)
def _input(y, W, window, out=None):
    """Returns the adjoint of x -> x * W."""
    geometry = _known(window)
    stride, tiles = geometry.stride, geometry.tiles
    x = result_last((len(y), W.shape[1], *window.in_size), np.float32, out=out)
    y, written = _last(y), x.transpose(0, 2, 3, 1)
    for phase in geometry.phases:
        U = _filters(W, geometry, [phase], is_flipped=True)
        # Element stride * j + start of x is in the windows j - r + 1 to j of this phase.
        starts = geometry.starts(phase)
        least = [-(start // stride) for start in starts]
        most = [(n - 1 - start) // stride for n, start in zip(window.in_size, starts)]
        size = [last - first + 1 for first, last in zip(least, most)]
        if min(size) < 1:
            continue
        reads = [(1, [first - tiles.taps + 1 for first in least])]
        start = [stride * first + start for first, start in zip(least, starts)]
        _correlate(y, reads, U, written, size, stride, start, tiles)
    return x


@reference.convolution_filter.kernel("winograd", functools.partial(refusal, "filter"), SINGLE)
def _filter(x, y, window, out=None):
    """Returns the adjoint of W -> x * W."""
    geometry = _known(window)
    tiles = geometry.tiles
    W = empty((y.shape[1], x.shape[1], *window.ksize), np.float32, out=out)
    x, y = _last(x), _last(y)
    numbers = ny, nx = _numbers_of_tiles(window.out_size, tiles)
    n_read = len(geometry.phases) * x.shape[3]
    sums = np.empty((tiles.size**2, y.shape[3], n_read), np.float32)
    for block in _blocks(len(x) * ny, nx, sums):
        V = _read_inputs(tiles, block, x, geometry.reads, numbers)
        Z = _empty_tiles(tiles, V.shape[2], y.shape[3])
        _read("gradients of outputs", tiles, block, y, Z, numbers, 1, (0, 0))
        matmul(_stack(Z).swapaxes(1, 2), _stack(V), sums, is_sum=block[0] > 0)
    _taps_of(sums, W, geometry)
    return W
