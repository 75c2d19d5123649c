"""The flight recorder: a file that says after a failure what each rank called last."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpchain.distributed.watch.table import RING, State, decode

if TYPE_CHECKING:
    from mpchain.distributed.watch.watchdog import Watch

FILE = "flight_recorder.txt"

_STATES = {
    State.COMPUTING: "in no collective",
    State.IN_COLLECTIVE: "in the last collective below",
    State.ENDED: "its program has ended",
}


class Folder:
    """Where the file is written.

    Attributes:
        path: the folder; None until a trainer with a multi-node optimizer says where: no file.
    """

    path: str | None = None


folder = Folder()


def record(watch: "Watch", report: str) -> str:
    """Writes the file, if its folder is known.

    Args:
        watch: the watchdog of the rank that reports the failure.
        report: the failure.

    Returns:
        The report, with the name of the file.
    """
    if folder.path is None:
        return report
    path = os.path.join(folder.path, FILE)
    temporary = f"{path}.{secrets.token_hex(8)}"  # nobody can have made it before
    try:
        os.makedirs(folder.path, exist_ok=True)
        with open(temporary, "x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(watch, report))
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return f"{report}\n  ({path} could not be written: {error})"
    return report if path in report else f"{report}\n  (what each rank called last: {path})"


def lines(watch: "Watch", report: str) -> Iterator[str]:
    """Yields the lines of the file; see :func:`record`."""
    now = watch.clock()
    yield f"{time.strftime('%Y-%m-%d %H:%M:%S')}  rank {watch.world_ranks[watch.rank]} reports:"
    yield from report.splitlines()
    yield ""
    yield f"The last collectives of each rank, up to {RING}. Equal numbers belong together; * marks"
    yield "those that differ from another rank's. Times are in seconds: begun before this file was"
    yield "written, took until it was done."
    tags = [_tags(row) for row in watch.rows]
    for rank, row in enumerate(watch.rows):
        yield ""
        yield from _of_rank(watch, rank, row, tags, now)


def _tags(row):
    """Returns the fingerprints of the collectives of a row, by number."""
    return {tag >> 32: tag for tag in row.tags if tag}


def _of_rank(watch, rank, row, tags, now):
    place = f"rank {watch.world_ranks[rank]} (host {watch.hosts[rank]}, process {row.pid})"
    if row.state == State.UNKNOWN:
        yield f"{place}: nothing is known of it"
        return
    state = _STATES.get(row.state, f"waiting in {decode(row.wait_text)}")
    yield f"{place}: for {now - row.since:.3f} s {state}"
    yield f"  {'number':>8}  {'begun':>10}  {'took':>10}  call"
    for n, tag in sorted(tags[rank].items()):
        begun, done = row.times_of(n)
        took = f"{done - begun:10.6f}" if done else f"{'not done':>10}"
        mark = "*" if any(other.get(n, tag) != tag for other in tags) else " "
        yield f"{mark} {n:8}  {now - begun:10.3f}  {took}  {row.text_of(n)}"
