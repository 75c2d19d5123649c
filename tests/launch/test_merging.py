import random
from types import SimpleNamespace

import pytest

from launch import mpirun
from launch.job import Job
from launch.merging import MOST_HELD, MOST_TRACEBACKS, TIME_TO_AGREE, Merger, label
from launch.output import Errors, Lines
from launch.remote_rank import Rank

from .conftest import LIMIT, apart


class Clock:
    """A loop whose time the test sets."""

    def __init__(self):
        self.time, self._alarms = 0.0, []

    def after(self, seconds, action):
        self._alarms.append((self.time + seconds, action))

    def advance(self, seconds):
        end = self.time + seconds
        while due := [alarm for alarm in self._alarms if alarm[0] <= end]:
            alarm = min(due, key=lambda each: each[0])
            self._alarms.remove(alarm)
            self.time = alarm[0]
            alarm[1]()
        self.time = end


class Screen:
    def __init__(self):
        self.text = b""

    def put(self, data):
        self.text += data


def begin(n):
    clock, screen = Clock(), Screen()
    return clock, screen, Merger(clock, n)


def test_what_all_ranks_print_is_shown_once_and_at_once():
    _, screen, merger = begin(3)
    for rank in (1, 0, 2):
        assert screen.text == b""
        assert merger.put(screen, label([rank]) + b"loaded\n", rank) == 1
    assert screen.text == b"[0-2] loaded\n"


def test_what_one_rank_prints_is_shown_after_a_moment():
    clock, screen, merger = begin(3)
    merger.put(screen, b"[0] epoch 1\n", 0)
    clock.advance(TIME_TO_AGREE / 2)
    merger.put(screen, b"[2] epoch 1\n[2] other\n", 2)
    assert screen.text == b""
    clock.advance(TIME_TO_AGREE / 2)
    assert screen.text == b"[0,2] epoch 1\n"
    clock.advance(TIME_TO_AGREE / 2)
    assert screen.text == b"[0,2] epoch 1\n[2] other\n"
    merger.put(screen, b"[1] epoch 1\n", 1)
    clock.advance(TIME_TO_AGREE)
    assert screen.text.endswith(b"[1] epoch 1\n")


def test_lines_that_one_rank_repeats_stay():
    clock, screen, merger = begin(2)
    merger.put(screen, b"[0] x\n[0] x\n", 0)
    merger.put(screen, b"[1] x\n", 1)
    clock.advance(TIME_TO_AGREE)
    assert screen.text == b"[0-1] x\n[0] x\n"


def test_order_of_a_rank():
    clock, screen, merger = begin(2)
    merger.put(screen, b"[0] a\n[0] b\n", 0)
    merger.put(screen, b"[1] b\n[1] a\n", 1)
    clock.advance(TIME_TO_AGREE)
    assert screen.text == b"[0] a\n[0-1] b\n[1] a\n"


def test_screens_are_apart():
    clock, screen, merger = begin(2)
    errors = Screen()
    merger.put(screen, b"[0] a\n", 0)
    merger.put(errors, b"[1] a\n", 1)
    clock.advance(TIME_TO_AGREE)
    assert (screen.text, errors.text) == (b"[0] a\n", b"[1] a\n")


def test_a_traceback_stays_in_one_piece():
    clock, screen, merger = begin(3)
    head, end = "Traceback (most recent call last):\n", "ValueError: boom\n"
    for rank, name in enumerate(["a.py", "b.py", "a.py"]):
        lines = [head, f"  {name}\n", end]
        merger.put(screen, "".join(f"[{rank}] {line}" for line in lines).encode(), rank, whole=True)
    clock.advance(TIME_TO_AGREE)
    expected = [
        f"[{ranks}] {line}"
        for ranks, name in (("0,2", "a.py"), ("1", "b.py"))
        for line in (head, f"  {name}\n", end)
    ]
    assert screen.text == "".join(expected).encode()


@pytest.mark.parametrize("part", [b"[0]  3%|##  |\r", b"rest of a long line\n", b"[0] no end"])
def test_parts_of_lines_do_not_wait_alone(part):
    _, screen, merger = begin(2)
    merger.put(screen, part, 0)
    assert screen.text == part


def test_words_of_the_launcher_keep_their_place():
    clock, screen, merger = begin(2)
    merger.put(screen, b"[0] a\n", 0)
    merger.put(screen, b"mpchain-launch: rank 0 failed\n")
    assert screen.text == b""
    clock.advance(TIME_TO_AGREE)
    assert screen.text == b"[0] a\nmpchain-launch: rank 0 failed\n"


def test_without_merging_everything_is_shown_as_it_is():
    _, screen, merger = begin(1)
    merger.put(screen, b"50%\r", 0)
    assert merger.put(screen, b"100%\nend\n", 0) == 2
    assert screen.text == b"50%\r100%\nend\n"


def test_little_waits():
    _, screen, merger = begin(2)
    merger.put(screen, b"".join(b"[0] %d\n" % i for i in range(3 * MOST_HELD)), 0)
    assert screen.text.count(b"\n") == 2 * MOST_HELD
    merger.release()
    assert screen.text == b"".join(b"[0] %d\n" % i for i in range(3 * MOST_HELD))


@pytest.mark.parametrize("seed", range(8))
def test_no_line_is_lost_or_late_and_ranks_keep_their_order(seed):
    choose = random.Random(seed)
    n = choose.randint(2, 5)
    clock, screen, merger = begin(n)
    printed = {rank: [] for rank in range(n)}
    times = []  # the deadlines of the printed lines
    for _ in range(200):
        clock.advance(choose.choice([0, 0, 0, 0.01, 0.07, 0.3]))
        rank = choose.randrange(n)
        lines = [choose.choice("abc") for _ in range(choose.randint(1, 3))]
        printed[rank] += lines
        merger.put(screen, "".join(f"[{rank}] {line}\n" for line in lines).encode(), rank)
        times += [clock.time + TIME_TO_AGREE] * len(lines)
        n_shown = apart(screen.text.decode()).count("\n")
        assert n_shown >= sum(time < clock.time for time in times)
    merger.release()
    shown = apart(screen.text.decode()).splitlines()
    for rank in range(n):
        prefix = f"[{rank}] "
        assert [x.removeprefix(prefix) for x in shown if x.startswith(prefix)] == printed[rank]
    assert screen.text.count(b"\n") == merger.n_lines < len(times) == len(shown)


# The ranks have 50 seconds to agree, which is enough even on a slow machine.
PATIENT = """import sys
from launch import main, merging
merging.TIME_TO_AGREE = 50.0
sys.exit(main())
"""


@pytest.mark.skipif(mpirun.find() is None, reason="needs mpirun: pip install 'mpchain[mpi]'")
@pytest.mark.parametrize("option", ["--merge", "--no-merge"])
def test_a_job(start, script, option):
    path = script("""
        import argparse

        print("loaded")
        argparse.ArgumentParser(prog="train.py").parse_args(["--help"])
    """)
    job = start("-n", 3, option, path, command=("-c", PATIENT)).process
    output, errors = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, errors
    assert (
        output.count("loaded")
        == output.count("usage: train.py")
        == (1 if option == "--merge" else 3)
    )
    assert ("[0-2] loaded\n" in output) == (option == "--merge")


class Ending(Job):
    """The parts of a job of two ranks that its end needs."""

    def __init__(self, merger, ranks):
        self.merger, self.ranks, self._strangers, self._connections = merger, ranks, [], [ranks[0]]
        self.plan, self.stdout, self.stderr = SimpleNamespace(n=2), b"", b""
        self._starter_code = None

    def has_finished(self, starter_code=None):
        self._starter_code = starter_code
        return self._finished()


class Shown(Rank):
    """A rank without a connection, whose output the test provides."""

    def __init__(self, job, number, prefix):
        self._job, self.number, self.place, self._last = job, number, number, b""
        self._output, self._errors = Lines(prefix), Errors(prefix, lambda: None)

    def print(self, screen, text):
        self._show(screen, self._output.take(text), text)

    def complain(self, text):
        self._take_errors(text)


def test_lines_wait_for_ranks_that_start_later():
    _, screen, merger = begin(2)
    ranks = [SimpleNamespace(number=number, ended=True) for number in (0, 1)]
    job = Ending(merger, {0: ranks[0]})
    merger.put(screen, b"[0] loaded\n", 0)
    job.lose(ranks[0])
    assert not job.has_finished()
    assert screen.text == b""
    merger.put(screen, b"[1] loaded\n", 1)
    merger.put(screen, b"[1] other\n", 1)
    assert job.has_finished(starter_code=0)
    assert screen.text == b"[0-1] loaded\n[1] other\n"


def test_a_held_traceback_is_shown_with_an_equal_one_of_the_rank_that_failed():
    clock, screen, merger = begin(2)
    logs = SimpleNamespace(write=lambda rank, data: None)
    job = SimpleNamespace(stderr=screen, merger=merger, logs=logs, cause=[], loop=clock)
    ranks = [Shown(job, number, f"[{number}] ".encode()) for number in (0, 1)]
    text = b"Traceback (most recent call last):\n  a.py\nValueError: boom\n"
    ranks[0].complain(text)
    job.cause = ranks[0].held_lines()
    ranks[1].complain(text[:-6])
    clock.advance(2 * TIME_TO_AGREE)
    assert screen.text == b""
    ranks[1].complain(text[-6:])
    ranks[0].show_same(job.cause)
    lines = text.splitlines(keepends=True)
    assert screen.text == b"".join(b"[0-1] " + line for line in lines)


BOOM = [b"Traceback (most recent call last):\n", b"  a.py\n", b"ValueError: boom\n"]


def marked(rank, lines):
    return b"".join(b"[%s] " % rank + line for line in lines)


def test_traceback_that_other_ranks_print_later_or_with_other_words_is_shown_once():
    clock, screen, merger = begin(4)
    other = [*BOOM[:2], b"ValueError: other\n"]
    for rank, lines in enumerate([BOOM, BOOM, other, BOOM]):
        merger.put(screen, marked(b"%d" % rank, lines), rank, whole=True)
        clock.advance(TIME_TO_AGREE * (rank > 0))
    assert screen.text == (
        marked(b"0-1", BOOM)
        + marked(b"2", [b"the traceback of [0-1] above ends here with:\n", other[2]])
        + marked(b"3", [b"the traceback of [0-2] above ends here with:\n", BOOM[2]])
    )


def test_traceback_with_other_frames_and_one_that_a_rank_repeats_are_shown_whole():
    clock, screen, merger = begin(3)
    others = [BOOM[0], b"  b.py\n", BOOM[2]]
    for rank, lines in [(0, BOOM), (1, others), (0, BOOM), (1, others[:1]), (2, others[:1])]:
        merger.put(screen, marked(b"%d" % rank, lines), rank, whole=True)
        clock.advance(TIME_TO_AGREE)
    expected = marked(b"0", BOOM) + marked(b"1", others) + marked(b"0", BOOM)
    assert screen.text.startswith(expected)


def test_few_tracebacks_are_remembered():
    clock, screen, merger = begin(2)
    for i in range(2 * MOST_TRACEBACKS):
        merger.put(screen, marked(b"0", [BOOM[0], b"  %d\n" % i, BOOM[2]]), 0, whole=True)
    clock.advance(TIME_TO_AGREE)
    merger.put(screen, marked(b"1", [BOOM[0], b"  0\n", BOOM[2]]), 1, whole=True)
    clock.advance(TIME_TO_AGREE)
    assert screen.text.endswith(marked(b"1", [BOOM[0], b"  0\n", BOOM[2]]))


def test_rank_that_takes_the_place_of_another_is_shown_by_its_number():
    clock, screen, merger = begin(2)
    written = []
    logs = SimpleNamespace(write=lambda rank, data: written.append((rank, data)))
    plan = SimpleNamespace(prefix=True, n=3)
    job = SimpleNamespace(stdout=screen, merger=merger, logs=logs, plan=plan)
    lost, spare = (Shown(job, number, b"") for number in (1, 2))
    spare.swap_places(lost)
    for rank in (lost, spare):
        rank.print(screen, b"hello\n")
    clock.advance(2 * TIME_TO_AGREE)
    assert screen.text == b"[1-2] hello\n"
    assert written == [(2, b"hello\n"), (1, b"hello\n")]
