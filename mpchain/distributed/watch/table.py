"""State of each rank of a communicator, in memory that the ranks of its host share.

A rank writes to its own row without locks. Other ranks read the row, even when its rank is stopped
or hangs. A text may be read while it is written, so texts are used only for reports. Numbers that
affect decisions are single machine words.
"""

import ctypes
import enum
import mmap
from typing import Any

RING = 64
"""Number of a rank's latest collectives that its row describes."""

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
        asked, answered: the number of times that other ranks have asked for its location, and the
            number of the last question that it has answered.
        is_reporting: whether the rank is about to report a failure.
        waits_for: in the state WAITING, 1 plus the id of the only rank that can let this rank
            continue; negative for a receiver, positive for a sender. 0 if there is no such rank.
        since: time of the last change of state, by this host's monotonic clock, in seconds.
        heartbeat: the time when the rank's watchdog thread was last alive, by the same clock.
        active: the time when the rank was last seen working while computing, by the same clock.
        offset: the seconds to add to the following times, if they come from another host's clock.
        begun, done: the times when each of the last collectives was begun and done; 0 if it is not
            done.
        tags: number and fingerprint of each of the last collectives.
        texts: encoded descriptions of these collectives.
        wait_text: encoded description of the event that the rank waits for, other than a
            collective.
        answer: encoded location of the rank when it was last asked.

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
        """Returns the text of collective ``n``; None if it is too old or has not begun."""
        slot = n % RING
        return decode(self.texts[slot].value) if self.tags[slot] >> 32 == n else None

    def times_of(self, n: int) -> tuple[float, float]:
        """Returns the times when collective ``n`` was begun and done; 0 if it is not done."""
        begun, done = self.begun[n % RING], self.done[n % RING]
        return begun + self.offset, done and done + self.offset


ROW = ctypes.sizeof(Row)
"""Bytes of a row."""


def encode(text: str, size: int = _TEXT) -> bytes:
    """Encodes a text in at most ``size`` bytes; the middle of a longer text is left out.

    >>> encode("collective", 7)
    b'co...ve'
    """
    encoded = text.encode(errors="replace")
    if len(encoded) <= size:
        return encoded
    half = (size - 3) // 2
    return encoded[:half] + b"..." + encoded[-half:]


def encode_answer(text: str) -> bytes:
    """Encodes a text for :attr:`Row.answer`."""
    return encode(text, _ANSWER)


def decode(encoded: bytes) -> str:
    """Decodes bytes of :func:`encode`, in which a character may be cut.

    >>> decode(b"a sum")
    'a sum'
    """
    return encoded.decode(errors="replace")


def make_rows(n: int, memory: Any = None) -> list[Row]:
    """Returns ``n`` rows in ``memory``, or in memory that only this process sees."""
    memory = mmap.mmap(-1, n * ROW) if memory is None else memory
    return [Row.from_buffer(memory, i * ROW) for i in range(n)]
