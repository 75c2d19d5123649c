"""Tests that programs end: the work of a rank after its last collective must not block other
ranks."""

import re

import pytest

from tests.distributed import ranks

BEGIN = """
import atexit, os, signal, sys, threading, time
import numpy as np
from mpchain.distributed import create_communicator

comm = create_communicator(timeout=3)
comm.allreduce(np.ones(3))
is_last = comm.rank == comm.size - 1
"""

HANGS = {
    "is stopped": (
        "if is_last: os.kill(os.getpid(), signal.SIGSTOP)",
        r"for rank 1 in the end of the program\n(.*\n)*  rank 1: .* is stopped by a signal",
    ),
    "hangs in atexit": (
        "def hang(): threading.Event().wait()\nif is_last: atexit.register(hang)",
        r"for rank 1 in the end of the program\n(.*\n)*  rank 1: .*; now at .* in hang",
    ),
    "has a thread that does not end": (
        "def hang(): threading.Event().wait()\nif is_last: threading.Thread(target=hang).start()",
        r"for rank 1 in the end of the program\n(.*\n)*  rank 1: .*; now at the end of its main "
        r"thread; thread 'Thread-\d+ \(hang\)' at .* in hang",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("script", "expected"), HANGS.values(), ids=HANGS)
def test_a_rank_that_does_not_end(script, expected, needs_mpirun):
    status, outputs, own_output = ranks.run(2, ["-c", BEGIN + script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status not in (0, None), report
    assert re.search(rf"rank 0 of 2: has waited \d s {expected}", outputs[0]), report


ENDS = {
    "well": ("", 0),
    "with a status": ("if is_last: sys.exit(7)", 7),
    "later than others": (
        "end = time.process_time() + 5\nwhile is_last and time.process_time() < end: pass",
        0,
    ),
    "in a thread that ends": (
        "if is_last: threading.Thread(target=lambda: sum(range(10**7))).start()",
        0,
    ),
    "after its communicator": ("comm.finalize(); comm.finalize()", 0),
}


@pytest.mark.long
@pytest.mark.parametrize(("script", "expected"), ENDS.values(), ids=ENDS)
def test_programs_end(script, expected, needs_mpirun):
    script = f"{BEGIN}atexit.register(print, 'the end', flush=True)\n{script}"
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status == expected, report
    for output in outputs:
        assert "the end\n" in output, report
    assert ("the job continues, since it works" in outputs[0]) == ("process_time" in script), report


@pytest.mark.long
def test_a_rank_that_works_is_waited_for(needs_mpirun):
    script = BEGIN + (
        "end = time.process_time() + 5\n"
        "while is_last and time.process_time() < end: pass\n"
        "print(comm.allreduce(np.ones(1)))\n"
    )
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status == 0, report
    assert re.search(
        r"rank 0 of 2: has waited \d s for rank 1 in allreduce(.*\n)*  rank 1: .*; now at <string>"
        r"(.*\n)*.*the job continues, since it works",
        outputs[0],
    ), report
    assert all(output.endswith("[2.]\n") for output in outputs), report


@pytest.mark.long
def test_a_rank_that_leaves_too_early_is_named(needs_mpirun):
    script = BEGIN + "if not is_last: comm.allreduce(np.ones(1))"
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status not in (0, None), report
    assert re.match(
        r"rank 0 of 2: has waited \d s for rank 1, whose program has ended, in allreduce",
        outputs[0],
    ), report


def test_an_exception_comes_first(needs_mpirun):
    script = BEGIN + "if is_last: raise KeyError('lost')"
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status not in (0, None), report
    assert outputs[0] == "", report
    assert "KeyError: 'lost'" in outputs[1], report


@pytest.mark.long
def test_threads_that_share_a_communicator(needs_mpirun):
    script = BEGIN + (
        "def work():\n"
        "    while True: comm.allreduce(np.ones(1))\n"
        "for _ in range(2): threading.Thread(target=work).start()\n"
    )
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    report = ranks.report(status, outputs, own_output)
    assert status not in (0, None), report
    assert re.search(
        r"rank \d of 2:\nexception in thread 'Thread-\d \(work\)'\n(.*\n)*RuntimeError: thread "
        r".* has called a communicator while thread 'Thread-\d \(work\)' is in a method",
        "".join(outputs),
    ), report
