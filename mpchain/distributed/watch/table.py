"""The state of each rank of a communicator, in memory that the ranks of a host share.

A rank writes to its own row without locks. Other ranks read the row, even when its rank is stopped
or hangs. A text may be read while it is being written, so texts are used only for reports. Numbers
that affect decisions are single machine words.
"""

import ctypes
import enum
import mmap
from typing import Any

RING = 64
"""The number of latest collectives that a row describes."""

_TEXT = 480
_ANSWER = 992


class State(enum.IntEnum):
    """The current activity of a rank."""

    UNKNOWN = 0
    COMPUTING = 1
    IN_COLLECTIVE = 2
    WAITING = 3  # the rank waits for something else: a message, or a sum begun before
    ENDED = 4


_COUNTS = "pid n state asked answered is_reporting waits_for"
_TIMES = "since heartbeat active"


class Row(ctypes.Structure):
    """The state of one rank.

    Attributes:
        pid: process id.
        n: the number of collectives that the rank has entered.
        state: a :class:`State`, as an integer.
        asked, answered: the number of times that other ranks have asked for the rank's location,
            and the number of the last question that the rank has answered.
        is_reporting: whether the rank is about to report a failure.
        waits_for: in the state WAITING, encodes the only rank that can let this rank continue: 1
            plus its id if it is the sender, minus that number if it is the receiver. 0 if there is
            no such rank.
        since: time of the last change of state, by this host's monotonic clock, in seconds.
        heartbeat: the time when the rank's watchdog thread was last alive, by the same clock.
        active: the time when the rank was last seen working while computing, by the same clock.
        offset: the seconds to add to the following times, if they come from another host's clock.
        begun, done: the times when each of the last collectives was begun and was done; ``done`` is
            0 for a collective that is not done.
        tags: the number, shifted left by 32 bits, plus the fingerprint of each of the last
            collectives.
        texts: encoded descriptions of these collectives.
        wait_text: encoded description of the event for which the rank waits, if it is not a
            collective.
        answer: encoded location of the rank at the last question.

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
        """Returns the text of collective ``n``; None if the collective is too old or has not
        begun."""
        slot = n % RING
        return decode(self.texts[slot].value) if self.tags[slot] >> 32 == n else None

    def times_of(self, n: int) -> tuple[float, float]:
        """Returns the times when collective ``n`` was begun and done; the second is 0 if it is not
        done."""
        begun, done = self.begun[n % RING], self.done[n % RING]
        return begun + self.offset, done and done + self.offset


ROW = ctypes.sizeof(Row)
"""The number of bytes of a row."""


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
    """Returns ``n`` rows in ``memory``, or, without ``memory``, in memory of this process only."""
    memory = mmap.mmap(-1, n * ROW) if memory is None else memory
    return [Row.from_buffer(memory, i * ROW) for i in range(n)]
