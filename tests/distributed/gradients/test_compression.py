"""Tests gradient compressions: their approximation, their stored errors, and that no gradient is
lost."""

import numpy as np
import pytest

from mpchain.distributed.communicators import MpiCommunicator
from mpchain.distributed.communicators.arrays import BFloat16, Float16
from mpchain.distributed.gradients import compression
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.variable import Parameter
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp

ON_GPUS = True

SHAPES = {"/W": (40, 30), "/b": (40,), "/F": (16, 8, 3, 3), "/s": (), "/v": (3, 2)}


@pytest.fixture(params=["one host", "a host each"])
def any_comm(request, comm, split_hosts):
    if request.param == "one host":
        yield comm
        return
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    split_hosts(lambda rank: rank)
    with MpiCommunicator(comm.mpi_comm) as made:
        yield made


def gradient(name, rank, step):
    random = np.random.RandomState([ord(name[1]), rank, step])
    return on_device(random.standard_normal(SHAPES[name]).astype("float32"))


def mean(name, size, step):
    return sum(gradient(name, r, step).astype("f8") for r in range(size)) / size


class Run:
    """Runs steps of a reducer, each with new gradients."""

    def __init__(self, comm, compression):
        self.comm, self.step = comm, 0
        self.params = {name: Parameter(xp.zeros(s, "float32")) for name, s in SHAPES.items()}
        self.reducer = GradientReducer(comm, compression=compression)
        self.reducer.watch(self.params)

    def next(self):
        """Runs one more step, and returns the averaged gradients."""
        self.reducer.begin()
        for name, param in self.params.items():
            param.grad = gradient(name, self.comm.rank, self.step)
        for param in self.params.values():
            self.reducer.ready(param)
        self.reducer.finish()
        self.step += 1
        return {name: param.grad.copy() for name, param in self.params.items()}


@pytest.mark.parametrize(
    ("compress", "tolerance"),
    [(compression.exact, 1e-6), (compression.float16, 4e-3), (compression.bfloat16, 3e-2)],
)
def test_means(any_comm, compress, tolerance):
    run = Run(any_comm, compress)
    for step in range(3):
        for name, actual in run.next().items():
            assert_allclose(actual, mean(name, any_comm.size, step), atol=tolerance)
            assert len({y.tobytes() for y in any_comm.allgather(actual)}) == 1


def _errors(compress, comm):
    """Returns the errors that a compression stores for later steps, by the names under which they
    are saved."""
    saved = DictionarySerializer()
    compress.serialize(saved, comm)
    return compression.serialize_arrays(NpzDeserializer(saved.target)["errors"], {})


@pytest.mark.parametrize("make", [lambda: compression.TopK(0.05), lambda: compression.PowerSGD(2)])
def test_what_is_lacking_comes_later(any_comm, make):
    """The sum of all steps so far lacks only the errors that the ranks still store."""
    if any_comm.size == 1:
        pytest.skip("needs two ranks, because one sends nothing")
    compress = make()
    run = Run(any_comm, compress)
    sums = {name: 0 for name in SHAPES}
    for step in range(6):
        for name, actual in run.next().items():
            assert len({y.tobytes() for y in any_comm.allgather(actual)}) == 1
            sums[name] = sums[name] + actual
            expected = sum(mean(name, any_comm.size, s) for s in range(step + 1))
            kept = _errors(compress, any_comm).get(name, np.zeros(SHAPES[name], "float32"))
            kept = on_device(kept)
            kept = any_comm.allreduce(kept).reshape(SHAPES[name])
            assert_allclose(sums[name] + kept, expected, atol=1e-4)


def test_top_k_sends_the_largest(any_comm):
    if any_comm.size == 1:
        pytest.skip("needs two ranks, because one sends nothing")
    gradients = Run(any_comm, compression.TopK(0.01)).next()
    n = sum(int(np.prod(shape)) for shape in SHAPES.values())
    n_sent = sum(np.count_nonzero(x) for x in gradients.values())
    assert int(0.01 * n) <= n_sent <= any_comm.size * int(0.01 * n)
    greatest = max(abs(gradient(name, 0, 0)).max() for name in SHAPES)
    assert max(abs(x).max() for x in gradients.values()) >= greatest / any_comm.size * 0.5


def test_power_sgd_is_exact_where_the_rank_suffices(any_comm):
    left, right = xp.arange(1, 41.0)[:, None], xp.arange(1, 31.0)[None]
    param = Parameter(xp.zeros((40, 30), "float32"))
    reducer = GradientReducer(any_comm, compression=compression.PowerSGD(2))
    reducer.watch({"/W": param})
    for _ in range(2):
        param.grad = ((left * right) * (any_comm.rank + 1)).astype("float32")
        reducer.begin()
        reducer.finish()
        expected = left * right * (any_comm.size + 1) / 2
        assert_allclose(param.grad, expected, rtol=1e-5)


def test_power_sgd_leaves_small_ones_exact(any_comm):
    run = Run(any_comm, compression.PowerSGD(2))
    for step in range(2):
        gradients = run.next()
        for name in ("/b", "/s", "/v"):
            expected = mean(name, any_comm.size, step)
            assert_allclose(gradients[name], expected, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: compression.TopK(0.05), lambda: compression.PowerSGD(2)])
def test_a_snapshot_continues_alike(comm, make):
    run = Run(comm, make())
    for _ in range(3):
        run.next()
    saved = DictionarySerializer()
    run.reducer.serialize(saved)
    other = Run(comm, make())
    other.step = 3
    other.reducer.serialize(NpzDeserializer(saved.target))
    for _ in range(2):
        expected = run.next()
        for name, actual in other.next().items():
            assert_allclose(actual, expected[name], atol=1e-6)


def test_a_rank_gets_back_only_what_it_saved(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks, because one sends nothing")
    run = Run(comm, compression.TopK(0.05))
    run.next()
    saved = DictionarySerializer()
    run.reducer.serialize(saved)
    of_rank_0 = comm.bcast_obj(saved.target)
    other = compression.TopK(0.05)
    other.serialize(NpzDeserializer(of_rank_0)["compression"], comm)
    assert (len(_errors(other, comm)) > 0) == (comm.rank == 0)


def test_wrong_arguments(comm):
    with pytest.raises(ValueError, match=r"TopK: ratio must be above 0 and at most 1, not 0"):
        compression.TopK(0)
    with pytest.raises(ValueError, match=r"PowerSGD: rank must be at least 1, not 0"):
        compression.PowerSGD(0)
    with pytest.raises(
        ValueError, match=r"wire_dtype must be one of None, sparse, float16.* is 'int8'"
    ):
        comm.iallreduce(xp.ones(2), "int8")
    with pytest.raises(ValueError, match=r"is a float array; it is 'float16', for int64"):
        comm.iallreduce(xp.ones(2, np.int64), "float16")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bfloat16_rounds_to_nearest(dtype):
    # The neighbors of 1 are 1 + 2**-7 and 1 - 2**-8; a number halfway is rounded to even.
    x = xp.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, 1e38, np.inf, -np.inf], dtype)
    decoded = BFloat16.decode(BFloat16.encode(x), x.dtype)
    assert decoded.dtype == dtype
    assert_array_equal(decoded[:4], xp.array([1, 1 + 2**-6, 1 + 2**-7, -0.0], dtype))
    assert np.signbit(decoded[3])
    assert_allclose(decoded[4:], x[4:], rtol=2**-8)
    nan = xp.array([np.nan, -np.nan], "float32")
    nan = np.append(nan, xp.array([0x7F800001, 0xFFFFFFFF], "uint32").view("float32"))
    assert xp.isnan(BFloat16.decode(BFloat16.encode(nan), nan.dtype)).all()


def test_bfloat16_keeps_what_it_can_hold():
    patterns = xp.arange(2**16, dtype=np.uint32) << 16
    x = patterns.view(np.float32)
    x = x[xp.isfinite(x)]
    assert_array_equal(BFloat16.decode(BFloat16.encode(x), x.dtype), x)


def test_float16_that_is_too_large_becomes_infinite():
    encoded = Float16.encode(xp.array([1e6, 65504, -1e6]))
    assert encoded.tolist() == [np.inf, 65504, -np.inf]
