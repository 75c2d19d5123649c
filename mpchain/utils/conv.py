"""Sizes of windows and of what they make."""


def as_tuple(value, n):
    """Returns ``value`` as a tuple of ``n`` integers: itself if it is one, else repeated."""
    if isinstance(value, int):
        return (value,) * n
    value = tuple(int(v) for v in value)
    if len(value) != n:
        raise ValueError(f"expected one integer or {n}, but got {value}")
    return value


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
