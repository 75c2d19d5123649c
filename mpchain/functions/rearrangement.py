"""Other views and orders of the same elements: axes made, dropped, moved, turned and repeated."""

from numbers import Integral

import numpy as np

from mpchain.backend import get_array_module, get_device, get_device_from_array
from mpchain.functions.array import broadcast_to, reshape, transpose
from mpchain.functions.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


@differentiable(lambda g, aux: _copy.on(g, aux))
def _copy(x, device):
    y = device.send(x)
    return (x.copy() if y is x else y), get_device_from_array(x)


def copy(x, dst):
    """Copies an array to a device; its gradient travels back.

    Args:
        x: Variable or array.
        dst: what :func:`mpchain.get_device` accepts: a device or its specifier.

    Returns:
        Variable of the shape and dtype of ``x``, on that device.
    """
    return _copy(x, get_device(dst))


def _axis_of(name, x, axis, extra=0, argument="axis"):
    """``axis`` counted from the first, after a check that it is one of ``x``."""
    n = x.ndim + extra
    known = isinstance(axis, Integral) and -n <= axis < n
    if not known:
        check(False, name, f"{argument} must be an axis of x", x=x, **{argument: axis})
    return int(axis) % n


def expand_dims(x, axis):
    """Inserts an axis of size one.

    Args:
        x: Variable or array.
        axis (int): where the new axis is in the result.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: the result has no such axis.
    """
    axis = _axis_of("expand_dims", x, axis, extra=1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(x, axis=None):
    """Drops axes of size one.

    Args:
        x: Variable or array.
        axis (int or tuple of int): the axes; None means all of size one.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: there is no such axis, or its size is not one.
    """
    if axis is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    else:
        given = axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = [_axis_of("squeeze", x, a) for a in given]
    ones = all(x.shape[a] == 1 for a in axes)
    check(ones, "squeeze", "every axis to drop must have size one", x=x, axis=axis)
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def flatten(x):
    """Gives all elements, in row-major order, as a vector.

    Args:
        x: Variable or array.

    Returns:
        Variable (x.size,); a view where NumPy can make one.
    """
    return reshape(x, (x.size,))


def moveaxis(x, source, destination):
    """Moves axes; the others keep their order.

    Args:
        x: Variable or array.
        source (int or tuple of int): the axes to move.
        destination (int or tuple of int): where each is in the result.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: there is no such axis, one is given twice, or their numbers differ.
    """
    given = {"source": source, "destination": destination}
    sources, destinations = (
        [_axis_of("moveaxis", x, a, argument=name) for a in np.atleast_1d(axes).tolist()]
        for name, axes in given.items()
    )
    paired = len(set(sources)) == len(sources) == len(set(destinations)) == len(destinations)
    rule = "source and destination must have equally many axes, each once"
    check(paired, "moveaxis", rule, x=x, **given)
    order = [i for i in range(x.ndim) if i not in sources]
    for place, axis in sorted(zip(destinations, sources)):
        order.insert(place, axis)
    return transpose(x, tuple(order))


def rollaxis(x, axis, start=0):
    """Moves an axis to before another one.

    Args:
        x: Variable or array.
        axis (int): the axis to move.
        start (int): it is moved to before this axis, as counted in ``x``; ``x.ndim`` means to the
            end.

    Returns:
        Variable, a view.

    Raises:
        InvalidType: there is no such axis.
    """
    axis, start = (
        _axis_of("rollaxis", x, axis),
        _axis_of("rollaxis", x, start, extra=start >= 0, argument="start"),
    )
    order = [i for i in range(x.ndim) if i != axis]
    order.insert(start - (axis < start), axis)
    return transpose(x, tuple(order))


@differentiable(lambda g, axis: _flip.on(g, axis))
def _flip(x, axis):
    return get_array_module(x).flip(x, axis)


def flip(x, axis):
    """Reverses the order of the elements along an axis.

    Args:
        x: Variable or array.
        axis (int): the axis.

    Returns:
        Variable of the shape of ``x``, a view.

    Raises:
        InvalidType: there is no such axis.
    """
    return _flip(x, _axis_of("flip", x, axis))


def fliplr(a):
    """Reverses the second axis: left and right.

    Args:
        a: Variable or array with two axes or more.

    Returns:
        Variable of the shape of ``a``, a view.
    """
    check(a.ndim >= 2, "fliplr", "a must have 2 axes or more", a=a)
    return _flip(a, 1)


def flipud(a):
    """Reverses the first axis: up and down.

    Args:
        a: Variable or array with one axis or more.

    Returns:
        Variable of the shape of ``a``, a view.
    """
    check(a.ndim >= 1, "flipud", "a must have 1 axis or more", a=a)
    return _flip(a, 0)


def repeat(x, repeats, axis=None):
    """Repeats each element.

    Args:
        x: Variable or array.
        repeats (int or tuple of int): how often; a tuple says it for each element along the axis.
        axis (int): the axis to repeat along; None repeats the elements of the flattened array.

    Returns:
        Variable of the shape of ``x`` but for the axis; a vector if that is None.

    Raises:
        InvalidType: a number is negative, or there is not one per element.
    """
    x = as_variable(x)
    given, original = repeats, x
    x, axis = (flatten(x), 0) if axis is None else (x, _axis_of("repeat", x, axis))
    repeats = (repeats,) if isinstance(repeats, Integral) else tuple(repeats)
    size = x.shape[axis]
    fits = len(repeats) in (1, size) and all(isinstance(r, Integral) and r >= 0 for r in repeats)
    rule = "repeats must be one integer, or one per element of the axis, none negative"
    check(fits, "repeat", rule, x=original, repeats=given, axis=axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if len(repeats) == 1:
        (r,) = repeats
        copies = broadcast_to(reshape(x, (*before, size, 1, *after)), (*before, size, r, *after))
        return reshape(copies, (*before, size * r, *after))
    index = x.xp.asarray(np.repeat(np.arange(size), repeats))
    return get_item(x, (slice(None),) * axis + (index,))


def tile(x, reps):
    """Puts copies of an array side by side.

    Args:
        x: Variable or array.
        reps (int or tuple of int): how many along each axis; missing ones, and missing axes of
            ``x``, are ones in front.

    Returns:
        Variable.

    Raises:
        InvalidType: a number is negative.
    """
    given = reps
    reps = (reps,) if isinstance(reps, Integral) else tuple(reps)
    whole = all(isinstance(r, Integral) and r >= 0 for r in reps)
    check(whole, "tile", "reps must be integers, none negative", x=x, reps=given)
    n = max(len(reps), x.ndim)
    reps = (1,) * (n - len(reps)) + reps
    shape = (1,) * (n - x.ndim) + x.shape
    pairs = list(zip(reps, shape))
    copies = broadcast_to(
        reshape(x, tuple(m for size in shape for m in (1, size))),
        tuple(m for pair in pairs for m in pair),
    )
    return reshape(copies, tuple(r * size for r, size in pairs))


def _square_of(name, argument, r):
    check(isinstance(r, Integral) and r > 0, name, f"{argument} must be positive", **{argument: r})
    return int(r)


def _from_channels(name, x, r, channels_last):
    """(N, C r r, H, W) to (N, C, H r, W r)."""
    check(x.ndim == 4 and x.dtype.kind == "f", name, "x must be floating point with 4 axes", x=x)
    r = _square_of(name, "r", r)
    n, c, h, w = x.shape
    check(c % (r * r) == 0, name, "r * r must divide the number of channels", x=x, r=r)
    c //= r * r
    if channels_last:
        blocks = transpose(reshape(x, (n, r, r, c, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = transpose(reshape(x, (n, c, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(blocks, (n, c, h * r, w * r))


def _to_channels(name, x, r, channels_last):
    """(N, C, H r, W r) to (N, C r r, H, W)."""
    check(x.ndim == 4 and x.dtype.kind == "f", name, "x must be floating point with 4 axes", x=x)
    r = _square_of(name, "r", r)
    n, c, h, w = x.shape
    check(h % r == w % r == 0, name, "r must divide height and width", x=x, r=r)
    blocks = reshape(x, (n, c, h // r, r, w // r, r))
    order = (0, 3, 5, 1, 2, 4) if channels_last else (0, 1, 3, 5, 2, 4)
    return reshape(transpose(blocks, order), (n, c * r * r, h // r, w // r))


def depth2space(X, r):
    """Moves channels into space: each group of r x r channels becomes blocks of r x r pixels.

    Channel ``(i * r + j) * C + c`` holds pixel (i, j) of the blocks of output channel ``c``.

    Args:
        X: Variable or array (N, C * r * r, H, W), floating point.
        r (int): the side of a block.

    Returns:
        Variable (N, C, H * r, W * r).

    Raises:
        InvalidType: the channels do not divide.

    See also :func:`pixel_shuffle`, where the channels of one output channel are neighbors.
    """
    return _from_channels("depth2space", X, r, channels_last=True)


def space2depth(X, r):
    """Moves blocks of r x r pixels into channels: the inverse of :func:`depth2space`.

    Args:
        X: Variable or array (N, C, H * r, W * r), floating point.
        r (int): the side of a block.

    Returns:
        Variable (N, C * r * r, H, W).

    Raises:
        InvalidType: height or width do not divide.
    """
    return _to_channels("space2depth", X, r, channels_last=True)


def pixel_shuffle(x, r):
    """Moves channels into space; channel ``(c * r + i) * r + j`` is pixel (i, j) of the blocks.

    Args:
        x: Variable or array (N, C * r * r, H, W), floating point.
        r (int): the side of a block.

    Returns:
        Variable (N, C, H * r, W * r).

    Raises:
        InvalidType: the channels do not divide.

    See W. Shi et al., Real-time single image and video super-resolution using an efficient
    sub-pixel convolutional neural network, CVPR 2016.
    """
    return _from_channels("pixel_shuffle", x, r, channels_last=False)


def pixel_unshuffle(x, r):
    """Moves blocks of r x r pixels into channels: the inverse of :func:`pixel_shuffle`.

    Args:
        x: Variable or array (N, C, H * r, W * r), floating point.
        r (int): the side of a block.

    Returns:
        Variable (N, C * r * r, H, W).

    Raises:
        InvalidType: height or width do not divide.
    """
    return _to_channels("pixel_unshuffle", x, r, channels_last=False)
