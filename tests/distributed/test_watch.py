"""The watch over collectives: mismatches and missing ranks are reported, not hung on.

The ranks are imitated by objects in one process, with a clock that goes as the test says. What real
ones do is in ``test_faults.py``.
"""

import collections
import contextlib
import inspect
import math
import os
import sys
import types

import numpy as np
import pytest

from mpchain import using_config
from mpchain.distributed import CollectiveMismatchError, create_communicator
from mpchain.distributed.communicators import Communicator, MpiCommunicator
from mpchain.distributed.watch import (
    Watch,
    check_timeout,
    fingerprints,
    gpu,
    looking,
    places,
    watched,
)
from mpchain.distributed.watch.board import RING, ROW, State, encode, make_rows, read
from mpchain.distributed.watch.relay import Relay
from mpchain.distributed.watch.thread import WatchThread
from mpchain.distributed.watch.watching import waiting_for

TIMEOUT = 10.0


class Clock:
    """Seconds, as the test says."""

    now = 1000.0

    def __call__(self):
        return self.now


class Ranks:
    """Watches of ranks that share their rows."""

    def __init__(self, n, timeout=TIMEOUT, hosts=None):
        self.clock, self.reports = Clock(), []
        rows = make_rows(n)
        hosts, world_ranks = hosts or ["near"] * n, [r + 10 for r in range(n)]
        self.all = [
            Watch(r, rows, range(n), hosts, world_ranks, timeout, None, self._end, self.clock)
            for r in range(n)
        ]
        for watch in self.all:
            watch._go_to(State.COMPUTING)

    def __getitem__(self, rank):
        return self.all[rank]

    def _end(self, text, end_gpu_work):
        self.reports.append(text)
        if end_gpu_work is not None:
            end_gpu_work()

    def pass_time(self, seconds, alive=None):
        """Lets time pass, while the watching threads of some ranks run."""
        period = looking.period_of(TIMEOUT)
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += period
            for rank in range(len(self.all)) if alive is None else alive:
                if not self.reports:
                    self[rank].look(self.clock.now)

    @property
    def report(self):
        (report,) = self.reports
        return report


def enter(watch, name="allreduce", *args, **kwargs):
    """The beginning of a collective, as the rank's method would do it."""
    watch.announce(name, fingerprints._WATCHED[name], args, kwargs)
    watch.enter()


def call(watch, name="allreduce", *args, **kwargs):
    enter(watch, name, *args, **kwargs)
    return watch.leave()


X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        (("allreduce", X), ("bcast_obj", None)),
        (("allreduce", X), ("allreduce", X[0])),
        (("allreduce", X), ("allreduce", X.astype("f8"))),
        (("iallreduce", X), ("iallreduce", X[0])),
        (("bcast_obj", None, 100, 1), ("bcast_obj", None, 100, 0)),
        (("barrier",), ("allgather_obj", 1)),
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
    assert lines[0] == "the ranks have called different collectives as their number 2:"
    for rank, line, (name, *arguments) in ((10, lines[1], mine), (11, lines[2], others)):
        described = ""
        if arguments and isinstance(arguments[0], np.ndarray):
            described = f" of {arguments[0].shape} {arguments[0].dtype}"
        assert line.startswith(f"  rank {rank}: {name}{described}")
        assert f"called at {__file__}:" in line
        assert line.endswith(" in enter")
    assert lines[3] == "  rank 12: not there yet, as far as is known"


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


def test_who_comes_second_waits_if_another_one_reports(monkeypatch):
    slept = []
    monkeypatch.setattr("mpchain.distributed.watch.watching.time.sleep", slept.append)
    ranks = Ranks(3)
    for watch in ranks.all:
        watch.row.heartbeat = ranks.clock.now
    enter(ranks[0], "barrier")
    for rank in (1, 2):
        with pytest.raises(CollectiveMismatchError):
            enter(ranks[rank], "allreduce", X)
        assert slept == [looking.GRACE] * (rank - 1)


def test_a_mismatch_that_both_have_missed_is_found_by_the_thread():
    ranks = Ranks(2)
    enter(ranks[0], "allreduce", X)
    ranks[1]._neighbours = []
    enter(ranks[1], "allreduce", X[0])
    ranks.pass_time(5)
    assert "number 1:" in ranks.report
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
    assert f"; now at {__file__}:" in alone
    assert " in pass_time, by mpchain/distributed/watch/" in alone
    assert hint == "  (no longer than create_communicator's timeout allows: 10 s)"


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
    assert f"; process 7 on near {expected}\n" in ranks.report


def test_a_process_that_is_gone():
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")
    ranks = Ranks(2)
    ranks[1].row.pid = 2**30
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert f"; process {2**30} on near is gone\n" in ranks.report


def test_ranks_of_another_host_of_which_nothing_is_heard():
    ranks = Ranks(2, hosts=["near", "far"])
    ranks[1].row.state = State.UNKNOWN
    enter(ranks[0], "barrier")
    ranks.pass_time(13, alive=[0])
    assert "rank 11: nothing is heard from it, nor from its host far" in ranks.report


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
    assert ranks[0].row.is_reporting == looking.Reporting.NO


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
    ranks.pass_time(looking.GRACE + 3, alive=[0])
    assert "rank 11: its program has ended" in ranks.report
    assert ranks.clock.now < 1000 + TIMEOUT


def test_a_process_that_was_forked_does_not_end_the_rank():
    ranks = Ranks(2)
    ranks[0].row.pid += 1
    ranks[0].tell_end()
    assert ranks[0].row.state == State.COMPUTING


def test_the_end_of_a_program_that_nobody_waits_for():
    ranks = Ranks(2)
    call(ranks[0], "barrier")
    call(ranks[1], "barrier")
    ranks[1].tell_end()
    ranks.pass_time(60)
    assert ranks.reports == []


def test_waiting_for_anything_else():
    ranks = Ranks(2)
    with ranks[0].waiting("the tide"):
        ranks.pass_time(13)
    assert ranks.report.startswith("has waited 11 s for rank 11 in the tide\n")
    assert ranks[0].row.state == State.COMPUTING


def test_waiting_for_ranks_of_one_process(comm):
    with waiting_for(Communicator(), "nobody"), waiting_for(comm, "nobody"):
        pass


class Operation:
    """A request that is complete after so many questions."""

    def __init__(self, n):
        self.n = n

    def Test(self):
        self.n -= 1
        return self.n <= 0

    def Wait(self):
        self.n = 0
        return "result"

    def steps(self):
        return ["a step"]


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
        assert ranks[0].row.wait_text.startswith("iallreduce of (2, 3) float32, called at")
    assert request.Test()


class Gpu:
    """The work of a GPU that is done when the test says so."""

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
    assert ranks.report.startswith("has waited 11 s for ranks 10-11 in allreduce of (2, 3) float32")
    assert ", under way on the GPU\n" in ranks.report
    assert work.is_aborted


def test_events_of_a_gpu(monkeypatch):
    """As CuPy's, which are not there without a GPU."""

    class NcclError(RuntimeError):
        pass

    class Event:
        def __init__(self, disable_timing):
            self.done = False
            events.append(self)

        def record(self, stream):
            self.stream = stream

    events, errors, calls = [], [], []
    cupy_cuda = types.SimpleNamespace(
        Event=Event,
        get_current_stream=lambda: "current",
        nccl=types.SimpleNamespace(NcclError=NcclError),
    )
    cupy = types.SimpleNamespace(cuda=cupy_cuda)
    monkeypatch.setattr(gpu, "cuda", types.SimpleNamespace(cupy=cupy))

    def check_async_error():
        if errors:
            raise errors[0]

    nccl_comm = types.SimpleNamespace(
        check_async_error=check_async_error, abort=lambda: calls.append("abort")
    )
    work = gpu.GpuWork(nccl_comm, "own")
    is_done = work.mark()
    assert [event.stream for event in events] == ["current", "own"]
    events[0].done = True
    assert not is_done()
    events[1].done = True
    assert is_done()
    assert work.find_error() is None
    errors.append(NcclError("unhandled system error"))
    assert work.find_error() == "NCCL has failed: unhandled system error"
    work.abort()
    assert calls == ["abort"]


def test_a_failure_of_nccl():
    ranks = Ranks(2)
    work = ranks[1].gpu = Gpu()
    ranks.pass_time(5)
    work.error = "NCCL has failed: a cable"
    ranks.pass_time(5)
    assert ranks.report.startswith("NCCL has failed: a cable\n  ranks 10-11: for ")
    assert work.is_aborted


# The table, and the communicators that it is for

NOT_WATCHED = {
    # They do not communicate, or only by methods that are watched.
    *("allreduce_grad", "allreduce_obj", "bcast_data", "broadcast_data", "config_scope"),
    *("get_config", "gradient_dtype", "multi_node_mean_grad", "set_config", "share_of"),
}


def test_all_methods_that_communicate_are_watched():
    methods = {
        name
        for name, _ in inspect.getmembers(Communicator, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - NOT_WATCHED == {n for n in fingerprints._WATCHED if not n.startswith("_")}


@watched
class OnTwoRanks(MpiCommunicator):
    """Communicates with nobody, but knows checks and watch."""

    def __init__(self, ranks, rank):
        Communicator.__init__(self)
        self.size, self.rank, self._watch = 2, rank, ranks[rank]

    def _sum(self, array):
        pass

    def barrier(self):
        pass

    def begin(self, steps):
        return Operation(1)


def test_methods_that_raise_before_they_communicate_do_not_count():
    ranks = Ranks(2)
    one, other = OnTwoRanks(ranks, 0), OnTwoRanks(ranks, 1)
    with pytest.raises(TypeError):
        one.allreduce("no array")
    with pytest.raises(ValueError, match=r"root must be a rank from 0 to 1"):
        one.bcast_obj(1, root=5)
    with pytest.raises(ValueError, match=r"root must be a rank"):
        one.gather_obj(1, 7)
    assert not ranks[0].is_inside
    one.allreduce(X)
    other.allreduce(X)
    assert [watch.row.n for watch in ranks.all] == [1, 1]


def test_methods_within_methods_count_once():
    ranks = Ranks(2)
    comm = OnTwoRanks(ranks, 0)
    comm.barrier()
    seen = []
    comm._exchange = None
    type(comm)._sum = lambda self, array: seen.append(ranks[0].row.n) or self.barrier()
    try:
        watched(OnTwoRanks)
        comm.allreduce(X)
    finally:
        del type(comm)._sum
    assert ranks[0].row.n == 2


def test_parts_that_may_begin_in_any_order_are_not_numbered():
    ranks = Ranks(2)
    request = OnTwoRanks(ranks, 0).begin([])
    assert ranks[0].row.n == 0
    assert request.Wait() == "result"


# The parts


def test_texts_that_are_too_long_lose_their_middle():
    place = bytearray(50)
    encoded = encode("begin" + "ü" * 100 + "end", 50)
    assert len(encoded) <= 50
    place[: len(encoded)] = encoded
    assert read(place).startswith("begin")
    assert read(place).endswith("end")
    assert "..." in read(place)


def test_fingerprints_of_code_that_is_gone():
    """Another function may get the address of one that is gone, but not its text."""
    known = fingerprints.Fingerprints()
    kind = fingerprints._WATCHED["barrier"]
    for i in range(300):
        scope = {}
        exec(f"import sys\ndef f{i}(): return sys._getframe()", scope)
        _, text = known.take("barrier", kind, (), {}, scope[f"f{i}"]())
        assert read(text).endswith(f"in f{i}")


def test_fingerprints_are_forgotten():
    known = fingerprints.Fingerprints()
    known.most_remembered = 10
    kind = fingerprints._WATCHED["allreduce"]
    for i in range(100):
        known.take("allreduce", kind, (np.zeros(i),), {}, sys._getframe())
        assert len(known._known) <= 10


def test_places():
    inner, outer = places.calling_frames(sys._getframe())
    assert inner is outer is sys._getframe()
    assert places.describe(inner, None).endswith(" in test_places")
    assert "test_places" in places.of_main_thread()


def test_names_of_ranks_are_put_together():
    ranks = Ranks(12)
    enter(ranks[11], "barrier")
    call(ranks[2], "barrier")
    ranks.pass_time(20)
    assert "for ranks 10-20 in barrier" in ranks.report


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        (None, None, 300),
        (None, "7.5", 7.5),
        (None, "", 300),
        (5, "7", 5),
        (math.inf, None, math.inf),
    ],
)
def test_timeout(given, variable, expected, monkeypatch):
    monkeypatch.delenv("MPCHAIN_COLLECTIVE_TIMEOUT", raising=False)
    if variable is not None:
        monkeypatch.setenv("MPCHAIN_COLLECTIVE_TIMEOUT", variable)
    assert check_timeout(given) == expected


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "soon"])
def test_wrong_timeout(timeout, monkeypatch):
    message = f"timeout must be a positive number of seconds .* not {timeout!r}"
    with pytest.raises(ValueError, match=message):
        create_communicator(timeout=timeout)
    monkeypatch.setenv("MPCHAIN_COLLECTIVE_TIMEOUT", str(timeout))
    with pytest.raises(ValueError, match=f"MPCHAIN_COLLECTIVE_TIMEOUT .* not '{timeout}'"):
        create_communicator()


def test_timeout_of_communicators(comm):
    made = create_communicator(timeout=123)
    assert made.timeout == 123
    made.timeout = 45
    if comm.size > 1:
        assert made.split(0, comm.rank).timeout == 45


def test_the_thread_looks_and_forgets():
    looked = collections.Counter()

    class Watcher:
        timeout = 0.1

        def look(self, now):
            looked["looks"] += 1
            if looked["looks"] == 3:
                thread._stopped.set()

        def tell_end(self):
            looked["ends"] += 1

    thread = WatchThread()
    watcher, gone = Watcher(), Watcher()
    thread.add(watcher)
    thread.add(gone)
    del gone
    thread._thread.join()
    assert looked["looks"] == 3
    thread._end()
    assert looked["ends"] == 1


class Post:
    """Stands for an MPI communicator of two ranks, and for ``mpi4py.MPI``."""

    ANY_SOURCE, BYTE = -1, None

    def __init__(self, rank, boxes):
        self.rank, self._boxes = rank, boxes

    class Status:
        def Get_count(self, datatype):
            return len(self.message[1])

        def Get_source(self):
            return self.message[0]

    def Iprobe(self, source, tag, status):
        box = self._boxes[self.rank]
        if box:
            status.message = box[0]
        return bool(box)

    def Recv(self, content, source, tag):
        _, content[:] = self._boxes[self.rank].pop(0)

    def Isend(self, content, dest, tag):
        self._boxes[dest].append((self.rank, content))
        return types.SimpleNamespace(Test=lambda: True)


def test_rows_travel_between_hosts_when_somebody_waits():
    boxes, clock = {0: [], 1: []}, Clock()
    reports = []
    watches = []
    for rank in (0, 1):
        rows, post = make_rows(2), Post(rank, boxes)
        relay = Relay(post, post, rows, [0, 1])
        end = lambda text, end_gpu_work: reports.append(text)
        hosts, numbers = ["near", "far"], [0, 1]
        watches.append(Watch(rank, rows, [rank], hosts, numbers, TIMEOUT, relay, end, clock))
        watches[-1]._go_to(State.COMPUTING)
    call(watches[0], "barrier")
    call(watches[1], "barrier")
    enter(watches[0], "allreduce", X)
    sent = 0
    for _ in range(40):
        clock.now += 0.5
        for watch in watches:
            if not reports:
                watch.look(clock.now)
        if clock.now < 1003:
            sent += sum(map(len, boxes.values()))
    assert sent == 0
    (report,) = reports
    assert report.startswith("has waited 12 s for rank 1 in allreduce of (2, 3) float32")
    assert "  rank 1: for 1" in report
    assert "s in no collective; its last one was collective 1, barrier" in report
    assert f"; now at {__file__}:" in report


def test_rows_have_a_fixed_size():
    assert ROW % 8 == 0
    memory = bytearray(2 * ROW)
    rows = make_rows(2, memory)
    rows[1].n, rows[1].since, rows[1].answer = 5, 1.5, "here"
    assert not any(memory[:ROW])
    with contextlib.suppress(ValueError):
        rows[1].wait_text = encode("x" * 10_000)
    assert (rows[1].n, rows[1].since, rows[1].answer) == (5, 1.5, "here")
