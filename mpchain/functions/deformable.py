"""Convolution with windows whose elements are moved."""

import math

import numpy as np

from mpchain.functions.array import cast, reshape
from mpchain.functions.contraction import matmul
from mpchain.functions.image import spatial_transformer_sampler
from mpchain.functions.padding import pad as pad_with
from mpchain.functions.precision import differ, mixed
from mpchain.utils.conv import get_conv_outsize, spatial
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


def _starts(ksize, stride, sizes):
    """The rows and columns of all windows' elements where they are not moved, as (2, k, places)."""
    axes = [np.arange(k)[:, None] + np.arange(o) * s for k, s, o in zip(ksize, stride, sizes)]
    shape = (*ksize, *sizes)
    rows = np.broadcast_to(axes[0][:, None, :, None], shape)
    columns = np.broadcast_to(axes[1][None, :, None, :], shape)
    return np.stack([columns, rows]).reshape(2, ksize[0] * ksize[1], sizes[0] * sizes[1])


def deformable_convolution_2d_sampler(x, offset, W, b=None, stride=1, pad=0):
    """Two-dimensional convolution in which each element of each window is moved by an offset.

    Elements between pixels are interpolated linearly; outside there are zeros. Gradients flow to
    the offsets too.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        offset: Variable or array (N, 2 * kh * kw, out_h, out_w): for each element of the window,
            row by row, by how many pixels it moves right; then the same for down.
        W: Variable or array (O, C, kh, kw).
        b: Variable or array (O,), or None.
        stride, pad (int or pair of int): as in :func:`convolution_2d`.

    Returns:
        Variable (N, O, out_h, out_w).

    Raises:
        InvalidType: a shape or dtype does not fit.

    See J. Dai et al., Deformable convolutional networks, ICCV 2017.
    """
    name = "deformable_convolution_2d_sampler"
    x, offset, W = as_variable(x), as_variable(offset), as_variable(W)
    ranks = x.ndim == W.ndim == 4 and x.shape[1] == W.shape[1]
    check(ranks, name, "x must be (N, C, H, W) and W (O, C, kh, kw)", x=x, W=W)
    floating = x.dtype.kind == offset.dtype.kind == W.dtype.kind == "f"
    rule = "x, offset and W must be floating point"
    check(floating, name, rule, x=x, offset=offset, W=W)
    if differ(x, offset, W, b):
        inputs, parameters = {"x": x, "offset": offset}, {"W": W, "b": b}
        function = deformable_convolution_2d_sampler
        return mixed(name, function, inputs, parameters, stride=stride, pad=pad)
    stride, pad = spatial(name, 2, stride=stride, pad=pad)
    n, n_out, ksize = x.shape[0], W.shape[0], W.shape[2:]
    axes = zip(x.shape[2:], ksize, stride, pad)
    sizes = tuple(get_conv_outsize(size, k, s, p) for size, k, s, p in axes)
    check(min(sizes) > 0, name, f"the output size {sizes} must be positive", x=x, W=W)
    shape = (n, 2 * ksize[0] * ksize[1], *sizes)
    check(offset.shape == shape, name, f"offset must be of shape {shape}", offset=offset)
    if b is not None:
        check(b.shape == (n_out,), name, "b must have one element per output channel", b=b, W=W)
    dtype = x.dtype
    if dtype == np.float16:  # too coarse for positions
        x, offset = cast(x, np.float32), cast(offset, np.float32)
    # One more row and column: the sampler counts from -1 to 1, for which there must be two.
    x = pad_with(x, ((0, 0), (0, 0), *((p, p + 1) for p in pad)), "constant")
    starts = x.xp.asarray(_starts(ksize, stride, sizes), x.dtype)
    ends = x.xp.asarray([[[x.shape[3] - 1]], [[x.shape[2] - 1]]], x.dtype)
    grid = (reshape(offset, (n, *starts.shape)) + starts) * (2 / ends) - 1
    samples = cast(spatial_transformer_sampler(x, grid), dtype)
    size = math.prod(W.shape[1:])
    samples = reshape(samples, (n, size, samples.shape[3]))
    y = reshape(matmul(reshape(W, (n_out, size)), samples), (n, n_out, *sizes))
    return y if b is None else y + reshape(b, (1, n_out, 1, 1))
