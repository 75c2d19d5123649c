"""Tests profiles of several ranks: one trace, in which gradients are summed during backward."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.profiling.clocks import compare
from tests.profiling import chrome_format


@pytest.fixture
def update(comm, set_limits):
    """Returns a function that updates a model whose gradients take several buckets."""
    set_limits(bucket_bytes=64)
    model = mpchain.Sequential(L.Linear(4, 8), F.tanh, L.Linear(8, 8), F.tanh, L.Linear(8, 1))
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    x = np.ones((2 * comm.size, 4), np.float32)

    def update():
        with comm.batch(len(x)) as mine:
            optimizer.update(lambda x: F.mean(model(x)), x[mine])

    return update


def test_one_trace_of_all_ranks(comm, folder, update):
    with mpchain.profile(folder / "trace.json", comm) as profile:
        for _ in range(3):
            update()
    assert {e["pid"] for e in profile.trace["traceEvents"]} >= {comm.rank}
    if comm.rank > 0:
        return
    events = chrome_format.parse(folder / "trace.json")
    assert {event["pid"] for event in events} == set(range(comm.size))
    for rank in range(comm.size):
        own = [e for e in events if e["pid"] == rank]
        assert [e["args"]["step"] for e in own if e.get("cat") == "step"] == [1, 2, 3]
        backward = [e for e in own if e.get("cat") == "backward"]
        begun = [e for e in own if e["ph"] == "b" and e["name"] == "bucket 0"]
        assert len(begun) == (3 if comm.size > 1 else 0)
        for bucket, span in zip(begun[1:], backward[1:]):  # the first step finds the order
            assert span["ts"] < bucket["ts"] < span["ts"] + span["dur"]
            assert bucket["args"]["bytes"] > 0
    _check_arrows(events, comm.size)
    assert "ranks, steps 2 to 3" in (folder / "trace.txt").read_text("utf-8") or comm.size == 1


def _check_arrows(events, size):
    """Checks that arrows lead from a rank that begins a bucket to each other rank, within spans."""
    begun = [e for e in events if e["ph"] == "b"]
    starts, ends = [e for e in events if e["ph"] == "s"], [e for e in events if e["ph"] == "f"]
    assert len(starts) == len(ends) == len(begun) * (size - 1) // size
    for start, end in zip(starts, ends):
        assert start["pid"] != end["pid"] and start["id"] == end["id"]
        assert any((e["pid"], e["ts"]) == (start["pid"], start["ts"]) for e in begun)
        for each in (start, end):
            spans = [e for e in events if e["ph"] == "X" and e["pid"] == each["pid"]]
            assert any(e["ts"] <= each["ts"] <= e["ts"] + e["dur"] for e in spans)


def test_clocks_of_one_host_differ_by_no_more_than_the_error(comm):
    clock = compare(comm)
    ((_, difference, error),) = clock.points
    assert abs(difference) <= error or comm.inter_size > 1
    assert len(set(comm.allgather_obj(clock.origin))) == 1
    assert len(compare(comm, clock=clock).points) == 2


def test_after_an_exception_each_rank_has_its_own_trace(comm, folder, update):
    with pytest.raises(ZeroDivisionError), mpchain.profile(folder / "p.json", comm):
        update()
        1 / 0
    comm.barrier()
    name = "p.json" if comm.size == 1 else f"p.rank-{comm.rank}.json"
    assert {event["pid"] for event in chrome_format.parse(folder / name)} == {comm.rank}
