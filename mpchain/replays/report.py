"""Prints the results of a replay."""

from collections.abc import Sequence

from mpchain.replays import comparison, rounding
from mpchain.replays.finder import Finding
from mpchain.replays.replay import Replay
from mpchain.replays.samples import parts_of_rank, rows_of_part

_MOST = 12  # largest number of sample indices to print


def report(replay: Replay, arguments: Sequence[str], rank: int | None = None) -> int:
    """Prints what a replay has found; returns 0, or 1 if fingerprints differ by more than rounding,
    or differ at all although the run was reproducible.

    Args:
        replay: the replay.
        arguments: the arguments of the command ``replay``.
        rank: the rank whose samples are listed; None lists the samples of all ranks.

    Returns:
        int: the exit code.
    """
    begun = replay.begun_at or 0
    say(f"steps {begun + 1} to {replay.step} were computed again, in one process")
    code = compare(replay, arguments)
    if "--verify" in arguments:
        return code
    show_batch(replay, rank)
    finding = replay.finder and replay.finder.finding(replay.history.is_finite(replay.step))
    if finding is not None:
        show(finding, replay)
    return code


def say(text: str) -> None:
    """Prints a message.

    >>> say("one")
    mpchain: one
    """
    print(f"mpchain: {text}", flush=True)


def compare(replay: Replay, arguments: Sequence[str]) -> int:
    """Prints whether the fingerprints equal the record's, bit for bit or, if the run was not
    reproducible, up to rounding; returns 0 if they do, otherwise 1."""
    begun, n = replay.begun_at or 0, len(replay.updates)
    found = replay.differences()
    if not found:
        say(f"the fingerprints of {n} updates are equal bit for bit")
        return 0
    first = next(iter(found.values()))[0]
    if replay.is_exact:
        say(f"{first}; the run was reproducible, so all bits must be equal")
        return 1
    steps = {i: replay.updates[i][1].t - begun for i in found}
    late = [i for i in found if comparison.beyond_rounding(found[i], {}, steps[i])]
    measured = rounding.measure(arguments, replay) if late else {}
    for i in late:
        for difference in found[i]:
            if comparison.beyond_rounding([difference], measured, steps[i]):
                say(f"{difference}; rounding does not explain this difference")
                return 1
    say(f"the fingerprints of {n} updates are equal up to rounding ({first})")
    return 0


def show_batch(replay: Replay, rank: int | None) -> None:
    """Prints the samples of the step."""
    update = replay.history.main.at(replay.step)
    indices, n = replay.samples.indices, update.n_samples
    losses = [f"{name} {value:.6g}" for name, value in update.values.items()]
    if not losses and update.own is not None:
        losses = [f"loss of rank 0 {update.own:.6g}"]
    ranks = f"{update.n_ranks} rank{'s' * (update.n_ranks > 1)}"
    say(f"{ranks} computed step {replay.step}: {', '.join(losses)}")
    if indices is None:
        return
    whose = f"the samples of step {replay.step}"
    if rank is not None:
        of_rank = parts_of_rank(rank, update.n_ranks, len(replay.counts))
        rows = [row for i in of_rank for row in _rows(replay, i, n)]
        indices, whose = [indices[row] for row in rows], f"the samples of rank {rank}"
    say(f"{whose}: {_listing(indices)}")


def _rows(replay, part, n):
    return rows_of_part(part, len(replay.counts), n or sum(x or 0 for x in replay.counts))


def show(finding: Finding, replay: Replay) -> None:
    """Prints the place where the first non-finite number was computed."""
    kind = "NaN" if finding.is_nan else "an infinite number"
    say(f"{kind} appears first in {finding.what}, at {finding.place}")
    update, n_parts = replay.history.main.at(replay.step), len(replay.counts)
    rank = finding.part * update.n_ranks // max(n_parts, 1)
    where = f"rank {rank} of {update.n_ranks}"
    n_own = replay.counts[finding.part] if finding.part < n_parts else None
    if n_own != finding.n_rows:
        say(f"the number is in the micro-batch of {where}")
        return
    rows = _rows(replay, finding.part, update.n_samples)
    indices = replay.samples.indices
    found = [rows[row] for row in finding.rows]
    named = f"row {_listing(found)} of the batch"
    if indices is not None:
        named = f"sample {_listing([indices[row] for row in found])} ({named})"
    say(f"the number is in {named}, which {where} computed")


def _listing(numbers):
    shown = ", ".join(map(str, numbers[:_MOST]))
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > _MOST else shown
