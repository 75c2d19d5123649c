"""Shows a line only once if several ranks print it at about the same time."""

import bisect
from collections import deque
from collections.abc import Sequence

from .binding import listing
from .output import TRACEBACK

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .loop import Loop, Writer

# A line waits this many seconds for other ranks to print the same. People do not notice this delay.
TIME_TO_AGREE = 0.2
MOST_HELD = 1000
# The frames of this many tracebacks are remembered.
MOST_TRACEBACKS = 100


def label(ranks: list[int]) -> bytes:
    """Returns the prefix of a line that these ranks have printed.

    Example:
        >>> label([2]), label([3, 0, 1, 5])
        (b'[2] ', b'[0-1,3,5] ')
    """
    return f"[{listing(ranks)}] ".encode()


def split_traceback(lines: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Returns the header and frames of a traceback (empty without one) and the lines after them.

    Example:
        >>> split_traceback([TRACEBACK + b"\\n", b"  File ...\\n", b"KeyError: 1\\n"])[1]
        [b'KeyError: 1\\n']
        >>> split_traceback([b"loaded\\n"])
        ([], [b'loaded\\n'])
    """
    if not lines[0].startswith(TRACEBACK):
        return [], lines
    ends = (i for i, line in enumerate(lines) if i and not line.startswith(b" "))
    end = next(ends, len(lines))
    return lines[:end], lines[end:]


class _Piece:
    """Some lines, or a part of a line, and the ranks that printed the text."""

    __slots__ = ("due", "key", "line", "number", "ranks", "screen")

    def __init__(self, number, screen, key, rank, due, line):
        self.number, self.screen, self.key, self.due, self.line = number, screen, key, due, line
        self.ranks = [rank]


class Merger:
    """Shows output; text that several ranks print within `TIME_TO_AGREE` is shown once.

    A line waits at most `TIME_TO_AGREE` for the same line of the other ranks, and for the lines
    before it. The lines of a rank therefore keep their order on each screen, and no line is lost.
    If a rank prints another rank's traceback later, or with another exception, the frames are not
    shown again.

    Args:
        loop: The `Loop` that calls the merger.
        n: The number of ranks; the output of a single rank is shown at once, unchanged.

    Attributes:
        n_lines: The number of lines that are shown or waiting; equal lines of several ranks count
            once.

    Example:
        >>> from launch.loop import Loop
        >>> class Screen:
        ...     put = print
        >>> loop, screen = Loop(), Screen()
        >>> merger = Merger(loop, n=2)
        >>> merger.put(screen, b"[0] hello\\n", 0), merger.put(screen, b"[1] hello\\n", 1)
        b'[0-1] hello\\n'
        (1, 1)
        >>> loop.close()
    """

    def __init__(self, loop: "Loop", n: int):
        self._loop, self._n = loop, n
        self._waiting = deque()
        self._same = {}  # maps screen and text to the pending pieces
        self._last = {}  # maps screen and rank to the number of its last piece
        self._frames = {}  # maps screen and frames of a traceback to the ranks that showed them
        self._is_timed = False
        self.n_lines = self._n_pieces = 0

    def put(
        self, screen: "Writer", shown: bytes, rank: int | None = None, whole: bool = False
    ) -> int:
        """Adds output of a rank or of the launcher.

        Args:
            screen: The screen on which the output is shown.
            shown: The output; if there are several ranks, each line of a rank begins with `label`.
            rank: The rank that printed the output; None for the launcher.
            whole: Whether the lines stay together, like those of a traceback.

        Returns:
            The number of the output's last line, counted in the same way as `n_lines`.
        """
        if self._n == 1:
            screen.put(shown)
            self.n_lines += shown.count(b"\n")
            return self.n_lines
        line, prefix = self.n_lines, b"" if rank is None else label([rank])
        lines = shown.splitlines(keepends=True)
        for piece in [lines] if whole or rank is None else [[line] for line in lines]:
            line = self._add(screen, piece, rank, prefix)
        self._show_what_is_due()
        return line

    def expect(self, n: int) -> None:
        """Lowers to `n` the number of ranks for whose lines others wait, after losses."""
        self._n = min(self._n, max(n, 2))

    def release(self) -> None:
        """Shows all waiting lines."""
        while self._waiting:
            self._show_first()

    def _add(self, screen, lines, rank, prefix):
        # Incomplete lines, and lines that will be overwritten, are not compared.
        can_merge = prefix and lines[0].startswith(prefix) and lines[-1].endswith(b"\n")
        if can_merge:
            key = screen, *[line.removeprefix(prefix) for line in lines]
            same = self._same.setdefault(key, [])
            # Text that a rank prints twice counts as two lines; text printed later is shown later.
            after = self._last.get((screen, rank), -1)
            place = bisect.bisect(same, after, key=lambda piece: piece.number)
            if place < len(same):
                piece = same[place]
                piece.ranks.append(rank)
                if len(piece.ranks) == self._n:
                    piece.due = self._loop.time
                self._last[screen, rank] = piece.number
                return piece.line
        else:
            key, same = (screen, *lines), []
        self.n_lines += len(lines)
        due = self._loop.time + (TIME_TO_AGREE if can_merge else 0.0)
        piece = _Piece(self._n_pieces, screen, key, rank if can_merge else None, due, self.n_lines)
        self._n_pieces += 1
        self._waiting.append(piece)
        same.append(piece)
        self._last[screen, rank] = piece.number
        return piece.line

    def _show_what_is_due(self):
        waiting, now = self._waiting, self._loop.time
        while waiting and (waiting[0].due <= now or len(waiting) > MOST_HELD):
            self._show_first()
        if waiting and not self._is_timed:
            self._is_timed = True
            self._loop.after(waiting[0].due - now, self._ring)

    def _ring(self):
        self._is_timed = False
        self._show_what_is_due()

    def _show_first(self):
        piece = self._waiting.popleft()
        screen, *lines = piece.key
        if piece.ranks == [None]:
            screen.put(b"".join(lines))
            return
        prefix = label(piece.ranks)
        shown = self._without_known_frames(screen, lines, piece.ranks)
        screen.put(b"".join([prefix + line for line in shown]))
        same = self._same[piece.key]
        del same[0]
        if not same:
            del self._same[piece.key]

    def _without_known_frames(self, screen, lines, ranks):
        frames, rest = split_traceback(lines)
        if not frames:
            return lines
        before = self._frames.pop((screen, *frames), [])
        if before and not set(before) & set(ranks):
            lines = [
                b"the traceback of " + label(before).strip() + b" above ends here with:\n",
                *rest,
            ]
            ranks = before + ranks
        self._frames[screen, *frames] = ranks
        if len(self._frames) > MOST_TRACEBACKS:
            del self._frames[next(iter(self._frames))]
        return lines
