"""Where each rank of a communicator stands, in memory that the ranks of its host share.

A rank writes to its own row without waiting for anybody; whoever wants to know reads it, also when
the rank is stopped or stuck. What is read may be torn, since nothing is locked: it is for reports,
and numbers that decide something are single words.
"""

import enum
import mmap

RING = 16
"""So many of its latest collectives each row describes."""

_TEXT = 480
_ANSWER = 992
_NUMBERS, _TIMES = 6, 3


class State(enum.IntEnum):
    """What a rank is doing."""

    UNKNOWN = 0
    COMPUTING = 1
    IN_COLLECTIVE = 2
    WAITING = 3  # for anything else: a message, a sum that was begun before
    ENDED = 4


class _Numbers(enum.IntEnum):
    PID = 0
    N = 1
    STATE = 2
    ASKED = 3
    ANSWERED = 4
    IS_REPORTING = 5


def _number(index):
    """A property of :class:`Row` that is one of its numbers."""
    return property(
        lambda row: row.numbers[index], lambda row, value: row.numbers.__setitem__(index, value)
    )


def _time(index):
    return property(
        lambda row: row.times[index], lambda row, value: row.times.__setitem__(index, value)
    )


class Row:
    """What one rank tells of itself.

    Args:
        memory (memoryview): the ``ROW`` bytes of the row.

    Attributes:
        pid: of the process.
        n: how many collectives the rank has entered.
        state: a :class:`State`, as an integer.
        asked, answered: how often another rank has asked where it is, and up to which of these
            questions it has answered.
        is_reporting: whether the rank is about to report a failure.
        since: when it came to its present state, by this host's monotonic clock.
        heartbeat: when its watching thread was last alive, by the same clock.
        active: when it was last seen at work while it was computing, by the same clock.
    """

    pid = _number(_Numbers.PID)
    n = _number(_Numbers.N)
    state = _number(_Numbers.STATE)
    asked = _number(_Numbers.ASKED)
    answered = _number(_Numbers.ANSWERED)
    is_reporting = _number(_Numbers.IS_REPORTING)
    since = _time(0)
    heartbeat = _time(1)
    active = _time(2)

    def __init__(self, memory):
        self.memory = memory
        tags, texts = 8 * (_NUMBERS + _TIMES), 8 * (_NUMBERS + _TIMES + RING)
        self.numbers = memory[: 8 * _NUMBERS].cast("q")
        self.times = memory[8 * _NUMBERS : tags].cast("d")
        self.tags = memory[tags:texts].cast("q")
        self.texts = [memory[texts + i * _TEXT :][:_TEXT] for i in range(RING)]
        self._wait_text = memory[texts + RING * _TEXT :][:_TEXT]
        self._answer = memory[texts + (RING + 1) * _TEXT :][:_ANSWER]

    def text_of(self, n):
        """What the rank's ``n``-th collective was; None if it has not come, or was long ago."""
        return read(self.texts[n % RING]) if self.tags[n % RING] >> 32 == n else None

    @property
    def wait_text(self):
        """What the rank waits for, where that is no collective."""
        return read(self._wait_text)

    @wait_text.setter
    def wait_text(self, encoded):
        self._wait_text[: len(encoded)] = encoded

    @property
    def answer(self):
        """Where the rank was when it was last asked."""
        return read(self._answer)

    @answer.setter
    def answer(self, text):
        encoded = encode(text, _ANSWER)
        self._answer[: len(encoded)] = encoded


ROW = 8 * (_NUMBERS + _TIMES + RING) + (RING + 1) * _TEXT + _ANSWER


def encode(text, size=_TEXT):
    """Returns a text as bytes that fit into its place in a row, cut in the middle if too long."""
    encoded = text.encode(errors="replace")
    if len(encoded) >= size:
        half = (size - 5) // 2
        encoded = encoded[:half] + b"..." + encoded[-half:]
    return encoded + b"\0"


def read(place):
    """Returns the text in a place of a row."""
    return bytes(place).partition(b"\0")[0].decode(errors="replace")


def make_rows(n, memory=None):
    """Returns ``n`` rows in ``memory``, or in memory of this process alone."""
    view = memoryview(mmap.mmap(-1, n * ROW) if memory is None else memory)
    return [Row(view[i * ROW : (i + 1) * ROW]) for i in range(n)]
