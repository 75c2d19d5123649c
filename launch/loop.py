"""A loop that waits for files, signals and times.

asyncio has more features, but importing it takes several times as long as starting a rank.
"""

import contextlib
import heapq
import itertools
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable

_File = int | socket.socket
# The loop assumes that it was stopped, for example by SIGSTOP, if it wakes up more than this many
# seconds late.
MOST_LATE = 1.0


class Loop:
    """Calls actions when files become readable or writable, signals arrive, or timers expire.

    Its clock stops while the process is stopped, because the ranks may be stopped as well.

    Example:
        >>> loop, calls = Loop(), []
        >>> loop.after(0.0, lambda: calls.append("called"))
        >>> loop.run(until=lambda: calls)
        >>> calls, loop.close()
        (['called'], None)
    """

    def __init__(self):
        # Unlike epoll, poll accepts regular files, to which standard output may be redirected.
        self._poll = select.poll()
        self._actions = {}  # maps a file descriptor to a dict from event to action
        self._alarms = []
        self._last = time.monotonic()
        self._held_up = 0.0
        self._order = itertools.count()
        self._signal_actions = {}
        self._old_handlers = {}
        self._wakeup, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._wakeup_writer, False)
        self._old_wakeup = signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        self.on_readable(self._wakeup, self._take_signals)

    def on_readable(self, file: _File, action: Callable[[], object] | None) -> None:
        """Calls `action` whenever `file` can be read; None removes the action."""
        self._watch(file, select.POLLIN, action)

    def on_writable(self, file: _File, action: Callable[[], object] | None) -> None:
        """Calls `action` whenever `file` can be written; None removes the action."""
        self._watch(file, select.POLLOUT, action)

    def on_signal(self, number: int, action: Callable[[int], object]) -> None:
        """Calls ``action(number)`` from the loop after the signal ``number`` has arrived."""
        self._signal_actions[number] = action
        old = signal.signal(number, lambda *_: None)
        self._old_handlers.setdefault(number, old)

    @property
    def time(self) -> float:
        """The start of this round of events, on a clock that stops while the process is stopped."""
        return self._last - self._held_up

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Calls `action` once when ``seconds`` of `time` have passed."""
        heapq.heappush(self._alarms, (self.time + seconds, next(self._order), action))

    def close(self) -> None:
        """Restores the previous signal handlers; the loop must not be used afterwards."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._wakeup)
        os.close(self._wakeup_writer)

    def run(self, until: Callable[[], object]) -> None:
        """Serves events until ``until()`` is true."""
        self._last = time.monotonic()
        while not until():
            self._serve()

    def _watch(self, file, event, action):
        descriptor = file if isinstance(file, int) else file.fileno()
        actions = self._actions.setdefault(descriptor, {})
        actions.pop(event, None)
        if action:
            actions[event] = action
        if actions:
            self._poll.register(descriptor, sum(actions))
        else:
            del self._actions[descriptor]
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)

    def _serve(self):
        timeout = None
        if self._alarms:
            timeout = max(0, self._alarms[0][0] + self._held_up - time.monotonic())
        ready_files = self._poll.poll(timeout and math.ceil(timeout * 1000))
        self._notice_delay(timeout)
        for descriptor, ready in ready_files:
            for event in (select.POLLIN, select.POLLOUT):
                # An earlier action of this round may have removed this action.
                action = self._actions.get(descriptor, {}).get(event)
                if action and ready & (event | select.POLLHUP | select.POLLERR):
                    action()
        while self._alarms and self._alarms[0][0] <= self.time:
            heapq.heappop(self._alarms)[2]()

    def _notice_delay(self, timeout):
        now = time.monotonic()
        if timeout is not None and (late := now - self._last - timeout) > MOST_LATE:
            self._held_up += late
        self._last = now

    def _take_signals(self):
        for number in set(os.read(self._wakeup, 4096)):
            if number in self._signal_actions:
                self._signal_actions[number](number)


class Writer:
    """Buffers bytes for a file, and writes them when the file accepts them.

    Args:
        loop: The `Loop` that calls the writer.
        file: A file descriptor, or an object that has a file descriptor.
        write: Function that writes some of its bytes without blocking and returns their number.
        on_full: Function that is called when `full` changes.
        on_error: Function that is called with the OSError if writing fails.

    Example:
        >>> loop, (reader, writer) = Loop(), os.pipe()
        >>> output = Writer(loop, writer, lambda data: os.write(writer, data), print, print)
        >>> output.put(b"hello")
        >>> loop.run(until=lambda: not len(output))
        >>> os.read(reader, 5), loop.close(), os.close(reader), os.close(writer)
        (b'hello', None, None, None)
    """

    LIMIT = 1 << 20

    def __init__(
        self,
        loop: Loop,
        file: _File,
        write: Callable[[bytes], int],
        on_full: Callable[[], object],
        on_error: Callable[[OSError], object],
    ):
        self._loop, self._file, self._write_some = loop, file, write
        self._on_full, self._on_error = on_full, on_error
        self._waiting = bytearray()
        self._was_full = self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the buffer is so large that the source should pause."""
        return len(self._waiting) > self.LIMIT

    def put(self, data: bytes) -> None:
        """Adds bytes to the buffer, which has no limit."""
        if data and not self._closed:
            self._waiting += data
            self._loop.on_writable(self._file, self._write)
            self._tell_if_full()

    def close(self) -> None:
        """Drops the buffer and all later bytes."""
        self._closed = True
        self._waiting.clear()
        self._loop.on_writable(self._file, None)
        self._tell_if_full()

    def _write(self):
        try:
            written = self._write_some(bytes(self._waiting[:65536]))
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            self._on_error(error)
            return
        del self._waiting[:written]
        if not self._waiting:
            self._loop.on_writable(self._file, None)
        self._tell_if_full()

    def _tell_if_full(self):
        if self.full != self._was_full:
            self._was_full = self.full
            self._on_full()
