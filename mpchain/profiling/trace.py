"""Makes, reads, merges and writes traces in Chrome's format, which https://ui.perfetto.dev opens.

A trace is a dict: ``traceEvents`` is a list of dicts, whose times are in microseconds. The process
ID of an event is its rank.
"""

import collections
import glob
import itertools
import json
import os
import socket
from typing import Any

from mpchain.link import Link
from mpchain.profiling.clocks import Clock
from mpchain.profiling.recorder import Recorder
from mpchain.serializers.files import open_atomic
from mpchain.utils.memory import peak_bytes

Trace = dict[str, Any]


def trace_of(recorder: Recorder, clock: Clock, rank: int, size: int, run: str = "") -> Trace:
    """Returns the trace of one rank.

    Args:
        recorder: the recorder with the events of the rank.
        clock: the clock of the rank.
        rank, size: the rank, and the number of ranks.
        run: an id that the traces of the ranks share, see :func:`merge_files`.

    >>> from mpchain.profiling.clocks import own_clock
    >>> sorted(trace_of(Recorder(), own_clock(), 0, 1))
    ['displayTimeUnit', 'otherData', 'traceEvents']
    """
    name = f"rank {rank} of {size} on {socket.gethostname()}"
    own = {"pid": rank, "tid": 0}
    events = [
        {"ph": "M", "name": "process_name", **own, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", **own, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", **own, "args": {"name": "training"}},
    ]
    called = {id(link): link for *_, link, _ in recorder.spans if link is not None}
    paths = link_paths(list((recorder.targets | called).values()))
    for start, end, kind, text, link, details in recorder.spans:
        begin = clock.shared(start)
        event = {"ph": "X", "name": text, "cat": kind, **own}
        event |= {"ts": _us(begin), "dur": _us(clock.shared(end) - begin)}
        args = dict(details or {})
        if link is not None:
            args["link"] = paths[id(link)]
        if kind == "link":
            event["name"] = f"{args['link']} ({text})"
        if args:
            event["args"] = args
        events.append(event)
    events += _operations(recorder, clock, own)
    events += _memory(recorder, clock, own)
    events.sort(key=lambda event: (event.get("ts", -1), -event.get("dur", 0)))
    about = {"rank": rank, "size": size, "run": run, "clock_error_us": clock.error / 1000}
    about |= {"steps": recorder.n_steps, "peak_memory_bytes": peak_bytes()}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ranks": [about]}}


def _us(time):
    return round(time, 3)


def _operations(recorder, clock, own):
    for i, operation in enumerate(recorder.operations):
        # Viewers pair the two events by their id, which must differ between ranks.
        event = {"name": operation.name, "cat": "collective", "id": f"0x{own['pid']:x}{i:08x}"}
        args = {
            "bytes": operation.n_bytes,
            "waiting_us": _us(operation.waiting / 1000),
            "summing_us": _us(operation.summing / 1000),
        }
        ts = _us(clock.shared(operation.start))
        yield {"ph": "b", **event, **own, "ts": ts, "args": args}
        yield {"ph": "e", **event, **own, "ts": _us(clock.shared(operation.end))}


def _memory(recorder, clock, own):
    for time, resident, pool in recorder.memory:
        args = {"resident": resident / 2**20} | ({"CuPy's pool": pool / 2**20} if pool else {})
        event = {"ph": "C", "name": "memory (MiB)", **own, "ts": _us(clock.shared(time))}
        yield event | {"args": args}


def link_paths(links: list[Link]) -> dict[int, str]:
    """Returns the path of each link by its id, such as ``/encoder/l1``.

    Links that are not children of other links are the models. If there are several models, a path
    begins with the class of the model.

    >>> model = mpchain.Chain(encoder=mpchain.Chain(l1=L.Linear(3, 2)))
    >>> sorted(link_paths([model]).values())
    ['/', '/encoder', '/encoder/l1']
    """
    below = {id(part) for link in links for part in link.links(skipself=True)}
    roots = [link for link in links if id(link) not in below]
    paths = {}
    for root in roots:
        model = f"{type(root).__name__}:" if len(roots) > 1 else ""
        for path, link in root.shownlinks():
            paths.setdefault(id(link), model + path)
    return paths


def merge(traces: list[Trace]) -> Trace:
    """Merges the traces of several ranks into one, with arrows between the ranks.

    An arrow leads from the rank that began a sum last to the end of the same sum on other ranks.

    >>> merge([{"traceEvents": [], "otherData": {"ranks": [{"rank": r}]}} for r in (1, 0)])
    {'traceEvents': [], 'displayTimeUnit': 'ms', 'otherData': {'ranks': [{'rank': 0}, {'rank': 1}]}}
    """
    ranks = [about for trace in traces for about in trace["otherData"]["ranks"]]
    events = [event for trace in traces for event in trace["traceEvents"]]
    ranks.sort(key=lambda about: about["rank"])
    events += _arrows(events)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ranks": ranks}}


def _arrows(events):
    """Yields flow events between different ranks' slices of the same operation."""
    begun, ends = collections.defaultdict(lambda: collections.defaultdict(list)), {}
    for event in events:
        if event.get("cat") == "collective" and event["ph"] == "b":
            begun[event["name"], event["args"]["bytes"]][event["pid"]].append(event)
        elif event.get("cat") == "collective":
            ends[event["id"]] = event["ts"]
    number = itertools.count(1)
    for (name, _), by_rank in begun.items():
        if len({len(own) for own in by_rank.values()}) > 1:  # some steps were not recorded
            continue
        for same in zip(*by_rank.values()):
            last = max(same, key=lambda event: event["ts"])
            for event in same:
                if event is not last:
                    arrow = {"name": name, "cat": "arrow", "id": next(number), "tid": 0}
                    yield {"ph": "s", **arrow, "pid": last["pid"], "ts": last["ts"]}
                    end = max(ends[event["id"]], last["ts"])  # clocks differ slightly
                    yield {"ph": "f", "bp": "e", **arrow, "pid": event["pid"], "ts": end}


def write(trace: Trace, path: str) -> None:
    """Writes a trace as JSON.

    >>> write(merge([]), "trace.json")
    """
    with open_atomic(path) as file:
        file.write(json.dumps(trace, separators=(",", ":")).encode())


def read(path: str) -> Trace:
    """Returns the trace in a file.

    >>> write(merge([]), "trace.json")
    >>> read("trace.json")["traceEvents"]
    []

    Raises:
        ValueError: the file is not a trace of mpchain.
    """
    with open(path, encoding="utf-8") as file:
        try:
            trace = json.load(file)
            trace["traceEvents"], trace["otherData"]["ranks"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a trace of mpchain.profile: {error!r}") from error
    return trace


def path_of_rank(path: str, rank: int) -> str:
    """Returns the path of one rank's file, which lies beside the file of all ranks.

    >>> path_of_rank("trace.json", 3)
    'trace.rank-3.json'
    """
    stem, ending = os.path.splitext(path)
    return f"{stem}.rank-{rank}{ending}"


def merge_files(path: str, run: str) -> Trace | None:
    """Merges the files of all ranks of a run, and removes these files, once all of them exist.

    Ranks write their files at different times and send no messages; the rank that is last to write
    merges the files.

    Args:
        path: the file of all ranks; the files of single ranks lie beside it (:func:`path_of_rank`).
        run: the id that the traces of the run share; files of other runs are neither read nor
            removed.

    Returns:
        The trace of all ranks; None if files are missing.

    >>> merge_files("result.json", "run 1") is None
    True
    """
    stem, ending = os.path.splitext(path)
    files = glob.glob(f"{glob.escape(stem)}.rank-*{ending}")
    try:
        traces = {file: read(file) for file in files}
        traces = {f: t for f, t in traces.items() if t["otherData"]["ranks"][0]["run"] == run}
        merged = merge(list(traces.values()))
        ranks = merged["otherData"]["ranks"]
        if not ranks or len(ranks) < ranks[0]["size"]:
            return None
        for file in traces:
            os.unlink(file)
    except FileNotFoundError:  # another rank that ended at the same time has deleted it
        return None
    return merged
