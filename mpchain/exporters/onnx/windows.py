"""Converts convolutions, pooling and other functions of windows to nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.exporters.onnx.functions import pad, static
from mpchain.exporters.onnx.graph import Value, registering
from mpchain.kernels.window import layout

CONVERTERS: dict[str, Callable[..., Any]] = {}
"""Maps the name of a declared function to its converter."""

_of = registering(CONVERTERS)


def _pads(window):
    """Returns the numbers of padded elements before and after each axis."""
    sizes = zip(layout(window).padded_size, window.pad, window.in_size)
    return list(window.pad), [padded - p - n for padded, p, n in sizes]


def _geometry(window, *, has_groups=False):
    options = {"strides": list(window.stride), "dilations": list(window.dilate)}
    options["kernel_shape"] = list(window.ksize)
    return options | ({"group": window.groups} if has_groups else {})


def _padded(g, x, window, value):
    """Pads x where needed; returns x and the padding that the operator must still apply."""
    begins, ends = _pads(window)
    reach = [(k - 1) * d + 1 for k, d in zip(window.ksize, window.dilate)]
    if all(max(pair) < n for *pair, n in zip(begins, ends, reach)):
        return x, [*begins, *ends]
    axes = range(2, x.ndim)  # operators refuse padding as large as the window
    return pad(g, x, [*zip(begins, ends)], value, axes), [0] * 2 * len(begins)


@_of("convolution_output", "convolution_with_bias")
def _convolution_output(g, x, *parameters):
    *parameters, window = parameters
    x, pads = _padded(g, x, window, 0)
    return g.add("Conv", x, *parameters, pads=pads, **_geometry(window, has_groups=True))


@_of("convolution_input")
def _convolution_input(g, y, W, window):
    return _spread(g, y, W, window)


def _spread(g, y, W, window, groups=None):
    """Adds a transposed convolution: elements of y, times filters, summed into their windows."""
    options = _geometry(window) | {"group": groups or window.groups}
    crops, lacks = [], []
    axes = zip(window.in_size, window.out_size, *window[:4])
    for size, n, k, s, p, d in axes:
        rest = (n - 1) * s + (k - 1) * d + 1 - p - size
        crops.append(max(rest, 0))
        lacks.append(max(-rest, 0))
    x = g.add("ConvTranspose", y, W, pads=[*window.pad, *crops], **options)
    if not any(lacks):
        return x
    x = Value(g, x, (), y.dtype)
    return pad(g, x, [(0, n) for n in lacks], 0, range(2, y.ndim))


@_of("sum_windows")
def _sum_windows(g, x, window):
    rows, pads = _padded(g, x, window, 0)
    options = _geometry(window) | {"pads": pads, "count_include_pad": 1}
    y = g.add("AveragePool", rows, **options)
    return g.add("Mul", y, np.array(window.n_elements, x.dtype))


@_of("spread_windows")
def _spread_windows(g, y, window):
    (n,) = static("the number of channels", y.shape[1])
    return _spread(g, y, np.ones((n, 1, *window.ksize), y.dtype), window, n)


@_of("max_windows")
def _max_windows(g, x, window):
    rows, pads = _padded(g, x, window, -np.inf)
    return g.add("MaxPool", rows, **_geometry(window), pads=pads)


def _unit_filters(n, window, dtype):
    """Returns, for each of n channels and each element of a window, a filter that selects it."""
    picks = np.eye(window.n_elements, dtype=dtype).reshape(-1, 1, *window.ksize)
    return np.tile(picks, (n, *[1] * (picks.ndim - 1)))


@_of("unfold_windows")
def _unfold_windows(g, x, window):
    """Converts x (N, C, ...) to its windows (N, C, n_elements, *out_size)."""
    (n,) = static("the number of channels", x.shape[1])
    rows, pads = _padded(g, x, window, 0)
    W = _unit_filters(n, window, x.dtype)
    y = g.add("Conv", rows, W, pads=pads, **_geometry(window) | {"group": n})
    return g.reshape(y, [x.shape[0], n, window.n_elements, *window.out_size])


@_of("fold_windows")
def _fold_windows(g, y, window):
    (n,) = static("the number of channels", y.shape[1])
    shape = y.shape[0], n * window.n_elements, *window.out_size
    rows = Value(g, g.reshape(y, shape), shape, y.dtype)
    return _spread(g, rows, _unit_filters(n, window, y.dtype), window, n)
