"""Tests operations that progress during other computations: stages of sums, threads and naps."""

import collections
import itertools
import os
import threading

import numpy as np
import pytest

from mpchain.distributed.communicators import MpiCommunicator, progress


class Mail:
    """Imitates the MPI communicator of one rank; all ranks are in this process."""

    def __init__(self, rank, boxes):
        self.rank, self._boxes, self.n_sent = rank, boxes, 0

    def Isend(self, x, dest, tag):
        self._boxes[dest, self.rank, tag].append(x.copy())
        self.n_sent += 1
        return lambda: True

    def Irecv(self, x, source, tag):
        return lambda: self._take(x, self._boxes[self.rank, source, tag])

    def _take(self, x, box):
        if not box:
            return False
        x[...] = box.popleft()
        return True


class Mpi:
    """Imitates ``mpi4py.MPI``; requests of :class:`Mail` are polled until they are complete."""

    class Request:
        @staticmethod
        def Testall(requests):
            requests[:] = [request for request in requests if not request()]
            return not requests


def sum_on(n_ranks, size, random):
    """Sums arrays of imitated ranks, whose steps run in random order.

    Returns:
        The arrays before and after the sum, and the number of messages that each rank has sent.
    """
    boxes = collections.defaultdict(collections.deque)
    comms = [Mail(rank, boxes) for rank in range(n_ranks)]
    before = [random.randn(size).astype("f") for _ in comms]
    after = [x.copy() for x in before]
    groups = [progress.Group(Mpi, comm, list(range(n_ranks))) for comm in comms]
    waiting = [iter(progress.sum_over(group, x, 5)) for group, x in zip(groups, after, strict=True)]
    done = object()
    while waiting:
        i = random.randint(len(waiting))
        if next(waiting[i], done) is done:
            del waiting[i]
    assert not any(boxes.values())
    return before, after, [comm.n_sent for comm in comms]


@pytest.mark.parametrize("most", [2, 4, 16])
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 7, 12, 17, 18, 24, 34, 36])
@pytest.mark.parametrize("size", [1, 40, 1001])
def test_sums_of_many_ranks(n_ranks, size, most, set_limits):
    set_limits(at_once=most)
    before, after, _ = sum_on(n_ranks, size, np.random.RandomState(0))
    np.testing.assert_allclose(after[0], np.sum(before, 0, dtype="f8"), atol=1e-5)
    assert len({x.tobytes() for x in after}) == 1


def test_many_ranks_send_few_messages():
    _, _, n_sent = sum_on(64, 1000, np.random.RandomState(0))
    assert set(n_sent) == {2 * (7 + 7)}
    _, _, n_sent = sum_on(16, 1000, np.random.RandomState(0))
    assert set(n_sent) == {2 * 15}


@pytest.mark.parametrize(
    ("n", "factors"),
    [(1, [1]), (16, [16]), (17, [17]), (32, [4, 8]), (256, [16, 16]), (134, [2, 67])],
)
def test_factors(n, factors):
    assert progress._factors(n) == factors


def test_a_rank_that_waits_for_long_leaves_its_core(clock):
    naps = clock.naps
    looks = iter(range(10_000))
    progress.wait_until(lambda: next(looks) == 200)
    assert naps == []
    progress.wait_until(lambda: next(looks) == 2000)
    assert 1000 < len(naps) < 2000
    assert max(naps) <= 1e-3


@pytest.mark.parametrize(("wait", "n_looks"), [(0.01, 80), (1.0, 300), (10.0, 2100)])
def test_a_rank_in_a_crowd_naps_for_a_share_of_its_wait(clock, wait, n_looks):
    """If ranks outnumber cores, a waiting rank polls rarely, so that other ranks get time, and
    still notices the end in time."""
    progress.share_cores(1 + os.cpu_count())
    naps, looks = clock.naps, itertools.count()
    progress.wait_until(lambda: next(looks) >= 0 and sum(naps) >= wait)
    assert next(looks) < n_looks
    assert sum(naps) <= wait + min(wait / 8, 5e-3)
    progress.share_cores(os.cpu_count())
    n_naps, looks = len(naps), itertools.count()
    progress.wait_until(lambda: next(looks) == 200)
    assert len(naps) == n_naps


def run_threads(*functions):
    """Runs functions at the same time; returns a list of what each returned or raised."""
    results = [None] * len(functions)
    together = threading.Barrier(len(functions))

    def run(i):
        together.wait()
        try:
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=[i]) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_each_with_a_communicator(comm):
    comms = [comm.split(0, comm.rank) for _ in range(3)]

    def work(comm, factor):
        (x,) = comm.make_buffers([(50, "float32")])
        for step in range(200):
            x[...] = factor * (comm.rank + step)
            y = np.full(3, factor * step)
            requests = [comm.iallreduce(x), comm.iallreduce(y), comm.ibarrier()]
            for request in requests:
                request.Wait()
            total = comm.allreduce(np.full(2, factor))
            expected = factor * (sum(range(comm.size)) + comm.size * step)
            assert x.tolist() == [expected] * 50
            assert y.tolist() == [comm.size * factor * step] * 3
            assert total.tolist() == [comm.size * factor] * 2
        return factor

    factors = [1.0, 2.0, 3.0]
    works = [lambda c=c, f=f: work(c, f) for c, f in zip(comms, factors, strict=True)]
    assert run_threads(*works) == factors
    for made in comms:
        made.finalize()


def test_an_operation_that_another_thread_completes(comm):
    requests = []
    x = np.full(5, 1.0)
    assert run_threads(lambda: requests.append(comm.iallreduce(x))) == [None]
    assert requests[0].Wait() is x
    assert x.tolist() == [comm.size] * 5
    assert all(op.is_complete for ops in progress._PENDING.values() for op in ops)


def test_buffers_take_no_communicators_of_the_mpi_library(comm, set_limits, split_hosts):
    """The library has a limited number of communicators: MPICH has 2048."""
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    from mpi4py import MPI

    set_limits(at_once=0)
    split_hosts(lambda rank: rank)
    made = []

    class Counted(MPI.Intracomm):
        def Split(self, *args):
            made.append("Split")
            return super().Split(*args)

        def Dup(self, *args):
            made.append("Dup")
            return super().Dup(*args)

    with MpiCommunicator(Counted(comm.mpi_comm)) as counted:
        n_before = len(made)
        assert n_before >= 3
        for _ in range(100):
            x, *_ = counted.make_buffers([(2, "float32")] * 30)
            x[...] = 1
            assert counted.iallreduce(x).Wait().tolist() == [comm.size] * 2
        assert len(made) == n_before
