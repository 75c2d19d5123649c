"""Linear and bilinear maps, convolutions, and shifts."""

import math

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_bfloat16, is_floating, widened
from mpchain.functions.array import reshape, summed, transpose
from mpchain.functions.contraction import einsum
from mpchain.functions.declaring.declaration import (
    differentiable,
    multiplies_bfloat16,
    sums_over_rows,
)
from mpchain.functions.declaring.precision import differ, fits_plainly, mixed
from mpchain.functions.image import im2col
from mpchain.functions.reduction import sum as sum_over
from mpchain.functions.windows import check_axes, windows_onto, windows_over
from mpchain.kernels.window import cache_windows
from mpchain.observers import one_call
from mpchain.typing import Input, Sizes
from mpchain.utils.conv import as_tuple
from mpchain.utils.type_check import TypeInfo, check, fail
from mpchain.variable import Variable


def _linear_input_derivative(g, W):
    return np.matmul(g, W) if isinstance(g, Variable) else kernels.product(g, W)


@sums_over_rows
def _linear_weights_derivative(g, x):
    if isinstance(g, Variable):
        return np.matmul(np.transpose(g), x)
    return kernels.product(g.T, x)


def _linear_bias_derivative(g):
    if g.__class__ is np.ndarray and not is_bfloat16(g.dtype):
        return summed(g, 0, False)
    return sum_over.on(g if isinstance(g, Variable) else widened(g), 0)


@differentiable(
    _linear_input_derivative,
    _linear_weights_derivative,
)
@multiplies_bfloat16
def _linear(x, W):
    return kernels.linear(x, W, None)


@differentiable(
    _linear_input_derivative,
    _linear_weights_derivative,
    _linear_bias_derivative,
)
@multiplies_bfloat16
def _linear_with_bias(x, W, b):
    return kernels.linear(x, W, b)


def linear(x: Input, W: Input, b: Input | None = None, n_batch_axes: int = 1) -> Variable:
    """Affine map: y = x W^T + b.

    Args:
        x: Variable or array (N, ...); the axes after the first ``n_batch_axes`` are flattened to
            size I.
        W: Variable or array (O, I).
        b: Variable or array (O,), or None.
        n_batch_axes: the number of leading axes that are not flattened.

    Returns:
        Variable (N, O), where N stands for the ``n_batch_axes`` leading axes of ``x``.

    Raises:
        InvalidType: sizes do not match, or ``x`` has a wider dtype than ``W`` or ``b``; the
            docstring of ``mpchain.mixed16`` lists the rules of dtypes.

    Example:
        >>> F.linear(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), np.array([5.0])).array
        array([[16.]])
    """
    if type(n_batch_axes) is int and n_batch_axes == 1 and fits_plainly(x, W, b):
        return _linear(x, W) if b is None else _linear_with_bias(x, W, b)
    is_positive = isinstance(n_batch_axes, (int, np.integer)) and n_batch_axes > 0
    check(is_positive, "linear", "n_batch_axes must be a positive int", n_batch_axes=n_batch_axes)
    check(x.ndim > n_batch_axes, "linear", "x must have more axes than n_batch_axes", x=x)
    batch_shape, original = x.shape[:n_batch_axes], x
    if x.ndim != 2:
        n = math.prod(batch_shape)
        x = reshape(x, (n, x.size // n if n else W.shape[1]))
    floating = is_floating(x.dtype, W.dtype)
    check(floating, "linear", "x and W must be floating point", x=x, W=W)
    if differ(x, W, b):
        y = mixed("linear", linear, {"x": x}, {"W": W, "b": b})
        return y if n_batch_axes == 1 else reshape(y, (*batch_shape, W.shape[0]))
    fits = W.ndim == 2 and x.shape[1] == W.shape[1]
    if not fits and original.ndim > 2:
        rule = "W must have as many columns as x has features, which are all axes but the first"
        rule += f" n_batch_axes={n_batch_axes}"
        n = original.ndim - 1
        if W.ndim == 2 and original.shape[-1] == W.shape[1] and n != n_batch_axes:
            rule += f" (n_batch_axes={n}, of this call or of L.Linear, would fit)"
        fail("linear", rule, x=original, W=W)
    check(fits, "linear", "W must have as many columns as x has features", x=x, W=W)
    if b is None:
        y = _linear(x, W)
    else:
        check(
            b.shape == W.shape[:1], "linear", "b must have as many elements as W has rows", b=b, W=W
        )
        y = _linear_with_bias(x, W, b)
    return y if n_batch_axes == 1 else reshape(y, (*batch_shape, W.shape[0]))


# The functions of the convolution family are the gradients of one trilinear form <y, x * W>, each
# with respect to one of its three operands. The derivative of such a function with respect to an
# operand is another function of the family, with the incoming gradient in place of the operand that
# the first function lacks.


@differentiable(
    lambda gy, W, window: _convolution_input.on(gy, W, window),
    lambda gy, x, window: _convolution_filter.on(x, gy, window),
)
def _convolution_output(x, W, window):
    return kernels.convolution_output(x, W, window)


@differentiable(
    lambda gx, W, window: _convolution_output.on(gx, W, window),
    lambda gx, y, window: _convolution_filter.on(gx, y, window),
)
def _convolution_input(y, W, window):
    return kernels.convolution_input(y, W, window)


@differentiable(
    lambda gW, y, window: _convolution_input.on(y, gW, window),
    lambda gW, x, window: _convolution_output.on(x, gW, window),
)
def _convolution_filter(x, y, window):
    return kernels.convolution_filter(x, y, window)


@differentiable(
    lambda gy, W, window: _convolution_input.on(gy, W, window),
    lambda gy, x, window: _convolution_filter.on(x, gy, window),
    lambda gy: sum_over.on(gy, (0, *range(2, gy.ndim))),
)
def _convolution_with_bias(x, W, b, window):
    return kernels.convolution_with_bias(x, W, b, window)


def _with_bias(name, y, b):
    if b is None:
        return y
    check(b.shape == y.shape[1:2], name, "b must have one element per output channel", b=b, y=y)
    return y + reshape(b, (1, -1) + (1,) * (y.ndim - 2))


def convolution_nd(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    cover_all: bool = False,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """N-dimensional convolution (cross-correlation).

    With C input channels, O output channels, and sums over c and k, ``y[n, o, p] = b[o] + sum W[o,
    c, k] x[n, c, p * stride - pad + k * dilate]``.

    Args:
        x: Variable or array (N, C, d1, d2, ...).
        W: Variable or array (O, C / groups, k1, k2, ...).
        b: Variable or array (O,), or None.
        stride: step from one window to the next; an int, or one for each spatial axis.
        pad: number of zeros on each side of a spatial axis; an int, or one for each axis.
        cover_all: whether to add a last window, so that windows cover all elements.
        dilate: distance between neighboring elements of a window; 1 means adjacent elements.
        groups: number of groups of channels, which are convolved separately.

    Returns:
        Variable (N, O, ...). A spatial axis of d elements becomes an axis of (d + 2 pad - dilate (k
        - 1) - 1) // stride + 1 elements; ``cover_all`` may add one.

    Raises:
        InvalidType: ranks or channels do not match, a window is larger than the padded input, or
            the dtype of ``x`` is wider than the dtype of ``W`` or ``b`` (see ``mpchain.mixed16``).

    Example:
        >>> F.convolution_nd(np.array([[[1.0, 2.0, 4.0]]]), np.array([[[1.0, -1.0]]])).array
        array([[[-1., -2.]]])
    """
    return _convolution("convolution_nd", None, x, W, b, stride, pad, cover_all, dilate, groups)


def _check_operands(name, n, x, W, groups):
    if n is not None:
        check_axes(name, x, n)
    alike = x.ndim > 2 and W.ndim == x.ndim
    check(alike, name, "x and W must have the same rank, 3 or more", x=x, W=W)
    floating = is_floating(x.dtype, W.dtype)
    check(floating, name, "x and W must be floating point", x=x, W=W)
    check(groups >= 1, name, "groups must be positive", groups=groups)


def _mixed(function, name, x, W, b, *options):
    def call(x, W, b=None):
        return function(name, None, x, W, b, *options)

    return mixed(name, call, {"x": x}, {"W": W, "b": b})


def _convolution(name, n, x, W, b, *options):
    window = _convolution_windows(name, n, x.shape, x.dtype, W.shape, W.dtype, *options)
    if differ(x, W, b):
        return _mixed(_convolution, name, x, W, b, *options)
    if b is None or b.shape != W.shape[:1]:
        return _with_bias(name, _convolution_output(x, W, window), b)
    return _convolution_with_bias(x, W, b, window)


@cache_windows
def _convolution_windows(
    name, n, x_shape, x_dtype, W_shape, W_dtype, stride, pad, cover_all, dilate, groups
):
    x, W = TypeInfo(x_shape, x_dtype), TypeInfo(W_shape, W_dtype)
    _check_operands(name, n, x, W, groups)
    channels = f"x has {x.shape[1]} channels but W expects {W.shape[1] * groups} (groups={groups})"
    check(x.shape[1] == W.shape[1] * groups, name, channels, x=x, W=W)
    check(W.shape[0] % groups == 0, name, f"groups={groups} must divide the output channels", W=W)
    return windows_over(name, x, W.shape[2:], stride, pad, dilate, groups, cover_all, W=W)


def convolution_2d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    cover_all: bool = False,
    *,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """Two-dimensional convolution: :func:`convolution_nd` of x (N, C, H, W).

    :class:`mpchain.links.Convolution2D` is the link that holds ``W`` and ``b`` as parameters.

    Example:
        >>> F.convolution_2d(np.zeros((2, 3, 8, 8)), np.zeros((5, 3, 3, 3)), pad=1).shape
        (2, 5, 8, 8)
    """
    return _convolution("convolution_2d", 2, x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_1d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    cover_all: bool = False,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """One-dimensional convolution: :func:`convolution_nd` of x (N, C, D).

    Example:
        >>> F.convolution_1d(np.zeros((2, 3, 8)), np.zeros((5, 3, 3)), pad=1).shape
        (2, 5, 8)
    """
    return _convolution("convolution_1d", 1, x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_3d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    cover_all: bool = False,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """Three-dimensional convolution: :func:`convolution_nd` of x (N, C, D, H, W).

    Example:
        >>> F.convolution_3d(np.zeros((2, 3, 8, 8, 8)), np.zeros((5, 3, 3, 3, 3)), pad=1).shape
        (2, 5, 8, 8, 8)
    """
    return _convolution("convolution_3d", 3, x, W, b, stride, pad, cover_all, dilate, groups)


def deconvolution_nd(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """N-dimensional transposed convolution: the adjoint of :func:`convolution_nd`.

    Args:
        x: Variable or array (N, C, d1, d2, ...).
        W: Variable or array (C, O / groups, k1, k2, ...).
        b: Variable or array (O,), or None.
        stride, pad, dilate: stride, padding and dilation of the convolution that is transposed.
        outsize: spatial size of the output; None means the smallest possible size.
        groups: number of groups of channels, which are convolved separately.

    Returns:
        Variable (N, O, ...).

    Raises:
        InvalidType: ranks or channels do not match, a convolution of ``outsize`` would not give the
            size of ``x``, or the dtype of ``x`` is wider than the dtype of ``W`` or ``b``.

    Example:
        >>> F.deconvolution_nd(np.array([[[1.0, 2.0]]]), np.array([[[1.0, -1.0]]])).array
        array([[[ 1.,  1., -2.]]])

    See M. Zeiler et al., Deconvolutional networks, 2010.
    """
    return _deconvolution("deconvolution_nd", None, x, W, b, stride, pad, outsize, dilate, groups)


def _deconvolution(name, n, x, W, b, *options):
    window = _deconvolution_windows(name, n, x.shape, x.dtype, W.shape, W.dtype, *options)
    if differ(x, W, b):
        return _mixed(_deconvolution, name, x, W, b, *options)
    return _with_bias(name, _convolution_input(x, W, window), b)


@cache_windows
def _deconvolution_windows(
    name, n, x_shape, x_dtype, W_shape, W_dtype, stride, pad, outsize, dilate, groups
):
    x, W = TypeInfo(x_shape, x_dtype), TypeInfo(W_shape, W_dtype)
    _check_operands(name, n, x, W, groups)
    check(x.shape[1] == W.shape[0], name, "W must have one row per channel of x", x=x, W=W)
    check(x.shape[1] % groups == 0, name, f"groups={groups} must divide the channels", x=x)
    geometry = W.shape[2:], stride, pad, dilate, groups
    return windows_onto(name, x, *geometry, outsize=outsize, W=W)


def deconvolution_2d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    *,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """Two-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, H, W).

    Example:
        >>> F.deconvolution_2d(np.zeros((2, 3, 4, 4)), np.zeros((3, 5, 2, 2)), stride=2).shape
        (2, 5, 8, 8)
    """
    return _deconvolution("deconvolution_2d", 2, x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_1d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """One-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, D).

    Example:
        >>> F.deconvolution_1d(np.zeros((2, 3, 4)), np.zeros((3, 5, 2)), stride=2).shape
        (2, 5, 8)
    """
    return _deconvolution("deconvolution_1d", 1, x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_3d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    outsize: Sizes | None = None,
    dilate: Sizes = 1,
    groups: int = 1,
) -> Variable:
    """Three-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, D, H, W).

    Example:
        >>> F.deconvolution_3d(np.zeros((2, 3, 4, 4, 4)), np.zeros((3, 5, 2, 2, 2)), stride=2).shape
        (2, 5, 8, 8, 8)
    """
    return _deconvolution("deconvolution_3d", 3, x, W, b, stride, pad, outsize, dilate, groups)


def dilated_convolution_2d(
    x: Input,
    W: Input,
    b: Input | None = None,
    stride: Sizes = 1,
    pad: Sizes = 0,
    dilate: Sizes = 1,
    cover_all: bool = False,
) -> Variable:
    """Two-dimensional dilated convolution: :func:`convolution_2d` with ``dilate``.

    Example:
        >>> F.dilated_convolution_2d(np.zeros((2, 3, 8, 8)), np.zeros((5, 3, 3, 3)), dilate=2).shape
        (2, 5, 4, 4)

    See F. Yu and V. Koltun, Multi-scale context aggregation by dilated convolutions, ICLR 2016.
    """
    return _convolution("dilated_convolution_2d", 2, x, W, b, stride, pad, cover_all, dilate, 1)


def depthwise_convolution_2d(
    x: Input, W: Input, b: Input | None = None, stride: Sizes = 1, pad: Sizes = 0
) -> Variable:
    """Two-dimensional depthwise convolution: each channel has D filters.

    y[n, c * D + d] is the convolution of x[n, c] with W[d, c].

    Args:
        x: Variable or array (N, C, H, W).
        W: Variable or array (D, C, kh, kw).
        b: Variable or array (C * D,), or None.
        stride, pad: as in :func:`convolution_2d`.

    Returns:
        Variable (N, C * D, out_h, out_w).

    Raises:
        InvalidType: ranks or channels do not match, a window is larger than the padded input, or
            the dtype of ``x`` is wider than the dtype of ``W`` or ``b`` (see ``mpchain.mixed16``).

    Example:
        >>> F.depthwise_convolution_2d(np.zeros((2, 3, 8, 8)), np.zeros((2, 3, 3, 3))).shape
        (2, 6, 6, 6)

    See L. Sifre, Rigid-motion scattering for image classification, 2014.
    """
    name = "depthwise_convolution_2d"
    check(x.ndim == W.ndim == 4, name, "x and W must have 4 axes", x=x, W=W)
    multiplier, channels, *ksize = W.shape
    check(x.shape[1] == channels, name, "W must have as many channels as x", x=x, W=W)
    W = reshape(transpose(W, (1, 0, 2, 3)), (channels * multiplier, 1, *ksize))
    return _convolution(name, 2, x, W, b, stride, pad, False, 1, channels)


def local_convolution_2d(x: Input, W: Input, b: Input | None = None, stride: Sizes = 1) -> Variable:
    """Two-dimensional convolution with separate weights for each output position.

    y[n, o, i, j] = b[o, i, j] + sum over c, k, l of
    W[o, i, j, c, k, l] x[n, c, i * stride + k, j * stride + l].

    Args:
        x: Variable or array (N, C, H, W).
        W: Variable or array (O, out_h, out_w, C, kh, kw).
        b: Variable or array (O, out_h, out_w), or None.
        stride: distance between windows; an int, or one for each spatial axis.

    Returns:
        Variable (N, O, out_h, out_w).

    Raises:
        InvalidType: ranks, sizes or dtypes do not match.

    Example:
        >>> F.local_convolution_2d(np.zeros((2, 3, 8, 8)), np.zeros((5, 6, 6, 3, 3, 3))).shape
        (2, 5, 6, 6)
    """
    name = "local_convolution_2d"
    ranks = x.ndim == 4 and W.ndim == 6 and x.shape[1] == W.shape[3]
    check(ranks, name, "x must be (N, C, H, W) and W (O, out_h, out_w, C, kh, kw)", x=x, W=W)
    floating = is_floating(x.dtype, W.dtype)
    check(floating, name, "x and W must be floating point", x=x, W=W)
    if differ(x, W, b):
        return mixed(name, local_convolution_2d, {"x": x}, {"W": W, "b": b}, stride=stride)
    ksize = W.shape[4:]
    sizes = windows_over(name, x, ksize, stride, W=W).out_size
    if W.shape[1:3] != sizes:
        fail(name, f"W must have weights for each of the {sizes} windows in x", x=x, W=W)
    W = reshape(W, (*W.shape[:3], math.prod(W.shape[3:])))
    y = einsum("nkij,oijk->noij", im2col(x, ksize, stride), W)
    if b is None:
        return y
    check(b.shape == W.shape[:3], name, "b must have the first three axes of W", b=b, W=W)
    return y + b


def bilinear(
    e1: Input,
    e2: Input,
    W: Input,
    V1: Input | None = None,
    V2: Input | None = None,
    b: Input | None = None,
) -> Variable:
    """Bilinear map: y[n, l] = sum over j, k of e1[n, j] e2[n, k] W[j, k, l] + e1 V1 + e2 V2 + b.

    Args:
        e1, e2: Variables or arrays (N, ...), flattened to (N, J) and (N, K).
        W: Variable or array (J, K, L).
        V1, V2, b: Variables or arrays (J, L), (K, L) and (L,); give all three or none.

    Returns:
        Variable (N, L).

    Raises:
        InvalidType: sizes or dtypes do not match.
        ValueError: some, but not all, of ``V1``, ``V2`` and ``b`` are given.

    Example:
        >>> F.bilinear(np.ones((2, 3)), np.ones((2, 4)), np.ones((3, 4, 5))).shape
        (2, 5)

    See R. Socher et al., Reasoning with neural tensor networks for knowledge base completion,
    NIPS 2013.
    """
    given = [name for name, value in zip(("V1", "V2", "b"), (V1, V2, b)) if value is not None]
    if len(given) in (1, 2):
        raise ValueError(
            f"bilinear: V1, V2 and b must be given together, not only {' and '.join(given)}"
        )
    rows = e1.ndim > 1 and e2.ndim > 1 and e1.shape[0] == e2.shape[0]
    check(rows, "bilinear", "e1 and e2 must have the same number of rows", e1=e1, e2=e2)
    e1, e2 = (reshape(e, (e.shape[0], math.prod(e.shape[1:]))) for e in (e1, e2))
    floating = is_floating(e1.dtype, e2.dtype, W.dtype)
    check(floating, "bilinear", "e1, e2 and W must be floating point", e1=e1, e2=e2, W=W)
    if differ(e1, e2, W, V1, V2, b):
        parameters = {"W": W, "V1": V1, "V2": V2, "b": b}
        return mixed("bilinear", bilinear, {"e1": e1, "e2": e2}, parameters)
    fits = W.ndim == 3 and W.shape[:2] == (e1.shape[1], e2.shape[1])
    check(fits, "bilinear", "W must be (J, K, L) for e1 (N, J) and e2 (N, K)", e1=e1, e2=e2, W=W)
    y = einsum("nj,nk,jkl->nl", e1, e2, W)
    if V1 is None or V2 is None or b is None:
        return y
    sizes = V1.shape, V2.shape, b.shape
    j, k, n_out = W.shape
    rule = "V1, V2 and b must be (J, L), (K, L) and (L,) for W (J, K, L)"
    check(sizes == ((j, n_out), (k, n_out), (n_out,)), "bilinear", rule, W=W, V1=V1, V2=V2, b=b)
    return y + linear(e1, transpose(V1)) + linear(e2, transpose(V2), b)


def _overlap(size, step):
    """Returns the source slice and the target slice by which an axis of size ``size`` is shifted by
    ``step``."""
    kept = max(size - abs(step), 0)
    if step >= 0:
        return slice(0, kept), slice(size - kept, size)
    return slice(size - kept, size), slice(0, kept)


@differentiable(
    lambda g, steps: _shift.on(g, tuple([(channels, -dy, -dx) for channels, dy, dx in steps]))
)
def _shift(x, steps):
    """Shifts groups of channels down and right by ``steps``, and fills with zeros."""
    return one_call(_shifted, x, steps)


def _shifted(x, steps):
    y = get_array_module(x).zeros(x.shape, x.dtype)
    for channels, dy, dx in steps:
        (source_y, target_y), (source_x, target_x) = map(_overlap, x.shape[2:], (dy, dx))
        y[:, channels, target_y, target_x] = x[:, channels, source_y, source_x]
    return y


def shift(x: Input, ksize: Sizes = 3, dilate: Sizes = 1) -> Variable:
    """Shifts each group of channels in another direction: a convolution without weights.

    The channels are split into kh * kw equal groups, one for each position of a window. Each group
    is shifted by the offset of its position from the center. The group of the center and the group
    of the last position are exchanged, so that the last group, which also has the remaining
    channels, is not shifted.

    Args:
        x: Variable or array (N, C, H, W), floating point; C is at least kh * kw.
        ksize: window size, odd; an int, or a pair.
        dilate: number of pixels per step from the center.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: ``x`` is not floating point with 4 axes, or has fewer than kh * kw channels.
        ValueError: ``ksize`` is not odd and positive, or ``dilate`` is zero.

    Example:
        >>> F.shift(np.zeros((2, 9, 8, 8))).shape
        (2, 9, 8, 8)

    See B. Wu et al., Shift: a zero FLOP, zero parameter alternative to spatial convolutions,
    CVPR 2018.
    """
    check(x.ndim == 4 and is_floating(x.dtype), "shift", "x must be floating with 4 axes", x=x)
    (kh, kw), (dy, dx) = as_tuple(ksize, 2), as_tuple(dilate, 2)
    if kh % 2 != 1 or kw % 2 != 1 or min(kh, kw) < 1:
        raise ValueError(f"shift: ksize must be odd and positive, but is {ksize}")
    if 0 in (dy, dx):
        raise ValueError(f"shift: dilate must not be zero, but is {dilate}")
    n = kh * kw
    check(x.shape[1] >= n, "shift", "x must have {n} channels or more", x=x, ksize=ksize, n=n)
    places = [((i - kh // 2) * dy, (j - kw // 2) * dx) for i in range(kh) for j in range(kw)]
    places[n // 2], places[-1] = places[-1], places[n // 2]
    size = x.shape[1] // n
    ends = [*range(size, n * size, size), x.shape[1]]
    steps = [(slice(i * size, end), *place) for i, (end, place) in enumerate(zip(ends, places))]
    return _shift(x, tuple(steps))
