"""The table of a trace: each kind of work, and its share of a step."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import IO, Any

from mpchain.profiling.trace import Trace

LEAST_SHARE = 0.005
"""Share of a step below which a row is added to "others"."""

PHASES = ("input", "forward", "backward", "communication", "optimizer", "evaluation", "extensions")


@dataclasses.dataclass
class Row:
    """One kind of work in the steps of a trace.

    Attributes:
        phase: ``'forward'``, ``'backward'``, ...; ``'other'`` is time outside of these.
        link: the path of the link that did the work; empty outside of links.
        name: the function, the class of a link (for its Python code), or the kind of other work.
        calls: number of calls in a step: the mean over steps and ranks.
        seconds: maps each rank to the time in a step, the mean over the steps. Inner work that has
            its own row is left out.

    Example:
        >>> Row("forward", "/l1", "linear", 1.0, {0: 0.002, 1: 0.004}).mean
        0.003
    """

    phase: str
    link: str
    name: str
    calls: float
    seconds: dict[int, float]

    @property
    def mean(self) -> float:
        """The time in a step in seconds, as the mean over the ranks."""
        return sum(self.seconds.values()) / len(self.seconds)


def steps_of(trace: Trace) -> dict[int, list[dict[str, Any]]]:
    """Returns the events of complete steps, by rank.

    The first step of a program initializes and compiles, so it is left out if there are more steps.

    >>> steps_of({"traceEvents": []})
    {}
    """
    steps = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "step":
            steps[event["pid"]].append(event)
    return {
        rank: [e for e in found if len(found) == 1 or e["args"]["step"] > 1]
        for rank, found in sorted(steps.items())
    }


def rows(trace: Trace, step: int | None = None) -> list[Row]:
    """Returns the spans in the steps of a trace, the longest first.

    The times of all rows of a rank add up to its step. If no step was complete, the whole recorded
    time is the step.

    Args:
        trace: the trace.
        step: the number of a step; None returns means over the steps.

    Example:
        >>> with mpchain.profile() as profile:
        ...     y = L.Linear(3, 2)(np.ones((5, 3), np.float32))
        >>> sorted(row.name for row in rows(profile.trace) if row.phase == "forward")
        ['Linear', 'linear']
    """
    steps = steps_of(trace)
    ranks = sorted({event["pid"] for event in trace["traceEvents"]})
    times: dict[tuple[str, str, str], dict[int, float]] = collections.defaultdict(dict)
    calls: dict[tuple[str, str, str], float] = collections.defaultdict(float)
    for rank in ranks:
        chosen = {e["ts"] for e in steps.get(rank, ()) if step in (None, e["args"]["step"])}
        n = len(chosen) or 1
        for (is_in, key), (seconds, count) in _self_times(trace, rank, chosen).items():
            if is_in or not steps:
                times[key][rank] = times[key].get(rank, 0.0) + seconds / n
                calls[key] += count / n / len(ranks)
    found = [
        Row(*key, calls[key], {r: seconds.get(r, 0.0) for r in ranks})
        for key, seconds in times.items()
    ]
    return sorted(found, key=lambda row: -row.mean)


def _self_times(trace, rank, chosen):
    """Returns seconds and numbers of calls, without the time of inner spans. The keys are pairs:
    whether the span is in a chosen step, and (phase, link, name).

    Two spans of a thread are either nested or disjoint, so the open spans form a stack.
    """
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
    found = collections.defaultdict(lambda: [0.0, 0])
    stack = []
    for event in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        start, end = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
        while stack and stack[-1][0] <= start:
            stack.pop()
        is_step = event["cat"] == "step"
        parent = stack[-1] if stack else (0, (False, ("other", "", "")), None)
        is_in = event["ts"] in chosen if is_step else parent[1][0]
        key = is_in, _key(event, parent[1][1][0])
        found[key][0] += (end - start) * 1e-9
        found[key][1] += 1
        if stack:
            found[parent[1]][0] -= (end - start) * 1e-9
        stack.append((end, key))
    return found


def _key(event, around):
    """Returns the phase, link and name of a span, given the phase of the enclosing span."""
    kind, args = event["cat"], event.get("args", {})
    if kind == "step":
        return "other", "", "between the parts"
    if around == "evaluation":
        phase = around
    elif kind in PHASES:
        phase = kind
    elif around in ("other", "optimizer") and kind in ("function", "link"):
        phase = "forward"
    else:
        phase = around
    name = event["name"].rpartition("(")[2].rstrip(")") if kind == "link" else event["name"]
    return phase, args.get("link", ""), name


def operations(trace: Trace) -> list[tuple[str, int | None, float, float, float, float]]:
    """Returns the collective operations in the background.

    Returns:
        list: for each operation, its name, its number of bytes, its count in a step on a rank, and
        three means in seconds: the time from beginning to end, the time waiting for other ranks,
        and the time summing on this rank.

    >>> operations({"traceEvents": []})
    []
    """
    steps, begun = steps_of(trace), {}
    found = collections.defaultdict(list)
    n_steps = sum(map(len, steps.values())) or 1
    for event in trace["traceEvents"]:
        if event.get("cat") != "collective":
            continue
        if event["ph"] == "b":
            begun[event["id"]] = event
        elif _is_in(steps, start := begun[event["id"]]):
            args, took = start["args"], (event["ts"] - start["ts"]) * 1e-6
            times = took, args["waiting_us"] * 1e-6, args["summing_us"] * 1e-6
            found[event["name"], args["bytes"]].append(times)
    totals = []
    for (name, n_bytes), times in found.items():
        took, waiting, summing = (sum(column) / len(times) for column in zip(*times))
        totals.append((name, n_bytes, len(times) / n_steps, took, waiting, summing))
    return totals


def _is_in(steps, event):
    own = steps.get(event["pid"], ())
    return not steps or any(s["ts"] <= event["ts"] < s["ts"] + s["dur"] for s in own)


def lines(trace: Trace, n_rows: int | None = None) -> Iterator[str]:
    """Yields the lines of the table.

    Args:
        trace: the trace.
        n_rows: the number of rows to show; None shows rows of at least 0.5 % of a step. A last row
            is the sum of all rows that are not shown.

    Example:
        >>> with mpchain.profile() as profile:
        ...     y = F.exp(np.zeros(2))
        >>> next(lines(profile.trace))
        '1 rank, no complete step: shares are of the whole recorded time'
    """
    found, ranks, steps = rows(trace), trace["otherData"]["ranks"], steps_of(trace)
    total = sum(row.mean for row in found) or 1.0
    text = f"{len(ranks)} rank{'s' * (len(ranks) > 1)}, "
    if numbers := [event["args"]["step"] for own in steps.values() for event in own]:
        text += f"steps {min(numbers)} to {max(numbers)}, {1000 * total:.3f} ms each"
    else:
        text += "no complete step: shares are of the whole recorded time"
    yield text
    yield ""
    phases = collections.Counter()
    for row in found:
        phases[row.phase] += row.mean
    yield from _columns(
        [("phase", "ms", "share")]
        + [(p, _ms(s), f"{100 * s / total:.1f} %") for p, s in phases.most_common()]
    )
    yield ""
    longest_on = "longest on rank" if len(ranks) > 1 else ""
    table = [("phase", "link", "what", "calls", "ms", "share", longest_on)]
    if n_rows is None:
        n_rows = sum(row.mean >= LEAST_SHARE * total for row in found)
    for row in found[:n_rows]:
        slowest = max(row.seconds, key=lambda rank: row.seconds[rank])
        which = f"{slowest}: {_ms(row.seconds[slowest])}" if len(ranks) > 1 else ""
        share = f"{100 * row.mean / total:.1f} %"
        table.append(
            (row.phase, row.link, row.name, f"{row.calls:g}"[:6], _ms(row.mean), share, which)
        )
    if rest := found[n_rows:]:
        seconds, calls = sum(row.mean for row in rest), sum(row.calls for row in rest)
        name, share = f"{len(rest)} other rows", f"{100 * seconds / total:.1f} %"
        table.append(("others", "", name, f"{calls:g}"[:6], _ms(seconds), share, ""))
    yield from _columns(table, n_texts=3)
    if done := operations(trace):
        yield ""
        names = "in the background", "bytes", "a step", "ms", "waiting", "summing"
        yield from _columns(
            [names]
            + [
                (name, "" if size is None else f"{size:,}", f"{n:.3g}", *map(_ms, seconds))
                for name, size, n, *seconds in sorted(done, key=lambda entry: -entry[2] * entry[3])
            ]
        )
    yield ""
    for about in ranks:
        peak = about["peak_memory_bytes"] / 2**20
        yield (
            f"rank {about['rank']}: memory at its peak {peak:.0f} MiB, "
            f"clock within {about['clock_error_us']:.0f} us of rank 0's"
        )


def _ms(seconds):
    return f"{1000 * seconds:.3f}"


def _columns(table: list[tuple[str, ...]], n_texts: int = 1) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        cells = [
            cell.ljust(width) if i < n_texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        yield "  ".join(cells).rstrip()


def print_table(trace: Trace, file: IO[str] | None = None, n_rows: int | None = None) -> None:
    """Prints the table.

    Args:
        trace: the trace.
        file: the output; None means the standard output.
        n_rows: see :func:`lines`.

    Example:
        >>> with mpchain.profile() as profile:
        ...     y = F.exp(np.zeros(2))
        >>> print_table(profile.trace)  # doctest: +ELLIPSIS
        1 rank, no complete step...
    """
    for line in lines(trace, n_rows):
        print(line, file=file)
