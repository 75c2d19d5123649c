"""The rules of Chrome's trace event format, for the events that mpchain uses.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import collections
import itertools
import json
import numbers


def parse(path):
    """Returns the events in a file; raises an exception if the file breaks a rule."""
    text = path.read_text("utf-8")
    trace = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        _check_event(event)
    _check_nesting(trace["traceEvents"])
    _check_pairs(trace["traceEvents"])
    return trace["traceEvents"]


def _check_event(event):
    assert type(event["pid"]) is int and type(event["tid"]) is int
    assert isinstance(event["name"], str) and event["name"]
    assert isinstance(event.get("args", {}), dict)
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "process_sort_index", "thread_name")
        assert list(event["args"]) == [event["name"].partition("_")[2].removeprefix("process_")]
        return
    assert event["ph"] in ("X", "b", "e", "C", "s", "f")
    assert _is_number(event["ts"]) and event["ts"] >= 0
    if event["ph"] == "C":
        assert event["args"] and all(map(_is_number, event["args"].values()))
    else:
        assert isinstance(event["cat"], str) and event["cat"]
    if event["ph"] == "X":
        assert _is_number(event["dur"]) and event["dur"] >= 0
    if event["ph"] in "be":
        assert int(event["id"], 16) >= 0
    if event["ph"] == "f":
        assert event["bp"] == "e"  # the arrow points to the slice around it, not to the next slice


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _in_nanoseconds(event):
    """Returns the beginning and the negative end, which sorts outer events before inner events."""
    return round(1000 * event["ts"]), -round(1000 * (event["ts"] + event["dur"]))


def _check_nesting(events):
    """Checks that complete events of a thread are nested or disjoint, and that steps have gaps."""
    threads = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(_in_nanoseconds(event))
    for spans in threads.values():
        open_ends = []
        for begin, end in sorted(spans):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or -end <= open_ends[-1]
            open_ends.append(-end)
    steps = [event for event in events if event.get("cat") == "step"]
    for rank in {event["pid"] for event in steps}:
        own = [_in_nanoseconds(event) for event in steps if event["pid"] == rank]
        # Viewers add in floating point, and would nest events if one began exactly where another
        # ends.
        assert all(-end < begin for (_, end), (begin, _) in itertools.pairwise(sorted(own)))


def _check_pairs(events):
    """Checks that each asynchronous event and each arrow has one beginning, then one end."""
    pairs = collections.defaultdict(list)
    for event in events:
        if event["ph"] in "besf":
            pairs[event["cat"], event["id"]].append(event)
    for begin, end in pairs.values():
        assert (begin["ph"], end["ph"]) in (("b", "e"), ("s", "f"))
        assert begin["name"] == end["name"] and begin["ts"] <= end["ts"]
