"""Tests products of matrices by oneDNN, and its threads."""

import os
import subprocess
import sys

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import onednn, onednn_library
from mpchain.kernels.cpu.onednn_matmul import matmul
from mpchain.kernels.window import Window


@pytest.fixture(autouse=True)
def library():
    if onednn.why_absent():
        pytest.skip(onednn.why_absent())
    return onednn_library.load()


@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
def test_lines_that_displace_each_other_from_the_cache(turns, set_avx512, onednn_threads, memory):
    """Rows of 2 KiB conflict where the elements of a column are multiplied."""
    n, random = 512, np.random.RandomState(0)
    a, b = (random.rand(n, n).astype("f") for _ in "ab")
    right = (a.T if "a" in turns else a) @ (b.T if "b" in turns else b)
    a, b = memory.copy(a), memory.copy(b)
    a, b = a.T if "a" in turns else a, b.T if "b" in turns else b
    conflict = "a" in turns or "b" not in turns
    for threads in (1, 2):
        onednn_threads(threads)
        for has_avx512 in (True, False):
            set_avx512(has_avx512)
            is_slow = conflict and threads == 1 and not has_avx512
            assert (kernels.product.select(a, b).library == "onednn") == (not is_slow)
            y = memory.empty((n, n), "f")
            function, arguments = onednn.prepared_product(a, b, y)
            assert (function is kernels.product) == (conflict and not has_avx512)
            function(*arguments)
            np.testing.assert_allclose(y, right, 1e-5)
            for is_sum in (False, True):
                onednn.multiply(a, b, y, is_sum)
                np.testing.assert_allclose(y, right * (1 + is_sum), 1e-5)
            assert not memory.has_broken_fences()


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 4, 5), (1, 7, 2), (6, 1, 4), (33, 65, 1)])
@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
def test_a_prepared_product_reads_what_the_arrays_have_when_it_is_called(m, k, n, turns):
    random = np.random.RandomState(0)
    a = np.zeros((k, m), "f").T if "a" in turns else np.zeros((m, k), "f")
    b = np.zeros((n, k), "f").T if "b" in turns else np.zeros((k, n), "f")
    y = np.full((m, n), np.nan, "f")
    function, arguments = onednn.prepared_product(a, b, y)
    for _ in range(2):
        a[...], b[...] = random.randn(m, k), random.randn(k, n)
        function(*arguments)
        np.testing.assert_allclose(y, a @ b, rtol=1e-4, atol=1e-5)


def test_a_product_is_written_into_a_part_of_an_array():
    a, b, y = np.ones((2, 3), "f"), np.ones((3, 4), "f"), np.zeros((2, 9), "f")
    function, arguments = onednn.prepared_product(a, b, y[:, 2:6])
    function(*arguments)
    assert y.sum() == y[:, 2:6].sum() == 24


@pytest.mark.parametrize(
    "a, b, y",
    [
        (np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))),
        (np.ones((2, 6), "f")[:, ::2], np.ones((3, 4), "f"), np.ones((2, 4), "f")),
        (np.ones((2, 3), "f"), np.ones((3, 4), "f"), np.ones((4, 2), "f").T),
        (np.ones((0, 3), "f"), np.ones((3, 4), "f"), np.ones((0, 4), "f")),
        (np.ones((1, 2, 3), "f"), np.ones((3, 4), "f"), np.ones((1, 2, 4), "f")),
    ],
    ids=["double", "gaps", "columns", "empty", "stack"],
)
def test_other_arrays_are_not_taken(a, b, y):
    assert onednn.prepared_product(a, b, y) is None


def _matrices(m, k, n):
    random = np.random.RandomState(0)
    return random.randint(-3, 4, (m, k)).astype("f"), random.randint(-3, 4, (k, n)).astype("f")


@pytest.mark.parametrize(
    "threads, taken",
    [
        (1, [(128, 128, 128), (20, 520, 520), (20, 60, 2000), (520, 520, 20)]),
        (2, [(128, 128, 128), (65, 64, 64), (1, 512, 513), (512, 513, 1)]),
    ],
)
@thresholds.using(product_of_avx2=0, long_sums=1 << 40)
def test_large_products_are_onednns(threads, taken, library, onednn_threads):
    onednn_threads(threads)
    for sizes in taken:
        a, b = _matrices(*sizes)
        for x, y in ((a, b), (a.T.copy().T, b), (a, b.T.copy().T)):
            assert kernels.product.select(x, y).library == "onednn"
            np.testing.assert_array_equal(kernels.product(x, y), a.astype(int) @ b.astype(int))
    for sizes in [(64, 64, 64), *[(64, 64, 128)] * (threads == 1)]:
        assert kernels.product.select(*_matrices(*sizes)).library == "reference"


@pytest.mark.parametrize("has_avx512, expected", [(True, "onednn"), (False, "reference")])
def test_products_that_suit_blas(has_avx512, expected, set_avx512, onednn_threads):
    onednn_threads(1)
    set_avx512(has_avx512)
    rows, others = np.empty((130, 200), "f"), np.empty((150, 200), "f")
    for x, y in ((rows.T, rows), (rows, others.T)):
        assert kernels.product.select(x, y).library == expected


def test_products_are_written_where_they_belong():
    a, b = _matrices(130, 130, 130)
    gaps, turned = np.zeros((130, 260), "f")[:, ::2], np.zeros((130, 130), "f").T
    for out in (np.zeros((130, 130), "f"), np.zeros((130, 150), "f")[:, 9:139], gaps, turned):
        assert kernels.product(a, b, out) is out
        np.testing.assert_array_equal(out, a.astype(int) @ b.astype(int))


def test_a_field_of_packed_records_has_gaps():
    a, b = _matrices(130, 130, 130)
    # Neighboring values are 5 bytes apart.
    records = np.zeros(a.shape, [("value", "f"), ("flag", "u1")])
    records["value"] = a
    for x, y in ((records["value"], b), (records["value"].T, b), (b, records["value"])):
        assert kernels.product.select(x, y).library == "reference"
        np.testing.assert_array_equal(kernels.product(x, y), x.astype(int) @ y.astype(int))


def test_linear_maps_of_many_rows_are_onednns():
    x, W = _matrices(130, 130, 130)
    b = np.arange(130, dtype="f")
    for bias, library in ((None, "onednn"), (b, "onednn"), (b.astype(float), "reference")):
        assert kernels.linear.select(x, W, bias).library == library
        right = x.astype(int) @ W.T.astype(int) + (0 if bias is None else bias)
        np.testing.assert_array_equal(kernels.linear(x, W, bias), right)
    gaps = np.arange(260, dtype="f")[::2]
    assert kernels.linear.select(x, W, gaps).library == "onednn"
    np.testing.assert_array_equal(kernels.linear(x, W, gaps), x @ W.T + gaps)


@pytest.mark.parametrize("shape", [(1,), (64, 1), ()])
def test_a_bias_of_another_shape_is_not_read_past_its_end(shape):
    b = np.ones(shape, "f")
    x, W = _matrices(64, 300, 64)[0], _matrices(64, 300, 64)[1].T
    assert kernels.linear.select(x, W, b).library not in ("onednn", "numpy_cpu")
    for k in (3, 1):
        window = Window((k, k), (1, 1), (k // 2, k // 2), (1, 1), 1, (24, 24), (24, 24))
        x, W = np.ones((8, 64, 24, 24), "f"), np.ones((64, 64, k, k), "f")
        selected = kernels.convolution_with_bias.select(x, W, b, window)
        assert selected.library == "reference"


@pytest.mark.parametrize("m, k, n", [(13, 300, 300), (12, 600, 600), (20, 60, 7000), (300, 900, 9)])
def test_linear_maps_of_few_and_of_many_rows(m, k, n):
    x, W = _matrices(m, k, n)
    W = np.ascontiguousarray(W.T)
    b = np.arange(n, dtype="f")
    assert kernels.linear.select(x, W, b).library == "onednn"
    right = x.astype(int) @ W.T.astype(int)
    np.testing.assert_array_equal(kernels.linear(x, W, b), right + b)
    np.testing.assert_array_equal(kernels.linear(x, W, None), right)
    y = np.full((m, n), np.nan, "f")
    function, arguments = onednn.prepared_product(x, W.T, y)
    for _ in range(2):
        function(*arguments)
        np.testing.assert_array_equal(y, right)
        x[0] += 1
        right[0] += W.sum(axis=1).astype(int)


def test_a_prepared_product_in_a_forked_process():
    program = """
import os, numpy as np
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import onednn, onednn_library
x, W, y = np.ones((400, 300), "f"), np.ones((500, 300), "f"), np.zeros((400, 500), "f")
function, arguments = onednn.prepared_product(x, W.T, y)
function(*arguments)
assert (y == 300).all() and onednn_library.n_threads() == 2
child = os.fork()
if not child:
    x[...] = 2
    function(*arguments)
    os._exit(0 if (y == 600).all() and onednn_library.n_threads() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


@pytest.mark.long
def test_signals_during_products_damage_no_memory():
    program = """
import signal, numpy as np
from mpchain.kernels.cpu import onednn
a, y, n = np.ones((300, 300), "f"), np.empty((300, 300), "f"), 0
def count(*_):
    global n
    n += 1
signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
while n < 3000:
    onednn.multiply(a, a, y)
    others = [np.empty(300 * i) for i in range(1, 30)]
    assert (y == 300).all()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("m, k, n", [(3, 4, 5), (13, 1, 7), (1, 6, 1), (20, 33, 2), (70, 130, 90)])
@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
@pytest.mark.parametrize("stack", [(), (5,)])
def test_a_primitive_multiplies_matrices_and_stacks(m, k, n, turns, stack):
    random = np.random.RandomState(0)

    def make(rows, columns, is_turned):
        x = random.randint(-3, 4, (*stack, *((columns, rows) if is_turned else (rows, columns))))
        return x.astype("f").swapaxes(-1, -2) if is_turned else x.astype("f")

    a, b = make(m, k, "a" in turns), make(k, n, "b" in turns)
    y, right = np.full((*stack, m, n), np.nan, "f"), a.astype(int) @ b.astype(int)
    matmul(a, b, y)
    np.testing.assert_array_equal(y, right)
    matmul(a, b, y, is_sum=True)
    np.testing.assert_array_equal(y, 2 * right)
    if not stack:
        bias = np.arange(n, dtype="f")
        matmul(a, b, y, bias)
        np.testing.assert_array_equal(y, right + bias)


WITH_TWO_THREADS = """
import os, threading, numpy as np
import mpchain
from mpchain import functions as F
from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import onednn, onednn_library
from mpchain.kernels.window import Window

library = onednn_library.load()
assert library.threads == library.openmp.omp_get_max_threads() == 2
assert "GOMP_SPINCOUNT" not in os.environ
random = np.random.RandomState(0)
x, W = random.rand(4, 8, 20, 20).astype("f"), random.rand(16, 8, 3, 3).astype("f")
window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (20, 20), (20, 20))
y = random.rand(4, 16, 20, 20).astype("f")
a, b = random.rand(300, 700).astype("f"), random.rand(700, 300).astype("f")

def results():
    assert kernels.convolution_output.select(x, W, window).library == "onednn"
    return [
        kernels.convolution_output(x, W, window).tobytes(),
        kernels.convolution_input(y, W, window).tobytes(),
        kernels.convolution_filter(x, y, window).tobytes(),
        kernels.product(a, b).tobytes(),
    ]

def close(first, second):
    return all(np.allclose(*(np.frombuffer(v, "f") for v in p), 1e-4) for p in zip(first, second))

expected = results()
assert all(results() == expected for _ in range(20))
found = []
threads = [threading.Thread(target=lambda: found.append(results())) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
assert found == [expected] * 3
library.lock.acquire()  # as another thread does when this one forks
child = os.fork()
if not child:
    good = library.threads == 1 and close(results(), expected)
    os._exit(0 if good else 3)
library.lock.release()
assert os.waitpid(child, 0)[1] == 0
assert results() == expected and library.threads == 2
"""


def _run(program, **variables):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_two_threads_compute_the_same_bits_each_time_and_forked_processes_do_without():
    done = _run(WITH_TWO_THREADS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name, value", [("OMP_DYNAMIC", "true"), ("OMP_THREAD_LIMIT", "1")])
def test_it_is_not_used_where_it_would_wait_for_threads_that_never_come(name, value):
    done = _run(
        "from mpchain.kernels.cpu import onednn; print(onednn.why_absent())", **{name: value}
    )
    assert f"{name} " in done.stdout, done.stderr


_BFLOAT16 = mpchain.mixed_bf16.dtype


@pytest.fixture
def has_bfloat16(library):
    if not library.multiplies_bfloat16:
        pytest.skip("needs a processor that multiplies bfloat16")


def _assert_rounded(y, expected):
    """Checks that ``y`` is bfloat16 and differs by at most one unit in its last place."""
    assert y.dtype == _BFLOAT16
    size = np.abs(expected).max()
    np.testing.assert_allclose(y.astype("f"), expected, rtol=2**-7, atol=size * 2**-9)


@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
def test_products_of_bfloat16_are_summed_in_single_precision(has_bfloat16, turns):
    m, k, n = 70, 600, 90
    a, b = (x.astype(_BFLOAT16) for x in _matrices(m, k, n)[:2])
    expected = a.astype("f") @ b.astype("f")
    a = np.ascontiguousarray(a.T).T if "a" in turns else a
    b = np.ascontiguousarray(b.T).T if "b" in turns else b
    assert kernels.product.select(a, b).library == "onednn"
    with thresholds.using(shared=0):
        _assert_rounded(kernels.product(a, b), expected)
        out = np.empty((m, n), _BFLOAT16)
        assert kernels.product(a, b, out) is out
        _assert_rounded(out, expected)
    long = np.ones((1, 4096), _BFLOAT16)  # sums in bfloat16 would stop at 256
    assert float(kernels.product(long, np.ones((4096, 100), _BFLOAT16))[0, 0]) == 4096


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_maps_of_bfloat16_add_the_bias_before_they_round(has_bfloat16, has_bias):
    x, W = (np.ones(shape, _BFLOAT16) for shape in ((70, 600), (90, 600)))
    b = np.full(90, 0.75, _BFLOAT16) if has_bias else None
    assert kernels.linear.select(x, W, b).library == "onednn"
    y = kernels.linear(x, W, b)
    expected = (x.astype("f") @ W.astype("f").T) + (0 if b is None else b.astype("f"))
    assert y.dtype == _BFLOAT16
    np.testing.assert_array_equal(y, expected.astype(_BFLOAT16))


def test_linear_layers_of_bfloat16_have_the_gradients_of_float32(has_bfloat16):
    x, W = (v.astype(_BFLOAT16) for v in _matrices(70, 600, 90)[:2])
    arrays = x, np.ascontiguousarray(W.T), np.ones(90, _BFLOAT16)

    def gradients(arrays):
        variables = [mpchain.Variable(v) for v in arrays]
        y = F.linear(*variables)
        return mpchain.grad([F.sum(F.cast(y, "f") ** 2)], variables)

    narrow = gradients(arrays)
    for g, expected in zip(narrow, gradients([v.astype("f") for v in arrays]), strict=True):
        assert g.dtype == _BFLOAT16
        size = np.abs(expected.array).max()
        np.testing.assert_allclose(g.array.astype("f"), expected.array, atol=size * 2**-6)


def test_without_instructions_bfloat16_is_multiplied_in_float32(library, monkeypatch):
    monkeypatch.setitem(vars(library), "multiplies_bfloat16", False)
    thresholds.forget()
    a, b = (x.astype(_BFLOAT16) for x in _matrices(70, 600, 90)[:2])
    assert kernels.product.select(a, b).library == "reference"
    expected = (a.astype("f") @ b.astype("f")).astype(_BFLOAT16)
    np.testing.assert_array_equal(kernels.product(a, b), expected)
    thresholds.forget()
