"""Image functions: windows as channels, resizing, and spatial transformers."""

import math
from collections.abc import Sequence

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions import resampling
from mpchain.functions.array import cast, reshape, transpose, widened
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.pooling import unpooling_nd
from mpchain.functions.reduction import sum
from mpchain.functions.windows import windows_over
from mpchain.typing import Input, Sizes
from mpchain.utils.conv import spatial
from mpchain.utils.type_check import check, is_real
from mpchain.variable import Variable, as_array, as_variable


@differentiable(lambda g, window: _fold_windows.on(g, window))
def _unfold_windows(x, window):
    return kernels.unfold_windows(x, window)


@differentiable(lambda g, window: _unfold_windows.on(g, window))
def _fold_windows(y, window):
    return kernels.fold_windows(y, window)


def im2col(
    x: Input,
    ksize: Sizes,
    stride: Sizes = 1,
    pad: Sizes = 0,
    cover_all: bool = False,
    dilate: Sizes = 1,
) -> Variable:
    """Moves the elements of each window to the channel axis.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        ksize, stride, dilate: size, stride and dilation of the windows.
        pad: number of zeros on each side of a spatial axis.
        cover_all: whether to add a last window, so that windows cover all elements.

    Returns:
        Variable (N, C * kh * kw, out_h, out_w).

    Raises:
        InvalidType: ``x`` is not floating point with 4 axes, or a window is larger than the padded
            image.

    Example:
        >>> F.im2col(np.zeros((2, 3, 8, 8)), 3, pad=1).shape
        (2, 27, 8, 8)
    """
    check(x.ndim == 4 and is_floating(x.dtype), "im2col", "x must be floating, with 4 axes", x=x)
    window = windows_over("im2col", x, ksize, stride, pad, dilate, cover_all=cover_all)
    y = _unfold_windows(x, window)
    return reshape(y, (x.shape[0], x.shape[1] * window.n_elements, *window.out_size))


def resize_images(
    x: Input, output_shape: Sizes, *, mode: str = "bilinear", align_corners: bool = True
) -> Variable:
    """Resizes images.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        output_shape: the new height and width.
        mode: ``'bilinear'`` interpolation, or ``'nearest'`` element.
        align_corners: for ``'bilinear'``, whether to align the centers of the corner pixels of both
            images; if False, the outer corners of these pixels are aligned.

    Returns:
        Variable (N, C, *output_shape).

    Raises:
        InvalidType: ``x`` is not floating point with 4 axes, or a size is not positive.
        ValueError: ``mode`` is unknown.

    Example:
        >>> F.resize_images(np.array([[[[0.0, 1.0]]]]), (1, 3)).array
        array([[[[0. , 0.5, 1. ]]]])
    """
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"resize_images: mode must be 'bilinear' or 'nearest', not {mode!r}")
    fits = x.ndim == 4 and is_floating(x.dtype)
    check(fits, "resize_images", "x must be floating with 4 axes", x=x)
    (sizes,) = spatial("resize_images", 2, output_shape=output_shape)
    return _resize("resize_images", x, sizes, (None, None), mode, align_corners)


_NDIM = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}
_MODES = ("nearest", "nearest-exact", "area", *_NDIM)


def _resize(name, x, sizes, scales, mode, align_corners):
    """Resamples the spatial axes one after the other. A scale of None means the quotient of the new
    size and the old size."""
    x = as_variable(x)
    check(min(x.shape[2:]) > 0, name, "the spatial axes of x must not be empty", x=x)
    factors = [size // old for size, old in zip(sizes, x.shape[2:])]
    whole = tuple(old * factor for old, factor in zip(x.shape[2:], factors)) == sizes
    if mode.startswith("nearest") and whole and scales in ((None,) * len(sizes), tuple(factors)):
        return unpooling_nd(x, factors, cover_all=False)
    for axis, (size, scale) in enumerate(zip(sizes, scales), 2):
        old = x.shape[axis]
        if mode.startswith("nearest"):
            index = np.arange(size) + (0.5 if mode == "nearest-exact" else 0.0)
            index = np.floor(index / scale) if scale else index * old // size
            index = index.astype(np.intp).clip(0, old - 1)
            matrix = resampling.index_matrix(old, tuple(index.tolist()))
        elif mode == "area":
            matrix = resampling.bins_matrix(old, size)
        else:
            make = resampling.cubic_matrix if mode == "bicubic" else resampling.linear_matrix
            matrix = make(old, size, scale or size / old, bool(align_corners))
        x = resampling.map_axis(x, matrix, axis)
    return x


def interpolate(
    x: Input,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Variable:
    """Resizes signals, images or volumes like ``torch.nn.functional.interpolate``.

    Args:
        x: Variable or array (N, C, d1, ...), floating point.
        size: the new spatial size.
        scale_factor: the factor on the spatial size, instead of ``size``.
        mode: ``'nearest'``, ``'nearest-exact'`` or ``'area'``, for any number of axes;
            ``'linear'`` for one spatial axis, ``'bilinear'`` and ``'bicubic'`` for two,
            ``'trilinear'`` for three.
        align_corners: for the linear and cubic modes, whether to align the centers of the corner
            pixels; if False, the outer corners of these pixels are aligned.

    Returns:
        Variable (N, C, *size).

    Raises:
        InvalidType: the rank of ``x`` does not match ``mode``, or ``size`` or ``scale_factor`` does
            not match ``x``.
        ValueError: ``mode`` is unknown, or ``size`` and ``scale_factor`` are both given or both
            missing.

    Example:
        >>> F.interpolate(np.array([[[1.0, 2.0]]]), scale_factor=2).array
        array([[[1., 1., 2., 2.]]])

    See R. Keys, Cubic convolution interpolation for digital image processing, 1981.
    """
    if mode not in _MODES:
        raise ValueError(f"interpolate: mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: give either size or scale_factor: {size=}, {scale_factor=}")
    check(
        x.ndim > 2 and is_floating(x.dtype), "interpolate", "x must be floating, (N, C, ...)", x=x
    )
    ndim = _NDIM.get(mode, x.ndim)
    rule = "for mode {mode!r}, x must have {ndim} axes"
    check(x.ndim == ndim, "interpolate", rule, x=x, mode=mode, ndim=ndim)
    n = x.ndim - 2
    if size is not None:
        (sizes,), scales = spatial("interpolate", n, size=size), (None,) * n
    else:
        scales = (scale_factor,) * n if is_real(scale_factor) else tuple(scale_factor or ())
        rule = "scale_factor must be one positive number, or one for each spatial axis ({n})"
        positive = len(scales) == n and min(scales) > 0
        check(positive, "interpolate", rule, scale_factor=scale_factor, n=n)
        sizes = tuple(math.floor(old * scale) for old, scale in zip(x.shape[2:], scales))
        rule = "the output size {sizes} must be positive"
        check(min(sizes) > 0, "interpolate", rule, x=x, sizes=sizes)
    return _resize("interpolate", x, sizes, scales, mode, align_corners)


def spatial_transformer_grid(theta: Input, output_shape: Sizes) -> Variable:
    """Applies an affine transformation to the points of a regular grid.

    The grid covers [-1, 1] in both directions. A point (x, y) is mapped to theta (x, y, 1)^T.

    Args:
        theta: Variable or array (N, 2, 3), floating point.
        output_shape: height and width of the grid.

    Returns:
        Variable (N, 2, H, W): the x and the y coordinates.

    Raises:
        InvalidType: the shape or dtype of ``theta`` is wrong.

    Example:
        >>> F.spatial_transformer_grid(np.eye(2, 3)[None], (2, 3)).array[0, 0]
        array([[-1.,  0.,  1.],
               [-1.,  0.,  1.]])

    See M. Jaderberg et al., Spatial transformer networks, NIPS 2015.
    """
    name = "spatial_transformer_grid"
    theta = as_variable(theta)
    fits = theta.ndim == 3 and theta.shape[1:] == (2, 3) and is_floating(theta.dtype)
    check(fits, name, "theta must be floating point of shape (N, 2, 3)", theta=theta)
    ((h, w),) = spatial(name, 2, output_shape=output_shape)
    y, x = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    points = theta.xp.asarray(np.stack([x, y, np.ones((h, w))]).reshape(3, h * w), theta.dtype)
    return reshape(np.matmul(theta, points), (theta.shape[0], 2, h, w))


def _corners(u, size):
    """Returns the indices of the two elements next to each position on an axis, and whether each of
    these elements exists."""
    xp = get_array_module(u)
    # NaN has no neighbors; the weights propagate the NaN.
    first = xp.nan_to_num(xp.floor(u.clip(-2, size + 1)), nan=-2.0)
    corners = xp.stack([first, first + 1])
    return corners, (corners >= 0) & (corners < size)


def spatial_transformer_sampler(x: Input, grid: Input) -> Variable:
    """Samples images at the points of a grid by bilinear interpolation. Pixels outside of the image
    are zero.

    The centers of the corner pixels are at -1 and 1. Both images and grid receive gradients.

    Args:
        x: Variable or array (N, C, H, W), floating point.
        grid: Variable or array (N, 2, out_h, out_w), of the dtype of ``x``: x and y coordinates.

    Returns:
        Variable (N, C, out_h, out_w).

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> grid = F.spatial_transformer_grid(np.eye(2, 3)[None], (1, 3))
        >>> F.spatial_transformer_sampler(np.arange(9.0).reshape(1, 1, 3, 3), grid).array
        array([[[[0., 1., 2.]]]])

    See M. Jaderberg et al., Spatial transformer networks, NIPS 2015.
    """
    name = "spatial_transformer_sampler"
    x, grid = as_variable(x), as_variable(grid)
    check(x.ndim == 4 and is_floating(x.dtype), name, "x must be floating point with 4 axes", x=x)
    fits = grid.ndim == 4 and grid.shape[:2] == (len(x), 2) and grid.dtype == x.dtype
    check(fits, name, "grid must be of shape (N, 2, H, W) and of the dtype of x", grid=grid, x=x)
    n, c, h, w = x.shape
    dtype, xp, out = x.dtype, x.xp, grid.shape[2:]
    x, grid = widened(x), widened(grid)
    to_pixels = xp.asarray([[w - 1], [h - 1]], grid.dtype) / 2
    positions = (reshape(grid, (n, 2, math.prod(out))) + 1) * to_pixels
    u, v = positions[:, 0], positions[:, 1]
    columns, has_column = _corners(as_array(u), w)
    rows, has_row = _corners(as_array(v), h)
    # The arrays have the axes (upper or lower, left or right, N, points). At the center of a pixel,
    # the derivative toward larger coordinates is used.
    signs = xp.asarray([[[-1]], [[1]]], x.dtype)
    weights = ((v - rows) * signs + 1)[:, None] * ((u - columns) * signs + 1)[None]
    inside = has_row[:, None] & has_column[None]
    places = (rows[:, None] * w + columns[None]).astype(np.intp)
    places = xp.where(inside, places + (xp.arange(n) * (h * w))[:, None], 0)
    pixels = reshape(transpose(x, (0, 2, 3, 1)), (n * h * w, c))
    values = get_item(pixels, places) * (weights * inside.astype(x.dtype))[..., None]
    y = transpose(sum(values, (0, 1)), (0, 2, 1))
    return cast(reshape(y, (n, c, *out)), dtype)
