"""Pooling: one value for each window of a spatial array."""

# ruff: noqa: PLW0108 (a derivative's parameter names say what it is given)

from mpchain import kernels
from mpchain.functions.declaration import differentiable
from mpchain.kernels.window import Window
from mpchain.utils.conv import get_conv_outsize, spatial
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


def _window(name, x, ksize, stride, pad, cover_all):
    n = x.ndim - 2
    check(n > 0, name, "x must have 3 axes or more", x=x)
    check(x.dtype.kind == "f", name, "x must be floating point", x=x)
    stride = ksize if stride is None else stride
    ksize, stride, pad = spatial(name, n, ksize=ksize, stride=stride, pad=pad)
    sizes = tuple(
        get_conv_outsize(size, k, s, p, cover_all)
        for size, k, s, p in zip(x.shape[2:], ksize, stride, pad)
    )
    check(min(sizes) > 0, name, f"the output size {sizes} must be positive", x=x, ksize=ksize)
    return Window(ksize, stride, pad, (1,) * n, 1, x.shape[2:], sizes)


# Windows as linear maps: the sum of each, and one chosen element of each; with their adjoints.


@differentiable(lambda g, window: _spread_windows.on(g, window))
def _sum_windows(x, window):
    return kernels.call("sum_windows", x, window)


@differentiable(lambda g, window: _sum_windows.on(g, window))
def _spread_windows(y, window):
    return kernels.call("spread_windows", y, window)


@differentiable(lambda g, places, window: _place_in_windows.on(g, places, window))
def _take_from_windows(x, places, window):
    return kernels.call("take_from_windows", x, places, window)


@differentiable(lambda g, places, window: _take_from_windows.on(g, places, window))
def _place_in_windows(y, places, window):
    return kernels.call("place_in_windows", y, places, window)


@differentiable(lambda g, aux, window: _place_in_windows.on(g, aux, window))
def _max_windows(x, window):
    return kernels.call("max_windows", x, window)


def max_pooling_nd(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """Maximum of each window; of equal elements, the first gets the gradient.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize (int or tuple of int): the window's size.
        stride (int or tuple of int): the windows' distance; None means ``ksize``.
        pad (int or tuple of int): elements added on both sides; they are never the maximum.
        cover_all (bool): place windows so that every element is covered.
        return_indices (bool): return also where in its window each maximum is.

    Returns:
        Variable (N, C, ...); with ``return_indices``, that and an array of integers of its shape.
    """
    return _max_pooling("max_pooling_nd", x, ksize, stride, pad, cover_all, return_indices)


def _max_pooling(name, x, ksize, stride, pad, cover_all, return_indices):
    window = _window(name, x, ksize, stride, pad, cover_all)
    y = _max_windows(x, window)
    if return_indices:
        return y, kernels.call("max_windows", as_variable(x).array, window)[1]
    return y


def max_pooling_2d(x, ksize, stride=None, pad=0, cover_all=True, return_indices=False):
    """Two-dimensional max pooling: :func:`max_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "max_pooling_2d", "x must have 4 axes", x=x)
    return _max_pooling("max_pooling_2d", x, ksize, stride, pad, cover_all, return_indices)


def average_pooling_nd(x, ksize, stride=None, pad=0, pad_value=0):
    """Mean of each window.

    Args:
        x: Variable or array (N, C, d1, d2, ...), floating point.
        ksize (int or tuple of int): the window's size.
        stride (int or tuple of int): the windows' distance; None means ``ksize``.
        pad (int or tuple of int): elements added on both sides.
        pad_value: 0 counts padded elements as zeros; None leaves them out of the mean.

    Returns:
        Variable (N, C, ...).
    """
    return _average_pooling("average_pooling_nd", x, ksize, stride, pad, pad_value)


def _average_pooling(name, x, ksize, stride, pad, pad_value):
    check(pad_value in (0, None), name, "pad_value must be 0 or None", pad_value=pad_value)
    window = _window(name, x, ksize, stride, pad, False)
    total = _sum_windows(x, window)
    if pad_value is None and any(window.pad):
        ones = total.xp.ones((1, 1, *x.shape[2:]), x.dtype)
        return total / kernels.call("sum_windows", ones, window)
    return total * (1 / window.n_elements)


def average_pooling_2d(x, ksize, stride=None, pad=0):
    """Two-dimensional average pooling: :func:`average_pooling_nd` of x (N, C, H, W)."""
    check(x.ndim == 4, "average_pooling_2d", "x must have 4 axes", x=x)
    return _average_pooling("average_pooling_2d", x, ksize, stride, pad, 0)
