import os
import pathlib

import pytest

from launch import report

LIBRARY = pathlib.Path(os.__file__).parent
STARTER = pathlib.Path(report.__file__).with_name("start_program.py")


class Rank:
    def __init__(self, host="a", code=None, ended_itself=True, lost="", stacks=b""):
        self.host, self.code, self.ended_itself = host, code, ended_itself
        self.lost, self.stacks, self.ended = lost, stacks, code is not None
        self.done = self.is_stopped = False
        self.oom_kills = -1


def stack(*frames, head="Current thread 0x00007f (most recent call first):"):
    return "\n".join([head, *frames, ""]).encode()


STARTED = (
    '  File "<frozen runpy>", line 88 in _run_code',
    f'  File "{STARTER}", line 40 in run',
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV (signal 11)"),
        (-9, "was killed by SIGKILL (signal 9), perhaps because memory ran out"),
        (-63, "was killed by signal 63"),
    ],
)
def test_end(code, words):
    assert report.describe_end(code) == words


@pytest.mark.parametrize(("kills", "words"), [(0, ""), (2, ", because memory ran out on its host")])
def test_end_where_the_kernel_counts_the_processes_that_it_ends(kills, words):
    assert report.describe_end(-9, kills) == f"was killed by SIGKILL (signal 9){words}"
    assert report.describe_end(-15, kills) == "was killed by SIGTERM (signal 15)"


def test_place_in_the_users_program():
    text = stack('  File "/x/train.py", line 7 in step', '  File "/x/train.py", line 9', *STARTED)
    assert report.describe_place(text) == "at train.py:7 in step"


@pytest.mark.parametrize(
    "path", [LIBRARY / "threading.py", "/x/lib/python3/site-packages/mpi4py/futures.py"]
)
def test_place_in_a_library(path):
    text = stack(f'  File "{path}", line 320 in wait', '  File "/x/a.py", line 7 in f', *STARTED)
    assert (
        report.describe_place(text) == f"at a.py:7 in f, inside wait ({os.path.basename(path)}:320)"
    )


def test_generated_functions_are_not_the_users():
    generated = '  File "<mpchain: relu, 9>", line 15 in call'
    text = stack(generated, '  File "/x/a.py", line 7 in f', *STARTED)
    assert report.describe_place(text) == "at a.py:7 in f, inside call (<mpchain: relu, 9>:15)"


def test_place_of_the_thread_that_was_asked():
    other = stack('  File "/x/b.py", line 1 in b', head="Thread 0x00007a (most recent call first):")
    here = stack('  File "/x/a.py", line 2 in a')
    assert report.describe_place(other + b"\n" + here) == "at a.py:2 in a"


def test_place_of_the_thread_for_which_the_main_one_waits():
    other = stack('  File "/x/b.py", line 1 in b', head="Thread 0x00007a (most recent call first):")
    here = stack(f'  File "{LIBRARY}/threading.py", line 9 in _shutdown')
    assert report.describe_place(other + b"\n" + here) == "at b.py:1 in b"
    assert report.describe_place(here) == "at threading.py:9 in _shutdown"
    # A library's thread is not the cause.
    helper = other.replace(b"/x/b.py", f"{LIBRARY}/threading.py".encode())
    assert report.describe_place(helper + b"\n" + here) == "at threading.py:9 in _shutdown"
    assert report.describe_place(helper + b"\n" + stack()) == ""


@pytest.mark.parametrize("text", [b"", b"nothing", stack(*STARTED)])
def test_no_place(text):
    assert report.describe_place(text) == ""


def test_ranks_of_one_fate_share_a_line():
    here = stack('  File "/x/a.py", line 2 in a')
    there = stack('  File "/x/a.py", line 3 in b')
    culprit = Rank(code=1)
    ranks = {
        0: Rank(code=-15, ended_itself=False, stacks=here),
        1: culprit,
        2: Rank(code=-15, ended_itself=False, stacks=here),
        3: Rank(code=-15, ended_itself=False, stacks=here),
        4: Rank("b", code=-15, ended_itself=False, stacks=there),
        5: Rank("b", code=0),
        6: Rank("b", code=-11),
        7: Rank("c", lost="no heartbeat"),
        8: Rank("c"),
    }
    assert report.describe_ranks(ranks, 11, without=culprit) == [
        "ranks 0, 2-3 on a: terminated by mpchain-launch, at a.py:2 in a",
        "rank 4 on b: terminated by mpchain-launch, at a.py:3 in b",
        "rank 5 on b: ended with exit code 0",
        "rank 6 on b: killed by SIGSEGV (signal 11)",
        "rank 7 on c: lost: no heartbeat",
        "rank 8 on c: killed because it did not end",
        "ranks 9-10: never started",
    ]


def test_many_lines_are_cut():
    ranks = {number: Rank(f"host{number}", code=0) for number in range(100)}
    lines = report.describe_ranks(ranks, 100)
    assert len(lines) == report.MOST_LINES + 1
    assert lines[-1] == "and 80 more such lines"


HEAD = b"Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], ""),
        ([HEAD, b"  File x\n", b"    f()\n", b"ValueError: boom\n", b"more\n"], "ValueError: boom"),
        ([HEAD, b"KeyError: 1\n", b"\n", HEAD, b"  x\n", b"OSError: 2\n"], "OSError: 2"),
        ([b"Fatal Python error: Aborted\n", b"\n", b"Current thread\n"], "Aborted"),
        ([HEAD, b"E: " + b"x" * 300], "E: " + "x" * 194 + "..."),
    ],
)
def test_exception(lines, words):
    assert report.describe_exception(lines) == words
