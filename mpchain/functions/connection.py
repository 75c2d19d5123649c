"""Connections: products of inputs with weights."""

import math

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.functions.array import reshape, transpose
from mpchain.functions.contraction import einsum
from mpchain.functions.declaration import differentiable
from mpchain.functions.image import im2col
from mpchain.functions.precision import differ, mixed
from mpchain.functions.reduction import sum as sum_over
from mpchain.kernels.window import Window
from mpchain.utils.conv import as_tuple, get_conv_outsize, get_deconv_outsize, spatial
from mpchain.utils.type_check import check


@differentiable(
    lambda g, W: np.matmul(g, W),
    lambda g, x: np.matmul(np.transpose(g), x),
)
def _linear(x, W):
    return kernels.linear(x, W, None)


@differentiable(
    lambda g, W: np.matmul(g, W),
    lambda g, x: np.matmul(np.transpose(g), x),
    lambda g: sum_over.on(g, 0),
)
def _linear_with_bias(x, W, b):
    return kernels.linear(x, W, b)


def linear(x, W, b=None, n_batch_axes=1):
    """Affine map: y = x W^T + b.

    Args:
        x: Variable or array (N, ...); the axes after the first ``n_batch_axes`` are flattened to
            size I.
        W: Variable or array (O, I).
        b: Variable or array (O,), or None.
        n_batch_axes (int): the number of leading axes that stay.

    Returns:
        Variable (N, O), with all ``n_batch_axes`` leading axes of ``x``.

    Raises:
        InvalidType: sizes do not fit, or ``x`` has a wider dtype than ``W`` or ``b``; the rules of
            dtypes are at ``mpchain.mixed16``.
    """
    is_positive = isinstance(n_batch_axes, (int, np.integer)) and n_batch_axes > 0
    check(is_positive, "linear", "n_batch_axes must be a positive int", n_batch_axes=n_batch_axes)
    check(x.ndim > n_batch_axes, "linear", "x must have more axes than n_batch_axes", x=x)
    batch_shape = x.shape[:n_batch_axes]
    if x.ndim != 2:
        n = 1
        for size in batch_shape:
            n *= size
        x = reshape(x, (n, x.size // n if n else W.shape[1]))
    floating = x.dtype.kind == W.dtype.kind == "f"
    check(floating, "linear", "x and W must be floating point", x=x, W=W)
    if differ(x, W, b):
        y = mixed("linear", linear, {"x": x}, {"W": W, "b": b})
        return y if n_batch_axes == 1 else reshape(y, (*batch_shape, W.shape[0]))
    fits = W.ndim == 2 and x.shape[1] == W.shape[1]
    check(fits, "linear", "W must have as many columns as x has features", x=x, W=W)
    if b is None:
        y = _linear(x, W)
    else:
        check(b.shape == W.shape[:1], "linear", "b must have as many elements as W rows", b=b, W=W)
        y = _linear_with_bias(x, W, b)
    return y if n_batch_axes == 1 else reshape(y, (*batch_shape, W.shape[0]))


# The convolution family is one trilinear form <y, x * W> with one slot left open: the other two
# operands given, its gradient with respect to the open slot is the result. Differentiating a member
# by one of its operands closes the open slot with the incoming gradient and opens the operand's.


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


def _with_bias(name, y, b):
    if b is None:
        return y
    check(b.shape == y.shape[1:2], name, "b must have one element per output channel", b=b, y=y)
    return y + reshape(b, (1, -1) + (1,) * (y.ndim - 2))


def convolution_nd(x, W, b=None, stride=1, pad=0, cover_all=False, dilate=1, groups=1):
    """N-dimensional convolution (cross-correlation, as the field calls it).

    With C, O input and output channels, y[n, o, p] = b[o] + sum over c, k of
    W[o, c, k] x[n, c, p * stride - pad + k * dilate].

    Args:
        x: Variable or array (N, C, d1, d2, ...).
        W: Variable or array (O, C / groups, k1, k2, ...).
        b: Variable or array (O,), or None.
        stride, pad, dilate (int or tuple of int): per spatial axis; pad is zeros, on both sides.
        cover_all (bool): place windows so that every element is covered; the output may be larger.
        groups (int): channels are split into groups that do not see each other.

    Returns:
        Variable (N, O, ...).

    Raises:
        InvalidType: ranks or channels do not fit, a window is larger than the padded input, or the
            dtype of ``x`` is wider than that of ``W`` or ``b`` (see ``mpchain.mixed16``).
    """
    return _convolution("convolution_nd", x, W, b, stride, pad, cover_all, dilate, groups)


def _check_operands(name, x, W, groups):
    alike = x.ndim > 2 and W.ndim == x.ndim
    check(alike, name, "x and W must have the same rank, 3 or more", x=x, W=W)
    floating = x.dtype.kind == W.dtype.kind == "f"
    check(floating, name, "x and W must be floating point", x=x, W=W)
    check(groups >= 1, name, "groups must be positive", groups=groups)


def _mixed(function, name, x, W, b, *options):
    def call(x, W, b=None):
        return function(name, x, W, b, *options)

    return mixed(name, call, {"x": x}, {"W": W, "b": b})


def _convolution(name, x, W, b, stride, pad, cover_all, dilate, groups):
    n = x.ndim - 2
    _check_operands(name, x, W, groups)
    if differ(x, W, b):
        return _mixed(_convolution, name, x, W, b, stride, pad, cover_all, dilate, groups)
    channels = f"x has {x.shape[1]} channels but W expects {W.shape[1] * groups} (groups={groups})"
    check(x.shape[1] == W.shape[1] * groups, name, channels, x=x, W=W)
    check(W.shape[0] % groups == 0, name, f"groups={groups} must divide the output channels", W=W)
    stride, pad, dilate = spatial(name, n, stride=stride, pad=pad, dilate=dilate)
    sizes = tuple(
        get_conv_outsize(size, k, s, p, cover_all, d)
        for size, k, s, p, d in zip(x.shape[2:], W.shape[2:], stride, pad, dilate)
    )
    check(min(sizes) > 0, name, f"the output size {sizes} must be positive", x=x, W=W)
    window = Window(W.shape[2:], stride, pad, dilate, groups, x.shape[2:], sizes)
    return _with_bias(name, _convolution_output(x, W, window), b)


def convolution_2d(x, W, b=None, stride=1, pad=0, cover_all=False, *, dilate=1, groups=1):
    """Two-dimensional convolution: :func:`convolution_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "convolution_2d", "x must have 4 axes", x=x)
    return _convolution("convolution_2d", x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_1d(x, W, b=None, stride=1, pad=0, cover_all=False, dilate=1, groups=1):
    """One-dimensional convolution: :func:`convolution_nd` of x (N, C, D)."""
    check(x.ndim == 3, "convolution_1d", "x must have 3 axes", x=x)
    return _convolution("convolution_1d", x, W, b, stride, pad, cover_all, dilate, groups)


def convolution_3d(x, W, b=None, stride=1, pad=0, cover_all=False, dilate=1, groups=1):
    """Three-dimensional convolution: :func:`convolution_nd` of x (N, C, D, H, W)."""
    check(x.ndim == 5, "convolution_3d", "x must have 5 axes", x=x)
    return _convolution("convolution_3d", x, W, b, stride, pad, cover_all, dilate, groups)


def deconvolution_nd(x, W, b=None, stride=1, pad=0, outsize=None, dilate=1, groups=1):
    """N-dimensional transposed convolution: the adjoint of :func:`convolution_nd`.

    Args:
        x: Variable or array (N, C, d1, d2, ...).
        W: Variable or array (C, O / groups, k1, k2, ...).
        b: Variable or array (O,), or None.
        stride, pad, dilate (int or tuple of int): of the convolution that this one transposes.
        outsize (tuple of int): spatial sizes of the output; None takes the smallest that fit.
        groups (int): channels are split into groups that do not see each other.

    Returns:
        Variable (N, O, ...).

    Raises:
        InvalidType: ranks or channels do not fit, or ``outsize`` does not lead back to ``x``.

    See M. Zeiler et al., Deconvolutional networks, 2010.
    """
    return _deconvolution("deconvolution_nd", x, W, b, stride, pad, outsize, dilate, groups)


def _deconvolution(name, x, W, b, stride, pad, outsize, dilate, groups):
    n = x.ndim - 2
    _check_operands(name, x, W, groups)
    if differ(x, W, b):
        return _mixed(_deconvolution, name, x, W, b, stride, pad, outsize, dilate, groups)
    check(x.shape[1] == W.shape[0], name, "W must have one row per channel of x", x=x, W=W)
    check(x.shape[1] % groups == 0, name, f"groups={groups} must divide the channels", x=x)
    stride, pad, dilate = spatial(name, n, stride=stride, pad=pad, dilate=dilate)
    steps = list(zip(W.shape[2:], stride, pad, dilate))
    if outsize is None:
        sizes = zip(x.shape[2:], steps)
        outsize = tuple(get_deconv_outsize(size, k, s, p, d=d) for size, (k, s, p, d) in sizes)
        check(min(outsize) > 0, name, f"the output size {outsize} must be positive", x=x, W=W)
    (outsize,) = spatial(name, n, outsize=outsize)
    back = tuple(get_conv_outsize(o, k, s, p, d=d) for o, (k, s, p, d) in zip(outsize, steps))
    rule = f"a convolution of outsize {outsize} must give {x.shape[2:]}, the size of x, not {back}"
    check(back == x.shape[2:], name, rule, x=x, W=W)
    window = Window(W.shape[2:], stride, pad, dilate, groups, outsize, x.shape[2:])
    return _with_bias(name, _convolution_input(x, W, window), b)


def deconvolution_2d(x, W, b=None, stride=1, pad=0, outsize=None, *, dilate=1, groups=1):
    """Two-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "deconvolution_2d", "x must have 4 axes", x=x)
    return _deconvolution("deconvolution_2d", x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_1d(x, W, b=None, stride=1, pad=0, outsize=None, dilate=1, groups=1):
    """One-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, D)."""
    check(x.ndim == 3, "deconvolution_1d", "x must have 3 axes", x=x)
    return _deconvolution("deconvolution_1d", x, W, b, stride, pad, outsize, dilate, groups)


def deconvolution_3d(x, W, b=None, stride=1, pad=0, outsize=None, dilate=1, groups=1):
    """Three-dimensional transposed convolution: :func:`deconvolution_nd` of x (N, C, D, H, W)."""
    check(x.ndim == 5, "deconvolution_3d", "x must have 5 axes", x=x)
    return _deconvolution("deconvolution_3d", x, W, b, stride, pad, outsize, dilate, groups)


def dilated_convolution_2d(x, W, b=None, stride=1, pad=0, dilate=1, cover_all=False):
    """Two-dimensional convolution with spread windows: :func:`convolution_2d` with ``dilate``.

    See F. Yu and V. Koltun, Multi-scale context aggregation by dilated convolutions, ICLR 2016.
    """
    name = "dilated_convolution_2d"
    check(x.ndim == 4, name, "x must have 4 axes", x=x)
    return _convolution(name, x, W, b, stride, pad, cover_all, dilate, 1)


def depthwise_convolution_2d(x, W, b=None, stride=1, pad=0):
    """Two-dimensional convolution of each channel by itself, with D filters.

    y[n, c * D + d] is the convolution of x[n, c] with W[d, c].

    Args:
        x: Variable or array (N, C, H, W).
        W: Variable or array (D, C, kh, kw).
        b: Variable or array (C * D,), or None.
        stride, pad (int or pair of int): as in :func:`convolution_2d`.

    Returns:
        Variable (N, C * D, out_h, out_w).

    Raises:
        InvalidType: ranks or channels do not fit, a window is larger than the padded input, or the
            dtype of ``x`` is wider than that of ``W`` or ``b`` (see ``mpchain.mixed16``).

    See L. Sifre, Rigid-motion scattering for image classification, 2014.
    """
    name = "depthwise_convolution_2d"
    check(x.ndim == W.ndim == 4, name, "x and W must have 4 axes", x=x, W=W)
    multiplier, channels, *ksize = W.shape
    check(x.shape[1] == channels, name, "W must have as many channels as x", x=x, W=W)
    W = reshape(transpose(W, (1, 0, 2, 3)), (channels * multiplier, 1, *ksize))
    return _convolution(name, x, W, b, stride, pad, False, 1, channels)


def local_convolution_2d(x, W, b=None, stride=1):
    """Two-dimensional convolution with weights of its own at each place of the output.

    y[n, o, i, j] = b[o, i, j] + sum over c, k, l of
    W[o, i, j, c, k, l] x[n, c, i * stride + k, j * stride + l].

    Args:
        x: Variable or array (N, C, H, W).
        W: Variable or array (O, out_h, out_w, C, kh, kw).
        b: Variable or array (O, out_h, out_w), or None.
        stride (int or pair of int): the windows' distance.

    Returns:
        Variable (N, O, out_h, out_w).

    Raises:
        InvalidType: ranks or sizes do not fit.
    """
    name = "local_convolution_2d"
    ranks = x.ndim == 4 and W.ndim == 6 and x.shape[1] == W.shape[3]
    check(ranks, name, "x must be (N, C, H, W) and W (O, out_h, out_w, C, kh, kw)", x=x, W=W)
    floating = x.dtype.kind == W.dtype.kind == "f"
    check(floating, name, "x and W must be floating point", x=x, W=W)
    if differ(x, W, b):
        return mixed(name, local_convolution_2d, {"x": x}, {"W": W, "b": b}, stride=stride)
    (stride,) = spatial(name, 2, stride=stride)
    axes = zip(x.shape[2:], W.shape[4:], stride)
    sizes = tuple(get_conv_outsize(size, k, s, 0) for size, k, s in axes)
    fits = W.shape[1:3] == sizes and min(sizes) > 0
    check(fits, name, f"the windows in x are {sizes}; W must have weights for as many", x=x, W=W)
    columns = im2col(x, W.shape[4:], stride)
    size = math.prod(W.shape[3:])
    columns = reshape(columns, (x.shape[0], size, *sizes))
    y = einsum("nkij,oijk->noij", columns, reshape(W, (*W.shape[:3], size)))
    if b is None:
        return y
    check(b.shape == W.shape[:3], name, "b must have the first three axes of W", b=b, W=W)
    return y + b


def bilinear(e1, e2, W, V1=None, V2=None, b=None):
    """Bilinear map: y[n, l] = sum over j, k of e1[n, j] e2[n, k] W[j, k, l] + e1 V1 + e2 V2 + b.

    Args:
        e1, e2: Variables or arrays (N, ...), flattened to (N, J) and (N, K).
        W: Variable or array (J, K, L).
        V1, V2, b: Variables or arrays (J, L), (K, L) and (L,); all of them or none.

    Returns:
        Variable (N, L).

    Raises:
        InvalidType: sizes or dtypes do not fit.
        ValueError: some, but not all, of ``V1``, ``V2`` and ``b`` are given.

    See R. Socher et al., Reasoning with neural tensor networks for knowledge base completion,
    NIPS 2013.
    """
    given = [name for name, value in zip(("V1", "V2", "b"), (V1, V2, b)) if value is not None]
    if len(given) in (1, 2):
        raise ValueError(f"bilinear: V1, V2 and b must be given together, not {given} alone")
    rows = e1.ndim > 1 and e2.ndim > 1 and e1.shape[0] == e2.shape[0]
    check(rows, "bilinear", "e1 and e2 must have as many rows", e1=e1, e2=e2)
    e1, e2 = (reshape(e, (e.shape[0], math.prod(e.shape[1:]))) for e in (e1, e2))
    floating = e1.dtype.kind == e2.dtype.kind == W.dtype.kind == "f"
    check(floating, "bilinear", "e1, e2 and W must be floating point", e1=e1, e2=e2, W=W)
    if differ(e1, e2, W, V1, V2, b):
        parameters = {"W": W, "V1": V1, "V2": V2, "b": b}
        return mixed("bilinear", bilinear, {"e1": e1, "e2": e2}, parameters)
    fits = W.ndim == 3 and W.shape[:2] == (e1.shape[1], e2.shape[1])
    check(fits, "bilinear", "W must be (J, K, L) for e1 (N, J) and e2 (N, K)", e1=e1, e2=e2, W=W)
    y = einsum("nj,nk,jkl->nl", e1, e2, W)
    if not given:
        return y
    sizes = V1.shape, V2.shape, b.shape
    j, k, n_out = W.shape
    rule = "V1, V2 and b must be (J, L), (K, L) and (L,) for W (J, K, L)"
    check(sizes == ((j, n_out), (k, n_out), (n_out,)), "bilinear", rule, W=W, V1=V1, V2=V2, b=b)
    return y + linear(e1, transpose(V1)) + linear(e2, transpose(V2), b)


def _overlap(size, step):
    """Slices that pick from an axis what stays in it when it moves by ``step``, and put it back."""
    kept = max(size - abs(step), 0)
    if step >= 0:
        return slice(0, kept), slice(size - kept, size)
    return slice(size - kept, size), slice(0, kept)


@differentiable(
    lambda g, steps: _shift.on(g, tuple([(channels, -dy, -dx) for channels, dy, dx in steps]))
)
def _shift(x, steps):
    """Moves channels down and right by the steps given for them; zeros take their place."""
    y = get_array_module(x).zeros(x.shape, x.dtype)
    for channels, dy, dx in steps:
        (source_y, target_y), (source_x, target_x) = map(_overlap, x.shape[2:], (dy, dx))
        y[:, channels, target_y, target_x] = x[:, channels, source_y, source_x]
    return y


def shift(x, ksize=3, dilate=1):
    """Moves groups of channels in different directions: a convolution without weights.

    The channels are split into kh * kw equal groups, one for each place of a window; each moves to
    where its place lies from the center. The group of the center is the last, together with
    channels that are left over; the center's channels move as the last place says. Zeros move in.

    Args:
        x: Variable or array (N, C, H, W), floating point; C is at least kh * kw.
        ksize (int or pair of int): the window's size, odd.
        dilate (int or pair of int): by how much a place is moved per step from the center.

    Returns:
        Variable of the shape of ``x``.

    Raises:
        InvalidType: the rank is wrong, or there are too few channels.
        ValueError: ``ksize`` is even, or ``dilate`` is zero.

    See B. Wu et al., Shift: a zero FLOP, zero parameter alternative to spatial convolutions,
    CVPR 2018.
    """
    check(x.ndim == 4 and x.dtype.kind == "f", "shift", "x must be floating with 4 axes", x=x)
    (kh, kw), (dy, dx) = as_tuple(ksize, 2), as_tuple(dilate, 2)
    if kh % 2 != 1 or kw % 2 != 1 or min(kh, kw) < 1:
        raise ValueError(f"shift: ksize must be odd and positive, but is {ksize}")
    if 0 in (dy, dx):
        raise ValueError(f"shift: dilate must not be zero, but is {dilate}")
    n = kh * kw
    check(x.shape[1] >= n, "shift", f"x must have {n} channels or more", x=x, ksize=ksize)
    places = [((i - kh // 2) * dy, (j - kw // 2) * dx) for i in range(kh) for j in range(kw)]
    places[n // 2], places[-1] = places[-1], places[n // 2]
    size = x.shape[1] // n
    ends = [*range(size, n * size, size), x.shape[1]]
    steps = [(slice(i * size, end), *place) for i, (end, place) in enumerate(zip(ends, places))]
    return _shift(x, tuple(steps))
