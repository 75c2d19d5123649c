"""Functions that walk and rebuild the results of a step, which are nested values."""

import copy
import dataclasses
import enum
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mpchain.captured.recorded import plain
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.parameter_tree import is_array as is_array
from mpchain.variable import Variable

_UNCHANGED = (Link, Optimizer, type, np.dtype, enum.Enum, types.FunctionType, types.ModuleType)
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range)


def overlapping(arrays: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of indices of different NumPy arrays that may share memory.

    Example:
        >>> from mpchain.captured.results import overlapping
        >>> x = np.ones(3)
        >>> overlapping([x[:-1], x[1:], np.ones(3)])
        ((0, 1),)
    """
    on_host = [(i, x) for i, x in enumerate(arrays) if isinstance(x, np.ndarray)]
    pairs = itertools.combinations(on_host, 2)
    return tuple((i, j) for (i, x), (j, y) in pairs if x is not y and np.may_share_memory(x, y))


def is_simple(value: object) -> bool:
    """Returns whether a value is a Python number, a string, None, or another simple immutable
    value.

    Example:
        >>> from mpchain.captured.results import is_simple
        >>> is_simple(0.5), is_simple(np.float32(0.5))
        (True, False)
    """
    return type(value) in _SIMPLE


def flatten(value: object) -> tuple[Any, list]:
    """Returns the structure of a nested value, for comparison, and its leaves.

    Tuples, lists, dicts and their subclasses, and dataclasses, are searched for leaves.

    Example:
        >>> from mpchain.captured.results import flatten
        >>> flatten({"a": 1, "b": (2, 3)})[1]
        [1, 2, 3]
    """
    held: list[Any] = []

    def note(leaf):
        held.append(leaf)
        return leaf

    return _structure(value, note, ()), held


def mapped(value: object, convert: Callable[[Any], Any]) -> Any:
    """Returns a nested value of the same classes, with ``convert`` applied to its leaves.

    Example:
        >>> from mpchain.captured.results import mapped
        >>> mapped([1, (2, {"a": 3})], lambda x: -x)
        [-1, (-2, {'a': -3})]
    """
    return _rebuilt(value, convert, ())


def unconverted(array: object) -> Any:
    """Returns the array unchanged.

    Example:
        >>> from mpchain.captured.results import unconverted
        >>> unconverted(np.ones(1))
        array([1.])
    """
    return array


def without_graph(value: object, convert: Callable[[np.ndarray], Any] = unconverted) -> Any:
    """Returns nested values with converted arrays, and Variables without their graph.

    Example:
        >>> from mpchain.captured.results import without_graph
        >>> without_graph({"loss": Variable(np.ones(1)) * 2}, lambda array: -array)
        {'loss': variable([-2.])}
    """

    def leaf(x):
        if isinstance(x, Variable):
            if (array := x.array) is None:
                return x
            return Variable(convert(plain(array)), name=x.name, requires_grad=False)
        return convert(plain(x)) if is_array(x) else x

    return leaf(value) if value.__class__ is Variable else _rebuilt(value, leaf, ())


def arrays_of(value: object) -> list:
    """Returns the arrays in nested values, including the arrays of Variables, as plain NumPy
    arrays.

    Example:
        >>> from mpchain.captured.results import arrays_of
        >>> arrays_of([np.ones(2), Variable(np.zeros(1))])
        [array([1., 1.]), array([0.])]
    """
    _, held = flatten(value)
    arrays = (x.array if isinstance(x, Variable) else x for x in held)
    return [plain(x) for x in arrays if is_array(x)]


def simple_of(value: object) -> list:
    """Returns the simple values (see :func:`is_simple`) that a nested value contains.

    Example:
        >>> from mpchain.captured.results import simple_of
        >>> simple_of({"loss": np.ones(1), "n": 3})
        [3]
    """
    return [x for x in flatten(value)[1] if is_simple(x)]


def why_not_returned(value: object, is_known: Callable[[Any], bool]) -> str | None:
    """Returns the reason why a result cannot be replayed, such as an unknown array; None if it can
    be replayed.

    Example:
        >>> from mpchain.captured.results import why_not_returned
        >>> why_not_returned([1, np.ones(2)], lambda array: False)
        'it returns an array (2,) that was made by means that are not recorded'
    """
    for x in flatten(value)[1]:
        array = x.array if isinstance(x, Variable) else x
        if array is None or is_simple(array) or isinstance(array, _UNCHANGED):
            continue
        if isinstance(array, np.generic):
            return f"it returns a {type(array).__name__} made by means that are not recorded"
        if not is_array(array):
            return f"it returns a {type(array).__name__}"
        if not is_known(plain(array)):
            return f"it returns an array {array.shape} that was made by means that are not recorded"
    return None


def _parts(value):
    """Returns the keys and the values of a container or dataclass; None for any other value."""
    if isinstance(value, Variable) or is_array(value):
        return None
    if isinstance(value, (tuple, list)):
        return range(len(value)), [*value]
    if isinstance(value, dict):
        return [*value], [*value.values()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        names += [name for name in getattr(value, "__dict__", ()) if name not in names]
        return names, [getattr(value, name) for name in names]
    return None


def _structure(value, note, inside):
    parts = None if id(value) in inside else _parts(value)
    if parts is None:
        note(value)
        return None
    keys, values = parts
    return type(value), [*keys], [_structure(x, note, (*inside, id(value))) for x in values]


def _rebuilt(value, convert, inside):
    kind = value.__class__
    if kind is Variable or kind is np.ndarray:
        return convert(value)
    parts = None if id(value) in inside else _parts(value)
    if parts is None:
        return convert(value)
    inside = (*inside, id(value))
    made = [_rebuilt(x, convert, inside) for x in parts[1]]
    if kind is tuple or kind is list:
        return kind(made)
    if kind is dict:
        return dict(zip(parts[0], made))
    if isinstance(value, tuple):
        return kind._make(made) if hasattr(kind, "_make") else tuple.__new__(kind, made)
    made_anew = copy.copy(value)
    if isinstance(value, list):
        list.__setitem__(made_anew, slice(None), made)
    elif isinstance(value, dict):
        for key, x in zip(parts[0], made):
            dict.__setitem__(made_anew, key, x)
    else:
        for name, x in zip(parts[0], made):
            object.__setattr__(made_anew, name, x)
    return made_anew
