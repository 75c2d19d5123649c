"""Tests losses of classification and regression, and likelihoods: values, gradients, options and
edge cases."""

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

_NN = torch.nn.functional
_T = np.array([0, 2, 1, -1])
_WEIGHTS = np.array([0.5, 1.0, 2.0])
_LABELS = np.array([2, 0, 1])
_BITS = np.array([[0, 1], [1, -1], [0, 0]])
_P = np.random.RandomState(5).dirichlet(np.ones(3), 4)


def _smoothed(x, **options):
    return F.softmax_cross_entropy(x, x.device.send(_T), label_smoothing=0.2, **options)


def _torch_smoothed(x, **options):
    return _torch_ce(x, label_smoothing=0.2, **options)


def _torch_focal(x, alpha, gamma):
    """Returns -a (1 - p) ** gamma log(p) for each label that counts, and 0 for other labels."""
    t = torch.as_tensor(_BITS)
    p = torch.where(t == 1, torch.sigmoid(x), 1 - torch.sigmoid(x))
    a = 1 if alpha is None else torch.where(t == 1, alpha, 1 - alpha)
    return -a * (1 - p) ** gamma * torch.log(p) * (t != -1)


def _torch_hinge(x, power):
    sign = torch.where(torch.as_tensor(_LABELS)[:, None] == torch.arange(4), 1.0, -1.0)
    return torch.relu(1 - sign * x) ** power


def _torch_gaussian_nll(x, mean, ln_var):
    return -torch.distributions.Normal(mean, torch.exp(ln_var / 2)).log_prob(x)


def _torch_gaussian_kl(mean, ln_var):
    normal = torch.distributions.Normal
    return torch.distributions.kl_divergence(
        normal(mean, torch.exp(ln_var / 2)),
        normal(torch.zeros((), dtype=mean.dtype), torch.ones((), dtype=mean.dtype)),
    )


def _torch_bernoulli_nll(x, y):
    return _NN.binary_cross_entropy_with_logits(y, x, reduction="none")


def _torch_ce(x, **options):
    return _NN.cross_entropy(x, torch.as_tensor(_T), ignore_index=-1, **options)


TABLE = [
    row("softmax_cross_entropy", lambda x: F.softmax_cross_entropy(x, _T), _torch_ce, (4, 3)),
    row(
        "softmax_cross_entropy per sample",
        lambda x: F.softmax_cross_entropy(x, _T, reduce="no"),
        functools.partial(_torch_ce, reduction="none"),
        (4, 3),
    ),
    row(
        "softmax_cross_entropy weighted",
        lambda x: F.softmax_cross_entropy(x, _T, class_weight=_WEIGHTS, normalize=False),
        lambda x: _torch_ce(x, weight=torch.as_tensor(_WEIGHTS), reduction="sum") / 4,
        (4, 3),
    ),
    row(
        "softmax_cross_entropy images",
        lambda x: F.softmax_cross_entropy(x, _BITS),
        lambda x: _NN.cross_entropy(x, torch.as_tensor(_BITS), ignore_index=-1),
        (3, 2, 2),
    ),
    row(
        "softmax_cross_entropy soft",
        lambda x: F.softmax_cross_entropy(x, x.device.send(_P.astype(x.dtype))),
        lambda x: _NN.cross_entropy(x, torch.as_tensor(_P)),
        (4, 3),
    ),
    row(
        "softmax_cross_entropy soft weighted",
        lambda x: F.softmax_cross_entropy(
            x, x.device.send(_P.astype(x.dtype)), class_weight=_WEIGHTS
        ),
        lambda x: _NN.cross_entropy(x, torch.as_tensor(_P), weight=torch.as_tensor(_WEIGHTS)),
        (4, 3),
    ),
    row(
        "softmax_cross_entropy kl",
        lambda x: F.softmax_cross_entropy(
            x, x.device.send(_P.astype(x.dtype)), soft_target_loss="kl-divergence", reduce="no"
        ),
        lambda x: _NN.kl_div(torch.log_softmax(x, 1), torch.as_tensor(_P), reduction="none").sum(1),
        (4, 3),
    ),
    row(
        "softmax_cross_entropy kl weighted",
        lambda x: F.softmax_cross_entropy(
            x,
            x.device.send(_P.astype(x.dtype)),
            class_weight=_WEIGHTS,
            soft_target_loss="kl-divergence",
        ),
        lambda x: (
            (
                _NN.kl_div(torch.log_softmax(x, 1), torch.as_tensor(_P), reduction="none")
                * torch.as_tensor(_WEIGHTS)
            ).sum()
            / 4
        ),
        (4, 3),
    ),
    row(
        "sigmoid_cross_entropy",
        lambda x: F.sigmoid_cross_entropy(x, x.device.send(_BITS)),
        lambda x: (
            _NN.binary_cross_entropy_with_logits(
                x, torch.as_tensor(_BITS == 1).double(), torch.as_tensor(_BITS >= 0).double()
            )
            * (6 / 5)
        ),
        (3, 2),
    ),
    row(
        "sigmoid_cross_entropy per element",
        lambda x: F.sigmoid_cross_entropy(x, x.device.send(_BITS), reduce="no"),
        lambda x: _NN.binary_cross_entropy_with_logits(
            x,
            torch.as_tensor(_BITS == 1).double(),
            torch.as_tensor(_BITS >= 0).double(),
            reduction="none",
        ),
        (3, 2),
    ),
    row(
        "label smoothing per sample",
        functools.partial(_smoothed, reduce="no"),
        functools.partial(_torch_smoothed, reduction="none"),
        (4, 3),
    ),
    row("label smoothing", _smoothed, _torch_smoothed, (4, 3)),
    row(
        "label smoothing weighted",
        lambda x: _smoothed(x, class_weight=x.device.send(_WEIGHTS), normalize=False),
        lambda x: _torch_smoothed(x, weight=torch.as_tensor(_WEIGHTS), reduction="sum") / 4,
        (4, 3),
    ),
    row(
        "label smoothing images",
        lambda x: F.softmax_cross_entropy(x, x.device.send(_BITS), label_smoothing=0.3),
        lambda x: _NN.cross_entropy(
            x, torch.as_tensor(_BITS), ignore_index=-1, label_smoothing=0.3
        ),
        (3, 2, 2),
    ),
    row(
        "label smoothing of distributions",
        lambda x: F.softmax_cross_entropy(
            x, x.device.send(_P.astype(x.dtype)), label_smoothing=0.2
        ),
        lambda x: _NN.cross_entropy(x, torch.as_tensor(_P), label_smoothing=0.2),
        (4, 3),
    ),
    row(
        "focal_loss",
        lambda x: F.focal_loss(x, x.device.send(_BITS)),
        lambda x: _torch_focal(x, 0.25, 2).sum() / 5,
        (3, 2),
    ),
    row(
        "focal_loss per element",
        lambda x: F.focal_loss(x, x.device.send(_BITS), None, 0.5, reduce="no"),
        lambda x: _torch_focal(x, None, 0.5),
        (3, 2),
    ),
    row(
        "focal_loss by batch",
        lambda x: F.focal_loss(x, x.device.send(_BITS), normalize=False),
        lambda x: _torch_focal(x, 0.25, 2).sum() / 3,
        (3, 2),
    ),
    *[
        row(
            f"hinge {norm} {reduce}",
            functools.partial(F.hinge, t=_LABELS, norm=norm, reduce=reduce),
            lambda x, norm=norm, reduce=reduce: (
                _torch_hinge(x, int(norm[1]))
                if reduce == "no"
                else _torch_hinge(x, int(norm[1])).sum() / 3
            ),
            (3, 4),
        )
        for norm in ("L1", "L2")
        for reduce in ("mean", "no")
    ],
    row("absolute_error", F.absolute_error, lambda a, b: abs(a - b), (3, 4), (3, 4), smooth=False),
    row("mean_absolute_error", F.mean_absolute_error, _NN.l1_loss, (3, 4), (3, 4)),
    row("squared_error", F.squared_error, lambda a, b: (a - b) ** 2, (3, 4), (3, 4)),
    row("mean_squared_error", F.mean_squared_error, _NN.mse_loss, (3, 4), (3, 4)),
    row(
        "huber_loss",
        functools.partial(F.huber_loss, delta=0.8),
        lambda x, t: _NN.huber_loss(x, t, delta=0.8, reduction="none").sum(1),
        (3, 4, 2),
        (3, 4, 2),
    ),
    row(
        "huber_loss per element",
        functools.partial(F.huber_loss, delta=0.8, reduce="no"),
        functools.partial(_NN.huber_loss, delta=0.8, reduction="none"),
        (5,),
        (5,),
    ),
    *[
        row(
            f"smooth_l1_loss {reduce}",
            functools.partial(F.smooth_l1_loss, beta=0.7, reduce=reduce),
            functools.partial(
                _NN.smooth_l1_loss, beta=0.7, reduction={"no": "none"}.get(reduce, reduce)
            ),
            (3, 4),
            (3, 4),
        )
        for reduce in ("mean", "sum", "no")
    ],
    *[
        row(
            f"{function.__name__} {reduce}",
            functools.partial(function, reduce=reduce),
            lambda *xs, reference=reference, reduction=reduction: reduction(reference(*xs)),
            *[(3, 2)] * n,
        )
        for function, reference, n in [
            (F.bernoulli_nll, _torch_bernoulli_nll, 2),
            (F.gaussian_nll, _torch_gaussian_nll, 3),
            (F.gaussian_kl_divergence, _torch_gaussian_kl, 2),
        ]
        for reduce, reduction in [("sum", torch.sum), ("mean", torch.mean), ("no", torch.clone)]
    ],
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "loss", "regression_loss") == set()


def test_without_smoothing_or_focus_they_are_the_cross_entropies():
    x, t = np.random.randn(4, 3), np.array([0, 2, 1, -1])
    for options in ({}, {"normalize": False}, {"reduce": "no"}, {"class_weight": _WEIGHTS}):
        smoothed = F.softmax_cross_entropy(x, t, label_smoothing=1e-12, **options)
        plain = F.softmax_cross_entropy(x, t, **options)
        np.testing.assert_allclose(smoothed.array, plain.array, 1e-9)
    bits = np.random.randint(-1, 2, (4, 3))
    for options in ({}, {"normalize": False}, {"reduce": "no"}):
        plain = F.sigmoid_cross_entropy(x, bits, **options)
        unfocused = F.focal_loss(x, bits, alpha=None, gamma=0, **options)
        np.testing.assert_allclose(unfocused.array, plain.array, 1e-12, 1e-12)


def test_an_ignored_sample_counts_nothing_with_smoothing_even_if_infinite():
    x = Variable(np.array([[0.0, 1.0], [-np.inf, 0.0]]))
    loss = F.softmax_cross_entropy(x, np.array([1, -1]), label_smoothing=0.1)
    np.testing.assert_allclose(loss.array, np.log(1 + np.exp(-1)) + 0.05, 1e-12)
    loss.backward()
    np.testing.assert_array_equal(x.grad[1], [0, 0])


@pytest.mark.parametrize("smoothing", [-0.1, 1.5])
def test_smoothing_out_of_range(smoothing):
    message = f"softmax_cross_entropy: label_smoothing must be from 0 to 1, but is {smoothing}"
    with pytest.raises(ValueError, match=message):
        F.softmax_cross_entropy(np.ones((2, 3)), np.zeros(2, int), label_smoothing=smoothing)


def test_smooth_l1_needs_a_width():
    with pytest.raises(ValueError, match="smooth_l1_loss: beta must be positive, but is 0"):
        F.smooth_l1_loss(np.ones(2), np.ones(2), beta=0)


_OPTIONS = {
    "softmax_cross_entropy": (np.ones((2, 3)), np.zeros(2, int)),
    "sigmoid_cross_entropy": (np.ones(2), np.zeros(2, int)),
    "focal_loss": (np.ones(2), np.zeros(2, int)),
    "hinge": (np.ones((2, 3)), np.zeros(2, int)),
    "huber_loss": (np.ones((2, 3)), np.ones((2, 3)), 1.0),
    "smooth_l1_loss": (np.ones(2), np.ones(2)),
    "bernoulli_nll": (np.ones(2), np.ones(2)),
    "gaussian_nll": (np.ones(2), np.ones(2), np.ones(2)),
    "gaussian_kl_divergence": (np.ones(2), np.ones(2)),
}


@pytest.mark.parametrize("name", _OPTIONS)
def test_an_unknown_reduction(name):
    with pytest.raises(ValueError, match=f"^{name}: reduce must be one of .* not 'total'"):
        getattr(F, name)(*_OPTIONS[name], reduce="total")


def test_an_unknown_norm_of_hinge():
    with pytest.raises(ValueError, match=r"hinge: norm must be one of .* not 'L3'"):
        F.hinge(np.ones((2, 3)), np.zeros(2, int), norm="L3")


def test_huber_has_no_second_axis_to_sum():
    with pytest.raises(InvalidType, match="huber_loss: x must have two axes or more"):
        F.huber_loss(np.ones(3), np.ones(3), 1.0)


# Edges.

_ROBUST = {
    "smoothed": lambda x: F.softmax_cross_entropy(x, _T[: len(x)], label_smoothing=0.1),
    "focal_loss": lambda x: F.focal_loss(x, np.resize([0, 1, -1], x.shape), gamma=0.5),
    "hinge": lambda x: F.hinge(x, abs(_T[: len(x)])),
    "hinge L2": lambda x: F.hinge(x, abs(_T[: len(x)]), norm="L2"),
    "huber_loss": lambda x: F.huber_loss(x, -x, 1.0),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 0),
    "mean_absolute_error": lambda x: F.mean_absolute_error(x, -x),
    "mean_squared_error": lambda x: F.mean_squared_error(x, -x),
    "bernoulli_nll": lambda x: F.bernoulli_nll(x * 0 + 0.5, x),
    "gaussian_nll": lambda x: F.gaussian_nll(x, x * 0, x * 0 + 3),
    "gaussian_kl_divergence": lambda x: F.gaussian_kl_divergence(x, x * 0),
}
_EVERY = pytest.mark.parametrize("name", _ROBUST)


def _differentiated(name, array):
    x = Variable(array)
    y = _ROBUST[name](x)
    (g,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [x])
    assert y.dtype == g.dtype == array.dtype
    return y.array, g.array, array * 0 if gg is None else gg.array


@_EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_inputs(name, dtype):
    huge = [[1e4, -1e4, 0], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e-30, -1e-30, 1e4]]
    for array in _differentiated(name, np.array(huge, dtype)):
        assert np.isfinite(array).all()


@_EVERY
@pytest.mark.parametrize("n_classes", [3, 0])
def test_an_empty_batch(name, n_classes):
    y, g, _ = _differentiated(name, np.zeros((0, n_classes), np.float32))
    assert not y.any() and g.shape == (0, n_classes)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "sigmoid_cross_entropy"])
def test_half_precision_does_not_hold_more_labels(name, normalize):
    x, t = np.zeros((70_000, 2), np.float16), np.zeros(70_000, np.int32)
    t = t if name == "softmax_cross_entropy" else np.stack([t, t], 1)
    with pytest.raises(ValueError, match=r"0000 elements cannot be computed in float16.*F\.cast"):
        getattr(F, name)(x, t, normalize=normalize)
    loss = getattr(F, name)(F.cast(x, np.float32), t, normalize=normalize)
    assert loss.item() == pytest.approx(np.log(2) * (1 if normalize else t.size / len(t)))


def test_half_precision_means_of_many_do_not_overflow():
    x, zero = np.full((300, 300), 2, np.float16), np.zeros((300, 300), np.float16)
    assert F.mean_squared_error(x, zero).array == 4
    assert F.smooth_l1_loss(x, zero).array == 1.5
    assert F.hinge(x, np.zeros(300, int)).array == 897


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gaussian_nll_of_tiny_variances(dtype):
    far = -1000 if dtype == np.float64 else -120 if dtype == np.float32 else -30
    x, mean = Variable(np.array([1, 1], dtype)), Variable(np.array([1, 1], dtype))
    ln_var = Variable(np.array([far, 0], dtype))
    loss = F.gaussian_nll(x, mean, ln_var, reduce="no")
    assert loss.dtype == dtype
    expected = (np.array([far, 0]) + np.log(2 * np.pi)) / 2
    np.testing.assert_allclose(loss.array, expected, 4 * np.finfo(dtype).eps)
    gradients = mpchain.grad([F.sum(loss)], [x, mean, ln_var])
    np.testing.assert_array_equal([g.array for g in gradients], [[0, 0], [0, 0], [0.5, 0.5]])
