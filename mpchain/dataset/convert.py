"""Converters, which turn a list of examples into the arrays of a batch."""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.observers import observed
from mpchain.typing import DeviceLike


class Converter(abc.ABC):
    """Turns a batch (a list of examples) into arrays on a device.

    Example:
        >>> class Flattened(Converter):
        ...     def __call__(self, batch, device=None):
        ...         return to_device(device, np.stack(batch).reshape(len(batch), -1))
        >>> Flattened()([np.zeros((2, 3))] * 4).shape
        (4, 6)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls):
            cls.__call__ = observed("input", "converter")(cls.__call__)

    @abc.abstractmethod
    def __call__(self, batch: Sequence, device: DeviceLike | None) -> Any:
        """Returns the arrays of the batch.

        Args:
            batch: the examples.
            device: device for the arrays (an argument of :func:`mpchain.get_device`), or None to
                leave them where the examples are.
        """


class _FunctionConverter(Converter):
    __wrapped__: Callable[..., Any]

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, batch, device=None, *args, **kwargs):
        device = None if device is None else backend.get_device(device)
        return self.__wrapped__(batch, device, *args, **kwargs)

    def __reduce__(self):
        return self.__qualname__  # the object is pickled by name, as functions are


def converter() -> Callable[[Callable[..., Any]], _FunctionConverter]:
    """Returns a decorator that makes a :class:`Converter` from a function of ``(batch, device)``.

    The function is called with a :class:`mpchain.backend.Device`, or None, as ``device``.

    Example:
        >>> @mpchain.dataset.converter()
        ... def images_only(batch, device):
        ...     return mpchain.dataset.concat_examples([x for x, _ in batch], device)
        >>> images_only([(np.zeros(3), 1), (np.ones(3), 0)], None).shape
        (2, 3)
    """
    return _FunctionConverter


def to_device(device: DeviceLike | None, x: object) -> Any:
    """Sends an array, or a tuple, list or dict of arrays, to a device.

    Args:
        device: argument of :func:`mpchain.get_device`, or None to leave ``x`` where it is.
        x: the array or arrays.

    Example:
        >>> mpchain.dataset.to_device("@numpy", (np.zeros(1), {"t": np.ones(1)}))
        (array([0.]), {'t': array([1.])})
    """
    return x if device is None else backend.get_device(device).send(x)


@converter()
def concat_examples(
    batch: Sequence, device: DeviceLike | None = None, padding: object = None
) -> Any:
    """Stacks examples into arrays along a new first axis.

    Args:
        batch: examples of one kind: arrays of shape (...), scalars, or tuples or dicts of
            these.
        device: device for the result (an argument of :func:`mpchain.get_device`), or None to leave
            it where the examples are.
        padding: None if all shapes agree; or a scalar with which smaller arrays are padded at the
            end of each axis. For tuples or dicts of arrays, it may be a tuple or dict with one such
            value for each array.

    Returns:
        Array of shape (len(batch), ...); for tuples a tuple of such arrays, for dicts a dict.

    Raises:
        ValueError: the batch is empty, examples cannot be stacked into one array, tuples differ in
            length or dicts in their keys, shapes differ without padding, numbers of axes differ
            with padding, or ``padding`` does not have one value for each array.

    Example:
        >>> x, t = mpchain.dataset.concat_examples([(np.zeros(2), 1), (np.ones(2), 0)])
        >>> x.shape, t
        ((2, 2), array([1, 0]))
        >>> mpchain.dataset.concat_examples([np.array([1, 2]), np.array([3])], padding=-1)
        array([[ 1,  2],
               [ 3, -1]])
    """
    if len(batch) == 0:
        raise ValueError("concat_examples: batch must have at least one example")
    try:
        stacked = _stack_batch(batch, padding)
    except (AttributeError, TypeError) as error:
        _check_kinds(batch, error)
        raise
    return to_device(device, stacked)


def _stack_batch(batch, padding):
    first = batch[0]
    if isinstance(first, tuple):
        _check_same(map(len, batch), "examples must be tuples of one length, but the lengths are")
        paddings = padding if isinstance(padding, tuple) else (padding,) * len(first)
        _check_same(
            (len(first), len(paddings)),
            "padding must have one value for each element, but the lengths are",
        )
        return tuple([_stack(column, pad) for column, pad in zip(zip(*batch), paddings)])
    if isinstance(first, dict):
        _check_same(
            map(frozenset, batch), "examples must be dicts with the same keys, but the keys are"
        )
        paddings = padding if isinstance(padding, dict) else dict.fromkeys(first, padding)
        _check_same(
            (first.keys(), paddings.keys()),
            "padding must have one value for each key, but the keys are",
        )
        return {key: _stack([example[key] for example in batch], paddings[key]) for key in first}
    return _stack(batch, padding)


def _check_kinds(batch, error):
    """Raises ValueError if examples, or their elements, differ in type."""
    first = batch[0]
    columns = [batch]
    if all(type(example) is tuple for example in batch):
        columns = list(zip(*batch))
    elif all(type(example) is dict for example in batch):
        columns = [[example[key] for example in batch] for key in first]
    for column in columns:
        kinds = sorted({type(x).__name__ for x in column})
        if len(kinds) > 1:
            raise ValueError(
                f"concat_examples: examples must be of one kind, not {', '.join(kinds)}"
            ) from error


def _check_same(values, rule):
    distinct = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if len(distinct) > 1:
        shown = [sorted(value) if isinstance(value, frozenset) else value for value in distinct]
        raise ValueError(f"concat_examples: {rule} {', '.join(map(str, shown[:4]))}")


def _stack(arrays, padding):
    arrays = [example.array for example in arrays] if hasattr(arrays[0], "array") else list(arrays)
    if not is_array(arrays[0]):
        if padding is None:
            return _as_one_array(arrays)
        arrays = [np.asarray(array) for array in arrays]
    xp = backend.get_array_module(*arrays)
    if padding is not None:
        return _stack_padded(xp, arrays, padding)
    _check_same(
        (array.shape for array in arrays),
        "without padding, examples must have one shape, but the shapes are",
    )
    if arrays[0].ndim == 0:
        return xp.stack(arrays)
    return xp.concatenate(arrays).reshape((len(arrays), *arrays[0].shape))


def is_array(x: object) -> bool:
    """Returns whether ``x`` is an array of NumPy or CuPy.

    Example:
        >>> is_array(np.zeros(2)), is_array([0.0, 0.0])
        (True, False)
    """
    return isinstance(x, np.ndarray) or backend.cuda.is_gpu_array(x)


def _as_one_array(examples):
    try:
        array = np.asarray(examples)
    except ValueError as error:
        raise ValueError(f"concat_examples: the examples cannot be stacked: {error}") from error
    if array.dtype == object:
        kinds = sorted({type(example).__name__ for example in examples})
        raise ValueError(
            f"concat_examples: examples of type {', '.join(kinds)} cannot be stacked into one array"
        )
    return array


def _stack_padded(xp, arrays, padding):
    _check_same(
        (array.ndim for array in arrays),
        "examples must have the same number of axes, but the numbers are",
    )
    shape = [max(lengths) for lengths in zip(*(array.shape for array in arrays))]
    stacked = xp.full(
        (len(arrays), *shape), padding, xp.result_type(*{array.dtype for array in arrays})
    )
    for i, array in enumerate(arrays):
        stacked[(i, *map(slice, array.shape))] = array
    return stacked
