"""For how long a thread has worked, and waited for other ranks."""

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
    """Counts what is done within as time in which this thread waits for others.

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
    """Leaves out what this thread works within, as extensions do on some ranks only.

    >>> with aside():
    ...     pass
    """
    begin = time.perf_counter() - _clock.waited
    try:
        yield
    finally:
        _clock.aside += time.perf_counter() - _clock.waited - begin


def clocks() -> tuple[float, float]:
    """Returns the time without what was done :func:`aside`, and for how long this thread has waited
    of that, in seconds.

    >>> time, waited = clocks()
    >>> waited >= 0
    True
    """
    return time.perf_counter() - _clock.aside, _clock.waited
