"""Deformable convolution."""

import math

import numpy as np

from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import cast, reshape, widened
from mpchain.functions.contraction import matmul
from mpchain.functions.declaring.precision import differ, mixed
from mpchain.functions.image import spatial_transformer_sampler
from mpchain.functions.padding import pad as pad_with
from mpchain.functions.windows import windows_over
from mpchain.typing import Input, Sizes
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable


def _starts(ksize, stride, sizes):
    """Returns the column and row indices of the elements of all windows without offsets, as an
    array (2, kh * kw, number of windows)."""
    axes = [np.arange(k)[:, None] + np.arange(o) * s for k, s, o in zip(ksize, stride, sizes)]
    shape = (*ksize, *sizes)
    rows = np.broadcast_to(axes[0][:, None, :, None], shape)
    columns = np.broadcast_to(axes[1][None, :, None, :], shape)
    return np.stack([columns, rows]).reshape(2, ksize[0] * ksize[1], sizes[0] * sizes[1])


def deformable_convolution_2d_sampler(
    x: Input, offset: Input, W: Input, b: Input | None = None, stride: Sizes = 1, pad: Sizes = 0
) -> Variable:
    """Two-dimensional deformable convolution: each element of each window has an offset.

    Values between pixels are interpolated linearly; outside of the image, values are zero. The
    offsets receive gradients too.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        offset: Variable or array (N, 2 * kh * kw, out_h, out_w): the horizontal offset in pixels of
            each element of the window, row by row; then the vertical offsets.
        W: Variable or array (O, C, kh, kw).
        b: Variable or array (O,), or None.
        stride, pad: as in :func:`convolution_2d`.

    Returns:
        Variable (N, O, out_h, out_w).

    Raises:
        InvalidType: a shape or dtype does not match the other arguments.

    Example:
        >>> x, offset, W = np.zeros((2, 3, 8, 8)), np.zeros((2, 18, 6, 6)), np.zeros((5, 3, 3, 3))
        >>> F.deformable_convolution_2d_sampler(x, offset, W).shape
        (2, 5, 6, 6)

    See J. Dai et al., Deformable convolutional networks, ICCV 2017.
    """
    name = "deformable_convolution_2d_sampler"
    x, offset, W = as_variable(x), as_variable(offset), as_variable(W)
    ranks = x.ndim == W.ndim == 4 and x.shape[1] == W.shape[1]
    check(ranks, name, "x must be (N, C, H, W) and W (O, C, kh, kw)", x=x, W=W)
    floating = is_floating(x.dtype, offset.dtype, W.dtype)
    rule = "x, offset and W must be floating point"
    check(floating, name, rule, x=x, offset=offset, W=W)
    if differ(x, offset, W, b):
        inputs, parameters = {"x": x, "offset": offset}, {"W": W, "b": b}
        function = deformable_convolution_2d_sampler
        return mixed(name, function, inputs, parameters, stride=stride, pad=pad)
    n, n_out = x.shape[0], W.shape[0]
    window = windows_over(name, x, W.shape[2:], stride, pad, W=W)
    sizes, shape = window.out_size, (n, 2 * window.n_elements, *window.out_size)
    rule = "offset must be of shape {shape}"
    check(offset.shape == shape, name, rule, offset=offset, shape=shape)
    if b is not None:
        check(b.shape == (n_out,), name, "b must have one element per output channel", b=b, W=W)
    dtype, x, offset = x.dtype, widened(x), widened(offset)
    # spatial_transformer_sampler takes coordinates in [-1, 1]. Scaling to this range requires at
    # least two rows and columns, so the padding has one extra row and column.
    x = pad_with(x, ((0, 0), (0, 0), *((p, p + 1) for p in window.pad)), "constant")
    starts = x.xp.asarray(_starts(window.ksize, window.stride, sizes), x.dtype)
    ends = x.xp.asarray([[[x.shape[3] - 1]], [[x.shape[2] - 1]]], x.dtype)
    grid = (reshape(offset, (n, *starts.shape)) + starts) * (2 / ends) - 1
    samples = cast(spatial_transformer_sampler(x, grid), dtype)
    size = math.prod(W.shape[1:])
    samples = reshape(samples, (n, size, samples.shape[3]))
    y = reshape(matmul(reshape(W, (n_out, size)), samples), (n, n_out, *sizes))
    return y if b is None else y + reshape(b, (1, n_out, 1, 1))
