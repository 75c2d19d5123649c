"""Tests collectives, messages and objects, against values that NumPy computes from all ranks' known
data."""

import collections
import itertools

import numpy as np
import pytest

import mpchain
from mpchain.backends.cuda import is_gpu_array
from mpchain.configuration import using_config
from mpchain.distributed import communicators
from mpchain.distributed.communicators.communicator import Communicator
from tests.distributed.devices import assert_array_equal, on_gpus, xp

ON_GPUS = True


DTYPES = ["int32", "int64", "float16", "float32", "float64", mpchain.mixed_bf16.dtype]
SHAPES = [(), (0,), (5,), (2, 3, 4)]


def values(rank, dtype="float32", shape=(2, 3)):
    """Returns the array of a rank: small integers, so that sums are exact in every dtype."""
    n = int(np.prod(shape))
    return (xp.arange(n).reshape(shape) % 7 + 10 * (rank + 1)).astype(dtype)


def same(actual, expected):
    assert is_gpu_array(actual) == is_gpu_array(expected)
    assert_array_equal(actual, expected, strict=True)


@pytest.fixture(params=["whole", "in pieces"])
def any_comm(request, comm, set_limits):
    """Returns the communicator; a second variant has such small messages that arrays are sent in
    several segments."""
    if request.param == "in pieces":
        set_limits(piece=3)
    return comm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_allreduce(any_comm, dtype, shape):
    x = values(any_comm.rank, dtype, shape)
    y = any_comm.allreduce(x)
    same(y, sum(values(r, "float64", shape) for r in range(any_comm.size)).astype(dtype))
    same(x, values(any_comm.rank, dtype, shape))
    assert y is not x


def test_allreduce_of_a_transposed_array(comm):
    y = comm.allreduce(values(comm.rank).T)
    same(y, sum(values(r) for r in range(comm.size)).T)


@pytest.mark.parametrize(
    ("dtype", "large"), [(np.float16, 2048), (mpchain.mixed_bf16.dtype, 256)], ids=str
)
def test_allreduce_sums_half_precision_in_float32(comm, dtype, large):
    # In these dtypes, large + 1 equals large, but the sum over the ranks is exact in float32.
    x = xp.array([large if comm.rank == 0 else 1]).astype(dtype)
    expected = xp.array([large + (comm.size - 1)]).astype(dtype)
    same(comm.allreduce(x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce(any_comm, dtype):
    for root in range(any_comm.size):
        y = any_comm.reduce(values(any_comm.rank, dtype), root)
        if any_comm.rank == root:
            same(y, sum(values(r, "float64") for r in range(any_comm.size)).astype(dtype))
        else:
            assert y is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce_scatter(any_comm, dtype):
    # The array for rank i has i + 1 columns.
    xs = [values(any_comm.rank, dtype, (2, i + 1)) for i in range(any_comm.size)]
    shape = (2, any_comm.rank + 1)
    y = any_comm.reduce_scatter(xs)
    same(y, sum(values(r, "float64", shape) for r in range(any_comm.size)).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bcast(any_comm, dtype, shape):
    for root in range(any_comm.size):
        x = values(root, dtype, shape) if any_comm.rank == root else None
        same(any_comm.bcast(x, root), values(root, dtype, shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_of_different_shapes(any_comm, dtype):
    for root in range(any_comm.size):
        ys = any_comm.gather(values(any_comm.rank, dtype, (any_comm.rank, 2)), root)
        if any_comm.rank == root:
            assert isinstance(ys, tuple) and len(ys) == any_comm.size
            for r, y in enumerate(ys):
                same(y, values(r, dtype, (r, 2)))
        else:
            assert ys is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather_of_different_shapes(any_comm, dtype):
    ys = any_comm.allgather(values(any_comm.rank, dtype, (2,) * any_comm.rank))
    assert isinstance(ys, tuple) and len(ys) == any_comm.size
    for r, y in enumerate(ys):
        same(y, values(r, dtype, (2,) * r))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall(any_comm, dtype):
    ys = any_comm.alltoall([values(any_comm.rank, dtype, (i, 3)) for i in range(any_comm.size)])
    assert isinstance(ys, tuple) and len(ys) == any_comm.size
    for r, y in enumerate(ys):
        same(y, values(r, dtype, (any_comm.rank, 3)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["list", "array"])
def test_scatter(any_comm, dtype, whole):
    for root in range(any_comm.size):
        xs = None
        if any_comm.rank == root:
            xs = [values(i, dtype) for i in range(any_comm.size)]
            xs = xp.stack(xs) if whole else xs
        same(any_comm.scatter(xs, root), values(any_comm.rank, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_send_and_receive_around_a_ring(any_comm, dtype):
    before, after = (any_comm.rank - 1) % any_comm.size, (any_comm.rank + 1) % any_comm.size
    message = values(any_comm.rank, dtype), xp.array(any_comm.rank, dtype), xp.empty((0, 2), dtype)
    received = None
    if any_comm.rank == 0:  # sends and receives wait for each other, so one rank must send first
        any_comm.send(message, after, tag=3)
        received = any_comm.recv(before, tag=3)
    else:
        received = any_comm.recv(before, tag=3)
        any_comm.send(message, after, tag=3)
    assert isinstance(received, tuple)
    same(received[0], values(before, dtype))
    same(received[1], xp.array(before, dtype))
    same(received[2], xp.empty((0, 2), dtype))


def test_messages_to_oneself_are_told_apart_by_tag(comm):
    first, second = xp.arange(3), (xp.arange(2), xp.arange(4.0))
    comm.send(first, comm.rank, tag=1)
    comm.send(second, comm.rank, tag=2)
    comm.send_obj("object", comm.rank, tag=3)
    first += 1  # the message does not change with the array
    assert comm.recv_obj(comm.rank) is not None  # without a tag, the first message arrives
    same(comm.recv(comm.rank, tag=2)[1], xp.arange(4.0))
    assert comm.recv_obj(comm.rank, tag=3) == "object"
    with pytest.raises(RuntimeError, match="waits for a message with tag 3 from itself"):
        comm.recv(comm.rank, tag=3)


def test_a_message_to_oneself_is_a_copy(comm):
    x = xp.arange(3)
    comm.send(x, comm.rank)
    x += 1
    same(comm.recv(comm.rank), xp.arange(3))


def test_objects(comm):
    obj = {"rank": comm.rank, "text": "ä" * comm.rank}
    everyone = [{"rank": r, "text": "ä" * r} for r in range(comm.size)]
    root = comm.size - 1
    assert comm.bcast_obj(obj, root=root) == everyone[root]
    assert comm.bcast_obj(obj, max_buf_len=7, root=root) == everyone[root]
    assert comm.allgather_obj(obj) == everyone
    assert comm.gather_obj(obj, root) == (everyone if comm.rank == root else None)
    assert comm.scatter_obj(everyone if comm.rank == root else None, root) == obj
    assert comm.alltoall_obj([(comm.rank, i) for i in range(comm.size)]) == [
        (r, comm.rank) for r in range(comm.size)
    ]


def test_allreduce_obj_adds_in_the_order_of_ranks(comm):
    assert comm.allreduce_obj([comm.rank]) == list(range(comm.size))
    counts = comm.allreduce_obj(collections.Counter(a=comm.rank, b=1))
    assert counts["b"] == comm.size


def test_objects_around_a_ring(comm):
    comm.send_obj({"from": comm.rank}, (comm.rank + 1) % comm.size, tag=5)
    before = (comm.rank - 1) % comm.size
    assert comm.recv_obj(before, tag=5) == {"from": before}


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_iallreduce_has_several_pending(any_comm, dtype, n):
    xs = [values(any_comm.rank + i, dtype, (n,)) for i in range(3)]
    requests = [any_comm.iallreduce(x) for x in xs]
    while not all(request.Test() for request in requests):
        pass
    for request in reversed(requests):
        request.Wait()
    for i, x in enumerate(xs):
        same(x, sum(values(r + i, "float64", (n,)) for r in range(any_comm.size)).astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
def test_iallreduce_multiplies_each_ranks_array_before(any_comm, dtype, wire_dtype):
    x = xp.full(5, any_comm.rank + 1.0, dtype)
    any_comm.iallreduce(x, wire_dtype, factor=2.0**-any_comm.rank).Wait()
    same(x, xp.full(5, sum((r + 1) * 2.0**-r for r in range(any_comm.size)), dtype))


@pytest.mark.parametrize("wire_dtype", [None, "float16"])
@pytest.mark.parametrize("factor", [None, 2.0])
@pytest.mark.parametrize("most_in_group", [2, 2048])
def test_iallreduce_of_parts(any_comm, wire_dtype, factor, most_in_group, set_limits):
    set_limits(in_group=most_in_group)
    rank, size = any_comm.rank, any_comm.size
    x, parts = xp.empty((1, 7)), [xp.full(n, 1.0 + n * rank) for n in (1, 0, 4, 2)]
    before = [part.copy() for part in parts]
    assert any_comm.iallreduce(x, wire_dtype, factor=factor, parts=parts).Wait() is x
    each = size + np.repeat([1.0, 4, 2], [1, 4, 2]) * sum(range(size))
    same(x, xp.array(each[None] * (factor or 1)))
    for part, copy in zip(parts, before, strict=True):
        same(part, copy)


def test_a_sum_on_gpus_runs_beside_the_current_stream(comm):
    if comm.size == 1 or not on_gpus():
        pytest.skip("needs several ranks with GPUs")
    comm.allreduce(xp.ones(3)).get()  # the first call connects the ranks
    x = xp.full(3, comm.rank + 1.0)
    for is_first in (True, False):
        if is_first == (comm.rank == 0):
            request = comm.iallreduce(x)
        if is_first and comm.rank == 0:  # the other ranks have not called yet
            assert not request.is_complete and xp.cuda.get_current_stream().done
        comm.mpi_comm.Barrier()
    same(request.Wait(), xp.full(3, comm.size * (comm.size + 1) / 2))


def test_parts_that_are_not_those_of_the_array(comm):
    for parts in ([xp.ones(2)], [xp.ones(3, "f")], [xp.ones((1, 3))], [xp.ones(6)[::2]]):
        with pytest.raises(ValueError, match="iallreduce: parts must be flat contiguous arrays of"):
            comm.iallreduce(xp.empty(3), parts=parts)


def test_other_collectives_while_sums_are_pending(comm):
    for i in range(20):
        xs = [xp.full(n, comm.rank + 1.0) for n in (1, 5000)]
        requests = [comm.iallreduce(x) for x in xs]
        if comm.rank == i % comm.size:  # this rank gets ahead of the other ranks
            for request in requests * 5:
                request.Test()
        assert [y.tolist() for y in comm.allgather(xp.array([comm.rank]))] == [
            [r] for r in range(comm.size)
        ]
        for x, request in zip(xs, requests):
            request.Wait()
            same(x, xp.full(x.shape, float(sum(range(1, comm.size + 1)))))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ibcast_and_iallgather(any_comm, dtype, shape):
    root = any_comm.size - 1
    x = values(any_comm.rank, dtype, shape)
    broadcast, gathered = any_comm.ibcast(xp.array(x), root), any_comm.iallgather(x)
    barrier = any_comm.ibarrier()
    same(gathered.Wait(), xp.stack([values(r, dtype, shape) for r in range(any_comm.size)]))
    same(broadcast.Wait(), xp.array(values(root, dtype, shape)))
    barrier.Wait()
    assert broadcast.Test() and broadcast.is_complete


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ireduce_scatter(any_comm, dtype, shape):
    x = values(any_comm.rank, dtype, (any_comm.size, *shape))
    before = x.copy()
    y = any_comm.ireduce_scatter(x).Wait()
    total = sum(values(r, "float64", x.shape) for r in range(any_comm.size))
    same(y, xp.asarray(total[any_comm.rank]).astype(dtype))
    same(x, before)


def test_begin_puts_operations_together(comm):
    def steps():
        x = yield from comm.iallreduce(xp.full(2, comm.rank + 1.0)).steps()
        ys = yield from comm.iallgather(x * (comm.rank + 1)).steps()
        return ys.sum(0)

    n = comm.size * (comm.size + 1) / 2
    request = comm.begin(steps())
    same(request.Wait(), xp.full(2, n * n))
    assert request.Test()


def test_parts_begin_at_different_times_relative_to_other_operations(comm):
    """On rank 0, the allgather begins after another sum has begun; on other ranks, it begins
    before."""
    if on_gpus():
        pytest.skip("needs MPI, because NCCL needs one order of operations")
    has_begun = comm.rank > 0 or comm.size == 1  # one process completes the sum at once
    parts = []

    def steps():
        x = yield from comm.iallreduce(xp.full(20, 1.0)).steps()
        while not has_begun:
            yield
        parts.append(comm.iallgather(x))
        xs = yield from parts[0].steps()
        return (yield from comm.iallreduce(xs.sum(0)).steps())

    request = comm.begin(steps())
    if comm.rank > 0:
        while not parts:
            request.Test()
    comm.barrier()
    other = comm.iallreduce(xp.full(20, 2.0))
    has_begun = True
    same(other.Wait(), xp.full(20, 2.0 * comm.size))
    same(request.Wait(), xp.full(20, float(comm.size**3)))


@pytest.mark.parametrize("name", ["ibarrier", "ibcast"])
def test_what_cannot_be_a_part(comm, name):
    def steps():
        yield from getattr(comm, name)(*[xp.zeros(3)][: name == "ibcast"]).steps()

    if comm.mpi_comm is None or (on_gpus() and name == "ibcast"):
        comm.begin(steps()).Wait()
    else:
        with pytest.raises(RuntimeError, match=f"{name} cannot be part of another operation"):
            comm.begin(steps())


WAITS = {
    "barrier": lambda comm: comm.barrier(),
    "bcast_obj": lambda comm: comm.bcast_obj(1),
    "gather_obj": lambda comm: comm.gather_obj(1),
    "allgather_obj": lambda comm: comm.allgather_obj(1),
    "scatter_obj": lambda comm: comm.scatter_obj([1] * comm.size),
    "alltoall_obj": lambda comm: comm.alltoall_obj([1] * comm.size),
    "bcast": lambda comm: comm.bcast(xp.ones(3)),
    "allreduce": lambda comm: comm.allreduce(xp.ones(3)),
    "reduce": lambda comm: comm.reduce(xp.ones(3)),
    "finalize": lambda comm: comm.split(0, comm.rank).finalize(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_rank_that_waits_elsewhere_lets_sums_go_on(comm, wait):
    """Rank 0 waits for the others in another call; the other ranks first wait for a sum with rank
    0."""
    x = xp.full(1000, 1.0)
    request = comm.iallreduce(x)
    if comm.rank > 0:
        request.Wait()
    wait(comm)
    request.Wait()
    same(x, xp.full(1000, float(comm.size)))


@pytest.mark.parametrize("send", [True, False], ids=["array", "object"])
def test_messages_let_sums_go_on(comm, send):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    x = xp.full(1000, 1.0)
    request = comm.iallreduce(x)
    if comm.rank == 1:
        request.Wait()
        comm.recv(0, tag=1) if send else comm.recv_obj(0, tag=1)
        comm.send_obj(1, 0, tag=2)
    if comm.rank == 0:
        comm.send(xp.full(1000, 1.0), 1, tag=1) if send else comm.send_obj("a" * 100_000, 1, tag=1)
        comm.recv_obj(1, tag=2)
    request.Wait()
    same(x, xp.full(1000, float(comm.size)))


@pytest.mark.parametrize("large", [0, 10, 2**20])
@pytest.mark.parametrize("piece", [7, 2**30])
def test_large_objects(comm, large, piece, set_limits):
    """Objects above a limit are sent in segments. Here the limits are smaller than the real limit,
    MPI's largest count."""
    set_limits(large=large, piece=piece)
    test_objects(comm)
    test_allreduce_obj_adds_in_the_order_of_ranks(comm)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if comm.rank == 0:  # sending a large object waits for its receiver
        comm.send_obj("x" * 100, after, tag=5)
    assert comm.recv_obj(before, tag=5) == "x" * (100 + before)
    if comm.rank > 0:
        comm.send_obj("x" * (100 + comm.rank), after, tag=5)


def test_an_object_from_any_rank(comm, set_limits):
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    from mpi4py import MPI

    set_limits(large=10)
    if comm.rank > 0:
        comm.send_obj("x" * 100 * comm.rank, 0, tag=comm.rank)
    else:
        for _ in range(1, comm.size):
            status = MPI.Status()
            obj = comm.recv_obj(MPI.ANY_SOURCE, status)
            assert len(obj) == 100 * status.Get_source() == 100 * status.Get_tag()


def test_buffers(comm):
    x, y = comm.make_buffers([(3, "float64"), (2, "int32")])
    same(x, np.zeros(3))  # buffers are in host memory in both variants
    same(y, np.zeros(2, "int32"))
    x += comm.rank + 1
    assert comm.begin_sum(x).Wait() is x
    same(x, np.full(3, comm.size * (comm.size + 1) / 2))


def test_shares(comm):
    shares = comm.allgather_obj(comm.share_of(10))
    lengths = [10 // comm.size + (r < 10 % comm.size) for r in range(comm.size)]
    ends = np.cumsum([0, *lengths]).tolist()
    assert shares == list(itertools.pairwise(ends))


def test_iallreduce_gives_the_same_bits_on_all_ranks(comm):
    x = np.random.RandomState(comm.rank).uniform(-1, 1, 1001).astype("float32")
    comm.iallreduce(x).Wait()
    assert len({y.tobytes() for y in comm.allgather(x)}) == 1


def test_sum_now(comm):
    (x,) = comm.make_buffers([(3, np.float64)])
    for step in range(3):
        x[:] = comm.rank + step
        assert comm.sum_now(x) is x
        assert x.tolist() == [sum(range(step, comm.size + step))] * 3


def test_barrier_and_split(comm):
    comm.barrier()
    with comm.split(comm.rank % 2, -comm.rank) as part:
        members = [r for r in range(comm.size) if r % 2 == comm.rank % 2][::-1]
        assert part.size == len(members)
        assert members[part.rank] == comm.rank
        same(part.allreduce(xp.array([comm.rank])), xp.array([sum(members)]))
        assert part.get_config() == comm.get_config()


def test_ranks_within_and_between_hosts(comm):
    # The tests run on one host.
    assert (comm.intra_rank, comm.intra_size) == (comm.rank, comm.size)
    assert (comm.inter_rank, comm.inter_size) == (0, 1)


def test_config(comm):
    assert comm.get_config() == {"batched_copy": True, "allreduce_grad_dtype": None}
    assert comm.get_config("batched_copy") is True
    comm.set_config("batched_copy", False)
    assert comm.get_config("batched_copy") is False
    with comm.config_scope():
        assert comm.within_config_scope
        comm.batched_copy = True
    assert not comm.within_config_scope
    assert comm.get_config("batched_copy") is True
    with pytest.raises(
        ValueError, match="name must be one of allreduce_grad_dtype, batched_copy, not 'speed'"
    ):
        comm.set_config("speed")
    with pytest.raises(ValueError, match=r"get_config: name must be one of .*, not 'speed'"):
        comm.get_config("speed")


@pytest.mark.parametrize("name", ["allreduce", "gather", "allgather", "bcast", "reduce"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ((xp.ones(2),), "x must be one array, not a tuple"),
        ([1.0], "x must be one array, not a list"),
        (1.0, "x must be a NumPy or CuPy array, not float"),
        (
            xp.ones(2, np.uint8),
            "has dtype uint8, but must have one of int32, int64, float16, bfloat16, float32",
        ),
        (xp.ones(2, ">f4"), "has dtype >f4"),
        (xp.ones(2, complex), "has dtype complex128"),
    ],
    ids=str,
)
def test_wrong_arrays(comm, name, x, message):
    arguments = (x, comm.rank) if name == "bcast" else (x,)
    with pytest.raises(TypeError, match=f"^{name}: .*{message}"):
        getattr(comm, name)(*arguments)


def test_wrong_arrays_in_lists_and_messages(comm):
    with pytest.raises(TypeError, match=r"^alltoall: xs\[0\] has dtype bool"):
        comm.alltoall([xp.ones(2, bool)] * comm.size)
    with pytest.raises(
        ValueError, match=f"^alltoall: xs must hold {comm.size} arrays, one per rank"
    ):
        comm.alltoall([xp.ones(2)] * (comm.size + 1))
    with pytest.raises(TypeError, match=r"^send: data has dtype uint8"):
        comm.send((xp.ones(2), xp.ones(2, np.uint8)), 0)
    if comm.rank == 0:
        with pytest.raises(
            ValueError, match=r"^scatter: xs must hold .* arrays, one per rank, not a NoneType"
        ):
            comm.scatter(None)
    with pytest.raises(ValueError, match=r"^iallreduce: x must be contiguous, but has strides"):
        comm.iallreduce(xp.ones((2, 3)).T)
    with pytest.raises(
        ValueError,
        match=r"^iallreduce: x must be an array of a dtype that can be summed .* not float16",
    ):
        comm.iallreduce(xp.ones(2, np.float16))
    with pytest.raises(ValueError, match=r"^ibcast: x must be contiguous, but has strides"):
        comm.ibcast(xp.ones((2, 3)).T)
    with pytest.raises(TypeError, match=r"^iallgather: x has dtype bool"):
        comm.iallgather(xp.ones(2, bool))
    with pytest.raises(ValueError, match=rf"^ireduce_scatter: x must hold {comm.size} arrays"):
        comm.ireduce_scatter(xp.ones((comm.size + 1, 2)))


@pytest.mark.parametrize("rank", [-5, 99])
def test_wrong_ranks(comm, rank):
    calls = {
        "bcast": lambda: comm.bcast(xp.ones(1), rank),
        "gather": lambda: comm.gather(xp.ones(1), rank),
        "scatter": lambda: comm.scatter(None, rank),
        "reduce": lambda: comm.reduce(xp.ones(1), rank),
        "send": lambda: comm.send(xp.ones(1), rank),
        "recv": lambda: comm.recv(rank),
        "send_obj": lambda: comm.send_obj(1, rank),
        "recv_obj": lambda: comm.recv_obj(rank),
        "ibcast": lambda: comm.ibcast(xp.ones(1), rank),
        "bcast_obj": lambda: comm.bcast_obj(1, root=rank),
        "gather_obj": lambda: comm.gather_obj(1, rank),
        "scatter_obj": lambda: comm.scatter_obj([1], rank),
    }
    for name, call in calls.items():
        message = (
            f"^{name}: (root|source|dest) must be a rank from 0 to {comm.size - 1}, not {rank}"
        )
        with pytest.raises(ValueError, match=message):
            call()


def test_debug_mode_compares_and_checks_finiteness(comm):
    with using_config("debug", True):
        same(comm.allreduce(xp.ones(2)), xp.full(2, float(comm.size)))
        with pytest.raises(ValueError, match="allreduce: the sum over the ranks has non-finite"):
            comm.allreduce(xp.array([1.0, np.nan]))
        if comm.size > 1:
            with pytest.raises(
                ValueError, match=r"allreduce: .* same on all ranks: rank 0: \(1,\) float64, rank 1"
            ):
                comm.allreduce(xp.ones(comm.rank + 1))


def test_reduce_scatter_of_different_shapes(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks with different shapes")
    with pytest.raises(
        ValueError, match=r"reduce_scatter: .* same shape and dtype for rank \d: rank 0: \(1,\)"
    ):
        comm.reduce_scatter([xp.ones(comm.rank + 1)] * comm.size)


def test_every_communicator_is_a_communicator():
    assert communicators.CommunicatorBase is Communicator
    for name in ("MpiCommunicator", "NcclCommunicator", "DummyCommunicator"):
        assert issubclass(getattr(communicators, name), Communicator)


def test_sums_that_are_forgotten(comm):
    """The buffers must outlive the messages, which would otherwise overwrite other objects."""
    for _ in range(50):
        comm.iallreduce(xp.full(1000, 1.0))
    others = [xp.zeros(1000) for _ in range(200)]
    comm.barrier()
    comm.iallreduce(xp.full(1000, 1.0)).Wait()
    assert not any(x.any() for x in others)


def test_sums_by_the_mpi_library(comm, set_limits):
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    set_limits(at_once=0)
    x = xp.arange(7.0) + comm.rank
    request = comm.iallreduce(x)
    while not request.Test():
        pass
    request.Wait()
    same(x, xp.arange(7.0) * comm.size + sum(range(comm.size)))
