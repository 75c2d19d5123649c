"""Tests normalization: values, gradients, derivatives to third order, running statistics and edge
cases."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

_BN = functools.partial(torch.nn.functional.batch_norm, running_mean=None, running_var=None)
_RUNNING_MEAN, _RUNNING_VAR = np.array([0.3, -2.0, 0.1]), np.array([0.7, 2.0, 0.01])


def _batch_normalization(x, gamma, beta):
    return _BN(x, weight=gamma, bias=beta, training=True, eps=2e-5)


def _fixed(x, gamma, beta, mean, var):
    return (x - mean) / torch.sqrt(var + 2e-5) * gamma + beta


def _renormalization(x, gamma, beta):
    send = x.device.send
    return F.batch_renormalization(
        x, gamma, beta, 1.5, 0.8, running_mean=send(_RUNNING_MEAN), running_var=send(_RUNNING_VAR)
    )


def _torch_renormalization(x, gamma, beta):
    mean, var = x.mean(0), x.var(0, unbiased=False) + 2e-5
    running_var = torch.tensor(_RUNNING_VAR) + 2e-5
    r = torch.sqrt(var / running_var).detach().clip(1 / 1.5, 1.5)
    d = ((mean - torch.tensor(_RUNNING_MEAN)) / torch.sqrt(running_var)).detach().clip(-0.8, 0.8)
    return gamma * ((x - mean) / torch.sqrt(var) * r + d) + beta


def _torch_rms(x, gamma):
    axes = tuple(range(-gamma.ndim, 0))
    return x / torch.sqrt((x * x).mean(axes, keepdim=True) + 1e-5) * gamma


def _torch_whitening(x, groups, eps):
    size = x.shape[1] // groups
    grouped = x.transpose(0, 1).reshape(groups, size, -1)
    centered = grouped - grouped.mean(2, keepdim=True)
    covariance = centered @ centered.mT / centered.shape[2] + eps * torch.eye(size, dtype=x.dtype)
    values, vectors = torch.linalg.eigh(covariance)
    y = (vectors * values[:, None] ** -0.5) @ vectors.mT @ centered
    return y.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)


def _torch_fixed_whitening(x, mean, projection):
    y = projection @ (x.T.reshape(2, 2, -1) - mean[:, :, None])
    return y.reshape(4, -1).T


def _torch_normalize(x, axes, eps):
    return x / (torch.sqrt((x * x).sum(axes, keepdim=True)) + eps)


TABLE = [
    row("batch_normalization", F.batch_normalization, _batch_normalization, (5, 3), (3,), (3,)),
    row(
        "batch_normalization images",
        F.batch_normalization,
        _batch_normalization,
        (3, 2, 2, 2),
        (2,),
        (2,),
    ),
    row(
        "fixed_batch_normalization",
        F.fixed_batch_normalization,
        _fixed,
        (3, 2),
        *[(2,)] * 4,
        low=0.5,
    ),
    row(
        "fixed_batch_renormalization",
        F.fixed_batch_renormalization,
        _fixed,
        (3, 2),
        *[(2,)] * 4,
        low=0.5,
    ),
    # r and d count as constants, so finite differences do not give the derivatives.
    row("batch_renormalization", _renormalization, _torch_renormalization, (5, 3), (3,), (3,)),
    row(
        "layer_normalization",
        F.layer_normalization,
        lambda x, g, b: torch.nn.functional.layer_norm(x, (4,), g, b, 1e-5),
        (3, 4),
        (4,),
        (4,),
    ),
    row(
        "layer_normalization two axes",
        F.layer_normalization,
        lambda x, g, b: torch.nn.functional.layer_norm(x, (3, 4), g, b, 1e-5),
        (2, 2, 3, 4),
        (3, 4),
        (3, 4),
    ),
    row(
        "layer_normalization one sample",
        F.layer_normalization,
        lambda x, g, b: torch.nn.functional.layer_norm(x, (3, 4), g, b, 1e-5),
        *[(3, 4)] * 3,
    ),
    row(
        "group_normalization",
        lambda x, g, b: F.group_normalization(x, 2, g, b),
        lambda x, g, b: torch.nn.functional.group_norm(x, 2, g, b, 1e-5),
        (2, 4, 3),
        (4,),
        (4,),
    ),
    row(
        "group_normalization vectors",
        lambda x, g, b: F.group_normalization(x, 2, g, b, eps=0.1),
        lambda x, g, b: torch.nn.functional.group_norm(x, 2, g, b, 0.1),
        (3, 6),
        (6,),
        (6,),
    ),
    row(
        "instance_normalization",
        F.instance_normalization,
        lambda x, g, b: torch.nn.functional.instance_norm(x, weight=g, bias=b, eps=1e-5),
        (2, 3, 2, 2),
        (3,),
        (3,),
    ),
    row("rms_normalization", F.rms_normalization, _torch_rms, (3, 4), (4,)),
    row("rms_normalization axes", F.rms_normalization, _torch_rms, (2, 3, 2), (3, 2)),
    row(
        "normalize",
        functools.partial(F.normalize, eps=0.1),
        lambda x: _torch_normalize(x, 1, 0.1),
        (3, 4),
    ),
    row(
        "normalize axes",
        lambda x: F.normalize(x, axis=(0, -1)),
        lambda x: _torch_normalize(x, (0, 2), 1e-5),
        (3, 2, 4),
    ),
    row(
        "local_response_normalization",
        lambda x: F.local_response_normalization(x, 3, 1.5, 0.1, 0.6),
        lambda x: torch.nn.functional.local_response_norm(x, 3, 0.3, 0.6, 1.5),
        (2, 5, 2),
    ),
    row(
        "local_response_normalization wide",
        lambda x: F.local_response_normalization(x, 9, alpha=0.1),
        lambda x: x / (2 + 0.1 * (x * x).sum(1, keepdim=True)) ** 0.75,
        (2, 3, 2),
    ),
    row(
        "decorrelated_batch_normalization",
        lambda x: F.decorrelated_batch_normalization(x, groups=2, eps=0.05),
        lambda x: _torch_whitening(x, 2, 0.05),
        (5, 4, 2),
        tolerance={np.float16: 4e-2},
    ),
    row(
        "fixed_decorrelated_batch_normalization",
        lambda x, m, p: F.fixed_decorrelated_batch_normalization(x, m, p, groups=2),
        _torch_fixed_whitening,
        (3, 4),
        (2, 2),
        (2, 2, 2),
    ),
]
_value_and_gradient, _, test_non_contiguous = checks_of(TABLE)
test_value_and_gradient = _value_and_gradient
test_derivatives = checks_of([case for case in TABLE if case.name != "batch_renormalization"])[1]


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "normalization", "decorrelation") <= {"lyapunov", "neighbors"}


# Batch renormalization.


def test_batch_renormalization_is_batch_normalization_with_other_constants():
    random = np.random.RandomState(0)
    centered, gamma, beta = (Variable(random.randn(*shape)) for shape in [(5, 3), (3,), (3,)])
    x = Variable(centered.array - centered.array.mean(0) + [0.5, -4, 0.15])
    std, running_std = np.sqrt(x.array.var(0) + 2e-5), np.sqrt(_RUNNING_VAR + 2e-5)
    r = (std / running_std).clip(1 / 1.5, 1.5)
    d = ((x.array.mean(0) - _RUNNING_MEAN) / running_std).clip(-0.8, 0.8)
    assert len(set(r)) == len(set(d)) == 3
    ys = _renormalization(x, gamma, beta), F.batch_normalization(x, gamma * r, gamma * d + beta)
    weights = random.randn(5, 3)
    for order in range(3):
        np.testing.assert_allclose(ys[0].array, ys[1].array, 1e-10, 1e-10)
        if order < 2:
            ys = [
                mpchain.grad([F.sum(y * y * weights)], [x], enable_double_backprop=True)[0]
                for y in ys
            ]


@pytest.mark.parametrize("update", [False, True])
def test_running_statistics_of_batch_renormalization(update):
    x = np.random.randn(6, 3, 2) + 1
    mean, var = _RUNNING_MEAN.copy(), _RUNNING_VAR.copy()
    options = {"running_mean": mean, "running_var": var, "decay": 0.8}
    ones = np.ones(3)
    first = F.batch_renormalization(x, ones, ones, 2, 1, update_statistics=update, **options)
    old = {"running_mean": _RUNNING_MEAN.copy(), "running_var": _RUNNING_VAR.copy()}
    expected = F.batch_renormalization(x, ones, ones, 2, 1, **old)
    np.testing.assert_array_equal(first.array, expected.array)
    if not update:
        assert (mean == _RUNNING_MEAN).all() and (var == _RUNNING_VAR).all()
        return
    np.testing.assert_allclose(mean, 0.8 * _RUNNING_MEAN + 0.2 * x.mean((0, 2)))
    flat = x.swapaxes(0, 1).reshape(3, -1)
    np.testing.assert_allclose(var, 0.8 * _RUNNING_VAR + 0.2 * flat.var(1, ddof=1))


def test_batch_renormalization_needs_running_statistics():
    ones = np.ones(3)
    for options in ({}, {"running_mean": ones}, {"running_var": ones}):
        with pytest.raises(TypeError, match="batch_renormalization: running_mean and running_var"):
            F.batch_renormalization(np.ones((2, 3)), ones, ones, 2, 1, **options)


# Decorrelated batch normalization.


def test_whitened_channels_have_the_identity_as_covariance():
    x = np.random.randn(40, 6, 3) @ np.diag([1.0, 2, 3]) + 5
    x[:, 1] += x[:, 0]
    y = F.decorrelated_batch_normalization(x, groups=2, eps=1e-9).array
    for group in (y[:, :3], y[:, 3:]):
        np.testing.assert_allclose(
            np.cov(group.swapaxes(0, 1).reshape(3, -1), bias=True), np.eye(3), atol=1e-6
        )
        np.testing.assert_allclose(group.mean((0, 2)), 0, atol=1e-10)


def test_running_statistics_of_decorrelation_normalize_alike_in_the_end():
    x = np.random.randn(50, 4)
    mean, projection = np.zeros((2, 2)), np.zeros((2, 2, 2))
    options = {"groups": 2, "running_mean": mean, "running_projection": projection}
    y = F.decorrelated_batch_normalization(x, decay=0, **options).array
    np.testing.assert_allclose(mean, x.mean(0).reshape(2, 2))
    fixed = F.fixed_decorrelated_batch_normalization(x, mean, projection * (49 / 50), 2)
    np.testing.assert_allclose(fixed.array, y, 1e-10, 1e-10)
    before = mean.copy(), projection.copy()
    F.decorrelated_batch_normalization(2 * x, decay=0.75, **options)
    np.testing.assert_allclose(mean, before[0] * 1.25)
    np.testing.assert_allclose(projection, before[1] * 0.875, 1e-4)


def test_equal_variances_do_not_disturb_the_derivatives_of_decorrelation():
    # All eigenvalues of the covariance are equal, so derivatives through eigenvectors would not
    # exist.
    x = Variable(np.concatenate([np.eye(3), -np.eye(3)]))
    y = F.decorrelated_batch_normalization(x, groups=1)
    (g,) = mpchain.grad([F.sum(y**3)], [x], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [x])
    assert np.isfinite(g.array).all() and np.isfinite(gg.array).all()


# Edges.

_PARAMETERS = {
    "layer_normalization": F.layer_normalization,
    "rms_normalization": lambda x, g, b: F.rms_normalization(x, g),
    "group_normalization": lambda x, g, b: F.group_normalization(x, 2, g, b),
    "instance_normalization": lambda x, g, b: F.reshape(
        F.instance_normalization(F.reshape(x, (-1, 2, 2)), g[:2], b[:2]), (-1, 4)
    ),
    "normalize": lambda x, g, b: F.normalize(x),
    "local_response_normalization": lambda x, g, b: F.local_response_normalization(x),
    "batch_renormalization": lambda x, g, b: F.batch_renormalization(
        x, g, b, 3, 5, running_mean=np.zeros(4, "f"), running_var=np.ones(4, "f")
    ),
    "decorrelated_batch_normalization": lambda x, g, b: F.decorrelated_batch_normalization(
        x, groups=2, eps=1e-2
    ),
}
_EVERY = pytest.mark.parametrize("name", _PARAMETERS)


def _differentiated(name, array):
    x = Variable(array)
    gamma, beta = (Variable(np.array(v, array.dtype)) for v in ([1, 2, 3, 4], [0, 1, 2, 3]))
    y = _PARAMETERS[name](x, gamma, beta)
    assert y.dtype == array.dtype and y.shape == array.shape
    (g,) = mpchain.grad([F.sum(y * y)], [x], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [x])
    F.sum(y * y).backward()
    assert x.grad.dtype == g.dtype == gg.dtype == array.dtype
    return y.array, g.array, gg.array, x.grad


@_EVERY
def test_huge_and_vanishing_inputs(name):
    huge = [[1e4, -1e4, 0, 1e4], [1e4] * 4, [0] * 4, [-1e4, 1e-30, -1e-30, 1]]
    for array in _differentiated(name, np.array(huge, np.float32)):
        assert np.isfinite(array).all()


@_EVERY
def test_an_empty_batch(name):
    for array in _differentiated(name, np.zeros((0, 4), np.float32)):
        assert array.shape == (0, 4)


@pytest.mark.parametrize("name", ["layer_normalization", "rms_normalization", "normalize"])
def test_half_precision_keeps_the_range_of_squares(name):
    x = np.array([[1e3, -2e3, 3e3, 4e3]])
    half = _differentiated(name, x.astype(np.float16))[0]
    np.testing.assert_allclose(half, _differentiated(name, x)[0], 2e-2, 2e-3)


def test_parameters_of_single_precision_on_half():
    x = Variable(np.random.randn(3, 4).astype(np.float16))
    gamma, beta = Variable(np.ones(4, np.float32)), Variable(np.zeros(4, np.float32))
    for y in (F.layer_normalization(x, gamma, beta), F.group_normalization(x, 2, gamma, beta)):
        assert y.dtype == np.float16
        F.sum(y).backward()
        assert x.grad.dtype == np.float16 and gamma.grad.dtype == np.float32


def test_the_zero_vector_normalized():
    x = Variable(np.zeros((2, 3)))
    y = F.normalize(x, eps=0.5)
    y.grad = np.ones((2, 3))
    y.backward()
    np.testing.assert_array_equal(y.array, 0)
    np.testing.assert_array_equal(x.grad, 2)


def test_groups_must_divide_the_channels():
    ones = np.ones(6)
    for groups in (0, 4, -2):
        with pytest.raises(
            ValueError, match=f"group_normalization: groups .* 6 .* but is {groups}"
        ):
            F.group_normalization(np.ones((2, 6)), groups, ones, ones)
        with pytest.raises(InvalidType, match="decorrelated_batch_normalization: groups"):
            F.decorrelated_batch_normalization(np.ones((2, 6)), groups=groups)


@pytest.mark.parametrize("of_x, of_gamma", ["ee", "ef", "ff", "fd", "dd"])
def test_fixed_normalization_of_large_arrays(of_x, of_gamma):
    rng = np.random.default_rng(0)
    x = (rng.random((3, 5, 70, 70)) + 3).astype(of_x)
    gamma, beta, mean = (rng.random(5).astype(of_gamma) for _ in range(3))
    var = (rng.random(5) + 1).astype(of_gamma)
    y = F.fixed_batch_normalization(x, gamma, beta, mean, var).array
    columns = (p.astype(float)[:, None, None] for p in (gamma, beta, mean, var))
    gamma, beta, mean, var = columns
    right = (x.astype(float) - mean) / np.sqrt(var + 2e-5) * gamma + beta
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, right, rtol=8 * np.finfo(of_x).eps, atol=8 * np.finfo(of_x).eps)


def test_gradients_of_normalize_at_zero_are_finite_in_half_precision():
    x = Variable(np.array([[0, 0], [3, 4]], np.float16))
    y = F.normalize(x)
    np.testing.assert_allclose(y.array, [[0, 0], [0.6, 0.8]], 1e-3)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    # 1 / eps becomes the largest number of half precision; the other gradient is (1 - y sum(y)) /
    # norm.
    np.testing.assert_allclose(g.array, [[65504, 65504], [0.032, -0.024]], 1e-2)
    (gg,) = mpchain.grad([F.sum(g * 0.25)], [x])
    assert np.isfinite(gg.array).all()
