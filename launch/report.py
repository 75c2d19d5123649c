"""The report after a failure: how each rank ended, and where in the code it was."""

import contextlib
import os
import re
import signal

from .binding import listing

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .remote_rank import Rank

MOST_LINES = 20

# Frames in these folders are skipped, because a position in the user's own program says more.
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_MPCHAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mpchain", "")
_STARTERS = (
    "start_program.py",
    os.path.join("mpi4py", "run.py"),
    os.path.join("mpi4py", "__main__.py"),
)
_FRAME = re.compile(rb'  File "(.*)", line (\d+) in (.*)')


def describe_end(code: int, oom_kills: int = -1) -> str:
    """Returns a text that says how a process ended.

    Args:
        code: The process's exit code, or -n if signal n killed it.
        oom_kills: The number of processes that the host's kernel has meanwhile ended because memory
            ran out; -1 if unknown.

    Example:
        >>> describe_end(3), describe_end(-15)
        ('ended with exit code 3', 'was killed by SIGTERM (signal 15)')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = f"{signal.Signals(-code).name} ({name})"
    if -code != signal.SIGKILL or not oom_kills:
        return f"was killed by {name}"
    memory = "because memory ran out on its host"
    return f"was killed by {name}, {memory if oom_kills > 0 else 'perhaps because memory ran out'}"


def describe_place(stacks: bytes) -> str:
    """Returns the position of a program: its innermost function, and the user's innermost function.

    Args:
        stacks: The stacks of the program's threads in faulthandler's format; may be empty.

    Returns:
        A text such as ``at train.py:40 in main, inside wait (threading.py:320)``; may be empty.

    Example:
        >>> describe_place(b'Current thread 0x1:\\n  File "a.py", line 7 in f')
        'at a.py:7 in f'
    """
    # The main thread comes last. If it waits for another thread, that thread's stack says more.
    before, head, current = stacks.rpartition(b"Current thread")
    others = before.rpartition(b"Current thread")[2].split(b"Thread 0x")[1:]
    threads = [_frames(each) for each in [current, *others]] if head else [[]]
    frames, users = next(((f, u) for f in threads if (u := _users(f))), (threads[0], []))
    if not frames:
        return ""
    path, line, function = (users or frames)[0]
    place = f"at {os.path.basename(path)}:{line} in {function}"
    if users and users[0] is not frames[0]:
        path, line, function = frames[0]
        place += f", inside {function} ({os.path.basename(path)}:{line})"
    return place


def _frames(stack):
    frames = [match.groups() for match in map(_FRAME.fullmatch, stack.splitlines()) if match]
    frames = [tuple(part.decode(errors="replace") for part in frame) for frame in frames]
    return [frame for frame in frames if not _is_starter(frame[0])]


def _users(frames):
    return [frame for frame in frames if not _is_library(frame[0])]


def describe_ranks(ranks: dict, n: int, without: "Rank | None" = None) -> list[str]:
    """Returns one line for each group of ranks on one host that ended in the same way; after
    ``MOST_LINES`` lines, the last line counts the groups that are left out.

    Args:
        ranks: Maps each number of a rank whose supervisor has introduced itself to its `Rank`.
        n: The number of all ranks.
        without: A `Rank` to omit.

    Example:
        >>> describe_ranks({}, n=4)
        ['ranks 0-3: never started']
    """
    groups = {}
    for number in range(n):
        rank = ranks.get(number)
        if rank is None:
            groups.setdefault(("", "never started"), []).append(number)
        elif rank is not without:
            groups.setdefault((f" on {rank.host}", _describe_fate(rank)), []).append(number)
    lines = [f"{describe_numbers(g)}{host}: {fate}" for (host, fate), g in groups.items()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"and {len(lines) - MOST_LINES} more such lines"]
    return lines


def describe_binding(ranks: dict) -> str:
    """Returns a text that says to which processors the ranks were bound, for the first
    ``MOST_LINES`` groups of ranks with equal bindings on one host.

    Args:
        ranks: Maps the number of each rank to its `Rank`.

    Example:
        >>> describe_binding({})
        'binding: '
    """
    groups = {}
    for number, rank in sorted(ranks.items()):
        groups.setdefault((rank.host, rank.bound), []).append(number)
    texts = [f"{describe_numbers(g)} on {host}: {text}" for (host, text), g in groups.items()]
    more = f"; and {len(texts) - MOST_LINES} more" if len(texts) > MOST_LINES else ""
    return f"binding: {'; '.join(texts[:MOST_LINES])}{more}"


def describe_exception(lines: list[bytes]) -> str:
    """Returns the line of the last traceback that names the exception; empty if there is no
    traceback.

    Args:
        lines: The output, starting with the header of the first traceback.

    Example:
        >>> describe_exception([b"Traceback (most recent call last):", b"  ...", b"KeyError: 1"])
        'KeyError: 1'
    """
    name = ""
    for line in lines:
        text = line.decode(errors="replace").rstrip()
        if text.startswith("Traceback (most recent call last):"):
            name = ""
        elif text and not name and text[0] not in " |+":
            name = text.removeprefix("Fatal Python error: ")
    return name if len(name) <= 200 else f"{name[:197]}..."


def _describe_fate(rank):
    if rank.ended and rank.ended_itself:
        return describe_end(rank.code, rank.oom_kills).removeprefix("was ")
    if rank.lost:
        fate = f"lost: {rank.lost}"
    else:
        fate = "terminated by mpchain-launch" if rank.ended else "killed because it did not end"
        fate = "had finished; " * rank.done + "was stopped; " * rank.is_stopped + fate
    place = describe_place(rank.stacks)
    return f"{fate}, {place}" if place else fate


def _is_library(path):
    # Functions that mpchain generates have file names such as <mpchain: relu, 1>.
    return (
        path.startswith((_STANDARD_LIBRARY, _MPCHAIN, "<mpchain")) or "-packages" + os.sep in path
    )


def _is_starter(path):
    return path.startswith("<frozen") or path.endswith(_STARTERS)


def describe_numbers(numbers: list[int]) -> str:
    """Returns a text that names ranks, in ascending order.

    Example:
        >>> describe_numbers([0, 1, 2, 5])
        'ranks 0-2, 5'
    """
    return f"rank{'s' * (len(numbers) > 1)} {listing(numbers).replace(',', ', ')}"
