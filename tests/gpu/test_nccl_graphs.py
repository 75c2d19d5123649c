"""Tests the double of NCCL in streams that capture: the results of graphs, and what is refused."""

import numpy as np
import pytest

from mpchain.backends import pynccl
from mpchain.backends.nccl_bindings import TYPES
from tests.gpu.test_nccl_double import binding as binding
from tests.gpu.test_nccl_double import cupy as cupy
from tests.gpu.test_nccl_double import on_ranks

pytestmark = pytest.mark.gpu


def _refused(cupy, match, function, n=1):
    """Checks that a call is refused for a reason."""

    def call(rank):
        try:
            function(rank)
        except RuntimeError as error:
            # The frames of the traceback would keep graphs.
            raise error.with_traceback(None) from None

    with pytest.raises(RuntimeError, match=match):
        on_ranks(cupy, call, n=n)
    cupy.double.reset()


class Capturing:
    """Captures on its own stream, with memory of its own pool; afterwards, ``graph`` is the
    graph."""

    def __init__(self, cupy):
        self.cupy, self.stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self._allocator = cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc)

    def __enter__(self):
        self.stream.__enter__()
        self._allocator.__enter__()
        self.stream.begin_capture()
        return self

    def __exit__(self, kind, *exc_info):
        try:
            self.graph = self.stream.end_capture()
        except RuntimeError:
            if kind is None:
                raise
        finally:
            self._allocator.__exit__(kind, *exc_info)
            self.stream.__exit__(kind, *exc_info)


def test_captured_sums_are_computed_by_launches(cupy, binding):
    def call(rank):
        x, total = cupy.arange(3.0) + rank.rank, cupy.zeros(3)
        own = cupy.cuda.Stream(non_blocking=True)
        with Capturing(cupy) as capturing:
            y = 2 * x
            own.wait_event(capturing.stream.record())
            rank.run("all_reduce", y, y, stream=own)
            capturing.stream.wait_event(own.record())
            total += y
        found = []
        for _ in range(3):
            capturing.graph.launch()
            found.append(total.get())
            rank.run("all_reduce", x, x)  # graphs and other calls may be mixed
            found.append(x.get())
        del capturing
        return found

    first, second = on_ranks(cupy, call, binding=binding)
    np.testing.assert_array_equal(first, second)
    x, total, expected = np.stack([np.arange(3.0), np.arange(3.0) + 1]), 0, []
    for _ in range(3):
        total = total + 2 * x.sum(0)
        x = np.stack([x.sum(0)] * 2)
        expected += [total, x[0]]
    np.testing.assert_array_equal(first, expected)


def test_groups_and_messages_are_captured(cupy):
    def call(rank):
        x, y, total = cupy.full(2, 1.0 + rank.rank), cupy.zeros(2), cupy.ones(2)
        with Capturing(cupy) as capturing:
            stream, types = capturing.stream.ptr, TYPES["float64"]
            with rank.nccl.group():
                rank.nccl.run("send", x.data.ptr, 2, types, 1 - rank.rank, stream=stream)
                rank.nccl.run("recv", y.data.ptr, 2, types, 1 - rank.rank, stream=stream)
            rank.run("all_reduce", y, total)
        np.testing.assert_array_equal(y.get(), 0)
        capturing.graph.launch()
        return y.get().tolist(), total.get().tolist()

    assert on_ranks(cupy, call) == [([2, 2], [3, 3]), ([1, 1], [3, 3])]


def test_a_call_that_only_one_rank_captures(cupy, monkeypatch):
    monkeypatch.setenv("NCCL_DOUBLE_TIMEOUT", "20")

    def call(rank):
        x, y = cupy.ones(3), cupy.ones(3)
        if rank.rank == 0:
            with Capturing(cupy) as capturing:
                rank.run("all_reduce", x, x)
            capturing.graph.launch()
            return
        rank.run("all_reduce", x, x)
        rank.run("all_reduce", y, y)
        y.get()

    _refused(cupy, "captured as number 1", call, n=2)


def test_graphs_of_different_captures(cupy):
    def call(rank):
        x, graphs = cupy.ones(3), []
        for _ in range(2):
            with Capturing(cupy) as capturing:
                rank.run("all_reduce", x, x)
            graphs.append(capturing.graph)
        graphs[rank.rank].launch()

    _refused(cupy, "captured as number", call, n=2)


def test_a_group_that_is_captured_in_part(cupy):
    def call(rank):
        x, y, other = cupy.ones(3), cupy.ones(3), cupy.cuda.Stream(non_blocking=True)
        other.wait_event(cupy.cuda.get_current_stream().record())
        with Capturing(cupy), rank.nccl.group():
            rank.run("all_reduce", x, x)
            rank.run("all_reduce", y, y, stream=other)

    _refused(cupy, "must all be captured by the same graph", call)


@pytest.mark.parametrize("name", ["comm_destroy", "comm_abort", "comm_revoke"])
def test_the_end_of_a_communicator_in_a_capture(cupy, name):
    def call(rank):
        comm, more = rank.nccl.handle, [0] * (name == "comm_revoke")
        with Capturing(cupy), pytest.raises(pynccl.Error):
            getattr(pynccl, name)(comm, *more)
        assert "not permitted when the stream is capturing" in pynccl.get_last_error(comm)

    on_ranks(cupy, call, n=1)


@pytest.mark.parametrize("name", ["comm_destroy", "comm_abort"])
def test_the_end_of_a_communicator_that_graphs_hold(cupy, name):
    def call(rank):
        x, comm = cupy.ones(3), rank.nccl.handle
        with Capturing(cupy) as capturing:
            rank.run("all_reduce", x, x)
        with pytest.raises(pynccl.Error):
            getattr(pynccl, name)(comm)
        assert "graphs hold work of the communicator" in pynccl.get_last_error(comm)
        del capturing

    on_ranks(cupy, call, n=1)


def test_a_stream_that_was_not_forked_into_the_capture(cupy):
    def call(rank):
        own = cupy.cuda.Stream(non_blocking=True)
        with Capturing(cupy):
            y = cupy.ones(3)
            rank.run("all_reduce", y, y, stream=own)

    _refused(cupy, "does not capture uses what the graph computes", call)
