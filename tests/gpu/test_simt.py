"""Tests the faults that the double finds in CUDA texts, by random orders of threads and records of
every access."""

import re

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import kernels
from mpchain.backends import cuda
from mpchain.kernels.gpu import cuda_reductions, cuda_steps
from mpchain.testing.kernel_cases import CASES, arguments

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _double(double, new_reductions):
    yield
    assert double.not_noted == {}


def _send(value):
    return cuda.cupy.asarray(value) if isinstance(value, np.ndarray) else value


def _random(*shape):
    return np.random.uniform(-2, 2, shape)


# There are more sums than a block has groups, along rows, columns and channels.
ROWS, COLUMNS, KEPT = (40, 33), (33, 40), (1, 70, 1, 1)
MEAN = _random(40, 1), np.abs(_random(40, 1)) + 0.5
OPERATIONS = {
    "softmax": (_random(*ROWS), 1),
    "softmax_gradient": (_random(*COLUMNS), _random(*COLUMNS), 0),
    "log_softmax": (_random(*COLUMNS), 0),
    "log_softmax_gradient": (_random(*ROWS), _random(*ROWS), 1),
    "batch_normalization": (
        *(_random(3, 70, 2, 3), _random(*KEPT), _random(*KEPT)),
        *((0, 2, 3), 1e-3),
    ),
    "batch_normalization_gradient": (
        *(_random(*COLUMNS), _random(*COLUMNS), *(_random(1, 40) for _ in range(3))),
        (0,),
    ),
    "sample_normalization": (_random(*ROWS), _random(33), _random(33), (-1,), 1e-3),
    "sample_normalization_gradient": (_random(*ROWS), _random(*ROWS), _random(33), *MEAN, (-1,)),
}


def _run(operation, dtype):
    send = lambda x: _send(x.astype(dtype)) if isinstance(x, np.ndarray) else x
    given = [send(x) for x in OPERATIONS[operation]]
    (kernel,) = (k for k in kernels.operations[operation].kernels if k.library == "cuda_reductions")
    assert kernel.refuse(*given) is None
    return kernel.compute(*given)


DTYPES = [np.float16, np.float32, np.float64]
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
STATISTICS_KERNEL = next(
    each for each in vars(cuda_reductions).values() if isinstance(each, cuda_reductions.SumKernel)
)
N_BARRIERS = STATISTICS_KERNEL.text("efff", "f").count("__syncthreads();")


@pytest.mark.parametrize(
    "operation, dtype",
    [
        pytest.param(operation, dtype, id=f"{operation}-{dtype.__name__}")
        for operation in OPERATIONS
        for dtype in DTYPES[operation.startswith("sample") :]
    ],
)
@pytest.mark.parametrize("barrier", range(N_BARRIERS))
def test_a_barrier_that_is_missing_is_found(barrier, operation, dtype, set_reductions):
    """The last barrier keeps the sums of a block until the next round of its grid-stride loop."""

    def change(text):
        parts = text.split("__syncthreads();")
        parts[barrier : barrier + 2] = [";".join(parts[barrier : barrier + 2])]
        return "__syncthreads();".join(parts)

    set_reductions(change, _BLOCKS=1)
    with pytest.raises(RuntimeError, match=r"without a barrier|nobody wrote|depend on the order"):
        _run(operation, dtype)


@ALL_DTYPES
@pytest.mark.parametrize("by", [1, -1])
def test_an_index_off_by_one_is_found(by, dtype, set_reductions):
    near = "+ place * shape.near"
    set_reductions(lambda text: text.replace(f"{near};", f"{near} + {by};"))
    with pytest.raises(RuntimeError, match="outside of the arrays"):
        _run("softmax", dtype)


@ALL_DTYPES
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("n_blocks", [1, 2])
def test_blocks_that_go_on_to_other_sums(n_blocks, operation, dtype, set_reductions):
    """No shape of the other tests has more sums than a grid has blocks."""
    set_reductions(_BLOCKS=n_blocks)
    for case in CASES[operation]:
        given = arguments(operation, case, dtype, send=_send)
        *others, reference = kernels.operations[operation].kernels
        for kernel in others:
            if kernel.library != "cuda_reductions" or kernel.refuse(*given) is not None:
                continue
            right = reference.compute(*given)
            found = kernel.compute(*given)
            pairs = zip(found, right) if isinstance(right, tuple) else [(found, right)]
            tolerance = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]
            for a, b in pairs:
                a, b = a.get(), b.get()
                atol = tolerance * max(1, np.abs(b).max(initial=0))
                np.testing.assert_allclose(a, b, tolerance, atol, case)


PARTS = {
    "batch_normalization": (
        *(_random(7, 3, 5, 6), *(_random(1, 3, 1, 1) for _ in "ab")),
        (0, 2, 3),
    ),
    "channels last": (*(_random(300, 3), *(_random(1, 3) for _ in "ab")), (0,)),
}


@ALL_DTYPES
@pytest.mark.parametrize("name", PARTS)
def test_sums_in_parts_are_those_of_all(name, dtype, set_reductions):
    """The last part may have fewer elements, or none."""
    x, gamma, beta, axis = PARTS[name]
    g, x, gamma, beta = (_send(v.astype(dtype)) for v in (_random(*x.shape), x, gamma, beta))
    found = []
    for n_parts in (1, 2, 4, 11):
        set_reductions(_parts=lambda most=n_parts, **shape: most)
        _, *kept = _normalized = kernels.batch_normalization(x, gamma, beta, axis, 1e-5)
        given = g, x, gamma, *kept[:2], axis
        gradients = kernels.batch_normalization_gradient(*given)
        found.append([v.get() for v in (*_normalized, *gradients)])
    wanted = kernels.batch_normalization.kernels[-1].compute(
        *(v.get().astype(float) for v in (x, gamma, beta)), axis, 1e-5
    )
    tolerance = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    for arrays in found:
        for a, b in zip(arrays, wanted):
            np.testing.assert_allclose(a, b, tolerance, tolerance)
        for a, b in zip(arrays, found[0], strict=True):
            np.testing.assert_allclose(a, b, tolerance, tolerance * np.abs(b).max())


def test_kernels_are_compiled_for_the_threads_that_run_them(double):
    """A bound of 1,024 threads would leave each thread only 64 registers."""
    double.reset()
    cuda_reductions.sum_columns(_send(np.ones((300, 64), "f")), 0, False)
    F.layer_normalization(*map(_send, (np.ones((30, 64), "f"), np.ones(64, "f"), np.ones(64, "f"))))
    bounds = {
        name: re.search(r"__launch_bounds__\((\d+)", text)[1]
        for (name, _), text in double.kernels.items()
        if "__launch_bounds__" in text
    }
    columns = {bound for name, bound in bounds.items() if "column" in name}
    rows = {bound for name, bound in bounds.items() if "column" not in name}
    assert columns == {"1024"} and rows == {"256"}


def test_which_sums_are_computed_in_parts(double, set_reductions):
    """Statistics and gradients of a batch, and losses, are long sums, computed in parts."""
    draw = np.random.RandomState(0)
    values = draw.randn(40, 5).astype("f"), np.ones(5, "f"), np.ones(5, "f")
    t, found = draw.randint(-1, 5, 40), []
    for n_parts in (1, 3):
        set_reductions(_parts=lambda most=n_parts, **shape: most)
        double.reset()
        variables = [mpchain.Variable(_send(value)) for value in values]
        loss = F.softmax_cross_entropy(F.batch_normalization(*variables), _send(t))
        loss.backward()
        found.append([loss.array.get(), *(v.grad.get() for v in variables)])
        names = {name for name, _ in double.launches}
        for sums in ("statistics", "parameter_gradients", "mean_loss"):
            assert (f"mpchain_{sums}_of_parts" in names) == (n_parts > 1)
            assert (f"mpchain_{sums}_from_parts" in names) == (n_parts > 1)
    variables = [mpchain.Variable(value) for value in values]
    loss = F.softmax_cross_entropy(F.batch_normalization(*variables), t)
    loss.backward()
    for arrays in found:
        for a, b in zip(arrays, [loss.array, *(v.grad for v in variables)], strict=True):
            np.testing.assert_allclose(a, b, 1e-4, 1e-6)


@pytest.mark.parametrize("n", [8192, 10_000_000])
def test_few_iterations_of_each_thread_for_a_loss(n):
    sizes = cuda_reductions.row_sums(1, n)
    parts = cuda_reductions._parts(**sizes)
    _, (n_blocks,), (n_threads,) = cuda_reductions._sized(**sizes, parts=parts)
    assert n / (n_blocks * n_threads) <= 256


def test_an_outlier_that_comes_first_does_not_spoil_the_variance():
    x = np.random.RandomState(0).randn(1, 1, 300, 300).astype(np.float32)
    x[0, 0, 0, 0] = 1e4
    one = cuda.cupy.ones((1, 1, 1, 1), np.float32)
    *_, var = kernels.batch_normalization(_send(x), one, one, (0, 2, 3), 1e-5)
    np.testing.assert_allclose(var.get().ravel(), x.astype(float).var(), 1e-5)


# The shapes are from ResNet-50 with 64 images, and GPT-2 small with 8 texts of 1,024 words: (N,
# channels, size).
STATISTICS = [(64, c, s * s) for c, s in ((64, 112), (64, 56), (256, 56), (128, 28), (512, 28))]
STATISTICS += [(64, c, s * s) for c, s in ((256, 14), (1024, 14), (512, 7), (2048, 7))]


@pytest.mark.parametrize("shape", [*STATISTICS, (8192, 768, 1), (8192, 3072, 1), (8192, 1, 1)])
def test_few_iterations_of_each_thread(shape):
    """A thread that loads 3,136 elements one after another waits 3,136 times."""
    sizes = cuda_reductions._channels(*shape)
    parts = cuda_reductions._parts(**sizes)
    _, (n_blocks,), (n_threads,) = cuda_reductions._sized(**sizes, parts=parts)
    n_elements = shape[0] * shape[1] * shape[2]
    assert n_elements / (n_blocks * n_threads) <= 256
    assert n_blocks >= 128 or n_elements < 1 << 18
    if parts > 1:  # the second kernel joins the parts
        joined = cuda_reductions._channels(parts, shape[1], 1)
        _, (n_blocks,), (n_threads,) = cuda_reductions._sized(**joined)
        assert parts * shape[1] / (n_blocks * n_threads) <= 256


SUMS = [((300, 7), 0), ((5, 6, 7), (0, 1)), ((7, 3, 5, 6), (0, 2, 3)), ((3, 5, 6), (-3,))]


@ALL_DTYPES
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape, axis", SUMS)
def test_sums_of_columns(shape, axis, keepdims, dtype, double, set_reductions):
    x = _random(*shape).astype(dtype)
    right = x.astype(float).sum(axis=axis, keepdims=keepdims)
    tolerance = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    for n_parts, names in ((1, ["column_sums"]), (3, ["column_sums_of", "column_sums_from"])):
        set_reductions(_parts=lambda most=n_parts, **shape: most)
        given = _send(x)
        double.reset()
        y = F.sum(given, axis, keepdims).array
        names = [f"mpchain_{name}{'_parts' * (n_parts > 1)}" for name in names]
        assert sorted(name for name, _ in double.launches) == sorted(names)
        assert y.dtype == dtype and y.shape == right.shape
        np.testing.assert_allclose(y.get(), right, tolerance, tolerance * np.abs(right).max())


@pytest.mark.parametrize(
    "x, axis",
    [
        (_random(4, 5), 1),
        (_random(4, 5), None),
        (_random(4, 5).T, 0),
        (_random(2, 3, 4), (0, 2)),
        (np.arange(6).reshape(2, 3), 0),
        (_random(0, 3), 0),
        (_random(2, 3, 4, 5), (0, 2)),
    ],
)
def test_sums_that_are_left_to_cupy(x, axis, double):
    given = _send(x)
    double.reset()
    y = F.sum(given, axis).array
    is_own = any(name.startswith("mpchain_column_sums") for name, _ in double.launches)
    assert is_own == (axis == (0, 2) and x.ndim == 3)
    np.testing.assert_allclose(y.get(), x.sum(axis))


def _kernel(body, n=64, block=32, n_blocks=2):
    """Runs statements on int* x with n elements."""
    text = f'extern "C" __global__ void own(int* x) {{ {body} }}'
    x = cuda.cupy.zeros(n, np.int32)
    cuda.cupy.RawKernel(text, "own")((n_blocks,), (block,), (x,))
    return x.get()


MINE = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
FAULTS = {
    "a write outside of the arrays": f"{MINE} x[i + 1] = i;",
    "a read outside of the arrays": "if (!threadIdx.x && !blockIdx.x) { int y = x[-1]; x[0] = y; }",
    "two writes without a barrier": "x[threadIdx.x] = 1;",
    "a read of shared memory that nobody wrote": (
        f"__shared__ int s[32]; {MINE} int y = s[threadIdx.x]; __syncthreads(); x[i] = y;"
    ),
    r"a read without a barrier after a write|a write without a barrier after a read": (
        f"__shared__ int s[32]; {MINE} s[threadIdx.x] = i; __syncthreads(); "
        "int y = s[31 - threadIdx.x]; s[threadIdx.x] = y; x[i] = y;"
    ),
    "threads that end while others wait": (f"{MINE} if (threadIdx.x) __syncthreads(); x[i] = i;"),
    "threads at two barriers": (
        f"{MINE} if (threadIdx.x) {{ __syncthreads();\n}} else {{\n __syncthreads(); }} x[i] = i;"
    ),
    "its results depend on the order": (
        f"{MINE} if (!i) atomicOr(x, 1); else x[i] = atomicOr(x, 0);"
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults(message):
    with pytest.raises(RuntimeError, match=message):
        _kernel(FAULTS[message])


def test_what_is_right():
    np.testing.assert_array_equal(_kernel(f"{MINE} x[i] = i;"), np.arange(64))
    reverse = f"__shared__ int s[32]; {MINE} s[threadIdx.x] = i; __syncthreads(); "
    reverse += "x[i] = s[31 - threadIdx.x];"
    np.testing.assert_array_equal(_kernel(reverse), np.arange(64).reshape(2, 32)[:, ::-1].ravel())
    assert _kernel("atomicOr(x, 1 << threadIdx.x);")[0] == -1
    assert _kernel("atomicAdd(x, 1);")[0] == 64


def test_flags_are_set_by_all_threads_without_a_race():
    bad = cuda.cupy.full(5000, np.nan, np.float32)
    names, found = cuda_steps.find_not_finite([("a", bad), ("b", cuda.cupy.ones(70, np.float32))])
    assert dict(zip(names, found.get()[1:].tolist())) == {"a": 1, "b": 0} and found[0] == 1


@pytest.mark.parametrize("dtype, is_zero", [(np.float32, True), (np.float64, False)])
def test_subnormal_numbers_are_zero_in_single_precision(dtype, is_zero):
    """CuPy compiles kernels that replace subnormal float32 numbers with zero. (Subnormal float16
    numbers stay, because they are normal in float32.)"""
    tiny = cuda.cupy.full(4, np.finfo(dtype).smallest_subnormal, dtype)
    twice = cuda.cupy.ElementwiseKernel("T x", "T y", "y = x * (T)2", "twice")(tiny)
    assert (float(twice[0]) == 0) == is_zero
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    text = f'extern "C" __global__ void own(const {kind}* x, {kind}* y) {{ *y = *x * ({kind})2; }}'
    y = cuda.cupy.ones(1, dtype)
    cuda.cupy.RawKernel(text, "own")((1,), (1,), (tiny, y))
    assert (float(y[0]) == 0) == is_zero
