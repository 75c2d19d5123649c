"""Tests normalization of samples by compiled loops: unusual values, memory, threads and higher
orders."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, kernels
from mpchain.kernels import thresholds
from tests.kernels.needs import needs_numba

pytestmark = [
    pytest.mark.slow,
    needs_numba,
]
DTYPES = [np.float32, np.float64]
SHAPES = {
    "layer": ((64, 150), (150,), (-1,)),
    "groups": ((8, 4, 6, 60), (1, 4, 6, 1), (2, 3)),
}


def kernel_of(operation):
    (kernel,) = (k for k in kernels.operations[operation].kernels if k.library == "numba_cpu")
    return kernel


def arrays(kind, dtype, seed=0):
    shape, of_gamma, axis = SHAPES[kind]
    random = np.random.RandomState(seed)
    x, g = (random.randn(*shape).astype(dtype) for _ in range(2))
    gamma, beta = (random.randn(*of_gamma).astype(dtype) for _ in range(2))
    return x, g, gamma, beta, axis


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SHAPES)
def test_rows_with_unusual_values_stay_by_themselves(kind, dtype):
    x, g, gamma, beta, axis = arrays(kind, dtype)
    tiny = np.finfo(dtype).tiny
    for row, value in enumerate((np.nan, np.inf, -np.inf, 0, 1e6, tiny)):
        if np.isfinite(value):
            x[row] = value + (0 if value == 0 else x[row] * value * 1e-3)
        else:
            x[row].reshape(-1)[3] = value
    x[6] = 5  # this row has no variance
    forward, backward = (
        kernel_of("sample_normalization"),
        kernel_of("sample_normalization_gradient"),
    )
    assert forward.refuse(x, gamma, beta, axis, 1e-5) is None
    with np.errstate(all="ignore"):
        wide = [v.astype(np.float64) for v in (x, gamma, beta)]
        expected = kernels.sample_normalization.kernels[-1].compute(*wide, axis, 1e-5)
        out = np.full_like(x, np.nan)
        found = forward.compute(x, gamma, beta, axis, 1e-5, out=out)
        assert found[0] is out
        tolerance = 2e-4 if dtype == np.float32 else 1e-11
        for y, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, right, tolerance, tolerance * 4)
        mean, inverse_std = found[1:]
        wide = [v.astype(np.float64) for v in (g, x, gamma, mean, inverse_std)]
        expected = kernels.sample_normalization_gradient.kernels[-1].compute(*wide, axis)
        gx = np.full_like(x, np.nan)
        found = backward.compute(g, x, gamma, mean, inverse_std, axis, out=gx)
    assert found[0] is gx
    scale = np.abs(expected[0][np.isfinite(expected[0])]).max()
    np.testing.assert_allclose(gx[:4], expected[0][:4], tolerance, tolerance)
    np.testing.assert_allclose(gx, expected[0], tolerance, tolerance * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_of_parameters_are_of_all_rows(kind, dtype):
    x, g, gamma, beta, axis = arrays(kind, dtype, 1)
    _, mean, inverse_std = kernels.sample_normalization(x, gamma, beta, axis, 1e-5)
    arguments = g, x, gamma, mean, inverse_std
    backward = kernel_of("sample_normalization_gradient")
    wide = [v.astype(np.float64) for v in arguments]
    expected = kernels.sample_normalization_gradient.kernels[-1].compute(*wide, axis)
    for part in (1 << 16, 100, 1000):  # threads get all rows, one row, or some rows
        with thresholds.using(sum_part=part):
            for y, right in zip(backward.compute(*arguments, axis), expected, strict=True):
                assert y.dtype == dtype and y.shape == right.shape
                tolerance = 1e-5 if dtype == np.float32 else 1e-12
                np.testing.assert_allclose(y, right, tolerance, tolerance * 20)


def test_threads_do_not_change_the_bits():
    x, g, gamma, beta, axis = arrays("layer", np.float32, 2)
    backward = kernel_of("sample_normalization_gradient")
    _, *statistics = kernels.sample_normalization(x, gamma, beta, axis, 1e-5)
    found = []
    for n in (0, 1 << 40):
        with thresholds.using(threads=n, sum_part=1000):
            found.append(backward.compute(g, x, gamma, *statistics, axis))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", SHAPES)
def test_three_orders_of_derivatives_are_those_of_the_reference(kind):
    random = np.random.RandomState(3)
    shape = (64, 150) if kind == "layer" else (8, 24, 6, 10)
    x, weight = random.randn(*shape), random.randn(*shape)
    gamma, beta = random.randn(2, shape[1])

    def results():
        v = Variable(x.copy())
        if kind == "layer":
            y = F.layer_normalization(v, gamma, beta)
        else:
            y = F.group_normalization(v, 4, gamma, beta)
        found = [F.sum(y * y * y * weight)]
        for _ in range(3):
            found += mpchain.grad([F.sum(found[-1] * weight)], [v], enable_double_backprop=True)
        return [y.array for y in found]

    by_loops = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    for y, right in zip(by_loops, others, strict=True):
        np.testing.assert_allclose(y, right, 1e-9, 1e-9 * np.abs(right).max())
