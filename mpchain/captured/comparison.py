"""Comparison of two recordings of a step, and of a step with its replay."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.captured.recorded import owner_of
from mpchain.captured.results import flatten
from mpchain.variable import Parameter, Variable

# A value that would be zero in exact arithmetic may differ by this number of rounding units.
_ROUNDINGS = 64


class _Known(NamedTuple):
    """A part of an array that the step created or received."""

    number: tuple[int, int]
    place: int
    strides: tuple
    shape: tuple
    dtype: np.dtype

    def __repr__(self) -> str:
        return f"an array {self.shape} that the step created or received"


class _Constant(NamedTuple):
    """An array that the recorded step did not create, and that is neither an argument nor state."""

    array: np.ndarray
    value: np.ndarray

    def __repr__(self) -> str:
        return f"an array {self.value.shape} made by means that are not recorded"


class Description:
    """The effects of a step, by which two recordings are compared. The description keeps no arrays
    that the step created.

    Args:
        calls: the calls that were recorded.
        known: groups of arrays, in the same order in each recording: arguments, state, and arrays
            that the step created.
        result: the step's result.
    """

    def __init__(self, calls: Sequence[Any], known: Sequence[Iterable[np.ndarray]], result: object):
        self._numbers = {
            id(owner_of(x)): (i, j) for i, arrays in enumerate(known) for j, x in enumerate(arrays)
        }
        self._copies: dict[int, np.ndarray] = {}
        self.calls = [
            (c.function, c.kind, *map(self._of, ((c.args, c.kwargs), c.results, _by_id(c.grads))))
            for c in calls
        ]
        structure, held = flatten(result)
        self.result = [structure, *map(self._of, held)]
        del self._numbers, self._copies

    def _of(self, value):
        if isinstance(value, np.ndarray):
            return self._of_array(value)
        if isinstance(value, Variable):
            return value if isinstance(value, Parameter) else self._of(value.array)
        if isinstance(value, dict):
            return {k: self._of(v) for k, v in value.items()}
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return [self._of(v) for v in value]
        return value

    def _of_array(self, array):
        owner = owner_of(array)
        number = self._numbers.get(id(owner))
        if number is None:
            if id(array) not in self._copies:
                self._copies[id(array)] = array.copy()
            return _Constant(array, self._copies[id(array)])
        place = _begin(array) - _begin(owner)
        return _Known(number, place, array.strides, array.shape, array.dtype)


def difference(first: Description, second: Description) -> str | None:
    """Returns a text that describes the difference between two recordings of a step; None if they
    agree.

    Example:
        >>> from mpchain.captured.comparison import Description, difference
        >>> difference(Description([], [], 1), Description([], [], 2))
        'it returns 1 in one step, 2 in another'
    """
    for a, b in zip(first.calls, second.calls):
        if a[:2] != b[:2]:
            return f"it calls {name_of(a[0])} in one step, {name_of(b[0])} in another"
        for what, x, y in zip((" gets", " writes", "'s optimizer gets"), a[2:], b[2:]):
            if reason := _differ(x, y):
                return f"{name_of(a[0])}{what} {reason}"
    if len(first.calls) != len(second.calls):
        return f"it makes {len(first.calls)} calls in one step, {len(second.calls)} in another"
    reason = _differ(first.result, second.result)
    return reason and f"it returns {reason}"


def _by_id(grads):
    return [(id(param), grad) for param, grad in grads]


def name_of(function: object) -> str:
    """Returns the name of a function, or its representation.

    Example:
        >>> from mpchain.captured.comparison import name_of
        >>> name_of(np.sum)
        'sum'
    """
    return getattr(function, "__name__", repr(function))


def _differ(a: Any, b: Any) -> str | None:
    if isinstance(a, _Constant) and isinstance(b, _Constant):
        return _constants_differ(a, b)
    if isinstance(a, _Known) and isinstance(b, _Known):
        if a[3:] != b[3:]:
            return f"{a.dtype} {a.shape} in one step, {b.dtype} {b.shape} in another"
        return None if a == b else f"in each step another array {a.shape}"
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return _differ(list(a.values()), list(b.values()))
    if type(a) is type(b) is list and len(a) == len(b):
        return next((reason for reason in map(_differ, a, b) if reason), None)
    try:
        is_same = a is b or (type(a) is type(b) and bool(a == b)) or (a != a and b != b)
    # The method __eq__ of a class may raise any error. Values that cannot be compared count as
    # different.
    except Exception:
        is_same = False
    return None if is_same else f"{a!r:.80} in one step, {b!r:.80} in another"


def _constants_differ(a, b):
    if (a.value.shape, a.value.dtype) != (b.value.shape, b.value.dtype):
        return (
            f"{a.value.dtype} {a.value.shape} in one step, "
            f"{b.value.dtype} {b.value.shape} in another"
        )
    if are_same(a.value, b.value):
        return None
    if a.array is b.array:
        return f"an array {a.value.shape} that is changed by means that are not recorded"
    return (
        f"an array {a.value.shape} that was made by means that are not recorded, or that is "
        "replaced in each step"
    )


def are_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two arrays have equal elements; NaN equals NaN.

    Example:
        >>> from mpchain.captured.comparison import are_same
        >>> are_same(np.array([1, np.nan]), np.array([1, np.nan]))
        True
    """
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def are_all_close(
    found: Sequence, expected: Sequence, of_one_size: bool = False, scale: float = 0.0
) -> bool:
    """Returns whether the arrays of a replay equal the arrays of the step up to rounding. Elements
    of both lists may be None.

    Values that would be zero in exact arithmetic are compared relative to the magnitude of the
    other values.

    Args:
        found, expected: the arrays of the replay, and of the step.
        of_one_size: whether the tolerance for arrays of small values is that of arrays of large
            values, because GPUs may add in a different order in each step.
        scale: the magnitude of values that are not in the lists and count as other values.

    Example:
        >>> from mpchain.captured.comparison import are_all_close
        >>> are_all_close([np.ones(2), None], [np.ones(2) + 1e-12, None])
        True
    """
    sizes = [0.0 if x is None else _size(x) for x in expected]
    scale = max(scale, *sizes, 0.0)
    sizes = [scale] * len(sizes) if of_one_size else sizes
    return len(found) == len(expected) and all(
        _are_close(x, y, size, scale) for x, y, size in zip(found, expected, sizes)
    )


def _are_close(found, expected, size, scale):
    if found is None or expected is None:
        return found is expected
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if np.array_equal(found, expected):
        return True
    if expected.dtype.kind in "biuSUmM":
        return False
    eps = _eps(expected.dtype)
    tolerance = math.sqrt(eps)
    found, expected = _computable(found), _computable(expected)
    atol = max(size * tolerance, _ROUNDINGS * eps * scale)
    return np.allclose(found, expected, rtol=tolerance, atol=atol, equal_nan=True)


def _eps(dtype):
    if dtype.kind in "fc":
        return float(np.finfo(dtype).eps)
    return 2.0**-7  # this is the precision of bfloat16, which narrower dtypes get too


def _computable(array):
    return array if array.dtype.kind in "fc" else array.astype(np.float32)


def size_of(arrays: Iterable) -> float:
    """Returns the largest magnitude of finite values in arrays, some of which may be None.

    Example:
        >>> from mpchain.captured.comparison import size_of
        >>> size_of([np.array([1.0, -2.0]), None])
        2.0
    """
    return max((_size(x) for x in arrays if x is not None), default=0.0)


def _size(array):
    if array.dtype.kind in "SUmMO":
        return 0.0
    sizes = np.abs(_computable(array))
    return float(np.max(sizes[np.isfinite(sizes)], initial=0))


def _begin(array):
    return array.__array_interface__["data"][0]
