"""Where a recording of a step listens: the slots of the thread's recorder and graph.

What computes by other means than NumPy's functions, or acts on more than arrays, asks here whether
a recorder is at work (see :mod:`mpchain.captured`): kernels, draws, reports, optimizers' updates.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class _Current(threading.local):
    recorder: Any = None
    graph: Any = None  # the graph of a GPU that is being captured
    place: np.ndarray | None = None  # where a replay wants the first result of the next kernel


current = _Current()


def outside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that acts on more than arrays; replays of a recording call it again.

    Args:
        function: a method, called with ``arguments``, whose result nobody reads.

    Example:
        >>> outside(print, "updated")
        updated
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.call_again(function, arguments)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns memory for the first result of a kernel: that which a replay planned, or new.

    A kernel asks once, and overwrites all of it before it returns it.

    Example:
        >>> empty((2, 3), np.float32).shape
        (2, 3)
    """
    place = planned(shape, dtype)
    is_plain = place is not None and place.flags.c_contiguous
    return place if is_plain else np.empty(shape, dtype)


def planned(shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
    """Returns the memory that a replay planned for the first result of a kernel, of any layout.

    None if there is none, or one of another shape or dtype. A kernel asks once, see :func:`empty`.

    Example:
        >>> planned((2, 3), np.float32)  # no replay is at work
    """
    place, current.place = current.place, None
    fits = place is not None and place.shape == shape and place.dtype == dtype
    return place if fits else None
