"""Sizes of windows and of what they make."""

from numbers import Integral

from mpchain.utils.type_check import check


def as_tuple(value, n):
    """Returns ``value`` as a tuple of ``n`` integers: itself if it is one, else repeated."""
    if isinstance(value, Integral):
        return (int(value),) * n
    value = tuple(int(v) for v in value)
    if len(value) != n:
        raise ValueError(f"expected one integer or {n}, but got {value}")
    return value


def spatial(function, n, **arguments):
    """Returns each argument as a tuple of ``n`` integers, if these are in range.

    Args:
        function (str): the name of the function whose arguments they are.
        n (int): the number of spatial axes.
        arguments: an integer, or one per axis; ``pad`` may be zero, all others are positive.

    Raises:
        InvalidType: an argument has another length, or is out of range.
    """
    tuples = []
    for name, value in arguments.items():
        values = (value,) * n if isinstance(value, Integral) else tuple(value)
        least = 0 if name == "pad" else 1
        if len(values) != n or any(v < least for v in values):
            rule = f"{name} must be one integer or {n}, each at least {least}"
            check(False, function, rule, **{name: value})
        tuples.append(tuple([int(v) for v in values]))
    return tuples


def get_conv_outsize(size, k, s, p, cover_all=False, d=1):
    """Returns the number of windows along an axis.

    Args:
        size (int): the axis's size.
        k, s, p, d (int): window size, stride, padding on each side, dilation.
        cover_all (bool): add a window where elements would be left over.
    """
    room = size + 2 * p - (k - 1) * d - 1
    return (room + (s - 1 if cover_all else 0)) // s + 1


def get_deconv_outsize(size, k, s, p, cover_all=False, d=1):
    """Returns the smallest axis size that has ``size`` windows; see :func:`get_conv_outsize`."""
    return s * (size - 1) + (k - 1) * d + 1 - (s - 1 if cover_all else 0) - 2 * p
