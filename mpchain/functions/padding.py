"""Padding of the axes of an array."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions import reduction
from mpchain.functions.array import broadcast_to
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.joining import concat
from mpchain.functions.resampling import map_axis
from mpchain.typing import Input
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_variable

_LARGE = 1 << 13  # filling only the ends takes longer in arrays with fewer elements
_ALLOWED = {
    "constant": {"constant_values": 0},
    **{mode: {} for mode in ("edge", "wrap")},
    **{mode: {"reflect_type": "even"} for mode in ("reflect", "symmetric")},
    **{mode: {"stat_length": None} for mode in ("mean", "maximum", "minimum")},
    "linear_ramp": {"end_values": 0},
}


@differentiable(lambda g, x_shape, widths: g[_inner(x_shape, widths)])
def _pad_with_constants(x, widths, values):
    if x.__class__ is np.ndarray and len({value for pair in values for value in pair}) == 1:
        # On small arrays, this code takes less time than NumPy's pad.
        shape, value = [a + n + b for n, (a, b) in zip(x.shape, widths)], values[0][0]
        y = np.empty(shape, x.dtype) if x.size >= _LARGE else np.full(shape, value, x.dtype)
        if x.size >= _LARGE:
            _fill_ends(y, widths, value)
        y[_inner(x.shape, widths)] = x
        return y
    return get_array_module(x).pad(x, widths, "constant", constant_values=values)


def _fill_ends(y, widths, value):
    for axis, (before, after) in enumerate(widths):
        lead = (slice(None),) * axis
        y[(*lead, slice(before))] = value
        y[(*lead, slice(y.shape[axis] - after, None))] = value


def _inner(shape, widths):
    return tuple(slice(before, before + n) for n, (before, _) in zip(shape, widths))


def pad(
    x: Input, pad_width: int | Sequence[int] | Sequence[Sequence[int]], mode: str, **keywords: Any
) -> Variable:
    """Pads both ends of each axis like :func:`numpy.pad`.

    Args:
        x: Variable or array.
        pad_width: number of elements: an integer, a pair (before, after), or a pair for each axis.
        mode: the kind of padding: ``'constant'``, ``'edge'``, ``'reflect'``, ``'symmetric'``,
            ``'wrap'``, ``'mean'``, ``'linear_ramp'``, ``'maximum'`` or ``'minimum'``.
        keywords: options of the mode, as in NumPy: ``constant_values``, ``reflect_type``,
            ``stat_length``, ``end_values``.

    Returns:
        Variable.

    Raises:
        InvalidType: ``pad_width`` has pairs for another number of axes than ``x`` has, or is
            negative, or the mode needs floating point, which ``x`` is not.
        ValueError: the mode or an option is unknown, or an axis to pad is empty, in a mode other
            than ``'constant'``.

    Example:
        >>> pad(np.arange(3.0), 2, "reflect").array.tolist()
        [2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]
    """
    x = as_variable(x)
    widths = _per_axis("pad_width", pad_width, x.ndim)
    whole = all([isinstance(n, int) and n >= 0 for pair in widths for n in pair])
    rule = "pad_width must hold integers that are not negative"
    check(whole, "pad", rule, x=x, pad_width=pad_width)
    options = _options(mode, keywords)
    if mode == "constant":
        values = _per_axis("constant_values", options["constant_values"], x.ndim)
        return _pad_with_constants(x, widths, values)
    settings = {k: _per_axis(k, v, x.ndim) for k, v in options.items()}
    for axis, width in enumerate(widths):
        if width != (0, 0):
            if x.shape[axis] == 0:
                raise ValueError(f"pad: axis {axis} is empty: mode {mode!r} has nothing to repeat")
            x = _pad_axis(x, axis, width, mode, {k: v[axis] for k, v in settings.items()})
    return x


def _options(mode, keywords):
    if mode not in _ALLOWED:
        raise ValueError(f"pad: mode must be one of {', '.join(_ALLOWED)}, not {mode!r}")
    unknown = set(keywords) - set(_ALLOWED[mode])
    if unknown:
        raise ValueError(f"pad: mode {mode!r} takes no keyword {min(unknown)!r}")
    options = _ALLOWED[mode] | keywords
    kind = options.get("reflect_type", "even")
    if kind not in ("even", "odd"):
        raise ValueError(f"pad: reflect_type must be 'even' or 'odd', not {kind!r}")
    return options


def _per_axis(name, value, n):
    """Returns a pair (before, after) for each axis; None and strings are repeated for all axes."""
    if value is None or isinstance(value, str):
        return (value,) * n
    if value.__class__ is int:  # NumPy would take 5 microseconds
        return ((value, value),) * n
    try:
        pairs = np.broadcast_to(np.asarray(value), (n, 2))
    except ValueError:
        fail("pad", f"{name} must be a number, a pair, or {n} pairs", **{name: value})
    return tuple(map(tuple, pairs.tolist()))


def _pad_axis(x, axis, width, mode, settings):
    """Pads one axis. The padding of an axis includes the elements that were added along earlier
    axes, as in NumPy."""
    size = x.shape[axis]
    if mode in ("mean", "linear_ramp") or settings.get("reflect_type") == "odd":
        return _pad_by_matrix(x, axis, width, mode, settings)
    if mode in ("maximum", "minimum"):
        return _pad_by_extremes(x, axis, width, mode, **settings)
    places = np.pad(np.arange(size), width, mode)
    lead = (slice(None),) * axis
    parts = [x]
    for at_front, ends in ((True, places[: width[0]]), (False, places[width[0] + size :])):
        if len(ends):
            part = get_item(x, (*lead, _as_slice(ends, x)))
            parts = [part, *parts] if at_front else [*parts, part]
    return concat(parts, axis)


def _pad_by_extremes(x, axis, width, mode, stat_length):
    extreme = reduction.max if mode == "maximum" else reduction.min
    lead, size = (slice(None),) * axis, x.shape[axis]
    before, after = (size, size) if stat_length is None else stat_length
    places = (slice(0, before), slice(max(size - after, 0), size))
    parts = []
    for n, place in zip(width, places):
        value = extreme(get_item(x, (*lead, place)), axis, keepdims=True)
        parts.append(broadcast_to(value, (*x.shape[:axis], n, *x.shape[axis + 1 :])))
    return concat([parts[0], x, parts[1]], axis)


def _as_slice(places, x):
    """Returns evenly spaced indices as a slice, whose gradient takes less time; other indices are
    returned unchanged."""
    steps = set(np.diff(places).tolist()) or {1}
    if len(steps) > 1 or 0 in steps:
        return x.xp.asarray(places)
    (step,) = steps
    end = int(places[-1]) + step
    return slice(int(places[0]), None if end < 0 else end, step)


def _pad_by_matrix(x, axis, width, mode, settings):
    rule = "for mode {mode!r}, x must be floating point"
    check(is_floating(x.dtype), "pad", rule, x=x, mode=mode)
    matrix, constant = _matrix(x.shape[axis], width, mode, **settings)
    y = map_axis(x, matrix, axis)
    if not constant.any():
        return y
    constant = constant.reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return y + x.xp.asarray(constant, x.dtype)


@functools.lru_cache(maxsize=256)
def _matrix(size, width, mode, **settings):
    """Returns the matrix and the constant vector of the affine map by which an axis is padded."""
    constant = np.pad(np.zeros(size), width, mode, **settings)
    columns = [np.pad(unit, width, mode, **settings) - constant for unit in np.eye(size)]
    return np.stack(columns, 1), constant
