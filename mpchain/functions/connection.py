"""Connections: products of inputs with weights."""

# ruff: noqa: PLW0108 (a derivative's parameter names say what it is given)

import numpy as np

from mpchain import kernels
from mpchain.functions.array import reshape
from mpchain.functions.declaration import differentiable
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize, get_deconv_outsize, spatial
from mpchain.utils.type_check import check


@differentiable(
    lambda g, W: np.matmul(g, W),
    lambda g, x: np.matmul(np.transpose(g), x),
)
def _linear(x, W):
    return kernels.call("linear", x, W, None)


@differentiable(
    lambda g, W: np.matmul(g, W),
    lambda g, x: np.matmul(np.transpose(g), x),
    lambda g: np.sum(g, axis=0),
)
def _linear_with_bias(x, W, b):
    return kernels.call("linear", x, W, b)


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
        InvalidType: sizes do not fit.
    """
    check(n_batch_axes >= 1, "linear", "n_batch_axes must be positive", n_batch_axes=n_batch_axes)
    check(x.ndim > n_batch_axes, "linear", "x must have more axes than n_batch_axes", x=x)
    batch_shape = x.shape[:n_batch_axes]
    if x.ndim != 2:
        n = 1
        for size in batch_shape:
            n *= size
        x = reshape(x, (n, x.size // n if n else W.shape[1]))
    floating = x.dtype.kind == W.dtype.kind == "f"
    check(floating, "linear", "x and W must be floating point", x=x, W=W)
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
    return kernels.call("convolution_output", x, W, window)


@differentiable(
    lambda gx, W, window: _convolution_output.on(gx, W, window),
    lambda gx, y, window: _convolution_filter.on(gx, y, window),
)
def _convolution_input(y, W, window):
    return kernels.call("convolution_input", y, W, window)


@differentiable(
    lambda gW, y, window: _convolution_input.on(y, gW, window),
    lambda gW, x, window: _convolution_output.on(x, gW, window),
)
def _convolution_filter(x, y, window):
    return kernels.call("convolution_filter", x, y, window)


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
        InvalidType: ranks or channels do not fit, or a window is larger than the padded input.
    """
    return _convolution("convolution_nd", x, W, b, stride, pad, cover_all, dilate, groups)


def _check_operands(name, x, W, groups):
    alike = x.ndim > 2 and W.ndim == x.ndim
    check(alike, name, "x and W must have the same rank, 3 or more", x=x, W=W)
    floating = x.dtype.kind == W.dtype.kind == "f"
    check(floating, name, "x and W must be floating point", x=x, W=W)
    check(groups >= 1, name, "groups must be positive", groups=groups)


def _convolution(name, x, W, b, stride, pad, cover_all, dilate, groups):
    n = x.ndim - 2
    _check_operands(name, x, W, groups)
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
