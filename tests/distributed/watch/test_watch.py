"""Tests that the watch over collectives reports mismatches and missing ranks, instead of hanging.

Objects in one process imitate the ranks, with a clock that the test sets. ``test_faults.py`` tests
real ranks.
"""

import contextlib
import os
import re
import signal
import types

import numpy as np
import pytest

from mpchain import using_config
from mpchain.distributed import CollectiveMismatchError
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.watch import detection, fingerprints, gpu
from mpchain.distributed.watch.table import RING, State
from mpchain.distributed.watch.watchdog import waiting_for
from tests.distributed.communicators.test_progress import run_threads
from tests.distributed.watch import imitated_ranks
from tests.distributed.watch.imitated_ranks import TIMEOUT, Operation, Ranks, X, call, enter

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (("allreduce", X), ("bcast_obj", None)),
        (("allreduce", X), ("allreduce", X[0])),
        (("allreduce", X), ("allreduce", X.astype("f8"))),
        (("iallreduce", X), ("iallreduce", X[0])),
        (("bcast_obj", None, 100, 1), ("bcast_obj", None, 100, 0)),
        (("barrier",), ("allgather_obj", 1)),
        (("allreduce_obj", 1), ("allgather_obj", 1)),
    ],
)
def test_who_comes_second_raises_and_names_both_sides(mine, others):
    ranks = Ranks(3)
    call(ranks[1], "barrier")
    call(ranks[0], "barrier")
    enter(ranks[0], *mine)
    with pytest.raises(CollectiveMismatchError) as caught:
        enter(ranks[1], *others)
    lines = str(caught.value).split("\n")
    assert lines[0] == "collective 2 differs between ranks:"
    for rank, line, (name, *arguments) in ((10, lines[1], mine), (11, lines[2], others)):
        described = ""
        if arguments and isinstance(arguments[0], np.ndarray):
            described = f" of {arguments[0].shape} {arguments[0].dtype}"
        assert line.startswith(f"  rank {rank}: {name}{described}")
        assert f"called at {imitated_ranks.__file__}:" in line
        assert line.endswith(" in enter")
    assert lines[3] == "  rank 12: has not reached it yet"


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (("gather", X), ("gather", X[0])),
        (("bcast", X), ("bcast", None)),
        (("scatter", [X]), ("scatter", None)),
        (("bcast_obj", 1, 100, 0), ("bcast_obj", None)),
        (("allgather", X.astype("f8")), ("allgather", X)),
    ],
)
def test_what_may_differ(mine, others):
    ranks = Ranks(2)
    call(ranks[0], *mine)
    call(ranks[1], *others)


def test_in_debug_mode_shapes_are_left_to_the_communicator():
    ranks = Ranks(2)
    with using_config("debug", True):
        call(ranks[0], "allreduce", X)
        call(ranks[1], "allreduce", X[0])


def test_what_ranks_did_long_ago_is_not_compared():
    ranks = Ranks(2)
    call(ranks[0], "barrier")
    for _ in range(RING):
        call(ranks[0], "allreduce", X)
    call(ranks[1], "allgather_obj", 1)


def test_messages_are_not_numbered():
    ranks = Ranks(2)
    call(ranks[0], "send", X, 1)
    call(ranks[0], "barrier")
    call(ranks[1], "barrier")
    assert ranks[0].row.n == 1


def test_who_comes_second_waits_if_another_one_reports(clock):
    ranks = Ranks(3)
    for watch in ranks.all:
        watch.row.heartbeat = ranks.clock.now
    enter(ranks[0], "barrier")
    for rank in (1, 2):
        with pytest.raises(CollectiveMismatchError):
            enter(ranks[rank], "allreduce", X)
        assert clock.naps == [detection.GRACE] * (rank - 1)


def test_a_mismatch_that_both_have_missed_is_found_by_the_thread():
    ranks = Ranks(2)
    enter(ranks[0], "allreduce", X)
    ranks[1]._neighbors = []
    enter(ranks[1], "allreduce", X[0])
    ranks.pass_time(5)
    assert "collective 1 differs" in ranks.report
    assert "rank 10: allreduce of (2, 3) float32" in ranks.report
    assert "rank 11: allreduce of (3,) float32" in ranks.report


def test_a_rank_that_does_not_come():
    ranks = Ranks(3)
    for watch in ranks.all:
        call(watch, "barrier")
    ranks.pass_time(5)
    enter(ranks[0], "allreduce", X)
    enter(ranks[2], "allreduce", X)
    ranks.pass_time(9)
    assert ranks.reports == []
    ranks.pass_time(4)
    first, together, alone, hint = ranks.report.split("\n")
    assert first.startswith("has waited 11 s for rank 11 in allreduce of (2, 3) float32, called ")
    assert "  ranks 10, 12: for 12 s in collective 2, allreduce of (2, 3) float32" in together
    assert "  rank 11: for 16 s in no collective; its last one was collective 1, barrier" in alone
    assert f"; now at {imitated_ranks.__file__}:" in alone
    assert " in pass_time, by mpchain/distributed/watch/" in alone
    assert hint == (
        "  (timeout 10 s without any sign of work; see create_communicator(timeout=...) and "
        "MPCHAIN_COLLECTIVE_TIMEOUT)"
    )


def test_a_rank_that_does_not_answer():
    ranks = Ranks(2)
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert "rank 11: for 13 s in no collective; it was in none so far; process" in ranks.report
    assert f"; process {os.getpid()} on near does not answer\n" in ranks.report


@pytest.mark.parametrize(
    ("state", "expected"),
    [("T", "is stopped by a signal"), ("t", "is stopped by a debugger"), ("Z", "is dead")],
)
def test_what_the_system_says_of_a_process(state, expected, monkeypatch, tmp_path):
    ranks = Ranks(2)
    stat = tmp_path / "stat"
    stat.write_text(f"7 (a) b) {state} 1")
    real_open = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *args, **kwargs: real_open(stat if path == "/proc/7/stat" else path, **kwargs),
    )
    ranks[1].row.pid = 7
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert f"; process 7 on near {expected}" in ranks.report


def test_a_process_that_is_gone():
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    ranks = Ranks(2)
    ranks[1].row.pid = 2**30
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert f"; process {2**30} on near is gone" in ranks.report


def test_ranks_of_another_host_of_which_nothing_is_heard():
    ranks = Ranks(2, hosts=["near", "far"])
    ranks[1].row.state = State.UNKNOWN
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert "rank 11: no heartbeat from this rank or from host far" in ranks.report


def test_time_in_which_all_were_stopped_does_not_count():
    ranks = Ranks(2)
    enter(ranks[0], "barrier")
    ranks.pass_time(1)
    ranks.clock.now += 1000
    ranks.pass_time(5)
    assert ranks.reports == []
    ranks.pass_time(8)
    assert "has waited 11 s" in ranks.report


def test_who_comes_in_time_is_not_reported():
    ranks = Ranks(2)
    for _ in range(5):
        enter(ranks[0], "barrier")
        ranks.pass_time(9)
        call(ranks[1], "barrier")
        ranks[0].leave()
        ranks.pass_time(9)
    assert ranks.reports == []


def test_who_comes_while_the_report_is_being_made_is_not_reported():
    ranks = Ranks(2)
    enter(ranks[0], "barrier")
    while not ranks[0].row.is_reporting:
        ranks.pass_time(0.5, alive=[0])
    ranks[0].leave()
    ranks.pass_time(30)
    assert ranks.reports == []
    assert ranks[0].row.is_reporting == detection.Reporting.NO


def test_another_rank_reports_if_the_first_does_not():
    ranks = Ranks(3)
    enter(ranks[0], "barrier")
    enter(ranks[1], "barrier")
    ranks.pass_time(9)
    ranks.pass_time(8, alive=[1])
    assert ranks.report.startswith("has waited")
    assert "for ranks 10, 12 in barrier" in ranks.report


def test_a_rank_that_has_left_is_reported_before_the_timeout():
    ranks = Ranks(2)
    call(ranks[0], "barrier")
    call(ranks[1], "barrier")
    ranks[1].tell_end()
    enter(ranks[0], "barrier")
    ranks.pass_time(detection.GRACE + 3, alive=[0])
    assert "rank 11: its program ended" in ranks.report
    assert ranks.clock.now < 1000 + TIMEOUT


def test_the_end_of_a_program_that_nobody_waits_for():
    ranks = Ranks(2)
    call(ranks[0], "barrier")
    call(ranks[1], "barrier")
    ranks[1].tell_end()
    ranks.pass_time(60)
    assert ranks.reports == []


def at_work(*working, n=3):
    """Returns ranks of which all but the last wait for the last, while some ranks work."""
    ranks = Ranks(n)
    for watch in ranks.all:
        call(watch, "barrier")
    ranks.working.update(working)
    ranks.pass_time(5)
    for watch in ranks.all[:-1]:
        enter(watch, "allreduce", X)
    return ranks


def test_a_rank_that_works_is_reported_once_and_waited_for():
    ranks = at_work(2)
    ranks.pass_time(9)
    assert ranks.told == []
    ranks.pass_time(1000)
    assert ranks.reports == []
    (told,) = ranks.told
    first, *places, hint = told.split("\n")
    assert first.startswith("has waited 11 s for rank 12 in allreduce of (2, 3) float32, called ")
    assert places[-1].startswith("  rank 12: for 16 s in no collective")
    assert f"; now at {imitated_ranks.__file__}:" in places[-1]
    assert hint == (
        "  (the job continues, since it works; a rank that stops, or neither computes nor reads "
        "nor writes for 10 s, will end it; see create_communicator(timeout=...) and "
        "MPCHAIN_COLLECTIVE_TIMEOUT)"
    )
    call(ranks[2], "allreduce", X)
    for watch in ranks.all[:-1]:
        watch.leave()
        enter(watch, "barrier")
    ranks.pass_time(20)
    assert len(ranks.told) == 2  # the second report is about another wait


def test_a_rank_that_works_no_more_ends_the_job():
    ranks = at_work(2)
    ranks.pass_time(60)
    ranks.working.clear()
    ranks.pass_time(9)
    assert ranks.reports == []
    ranks.pass_time(4)
    assert ranks.report.startswith("has waited 7")


@pytest.mark.parametrize("alive", [[0, 1], [0]])
def test_a_rank_that_is_stopped_while_it_works_ends_the_job(alive):
    ranks = at_work(2)
    ranks.pass_time(60)
    ranks.pass_time(20, alive=alive)
    assert ranks.report.startswith("has waited 7")
    assert ranks.report.count("does not answer") == 3 - len(alive)


def test_ranks_that_work_are_waited_for_only_so_long():
    ranks = at_work(2)
    ranks.pass_time(detection.LONGEST_WAIT - 5)
    assert ranks.reports == []
    ranks.pass_time(10)
    assert "rank 12: for 18" in ranks.report
    assert ranks.report.endswith(
        "  (ranks that work are waited for at most 1800 s; see create_communicator(timeout=...) "
        "and MPCHAIN_COLLECTIVE_TIMEOUT)"
    )


def test_a_longer_timeout_is_longer_for_ranks_that_work_too():
    ranks = Ranks(2, timeout=3000)
    ranks.working.add(1)
    enter(ranks[0], "barrier")
    ranks.pass_time(2900)
    assert ranks.told == []
    ranks.pass_time(200)
    assert "has waited 300" in ranks.report


def test_a_rank_that_is_idle_ends_the_job_though_another_works():
    ranks = Ranks(3)
    ranks.working.add(1)
    enter(ranks[0], "barrier")
    ranks.pass_time(13)
    assert "for ranks 11-12 in barrier" in ranks.report


def test_a_rank_that_waits_for_one_that_works_is_not_lost():
    ranks = Ranks(3)
    ranks.working.add(2)
    enter(ranks[0], "barrier")
    enter(ranks[1], "recv", 2)
    ranks.pass_time(100)
    assert ranks.reports == []
    enter(ranks[2], "recv", 1)  # now all ranks wait
    ranks.pass_time(13)
    assert "for ranks 11-12 in barrier" in ranks.report


def test_a_process_that_is_gone_is_reported_before_the_timeout():
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    ranks = Ranks(2, timeout=1000)
    ranks[1].row.pid = 2**30
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert "rank 11 in barrier" in ranks.report
    assert f"; process {2**30} on near is gone" in ranks.report


def leave(watch):
    watch.tell_end()
    watch.is_leaving = True


def test_the_end_of_the_program_is_watched():
    ranks = Ranks(3)
    for watch in ranks.all:
        call(watch, "barrier")
    leave(ranks[0])
    leave(ranks[2])
    ranks.pass_time(9)
    assert ranks.reports == []
    ranks.pass_time(5)
    lines = ranks.report.split("\n")
    assert lines[0] == "has waited 11 s for rank 11 in the end of the program"
    assert lines[1].startswith("  ranks 10, 12: its program ended 12 s ago; its last one was")
    assert lines[2].startswith("  rank 11: for 12 s in no collective; ")


def test_a_rank_that_is_stopped_after_its_end():
    ranks = Ranks(2)
    leave(ranks[0])
    leave(ranks[1])
    ranks.pass_time(13, alive=[0])
    assert ranks.report.startswith("has waited 12 s for rank 11, whose program has ended, in the")
    assert f"s ago; it was in none so far; process {os.getpid()} on near does" in ranks.report


@pytest.mark.long
def test_ranks_that_work_longer_than_the_others_are_waited_for_at_the_end():
    ranks = Ranks(2)
    leave(ranks[0])
    ranks.working.add(1)
    ranks.pass_time(10_000)
    assert ranks.reports == []
    assert len(ranks.told) == 1
    ranks.working.clear()
    ranks.pass_time(13)
    assert "the end of the program" in ranks.report


def test_the_end_of_all_programs_is_no_trouble():
    ranks = Ranks(3)
    call(ranks[0], "barrier")  # one rank may be further than the others
    for watch in ranks.all:
        leave(watch)
    ranks.pass_time(60)
    assert ranks.reports == []


def test_threads_that_share_a_communicator_are_refused():
    ranks = Ranks(2)
    enter(ranks[0], "allreduce", X)
    results = run_threads(lambda: call(ranks[0], "barrier"), ranks[0].is_inside_here)
    for error in results:
        assert isinstance(error, RuntimeError)
        assert re.fullmatch(
            r"thread 'Thread-\d+ \(run\)' has called a communicator while thread 'MainThread' is "
            r"in a method of this communicator: their messages would be mixed. Make a .*",
            str(error),
        )
    ranks[0].leave()
    # The calls come one after another.
    assert run_threads(lambda: call(ranks[0], "barrier") and None) == [None]


def test_a_thread_does_not_begin_while_another_ones_operation_is_pending():
    ranks = Ranks(2)
    text = call(ranks[0], "iallreduce", X)
    operation = Operation(3)
    operation.is_complete = False
    fingerprints.Request(operation, ranks[0], text)
    (error,) = run_threads(lambda: call(ranks[0], "iallreduce", X))
    assert "while thread 'MainThread' has begun an operation that is not complete" in str(error)
    operation.is_complete = True
    assert run_threads(lambda: call(ranks[0], "iallreduce", X) and None) == [None]


def test_waiting_for_anything_else():
    ranks = Ranks(2)
    with ranks[0].waiting("the tide"):
        ranks.pass_time(13)
    assert ranks.report.startswith("has waited 11 s for rank 11 in the tide\n")
    assert ranks[0].row.state == State.COMPUTING


def test_waiting_for_ranks_of_one_process(comm):
    with waiting_for(Communicator(), "nobody"), waiting_for(comm, "nobody"):
        pass


@pytest.mark.parametrize("n", [1, 5])
def test_requests(n, monkeypatch):
    ranks = Ranks(2)
    text = call(ranks[0], "iallreduce", X)
    operation = Operation(n)
    request = fingerprints.Request(operation, ranks[0], text)
    waited = []
    real_wait = operation.Wait
    operation.Wait = lambda: waited.append(ranks[0].row.state) or real_wait()
    assert request.steps() == ["a step"]
    assert request.Wait() == "result"
    assert waited == [State.WAITING if n > 1 else State.COMPUTING]
    if n > 1:
        assert ranks[0].row.wait_text.startswith(b"iallreduce of (2, 3) float32, called at")
    assert request.Test()


class Gpu:
    """Work of a GPU that is complete when the test says so."""

    is_done, error, is_aborted = False, None, False

    def mark(self):
        return lambda: self.is_done

    def find_error(self):
        return self.error

    def abort(self):
        self.is_aborted = True


def test_work_of_a_gpu_that_does_not_end():
    ranks = Ranks(2)
    work = ranks[0].gpu = Gpu()
    call(ranks[0], "allreduce", X)
    ranks.pass_time(9)
    work.is_done = True
    ranks.pass_time(60)
    assert ranks.reports == []
    work.is_done = False
    call(ranks[0], "allreduce", X)
    ranks.pass_time(13)
    assert ranks.report.startswith("has waited 11 s for rank 11 in allreduce of (2, 3) float32")
    assert ", pending on the GPU\n" in ranks.report
    assert work.is_aborted


def test_events_of_a_gpu(pretend_cupy):
    """The events imitate CuPy's, which need a GPU."""

    class Event:
        def __init__(self, disable_timing):
            self.done = False
            events.append(self)

        def record(self, stream):
            self.stream = stream

    events = []
    cupy_cuda = types.SimpleNamespace(Event=Event, get_current_stream=lambda: "current")
    pretend_cupy(types.SimpleNamespace(cuda=cupy_cuda))

    nccl = types.SimpleNamespace(find_error=lambda: "a cable", abort=lambda: "ended")
    work = gpu.GpuWork(nccl, contextlib.nullcontext(), "own")
    is_done = work.mark()
    assert [event.stream for event in events] == ["current", "own"]
    events[0].done = True
    assert not is_done()
    events[1].done = True
    assert is_done()
    assert (work.find_error(), work.abort()) == ("a cable", "ended")


def test_a_failure_of_nccl():
    ranks = Ranks(2)
    work = ranks[1].gpu = Gpu()
    ranks.pass_time(5)
    work.error = "NCCL has failed: a cable"
    ranks.pass_time(5)
    assert ranks.report.startswith("NCCL has failed: a cable\n  ranks 10-11: for ")
    assert work.is_aborted


def test_a_failure_of_nccl_may_be_a_lost_rank():
    """MPI notices the loss later; if not, the job ends."""
    ranks = Ranks(2)
    work = ranks[1].gpu = Gpu()
    ranks[0].is_elastic = ranks[1].is_elastic = True
    work.error = "NCCL has failed: a cable"
    ranks.pass_time(TIMEOUT)
    assert ranks.reports == []
    ranks.pass_time(5)
    assert ranks.report.startswith("NCCL has failed: a cable\n  ranks 10-11: for ")


def test_an_elastic_watchdog_kills_who_does_not_work(monkeypatch):
    """The watchdog kills ranks on its host; ranks on other hosts kill theirs."""
    ranks = Ranks(3, hosts=["near", "near", "far"])
    killed = []
    for watch in ranks.all:
        watch.is_elastic = True
        watch.local = [0, 1] if watch.rank < 2 else [2]
        watch._processes = dict.fromkeys(watch.local, None)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *args: killed.append(args))
    enter(ranks[0])
    enter(ranks[2])
    ranks.working.add(1)
    ranks.pass_time(3 * TIMEOUT)
    assert not killed and not ranks.reports  # the rank works, so nothing happens
    ranks.working.clear()
    ranks.pass_time(TIMEOUT + 5, alive=[0, 2])
    assert killed == [(None, signal.SIGKILL)] * len(killed) and killed
    assert not ranks.reports
    assert ranks[0].cause_of(1).startswith("killed: others waited ")
    assert ranks[0].cause_of(2) == f"process {os.getpid()} on far is gone"


def test_without_a_survivor_on_its_host_a_silent_rank_ends_the_job():
    ranks = Ranks(2, hosts=["near", "far"])
    for watch in ranks.all:
        watch.is_elastic, watch.local = True, [watch.rank]
    enter(ranks[0])
    ranks.pass_time(2 * TIMEOUT, alive=[0])
    assert not ranks.reports
    ranks.pass_time(2 * TIMEOUT, alive=[0])
    assert "for rank 11 in allreduce" in ranks.report


# Ranks that wait for each other

_CIRCLES = {
    "both send": [("send", X, 1), ("send", X, 0)],
    "both receive": [("recv", 1), ("recv", 0)],
    "objects": [("send_obj", 1, 1), ("send_obj", 1, 0)],
    "sendrecv in other orders": [("sendrecv", X, 1, 1), ("sendrecv", X, 0, 0)],
    "around": [("send", X, 1), ("send", X, 2), ("send", X, 0)],
    "a message and a collective": [("recv", 1), ("barrier",)],
    "two of three": [("barrier",), ("recv", 2), ("recv", 1)],
}


@pytest.mark.parametrize("calls", _CIRCLES.values(), ids=_CIRCLES)
def test_ranks_that_wait_for_each_other_are_reported_at_once(calls):
    """The timeout is 10 s, but these ranks are reported within 4 s."""
    ranks = Ranks(len(calls))
    for watch, (name, *arguments) in zip(ranks.all, calls, strict=True):
        enter(watch, name, *arguments)
    ranks.pass_time(1.5)
    assert ranks.reports == []
    ranks.pass_time(2.5)
    first, *places, hint = ranks.report.split("\n")
    assert re.match(r"ranks 1\d-1\d wait for each other, so that none of them can continue:", first)
    assert all(any(name in line for line in places) for name, *_ in calls)
    assert "one must receive first" in hint


_NO_CIRCLES = {
    "a sender and its receiver": [("send", X, 1), ("recv", 0)],
    "one computes": [("send", X, 1), None],
    "a chain whose end computes": [("send", X, 1), ("send", X, 2), None],
    "a chain whose end moves": [("recv", 1), ("recv", 2), ("send", X, 1)],
    "any source": [("recv_obj", -1), ("recv_obj", 0)],
    "all in one collective": [("barrier",), ("barrier",)],
}


@pytest.mark.parametrize("calls", _NO_CIRCLES.values(), ids=_NO_CIRCLES)
def test_ranks_that_may_continue_are_not_reported_at_once(calls):
    ranks = Ranks(len(calls))
    for watch, call_of in zip(ranks.all, calls, strict=True):
        if call_of is not None:
            enter(watch, *call_of)
    ranks.pass_time(8)
    assert ranks.reports == []


def test_a_circle_that_does_not_stand():
    """No circle is reported if messages move, if ranks continue with the next call, or if one rank
    was stopped."""
    ranks = Ranks(2)
    for watch, other in zip(ranks.all, (1, 0), strict=True):
        enter(watch, "sendrecv", X, other, other)
        watch.row.waits_for = 0  # the array arrives, which takes long
    ranks.pass_time(8)
    for _ in range(8):  # in this loop, both ranks do the same each time
        for watch, other in zip(ranks.all, (1, 0), strict=True):
            watch.leave()
            enter(watch, "sendrecv", X, other, other)
        ranks.pass_time(1)
    ranks.pass_time(5, alive=[0])
    assert ranks.reports == []
    ranks.pass_time(4)
    assert "wait for each other" in ranks.report
