import itertools
import json
import math

import pytest

from mpchain.page import run as page_run
from mpchain.page.run import Run


def take(run, **event):
    run.take(json.dumps(event).encode())


def report(run, kind, iteration, rank=0, **values):
    value = {"kind": kind, "at": [iteration, iteration / 10, 2.0 * iteration], "values": values}
    take(run, rank=rank, said={"values": [value]})


def test_news_are_what_was_not_sent_before():
    run = Run()
    take(run, job={"start": 1, "n": 2, "title": "train.py"})
    take(run, output="first\nsecond\nthi")
    report(run, "log", 10, loss=0.5)
    first = run.since(0)
    assert first["job"]["title"] == "train.py"
    assert [rank["state"] for rank in first["ranks"]] == ["starts", "starts"]
    assert first["lines"] == ["first", "second"]
    assert first["curves"] == [
        {
            "key": "loss",
            "kind": "log",
            "points": [[10, 1.0, 20.0, 0.5]],
            "whole": True,
            "extremes": [[10, 1.0, 20.0, 0.5]] * 2,
        }
    ]
    take(run, output="rd\n")
    report(run, "log", 20, loss=0.25)
    news = run.since(first["number"])
    assert news["lines"] == ["third"]
    assert news["curves"][0]["points"] == [[20, 2.0, 40.0, 0.25]]
    assert not news["curves"][0]["whole"]
    assert run.since(news["number"])["curves"] == run.since(news["number"])["lines"] == []


def test_browser_of_an_earlier_process_gets_everything():
    run = Run()
    take(run, output="a\n")
    assert run.since(1000)["lines"] == ["a"]


def test_facts_of_a_rank_are_merged():
    run = Run()
    take(run, rank=1, facts={"state": "runs", "host": "node"})
    take(run, rank=1, said={"facts": {"step": 3, "memory": 5}})
    take(run, rank=1, facts={"state": "failed", "text": "was killed"})
    expected = {"number": 1, "state": "failed", "host": "node", "step": 3, "memory": 5.0}
    assert run.since(0)["ranks"] == [{**expected, "text": "was killed"}]


def test_restart_begins_with_new_ranks():
    run = Run()
    take(run, job={"start": 1, "n": 3})
    take(run, rank=2, facts={"state": "failed"})
    take(run, job={"start": 2, "n": 2, "state": "runs"})
    assert [rank["state"] for rank in run.since(0)["ranks"]] == ["starts", "starts"]


def test_only_a_running_trainer_can_stop():
    run = Run()
    take(run, rank=0, facts={"state": "runs"})
    assert not run.can_stop
    take(run, rank=0, said={"facts": {"step": 1}})
    assert run.can_stop
    take(run, job={"state": "failed"})
    assert not run.can_stop


def test_what_is_not_finite_is_no_number():
    run = Run()
    report(run, "live", 1, a=math.nan, b=math.inf, c="text", d=True)
    assert [curve["points"][0][3] for curve in run.since(0)["curves"]] == [None] * 4
    json.dumps(run.since(0), allow_nan=False)


@pytest.fixture
def few_points(monkeypatch):
    """Limits curves to 8 points."""
    monkeypatch.setattr(page_run, "MOST_POINTS", 8)


def test_long_curves_are_thinned_and_sent_anew(few_points):
    run = Run()
    for i in range(5):
        report(run, "log", i, loss=i)
    number = run.since(0)["number"]
    for i in range(5, 100):
        report(run, "log", i, loss=i)
        curve = run.since(0)["curves"][0]
        assert len(curve["points"]) <= 8
    iterations = [point[0] for point in curve["points"]]
    assert iterations == sorted(iterations)
    assert iterations[0] == 0
    assert iterations[-1] > 80
    steps = {b - a for a, b in itertools.pairwise(iterations)}
    assert max(steps) <= 2 * min(steps)
    late = run.since(number)["curves"][0]
    assert late["whole"]
    assert late["points"] == curve["points"]


def test_training_that_goes_back_replaces_points():
    run = Run()
    for i in (1, 2, 3, 4):
        report(run, "log", i, loss=i)
    number = run.since(0)["number"]
    report(run, "log", 3, loss=30)
    (curve,) = run.since(number)["curves"]
    assert [point[::3] for point in curve["points"]] == [[1, 1], [2, 2], [3, 30]]
    assert curve["whole"]
    number = run.since(0)["number"]
    report(run, "log", 5, loss=5)
    (curve,) = run.since(number)["curves"]
    assert ([point[0] for point in curve["points"]], curve["whole"]) == ([5], False)


def test_extremes_survive_thinning_and_forget_what_is_undone(few_points):
    run = Run()
    for i in range(1, 60):
        report(run, "log", i, loss={23: -5.0, 41: 9.0}.get(i, 1.0))
    ((low, high),) = (curve["extremes"] for curve in run.since(0)["curves"])
    assert (low[::3], high[::3]) == ([23, -5.0], [41, 9.0])
    report(run, "log", 30, loss=2.0)  # training went back to an earlier iteration
    low, high = run.since(0)["curves"][0]["extremes"]
    assert (low[::3], high[::3]) == ([23, -5.0], [30, 2.0])
    report(run, "log", 31, loss=math.nan)
    assert run.since(0)["curves"][0]["extremes"] == [low, high]


def test_marks_of_what_interrupts_training():
    run = Run()
    take(run, job={"start": 1, "n": 3})
    report(run, "live", 10, loss=1)
    for _ in range(2):  # facts are sent again
        take(run, rank=2, facts={"state": "failed", "text": "was killed"})
    report(run, "log", 8, loss=1)  # older entries arrive after newer ones
    report(run, "live", 5, loss=1)
    take(run, job={"start": 2})
    marks = [(mark["kind"], mark["at"][0], mark["text"]) for mark in run.since(0)["marks"]]
    assert marks == [
        ("lost", 10, "rank 2 was killed"),
        ("back", 5, "went back from iteration 10"),
        ("restart", 5, "restart 1"),
    ]
    for i in range(3000):
        take(run, job={"start": i + 3})
    assert len(run.since(0)["marks"]) == page_run.MOST_MARKS


def test_settings_and_folder():
    run = Run()
    settings = {f"name{i}": "x" for i in range(1000)} | {"number": 3}
    take(run, rank=0, said={"about": {"folder": "/a/result", "settings": settings}})
    news = run.since(0)
    assert news["folder"] == "/a/result"
    assert len(news["settings"]) == page_run.MOST_SETTINGS
    take(run, rank=0, said={"about": {"folder": 3, "settings": {"lr": 0.1, "model": "\x1b[1mcnn"}}})
    assert (run.since(0)["folder"], run.since(0)["settings"]) == ("/a/result", {"model": "cnn"})


def test_number_of_curves_and_of_lines_is_limited():
    run = Run()
    for begin in range(0, page_run.MOST_CURVES + 10, 10):
        report(run, "log", 1, **{f"value{begin + i}": i for i in range(10)})
    take(run, output="x" * 10_000 + "\n" + "line\n" * 600)
    news = run.since(0)
    assert len(news["curves"]) == page_run.MOST_CURVES
    assert len(news["lines"]) == 500
    take(run, output="y" * 10_000 + "\n")
    assert len(run.since(0)["lines"][-1]) == page_run.LONGEST_LINE


def test_output_is_shown_as_a_terminal_does():
    run = Run()
    take(run, output="  10%\r  20%\r\x1b[31mred\x1b[0m\r\nplain\x00\n")
    assert run.since(0)["lines"] == ["red", "plain"]


BAD = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[" * 100_000,
    b"7",
    b'"text"',
    b"[]",
    b'{"job": 7, "output": 7, "rank": "0"}',
    b'{"rank": -1, "facts": {"state": "runs"}}',
    b'{"rank": true, "said": 3}',
    b'{"rank": 0, "facts": [], "said": {"values": {"a": 1}}}',
    b'{"rank": 0, "said": {"facts": 1, "job": [], "values": [1, {}, {"values": 3}]}}',
    b'{"job": {"start": 1e308}}',
    b'{"rank": 0, "said": {"about": []}}',
    b'{"rank": 0, "said": {"about": {"settings": 3, "folder": []}}}',
    b'{"rank": 0, "said": {"values": [{"kind": "log", "at": [1], "values": {"a": 1}}]}}',
    b'{"rank": 0, "said": {"values": [{"kind": [], "at": [1, 2, 3], "values": {"a": 1}}]}}',
    b'{"rank": 0, "facts": {"state": 3, "memory": "much", "step": 1e999, "unknown": 1}}',
    b'{"job": {"n": 1e99, "start": "x", "title": ["<b>"], "done": 1%s}}' % (b"0" * 400),
]


@pytest.mark.parametrize("line", BAD)
def test_bad_events_change_nothing(line):
    run = Run()
    run.take(line)
    news = run.since(0)
    json.dumps(news, allow_nan=False)
    facts = [value for rank in news["ranks"] for key, value in rank.items() if key != "number"]
    assert (facts, news["curves"], news["lines"]) == ([], [], [])
    assert news["job"] == {"state": "runs", "can_stop": False}
