"""Tests special functions against PyTorch's values and gradients, and against mpmath."""

import functools
import sys

import mpmath
import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

_S = torch.special
_N = np.array([[1], [2], [3]])
# PyTorch computes derivatives of the digamma function to about 1e-9 of their values.
_POLYGAMMA = {np.float16: 4e-2, np.float64: 2e-9}


def _erfcinv(x):
    return _S.erfinv(1 - x)


class _Polygamma(torch.autograd.Function):
    """PyTorch's polygamma function for several orders."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.cat([torch.polygamma(int(n), x[i : i + 1]) for i, n in enumerate(_N[:, 0])])

    @staticmethod
    def backward(context, g):
        (x,) = context.saved_tensors
        higher = [torch.polygamma(int(n) + 1, x[i : i + 1]) for i, n in enumerate(_N[:, 0])]
        return g * torch.cat(higher)


class _Zeta(torch.autograd.Function):
    """PyTorch's zeta function with the exponent 2.5, which PyTorch cannot differentiate."""

    @staticmethod
    def forward(context, q):
        context.save_for_backward(q)
        return _S.zeta(torch.tensor(2.5), q)

    @staticmethod
    def backward(context, g):
        (q,) = context.saved_tensors
        return g * -2.5 * _S.zeta(torch.tensor(3.5), q)


TABLE = [
    row("erf", F.erf, torch.erf, (3, 4)),
    row("erfc", F.erfc, torch.erfc, (3, 4)),
    row("erfcx", F.erfcx, _S.erfcx, (3, 4), low=-1),
    row("erfinv", F.erfinv, torch.erfinv, (3, 4), low=-0.7, high=0.7),
    row("erfcinv", F.erfcinv, _erfcinv, (3, 4), low=0.3, high=1.7),
    row("ndtr", F.ndtr, _S.ndtr, (3, 4)),
    row("ndtri", F.ndtri, _S.ndtri, (3, 4), low=0.15, high=0.85),
    row("log_ndtr", F.log_ndtr, _S.log_ndtr, (3, 4)),
    row("lgamma", F.lgamma, torch.lgamma, (3, 4), low=0.8, high=4),
    row("digamma", F.digamma, torch.digamma, (3, 4), low=1, high=4, tolerance=_POLYGAMMA),
    row(
        "polygamma",
        functools.partial(F.polygamma, _N),
        _Polygamma.apply,
        (3, 4),
        low=1.5,
        high=4,
        tolerance=_POLYGAMMA,
    ),
    row("zeta", functools.partial(F.zeta, 2.5), _Zeta.apply, (3, 4), low=1.5, high=4),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # The derivative of log_ndtr uses the hazard rate, and the derivatives of erf and ndtr use the
    # bell.
    assert uncovered(TABLE, "special") == {"normal_hazard", "bell"}


@pytest.mark.parametrize(
    "function, reference, low, high",
    [
        (F.erf, mpmath.erf, -5, 5),
        (F.erfc, mpmath.erfc, -5, 20),
        (F.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -5, 50),
        (F.erfinv, mpmath.erfinv, -0.999, 0.999),
        (F.erfcinv, lambda x: mpmath.erfinv(1 - x), 1e-6, 1.999),
        (F.ndtr, mpmath.ncdf, -20, 5),
        (F.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), -20, 5),
        (F.lgamma, lambda x: mpmath.log(abs(mpmath.gamma(x))), -4.7, 50),
        (F.digamma, mpmath.digamma, -4.7, 50),
    ],
    ids=lambda f: getattr(f, "__name__", None),
)
def test_values_and_derivatives_over_the_domain(function, reference, low, high):
    xs = np.linspace(low, high, 41)
    x = Variable(xs)
    y = function(x)
    y.grad = np.ones_like(xs)
    y.backward()
    with mpmath.workdps(60):
        exact = [reference(mpmath.mpf(v)) for v in xs]
        slopes = [mpmath.diff(reference, mpmath.mpf(v)) for v in xs]
    np.testing.assert_allclose(y.array, np.array(exact, float), 1e-11, 1e-14)
    np.testing.assert_allclose(x.grad, np.array(slopes, float), 1e-11, 1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [F.erf, F.erfc, F.ndtr, F.log_ndtr])
def test_large_inputs(function, dtype):
    x = Variable(np.array([-1e4, 1e4], dtype))
    y = function(x)
    y.grad = np.ones_like(x.array)
    y.backward(enable_double_backprop=True)
    first = x.grad_var
    expected = [1e4, 0] if function is F.log_ndtr else [0, 0]
    np.testing.assert_allclose(first.array, expected, 1e-6)
    x.cleargrad()
    first.grad = np.ones_like(x.array)
    first.backward()
    assert np.isfinite(x.grad).all() and np.isfinite(y.array).all()


def test_shapes_broadcast():
    q = Variable(np.array([1.5, 2.5], np.float32))
    y = F.zeta(np.array([[2.0], [3.0], [4.0]]), q)
    assert y.shape == (3, 2) and y.dtype == np.float32
    F.sum(y).backward()
    assert q.grad.shape == (2,) and q.grad.dtype == np.float32
    z = F.polygamma(np.array([[0], [1]]), q)
    np.testing.assert_array_equal(z.array[0], F.digamma(q).array)
    np.testing.assert_array_equal(F.polygamma(1, q).array, z.array[1])
    np.testing.assert_allclose(F.zeta(2, q).array, y.array[0])
    np.testing.assert_array_equal(F.polygamma(Variable(np.array([1, 1])), q).array, z.array[1])


@pytest.mark.parametrize(
    "function", [F.erf, F.erfc, F.erfcx, F.erfinv, F.erfcinv, F.ndtr, F.ndtri, F.log_ndtr, F.lgamma]
)
def test_inputs_of_any_shape_but_floating_point(function):
    for shape in [(), (0, 2)]:
        y = function(Variable(np.full(shape, 0.5, np.float32)))
        assert isinstance(y.array, np.ndarray) and y.shape == shape and y.dtype == np.float32
    with pytest.raises(InvalidType, match=rf"{function.__name__}: .*floating point.*int64"):
        function(np.array([1, 2]))


def test_wrong_inputs():
    x = np.ones(3)
    with pytest.raises(InvalidType, match=r"polygamma: n must hold integers.*float64"):
        F.polygamma(np.ones(3), x)
    with pytest.raises(InvalidType, match=r"polygamma: .*floating point.*int64"):
        F.polygamma(1, np.array([1, 2]))
    with pytest.raises(InvalidType, match=r"polygamma: .*broadcast"):
        F.polygamma(np.ones(2, np.int32), x)
    with pytest.raises(InvalidType, match=r"zeta: .*broadcast"):
        F.zeta(np.ones(2), x)
    with pytest.raises(InvalidType, match=r"zeta: .*floating point.*int64"):
        F.zeta(2.0, np.array([1, 2]))


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(
        ImportError, match=r"erf: SciPy is not installed; install it by pip install 'mpchain\[cpu"
    ):
        F.erf(np.ones(2))
    assert np.isfinite(F.gelu(np.ones(2), "tanh").array).all()
