"""Tests the clock of a thread that works, waits for others, and does other work."""

import pytest

from mpchain.utils import work_clock


def test_waits_are_counted_within_what_is_done_aside(clock):
    time, waited = work_clock.clocks()
    clock.now += 1
    with work_clock.aside():
        clock.now += 10
        with work_clock.waiting():
            clock.now += 100
    with work_clock.waiting():
        clock.now += 1000
    assert work_clock.clocks() == (time + 1101, waited + 1100)


def test_errors_end_what_is_done_aside(clock):
    before = work_clock.clocks()
    for context in (work_clock.aside, work_clock.waiting):
        with pytest.raises(KeyError), context():
            clock.now += 10
            raise KeyError
    assert work_clock.clocks() == (before[0] + 10, before[1] + 10)
