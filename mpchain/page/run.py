"""Keeps the state of a run: collects events, and answers what browsers have not seen."""

import collections
import json
import math
import re
from collections.abc import Mapping
from typing import Any

MOST_POINTS = 2000
"""Largest number of points of a curve. A longer curve keeps only every second point."""
MOST_CURVES = 500
MOST_LINES = 500
LONGEST_LINE = 2000
MOST_MARKS = 100
MOST_SETTINGS = 100
_PROGRESS = ("done", "elapsed", "left", "mean_samples", "samples")

_FACTS_OF_JOB = {
    "command": str,
    "control": bool,
    "done": float,  # the completed fraction of training
    "elapsed": float,  # the elapsed seconds
    "left": float,  # the remaining seconds
    "mean_samples": float,  # the mean number of samples per second since the beginning
    "n": int,
    "samples": float,  # the recent number of samples per second
    "start": int,  # the value is 1 at the start, and 2 after the first restart
    "state": str,  # the state is runs, stopping, finished, failed, stopped or lost
    "text": str,
    "title": str,
}
_FACTS_OF_RANK = {
    "epoch": float,
    "gpu": float,  # the bytes of CuPy's memory pool
    "host": str,
    "line": str,
    "mean_rate": float,
    "memory": float,  # the bytes in host memory
    "rate": float,  # the iterations per second
    "state": str,  # the state is starts, runs, finished, failed or stopped
    "step": int,
    "text": str,
    "wait": float,  # the fraction of time that the rank waits
    "work": float,
}
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


class Curve:
    """The points of one reported value: means of the log, or single values between them.

    Example:
        >>> curve = Curve("loss", "log")
        >>> curve.add(1, [10, 0.5, 2.0, 0.25])
        >>> curve.since(0), curve.since(1)
        ([[10, 0.5, 2.0, 0.25]], [])
    """

    def __init__(self, key: str, kind: str) -> None:
        self.key, self.kind = key, kind
        self.thinned = 0  # number of the latest event at which points were dropped
        self.extremes: list[list[Any]] = []  # the points with the lowest and highest values
        self._points: collections.deque[tuple[int, list[Any]]] = collections.deque()
        self._keeps_every = self._n_seen = 1

    def add(self, number: int, point: list[Any]) -> None:
        """Adds a point: iteration, epoch, seconds, value (None for a value that is not finite)."""
        # After a restart from a checkpoint, repeated iterations replace earlier points.
        while self._points and _comes_before(point, self._points[-1][1]):
            self._points.pop()
            self.thinned = number
        if any(_comes_before(point, extreme) for extreme in self.extremes):
            kept = [each for each in self.extremes if not _comes_before(point, each)]
            self.extremes = []
            for each in kept + [each for _, each in self._points]:
                self._note_extremes(each)
        self._note_extremes(point)
        self._n_seen += 1
        if self._n_seen % self._keeps_every:
            return
        self._points.append((number, point))
        if len(self._points) > MOST_POINTS:
            self._points = collections.deque(list(self._points)[::2])
            self._keeps_every *= 2
            self.thinned = number

    def _note_extremes(self, point):
        if point[3] is not None:
            low, high = self.extremes or (point, point)
            self.extremes = [
                point if point[3] < low[3] else low,
                point if point[3] > high[3] else high,
            ]

    def since(self, number: int) -> list[list[Any]]:
        """Returns the points of events after ``number``; all points if some were dropped since."""
        if number < self.thinned:
            return [point for _, point in self._points]
        new = []
        for when, point in reversed(self._points):
            if when <= number:
                break
            new.append(point)
        return new[::-1]


class Run:
    """The state of a run.

    Each event is one line of JSON, an object with one of these keys; other lines are ignored:

    - ``job``: facts about the run; ``start`` among them resets all ranks;
    - ``rank``: a rank, and with it either ``facts``, or ``said``, which is the report of that rank
      itself: an object with ``facts``; with ``job``, which is the run's progress; with ``about``,
      which has the ``folder`` of the results and ``settings``; and with ``values``, a list of
      objects with ``kind`` (``log`` or ``live``), ``at`` (iteration, epoch, seconds) and ``values``
      by name;
    - ``output``: text that the job has printed.

    Example:
        >>> run = Run()
        >>> run.take(b'{"rank": 1, "facts": {"state": "runs", "step": 7}}')
        >>> run.since(0)["ranks"]
        [{'number': 1, 'state': 'runs', 'step': 7}]
    """

    def __init__(self) -> None:
        self.job: dict[str, Any] = {"state": "runs"}
        self._number = 0
        self._ranks: dict[int, dict[str, Any]] = {}
        self._curves: dict[tuple[str, str], Curve] = {}
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=MOST_LINES)
        self._open_line = ""
        self.folder = ""  # the folder of the results
        self._settings: dict[str, str] = {}
        self._marks: list[dict[str, Any]] = []
        self._now: list[Any] = [None] * 3  # iteration, epoch and seconds of the latest live values

    @property
    def can_stop(self) -> bool:
        """Whether a trainer is running, which can stop after an iteration."""
        has_trainer = any("step" in facts for facts in self._ranks.values())
        return has_trainer and self.job["state"] == "runs"

    def take(self, line: bytes) -> None:
        """Handles an event."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        self._number += 1
        if isinstance(event.get("job"), dict):
            self._take_job(event["job"])
        if isinstance(event.get("output"), str):
            self._take_output(event["output"])
        rank = event.get("rank")
        if isinstance(rank, int) and 0 <= rank:
            self._take_facts(rank, event.get("facts"))
            if isinstance(event.get("said"), dict):
                self._take_report(rank, event["said"])

    def _take_job(self, facts):
        if "start" in facts:
            self._ranks.clear()
            if _number(facts["start"]) and facts["start"] > 1:
                self._mark("restart", f"restart {facts['start'] - 1:.0f}")
        self.job |= _fitting(facts, _FACTS_OF_JOB)
        for number in range(min(self.job.get("n", 0), 1 << 16)):
            self._ranks.setdefault(number, {"state": "starts"})

    def _take_facts(self, rank, facts):
        if isinstance(facts, dict):
            known = self._ranks.setdefault(rank, {})
            had_failed = known.get("state") == "failed"
            known.update(_fitting(facts, _FACTS_OF_RANK))
            if known.get("state") == "failed" and not had_failed:
                self._mark("lost", f"rank {rank} {known.get('text', 'failed')}")

    def _mark(self, kind, text):
        """Records an event that the page marks in the curves."""
        if len(self._marks) < MOST_MARKS:
            self._marks.append({"kind": kind, "at": list(self._now), "text": text})

    def _take_report(self, rank, said):
        self._take_facts(rank, said.get("facts"))
        if isinstance(said.get("job"), dict):
            known = {name: said["job"].get(name) for name in _PROGRESS}
            self.job |= _fitting(known, _FACTS_OF_JOB)
        if isinstance(said.get("about"), dict):
            self._take_about(said["about"])
        values = said.get("values")
        for each in values if isinstance(values, list) else ():
            if isinstance(each, dict) and isinstance(each.get("values"), dict):
                self._take_values(each.get("kind"), each.get("at"), each["values"])

    def _take_about(self, about):
        if isinstance(about.get("folder"), str):
            self.folder = about["folder"]
        if isinstance(settings := about.get("settings"), dict):
            names = list(settings)[:MOST_SETTINGS]
            self._settings = _fitting(settings, dict.fromkeys(names, str))

    def _take_values(self, kind, at, values):
        if kind not in ("log", "live") or not isinstance(at, list) or len(at) != 3:
            return
        at = [_number(value) for value in at]
        if kind == "live":
            before, self._now = self._now[0], at
            if None not in (at[0], before) and at[0] < before:
                self._mark("back", f"went back from iteration {before}")
        for key, value in values.items():
            if (key, kind) not in self._curves and len(self._curves) >= MOST_CURVES:
                continue
            curve = self._curves.setdefault((key, kind), Curve(key, kind))
            curve.add(self._number, [*at, _number(value)])

    def _take_output(self, text):
        # A carriage return restarts the line, as on a terminal.
        *lines, rest = (self._open_line + text).replace("\r\n", "\n").split("\n")
        for line in lines:
            self._lines.append((self._number, _clean(line)))
        self._open_line = rest[-LONGEST_LINE:]

    def since(self, number: int) -> dict[str, Any]:
        """Returns the data that a browser does not have yet.

        Args:
            number: the ``number`` in the browser's previous answer; 0 if this is the first request.

        Returns:
            dict: ``number``, ``job``, ``ranks``, ``settings``, ``folder``, ``marks``, ``curves``
            and ``lines``, with all facts, but only new points and lines. A curve with ``whole``
            replaces the browser's curve; ``extremes`` are its lowest and its highest point.
        """
        # A larger number comes from an earlier process, so the browser needs everything.
        number = number if number <= self._number else 0
        ranks = [{"number": rank, **facts} for rank, facts in sorted(self._ranks.items())]
        curves = []
        for curve in self._curves.values():
            if points := curve.since(number):
                whole = number < curve.thinned or not number
                about = {"key": curve.key, "kind": curve.kind, "extremes": curve.extremes}
                curves.append({**about, "points": points, "whole": whole})
        lines = [text for when, text in self._lines if when > number]
        return {
            "number": self._number,
            "job": {**self.job, "can_stop": self.can_stop},
            "ranks": ranks,
            "settings": self._settings,
            "folder": self.folder,
            "marks": self._marks,
            "curves": curves,
            "lines": lines,
        }


def _comes_before(point, other):
    return None not in (point[0], other[0]) and point[0] <= other[0]


def _clean(line):
    last = next((part for part in reversed(line.split("\r")) if part), "")
    return _CONTROL.sub("", last)[:LONGEST_LINE]


def _number(value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < math.inf else None


def _fitting(facts: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Returns the facts that have the expected type, with long texts cut."""
    found = {}
    for name, kind in kinds.items():
        value = facts.get(name)
        if kind in (int, float):
            value = _number(value)
        if isinstance(value, int) and kind is float:
            value = float(value) if abs(value) < 1e300 else None
        if isinstance(value, kind):
            found[name] = _clean(value) if isinstance(value, str) else value
    return found
