"""Functions that compute the sizes of windows and outputs, and convert between arrays and their
windows."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.kernels.window import Window
from mpchain.typing import Array, Sizes
from mpchain.utils.type_check import fail


def as_tuple(x: Sizes, n: int) -> tuple[int, ...]:
    """Returns ``x`` as a tuple of ``n`` integers: an integer is repeated, a sequence is converted.

    Example:
        >>> as_tuple(3, 2)
        (3, 3)
    """
    if isinstance(x, (int, Integral)):
        return (int(x),) * n
    sizes = tuple(int(v) for v in x)
    if len(sizes) != n:
        raise ValueError(f"expected one integer or {n}, but got {sizes}")
    return sizes


def spatial(function: str, n: int, **arguments: Any) -> list[tuple[int, ...]]:
    """Returns each argument as a tuple of ``n`` integers, after a check of their ranges.

    Args:
        function: the name of the function that got the arguments.
        n: the number of spatial axes.
        arguments: an integer, or one per axis; ``pad`` may be zero, all others must be positive.

    Raises:
        InvalidType: an argument has another length, or is out of range.

    Example:
        >>> spatial("f", 2, stride=2, pad=(0, 1))
        [(2, 2), (0, 1)]
    """
    tuples = []
    for name, value in arguments.items():
        values = (value,) * n if isinstance(value, Integral) else tuple(value)
        least = 0 if name == "pad" else 1
        if len(values) != n or any(v < least for v in values):
            rule = f"{name} must be one integer or {n}, each at least {least}"
            fail(function, rule, **{name: value})
        tuples.append(tuple([int(v) for v in values]))
    return tuples


def get_conv_outsize(size: int, k: int, s: int, p: int, cover_all: bool = False, d: int = 1) -> int:
    """Returns the number of windows along an axis.

    Args:
        size: the axis's size.
        k, s, p, d: window size, stride, padding on each side, dilation.
        cover_all: whether to add a window, so that windows cover all elements.

    Example:
        >>> get_conv_outsize(8, k=3, s=2, p=1)
        4
    """
    room = size + 2 * p - (k - 1) * d - 1
    return (room + (s - 1 if cover_all else 0)) // s + 1


def get_deconv_outsize(
    size: int, k: int, s: int, p: int, cover_all: bool = False, d: int = 1
) -> int:
    """Returns the smallest axis size that has ``size`` windows; see :func:`get_conv_outsize`.

    Example:
        >>> get_deconv_outsize(4, k=3, s=2, p=1)
        7
    """
    return s * (size - 1) + (k - 1) * d + 1 - (s - 1 if cover_all else 0) - 2 * p


def im2col_nd(
    img: Array, ksize: Sizes, stride: Sizes, pad: Sizes, cover_all: bool = False, dilate: Sizes = 1
) -> Array:
    """Returns the elements of each window of an array.

    Args:
        img: array (N, C, d1, d2, ...).
        ksize, stride, pad, dilate: size, stride, padding and dilation of the windows; padded
            elements are zeros.
        cover_all: add windows where elements would be left over.

    Returns:
        array (N, C, *ksize, *out), where ``out`` are the numbers of windows along the axes.

    Example:
        >>> im2col_nd(np.arange(4.0).reshape(1, 1, 4), 2, 1, 0)[0, 0]
        array([[0., 1., 2.],
               [1., 2., 3.]])
    """
    n = img.ndim - 2
    ksize, stride, pad, dilate = (as_tuple(v, n) for v in (ksize, stride, pad, dilate))
    axes = zip(img.shape[2:], ksize, stride, pad, dilate)
    out = tuple(get_conv_outsize(size, k, s, p, cover_all, d) for size, k, s, p, d in axes)
    return _side_by_side(img, Window(ksize, stride, pad, dilate, 1, img.shape[2:], out))


def _side_by_side(img, window):
    if min(window.out_size) <= 0:
        raise ValueError(
            "im2col: windows must not be larger than the padded array, but windows of "
            f"{window.ksize} are larger than {window.in_size} with a padding of {window.pad}"
        )
    columns = kernels.unfold_windows(img, window)
    return columns.reshape(*img.shape[:2], *window.ksize, *window.out_size)


def col2im_nd(
    col: Array, stride: Sizes, pad: Sizes, dims: Sequence[int], dilate: Sizes = 1
) -> Array:
    """Adds the elements of windows at their positions in an array, which is the adjoint of
    :func:`im2col_nd`.

    Args:
        col: array (N, C, *ksize, *out).
        stride, pad, dilate: the stride, padding and dilation of the windows.
        dims: the spatial sizes of the array.

    Returns:
        array (N, C, *dims).

    Example:
        >>> col2im_nd(np.ones((1, 1, 2, 3)), 1, 0, (4,))
        array([[[1., 2., 2., 1.]]])
    """
    n = len(dims)
    stride, pad, dilate = (as_tuple(v, n) for v in (stride, pad, dilate))
    ksize, out = col.shape[2 : 2 + n], col.shape[2 + n :]
    window = Window(ksize, stride, pad, dilate, 1, tuple(dims), out)
    elements = col.reshape(*col.shape[:2], math.prod(ksize), *out)
    return kernels.fold_windows(elements, window)


def im2col(
    img: Array,
    kh: int,
    kw: int,
    sy: int,
    sx: int,
    ph: int,
    pw: int,
    pval: float = 0,
    cover_all: bool = False,
    dy: int = 1,
    dx: int = 1,
    out_h: int | None = None,
    out_w: int | None = None,
) -> Array:
    """Returns the elements of each window of images.

    Args:
        img: array (N, C, H, W).
        kh, kw, sy, sx, ph, pw, dy, dx: vertical and horizontal size, stride, padding and dilation
            of the windows.
        pval: the value of the padding.
        cover_all: add windows where elements would be left over.
        out_h, out_w: the numbers of windows; None means as many as fit.

    Returns:
        array (N, C, kh, kw, out_h, out_w).

    Example:
        >>> im2col(np.zeros((1, 3, 8, 8)), 3, 3, 1, 1, 1, 1).shape
        (1, 3, 3, 3, 8, 8)
    """
    steps = ksize, stride, pad, dilate = (kh, kw), (sy, sx), (ph, pw), (dy, dx)
    given = zip((out_h, out_w), img.shape[2:], *steps)
    out = tuple(
        get_conv_outsize(size, k, s, p, cover_all, d) if n is None else n
        for n, size, k, s, p, d in given
    )
    if pval != 0:
        axes = zip(img.shape[2:], *steps, out)
        ends = [max((n - 1) * s + (k - 1) * d + 1 - size - p, 0) for size, k, s, p, d, n in axes]
        margins = ((0, 0), (0, 0), *zip(pad, ends))
        img = get_array_module(img).pad(img, margins, constant_values=pval)
        pad = (0, 0)
    return _side_by_side(img, Window(ksize, stride, pad, dilate, 1, img.shape[2:], out))


def col2im(
    col: Array, sy: int, sx: int, ph: int, pw: int, h: int, w: int, dy: int = 1, dx: int = 1
) -> Array:
    """Adds the elements of windows at their positions in images, which is the adjoint of
    :func:`im2col`.

    Args:
        col: array (N, C, kh, kw, out_h, out_w).
        sy, sx, ph, pw, dy, dx: strides, padding and dilations of the windows.
        h, w: the size of the images.

    Returns:
        array (N, C, h, w).

    Example:
        >>> col2im(np.zeros((1, 3, 3, 3, 8, 8)), 1, 1, 1, 1, 8, 8).shape
        (1, 3, 8, 8)
    """
    return col2im_nd(col, (sy, sx), (ph, pw), (h, w), (dy, dx))


im2col_cpu = im2col_gpu = im2col
col2im_cpu = col2im_gpu = col2im
