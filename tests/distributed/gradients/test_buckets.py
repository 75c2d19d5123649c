"""Tests the averaging of gradients over samples, with missing gradients and in any order."""

import itertools

import numpy as np
import pytest

from mpchain.backends import cuda
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.variable import Parameter
from tests.distributed.devices import (
    address,
    assert_allclose,
    assert_array_equal,
    on_device,
    on_gpus,
    xp,
)

ON_GPUS = True

SHAPES = {"/a": (3, 4), "/b": (), "/c": (5,), "/d": (0, 2), "/e": (2, 2, 2)}
SAMPLES = [3, 1, 4, 2]  # the number of samples of each rank


def parameters(dtype="float64"):
    return {name: Parameter(xp.zeros(shape, dtype)) for name, shape in SHAPES.items()}


def gradient(name, rank, dtype="float64", step=0):
    random = np.random.RandomState([ord(name[1]), rank, step])
    return on_device(random.uniform(-1, 1, SHAPES[name]).astype(dtype))


def expected_mean(name, ranks, samples, dtype="float64", step=0):
    """Returns the mean over all samples; only the ranks in ``ranks`` have a gradient."""
    total = sum(samples)
    return sum(samples[r] * gradient(name, r, dtype, step).astype("float64") for r in ranks) / total


@pytest.fixture
def set_bucket_bytes(set_limits):
    return lambda n: set_limits(bucket_bytes=n, gpu_bucket_bytes=n, first_gpu_bucket_bytes=n)


@pytest.fixture(params=[1, 60, 10**6], ids="bucket of {} bytes".format)
def bucket_bytes(request, set_bucket_bytes):
    set_bucket_bytes(request.param)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-15), ("float32", 1e-6), ("float16", 1e-3)]
)
@pytest.mark.parametrize("announced", [[], ["/c", "/a"], list(SHAPES), list(SHAPES)[::-1]], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_means_over_samples(comm, bucket_bytes, dtype, tolerance, announced, weighted):
    params = parameters(dtype)
    reducer = GradientReducer(comm)
    reducer.watch(params)
    samples = SAMPLES[: comm.size] if weighted else [1] * comm.size
    for step in range(3):
        for name, param in params.items():
            param.grad = gradient(name, comm.rank, dtype, step)
        reducer.begin(samples[comm.rank] if weighted else None)
        # Ranks announce gradients in different orders, and rank 1 does not announce the last one.
        for name in np.roll(announced, comm.rank)[: len(announced) - (comm.rank == 1)]:
            reducer.ready(params[name])
        assert reducer.finish() == sum(samples)
        for name, param in params.items():
            expected = expected_mean(name, range(comm.size), samples, dtype, step)
            assert param.grad.dtype == dtype
            assert_allclose(param.grad, expected, rtol=0, atol=tolerance)


def test_all_ranks_get_the_same_bits(comm):
    params = parameters("float32")
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for name, param in params.items():
        param.grad = gradient(name, comm.rank, "float32")
    reducer.begin(SAMPLES[comm.rank])
    reducer.finish()
    for param in params.values():
        assert len({y.tobytes() for y in comm.allgather(param.grad)}) == 1


def test_gradients_are_views_into_buckets(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks, because one keeps its gradients")
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for name, param in params.items():
        param.grad = gradient(name, comm.rank)
    reducer.begin()
    reducer.finish()
    (bucket,) = reducer._buckets
    for param in params.values():
        assert param.size == 0 or np.shares_memory(param.grad, bucket.values)


def hold(param, how):
    """Keeps a reference to a gradient, as a program may do."""
    return {
        "itself": lambda: param.grad,
        "a part": lambda: param.grad.reshape(-1)[1:],
        "a part of a part": lambda: param.grad.T.reshape(-1)[1:][::2],
        "variable": lambda: param.grad_var,
        "memory": lambda: param.grad[...] if on_gpus() else memoryview(param.grad),
    }[how]()


@pytest.mark.parametrize("how", ["itself", "a part", "a part of a part", "variable", "memory"])
@pytest.mark.parametrize("holder", ["all", "last"])
def test_gradients_that_a_program_keeps_stay_as_they_are(comm, how, holder):
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    kept = []
    for step in range(6):
        reducer.begin()
        reducer.weight()
        for name, param in params.items():
            param.grad = gradient(name, comm.rank, step=step)
            if step % 3:
                reducer.ready(param)
        reducer.finish()
        for name, param in params.items():
            expected = expected_mean(name, range(comm.size), [1] * comm.size, step=step)
            assert_allclose(param.grad, expected, rtol=0, atol=1e-15)
        if step < 4 and (holder == "all" or comm.rank == comm.size - 1):
            held = hold(params["/a"], how)
            kept.append((held, xp.array(getattr(held, "array", held))))
        for held, copy in kept:
            assert_array_equal(getattr(held, "array", held), copy)


def test_memory_stays_where_it_is_unless_a_gradient_is_kept(comm, bucket_bytes):
    if comm.size == 1:
        pytest.skip("needs two ranks, because one keeps its gradients")
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)

    def step():
        """Runs a step; returns the addresses of all buckets."""
        reducer.begin()
        reducer.weight()
        for name, param in params.items():
            param.grad = gradient(name, comm.rank)
            reducer.ready(param)
        reducer.finish()
        return [address(bucket.values) for bucket in reducer._buckets]

    first = step()
    assert step() == step() == first
    kept = []
    for _ in range(3):
        kept += [params["/a"].grad for _ in range(comm.rank == 0)]  # gradients of earlier steps
        moved = [x != y for x, y in zip(first, step(), strict=True)]
        assert sum(moved) == (comm.rank == 0)
    del kept
    last = step()
    assert step() == step() == last


def test_a_bucket_travels_while_backward_goes_on(comm, set_bucket_bytes):
    if comm.size == 1:
        pytest.skip("needs ranks that send messages")
    set_bucket_bytes(1)
    begun = []

    def compression(comm, bucket):
        begun.append(bucket.values.size)
        return comm.iallreduce(bucket.values)

    params = parameters()
    order = ["/c", "/a", "/e", "/b", "/d"]
    reducer = GradientReducer(comm, compression=compression)
    reducer.watch(params)
    for step in range(2):
        begun.clear()
        reducer.begin()
        counts = []
        for name in order:
            params[name].grad = gradient(name, comm.rank)
            reducer.ready(params[name])
            counts.append(len(begun))
        # The first step learns the order; in later steps, each bucket (of one parameter) is sent at
        # once.
        assert counts == ([0] * 5 if step == 0 else [1, 2, 3, 4, 5])
        reducer.finish()
        assert begun == [params[name].size for name in order]


@pytest.mark.parametrize(("n_bytes", "several"), [(1, True), (1 << 20, False)])
def test_one_bucket_needs_not_know_which_gradients_are_ready(
    comm, set_bucket_bytes, n_bytes, several
):
    set_bucket_bytes(n_bytes)
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for step in range(3):
        reducer.begin(2, losses_are_weighted=True)
        assert reducer.overlaps == (comm.size > 1 and (several or step == 0))
        for name, param in params.items():
            param.grad = gradient(name, comm.rank, step=step) * reducer.weight(2)
        reducer.finish()
        for name, param in params.items():
            expected = expected_mean(name, range(comm.size), [2] * comm.size, step=step)
            assert_allclose(param.grad, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("absent", list(itertools.product([False, True], repeat=2)), ids=str)
@pytest.mark.parametrize("announce", [False, True])
def test_gradients_that_are_none(comm, bucket_bytes, absent, announce):
    """Rank 0 or the other ranks may lack the gradient of /c; it stays None only if all ranks lack
    it."""
    missing = [absent[0], *[absent[1]] * (comm.size - 1)]
    params = parameters()
    reducer = GradientReducer(comm, zero_fill=True)
    reducer.watch(params)
    for _ in range(2):
        reducer.begin(SAMPLES[comm.rank])
        for name, param in params.items():
            param.grad = None if name == "/c" and missing[comm.rank] else gradient(name, comm.rank)
            if announce and param.grad is not None:
                reducer.ready(param)
        reducer.finish()
        having = [r for r in range(comm.size) if not missing[r]]
        if having:
            expected = expected_mean("/c", having, SAMPLES[: comm.size])
            assert_allclose(params["/c"].grad, expected, atol=1e-15)
        else:
            assert params["/c"].grad is None
        assert params["/a"].grad is not None


def test_gradients_that_are_none_without_zero_fill(comm):
    params = parameters()
    reducer = GradientReducer(comm, zero_fill=False)
    reducer.watch(params)
    for name, param in params.items():
        param.grad = gradient(name, comm.rank)
    params["/b"].grad = None  # the gradient is None on all ranks, and stays None
    if comm.rank == comm.size - 1:
        params["/c"].grad = params["/e"].grad = None
    reducer.begin()
    if comm.size == 1:
        reducer.finish()
        assert params["/b"].grad is None
        return
    last = comm.size - 1
    with pytest.raises(ValueError, match=f"zero_fill=True .*/c on rank {last}; /e on rank {last}$"):
        reducer.finish()


@pytest.mark.parametrize("zero_fill", [False, True])
def test_a_rank_without_samples(comm, zero_fill):
    params = parameters()
    reducer = GradientReducer(comm, zero_fill=zero_fill)
    reducer.watch(params)
    samples = [2, *[0] * (comm.size - 1)]
    for _ in range(2):
        for name, param in params.items():
            # The gradients of a rank without samples do not count.
            stale = xp.full(SHAPES[name], np.nan) if comm.rank % 2 else None
            param.grad = gradient(name, 0) if comm.rank == 0 else stale
        reducer.begin(samples[comm.rank])
        assert reducer.finish() == 2
        for name, param in params.items():
            assert_allclose(param.grad, gradient(name, 0), atol=1e-15)


def test_no_rank_has_samples(comm):
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    reducer.begin(0)
    assert reducer.finish() == 0
    assert all(param.grad is None for param in params.values())


def test_several_dtypes(comm):
    params = {
        "/a": Parameter(xp.zeros((3, 4), "float32")),
        "/b": Parameter(xp.zeros((), "float64")),
        "/c": Parameter(xp.zeros(5, "float32")),
    }
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for name, param in params.items():
        param.grad = gradient(name, comm.rank, param.dtype)
    reducer.begin()
    reducer.finish()
    for name, param in params.items():
        expected = expected_mean(name, range(comm.size), [1] * comm.size, param.dtype)
        assert_allclose(param.grad, expected, atol=1e-6)


def test_large_float16_gradients_of_many_samples_do_not_overflow(comm):
    param = Parameter(xp.zeros(2, "float16"))
    reducer = GradientReducer(comm)
    reducer.watch({"/a": param})
    param.grad = xp.array([60000, -60000], "float16")
    reducer.begin(1000)
    reducer.finish()
    assert param.grad.tolist() == [60000, -60000]


def test_a_gradient_that_is_final_twice(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks, because one counts nothing")
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    reducer.begin()
    reducer.finish()
    reducer.begin()
    params["/a"].grad = gradient("/a", 0)
    reducer.ready(params["/a"])
    with pytest.raises(RuntimeError, match="the gradient of /a became final twice in one step"):
        reducer.ready(params["/a"])
    reducer.finish()


def test_parameters_of_others_are_ignored(comm):
    reducer = GradientReducer(comm)
    reducer.watch(parameters())
    for _ in range(2):
        reducer.begin()
        reducer.ready(Parameter(xp.zeros(3)))
        reducer.finish()


def test_parameters_that_differ_between_ranks(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    params = parameters()
    if comm.rank > 0:
        del params["/c"]
    reducer = GradientReducer(comm)
    reducer.watch(params)
    reducer.begin()
    if comm.rank > 0:
        with pytest.raises(ValueError, match=f"ranks 0 and {comm.rank} differ in /c"):
            reducer.finish()
    else:
        reducer.weight()
        comm.bcast_obj(["/c", *params])  # finish makes this call before the other ranks stop


def test_after_a_step_that_an_exception_ended(comm, set_bucket_bytes):
    if comm.size == 1:
        pytest.skip("needs pending operations, which one rank does not have")
    set_bucket_bytes(1)
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    reducer.begin()
    reducer.finish()
    reducer.begin()
    begun = []
    reducer.compression = lambda comm, bucket: begun.append(bucket) or Never()
    for param in params.values():
        reducer.ready(param)
    assert begun
    with pytest.raises(
        RuntimeError, match="an exception ended the previous step while sums of gradients were"
    ):
        reducer.begin()


class Never:
    def Test(self):
        return False


def test_the_first_bucket_on_gpus_is_small(comm):
    """The sum of the first bucket begins early; other buckets have up to 25 MiB, or one
    larger parameter."""
    if comm.size == 1 or not on_gpus():
        pytest.skip("needs several ranks with GPUs")
    n = 2**17  # the number of elements in half a MiB
    params = {f"/{i:02}": Parameter(xp.zeros(n, np.float32)) for i in range(60)}
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for param in params.values():
        param.grad = param.array
    reducer.begin()
    reducer.finish()
    assert [len(bucket.names) for bucket in reducer._buckets] == [2, 50, 8]


def test_small_gradients_do_not_move_large_ones_off_places_of_16_bytes(comm):
    """NCCL sums arrays at other addresses element by element."""
    if comm.size == 1 or not on_gpus():
        pytest.skip("needs several ranks with GPUs")
    shapes = {"/b": (10,), "/W": (16, 10), "/c": (3,), "/V": (4, 4, 2), "/d": (1,), "/U": (8,)}
    params = {name: Parameter(xp.zeros(shape, np.float16)) for name, shape in shapes.items()}
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for i, param in enumerate(params.values()):
        param.grad = xp.full(param.shape, i, np.float16)
    reducer.begin()
    for param in params.values():
        reducer.ready(param)
    reducer.finish()
    begins = {
        name: bucket.layout.slices[name].start * 2
        for bucket in reducer._buckets
        for name in bucket.names
    }
    assert all(begins[name] % 16 == 0 for name in ("/W", "/V", "/U")), begins
    for i, param in enumerate(params.values()):
        np.testing.assert_array_equal(cuda.to_cpu(param.grad), i)


@pytest.mark.parametrize("weighted", [False, True])
def test_no_kernel_fills_a_bucket_on_a_gpu(comm, weighted):
    """NCCL reads the gradients in place. If they must be multiplied and the binding cannot do
    this, CuPy copies each of the few gradients by a kernel, and then multiplies them."""
    if comm.size == 1 or not on_gpus():
        pytest.skip("needs several ranks with GPUs")
    ledger = xp.double  # the double of CuPy records what it has launched
    params = parameters()
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for step in range(2):
        kept = {name: gradient(name, comm.rank, step=step) for name in params}
        for name, param in params.items():
            param.grad = kept[name]
        ledger.reset()
        reducer.begin(SAMPLES[comm.rank], losses_are_weighted=weighted)
        reducer.finish()
    names = [name for name, _ in ledger.launches.elements()]
    copies = not weighted and not comm._nccl.has_products
    assert names == (["concatenate"] * len(params) + ["__imul__"] if copies else [])
    samples = [1 / comm.size] * comm.size if weighted else SAMPLES[: comm.size]
    scale = comm.size if weighted else 1
    expected = expected_mean("/a", range(comm.size), samples, step=1) * scale
    assert_allclose(params["/a"].grad, expected, atol=1e-15)
    for name, grad in kept.items():
        assert_array_equal(grad, gradient(name, comm.rank, step=1))


def test_one_array_may_be_the_gradient_of_several_parameters(comm):
    """The gradient may be shared, as in a sum; arrays that are not contiguous are copied."""
    params = {f"/{i}": Parameter(xp.zeros((2, 3))) for i in range(4)}
    reducer = GradientReducer(comm)
    reducer.watch(params)
    for step in range(3):
        shared = on_device(np.random.RandomState(step).rand(2, 3)) * (comm.rank + 1)
        before = shared.copy()
        grads = shared, shared, xp.asfortranarray(shared), shared
        for param, grad in zip(params.values(), grads, strict=True):
            param.grad = grad
        reducer.begin()
        reducer.finish()
        factor = (comm.size + 1) / 2 / (comm.rank + 1)
        for param in params.values():
            assert_allclose(param.grad, before * factor, rtol=1e-14)
        assert_array_equal(shared, before)
