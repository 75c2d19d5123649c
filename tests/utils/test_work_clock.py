"""The clock of a thread that works, waits for others, and does something aside."""

import types

import pytest

from mpchain.utils import work_clock


@pytest.fixture
def now(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(work_clock, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_waits_are_counted_within_what_is_done_aside(now):
    time, waited = work_clock.clocks()
    now[0] += 1
    with work_clock.aside():
        now[0] += 10
        with work_clock.waiting():
            now[0] += 100
    with work_clock.waiting():
        now[0] += 1000
    assert work_clock.clocks() == (time + 1101, waited + 1100)


def test_errors_end_what_is_done_aside(now):
    before = work_clock.clocks()
    for context in (work_clock.aside, work_clock.waiting):
        with pytest.raises(KeyError), context():
            now[0] += 10
            raise KeyError
    assert work_clock.clocks() == (before[0] + 10, before[1] + 10)
