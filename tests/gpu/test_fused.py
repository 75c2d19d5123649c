"""Tests formulas with several results in one kernel."""

import numpy as np
import pytest

import mpchain
from mpchain.formulas.writer import fused

pytestmark = pytest.mark.gpu


@fused
def _formula(pair, z):
    x, y = pair
    return [(x * y, np.tanh(z)), np.maximum(x, 0) - 2]


def _check(arguments, n_kernels):
    """Compares results with the host, and counts the kernels of the formula on the double."""
    device = mpchain.get_device("@cupy:0")
    (x, y), z = arguments
    if hasattr(device.xp, "double"):
        device.xp.double.reset()
    (a, b), c = _formula((device.send(x), device.send(y)), device.send(z))
    (a_host, b_host), c_host = _formula.__wrapped__((x, y), z)
    for actual, expected in ((a, a_host), (b, b_host), (c, c_host)):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual.get(), expected, 1e-6, 1e-6)
    if hasattr(device.xp, "double"):
        names = [name for name, _ in device.xp.double.launches]
        assert names.count("mpchain_formula") == n_kernels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_kernel(dtype):
    x, y, z = np.random.randn(3, 4, 5).astype(dtype)
    _check(((x, y), z), 1)
    _check(((x.T, y.T), z.T), 1)


def test_other_shapes_and_dtypes_take_the_formula():
    x, y, z = np.random.randn(3, 4, 5)
    _check(((x, y[0]), z), 0)
    _check(((x, y), z.astype(np.float32)), 0)
