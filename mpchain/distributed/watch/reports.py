"""Reports of ranks that are missing, that called a different collective, or that wait for each
other.

With the report of a failure that ends the job, the flight recorder writes a file that lists the
last calls of each rank, if its folder is known.
"""

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mpchain.backends import linux
from mpchain.distributed.watch.table import RING, Row, State, decode

if TYPE_CHECKING:
    from mpchain.distributed.watch.watchdog import Watch

TIME_TO_ABORT = 5.0
"""Seconds after which a process is killed if ``MPI_Abort`` has not ended it."""


def mismatch(watch: "Watch", n: int, ranks: Collection[int]) -> str:
    """Returns the report of a collective that differs between ranks.

    Args:
        watch: the watchdog of the rank that reports.
        n: the number of the collective.
        ranks: the ranks among which the collective differs.
    """
    texts = {rank: watch.rows[rank].text_of(n) for rank in range(len(watch.rows))}
    known = {r: text for r, text in texts.items() if text is not None or r in ranks}
    lines = [f"  {who}: {text}" for who, text in _grouped(watch, known)]
    absent = [rank for rank in texts if rank not in known]
    if absent:
        lines.append(f"  {_name(watch, absent)}: has not reached it yet")
    return "\n".join([f"collective {n} differs between ranks:", *lines])


def find_mismatch(watch: "Watch") -> tuple[int, list[int]] | None:
    """Returns the number of a collective that differs between ranks, and two of these ranks; None
    if no difference is found."""
    for slot in range(RING):
        tags = [row.tags[slot] for row in watch.rows]
        mine = tags[watch.rank]
        for rank, tag in enumerate(tags):
            if tag != mine and tag >> 32 == mine >> 32 and mine:
                return mine >> 32, [watch.rank, rank]
    return None


def missing(watch: "Watch", text: str, waited: float, must_end: bool = True) -> str:
    """Returns the report of missing ranks.

    Args:
        watch: the watchdog of the rank that reports.
        text: the event that this rank waits for.
        waited: the number of seconds that it has waited.
        must_end: whether the job ends.
    """
    ranks, who = absent(watch), ""
    if ranks:
        who = f" for {_name(watch, ranks)}"
        if all(watch.rows[rank].state == State.ENDED for rank in ranks):
            who += f", whose program{'s have' if len(ranks) > 1 else ' has'} ended,"
    lines = [f"has waited {waited:.0f} s{who} in {text}", places_of(watch)]
    hint = "see create_communicator(timeout=...) and MPCHAIN_COLLECTIVE_TIMEOUT"
    if not must_end:
        lines.append(
            f"  (the job continues, since {'it works' if len(ranks) == 1 else 'they work'}; a rank "
            f"that stops, or neither computes nor reads nor writes for {watch.timeout:g} s, "
            f"will end it; {hint})"
        )
    elif waited >= watch.longest_wait:
        lines.append(f"  (ranks that work are waited for at most {watch.longest_wait:g} s; {hint})")
    elif waited >= watch.timeout:
        lines.append(f"  (timeout {watch.timeout:g} s without any sign of work; {hint})")
    return "\n".join(lines)


def circle_of(rows: Sequence[Row]) -> set[int]:
    """Returns ranks in a deadlock: each can continue only after another of these ranks does.

    A rank in :meth:`send` or :meth:`recv` needs the other rank, and a rank in a collective needs
    all ranks that have not reached it. A sender and its receiver that have both arrived do not
    wait.

    >>> from mpchain.distributed.watch.table import make_rows
    >>> rows = make_rows(2)
    >>> rows[0].state = rows[1].state = State.WAITING
    >>> rows[0].waits_for, rows[1].waits_for = -2, -1  # each sends, so neither receives
    >>> circle_of(rows)
    {0, 1}
    """
    needs = {}
    for rank, row in enumerate(rows):
        if row.state == State.IN_COLLECTIVE:
            needs[rank] = {other for other, its in enumerate(rows) if its.n < row.n}
        elif row.state == State.WAITING and row.waits_for:
            other = abs(row.waits_for) - 1
            comes = rank + 1 if row.waits_for < 0 else -rank - 1
            is_there = rows[other].state == State.WAITING and rows[other].waits_for == comes
            needs[rank] = set() if is_there else {other}
    stuck = set(needs)
    while free := {rank for rank in stuck if not needs[rank] & stuck}:
        stuck -= free
    return stuck


def circle(watch: "Watch", ranks: Collection[int]) -> str:
    """Returns the report of ranks that wait for each other.

    Args:
        watch: the watchdog of the rank that reports.
        ranks: the ranks that wait for each other.
    """
    return "\n".join(
        [
            f"{_name(watch, ranks)} wait for each other, so that none of them can continue:",
            places_of(watch),
            "  (send waits until the receiver calls recv: of two ranks one must receive first; "
            "sendrecv, shift and permute of mpchain.distributed.functions avoid this wait)",
        ]
    )


def absent(watch: "Watch") -> list[int]:
    """Returns the ranks for which other ranks wait."""
    if watch.is_leaving:
        # A rank that has ended may have been stopped before it could finalize MPI.
        now = watch.clock()
        return [
            rank
            for rank, row in enumerate(watch.rows)
            if row.state != State.ENDED or now - row.heartbeat > watch.timeout
        ]
    last = max(row.n for row in watch.rows)
    late = {rank for rank, row in enumerate(watch.rows) if row.n < last or row.answered < row.asked}
    if late and watch.oldest_unfinished() is not None:
        return sorted(late)  # all others have arrived, and wait for their GPUs
    idle = (State.UNKNOWN, State.COMPUTING, State.ENDED)
    return [rank for rank, row in enumerate(watch.rows) if rank in late or row.state in idle]


def places_of(watch: "Watch") -> str:
    """Returns the location of each rank: one line for each group of ranks with the same
    location."""
    now = watch.clock()
    lines = {rank: _place(watch, rank, now) for rank in range(len(watch.rows))}
    return "\n".join(f"  {who}: {text}" for who, text in _grouped(watch, lines))


def _place(watch, rank, now):
    row = watch.rows[rank]
    if row.state == State.UNKNOWN:
        return f"no heartbeat from this rank or from host {watch.hosts[rank]}"
    text, age = row.text_of(row.n), f"{max(now - row.since, 0):.0f} s"
    collective = f"collective {row.n}, {text}"
    last = f"its last one was {collective}" if row.n else "it was in none so far"
    if row.state == State.ENDED:
        place = f"its program ended {age} ago; {last}"
    elif row.state == State.IN_COLLECTIVE:
        place = f"for {age} in {collective}"
    elif row.state == State.WAITING:
        place = f"for {age} waiting in {decode(row.wait_text)}; {last}"
    else:
        place = f"for {age} in no collective; {last}"
    if row.state == State.ENDED and not watch.is_leaving:
        return place
    if row.answered < row.asked:
        return f"{place}; {_why_silent(watch, rank)}"
    return f"{place}; now at {decode(row.answer)}" if row.state == State.COMPUTING else place


def _why_silent(watch, rank):
    row = watch.rows[rank]
    where = f"process {row.pid} on {watch.hosts[rank]}"
    if watch.hosts[rank] == watch.hosts[watch.rank]:
        state = state_of_process(row.pid)
        if state:
            return f"{where} {state}"
    return f"{where} does not answer"


GONE = ("is gone", "is dead")


def state_of_process(pid: int) -> str:
    """Returns why a process of this host does not run, as Linux says; an empty string if it runs.

    >>> state_of_process(os.getpid())
    ''
    """
    state, *_ = linux.status(pid) or [""]
    if not state and os.path.isdir("/proc/self") and not os.path.exists(f"/proc/{pid}"):
        return "is gone"
    names = {"T": "is stopped by a signal", "t": "is stopped by a debugger", "Z": "is dead"}
    return names.get(state, "")


def _grouped(watch, texts):
    """Yields each text with the names of its ranks."""
    groups = {}
    for rank, text in texts.items():
        groups.setdefault(text, []).append(rank)
    for text, ranks in groups.items():
        yield _name(watch, ranks), text


def _name(watch, ranks):
    """Returns a text such as "ranks 1-3", with the ranks' numbers in the whole job."""
    parts = []
    for rank in sorted(watch.world_ranks[rank] for rank in ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def tell(world: Any, text: str) -> None:
    """Prints a text after the name of this rank.

    Args:
        world: ``mpi4py.MPI.Comm`` of all ranks of the job.
        text: the text to print.
    """
    sys.stdout.flush()
    # The text is written in one call, so that the lines of several failing ranks do not mix.
    sys.stderr.write(f"rank {world.rank} of {world.size}: {text}\n")
    sys.stderr.flush()


def end_job(world: Any, text: str, end_gpu_work: Callable[[], None] | None = None) -> None:
    """Prints a text after the name of this rank, and ends all ranks.

    Args:
        world: ``mpi4py.MPI.Comm`` of all ranks of the job.
        text: the reason why the job ends.
        end_gpu_work: function that aborts the work on the GPU first; None if there is no such work.
    """
    # If the abort hangs, this process must end nevertheless; mpirun then ends the other ranks.
    killer = threading.Timer(TIME_TO_ABORT, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()
    tell(world, text)
    try:
        if end_gpu_work is not None:
            end_gpu_work()
    finally:
        world.Abort(1)


FILE = "flight_recorder.txt"

_STATES = {
    State.COMPUTING: "in no collective",
    State.IN_COLLECTIVE: "in the last collective below",
    State.ENDED: "its program has ended",
}


class Folder:
    """The location of the flight recorder's file.

    Attributes:
        path: the folder; None until :meth:`Communicator.record_failures` sets it. Without a
            folder, no file is written.
    """

    path: str | None = None


folder = Folder()


def record(watch: "Watch", report: str) -> str:
    """Writes the flight recorder's file, if its folder is known.

    Args:
        watch: the watchdog of the rank that reports the failure.
        report: the report of the failure.

    Returns:
        The report, with the name of the file if there is a folder, or with the error if the file
        could not be written.
    """
    if folder.path is None:
        return report
    path = os.path.join(folder.path, FILE)
    # The name is random, so no other user can have created the file before.
    temporary = f"{path}.{secrets.token_hex(8)}"
    try:
        os.makedirs(folder.path, exist_ok=True)
        with open(temporary, "x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in record_lines(watch, report))
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return f"{report}\n  ({path} could not be written: {error})"
    return report if path in report else f"{report}\n  (what each rank called last: {path})"


def record_lines(watch: "Watch", report: str) -> Iterator[str]:
    """Yields the lines of the flight recorder's file; see :func:`record`."""
    now = watch.clock()
    yield f"{time.strftime('%Y-%m-%d %H:%M:%S')}  rank {watch.world_ranks[watch.rank]} reports:"
    yield from report.splitlines()
    yield ""
    yield f"The last collectives of each rank, up to {RING}. Equal numbers are one collective; *"
    yield "marks calls that differ from another rank's. Times are in seconds: 'begun' is before"
    yield "this file was written, 'took' until the call was done."
    tags = [_tags(row) for row in watch.rows]
    for rank, row in enumerate(watch.rows):
        yield ""
        yield from _of_rank(watch, rank, row, tags, now)


def _tags(row):
    """Returns a dict from number to fingerprint of the collectives of a row."""
    return {tag >> 32: tag for tag in row.tags if tag}


def _of_rank(watch, rank, row, tags, now):
    place = f"rank {watch.world_ranks[rank]} (host {watch.hosts[rank]}, process {row.pid})"
    if row.state == State.UNKNOWN:
        yield f"{place}: nothing is known of this rank"
        return
    state = _STATES.get(row.state, f"waiting in {decode(row.wait_text)}")
    yield f"{place}: for {now - row.since:.3f} s {state}"
    yield f"  {'number':>8}  {'begun':>10}  {'took':>10}  call"
    for n, tag in sorted(tags[rank].items()):
        begun, done = row.times_of(n)
        took = f"{done - begun:10.6f}" if done else f"{'not done':>10}"
        mark = "*" if any(other.get(n, tag) != tag for other in tags) else " "
        yield f"{mark} {n:8}  {now - begun:10.3f}  {took}  {row.text_of(n)}"
