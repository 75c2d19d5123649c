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


def one_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of arrays, which recordings see as one call.

    So do functions by whose parts recorded arrays are not asked: those that write into arrays that
    they made, index constants, or call SciPy.

    Args:
        function: defined once, not in a function, as recordings compare it; it changes no argument,
            and returns an array, or arrays in nested tuples and lists.

    Example:
        >>> one_call(np.take, np.array([0.5, 2.0]), np.array([1, 1, 0]))
        array([2. , 2. , 0.5])
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.one_call(function, arguments)


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


def exchanged(function: Callable[[np.ndarray], Any], array: Any) -> np.ndarray:
    """Exchanges an array with other ranks, where what they get depends on data.

    Eagerly this is ``function(array)``. In a step that is recorded, the call is kept: each replay
    calls ``function`` again, also if nobody reads the result, with the array that the replay has
    computed, in order with the other messages. Where a step is compared with its replay, the
    function is called once: the replay gets what the step has received, after a check that it would
    have sent the same array. So a rank that records or compares a step sends what ranks send that
    replay it or run it as always.

    Args:
        function: gets a copy of the array, and returns an array whose shape and dtype follow from
            those of that one. What it does is not recorded, so it should only exchange.
        array: what is sent.

    Returns:
        What ``function`` returns. If the step is recorded, this must not decide what Python does,
        such as in an ``if``: use ``where``.

    Raises:
        ValueError: in a replay, the function returned an array of another shape or dtype.

    Example:
        >>> exchanged(lambda count: count + 3, np.array([2]))  # 3 samples of other ranks
        array([5])
    """
    recorder = current.recorder
    return function(array) if recorder is None else recorder.exchange(function, array)
