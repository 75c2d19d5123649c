"""Measures whether a process works: the process or its children use CPU time, read, or write.

A rank that other ranks wait for is not lost as long as it works. A rank that itself waits for a
lock or a line of input does not work.
"""

import glob
import os
import time

from mpchain.backends import linux

SHARE = 0.01
"""Share of one core above which a process counts as working; slow polling takes less."""

BYTES = 100_000
"""Bytes read and written per second above which a process counts as working."""

_PERIOD = 0.5  # seconds between two measurements


class Activity:
    """The activity of this process, without the thread that measures it.

    Example:
        >>> Activity().last(now=100.0) <= 100.0
        True
    """

    def __init__(self):
        self._measured = self._active = float("-inf")
        self._processor_time = self._bytes = self._of_children = 0

    def last(self, now: float) -> float:
        """Returns the latest time when the process was seen working, in seconds of the clock of
        ``now``.

        Args:
            now: monotonic time in seconds.
        """
        passed = now - self._measured
        if passed >= _PERIOD:
            self._measured = now
            if self._has_worked(passed):
                self._active = now
        return self._active

    def _has_worked(self, seconds):
        before, self._processor_time = self._processor_time, time.process_time()
        self._processor_time -= time.thread_time()
        if self._processor_time - before > SHARE * seconds:
            return True
        before, self._bytes = self._bytes, _bytes_moved()
        if self._bytes - before > BYTES * seconds:
            return True
        before, self._of_children = self._of_children, _ticks_of_children(os.getpid())
        return self._of_children > before


def _bytes_moved():
    """Returns the bytes that this process has read and written; 0 if the system has no counter."""
    lines = linux.read("/proc/self/io").split("\n")
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _ticks_of_children(pid):
    """Returns the CPU time of a process's descendants, in clock ticks of the system."""
    ticks, known = 0, [pid]
    for process in known:
        for path in glob.glob(f"/proc/{process}/task/*/children"):
            known += map(int, linux.read(path).split())
        if process != pid:
            ticks += sum(map(int, linux.status(process)[11:13]))
    return ticks
