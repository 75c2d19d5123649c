"""Tests sums of buffers within a host and between hosts, which are imitated by dividing the
ranks."""

import gc
import os
import pathlib
import weakref

import numpy as np
import pytest

from mpchain.distributed import shared_memory
from mpchain.distributed.communicators import MpiCommunicator, mpi
from mpchain.distributed.communicators.buffers import SharedBuffer
from mpchain.distributed.watch import fingerprints

HOSTS = {
    "one host": lambda rank: 0,
    "a host each": lambda rank: rank,
    "pairs": lambda rank: rank // 2,  # if the number of ranks is odd, hosts have different sizes
    "alternating": lambda rank: rank % 2,
}
SPECIFICATIONS = [(1000, "float32"), (7, "float64"), (1, "int64"), (0, "float32"), (3, "int32")]


@pytest.fixture(params=HOSTS)
def on_hosts(request, comm, split_hosts):
    """Returns a communicator whose ranks are on the given imitated hosts."""
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    split_hosts(HOSTS[request.param])
    with MpiCommunicator(comm.mpi_comm) as made:
        yield made


@pytest.fixture
def refuse_shared_memory(monkeypatch):
    """Returns a function that disables shared memory."""
    return lambda: monkeypatch.setattr(mpi, "make_shared_arrays", lambda *args: None)


def fill(buffers, rank, step=0):
    for i, x in enumerate(buffers):
        x[...] = np.random.RandomState([rank, i, step]).randint(-99, 99, x.shape)


def check(buffers, size, step=0):
    for i, x in enumerate(buffers):
        of_ranks = [
            np.random.RandomState([r, i, step]).randint(-99, 99, x.shape) for r in range(size)
        ]
        np.testing.assert_array_equal(x, sum(of_ranks))


def test_places(on_hosts, comm):
    hosts = comm.allgather_obj((on_hosts.inter_rank, on_hosts.intra_rank))
    assert sorted(set(hosts)) == sorted(hosts)
    assert on_hosts.inter_size == 1 + max(host for host, _ in hosts)
    assert on_hosts.intra_size == sum(host == on_hosts.inter_rank for host, _ in hosts)


@pytest.mark.parametrize("in_stages", [False, True], ids=["at once", "in stages"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "refused"])
@pytest.mark.parametrize("piece", [3, 2**30])
def test_sums_of_buffers(on_hosts, in_stages, is_shared, piece, set_limits, refuse_shared_memory):
    set_limits(piece=piece)
    if in_stages:
        set_limits(at_once=2)
    if not is_shared:
        refuse_shared_memory()
    buffers = on_hosts.make_buffers(SPECIFICATIONS)
    assert [(x.size, x.dtype) for x in buffers] == SPECIFICATIONS
    assert not any(x.any() for x in buffers)
    for step in range(4):
        fill(buffers, on_hosts.rank, step)
        # Each rank begins the sums in its own random order.
        order = np.random.RandomState([step, on_hosts.rank]).permutation(len(buffers))
        requests = {i: on_hosts.begin_sum(buffers[i]) for i in order}
        for i in np.roll(order, on_hosts.rank):
            assert requests[i].Wait() is buffers[i]
        check(buffers, on_hosts.size, step)


@pytest.mark.parametrize("n", [1, 5, 200_001])
def test_all_ranks_get_the_same_bits(on_hosts, n):
    (x,) = on_hosts.make_buffers([(n, "float32")])
    x[...] = np.random.RandomState(on_hosts.rank).uniform(-1, 1, n)
    held = on_hosts.allgather(x)
    on_hosts.iallreduce(x).Wait()
    np.testing.assert_allclose(x, np.sum(held, axis=0, dtype="f8"), atol=1e-6)
    assert len({y.tobytes() for y in on_hosts.allgather(x)}) == 1


@pytest.mark.parametrize(("wire_dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_narrow_between_hosts(on_hosts, wire_dtype, bits):
    (x,) = on_hosts.make_buffers([(1001, "float32")])
    x[...] = np.random.RandomState(on_hosts.rank).uniform(0.5, 1, x.size)
    expected = np.sum(on_hosts.allgather(x), axis=0, dtype="f8")
    on_hosts.iallreduce(x, wire_dtype).Wait()
    assert len({y.tobytes() for y in on_hosts.allgather(x)}) == 1
    error = abs(x / expected - 1).max()
    if on_hosts.inter_size == 1:
        assert error < 1e-6  # no data is sent between hosts
    else:
        assert 2.0 ** -(bits + 4) < error < 2.0 * 2.0**-bits


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "refused"])
def test_each_rank_chooses_the_room_that_it_uses(on_hosts, is_shared, refuse_shared_memory):
    if not is_shared:
        refuse_shared_memory()
    rooms = on_hosts.make_buffers(SPECIFICATIONS, 2)
    assert [(x.size, x.dtype) for x in rooms[::2]] == SPECIFICATIONS
    for step in range(4):
        choice = np.random.RandomState([step, on_hosts.rank]).randint(2)
        used, others = rooms[choice::2], rooms[1 - choice :: 2]
        before = [x.copy() for x in others]
        fill(used, on_hosts.rank, step)
        for request in [on_hosts.begin_sum(x) for x in used]:
            request.Wait()
        check(used, on_hosts.size, step)
        np.testing.assert_equal(others, before)


def test_plain_arrays_beside_buffers(on_hosts):
    """An array of another size or dtype at a buffer's address is not a buffer."""
    (x,) = on_hosts.make_buffers([(10, "float32")])
    for view in (x[:5], x.view("int32")[:10]):
        view[...] = on_hosts.rank + 1
        assert on_hosts.iallreduce(view).Wait().tolist() == [
            sum(range(1, on_hosts.size + 1))
        ] * len(view)


def test_a_rank_that_waits_lets_others_sums_go_on(on_hosts):
    """Otherwise, ranks that wait for different sums would wait for each other."""
    x, y = on_hosts.make_buffers([(5, "float32"), (5, "float32")])
    x[...] = y[...] = 1
    first, second = on_hosts.begin_sum(x), on_hosts.begin_sum(y)
    for request in [first, second][:: -1 if on_hosts.rank else 1]:
        request.Wait()
    assert x.tolist() == y.tolist() == [on_hosts.size] * 5


def test_buffers_outlive_their_communicator(on_hosts):
    (x,) = on_hosts.make_buffers([(5, "float32")])
    on_hosts.iallreduce(x).Wait()
    x[...] = on_hosts.rank
    view = x[1:3]
    on_hosts.finalize()
    del x
    gc.collect()
    assert view.tolist() == [on_hosts.rank] * 2


def test_shared_memory_is_released(comm):
    if comm.mpi_comm is None or comm.size == 1:
        pytest.skip("needs ranks that share memory")
    (x,) = comm.make_buffers([(1000, "float32")])
    assert isinstance(x.base, SharedBuffer)
    released = weakref.ref(x.base)
    address = x.ctypes.data
    assert _is_mapped(address)
    del x
    gc.collect()
    assert released() is None
    assert not _is_mapped(address)


def _is_mapped(address):
    """Returns whether this process has mapped shared memory at an address."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:mpchain" in line]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


def _on_this_host(comm):
    """Returns MPI's communicator of the ranks on this host."""
    from mpi4py import MPI

    return comm.mpi_comm.Split_type(MPI.COMM_TYPE_SHARED)


@pytest.mark.parametrize("failing", ["memfd_create", "open", "readlink"])
def test_memory_that_some_rank_is_refused(comm, failing, monkeypatch):
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")

    def refuse(*args):
        raise PermissionError(failing)

    if comm.rank == (0 if failing == "memfd_create" else comm.size - 1):
        monkeypatch.setattr(shared_memory.os, failing, refuse)
    alone = comm.size == 1 and failing != "memfd_create"
    shared = shared_memory.share(_on_this_host(comm), 100)
    monkeypatch.undo()
    assert (shared is None) is not alone
    buffers = comm.make_buffers([(3, "float32")])
    fill(buffers, comm.rank)
    comm.begin_sum(buffers[0]).Wait()
    check(buffers, comm.size)


def test_memory_of_another_process(comm, monkeypatch, tmp_path):
    """In a container, the path may lead to a file of another process, which must not be touched."""
    if comm.mpi_comm is None or comm.size == 1:
        pytest.skip("needs ranks that share memory")
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000)
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(shared_memory.os, "readlink", lambda path: "/memfd:mpchain (deleted)")
        real_open = os.open
        monkeypatch.setattr(shared_memory.os, "open", lambda path, flags: real_open(file, flags))
    assert shared_memory.share(_on_this_host(comm), 100) is None
    assert file.read_bytes() == b"x" * 10_000


def test_shared_memory_is_one(comm):
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    memory = shared_memory.share(comm._host, 8 * comm.size)
    held = np.frombuffer(memory, np.int64, comm.size)
    held[comm.rank] = comm.rank + 1
    comm.barrier()
    assert held.tolist() == list(range(1, comm.size + 1))


def test_many_ranks_take_turns(on_hosts):
    """In many steps of several sums, with calls of Test, no rank confuses counts of stages."""
    buffers = on_hosts.make_buffers([(50, "int64")] * 3)
    for step in range(30):
        fill(buffers, on_hosts.rank, step)
        requests = [on_hosts.begin_sum(x) for x in buffers]
        for _ in range(on_hosts.rank):
            requests[0].Test()
        for request in requests:
            request.Wait()
        check(buffers, on_hosts.size, step)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_sums(on_hosts, dtype):
    """Sparse sums equal exact sums up to rounding, and have the same bits on all ranks, also if a
    rank has only zeros."""
    n = 5000
    exact, sparse = on_hosts.make_buffers([(n, dtype)] * 2)
    for step in range(3):
        random = np.random.RandomState([step, on_hosts.rank])
        place = random.permutation(n)[: 0 if step == 1 and on_hosts.rank == 0 else 40]
        exact[...] = 0
        exact[place] = random.uniform(-1, 1, place.size)
        sparse[...] = exact
        plain = sparse.copy()
        for x, wire in ((exact, None), (sparse, "sparse"), (plain, "sparse")):
            on_hosts.iallreduce(x, wire).Wait()
        np.testing.assert_allclose(sparse, exact, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(plain, exact, rtol=1e-6, atol=1e-7)
        assert len({x.tobytes() for x in on_hosts.allgather(sparse)}) == 1
        assert len({x.tobytes() for x in on_hosts.allgather(plain)}) == 1


def test_sparse_sums_are_of_floats(comm):
    with pytest.raises(ValueError, match="wire_dtype must be one of None, sparse"):
        comm.iallreduce(np.zeros(3, np.int64), "sparse")


def test_a_small_host_sums_several_parts(on_hosts, set_limits):
    """No rank of a large host is idle. Small arrays have as many parts as the smallest host has
    ranks."""
    set_limits(large_part=64)
    small, large = on_hosts.make_buffers([(8, "float64"), (1000, "float64")])
    sizes = [len(host) for host in on_hosts.hosts]
    if max(sizes) > 1:
        made = [on_hosts._buffers[x.ctypes.data] for x in (small, large)]
        assert [buffer._n_parts for buffer in made] == [min(sizes), max(sizes)]
        n_own = on_hosts.allgather_obj(len(made[1]._groups))
        assert sum(n_own) == max(sizes) * len(sizes) and min(n_own) > 0
    for step in range(3):
        fill([small, large], on_hosts.rank, step)
        requests = [on_hosts.begin_sum(x) for x in (small, large)]
        for request in requests:
            request.Wait()
        check([small, large], on_hosts.size, step)


@pytest.mark.parametrize("in_stages", [False, True], ids=["at once", "in stages"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "refused"])
def test_pieces_of_buffers(on_hosts, in_stages, is_shared, set_limits, refuse_shared_memory):
    """Each rank gets its piece of the sum, and all ranks gather the pieces."""
    if in_stages:
        set_limits(at_once=2)
    if not is_shared:
        refuse_shared_memory()
    size, rank = on_hosts.size, on_hosts.rank
    sizes = [1001, 3, 70_000]
    buffers = on_hosts.make_buffers([(size * n, "float32") for n in sizes])
    wholes = on_hosts.make_buffers([(size * n, "float32") for n in sizes])
    (room,) = on_hosts.make_buffers([(size * max(sizes), "int64")])
    for step in range(3):
        for i, (x, whole) in enumerate(zip(buffers, wholes, strict=True)):
            whole[...] = np.random.RandomState([rank, i, step]).uniform(-1, 1, whole.size)
            x[...] = whole
        order = np.random.RandomState(step).permutation(len(sizes))
        sums = [on_hosts.begin_sum(whole) for whole in wholes]
        scattered = {i: on_hosts.ireduce_scatter(buffers[i].reshape(size, -1)) for i in order}
        for i, n in enumerate(sizes):
            piece, whole = scattered[i].Wait(), sums[i].Wait()
            assert np.shares_memory(piece, buffers[i])
            np.testing.assert_array_equal(piece, whole[n * rank : n * (rank + 1)])
            out = room.view("float32")[: size * n].reshape(size, n)
            gathered = on_hosts.iallgather(piece, out).Wait()
            np.testing.assert_array_equal(gathered.reshape(-1), whole)


@pytest.mark.parametrize(("wire_dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_pieces_are_narrow_between_hosts(on_hosts, wire_dtype, bits):
    size, rank = on_hosts.size, on_hosts.rank
    buffer, exact = on_hosts.make_buffers([(size * 1001, "float32")] * 2)
    plain = buffer.reshape(size, -1).copy()
    for x in (buffer, exact, plain.reshape(-1)):
        x[...] = np.random.RandomState(rank).uniform(0.5, 1, x.size)
    expected = on_hosts.iallreduce(exact).Wait().reshape(size, -1)[rank]
    for x, is_sent in ((buffer, on_hosts.inter_size > 1), (plain, size > 1)):
        sums = on_hosts.ireduce_scatter(x.reshape(size, -1), wire_dtype).Wait()
        error = abs(sums / expected - 1).max()
        assert error < 2.0 * 2.0**-bits and (error > 2.0 ** -(bits + 6)) == is_sent


def test_room_for_what_is_gathered(comm):
    out = np.zeros((comm.size, 3))
    assert comm.iallgather(np.full(3, comm.rank), out.astype(int)).Wait().shape == out.shape
    assert comm.iallgather(np.full(3, float(comm.rank)), out).Wait() is out
    assert out[:, 0].tolist() == list(range(comm.size))
    for wrong in (out, [out]):
        with pytest.raises(ValueError, match="iallgather: out must be a contiguous NumPy array of"):
            comm.iallgather(np.zeros(4), wrong)
    with pytest.raises(ValueError, match="ireduce_scatter: wire_dtype must be one of None, flo"):
        comm.ireduce_scatter(np.zeros((comm.size, 2)), "sparse")


def test_operations_that_were_begun_are_watched(on_hosts):
    """Otherwise, no rank would notice a rank that does not take part."""
    size = on_hosts.size
    buffer, room = on_hosts.make_buffers([(2 * size, "float64")] * 2)
    requests = [
        on_hosts.ibarrier(),
        on_hosts.ibcast(np.ones(2)),
        on_hosts.iallreduce(np.ones(2)),
        on_hosts.iallgather(np.ones(2)),
        on_hosts.iallgather(np.ones(2), room.reshape(size, 2)),
        on_hosts.ireduce_scatter(np.ones((size, 2))),
        on_hosts.ireduce_scatter(buffer.reshape(size, 2)),
    ]
    for request in requests:
        assert isinstance(request, fingerprints.Request) == (size > 1)
        request.Wait()
