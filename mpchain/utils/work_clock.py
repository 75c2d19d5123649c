"""Measures how long a thread has worked, and how long it has waited for other ranks."""

import contextlib
import threading
import time
from collections.abc import Iterator


class _Clock(threading.local):
    waited = 0.0
    aside = 0.0


_clock = _Clock()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Context manager: counts the time of the block as time in which this thread waits for other
    ranks.

    >>> with waiting():
    ...     pass
    """
    begin = time.perf_counter()
    try:
        yield
    finally:
        _clock.waited += time.perf_counter() - begin


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Context manager: excludes the work of this thread in the block, such as extensions that only
    some ranks run, from the time that :func:`clocks` returns.

    >>> with aside():
    ...     pass
    """
    begin = time.perf_counter() - _clock.waited
    try:
        yield
    finally:
        _clock.aside += time.perf_counter() - _clock.waited - begin


def clocks() -> tuple[float, float]:
    """Returns two times in seconds: the current time without work inside :func:`aside`, and the
    total time for which this thread has waited.

    >>> time, waited = clocks()
    >>> waited >= 0
    True
    """
    return time.perf_counter() - _clock.aside, _clock.waited
