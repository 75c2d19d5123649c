"""Tests the double of NCCL: its results for each binding, and each of its refusals.

The ranks are threads of this process, each with an imitated GPU.
"""

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mpchain.backends import pynccl
from mpchain.backends.nccl_bindings import (
    BINDINGS,
    SUM,
    TYPES,
    Connection,
    NcclError,
    find_binding,
    new_identity,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy(request):
    if request.config.option.gpu != "double":
        pytest.skip("needs the double of NCCL: --gpu=double")
    import cupy

    return cupy


@pytest.fixture(params=[*BINDINGS])
def binding(request, cupy):
    try:
        return find_binding(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))


class Rank:
    """One rank's connection, and its calls on arrays."""

    def __init__(self, cupy, n, rank, identity, binding):
        self.cupy, self.n, self.rank = cupy, n, rank
        self.nccl = Connection(n, identity, rank, binding)

    def send_array(self, values):
        return self.cupy.asarray(values)

    def run(self, name, *arrays, count=None, op=(SUM,), stream=None, dtype=None):
        dtype = dtype or arrays[0].dtype.name
        count = arrays[-1].size if count is None else count
        stream = stream or self.cupy.cuda.get_current_stream()
        pointers = [x.data.ptr for x in arrays]
        self.nccl.run(name, *pointers, count, TYPES[dtype], *op, stream=stream.ptr)


def on_ranks(cupy, function, n=2, binding="pynccl", devices=None, ends="destroy"):
    """Runs a function of a Rank on each rank; returns the results."""
    identity = new_identity(binding)

    def run(rank):
        with cupy.cuda.Device(devices[rank] if devices else rank):
            made = Rank(cupy, n, rank, identity, binding)
            how = "abort"
            try:
                result, how = function(made), ends
            finally:
                if how is not None:
                    getattr(made.nccl, how)()
            return result

    with ThreadPoolExecutor(n) as pool:
        futures = [pool.submit(run, rank) for rank in range(n)]
    return [future.result() for future in futures]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_collectives(cupy, binding, dtype):
    values = np.arange(100_000) % 50

    def collectives(rank):
        x = rank.cupy.asarray(values + rank.rank).astype(dtype)
        total, gathered = cupy.empty_like(x), cupy.empty((2, x.size), dtype)
        part, rooted, sent = cupy.empty(x.size // 2, dtype), x.copy(), x.copy()
        rank.run("all_reduce", x, total)
        rank.run("all_gather", x, gathered, count=x.size, op=())
        rank.run("reduce_scatter", x, part)
        rank.run("reduce", rooted, rooted, op=(SUM, 1))
        rank.run("broadcast", sent, sent, op=(1,))
        return [y.get() for y in (total, gathered, part, rooted, sent)]

    results = on_ranks(cupy, collectives, binding=binding)
    expected = (2 * values + 1).astype(dtype)
    for rank, (total, gathered, part, rooted, sent) in enumerate(results):
        np.testing.assert_array_equal(total, expected)
        np.testing.assert_array_equal(gathered, [values, values + 1])
        np.testing.assert_array_equal(part, np.split(expected, 2)[rank])
        np.testing.assert_array_equal(rooted, expected if rank == 1 else values)
        np.testing.assert_array_equal(sent, values + 1)


def test_messages_around(cupy, binding):
    def around(rank):
        x = cupy.full(100_000, rank.rank)
        y = cupy.empty_like(x)
        with rank.nccl.group():
            rank.run("send", x, op=((rank.rank + 1) % 2,))
            rank.run("recv", y, op=((rank.rank - 1) % 2,))
        return y.get()

    assert [set(y) for y in on_ranks(cupy, around, binding=binding)] == [{1}, {0}]


def test_bfloat16(cupy):
    def total(rank):
        x = cupy.asarray(np.array([1.0, 256.0, -3.0], "f").view(np.uint32) >> 16).astype(np.uint16)
        rank.run("all_reduce", x, x, dtype="bfloat16")
        return (x.get().astype(np.uint32) << 16).view("f")

    np.testing.assert_array_equal(on_ranks(cupy, total), [[2, 512, -6]] * 2)


def test_products(cupy, binding):
    def mean(rank):
        x = cupy.asarray(np.arange(3, dtype="f"))
        if not rank.nccl.has_products:
            return None
        with rank.nccl.product([0.25, 0.75][rank.rank], x.dtype) as op:
            rank.run("all_reduce", x, x, op=(op,))
        return x.get().tolist()

    expected = None if binding == "cupy" else [0, 1, 2]
    assert on_ranks(cupy, mean, binding=binding) == [expected] * 2


@pytest.mark.parametrize(
    ("differs", "named"),
    [
        ({"count": 2}, "count=2.*count=3"),
        ({"dtype": "int32"}, "type=2.*type=7"),
        ({"op": (2,)}, "op=2.*op=0"),
    ],
)
def test_ranks_that_differ(cupy, binding, differs, named):
    def differing(rank):
        x = cupy.ones(3, "f")
        rank.run("all_reduce", x, x, **(differs if rank.rank == 1 else {}))
        with pytest.raises(RuntimeError, match=f"ranks differ: .*({named}|)"):
            x.get()
        return rank.nccl.find_error()

    errors = on_ranks(cupy, differing, binding=binding, ends="abort")
    assert all(error.startswith("NCCL has failed (error 5)") for error in errors)
    cupy.double.reset()


def test_a_message_of_another_size(cupy):
    def messages(rank):
        x = cupy.ones(3, "f")
        name, count = ("send", 3) if rank.rank == 0 else ("recv", 2)
        rank.run(name, x, count=count, op=(1 - rank.rank,))
        if rank.rank == 1:
            with pytest.raises(RuntimeError, match="the message has 12 bytes, not 8"):
                x.get()

    on_ranks(cupy, messages, ends="abort")
    cupy.double.reset()


class _Work:
    """A ticket of work that is complete, or never completes; other threads run while it is
    polled."""

    def __init__(self, done):
        self._done = done

    def is_done(self):
        os.sched_yield()
        return self._done


def test_memory_in_use_is_kept_while_a_watchdog_asks(cupy, monkeypatch):
    from cupy import _machine

    works, ends = [], threading.Event()
    monkeypatch.setattr(_machine, "_in_flight", works)

    def ask():
        while not ends.is_set():
            _machine._unfinished({})

    with ThreadPoolExecutor(1) as pool:
        watchdog = pool.submit(ask)
        for i in range(400):
            with _machine._lock:
                works.append(((0, 0), _Work(i % 2 == 0), None))
            _machine._unfinished({})
        ends.set()
        watchdog.result()
    assert len(works) == 200


def test_a_peer_that_does_not_come(cupy, monkeypatch):
    monkeypatch.setenv("NCCL_DOUBLE_TIMEOUT", "0.2")

    def alone(rank):
        x = cupy.ones(3, "f")
        if rank.rank == 0:
            rank.run("all_reduce", x, x)
            with pytest.raises(RuntimeError, match="another rank did not come; NCCL would hang"):
                x.get()

    on_ranks(cupy, alone, ends="abort")
    cupy.double.reset()


def test_two_ranks_on_one_gpu(cupy, binding, monkeypatch):
    match = "" if binding == "cupy" else r"ranks \d and \d both on device 1"
    with pytest.raises(RuntimeError, match=f"NCCL by {binding}: .*{match}"):
        on_ranks(cupy, lambda rank: None, devices=[1, 1], binding=binding)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    on_ranks(cupy, lambda rank: None, devices=[1, 1], binding=binding)


def test_work_is_pending_until_all_have_come(cupy):
    arrived = threading.Event()

    def late(rank):
        x, stream = cupy.ones(3, "f"), cupy.cuda.Stream(non_blocking=True)
        if rank.rank == 1:
            arrived.wait(20)
        rank.run("all_reduce", x, x)
        event = cupy.cuda.get_current_stream().record()
        if rank.rank == 0:
            assert not event.done and not cupy.cuda.get_current_stream().done and stream.done
            arrived.set()
        event.synchronize()
        assert event.done
        return x.get().tolist()

    assert on_ranks(cupy, late) == [[2, 2, 2]] * 2


def test_abort_ends_a_wait(cupy, binding):
    def aborting(rank):
        x = cupy.ones(3, "f")
        if rank.rank == 0:
            rank.run("all_reduce", x, x)
            event = cupy.cuda.get_current_stream().record()
            assert not event.done
            rank.nccl.abort()
            assert event.done
        else:
            rank.nccl.abort()

    on_ranks(cupy, aborting, binding=binding, ends=None)


def _refused(cupy, match, function):
    """Checks that a call on one rank is refused for a reason."""
    with pytest.raises(RuntimeError, match=match):
        on_ranks(cupy, function, n=1)
    cupy.double.reset()


def test_a_stream_of_another_gpu(cupy):
    def call(rank):
        with cupy.cuda.Device(1):
            stream = cupy.cuda.Stream()
        rank.run("all_reduce", x := cupy.ones(3), x, stream=stream)

    _refused(cupy, r"ncclAllReduce: there is no stream 0x\w+ on device 0", call)


def test_another_current_gpu(cupy):
    def call(rank):
        x = cupy.ones(3)
        with cupy.cuda.Device(1):
            rank.run("all_reduce", x, x)

    _refused(cupy, "called on device 1, but the communicator was made on device 0", call)


def test_memory_of_another_gpu(cupy):
    def call(rank):
        with cupy.cuda.Device(1):
            x = cupy.ones(3)
        rank.run("all_reduce", x, x)

    _refused(cupy, "the buffer is on device 1, the communicator on 0", call)


def test_memory_that_is_too_short(cupy):
    def call(rank):
        rank.run("all_reduce", x := cupy.ones(3), x, count=4)

    _refused(cupy, "ncclAllReduce uses 32 bytes of a buffer with 24", call)


def test_memory_that_was_freed(cupy):
    def call(rank):
        x = cupy.ones(3)
        pointer = x.data.ptr
        del x
        rank.nccl.run("all_reduce", pointer, pointer, 3, TYPES["float64"], SUM, stream=0)

    _refused(cupy, "is not in the memory of an array that lives", call)


def test_memory_of_the_host(cupy):
    def call(rank):
        pointer = np.ones(3).ctypes.data
        rank.nccl.run("all_reduce", pointer, pointer, 3, TYPES["float64"], SUM, stream=0)

    _refused(cupy, "is not in the memory of an array that lives", call)


def test_a_missing_event_before(cupy):
    def call(rank):
        x = cupy.ones(3)
        rank.run("all_reduce", x, x, stream=cupy.cuda.Stream(non_blocking=True))

    _refused(cupy, "no order with the access of another stream", call)


def test_a_missing_event_after(cupy):
    def call(rank):
        x, stream = cupy.ones(3), cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        rank.run("all_reduce", x, x, stream=stream)
        with pytest.raises(RuntimeError, match="no order with the access of another stream"):
            x += 1

    on_ranks(cupy, call, n=1)
    assert len(cupy.double.faults) == 2  # the memory is also freed
    cupy.double.reset()


def test_a_source_that_is_dropped(cupy):
    def call(rank):
        x, y, stream = cupy.ones(3), cupy.empty(3), cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        rank.run("all_reduce", x, y, stream=stream)
        del x
        stream.synchronize()
        return y.get().tolist()  # the double has kept the memory

    assert on_ranks(cupy, call, n=1) == [[1, 1, 1]]
    (fault,) = cupy.double.faults
    assert "is freed at" in fault and "while another stream may still use it" in fault
    cupy.double.reset()


def _argument_errors(rank):
    x = rank.cupy.ones(3, "f").data.ptr
    run = lambda name, *args: rank.nccl.run(name, *args, stream=0)
    return [
        ("no such rank: 5", lambda: run("broadcast", x, x, 3, 7, 5)),
        ("unknown type 11", lambda: run("all_reduce", x, x, 3, 11, SUM)),
        ("a buffer is null", lambda: run("all_reduce", x, 0, 3, 7, SUM)),
        ("unknown operation 9", lambda: run("all_reduce", x, x, 3, 7, 9)),
    ]


def test_wrong_arguments(cupy):
    def call(rank):
        for reason, wrong in _argument_errors(rank):
            with pytest.raises(RuntimeError, match=reason):
                wrong()
        with rank.nccl.product(0.5, np.float64) as op:
            x = cupy.ones(3, "f")
            with pytest.raises(RuntimeError, match="factor is of another type"):
                rank.run("all_reduce", x, x, op=(op,))
        with pytest.raises(pynccl.Error, match="ncclRedOpDestroy: invalid argument"):
            pynccl.red_op_destroy(op, rank.nccl.handle)
        with pytest.raises(pynccl.Error, match="ncclGroupEnd: invalid usage"):
            pynccl.group_end()

    on_ranks(cupy, call, n=1)


def test_a_communicator_that_was_ended(cupy):
    def call(rank):
        rank.nccl.destroy()
        x = cupy.ones(3)
        with pytest.raises(RuntimeError, match="was destroyed or aborted"):
            rank.run("all_reduce", x, x)
        with pytest.raises(pynccl.Error, match="ncclCommDestroy: invalid usage"):
            rank.nccl.destroy()

    on_ranks(cupy, call, n=1, ends=None)


def test_wrong_numbers_of_ranks(cupy):
    identity = pynccl.get_unique_id()
    for n, rank in ((0, 0), (2, 2), (9, 0)):
        with pytest.raises(pynccl.Error, match="ncclCommInitRank: invalid argument"):
            pynccl.comm_init_rank(n, identity, rank)


def test_split(cupy):
    def split(rank):
        part = ctypes.c_void_p()
        split = pynccl.load().ncclCommSplit
        comm = ctypes.c_void_p(rank.nccl.handle)
        assert split(comm, 0, -rank.rank, ctypes.byref(part), None) == 0
        x = cupy.full(3, rank.rank)
        pynccl.broadcast(x.data.ptr, x.data.ptr, 3, TYPES["int64"], 0, part.value, 0)
        x = x.get().tolist()
        pynccl.comm_destroy(part.value)
        return x

    assert on_ranks(cupy, split) == [[1, 1, 1]] * 2  # the result has the order of the keys


@pytest.fixture
def one_gpu_for_two(cupy, monkeypatch):
    """Returns the options by which three ranks use two GPUs."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs 2 GPUs")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    return {"n": 3, "devices": [0, 1, 1]}


def test_survivors_continue(cupy, binding, one_gpu_for_two):
    """One of three ranks is lost in a collective that the other ranks have begun."""
    identity = new_identity(binding)

    def survive(rank):
        if rank.rank == 1:
            return rank.nccl.abort()
        stream, x = cupy.cuda.Stream(non_blocking=True), cupy.ones(3, "f")
        stream.wait_event(cupy.cuda.get_current_stream().record())
        rank.run("all_reduce", x, x, stream=stream)
        assert not stream.done
        thread = threading.Thread(target=rank.nccl.revoke)
        thread.start()
        stream.synchronize()
        thread.join(20)
        assert np.isnan(x.get()).all()  # the values are undefined
        rank.nccl.revoke()  # a second call has no effect
        assert rank.nccl.find_error() is None
        with pytest.raises(NcclError, match="the communicator was revoked or aborted"):
            rank.run("all_reduce", x, x)
        assert rank.nccl.can_shrink == (binding != "cupy")
        if rank.nccl.can_shrink:
            left = rank.nccl.shrink([1])
        else:
            left = Connection(2, identity, rank.rank // 2, binding)
        rank.nccl.abort()  # a second call has no effect
        rank.nccl, y = left, cupy.full(3, rank.rank + 1, "f")
        rank.run("all_reduce", y, y)
        y = y.get().tolist()
        left.destroy()
        return y

    results = on_ranks(cupy, survive, binding=binding, ends=None, **one_gpu_for_two)
    assert results == [[4, 4, 4], None, [4, 4, 4]]


def test_what_a_revoked_communicator_refuses(cupy, one_gpu_for_two):
    def call(rank):
        comm, x = rank.nccl.handle, cupy.ones(3, "f")
        pynccl.comm_revoke(comm, 0)
        with pytest.raises(pynccl.Error, match="ncclAllReduce: invalid usage"):
            pynccl.all_reduce(x.data.ptr, x.data.ptr, 3, TYPES["float32"], SUM, comm, 0)
        assert "only shrink and abort may follow" in pynccl.get_last_error(comm)
        with pytest.raises(pynccl.Error):  # NCCL would hang, so the communicator must be aborted
            rank.nccl.destroy()

    on_ranks(cupy, call, ends="abort", **one_gpu_for_two)


@pytest.fixture
def replace_calls(monkeypatch):
    """Returns a function that replaces calls of NCCL by name."""

    def replace_calls(**calls):
        for name, call in calls.items():
            monkeypatch.setattr(pynccl, name, call)

    return replace_calls


@pytest.mark.parametrize("status", [1, 7])
def test_revoking_fails_or_takes_a_while(cupy, replace_calls, status):
    """A communicator that cannot be revoked is aborted; a communicator whose work ends later can
    shrink."""
    states = iter([7, 7, 0])

    def revoke(comm, flags):
        raise pynccl.Error("imitated", status)

    replace_calls(comm_get_async_error=lambda comm: next(states), comm_revoke=revoke)
    nccl = Connection(1, new_identity("pynccl"), 0, "pynccl")
    nccl.revoke()
    assert nccl.can_shrink == (status == 7)
    if nccl.can_shrink:
        nccl.shrink([]).destroy()
        assert list(states) == []
    nccl.abort()  # this call may be the second, or the first


def test_old_versions_cannot_shrink(cupy, replace_calls):
    replace_calls(get_version=lambda: 22807)
    assert not Connection(1, new_identity("pynccl"), 0, "pynccl").can_shrink
