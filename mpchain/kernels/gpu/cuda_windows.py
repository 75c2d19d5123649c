"""Operations on sliding windows on GPUs, with one kernel for each operation; convolutions also take
a matrix product.

A thread computes an element of the result from all elements on which the result depends. No two
threads write to the same element, and sums are always in the same order. Pooling of arrays whose
channels are last in memory keeps this layout.
"""

import functools
import math
import re
from typing import Any

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.gpu.cuda_wide import contiguous_view
from mpchain.kernels.operation import HALF_TO_DOUBLE
from mpchain.kernels.reference import product
from mpchain.kernels.window import Window
from mpchain.typing import Array

_SUM_TYPES = {"e": "float", "f": "float", "d": "double"}
# these are the fields of a Window
_SIZES = "int32 k$, int32 s$, int32 p$, int32 d$, int32 n$, int32 o$"


def _refuse(*args: Any) -> str | None:
    window = args[-1]
    sizes = (*window.in_size, *window.out_size, window.n_elements)
    return "an axis of more than 2^30 elements" if max(sizes) > 1 << 30 else None


# In the texts, $ stands for the number of a spatial axis. The index i of the result is split into
# the index w$ of the window, or x$ of the element, along each axis, and the rest q, the index of
# sample and channel.


def _for_axes(text, n, joint="\n"):
    return joint.join(text.replace("$", str(axis)) for axis in range(n))


def _split(source, sizes, indices, n):
    text = f"int {indices}$ = {source} % {sizes}$; {source} /= {sizes}$;"
    return "\n".join(text.replace("$", str(axis)) for axis in reversed(range(n)))


def _joined(text, sizes, indices, n):
    for axis in range(n):
        text = f"({text} * {sizes}{axis} + {indices}{axis})"
    return text


def _element(n):
    """Returns C code that finds element e$ of window w$ in x."""
    return (
        _for_axes("int x$ = w$ * s$ - p$ + e$ * d$;", n)
        + f"\nbool inside = {_for_axes('x$ >= 0 && x$ < n$', n, ' && ')};"
        + f"\nptrdiff_t j = {_joined('q', 'n', 'x', n)};"
    )


def _one_element(n, choose):
    """Returns C code that computes a result from element e of a window."""
    parts = ["ptrdiff_t q = i;", _split("q", "o", "w", n), choose, _split("e", "k", "e", n)]
    return "\n".join([*parts, _element(n), "y = (T)0; if (inside) y = x[j];"])


def _every_element(n, before, step, after):
    """Returns C code that computes a result from all elements of a window."""
    loops = _for_axes("for (int e$ = 0; e$ < k$; e$++) {", n)
    parts = ["ptrdiff_t q = i; int e = 0;", _split("q", "o", "w", n), before, loops, _element(n)]
    return "\n".join([*parts, step, "e++;", "}" * n, after])


def _every_window(n, kind, first, step):
    """Returns C code that sums, for an element of x, over all windows that contain it; ELEMENT is
    its index in the window."""
    loop = "for (int e$ = 0; e$ < k$; e$++) {\n"
    loop += "int w$ = x$ + p$ - e$ * d$; if (w$ < 0 || w$ % s$) continue;\n"
    loop += "w$ /= s$; if (w$ >= o$) continue;"
    parts = [f"ptrdiff_t q = i; {kind} sum = 0;", _split("q", "n", "x", n), _for_axes(loop, n)]
    parts += [f"ptrdiff_t j = {_joined(first, 'o', 'w', n)};", step, "}" * n, "x = sum;"]
    return "\n".join(parts).replace("ELEMENT", _joined("0", "k", "e", n))


@functools.cache
def _kernel(name, ins, outs, write, n, *args, is_last=False):
    sizes, text = _for_axes(_SIZES, n, ", "), write(n, *args)
    name = f"mpchain_{name}_windows"
    if is_last:
        sizes, name = f"{sizes}, int32 channels", f"{name}_last"
        split = "ptrdiff_t q = i; const int channel = q % channels; q /= channels;"
        text = text.replace("ptrdiff_t q = i;", split)
        text = re.sub("ptrdiff_t j = (.*);", r"ptrdiff_t j = \1 * channels + channel;", text)
    return cuda.elementwise(f"{ins}, {sizes}", outs, text, name)


def _run(kernel, window, arguments, shape, *dtypes):
    """Returns new arrays of a shape, written by a kernel. ``kernel`` may also be a function of
    ``is_last`` that returns the kernel; ``is_last`` is True if an array has channels last."""
    xp = cuda.get_array_module(arguments[0])
    by_axis = zip(*window[:4], window.in_size, window.out_size, strict=True)
    sizes = [size for axis in by_axis for size in axis]
    arrays = [x for x in arguments if cuda.is_gpu_array(x)]
    views = [contiguous_view(x) for x in arrays] if isinstance(kernel, functools.partial) else []
    backs = {view[1] for view in views if view is not None} - {None}
    if backs:
        (back,) = backs
        to_last = 0, *range(2, len(shape)), 1
        arguments = [x.transpose(to_last) if cuda.is_gpu_array(x) else x for x in arguments]
        shape, kernel = tuple(shape[i] for i in to_last), kernel(is_last=True)
        sizes.append(shape[-1])
    elif views:
        kernel = kernel()
    arguments = [xp.ascontiguousarray(x) if cuda.is_gpu_array(x) else x for x in arguments]
    outs = [xp.empty(shape, dtype) for dtype in dtypes]
    kernel(*arguments, *sizes, *outs)
    return [y.transpose(back) for y in outs] if backs else outs


def _pooling(*args):
    """Returns a function that makes a kernel of one or the other layout; see :func:`_run`."""
    return functools.partial(_kernel, *args)


_OF_SAMPLES = "int e = q % elements; q /= elements;"
_OF_CHANNELS = "int sample = q % samples; q /= samples; int e = q % elements; q /= elements;"
_OF_CHANNELS += " q += (ptrdiff_t)sample * channels;"


def _columns(x, window):
    """Returns the elements of all windows of ``x`` as an array (C, n_elements, N, *out)."""
    n, c = x.shape[:2]
    ins = "raw T x, int32 elements, int32 samples, int32 channels"
    kernel = _kernel("unfold", ins, "T y", _one_element, len(window.ksize), _OF_CHANNELS)
    shape = (c, window.n_elements, n, *window.out_size)
    return _run(kernel, window, [x, window.n_elements, n, c], shape, x.dtype)[0]


@reference.unfold_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def unfold_windows(x: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.unfold_windows`."""
    ins = "raw T x, int32 elements"
    kernel = _kernel("unfold", ins, "T y", _one_element, len(window.ksize), _OF_SAMPLES)
    shape = (*x.shape[:2], window.n_elements, *window.out_size)
    return _run(kernel, window, [x, window.n_elements], shape, x.dtype)[0]


@reference.take_from_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def take_from_windows(x: Array, places: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.take_from_windows`."""
    ins, choose = "raw T x, P place", "int e = place;"
    kernel = _pooling("take_from", ins, "T y", _one_element, len(window.ksize), choose)
    return _run(kernel, window, [x, places], places.shape, x.dtype)[0]


@reference.sum_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def sum_windows(x: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.sum_windows`."""
    text = f"{_SUM_TYPES[x.dtype.char]} sum = 0;", "if (inside) sum += x[j];", "y = sum;"
    kernel = _pooling("sum", "raw T x", "T y", _every_element, len(window.ksize), *text)
    return _run(kernel, window, [x], (*x.shape[:2], *window.out_size), x.dtype)[0]


@reference.max_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def max_windows(x: Array, window: Window) -> tuple[Array, Array]:
    """See :func:`mpchain.kernels.reference.max_windows`."""
    before = "T most = low; int at = 0;"
    step = "T v = low; if (inside) v = x[j];\n"
    # NaN counts as the maximum
    step += "if (e == 0 || v > most || (v != v && most == most)) { most = v; at = e; }"
    text = before, step, "y = most; places = at;"
    ins, outs = "raw T x, T low", "T y, int32 places"
    kernel = _pooling("max", ins, outs, _every_element, len(window.ksize), *text)
    low = x.dtype.type(-math.inf)
    y, places = _run(kernel, window, [x, low], (*x.shape[:2], *window.out_size), x.dtype, "i")
    return y, places


def _sum_of_windows(name, window, arguments, ins, step, first="q"):
    y = arguments[0]
    text = _SUM_TYPES[y.dtype.char], first, step
    make = _kernel if name == "fold" else _pooling
    kernel = make(name, ins, "T x", _every_window, len(window.ksize), *text)
    return _run(kernel, window, arguments, (*y.shape[:2], *window.in_size), y.dtype)[0]


@reference.spread_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def spread_windows(y: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.spread_windows`."""
    return _sum_of_windows("spread", window, [y], "raw T y", "sum += y[j];")


@reference.place_in_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def place_in_windows(y: Array, places: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.place_in_windows`."""
    step = "if (places[j] == ELEMENT) sum += y[j];"
    return _sum_of_windows("place_in", window, [y, places], "raw T y, raw P places", step)


@reference.fold_windows.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def fold_windows(y: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.fold_windows`."""
    ins, first = "raw T y, int32 elements", "(q * elements + ELEMENT)"
    arguments = [y, window.n_elements]
    return _sum_of_windows("fold", window, arguments, ins, "sum += y[j];", first)


# The functions below compute convolutions as matrix products; the matrix of each group is (O /
# groups, C / groups * elements).


def _is_pointwise(window):
    """Returns whether the windows are the elements of x, in order."""
    return window.n_elements == 1 and window.in_size == window.out_size and not any(window.pad)


def _multiply(matrices, columns, y):
    """Multiplies the matrix of each group by the columns of each sample, and writes the products to
    y (N, groups, ...)."""
    if len(matrices) == 1:  # one matrix serves all samples without a copy
        matrices, columns, y = matrices[0], columns[:, 0], y[:, 0]
    product(matrices, columns, y)


@reference.convolution_output.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def convolution_output(x: Array, W: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_output`."""
    n, groups, n_windows = x.shape[0], window.groups, math.prod(window.out_size)
    columns = x if _is_pointwise(window) else unfold_windows(x, window)
    matrices = W.reshape(groups, W.shape[0] // groups, -1)
    y = cuda.get_array_module(x).empty((n, W.shape[0], *window.out_size), x.dtype)
    columns = columns.reshape(n, groups, matrices.shape[2], n_windows)
    _multiply(matrices, columns, y.reshape(n, *matrices.shape[:2], n_windows))
    return y


@reference.convolution_input.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def convolution_input(y: Array, W: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_input`."""
    n, groups, n_windows = y.shape[0], window.groups, math.prod(window.out_size)
    matrices = W.reshape(groups, W.shape[0] // groups, -1).swapaxes(1, 2)
    shape = (n, W.shape[1] * groups, window.n_elements, *window.out_size)
    columns = cuda.get_array_module(y).empty(shape, y.dtype)
    y = y.reshape(n, groups, matrices.shape[2], n_windows)
    _multiply(matrices, y, columns.reshape(n, *matrices.shape[:2], n_windows))
    if _is_pointwise(window):
        columns.shape = (*shape[:2], *window.in_size)
        return columns
    return fold_windows(columns, window)


@reference.convolution_filter.kernel("cuda_windows", _refuse, HALF_TO_DOUBLE)
def convolution_filter(x: Array, y: Array, window: Window) -> Array:
    """See :func:`mpchain.kernels.reference.convolution_filter`."""
    xp, groups, n_filters = cuda.get_array_module(x), window.groups, y.shape[1]
    W = xp.empty((n_filters, x.shape[1] // groups, *window.ksize), x.dtype)
    n_windows = y.shape[0] * math.prod(window.out_size)
    rows = xp.ascontiguousarray(y.swapaxes(0, 1)).reshape(groups, n_filters // groups, n_windows)
    columns = _columns(x, window).reshape(groups, -1, n_windows) if n_windows else None
    out = W.reshape(groups, n_filters // groups, -1)
    if columns is None:
        W.fill(0)
    elif groups == 1:  # in a product of two matrices, CuPy copies no transposed matrix
        product(rows[0], columns[0].T, out[0])
    else:
        product(rows, columns.swapaxes(1, 2), out)
    return W
