"""Tests normalizations against PyTorch and plain formulas: averages, fine-tuning, and lazy
sizes."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import config, mixed16, using_config
from mpchain.serializers import load_npz, save_npz
from mpchain.utils.type_check import InvalidType
from mpchain.variable import Variable
from tests.links.table import checks_of, row
from tests.reference import torch

X = (5, 3, 2)
PARAMS = {"gamma": (3,), "beta": (3,)}
AVERAGES = {"avg_mean": np.zeros(3), "avg_var": np.ones(3), "N": 0}
WHITENING = {
    "avg_mean": np.zeros((2, 2)),
    "avg_projection": np.stack([np.eye(2), np.eye(2)]),
    "N": 0,
}
TEST = {"config": {"train": False}}


def batch(*shape):
    return np.random.randn(*shape).astype(np.float32)


def batch_norm(w, x, train=True):
    averages = (None, None) if train else (w["avg_mean"], w["avg_var"])
    options = {"training": train, "eps": 2e-5}
    return torch.nn.functional.batch_norm(x, *averages, w["gamma"], w["beta"], **options)


def renormalized(w, x):
    """Computes batch renormalization, whose corrections are limited constants."""
    mean, std = x.mean((0, 2)), torch.sqrt(x.var((0, 2), unbiased=False) + 2e-5)
    running_std = torch.sqrt(w["avg_var"] + 2e-5)
    r = (std / running_std).clip(1 / 1.1, 1.1).detach()[:, None]
    d = ((mean - w["avg_mean"]) / running_std).clip(-0.1, 0.1).detach()[:, None]
    y = (x - mean[:, None]) / std[:, None] * r + d
    return y * w["gamma"][:, None] + w["beta"][:, None]


def whitened(w, x):
    groups = x.transpose(0, 1).reshape(2, 2, -1)
    centered = groups - groups.mean(2, keepdim=True)
    covariance = centered @ centered.mT / centered.shape[2] + 2e-5 * torch.eye(2)
    values, vectors = torch.linalg.eigh(covariance)
    projection = (vectors * values[:, None] ** -0.5) @ vectors.mT
    return (projection @ centered).reshape(4, *x.shape[:1], *x.shape[2:]).transpose(0, 1)


def whitened_by_averages(w, x):
    groups = x.transpose(0, 1).reshape(2, 2, -1)
    y = w["avg_projection"] @ (groups - w["avg_mean"][:, :, None])
    return y.reshape(4, *x.shape[:1], *x.shape[2:]).transpose(0, 1)


def per_sample(name, *arguments, eps):
    """Returns a reference: PyTorch's function of the given name, with gamma and perhaps beta."""

    def reference(w, x):
        function = getattr(torch.nn.functional, name)
        shape = [w["gamma"].shape] if name in ("layer_norm", "rms_norm") else []
        scales = {"weight": w["gamma"]} | ({"bias": w["beta"]} if "beta" in w else {})
        return function(x, *arguments, *shape, **scales, eps=eps)

    return reference


TABLE = [
    row(
        "BatchNormalization",
        lambda: L.BatchNormalization(3),
        X,
        params=PARAMS,
        persistents=AVERAGES,
        lazy=L.BatchNormalization,
        reference=batch_norm,
    ),
    row(
        "BatchNormalization in inference",
        lambda: L.BatchNormalization(3),
        X,
        params=PARAMS,
        persistents=AVERAGES,
        reference=lambda w, x: batch_norm(w, x, train=False),
        **TEST,
    ),
    row(
        "BatchRenormalization",
        lambda: L.BatchRenormalization(3, rmax=1.1, dmax=0.1),
        X,
        params=PARAMS,
        persistents=AVERAGES,
        orders=0,  # the correction counts as a constant, unlike in finite differences
        reference=renormalized,
    ),
    row(
        "BatchRenormalization without correction",
        lambda: L.BatchRenormalization(3),
        X,
        params=PARAMS,
        persistents=AVERAGES,
        reference=batch_norm,
    ),
    row(
        "BatchRenormalization in inference",
        lambda: L.BatchRenormalization(3),
        X,
        params=PARAMS,
        persistents=AVERAGES,
        reference=lambda w, x: batch_norm(w, x, train=False),
        **TEST,
    ),
    row(
        "DecorrelatedBatchNormalization",
        lambda: L.DecorrelatedBatchNormalization(4, groups=2, dtype=config.dtype),
        (5, 4, 3),
        persistents=WHITENING,
        reference=whitened,
        tolerance={np.float32: 2e-4},
    ),
    row(
        "DecorrelatedBatchNormalization in inference",
        lambda: L.DecorrelatedBatchNormalization(4, groups=2, dtype=config.dtype),
        (5, 4, 3),
        persistents=WHITENING,
        reference=whitened_by_averages,
        **TEST,
    ),
    row(
        "GroupNormalization",
        lambda: L.GroupNormalization(2, 4),
        (5, 4, 3),
        params={"gamma": (4,), "beta": (4,)},
        lazy=lambda: L.GroupNormalization(2),
        reference=per_sample("group_norm", 2, eps=1e-5),
    ),
    row(
        "InstanceNormalization",
        lambda: L.InstanceNormalization(3),
        (5, 3, 4),
        params=PARAMS,
        lazy=L.InstanceNormalization,
        reference=per_sample("instance_norm", eps=1e-5),
    ),
    row(
        "LayerNormalization",
        lambda: L.LayerNormalization(3),
        (5, 3),
        params=PARAMS,
        lazy=L.LayerNormalization,
        reference=per_sample("layer_norm", eps=1e-6),
    ),
    row(
        "LayerNormalization of the last axis",
        lambda: L.LayerNormalization(3),
        (5, 2, 3),
        params=PARAMS,
        lazy=L.LayerNormalization,
        reference=per_sample("layer_norm", eps=1e-6),
    ),
    row(
        "LayerNormalization of two axes",
        lambda: L.LayerNormalization((3, 2)),
        X,
        params={"gamma": (3, 2), "beta": (3, 2)},
        reference=per_sample("layer_norm", eps=1e-6),
    ),
    row(
        "RMSNormalization",
        lambda: L.RMSNormalization(3),
        (5, 2, 3),
        params={"gamma": (3,)},
        lazy=L.RMSNormalization,
        reference=per_sample("rms_norm", eps=1e-5),
    ),
]
globals().update(checks_of(TABLE))


def test_values_gradients_and_averages_against_pytorch():
    link, layer = L.BatchNormalization(3), torch.nn.BatchNorm2d(3, eps=2e-5)
    assert {name: param.shape for name, param in link.namedparams()} == {
        "/beta": (3,),
        "/gamma": (3,),
    }
    link.gamma.array[...] = batch(3)
    link.beta.array[...] = batch(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(link.gamma.array))
        layer.bias.copy_(torch.tensor(link.beta.array))
    for _ in range(3):
        x = batch(4, 3, 5, 2) * 2 + 1
        gy = batch(4, 3, 5, 2)
        mine, other = Variable(x), torch.tensor(x, requires_grad=True)
        y, torch_y = link(mine), layer(other)
        np.testing.assert_allclose(y.array, torch_y.detach().numpy(), rtol=1e-4, atol=1e-5)
        link.cleargrads()
        layer.zero_grad()
        y.grad = gy
        y.backward()
        torch_y.backward(torch.tensor(gy))
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(link.gamma.grad, layer.weight.grad.numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(link.beta.grad, layer.bias.grad.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(link.avg_mean, layer.running_mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(link.avg_var, layer.running_var.numpy(), rtol=1e-4)
    layer.eval()
    with using_config("train", False):
        y = link(x)
    np.testing.assert_allclose(
        y.array, layer(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "size, axis, expected",
    [
        (None, None, (3,)),
        (3, None, (3,)),
        ((3, 2), None, (3, 2)),
        (None, (0, 1), (2,)),
        (None, 0, (3, 2)),
        (None, (0, -1), (3,)),
    ],
)
def test_shape_of_parameters(size, axis, expected):
    link = L.BatchNormalization(size, axis=axis)
    assert link.gamma.is_initialized == (size is not None)
    assert link(batch(4, 3, 2)).shape == (4, 3, 2)
    assert link.gamma.shape == link.beta.shape == expected
    assert link.avg_mean.shape == link.avg_var.shape == expected


def test_fine_tuning_averages_all_batches_alike():
    link = L.BatchNormalization(3)
    link(batch(4, 3))
    link.start_finetuning()
    xs = [batch(4, 3) for _ in range(3)]
    for x in xs:
        link(x, finetune=True)
    assert link.N == 3
    np.testing.assert_allclose(link.avg_mean, np.mean([x.mean(0) for x in xs], 0), rtol=1e-4)
    expected = np.mean([x.var(0, ddof=1) for x in xs], 0)
    np.testing.assert_allclose(link.avg_var, expected, rtol=1e-4)


def test_averages_stay_in_inference_and_in_recomputation():
    link = L.BatchNormalization(3)
    for name, value in (("train", False), ("in_recomputing", True)):
        with using_config(name, value):
            link(batch(4, 3), finetune=True)
    assert link.N == 0 and not link.avg_mean.any() and (link.avg_var == 1).all()


def test_without_gamma_or_beta():
    link = L.BatchNormalization(3, use_gamma=False, use_beta=False)
    assert not list(link.params())
    x = batch(50, 3) * 3 + 2
    y = link(x).array
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(0), 1, rtol=1e-4)
    with using_config("train", False):
        expected = (x - link.avg_mean) / np.sqrt(link.avg_var + 2e-5)
        np.testing.assert_allclose(link(x).array, expected, rtol=1e-4, atol=1e-5)


def test_initial_values_and_dtype():
    link = L.BatchNormalization(
        2,
        dtype=np.float64,
        initial_gamma=np.array([1, 2]),
        initial_beta=3,
        initial_avg_mean=4,
        initial_avg_var=np.array([5, 6]),
    )
    assert link.gamma.array.tolist() == [1, 2] and link.beta.array.tolist() == [3, 3]
    assert link.avg_mean.tolist() == [4, 4] and link.avg_var.tolist() == [5, 6]
    assert link.gamma.dtype == link.beta.dtype == link.avg_mean.dtype == np.float64
    with using_config("dtype", mixed16):
        link = L.BatchNormalization(2)
    assert link.gamma.dtype == link.avg_var.dtype == np.float32


@pytest.mark.parametrize("size", [None, 3])
def test_saving_and_loading(size, tmp_path):
    link = L.BatchNormalization(3)
    x = batch(4, 3)
    link(x, finetune=True)
    save_npz(tmp_path / "link.npz", link)
    loaded = L.BatchNormalization(size)
    load_npz(tmp_path / "link.npz", loaded)
    assert loaded.N == 1
    with using_config("train", False):
        np.testing.assert_array_equal(loaded(x).array, link(x).array)


def test_an_unused_lazy_link_is_saved_and_loaded(tmp_path):
    save_npz(tmp_path / "link.npz", L.BatchNormalization())
    loaded = L.BatchNormalization()
    load_npz(tmp_path / "link.npz", loaded)
    assert loaded.avg_mean is None and not loaded.gamma.is_initialized
    loaded(batch(4, 3))


def test_repr():
    assert repr(L.BatchNormalization(3, use_beta=False)) == (
        "BatchNormalization(size=3, decay=0.9, eps=2e-05, dtype='float32', use_gamma=True, "
        "use_beta=False)"
    )


def test_an_input_of_another_size():
    with pytest.raises(InvalidType, match="batch_normalization: gamma must have shape"):
        L.BatchNormalization(3)(batch(2, 4))


def test_averages_of_renormalization():
    link, xs = L.BatchRenormalization(3, rmax=2, dmax=1, decay=0.8), [batch(*X) for _ in range(3)]
    mean, var = np.zeros(3), np.ones(3)
    for x in xs:
        link(x)
        mean = 0.8 * mean + 0.2 * x.mean((0, 2))
        var = 0.8 * var + 0.2 * x.transpose(1, 0, 2).reshape(3, -1).var(1, ddof=1)
    np.testing.assert_allclose(link.avg_mean, mean, 1e-5)
    np.testing.assert_allclose(link.avg_var, var, 1e-5)
    link.start_finetuning()
    for x in xs:
        link(x, finetune=True)
    assert link.N == 3
    np.testing.assert_allclose(link.avg_mean, np.mean([x.mean((0, 2)) for x in xs], 0), 1e-5, 1e-7)


def test_renormalization_begins_with_its_initial_averages():
    link = L.BatchRenormalization(2, initial_avg_mean=4, initial_avg_var=np.array([5, 6]))
    assert link.avg_mean.tolist() == [4, 4] and link.avg_var.tolist() == [5, 6]


def test_renormalization_is_recomputed_by_the_averages_it_met():
    found = []
    for call in (lambda link, x: link(x), F.forget):
        np.random.seed(3)
        link = L.BatchRenormalization(3, rmax=3, dmax=2)
        for _ in range(2):
            x = Variable(batch(*X) * 3 + 1)
            F.sum(call(link, x) ** 3).backward()
        found.append((x.grad, link.gamma.grad, link.avg_mean, link.avg_var))
    for array, recomputed in zip(*found):
        np.testing.assert_allclose(recomputed, array, 1e-5)


def test_averages_of_whitening():
    link = L.DecorrelatedBatchNormalization(4, groups=1, decay=0.8)
    xs = [batch(20, 4) * [1, 2, 3, 4] for _ in range(2)]
    for x in xs:
        y = link(x.astype(np.float32)).array
        np.testing.assert_allclose(np.cov(y.T, ddof=0), np.eye(4), atol=1e-4)
    expected = 0.8 * 0.2 * xs[0].mean(0) + 0.2 * xs[1].mean(0)
    np.testing.assert_allclose(link.avg_mean[0], expected, 1e-4)
    assert link.N == 0
    link.start_finetuning()
    for x in xs:
        link(x.astype(np.float32), finetune=True)
    assert link.N == 2
    np.testing.assert_allclose(link.avg_mean[0], np.mean([x.mean(0) for x in xs], 0), 1e-4)
    before = link.avg_projection.copy()
    for name, value in (("train", False), ("in_recomputing", True)):
        with using_config(name, value):
            link(xs[0].astype(np.float32), finetune=True)
    assert link.N == 2
    np.testing.assert_array_equal(link.avg_projection, before)


def test_dtypes_of_parameters_and_averages():
    assert L.DecorrelatedBatchNormalization(16).avg_mean.dtype == np.float32
    for dtype, expected in ((mixed16, np.float32), (np.float16, np.float16)):
        with using_config("dtype", dtype):
            links = L.GroupNormalization(2, 4), L.InstanceNormalization(4)
            link = L.BatchRenormalization(2)
        assert {link.gamma.dtype for link in links} == {np.dtype(expected)}
        assert link.avg_mean.dtype == link.gamma.dtype == expected
        assert L.GroupNormalization(2, 4)(batch(3, 4).astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize(
    "make",
    [
        lambda **initials: L.LayerNormalization(2, **initials),
        lambda **initials: L.GroupNormalization(1, 2, **initials),
        lambda **initials: L.InstanceNormalization(2, **initials),
    ],
)
def test_initial_scale_and_shift(make):
    link = make(initial_gamma=2, initial_beta=np.array([3, 4]))
    assert link.gamma.array.tolist() == [2, 2] and link.beta.array.tolist() == [3, 4]
    assert L.RMSNormalization(2, initial_gamma=5).gamma.array.tolist() == [5, 5]


def test_repr_of_sample_normalizations():
    assert repr(L.LayerNormalization()) == "LayerNormalization(size=None, eps=1e-06)"
    assert repr(L.RMSNormalization((2, 3))) == "RMSNormalization(size=(2, 3), eps=1e-05)"
    assert repr(L.GroupNormalization(2, 4)) == "GroupNormalization(groups=2, size=4, eps=1e-05)"
    assert repr(L.DecorrelatedBatchNormalization(16)) == (
        "DecorrelatedBatchNormalization(size=16, groups=16, decay=0.9, eps=2e-05, dtype='float32')"
    )


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            TypeError,
            "BatchRenormalization: size must be given",
            lambda: L.BatchRenormalization(None),
        ),
        (
            ValueError,
            "DecorrelatedBatchNormalization: groups=16 must divide size=4",
            lambda: L.DecorrelatedBatchNormalization(4),
        ),
        (
            ValueError,
            "group_normalization: groups must divide the 4 channels, but is 3",
            lambda: L.GroupNormalization(3)(batch(2, 4)),
        ),
        (
            InvalidType,
            "group_normalization: x must be floating point",
            lambda: L.GroupNormalization(1, 4)(batch(4)),
        ),
        (
            InvalidType,
            "layer_normalization: gamma must have the shape",
            lambda: L.LayerNormalization(3)(batch(2, 4)),
        ),
        (
            InvalidType,
            "instance_normalization: gamma must have one element per channel",
            lambda: L.InstanceNormalization(3)(batch(2, 4, 2)),
        ),
        (
            InvalidType,
            "rms_normalization: gamma must have the shape",
            lambda: L.RMSNormalization(3)(batch(2, 4)),
        ),
        (
            InvalidType,
            "groups=2 must divide the channels|mean must have the shape",
            lambda: L.DecorrelatedBatchNormalization(4, 2)(batch(2, 6)),
        ),
    ],
)
def test_wrong_input(error, message, call):
    with pytest.raises(error, match=message):
        call()
