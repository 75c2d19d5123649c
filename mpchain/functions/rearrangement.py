"""Functions that insert, remove and move axes, reverse and repeat elements along axes, move blocks
of pixels to channels and back, or copy arrays to devices."""

from collections.abc import Sequence

import numpy as np

from mpchain.backend import get_array_module, get_device, get_device_from_array
from mpchain.backends.dtypes import is_floating
from mpchain.functions.array import broadcast_to, reshape, transpose
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.typing import Axes, DeviceLike, Input
from mpchain.utils.type_check import check, fail, is_integer
from mpchain.variable import Variable, as_variable


@differentiable(lambda g, aux: _copy.on(g, aux))
def _copy(x, device):
    y = device.send(x)
    return (x.copy() if y is x else y), get_device_from_array(x)


def copy(x: Input, dst: DeviceLike) -> Variable:
    """Copies an array to a device; its gradient is copied back.

    Args:
        x: Variable or array.
        dst: a device or its specifier; see :func:`mpchain.get_device`.

    Returns:
        Variable of the shape and dtype of ``x``, on the device ``dst``.

    Example:
        >>> F.copy(np.ones(2), "@numpy").array
        array([1., 1.])
    """
    return _copy(x, get_device(dst))


def _axis_of(name, x, axis, extra=0, argument="axis"):
    """Returns ``axis`` as an index from 0, after a check that ``x`` has the axis."""
    n = x.ndim + extra
    if not (is_integer(axis) and -n <= axis < n):
        fail(name, f"{argument} must be an axis of x", x=x, **{argument: axis})
    return int(axis) % n


def expand_dims(x: Input, axis: int) -> Variable:
    """Inserts an axis of size one.

    Args:
        x: Variable or array.
        axis: index of the new axis in the result.

    Returns:
        Variable; in most cases a view.

    Raises:
        InvalidType: the result has no such axis.

    Example:
        >>> F.expand_dims(np.zeros((2, 3)), 1).shape
        (2, 1, 3)
    """
    axis = _axis_of("expand_dims", x, axis, extra=1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(x: Input, axis: Axes = None) -> Variable:
    """Drops axes of size one.

    Args:
        x: Variable or array.
        axis: the axes to remove; None means all axes of size one.

    Returns:
        Variable; in most cases a view.

    Raises:
        InvalidType: ``x`` has no such axis, or the size of an axis is not one.

    Example:
        >>> F.squeeze(np.zeros((1, 2, 1))).shape
        (2,)
    """
    if axis is None:
        return reshape(x, tuple(n for n in x.shape if n != 1))
    axes = [
        _axis_of("squeeze", x, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
    ]
    ones = all(x.shape[a] == 1 for a in axes)
    check(ones, "squeeze", "every axis to drop must have size one", x=x, axis=axis)
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def flatten(x: Input) -> Variable:
    """Flattens an array in row-major order.

    Args:
        x: Variable or array.

    Returns:
        Variable (x.size,); a view if possible.

    Example:
        >>> F.flatten(np.arange(6.0).reshape(2, 3)).array
        array([0., 1., 2., 3., 4., 5.])
    """
    return reshape(x, (x.size,))


def moveaxis(x: Input, source: int | Sequence[int], destination: int | Sequence[int]) -> Variable:
    """Moves axes; all other axes keep their order.

    Args:
        x: Variable or array.
        source: the axes to move.
        destination: the indices of the moved axes in the result.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: ``x`` has no such axis, an axis is given twice, or ``source`` and
            ``destination`` differ in length.

    Example:
        >>> F.moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    given = {"source": source, "destination": destination}
    sources, destinations = (
        [_axis_of("moveaxis", x, a, argument=name) for a in np.atleast_1d(axes).tolist()]
        for name, axes in given.items()
    )
    paired = len(set(sources)) == len(sources) == len(set(destinations)) == len(destinations)
    rule = "source and destination must have equally many axes, and no axis twice"
    check(paired, "moveaxis", rule, x=x, **given)
    order = [i for i in range(x.ndim) if i not in sources]
    for place, axis in sorted(zip(destinations, sources)):
        order.insert(place, axis)
    return transpose(x, tuple(order))


def rollaxis(x: Input, axis: int, start: int = 0) -> Variable:
    """Moves an axis in front of another axis.

    Args:
        x: Variable or array.
        axis: the axis to move.
        start: the axis of ``x`` before which ``axis`` is moved; ``x.ndim`` moves it to the end.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> F.rollaxis(np.zeros((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    axis = _axis_of("rollaxis", x, axis)
    start = _axis_of("rollaxis", x, start, extra=start >= 0, argument="start")
    order = [i for i in range(x.ndim) if i != axis]
    order.insert(start - (axis < start), axis)
    return transpose(x, tuple(order))


@differentiable(lambda g, axis: _flip.on(g, axis))
def _flip(x, axis):
    return get_array_module(x).flip(x, axis)


def flip(x: Input, axis: int) -> Variable:
    """Reverses the order of the elements along an axis.

    Args:
        x: Variable or array.
        axis: the axis.

    Returns:
        Variable of the shape of ``x``, a view.

    Raises:
        InvalidType: ``x`` has no such axis.

    Example:
        >>> F.flip(np.arange(6.0).reshape(2, 3), 1).array
        array([[2., 1., 0.],
               [5., 4., 3.]])
    """
    return _flip(x, _axis_of("flip", x, axis))


def fliplr(a: Input) -> Variable:
    """Reverses the second axis, which exchanges left and right.

    Args:
        a: Variable or array with two axes or more.

    Returns:
        Variable of the shape of ``a``, a view.

    Raises:
        InvalidType: ``a`` has fewer than two axes.

    Example:
        >>> F.fliplr(np.arange(6.0).reshape(2, 3)).array
        array([[2., 1., 0.],
               [5., 4., 3.]])
    """
    check(a.ndim >= 2, "fliplr", "a must have 2 axes or more", a=a)
    return _flip(a, 1)


def flipud(a: Input) -> Variable:
    """Reverses the first axis, which exchanges up and down.

    Args:
        a: Variable or array with one axis or more.

    Returns:
        Variable of the shape of ``a``, a view.

    Raises:
        InvalidType: ``a`` has no axes.

    Example:
        >>> F.flipud(np.arange(6.0).reshape(2, 3)).array
        array([[3., 4., 5.],
               [0., 1., 2.]])
    """
    check(a.ndim >= 1, "flipud", "a must have 1 axis or more", a=a)
    return _flip(a, 0)


def repeat(x: Input, repeats: int | Sequence[int], axis: int | None = None) -> Variable:
    """Repeats each element.

    Args:
        x: Variable or array.
        repeats: number of repetitions: one number for all elements, or a number for each element
            along the axis.
        axis: the axis to repeat along; None repeats the elements of the flattened array.

    Returns:
        Variable of the shape of ``x`` except along the axis; a vector if ``axis`` is None.

    Raises:
        InvalidType: ``x`` has no such axis, a number of repetitions is negative, or the numbers are
            not as many as the elements along the axis.

    Example:
        >>> F.repeat(np.array([1.0, 2.0]), 2).array
        array([1., 1., 2., 2.])
    """
    x = as_variable(x)
    given, original = repeats, x
    x, axis = (flatten(x), 0) if axis is None else (x, _axis_of("repeat", x, axis))
    repeats = (repeats,) if is_integer(repeats) else tuple(repeats)
    size = x.shape[axis]
    fits = len(repeats) in (1, size) and all(is_integer(r) and r >= 0 for r in repeats)
    rule = "repeats must be one integer, or one per element of the axis, and not negative"
    check(fits, "repeat", rule, x=original, repeats=given, axis=axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if len(repeats) == 1:
        (r,) = repeats
        copies = broadcast_to(reshape(x, (*before, size, 1, *after)), (*before, size, r, *after))
        return reshape(copies, (*before, size * r, *after))
    index = x.xp.asarray(np.repeat(np.arange(size), repeats))
    return get_item(x, (slice(None),) * axis + (index,))


def tile(x: Input, reps: int | Sequence[int]) -> Variable:
    """Tiles an array with copies of itself.

    Args:
        x: Variable or array.
        reps: number of copies along each axis. If ``reps`` and the shape of ``x`` differ in length,
            ones are put before the shorter of the two.

    Returns:
        Variable.

    Raises:
        InvalidType: ``reps`` holds a negative number.

    Example:
        >>> F.tile(np.array([1.0, 2.0]), 2).array
        array([1., 2., 1., 2.])
    """
    given = reps
    reps = (reps,) if is_integer(reps) else tuple(reps)
    whole = all(is_integer(r) and r >= 0 for r in reps)
    check(whole, "tile", "reps must hold integers that are not negative", x=x, reps=given)
    n = max(len(reps), x.ndim)
    reps = (1,) * (n - len(reps)) + reps
    shape = (1,) * (n - x.ndim) + x.shape
    pairs = list(zip(reps, shape))
    x = reshape(x, tuple(m for size in shape for m in (1, size)))
    copies = broadcast_to(x, tuple(m for pair in pairs for m in pair))
    return reshape(copies, tuple(r * size for r, size in pairs))


def _check_blocks(name, x, r):
    check(x.ndim == 4 and is_floating(x.dtype), name, "x must be floating point with 4 axes", x=x)
    check(is_integer(r) and r > 0, name, "r must be positive", r=r)


def _from_channels(name, x, r, channels_last):
    """Maps (N, C r r, H, W) to (N, C, H r, W r)."""
    _check_blocks(name, x, r)
    n, c, h, w = x.shape
    check(c % (r * r) == 0, name, "r * r must divide the number of channels", x=x, r=r)
    c //= r * r
    if channels_last:
        blocks = transpose(reshape(x, (n, r, r, c, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = transpose(reshape(x, (n, c, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(blocks, (n, c, h * r, w * r))


def _to_channels(name, x, r, channels_last):
    """Maps (N, C, H r, W r) to (N, C r r, H, W)."""
    _check_blocks(name, x, r)
    n, c, h, w = x.shape
    check(h % r == w % r == 0, name, "r must divide height and width", x=x, r=r)
    blocks = reshape(x, (n, c, h // r, r, w // r, r))
    order = (0, 3, 5, 1, 2, 4) if channels_last else (0, 1, 3, 5, 2, 4)
    return reshape(transpose(blocks, order), (n, c * r * r, h // r, w // r))


def depth2space(X: Input, r: int) -> Variable:
    """Moves channels to the spatial axes: each group of r * r channels becomes blocks of r x r
    pixels.

    Channel ``(i * r + j) * C + c`` holds pixel (i, j) of the blocks of output channel ``c``.

    Args:
        X: Variable or array (N, C * r * r, H, W), floating point.
        r: the side of a block.

    Returns:
        Variable (N, C, H * r, W * r).

    Raises:
        InvalidType: the array is not floating point with 4 axes, ``r`` is not positive, or
            ``r * r`` does not divide the number of channels.

    Example:
        >>> F.depth2space(np.zeros((1, 8, 2, 3)), 2).shape
        (1, 2, 4, 6)

    See also :func:`pixel_shuffle`, which takes the pixels of an output channel from neighboring
    channels.
    """
    return _from_channels("depth2space", X, r, channels_last=True)


def space2depth(X: Input, r: int) -> Variable:
    """Moves blocks of r x r pixels into channels: the inverse of :func:`depth2space`.

    Args:
        X: Variable or array (N, C, H * r, W * r), floating point.
        r: the side of a block.

    Returns:
        Variable (N, C * r * r, H, W).

    Raises:
        InvalidType: the array is not floating point with 4 axes, or ``r`` is not positive or does
            not divide the height and the width.

    Example:
        >>> F.space2depth(np.zeros((1, 2, 4, 6)), 2).shape
        (1, 8, 2, 3)
    """
    return _to_channels("space2depth", X, r, channels_last=True)


def pixel_shuffle(x: Input, r: int) -> Variable:
    """Moves channels to the spatial axes; channel ``(c * r + i) * r + j`` holds pixel (i, j) of the
    blocks of output channel ``c``.

    Args:
        x: Variable or array (N, C * r * r, H, W), floating point.
        r: the side of a block.

    Returns:
        Variable (N, C, H * r, W * r).

    Raises:
        InvalidType: the array is not floating point with 4 axes, ``r`` is not positive, or
            ``r * r`` does not divide the number of channels.

    Example:
        >>> F.pixel_shuffle(np.arange(4.0).reshape(1, 4, 1, 1), 2).array[0, 0]
        array([[0., 1.],
               [2., 3.]])

    See W. Shi et al., Real-time single image and video super-resolution using an efficient
    sub-pixel convolutional neural network, CVPR 2016.
    """
    return _from_channels("pixel_shuffle", x, r, channels_last=False)


def pixel_unshuffle(x: Input, r: int) -> Variable:
    """Moves blocks of r x r pixels into channels: the inverse of :func:`pixel_shuffle`.

    Args:
        x: Variable or array (N, C, H * r, W * r), floating point.
        r: the side of a block.

    Returns:
        Variable (N, C * r * r, H, W).

    Raises:
        InvalidType: the array is not floating point with 4 axes, or ``r`` is not positive or does
            not divide the height and the width.

    Example:
        >>> F.pixel_unshuffle(np.zeros((1, 2, 4, 6)), 2).shape
        (1, 8, 2, 3)
    """
    return _to_channels("pixel_unshuffle", x, r, channels_last=False)
