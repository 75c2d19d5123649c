"""The geometry of sliding windows."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple


class Window(NamedTuple):
    """The geometry of sliding windows. Every field except ``groups`` is a tuple with one value per
    spatial axis.

    Example:
        >>> Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (8, 8), (8, 8)).n_elements
        9
    """

    ksize: tuple
    stride: tuple
    pad: tuple
    dilate: tuple
    groups: int
    in_size: tuple
    out_size: tuple

    @property
    def n_elements(self) -> int:
        """The number of elements of one window."""
        return math.prod(self.ksize)


def cache_windows(function: Callable) -> Callable:
    """Decorator: caches the results of a function of shapes and sizes.

    Checks in the function therefore run once for each geometry. Calls with lists, which have no
    hash, are not cached.

    Example:
        >>> @cache_windows
        ... def n_windows(size, ksize):
        ...     print("computed")
        ...     return size - ksize + 1
        ...
        >>> n_windows(5, 3), n_windows(5, 3)
        computed
        (3, 3)
    """
    cached = functools.lru_cache(maxsize=1024, typed=True)(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return cached(*args, **kwargs)
        except TypeError:  # TypeError means that an argument is a list, which has no hash
            pass
        return function(*args, **kwargs)

    return call


class Layout(NamedTuple):
    """The layout of windows in a padded array; see :func:`layout`.

    Example:
        >>> layout(Window((2,), (1,), (0,), (1,), 1, (3,), (2,))).offsets
        ((slice(0, 2, 1),), (slice(1, 3, 1),))
    """

    padded_size: tuple
    inner: tuple
    offsets: tuple


@functools.lru_cache(maxsize=1024)
def layout(window: Window) -> Layout:
    """Returns the spatial size of the padded array, the slices of the array in it, and the slices
    of each window element.

    The slices of a window element select this element of every window from the padded array; the
    selection has the spatial size of the output.

    Example:
        >>> layout(Window((2,), (2,), (1,), (1,), 1, (4,), (3,))).padded_size
        (6,)
    """
    axes = list(zip(*window[:4], window.in_size, window.out_size))
    ends = [(o - 1) * s + (k - 1) * d + 1 for k, s, _, d, _, o in axes]
    padded = tuple(max(end, size + p) for end, (_, _, p, _, size, _) in zip(ends, axes))
    inner = tuple(slice(p, p + size) for _, _, p, _, size, _ in axes)
    offsets = tuple(
        tuple(
            slice(i * d, i * d + (o - 1) * s + 1, s) for i, (_, s, _, d, _, o) in zip(place, axes)
        )
        for place in itertools.product(*map(range, window.ksize))
    )
    return Layout(padded, inner, offsets)
