"""Functions that join, split, pad and broadcast arrays."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.functions.array import broadcast_to, reshape
from mpchain.functions.declaring.declaration import differentiable
from mpchain.observers import one_call
from mpchain.typing import Array, Input, Output
from mpchain.utils.type_check import InvalidType, check, fail
from mpchain.variable import Variable, as_variable


def with_zeros(gys: Sequence[Input | None], shapes: Sequence[Sequence[int]]) -> list[Input]:
    """Returns the gradients of several outputs, where zeros replace None.

    Example:
        >>> with_zeros([np.ones(2), None], [(2,), (3,)])
        [array([1., 1.]), array([0., 0., 0.])]
    """
    reference = next(g for g in gys if g is not None)
    xp = get_array_module(reference)
    return [xp.zeros(s, reference.dtype) if g is None else g for g, s in zip(gys, shapes)]


def _split_derivative(gys, x_shape, indexes, axis):
    bounds = (0, *indexes, x_shape[axis])
    axis %= len(x_shape)
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    shapes = [(*x_shape[:axis], size, *x_shape[axis + 1 :]) for size in sizes]
    return (concat.on(with_zeros(gys, shapes), axis),)


@differentiable(joint=_split_derivative, n_arrays=1)
def _split(x, indexes, axis) -> tuple[Output, ...]:
    lead, bounds = (slice(None),) * (axis % x.ndim), (0, *indexes, x.shape[axis])
    return tuple([x[(*lead, slice(begin, end))] for begin, end in itertools.pairwise(bounds)])


def _concat_derivative(g, xs_shape, axis):
    indexes = itertools.accumulate(shape[axis] for shape in xs_shape[:-1])
    return _split.on(g, tuple(indexes), axis)


@differentiable(joint=_concat_derivative)
def concat(xs: Sequence[Input], axis: int = 1) -> Output:
    """Concatenates arrays along an axis.

    Args:
        xs: list of Variables or arrays, equal in shape except along the axis.
        axis: the axis.

    Returns:
        Variable.

    Raises:
        InvalidType: shapes differ along other axes, an array has no such axis, or ``xs`` is empty.

    Example:
        >>> F.concat([np.zeros((2, 1)), np.ones((2, 2))], axis=1).array
        array([[0., 1., 1.],
               [0., 1., 1.]])
    """
    check_joinable("concat", xs, axis)
    return _joined(xs, axis)


def _joined(xs, axis):
    is_on_host = get_array_module(*xs) is np
    return np.concatenate(xs, axis) if is_on_host else kernels.concatenate(axis, *xs)


def stacked(xs: Sequence[Array], axis: int) -> Array:
    """Joins arrays of the same shape along a new axis; on GPUs, one kernel joins all arrays.

    Example:
        >>> stacked([np.zeros(2), np.ones(2)], 1)
        array([[0., 1.],
               [0., 1.]])
    """
    at = (*(slice(None),) * axis, None)
    return _joined([x[at] for x in xs], axis)


def check_joinable(name: str, xs: Sequence[Input], axis: int) -> None:
    """Raises InvalidType unless arrays can be joined along ``axis`` by the function ``name``.

    Example:
        >>> check_joinable("concat", [np.zeros((2, 1)), np.zeros((2, 5))], 1)
    """
    check(len(xs) > 0, name, "xs must hold at least one array", xs=xs)
    shapes = {x.shape for x in xs}
    if len(shapes) == 1 and -xs[0].ndim <= axis < xs[0].ndim:
        return
    for x in xs:
        check(-x.ndim <= axis < x.ndim, name, "axis must be an axis of every array", x=x, axis=axis)
        alike = x.ndim == xs[0].ndim and all(
            m == n or i == axis % x.ndim for i, (m, n) in enumerate(zip(x.shape, xs[0].shape))
        )
        check(
            alike, name, "shapes must be equal except along the axis", x=x, first=xs[0], axis=axis
        )


def split_axis(
    x: Input, indices_or_sections: int | Sequence[int], axis: int, force_tuple: bool = True
) -> tuple[Variable, ...] | Any:
    """Splits an array along an axis.

    Args:
        x: Variable or array.
        indices_or_sections: the number of equal parts, or the indices at which the second part and
            all later parts begin.
        axis: the axis.
        force_tuple: whether to return a tuple if there is only one part.

    Returns:
        tuple of Variables; a Variable if there is only one part and ``force_tuple`` is False.

    Raises:
        InvalidType: ``x`` has no such axis, or the size of the axis is not a multiple of the number
            of parts.

    Example:
        >>> F.split_axis(np.arange(6.0), 3, axis=0)[1].array
        array([2., 3.])
        >>> [part.shape for part in F.split_axis(np.zeros((5, 2)), [1, 3], axis=0)]
        [(1, 2), (2, 2), (2, 2)]
    """
    check(-x.ndim <= axis < x.ndim, "split_axis", "axis must be an axis of x", x=x, axis=axis)
    if isinstance(indices_or_sections, (int, np.integer)):
        n, size = int(indices_or_sections), x.shape[axis]
        fits = n > 0 and size % n == 0
        check(
            fits,
            "split_axis",
            "the size of the axis must be a multiple of the number of parts",
            x=x,
            axis=axis,
            n=n,
        )
        indexes = tuple(range(size // n, size, size // n))
    else:
        indexes = tuple(int(i) for i in indices_or_sections)
    parts = _split(x, indexes, axis)
    return parts if force_tuple or len(parts) > 1 else parts[0]


def broadcast(*args: Input) -> Any:
    """Broadcasts arrays to their common shape, as NumPy does.

    Args:
        args: Variables or arrays.

    Returns:
        tuple of Variables, one per argument; for a single argument, a Variable.

    Raises:
        InvalidType: the shapes do not broadcast, or ``args`` is empty.

    Example:
        >>> [x.shape for x in F.broadcast(np.zeros((2, 1)), np.zeros(3))]
        [(2, 3), (2, 3)]
    """
    check(len(args) > 0, "broadcast", "args must hold at least one array", args=args)
    shapes = [x.shape for x in args]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise InvalidType(f"broadcast: the shapes {shapes} do not broadcast") from None
    ys = tuple(as_variable(x) if x.shape == shape else broadcast_to(x, shape) for x in args)
    return ys if len(ys) > 1 else ys[0]


def _separate_derivative(gys, x_shape, axis):
    shape = tuple(n for i, n in enumerate(x_shape) if i != axis)
    return (_stack.on(with_zeros(gys, [shape] * len(gys)), axis),)


@differentiable(joint=_separate_derivative, n_arrays=1)
def _separate(x, axis) -> tuple[Output, ...]:
    return tuple(x[(slice(None),) * axis + (i,)] for i in range(x.shape[axis]))


@differentiable(joint=lambda g, axis: _separate.on(g, axis))
def _stack(xs, axis) -> Output:
    return stacked(xs, axis)


def stack(xs: Sequence[Input], axis: int = 0) -> Variable:
    """Joins arrays along a new axis.

    Args:
        xs: list of Variables or arrays of the same shape.
        axis: index of the new axis in the result.

    Returns:
        Variable.

    Raises:
        InvalidType: the shapes differ, the result has no such axis, or ``xs`` is empty.

    Example:
        >>> F.stack([np.zeros(3), np.ones(3)], axis=1).shape
        (3, 2)
    """
    check(len(xs) > 0, "stack", "xs must hold at least one array", xs=xs)
    for x in xs:
        check(x.shape == xs[0].shape, "stack", "all shapes must be equal", x=x, first=xs[0])
    n = xs[0].ndim + 1
    check(-n <= axis < n, "stack", "axis must be an axis of the result", first=xs[0], axis=axis)
    return _stack(xs, axis % n)


def separate(x: Input, axis: int = 0) -> tuple[Variable, ...]:
    """Splits an array along an axis and removes the axis: the inverse of :func:`stack`.

    Args:
        x: Variable or array.
        axis: the axis.

    Returns:
        tuple of Variables, one per element of the axis.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> [x.array.tolist() for x in F.separate(np.arange(6.0).reshape(2, 3))]
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    check(-x.ndim <= axis < x.ndim, "separate", "axis must be an axis of x", x=x, axis=axis)
    axis %= x.ndim
    return _separate(x, axis) if x.shape[axis] else ()


def hstack(xs: Sequence[Input]) -> Variable:
    """Concatenates arrays along the second axis, and vectors along their only axis.

    Args:
        xs: list of Variables or arrays, equal in shape except along this axis; 0-d arrays become
            vectors of one element.

    Returns:
        Variable.

    Raises:
        InvalidType: the shapes do not match, or ``xs`` is empty.

    Example:
        >>> F.hstack([np.zeros((2, 1)), np.ones((2, 3))]).shape
        (2, 4)
    """
    xs = [x if x.ndim else reshape(x, (1,)) for x in xs]
    axis = 0 if xs and xs[0].ndim == 1 else 1
    check_joinable("hstack", xs, axis)
    return concat(xs, axis)


def vstack(xs: Sequence[Input]) -> Variable:
    """Concatenates arrays along the first axis; vectors become rows of a matrix.

    Args:
        xs: list of Variables or arrays of the same shape except along that axis.

    Returns:
        Variable.

    Raises:
        InvalidType: the shapes do not match, or ``xs`` is empty.

    Example:
        >>> F.vstack([np.zeros(3), np.ones((2, 3))]).shape
        (3, 3)
    """
    xs = [x if x.ndim > 1 else reshape(x, (1, x.size)) for x in xs]
    check_joinable("vstack", xs, 0)
    return concat(xs, 0)


def dstack(xs: Sequence[Input]) -> Variable:
    """Concatenates arrays along the third axis; (n,) counts as (1, n, 1), and (m, n) as (m, n, 1).

    Args:
        xs: list of Variables or arrays of the same shape except along that axis.

    Returns:
        Variable.

    Raises:
        InvalidType: the shapes do not match, or ``xs`` is empty.

    Example:
        >>> F.dstack([np.zeros((2, 3)), np.ones((2, 3))]).shape
        (2, 3, 2)
    """
    shapes = [(1, x.size, 1) if x.ndim < 2 else (*x.shape, 1) for x in xs]
    xs = [x if x.ndim > 2 else reshape(x, shape) for x, shape in zip(xs, shapes)]
    check_joinable("dstack", xs, 2)
    return concat(xs, 2)


def _cut_derivative(gys, x_shape, lengths):
    shapes = [(n, *x_shape[2:]) for n in lengths]
    return (_pad_sequence.on(with_zeros(gys, shapes), x_shape[1], 0),)


@differentiable(joint=_cut_derivative, n_arrays=1)
def _cut_sequences(x, lengths) -> tuple[Output, ...]:
    return tuple(row[:n] for row, n in zip(x, lengths))


@differentiable(joint=lambda g, xs_shape: _cut_sequences.on(g, tuple(s[0] for s in xs_shape)))
def _pad_sequence(xs, length, padding) -> Output:
    return one_call(_padded, xs, length, padding)


def _padded(xs, length, padding):
    y = get_array_module(*xs).full((len(xs), length, *xs[0].shape[1:]), padding, xs[0].dtype)
    for row, x in zip(y, xs):
        row[: len(x)] = x
    return y


def pad_sequence(xs: Sequence[Input], length: int | None = None, padding: float = 0) -> Variable:
    """Pads sequences to the same length and stacks the padded sequences.

    Args:
        xs: list of Variables or arrays (length_i, ...), equal in dtype and the other sizes.
        length: the common length; None means the length of the longest sequence.
        padding: the value that fills the ends of shorter sequences.

    Returns:
        Variable (len(xs), length, ...).

    Raises:
        InvalidType: a sequence is longer than ``length``, dtypes or other sizes differ, or ``xs``
            is empty.

    Example:
        >>> F.pad_sequence([np.array([1.0, 2.0]), np.array([3.0])]).array
        array([[1., 2.],
               [3., 0.]])
    """
    _check_sequences("pad_sequence", xs)
    longest = max(x.shape[0] for x in xs)
    n = longest if length is None else int(length)
    check(longest <= n, "pad_sequence", "no sequence may be longer than length", length=length)
    return _pad_sequence(xs, n, padding)


def _check_sequences(name, xs):
    check(len(xs) > 0, name, "xs must hold at least one array", xs=xs)
    if xs[0].ndim > 0 and len({(x.shape[1:], x.ndim, x.dtype) for x in xs}) == 1:
        return
    for x in xs:
        check(x.ndim > 0, name, "every sequence must have an axis", x=x)
        alike = x.shape[1:] == xs[0].shape[1:] and x.dtype == xs[0].dtype
        check(
            alike,
            name,
            "sequences must be equal in shape and dtype except for their lengths",
            x=x,
            first=xs[0],
        )


def _count_longer(lengths):
    """Returns, for each t, the number of sequences that are longer than t; the first sequence is
    the longest."""
    return (len(lengths) - np.cumsum(np.bincount(lengths))[:-1]).tolist()


def _transpose_sequence_derivative(gys, xs_shape):
    lengths = np.array([s[0] for s in xs_shape])
    counts = _count_longer(lengths)
    gxs = _transpose_sequence.on(with_zeros(gys, [(n, *xs_shape[0][1:]) for n in counts]))
    nothing = gxs[0][:0]
    return [*gxs, *[nothing] * (len(lengths) - len(gxs))]


@differentiable(joint=_transpose_sequence_derivative)
def _transpose_sequence(xs) -> tuple[Output, ...]:
    lengths = np.array([len(x) for x in xs])
    xp = get_array_module(*xs)
    elements, counts = _joined(xs, 0), _count_longer(lengths)
    if counts[-1] == len(xs):  # all sequences have the same length
        n = len(counts)
        steps = elements.reshape(len(xs), n, *elements.shape[1:]).swapaxes(0, 1).copy("C")
        return tuple([steps[t] for t in range(n)])
    starts = np.cumsum(lengths) - lengths
    order = np.concatenate([starts[:0], *(starts[:n] + t for t, n in enumerate(counts))])
    steps, ends = elements[xp.asarray(order)], np.cumsum(counts)
    return tuple(steps[end - n : end] for n, end in zip(counts, ends))


def transpose_sequence(xs: Sequence[Input]) -> tuple[Variable, ...]:
    """Transposes a list of sequences into a tuple of time steps.

    Args:
        xs: list of Variables or arrays (length_i, ...), equal in dtype and the other sizes, and
            sorted from the longest to the shortest.

    Returns:
        tuple of Variables: element ``t`` holds, in order, element ``t`` of all sequences that are
        long enough.

    Raises:
        InvalidType: a sequence is longer than the previous sequence, or dtypes or other sizes
            differ.

    Example:
        >>> steps = F.transpose_sequence([np.array([1.0, 2.0]), np.array([3.0])])
        >>> [x.array.tolist() for x in steps]
        [[1.0, 3.0], [2.0]]
    """
    if len(xs) == 0:
        return ()
    _check_sequences("transpose_sequence", xs)
    for i, (before, x) in enumerate(itertools.pairwise(xs), 1):
        if before.shape[0] < x.shape[0]:
            rule = f"lengths must not increase, but xs[{i}] is longer than xs[{i - 1}]"
            fail("transpose_sequence", rule, before=before, x=x)
    return _transpose_sequence(xs) if xs[0].shape[0] else ()
