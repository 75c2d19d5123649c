"""Finds, joins and replaces the batches among the arguments of loss functions."""

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.prove.records import on_host
from mpchain.variable import Parameter, Variable


def changed(value: object, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Returns a loss function, or one of its arguments, with changed batches.

    Args:
        value: the function and its arguments, as a ``functools.partial``.
        change: function of the path of an array or list, and the array or list; returns the
            replacement.

    Example:
        >>> changed(functools.partial(sum, [1, 2]), lambda path, x: x + [3])()
        6
    """
    if isinstance(value, functools.partial):
        function = changed(value.func, change, path + "f")
        args = changed(value.args, change, path)
        keywords = changed(value.keywords, change, path)
        same = function is value.func and args is value.args and keywords is value.keywords
        return value if same else functools.partial(function, *args, **keywords)
    if isinstance(value, tuple):
        items = [changed(item, change, f"{path}[{i}]") for i, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        items = {k: changed(item, change, f"{path}[{k!r}]") for k, item in value.items()}
        return value if all(items[k] is value[k] for k in value) else items
    return change(path, value) if _is_batch(value) else value


def found(function: object) -> dict[str, Any]:
    """Returns the arrays and lists among the arguments of a loss function, by path.

    Example:
        >>> found(functools.partial(sum, [1, 2]))
        {'[0]': [1, 2]}
    """
    held = {}

    def note(path, value):
        host = on_host(value)
        try:
            if isinstance(host, list):
                pickle.dumps(host)
        except Exception:  # the arguments are objects of the program, not data
            return value
        held[path] = host
        return value

    changed(function, note)
    return held


def _is_batch(value):
    if isinstance(value, Variable):
        return not isinstance(value, Parameter) and value.creator_node is None and value.ndim > 0
    if isinstance(value, np.ndarray) or cuda.is_gpu_array(value):
        return value.ndim > 0
    return isinstance(value, list)


def joined(
    batches: Sequence[dict[str, Any]], sizes: Sequence[float | None]
) -> tuple[dict[str, Any], int | None]:
    """Joins the batches of ranks; returns the joined batch and its number of samples.

    Lists whose length is not the number of samples, and arrays without an axis of this length, are
    not batches, and are left out.

    Args:
        batches: for each micro-batch of the ranks that has samples, the result of :func:`found`.
        sizes: the number of samples of each micro-batch; None if it is unknown.

    Example:
        >>> joined([{"x": np.zeros(2)}, {"x": np.ones(1)}], [2, 1])
        ({'x': array([0., 0., 1.])}, 3)
    """
    if not batches or not batches[0]:
        return {}, None
    if None in sizes:
        sizes = [len(next(iter(batch.values()))) for batch in batches]
    whole = {}
    for path in batches[0]:
        if all(path in batch for batch in batches):
            values = [batch[path] for batch in batches]
            value = _join(values, sizes)
            if value is not None:
                whole[path] = value
    return whole, int(sum(n or 0 for n in sizes))


def length(batch: dict[str, Any]) -> int | None:
    """Returns the common length of the arrays and lists of a batch; None if the lengths differ or
    the batch has none.

    Example:
        >>> length({"x": np.zeros((3, 2)), "t": [1, 2, 3]}), length({"x": [1], "t": [1, 2]})
        (3, None)
    """
    lengths = {len(value) for value in batch.values()}
    return lengths.pop() if len(lengths) == 1 else None


def have_samples_across(batches: Sequence[dict[str, Any]], sizes: Sequence[float | None]) -> bool:
    """Returns whether the axis of the samples is not the first axis; it may follow a time axis.

    >>> have_samples_across([{"x": np.zeros((5, 2))}], [2])
    True
    >>> have_samples_across([{"x": np.zeros((9, 2))}, {"x": np.zeros((9, 2))}], [2, 1])
    False
    """
    held = [(value, n) for batch, n in zip(batches, sizes) for value in batch.values()]
    arrays = [(value, n) for value, n in held if isinstance(value, np.ndarray)]
    are_across = all(n in value.shape[1:] for value, n in arrays)
    return are_across and any(len(value) != n for value, n in arrays)


def _join(values, sizes):
    if all(isinstance(value, list) for value in values):
        is_batch = all(len(value) == n for value, n in zip(values, sizes))
        return [item for value in values for item in value] if is_batch else None
    if not all(isinstance(value, np.ndarray) for value in values):
        return None
    first = values[0]
    for axis in range(first.ndim):
        others = [v.shape[:axis] + v.shape[axis + 1 :] for v in values if v.ndim == first.ndim]
        if others == others[:1] * len(values) and all(
            value.shape[axis] == n for value, n in zip(values, sizes)
        ):
            return np.concatenate(values, axis)
    return None


def samples(batch: dict[str, Any], n: int | None) -> list[bytes]:
    """Returns bytes for each sample of a batch; equal samples have equal bytes.

    Example:
        >>> a, b = samples({"x": np.array([[1, 2], [1, 2]])}, 2)
        >>> a == b
        True
    """
    rows = [value for value in batch.values() if n is not None and len(value) == n]
    return [pickle.dumps([_exact(value[i]) for value in rows]) for i in range(n or 0)] * bool(rows)


def changed_part(whole: dict[str, Any], own: dict[str, Any], n: int) -> str:
    """Returns the path of the first array in which the ranks' samples differ from the samples of
    one process, if another array is the same; otherwise, an empty string.

    Example:
        >>> ranks = {"x": np.array([1, 2]), "t": np.array([5, 6])}
        >>> changed_part(ranks, {"x": np.array([1, 3]), "t": np.array([5, 6])}, 2)
        'x'
    """
    ours, theirs = _parts_of(whole, n), _parts_of(own, n)
    if ours.keys() != theirs.keys():
        return ""
    same = [name for name in ours if ours[name] == theirs[name] and len({*ours[name]}) > 1]
    other = [name for name in ours if ours[name] != theirs[name]]
    return other[0] if same and other else ""


def _parts_of(batch, n):
    """Maps the path of each array or list to a list of texts, one for each sample."""
    found = {}
    for path, value in batch.items():
        if len(value) == n and isinstance(value, list) and isinstance(value[0], (tuple, dict)):
            keys = value[0].keys() if isinstance(value[0], dict) else range(len(value[0]))
            for key in keys:
                found[f"{path}[{key!r}]"] = [repr(_exact(sample[key])) for sample in value]
        elif len(value) == n:
            found[path] = [repr(_exact(row)) for row in value]
    return found


def _exact(value):
    if isinstance(value, Variable):
        value = value.array
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [_exact(item) for item in value]
    if isinstance(value, dict):
        return [(k, _exact(item)) for k, item in value.items()]
    if isinstance(value, (set, frozenset)):  # the order of a set differs between processes
        return sorted(map(repr, value))
    return repr(value)


def like(old: object, new: object) -> Any:
    """Converts a new batch to the type of the object that it replaces.

    Example:
        >>> like(mpchain.Variable(np.zeros(1)), np.ones(2))
        variable([1., 1.])
    """
    if isinstance(old, Variable):
        return Variable(old.device.send(new), requires_grad=old.requires_grad)
    if cuda.is_gpu_array(old):
        return cuda.to_gpu(new)
    return new


def widened(value: Any) -> Any:
    """Converts the floating-point numbers of a batch to double precision.

    Example:
        >>> widened([(np.float32(1), 2)])
        [(np.float64(1.0), 2)]
    """
    if isinstance(value, Variable):
        return Variable(widened(value.array), requires_grad=value.requires_grad)
    if hasattr(value, "dtype") and is_floating(value.dtype):
        return value.astype(np.float64)
    if type(value) in (list, tuple):
        return type(value)(map(widened, value))
    if type(value) is dict:
        return {name: widened(item) for name, item in value.items()}
    return value
