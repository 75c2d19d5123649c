"""Tests steps of recurrent cells by compiled loops, and products with packed matrices, against
NumPy."""

import itertools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.kernels import recurrence, thresholds
from mpchain.kernels.cpu import numba_cells, onednn, onednn_matmul
from tests.kernels.needs import needs_numba, needs_onednn

pytestmark = pytest.mark.slow
LENGTHS = [(4, 4, 4, 4, 4), (5, 5, 5, 5, 3, 3, 1), (1,)]
UNITS = 7
CELLS = {"lstm": (recurrence.Lstm, 4, 2), "gru": (recurrence.Gru, 3, 1)}


def _layer(name, lengths, dtype, scale=1.0):
    cell, n_gates, n_states = CELLS[name]
    random = np.random.RandomState(0)
    draw = lambda *shape: random.randn(*shape).astype(dtype)
    rows = sum(lengths)
    x = scale * draw(rows, n_gates * UNITS)
    matrices = [draw(n_gates * UNITS, UNITS)] + [draw(n_gates * UNITS)] * (name == "gru")
    states = [draw(lengths[0], UNITS) for _ in range(n_states)]
    gys = [draw(rows, UNITS), *(draw(lengths[0], UNITS) for _ in range(n_states))]
    ends = list(itertools.accumulate(lengths))
    spans = [slice(end - n, end) for n, end in zip(lengths, ends)]
    return cell, spans, x.astype(dtype), matrices, states, gys


def _all_results(name, lengths, dtype, least, is_backwards=False, scale=1.0):
    cell, spans, x, matrices, states, gys = _layer(name, lengths, dtype, scale)
    spans = spans[::-1] if is_backwards else spans
    given = [x, *matrices, *states, *gys]
    copies = [array.copy() for array in given]
    with thresholds.using(compiled_cells=least):
        ys, kept = cell.forward(spans, x, *matrices, *states)
        gxs = cell.backward(spans, gys, kept, *matrices)
    for array, copy in zip(given, copies):
        np.testing.assert_array_equal(array, copy, "an argument was changed")
    return [*ys, *gxs]


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_backwards", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", CELLS)
def test_loops_compute_what_numpy_does(name, lengths, is_backwards, dtype):
    tolerance = {np.float32: 3e-6, np.float64: 1e-14}[dtype]
    found, expected = (
        _all_results(name, lengths, dtype, least, is_backwards) for least in (0, np.inf)
    )
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, tolerance, tolerance * abs(y).max())


@needs_numba
@pytest.mark.parametrize("name", CELLS)
def test_the_loops_write_all_of_their_memory(name, request):
    expected = _all_results(name, LENGTHS[1], np.float32, 0)
    memory = request.getfixturevalue("memory")
    for x, y in zip(_all_results(name, LENGTHS[1], np.float32, 0), expected):
        np.testing.assert_array_equal(x, y)
    assert memory.buffers and not memory.has_broken_fences()


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CELLS)
def test_extreme_gates_give_the_limits_of_the_functions(name, dtype):
    found, expected = (
        _all_results(name, LENGTHS[1], dtype, least, scale=1e4) for least in (0, np.inf)
    )
    for x, y in zip(found, expected):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(x, y, 1e-4, 1e-4)


@needs_numba
@pytest.mark.parametrize("name", CELLS)
def test_a_value_that_is_none_stays_in_its_row(name):
    cell, spans, x, matrices, states, _ = _layer(name, LENGTHS[0], np.float32)
    x[1, 2] = np.nan
    with thresholds.using(compiled_cells=0):
        y = cell.forward(spans, x, *matrices, *states)[0][0]
    assert np.isnan(y[1]).any() and np.isfinite(y[[0, 2, 3]]).all()


@needs_numba
@pytest.mark.parametrize("name", CELLS)
def test_small_gates_keep_their_digits(name):
    # The hyperbolic tangent of a tiny number is this number.
    step = numba_cells.compiled_step
    with thresholds.using(compiled_cells=0):
        assert step(name, [np.ones((2, 4), np.float32)]) is not None
        assert step(name, [np.ones((2, 4), np.float16)]) is None
        with mpchain.using_config("kernels", ("reference",)):
            assert step(name, [np.ones((2, 4), np.float32)]) is None
    cell, spans, x, matrices, states, _ = _layer(name, (2, 2), np.float32)
    matrices, states = [0 * m for m in matrices], [0 * s for s in states]
    x *= np.float32(1e-30)
    with thresholds.using(compiled_cells=0):
        y = cell.forward(spans, x, *matrices, *states)[0][0]
    with thresholds.using(compiled_cells=np.inf):
        expected = cell.forward(spans, x, *matrices, *states)[0][0]
    assert (expected != 0).all()
    np.testing.assert_allclose(y, expected, 1e-6)


@needs_numba
@pytest.mark.parametrize("function", [F.n_step_lstm, F.n_step_gru])
def test_derivatives_of_three_orders_agree_with_those_of_numpy(function):
    n = 8 if function is F.n_step_lstm else 6
    random = np.random.RandomState(0)
    draw = lambda *shape: Variable(random.randn(*shape))
    ws = [[draw(2, 3) for _ in range(n // 2)] + [draw(2, 2) for _ in range(n // 2)]]
    bs = [[draw(2) for _ in range(n)]]
    states, xs = [draw(1, 3, 2) for _ in range(n // 6 if n == 6 else 2)], [draw(3, 3), draw(2, 3)]

    def orders():
        y = function(1, 0.0, *states, ws, bs, xs)[-1]
        total = F.sum(F.concat(y, 0) ** 2)
        found = []
        for _ in range(3):
            (gx,) = mpchain.grad([total], [xs[0]], enable_double_backprop=True)
            found.append(gx.array)
            total = F.sum(gx**2)
        return found

    with thresholds.using(compiled_cells=0):
        found = orders()
    for x, y in zip(found, orders()):
        np.testing.assert_allclose(x, y, 1e-9, 1e-9)


@needs_numba
def test_a_captured_layer_computes_what_it_does_eagerly():
    layer = mpchain.links.NStepGRU(1, 5, 6, 0.0)
    random = np.random.RandomState(0)
    batches = [random.randn(4, 3, 5).astype("f") for _ in range(5)]
    step = lambda x: F.sum(layer(None, F.separate(x, axis=0))[0] ** 2)
    captured = mpchain.capture(step)
    with thresholds.using(compiled_cells=0):
        for x in batches:
            np.testing.assert_allclose(captured(x).array, step(x).array, 1e-6)


@needs_onednn
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("n, k, m", [(1, 3, 5), (16, 128, 512), (20, 65, 130), (5, 1, 1)])
def test_packed_matrices_multiply_as_others(n, k, m, is_transposed):
    random = np.random.RandomState(0)
    b = random.randn(m, k).astype("f").T if is_transposed else random.randn(k, m).astype("f")
    multiply = onednn_matmul.packed_matmul(b, n)
    for _ in range(3):
        a, y = random.randn(n, k).astype("f"), np.full((n, m), np.nan, "f")
        multiply(a, y)
        np.testing.assert_allclose(y, a @ b, 1e-5, 1e-5 * np.sqrt(k))


@needs_onednn
def test_a_packed_matrix_is_that_of_its_time():
    # Two matrices of one shape share their primitives, but keep their own values.
    random = np.random.RandomState(0)
    first, second = (random.randn(64, 256).astype("f") for _ in range(2))
    a, y = random.randn(32, 64).astype("f"), np.empty((32, 256), "f")
    packed = [onednn.repeated_product(b, 32) for b in (first, second)]
    for multiply, b in zip(packed, (first, second)):
        assert isinstance(multiply, onednn_matmul._Packed)
        multiply(a, y)
        np.testing.assert_allclose(y, a @ b, 1e-4, 1e-4)


def test_other_matrices_are_multiplied_as_always():
    a = np.random.RandomState(0).randn(3, 4)
    for b in (np.ones((4, 5)), np.ones((4, 5), "f"), np.ones((4, 0), "f")):
        y = np.empty((3, b.shape[1]), b.dtype)
        onednn.repeated_product(b, 3)(a.astype(b.dtype), y)
        np.testing.assert_allclose(y, a @ b, 1e-5)
