"""State of each rank of a communicator, in memory that the ranks of its host share.

A rank writes to its own row without locks. Other ranks read it, also when its rank is stopped or
hangs. A text may be read while it is written: texts are only for reports. Numbers that decide
something are single machine words.
"""

import ctypes
import enum
import mmap
from typing import Any

RING = 64
"""Number of its latest collectives that each row describes."""

_TEXT = 480
_ANSWER = 992


class State(enum.IntEnum):
    """The current activity of a rank."""

    UNKNOWN = 0
    COMPUTING = 1
    IN_COLLECTIVE = 2
    WAITING = 3  # the rank waits for anything else: a message, or a sum that was begun before
    ENDED = 4


_COUNTS = "pid n state asked answered is_reporting waits_for"
_TIMES = "since heartbeat active"


class Row(ctypes.Structure):
    """The state of one rank.

    Attributes:
        pid: process id.
        n: the number of collectives that the rank has entered.
        state: a :class:`State`, as an integer.
        asked, answered: how often another rank has asked where it is, and up to which of these
            questions it has answered.
        is_reporting: whether the rank is about to report a failure.
        waits_for: in the state WAITING the only rank that can let it continue, plus 1: a receiver
            with a minus sign, or a sender. 0 if there is no such rank.
        since: time of the last change of state, by this host's monotonic clock, in seconds.
        heartbeat: when its watchdog thread was last alive, by the same clock.
        active: when it was last seen at work while it was computing, by the same clock.
        offset: what is added to the following times, if they come from another host's clock.
        begun, done: when each of the last collectives was begun and done; 0 if it is not done.
        tags: number and fingerprint of each of the last collectives.
        texts: descriptions of these, encoded.
        wait_text: what the rank waits for, other than a collective, encoded.
        answer: where the rank was when it was last asked, encoded.

    Example:
        >>> (row,) = make_rows(1)
        >>> row.n, row.wait_text = 3, b"a sum"
        >>> row.n, row.wait_text, row.state == State.UNKNOWN
        (3, b'a sum', True)
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in _COUNTS.split()),
        *((name, ctypes.c_double) for name in _TIMES.split()),
        ("offset", ctypes.c_double),
        ("begun", ctypes.c_double * RING),
        ("done", ctypes.c_double * RING),
        ("tags", ctypes.c_int64 * RING),
        ("texts", (ctypes.c_char * _TEXT) * RING),
        ("wait_text", ctypes.c_char * _TEXT),
        ("answer", ctypes.c_char * _ANSWER),
    ]

    def text_of(self, n: int) -> str | None:
        """Returns the text of collective ``n``; None if it is too old, or has not begun."""
        slot = n % RING
        return decode(self.texts[slot].value) if self.tags[slot] >> 32 == n else None

    def times_of(self, n: int) -> tuple[float, float]:
        """Returns when collective ``n`` was begun and done; 0 if it is not done."""
        begun, done = self.begun[n % RING], self.done[n % RING]
        return begun + self.offset, done and done + self.offset


ROW = ctypes.sizeof(Row)
"""Bytes of a row."""


def encode(text: str, size: int = _TEXT) -> bytes:
    """Returns a text as at most ``size`` bytes; the middle of a longer one is left out.

    >>> encode("collective", 7)
    b'co...ve'
    """
    encoded = text.encode(errors="replace")
    if len(encoded) <= size:
        return encoded
    half = (size - 3) // 2
    return encoded[:half] + b"..." + encoded[-half:]


def encode_answer(text: str) -> bytes:
    """Returns a text for :attr:`Row.answer`."""
    return encode(text, _ANSWER)


def decode(encoded: bytes) -> str:
    """Returns the text of encoded bytes, in which a character may be cut.

    >>> decode(b"a sum")
    'a sum'
    """
    return encoded.decode(errors="replace")


def make_rows(n: int, memory: Any = None) -> list[Row]:
    """Returns ``n`` rows in ``memory``, or in memory that only this process sees."""
    memory = mmap.mmap(-1, n * ROW) if memory is None else memory
    return [Row.from_buffer(memory, i * ROW) for i in range(n)]
