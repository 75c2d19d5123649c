"""Tests the parts of the watch over collectives, and the communicators that it covers."""

import collections
import inspect
import math
import os
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from mpchain.distributed import create_communicator
from mpchain.distributed.communicators import Communicator, MpiCommunicator
from mpchain.distributed.watch import (
    Watch,
    call_sites,
    check_timeout,
    fingerprints,
    watched,
)
from mpchain.distributed.watch.exchange import Exchange
from mpchain.distributed.watch.table import ROW, State, decode, encode, encode_answer, make_rows
from mpchain.distributed.watch.watchdog import WatchThread
from tests.distributed.watch.imitated_ranks import TIMEOUT, Clock, Operation, Ranks, X, call, enter

# The table, and the communicators that it is for

NOT_WATCHED = {
    "batch",
    # These methods do not communicate, or only by methods that are watched.
    *("allreduce_grad", "bcast_data", "broadcast_data", "config_scope"),
    *("get_config", "gradient_dtype", "multi_node_mean_grad", "set_config", "share_of"),
    *("record_failures", "in_memory_checkpoint", "refuse_to_lose_ranks", "check_rank"),
    *("unclaimed", "unwatched"),
    # These methods notice or remove lost ranks.
    *("agree", "renewed", "shrink", "end_work", "forget_messages"),
}


def test_all_methods_that_communicate_are_watched():
    methods = {
        name
        for name, _ in inspect.getmembers(Communicator, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - NOT_WATCHED == {n for n in fingerprints.WATCHED if not n.startswith("_")}


@watched
class OnTwoRanks(MpiCommunicator):
    """A communicator that communicates with no rank, but has checks and a watch."""

    def __init__(self, ranks, rank):
        Communicator.__init__(self)
        self.size, self.rank, self.watch = 2, rank, ranks[rank]

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


def test_what_is_raised_before_a_method_communicates_follows_from_no_garbage(detect_losses):
    """An elastic rank with a wrong argument need not wait for the detection of a loss."""
    asked = []

    class LossDetector:
        def loss_behind(self, error, *, in_collective):
            asked.append(in_collective)

    @watched
    class Failing(OnTwoRanks):
        def _sum(self, array):
            raise ValueError("garbage")

    detect_losses(LossDetector())
    comm = Failing(Ranks(2), 0)
    with pytest.raises(TypeError):
        comm.allreduce("no array")
    with pytest.raises(ValueError, match="garbage"):
        comm.allreduce(X)
    assert asked == [False, True]


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
    encoded = encode("begin" + "ü" * 100 + "end", 50)
    assert len(encoded) <= 50
    assert decode(encoded).startswith("begin")
    assert decode(encoded).endswith("end")
    assert "..." in decode(encoded)


def test_fingerprints_of_code_that_is_gone():
    """Another function may get the address of a deleted function, but not its text."""
    known = fingerprints.Fingerprints()
    kind = fingerprints.WATCHED["barrier"]
    for i in range(300):
        scope = {}
        exec(f"import sys\ndef f{i}(): return sys._getframe()", scope)
        _, text = known.take("barrier", kind, (), {}, scope[f"f{i}"]())
        assert decode(text).endswith(f"in f{i}")


def test_fingerprints_are_forgotten():
    known = fingerprints.Fingerprints()
    known.most_remembered = 10
    kind = fingerprints.WATCHED["allreduce"]
    for i in range(100):
        known.take("allreduce", kind, (np.zeros(i),), {}, sys._getframe())
        assert len(known._known) <= 10


def test_names_of_files_are_forgotten():
    names = call_sites.FileNames("/a/", "/b")
    names.most_remembered = 10
    for i in range(100):
        assert names[f"/a/{i}"] and not names[f"/c/{i}"]
        assert len(names) <= 10


def test_places():
    inner, outer = call_sites.calling_frames(sys._getframe())
    assert inner is outer is sys._getframe()
    assert call_sites.describe(inner, None).endswith(" in test_places")
    assert "test_places" in call_sites.of_main_thread()


def test_the_text_of_a_declared_function_is_no_line_of_the_program():
    names = {"sys": sys}
    text = "def call():\n    return sys._getframe(), sys._getframe().f_back"
    exec(compile(text, "<mpchain: relu, 1>", "exec"), names)
    inner, caller = names["call"]()
    assert call_sites.calling_frames(inner) == (inner, caller)


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
    thread.end()
    assert looked["ends"] == 1


def test_a_process_that_was_forked_does_not_end_the_rank(capsys):
    thread, ends = WatchThread(), []
    thread._thread, thread._pid = threading.current_thread(), os.getpid() + 1
    watcher = types.SimpleNamespace(tell_end=lambda: ends.append(1))
    thread._watches = [watcher]
    thread.end()
    assert ends == []
    assert "a process that a rank has forked ends by MPI_Finalize" in capsys.readouterr().err


@pytest.mark.long
def test_where_threads_are_that_keep_a_program_from_ending():
    script = (
        "import threading, time\n"
        "from mpchain.distributed.watch import call_sites\n"
        "def linger():\n"
        "    while True:\n"
        "        text = call_sites.of_main_thread()\n"
        "        if 'main thread' in text:\n"
        "            print(text)\n"
        "            break\n"
        "threading.Thread(target=linger, name='a guest').start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("the end of its main thread; thread 'a guest' at <string>:5 in")


class Post:
    """Imitates an MPI communicator of two ranks, and ``mpi4py.MPI``."""

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
        relay = Exchange(post, post, rows, [0, 1])
        end = lambda text, end_gpu_work: reports.append(text)
        hosts, numbers = ["near", "far"], [0, 1]
        watches.append(
            Watch(
                rank, rows, [rank], hosts, numbers, TIMEOUT, relay, end, None, clock, lambda now: 0
            )
        )
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
    rows[1].n, rows[1].since, rows[1].answer = 5, 1.5, encode_answer("here")
    assert not any(memory[:ROW])
    rows[1].wait_text = encode("x" * 10_000)
    assert (rows[1].n, rows[1].since, decode(rows[1].answer)) == (5, 1.5, "here")
