"""Tests that loops for small arrays have the bits of the reference, and when they replace it."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.lib import introspect

import mpchain
from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import numpy_functions
from mpchain.kernels.cpu.small_arrays import WAITING, replaces
from mpchain.kernels.operation import Operation
from mpchain.kernels.window import Window
from tests.kernels.needs import needs_numba

pytestmark = [pytest.mark.slow, needs_numba]
DTYPES = [np.float32, np.float64]
SAMPLES = [(1, 2), (2, 3), (5, 7), (16, 32), (9, 1, 8), (2, 3, 17), (700, 4), (3, 130), (1, 257)]
SAMPLES += [(1, 1027), (2, 1913), (1, 2048), (1, 4095)]
ROWS = [(1, 2), (2, 3), (5, 7), (16, 10), (9, 1, 8), (2, 3, 17), (64, 64), (3, 130), (1, 4095)]
BATCHES = [(1, 2), (5, 7), (300, 5), (256, 128), (2, 3, 17), (4, 8, 8, 8), (2, 2, 3, 3)]
BATCHES += [(1, 3, 12, 12), (7, 2, 1, 2), (1, 2, 300), (1, 2, 4001)]


@pytest.fixture(autouse=True)
def at_once():
    """Compiles the loops when they are first called."""
    with thresholds.using(compiled_loop=-1), np.errstate(all="ignore"):
        yield


def have_the_bits_of_the_reference(name, *args):
    """Returns the results of the reference, after a comparison with those of the loop."""
    operation = kernels.operations[name]
    operation(*args)  # computes the reference, after which the loop takes over
    assert operation.select(*args).library == "numba_small"
    expected, found = operation.kernels[-1].compute(*args), operation(*args)
    several = isinstance(expected, tuple)
    for x, y in zip(*([found, expected] if several else [[found], [expected]]), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        # signs of NaN have no meaning, and processors choose them
        assert np.where(x == x, x, np.nan).tobytes() == np.where(y == y, y, np.nan).tobytes()
    return expected


def arrays(shape, dtype, unusual):
    random = np.random.RandomState(0)
    x, g = (random.randn(*shape).astype(dtype) for _ in range(2))
    x[0] = g[0] = -0.0
    x.reshape(-1)[-1], g.reshape(-1)[0] = unusual, 1 / unusual
    return x, g, random


@pytest.mark.parametrize("unusual", [2.0, np.inf, np.nan, 1e-42, 3e38])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SAMPLES)
def test_samples(shape, dtype, unusual):
    x, g, random = arrays(shape, dtype, unusual)
    gamma, beta = random.randn(2, shape[-1]).astype(dtype)
    statistics = have_the_bits_of_the_reference(
        "sample_normalization", x, gamma, beta, (-1,), 1e-5
    )[1:]
    have_the_bits_of_the_reference("sample_normalization_gradient", g, x, gamma, *statistics, (-1,))


@pytest.mark.parametrize("unusual", [2.0, np.inf, np.nan, 1e-42, 3e38])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", BATCHES)
def test_batches(shape, dtype, unusual):
    x, g, random = arrays(shape, dtype, unusual)
    of_channels = (1, shape[1], *[1] * (len(shape) - 2))
    gamma, beta = random.randn(2, *of_channels).astype(dtype)
    axis = (0, *range(2, len(shape)))
    statistics = have_the_bits_of_the_reference("batch_normalization", x, gamma, beta, axis, 1e-5)
    numbers = gamma, *statistics[1:3], axis
    have_the_bits_of_the_reference("batch_normalization_gradient", g, x, *numbers)


@pytest.fixture
def functions_of_numpy():
    """Checks that compiled loops have NumPy's exponentials and logarithms. Where NumPy does not
    compute them by AVX2, the test is skipped if they differ."""
    reason = numpy_functions.why_not()
    of_exp = introspect.opt_func_info(func_name="^exp$", signature="float32")["exp"]["ff"]
    if reason and of_exp["current"] not in ("X86_V3", "FMA3__AVX2"):
        pytest.skip(f"{reason}, for {of_exp['current']}")
    assert reason is None


@pytest.mark.parametrize("unusual", [2.0, np.inf, -np.inf, np.nan, -np.nan, 1e-42, 3e38, -3e38])
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.usefixtures("functions_of_numpy")
def test_rows_of_exponentials(shape, unusual):
    x, g, random = arrays(shape, np.float32, unusual)
    x *= random.choice([1, 60], size=(*shape[:-1], 1)).astype("f")
    last = x.ndim - 1
    for scale in (1.0, 0.125, 3):
        y = have_the_bits_of_the_reference("softmax", x, last, scale)
        have_the_bits_of_the_reference("softmax_gradient", g, y, last, scale)
    y = have_the_bits_of_the_reference("log_softmax", x, -1)
    have_the_bits_of_the_reference("log_softmax_gradient", g, y, -1)
    if x.ndim == 2:
        have_the_bits_of_the_reference("exponentials", x)


@pytest.mark.parametrize("unusual", [2.0, np.inf, -np.inf, np.nan, 1e-42])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "size, ksize, stride, pad",
    [
        ((3, 4, 8, 8), (2, 2), (2, 2), (0, 0)),
        ((2, 3, 7, 9), (3, 2), (2, 2), (1, 0)),
        ((1, 2, 5, 6), (2, 1), (1, 1), (1, 0)),
        ((2, 3, 11), (3,), (2,), (1,)),
    ],
)
def test_pooling(size, ksize, stride, pad, dtype, unusual):
    x, *_ = arrays(size, dtype, unusual)
    out = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size[2:], ksize, stride, pad))
    window = Window(ksize, stride, pad, (1,) * len(ksize), 1, size[2:], out)
    y, places = have_the_bits_of_the_reference("max_windows", x, window)
    have_the_bits_of_the_reference("place_in_windows", y * dtype(0.3), places, window)


def test_sums_of_three_windows_are_refused():
    window = Window((3,), (1,), (0,), (1,), 1, (5,), (3,))
    places = np.zeros((2, 2, 3, 1), np.int32)[..., 0]
    explained = kernels.explain("place_in_windows", np.ones((2, 2, 3), "f"), places, window)
    assert "three or more windows" in explained


@pytest.mark.parametrize(
    "change, because",
    [
        (lambda x: (x, 0), "last axis"),
        (lambda x: (x[:, ::2], 1), "gaps"),
        (lambda x: (x[:, :1].copy(), 1), "rows of one element"),
        (lambda x: (x[0], 0), "rows of one element"),
        (lambda x: (x, 1, np.float64(2)), "precision"),
    ],
)
def test_softmax_in_another_order_is_refused(change, because):
    assert because in kernels.explain("softmax", *change(np.ones((4, 8), np.float32)))


def compared_with_numpy(x):
    """Returns how many exponentials and logarithms of loops differ from those of NumPy."""
    found = np.empty_like(x), np.empty_like(x)
    numpy_functions.compared_loop()(x, *found)
    n_wrong = 0
    for y, expected in zip(found, (np.exp(x), np.log(x))):
        n_wrong += int(
            (y.view("i") != expected.view("i"))[~(np.isnan(y) & np.isnan(expected))].sum()
        )
    return n_wrong


def test_exponentials_and_logarithms_are_exact_to_three_units_everywhere():
    x = np.arange(0, 1 << 32, 1021, dtype=np.uint32).view("f")
    found = np.empty_like(x), np.empty_like(x)
    numpy_functions.compared_loop()(x, *found)
    for y, function in zip(found, (np.exp, np.log), strict=True):
        right = function(x.astype("d"))
        rounded = right.astype("f")
        is_finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~is_finite], rounded[~is_finite])
        unit = np.spacing(np.abs(rounded[is_finite])).astype("d")
        assert (np.abs(y[is_finite] - right[is_finite]) <= 3 * unit).all()


@pytest.mark.usefixtures("functions_of_numpy")
def test_exponentials_and_logarithms():
    assert compared_with_numpy(np.arange(0, 1 << 32, 1021, np.uint32).view("f")) == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("functions_of_numpy")
def test_exponentials_and_logarithms_of_all_numbers():
    part = np.arange(1 << 24, dtype=np.uint32)
    for i in range(256):
        assert compared_with_numpy((part + np.uint32(i << 24)).view("f")) == 0


# The second of two processes with one cache compiles some loops before it loads others.
_OF_CACHE = """
import sys
import numpy as np
from mpchain.kernels.cpu.compiler import compile_written_loop
from mpchain.kernels.cpu.small_arrays import compiled_with_sums

n_others, *factors = sys.argv[1:]
for i in range(int(n_others)):
    compile_written_loop("other", f"def run(x):\\n    x[0] = {i}")(np.zeros(1))
x, y = np.random.RandomState(0).randn(1000), np.zeros(2)
for factor in factors:
    compiled_with_sums(f"def add(x, y):\\n    y[:] = {factor} * pairwise(x, 0, x.size)")(x, y)
    print((y == int(factor) * x.sum()).all())
"""


def printed(text, folder, *words):
    """Returns the words that a process prints whose loops are cached in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", text, *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_loops_from_the_cache_call_the_right_sums(tmp_path):
    for words in ("0", "2"), ("3", "4", "2"):
        assert printed(_OF_CACHE, tmp_path, *words) == ["True"] * (len(words) - 1)


_OF_START = """
import sys
import numpy as np
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.compiler import Switch, compile_written_loop

def loop():
    return compile_written_loop("a test", "def run(x):\\n    x[0] = 7")

if sys.argv[1:]:
    loop()(np.zeros(1))
else:
    with thresholds.using(compiled_loop=6400, loaded=64):
        first, second = Switch(), Switch()
        print(first.is_due(200, loop), "numba" in sys.modules)
        print(second.is_due(6300, lambda: compile_written_loop("new", "def new(x):\\n    pass")))
        print(first.is_due(1, loop), "numba" in sys.modules)
"""


def test_numba_is_imported_when_all_loops_together_pay_for_it(tmp_path):
    assert printed(_OF_START, tmp_path, "compile") == []
    assert printed(_OF_START, tmp_path) == ["False", "False", "False", "True", "True"]


_OF_SHORT_RUN = """
import sys
import numpy as np
import mpchain
from mpchain import functions as F, links as L

model = mpchain.Sequential(L.Linear(32, 32), L.LayerNormalization(32), F.relu).repeat(20)
optimizer = mpchain.optimizers.Adam().setup(model)
x, t = np.ones((16, 32), np.float32), np.zeros(16, np.int32)
for _ in range(50):
    optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
print("numba" in sys.modules)
"""


def test_a_short_run_compiles_nothing(tmp_path):
    assert printed(_OF_SHORT_RUN, tmp_path) == ["False"]


@pytest.mark.parametrize(
    "shape, axis, because",
    [
        ((3, 1), (0,), "one channel"),
        ((3, 4, 1), (0, 2), "one element"),
        ((3, 4), (1,), "other channels"),
        ((0, 4), (0,), "empty"),
        ((1, 4, 3000), (0, 2), "too large"),
    ],
)
def test_sums_in_another_order_are_refused(shape, axis, because):
    kept = tuple(1 if i in axis else n for i, n in enumerate(shape))
    x, ones = np.ones(shape, np.float32), np.ones(kept, np.float32)
    assert because in kernels.explain("batch_normalization", x, ones, ones, axis, 1e-5)


def test_arrays_with_gaps_are_refused():
    x, ones = np.ones((4, 8), np.float32)[:, ::2], np.ones(4, np.float32)
    for args in ((x, ones, ones), (np.ones((4, 4), np.float32), np.ones(8, np.float32)[::2], ones)):
        assert "gaps" in kernels.explain("sample_normalization", *args, (-1,), 1e-5)


@pytest.mark.parametrize(
    "name, axis", [("batch_normalization", (0,)), ("sample_normalization", (-1,))]
)
def test_eps_of_another_precision_is_refused(name, axis):
    x, ones = np.ones((4, 8), np.float32), np.ones((1, 8), np.float32)
    gamma = ones if axis == (0,) else ones[0]
    assert "precision" in kernels.explain(name, x, gamma, gamma, axis, np.float64(1e-5))


def doubling(of_loop):
    """Returns an operation with a kernel, and a list of the calls of both."""
    calls = []

    @Operation
    def twice(x):
        calls.append("reference")
        return x + x

    @replaces(twice, 3, lambda x: "the loop", lambda x: None)
    def twice_in_a_loop(x):
        calls.append("kernel")
        return of_loop(x)

    return twice, calls


def test_a_loop_takes_over_when_the_reference_has_taken_as_long():
    twice, calls = doubling(lambda x: 2 * x)
    x = np.ones(5)
    with thresholds.using(compiled_loop=4 * 3 << 9, loaded=1):  # 3 calls count as 3 << 9 elements
        for i in range(7):
            assert twice(x).sum() == 10
            assert (WAITING in twice.explain(x)) == (i < 4)
        twice(np.ones((2, 3)))
    # both are compared for each shape
    first = ["kernel", "reference", "kernel"]
    assert calls == ["reference"] * 5 + first + ["kernel"] + first


@pytest.mark.annex("captured")
def test_a_loop_takes_over_in_a_captured_step():
    twice, calls = doubling(lambda x: 2 * x)
    step = mpchain.capture(lambda x: twice(x) + 1)
    with thresholds.using(compiled_loop=4 * 3 << 9, loaded=1):
        for i in range(9):
            assert (step(np.full(5, i, np.float32)) == 2 * i + 1).all()
    assert step.reason is None
    assert calls[-1] == "kernel" and calls.count("reference") == 6


def test_a_loop_with_other_bits_is_refused():
    twice, calls = doubling(lambda x: np.nextafter(2 * x, math.inf))
    for _ in range(3):
        assert twice(np.ones(5)).sum() == 10
    assert calls == ["reference", "kernel", *["reference"] * 3]
    assert "differ on this machine" in twice.explain(np.ones(5))
