"""Tests noise: the draws, the result for given draws, and the modes of training and testing."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable, kernels
from mpchain.functions import noise
from mpchain.random import SampleGenerator, source
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

_EPS = np.random.RandomState(1).randn(3, 4)
_COUNTERS = kernels.Counters(first=0, n_rows=3, call=0, step=0, low=7, high=0)
_DRAWS = kernels.random_words(np.arange(3), np.zeros(3, int), 1, 0, 0, 7, 0) / 2.0**32
_MASK = np.random.RandomState(2).randint(0, 2, (2, 3, 4)).astype(bool)


def _seeded(function):
    """Returns the function with a fixed seed, so that it draws the same numbers on each device."""

    def seeded(*xs):
        with SampleGenerator((7, 0), step=0).in_use():
            return function(*xs)

    return seeded


@_seeded
def _drawn(name):
    return getattr(source(np), name)(size=(3, 4))


def _gaussian(mean, ln_var):
    return F.gaussian(mean, ln_var, eps=mean.device.send(_EPS.astype(mean.dtype)))


def _dropconnect(x, W, b, mask=_MASK, **options):
    return F.simplified_dropconnect(x, W, b, 0.3, mask=x.device.send(mask), **options)


def _torch_dropconnect(x, W, b, mask=_MASK, scale=1 / 0.7):
    return torch.einsum("noi,ni->no", W * torch.as_tensor(mask) * scale, x) + b


def _torch_zoneout(h, x):
    kept = _drawn("random_sample") < 0.3
    return torch.where(torch.as_tensor(kept), h, x)


_SHAPES = (2, 4), (3, 4), (3,)
TABLE = [
    row(
        "drop",
        lambda x: noise._drop(x, _COUNTERS, 0.25),
        lambda x: x * torch.as_tensor(_DRAWS >= 0.25) / 0.75,
        (3, 4),
    ),
    row(
        "add_dropped",
        lambda h, x: noise._add_dropped(h, x, _COUNTERS, 0.25),
        lambda h, x: h + x * torch.as_tensor(_DRAWS >= 0.25) / 0.75,
        (3, 4),
        (3, 4),
    ),
    row(
        "gaussian",
        _gaussian,
        lambda m, v: m + torch.exp(v / 2) * torch.as_tensor(_EPS),
        (3, 4),
        (3, 4),
    ),
    row(
        "gumbel_softmax",
        _seeded(functools.partial(F.gumbel_softmax, tau=0.7)),
        lambda x: torch.softmax((x + torch.tensor(_drawn("gumbel"))) / 0.7, 1),
        (3, 4),
    ),
    row(
        "gumbel_softmax axis",
        _seeded(functools.partial(F.gumbel_softmax, tau=1.5, axis=0)),
        lambda x: torch.softmax((x + torch.tensor(_drawn("gumbel"))) / 1.5, 0),
        (3, 4),
    ),
    row("simplified_dropconnect", _dropconnect, _torch_dropconnect, *_SHAPES),
    row(
        "simplified_dropconnect one mask",
        functools.partial(_dropconnect, mask=_MASK[0]),
        functools.partial(_torch_dropconnect, mask=_MASK[:1]),
        *_SHAPES,
    ),
    row(
        "simplified_dropconnect in tests",
        functools.partial(_dropconnect, train=False),
        functools.partial(_torch_dropconnect, scale=1),
        *_SHAPES,
    ),
    row(
        "simplified_dropconnect flattened",
        lambda x, W: F.simplified_dropconnect(x, W, ratio=0.3, mask=x.device.send(_MASK)),
        lambda x, W: _torch_dropconnect(x.flatten(1), W, 0),
        (2, 2, 2),
        (3, 4),
    ),
    row("zoneout", _seeded(functools.partial(F.zoneout, ratio=0.3)), _torch_zoneout, *[(3, 4)] * 2),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "noise") == set()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gaussian_draws_what_it_says(dtype):
    mean = Variable(np.full(40_000, 3, dtype))
    y, eps = F.gaussian(mean, np.full(40_000, np.log(4), dtype), return_eps=True)
    assert y.dtype == eps.dtype == dtype
    np.testing.assert_allclose(y.array, 3 + 2 * eps, 5e-3, 5e-3)
    # The bound is five standard deviations of mean and variance for this number of draws.
    assert abs(eps.astype("d").mean()) < 5 / 200
    assert abs(eps.astype("d").var() - 1) < 5 * np.sqrt(2) / 200


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_add_dropout_adds_what_dropout_returns(dtype, device):
    array = mpchain.get_device(device).send(np.full((5, 4), 3, dtype))
    results = []
    for function in (noise.add_dropout, lambda h, x, ratio: h + F.dropout(x, ratio)):
        h, x = Variable(array), Variable(array)
        h.xp.random.seed(0)
        y = function(h, x, 0.25)
        F.sum(y * y).backward()
        assert y.dtype == h.grad.dtype == x.grad.dtype == dtype
        results.append(mpchain.cuda.to_cpu((y.array, h.grad, x.grad)))
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, 2e-3 if dtype == np.float16 else 1e-6)
    assert (results[0][0] == 3).any() and (results[0][0] > 3).any()
    with mpchain.using_config("train", False):
        np.testing.assert_array_equal(mpchain.cuda.to_cpu(noise.add_dropout(h, x).array), 6)
    assert noise.add_dropout(h, x[0]).shape == h.shape


def test_gaussian_in_tests_draws_too():
    with mpchain.using_config("train", False):
        y, eps = F.gaussian(np.zeros(5), np.zeros(5), return_eps=True)
    assert (y.array == eps).all() and eps.any()


def test_gumbel_softmax_draws_categories_by_their_probabilities():
    p = np.array([0.1, 0.2, 0.7])
    y = F.gumbel_softmax(np.tile(np.log(p), (20_000, 1)), tau=0.05).array
    np.testing.assert_allclose(y.sum(1), 1)
    shares = np.bincount(y.argmax(1), minlength=3) / len(y)
    # The bound is five standard deviations of a share.
    assert (abs(shares - p) < 5 * np.sqrt(p * (1 - p) / len(y))).all()


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_gumbel_softmax_of_huge_scores(scale):
    x = Variable(np.array([[scale, 0, -scale]], np.float32))
    y = F.gumbel_softmax(x)
    y.grad = np.ones((1, 3), np.float32)
    y.backward()
    np.testing.assert_allclose(y.array.max(), 1)
    assert np.isfinite(x.grad).all()


@pytest.mark.parametrize("batchwise", [False, True])
def test_dropconnect_zeroes_a_share_of_the_weights(batchwise):
    x, W = np.eye(100)[:50], np.ones((60, 100))
    y = F.simplified_dropconnect(x, W, ratio=0.25, use_batchwise_mask=batchwise).array
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3])
    dropped = (y == 0).mean()
    # The bound is five standard deviations of the share for this number of draws.
    assert abs(dropped - 0.25) < 5 * np.sqrt(0.25 * 0.75 / y.size)
    same = F.simplified_dropconnect(x[:1].repeat(50, 0), W, use_batchwise_mask=batchwise).array
    assert (same == same[0]).all() != batchwise


def test_dropconnect_without_training_is_linear():
    x, W, b = np.random.randn(2, 4), np.random.randn(3, 4), np.random.randn(3)
    y = F.simplified_dropconnect(x, W, b, train=False)
    np.testing.assert_allclose(y.array, x @ W.T + b)


def test_zoneout_keeps_a_share():
    h, x = Variable(np.zeros(40_000)), Variable(np.ones(40_000))
    y = F.zoneout(h, x, 0.3)
    # The bound is five standard deviations of the share for this number of draws.
    assert abs(y.array.mean() - 0.7) < 5 * np.sqrt(0.21) / 200
    y.grad = np.ones(40_000)
    y.backward()
    np.testing.assert_array_equal(h.grad, 1 - y.array)
    np.testing.assert_array_equal(x.grad, y.array)
    with mpchain.using_config("train", False):
        assert F.zoneout(h, x, 0.3) is x


def test_empty_batches():
    x, W = np.zeros((0, 4), np.float32), np.zeros((3, 4), np.float32)
    assert F.gaussian(x, x).shape == F.gumbel_softmax(x).shape == F.zoneout(x, x).shape == (0, 4)
    assert F.simplified_dropconnect(x, W).shape == (0, 3)
    assert F.simplified_dropconnect(x.reshape(0, 2, 2), W).shape == (0, 3)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("gumbel_softmax", (np.ones((2, 3)), 0), "tau must be positive, but is 0"),
        ("zoneout", (np.ones(2), np.ones(2), -0.1), "ratio must be from 0 to 1, but is -0.1"),
        ("zoneout", (np.ones(2), np.ones(2), 1.1), "ratio must be from 0 to 1, but is 1.1"),
        (
            "simplified_dropconnect",
            (np.ones((2, 3)), np.ones((4, 3)), None, 1.0),
            "ratio must be at least 0 and below 1, but is 1.0",
        ),
    ],
)
def test_values_out_of_range(name, arguments, message):
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        getattr(F, name)(*arguments)


def test_a_mask_or_eps_that_does_not_fit():
    with pytest.raises(InvalidType, match=r"simplified_dropconnect: mask must .* \(3,\)"):
        F.simplified_dropconnect(np.ones((2, 3)), np.ones((4, 3)), mask=np.ones(3))
    with pytest.raises(InvalidType, match=r"gaussian: eps must have the shape .* \(2,\)"):
        F.gaussian(np.ones(3), np.ones(3), eps=np.ones(2))
