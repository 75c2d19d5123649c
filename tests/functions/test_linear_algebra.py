"""Tests inverses, determinants and Cholesky factors."""

import re

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

_EYE = np.eye(3)
# The rounding errors of LAPACK grow with the condition numbers of the matrices.
_CLOSE = {np.float16: 4e-2, np.float32: 2e-4, np.float64: 1e-10}


def _regular(function):
    """Returns a function that is applied to matrices that are far from singular."""
    return lambda x: function(x * 0.5 + _eye_like(x) * 3)


def _definite(function):
    return lambda x: function(x @ (x.mT if isinstance(x, torch.Tensor) else x.T) + _eye_like(x))


def _eye_like(x):
    return torch.eye(3).double() if isinstance(x, torch.Tensor) else x.xp.asarray(_EYE, x.dtype)


TABLE = [
    row("inv", _regular(F.inv), _regular(torch.inverse), (3, 3), tolerance=_CLOSE),
    row("batch_inv", _regular(F.batch_inv), _regular(torch.inverse), (2, 3, 3), tolerance=_CLOSE),
    row("det", _regular(F.det), _regular(torch.det), (3, 3), tolerance=_CLOSE),
    row("batch_det", _regular(F.batch_det), _regular(torch.det), (2, 3, 3), tolerance=_CLOSE),
    row(
        "cholesky",
        _definite(F.cholesky),
        _definite(torch.linalg.cholesky),
        (3, 3),
        low=-1,
        high=1,
        tolerance=_CLOSE,
    ),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "linear_algebra") == set()


def test_the_gradient_of_cholesky_is_symmetric():
    a = Variable(np.array([[4.0, 1.0], [1.0, 3.0]]))
    y = F.cholesky(a)
    y.grad = np.ones((2, 2))
    y.backward()
    np.testing.assert_array_equal(a.grad, a.grad.T)
    assert y.array[0, 1] == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_and_empty_batches(dtype):
    a = np.eye(2, dtype=dtype)
    for function in (F.inv, F.det, F.cholesky):
        assert function(a).dtype == dtype
    for function in (F.batch_inv, F.batch_det):
        x = Variable(np.zeros((0, 2, 2), dtype))
        y = function(x)
        F.sum(y).backward()
        assert y.dtype == dtype and y.shape[0] == 0 and x.grad.shape == (0, 2, 2)


@pytest.mark.parametrize("shape", [(3, 3, 1, 1), (3, 3, 1), (0, 0, 1, 1)])
def test_determinant_of_the_weight_of_a_1x1_convolution(shape):
    values = np.random.RandomState(0).randn(*shape)
    W, matrix = Variable(values), Variable(values.reshape(shape[:2]))
    y, expected = F.det(W), F.det(matrix)
    y.backward(), expected.backward()
    assert y.shape == () and y.array == expected.array
    np.testing.assert_array_equal(W.grad, matrix.grad.reshape(shape))


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 2, 2), (2, 2, 1, 2), (2, 3, 1, 1)])
def test_determinant_of_more_than_one_matrix(shape):
    with pytest.raises(InvalidType, match=r"^det: a must be floating point and have 2 axes"):
        F.det(np.ones(shape))


@pytest.mark.parametrize(
    "function, shape",
    [
        (F.inv, (2, 3)),
        (F.inv, (1, 2, 2)),
        (F.det, (2,)),
        (F.cholesky, (2, 2, 2)),
        (F.batch_inv, (2, 2)),
        (F.batch_det, (2, 2, 3)),
    ],
)
def test_what_is_no_square_matrix(function, shape):
    pattern = (
        rf"{function.__name__}: a must be floating point and have . axes.*{re.escape(str(shape))}"
    )
    with pytest.raises(InvalidType, match=pattern):
        function(np.ones(shape))
    with pytest.raises(InvalidType, match=rf"{function.__name__}: a must be floating .*int64"):
        function(np.ones(shape, np.int64))


def test_matrices_that_have_no_result():
    with pytest.raises(ValueError, match=r"inv: no matrix may be singular: .*\(2, 2\)"):
        F.inv(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"inv: no matrix may be singular"):
        F.batch_inv(np.zeros((1, 2, 2)))
    with pytest.raises(ValueError, match=r"cholesky: a must be positive definite: .*\(2, 2\)"):
        F.cholesky(-np.eye(2))
    x = Variable(np.zeros((2, 2)))
    y = F.det(x)
    assert y.array == 0
    with pytest.raises(ValueError, match=r"inv: no matrix may be singular"):
        y.backward()
