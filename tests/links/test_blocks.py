"""Tests Highway, MLPConvolution2D, Inception and InceptionBN."""

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import config
from tests.links.table import checks_of, row
from tests.reference import torch

pytestmark = pytest.mark.slow

TF = torch.nn.functional


def _highway(w, x):
    t = torch.sigmoid(TF.linear(x, w["transform/W"], w["transform/b"]))
    return TF.relu(TF.linear(x, w["plain/W"], w["plain/b"])) * t + x * (1 - t)


def _mlp(w, x):
    y = TF.conv2d(x, w["0/W"], w["0/b"], 2, 1)
    return TF.conv2d(torch.tanh(y), w["1/W"], w["1/b"])


def _inception(w, x):
    def conv(name, x, pad=0):
        return TF.conv2d(x, w[f"{name}/W"], w[f"{name}/b"], padding=pad)

    pooled = conv("projp", TF.max_pool2d(x, 3, 1, 1))
    three = conv("conv3", TF.relu(conv("proj3", x)), 1)
    five = conv("conv5", TF.relu(conv("proj5", x)), 2)
    return TF.relu(torch.cat([conv("conv1", x), three, five, pooled], 1))


def _inception_bn(names, stride, pool):
    def reference(w, x):
        def block(name, x, stride=1):
            W = w[f"{name}/W"]
            y = TF.conv2d(x, W, None, stride, W.shape[2] // 2)
            gamma, beta = w[f"{name}n/gamma"], w[f"{name}n/beta"]
            return TF.relu(TF.batch_norm(y, None, None, gamma, beta, True, eps=2e-5))

        branches = [block("conv1", x)] if "conv1" in names else []
        branches.append(block("conv3", block("proj3", x), stride))
        branches.append(block("conv33b", block("conv33a", block("proj33", x)), stride))
        pooled = pool(x, 3, stride, 1)
        branches.append(block("poolp", pooled) if "poolp" in names else pooled)
        return torch.cat(branches, 1)

    return reference


def _with_normalization(**shapes):
    """Returns the parameters and initial persistent values of normalized convolutions."""
    params, persistents = {}, {}
    for name, shape in shapes.items():
        size = shape[0]
        params |= {f"{name}/W": shape, f"{name}n/gamma": (size,), f"{name}n/beta": (size,)}
        persistents[f"{name}n/avg_mean"] = np.zeros(size)
        persistents[f"{name}n/avg_var"] = np.ones(size)
        persistents[f"{name}n/N"] = 0
    return {"params": params, "persistents": persistents}


FULL = _with_normalization(
    conv1=(2, 3, 1, 1),
    proj3=(3, 3, 1, 1),
    conv3=(4, 3, 3, 3),
    proj33=(2, 3, 1, 1),
    conv33a=(3, 2, 3, 3),
    conv33b=(3, 3, 3, 3),
    poolp=(2, 3, 1, 1),
)
STRIDED = _with_normalization(
    proj3=(3, 3, 1, 1),
    conv3=(4, 3, 3, 3),
    proj33=(2, 3, 1, 1),
    conv33a=(3, 2, 3, 3),
    conv33b=(3, 3, 3, 3),
)

TABLE = [
    row(
        "Highway",
        lambda: L.Highway(3),
        (4, 3),
        params={"plain/W": (3, 3), "plain/b": (3,), "transform/W": (3, 3), "transform/b": (3,)},
        reference=_highway,
    ),
    row(
        "Highway without bias",
        lambda: L.Highway(3, nobias=True, activate=F.tanh),
        (4, 3),
        params={"plain/W": (3, 3), "transform/W": (3, 3)},
    ),
    row(
        "MLPConvolution2D",
        lambda: L.MLPConvolution2D(3, (4, 2), 3, 2, 1, F.tanh),
        (2, 3, 5, 4),
        params={"0/W": (4, 3, 3, 3), "0/b": (4,), "1/W": (2, 4, 1, 1), "1/b": (2,)},
        lazy=lambda: L.MLPConvolution2D(None, (4, 2), 3, 2, 1, F.tanh),
        reference=_mlp,
    ),
    row(
        "Inception",
        lambda: L.Inception(3, 2, 3, 4, 2, 3, 1),
        (2, 3, 5, 4),
        params={
            "conv1/W": (2, 3, 1, 1),
            "conv1/b": (2,),
            "proj3/W": (3, 3, 1, 1),
            "proj3/b": (3,),
            "conv3/W": (4, 3, 3, 3),
            "conv3/b": (4,),
            "proj5/W": (2, 3, 1, 1),
            "proj5/b": (2,),
            "conv5/W": (3, 2, 5, 5),
            "conv5/b": (3,),
            "projp/W": (1, 3, 1, 1),
            "projp/b": (1,),
        },
        lazy=lambda: L.Inception(None, 2, 3, 4, 2, 3, 1),
        reference=_inception,
        eps=1e-5,
    ),
    row(
        "InceptionBN",
        lambda: L.InceptionBN(3, 2, 3, 4, 2, 3, "avg", 2, dtype=config.dtype),
        (2, 3, 5, 4),
        **FULL,
        lazy=lambda: L.InceptionBN(None, 2, 3, 4, 2, 3, "avg", 2),
        reference=_inception_bn({"conv1", "poolp"}, 1, TF.avg_pool2d),
        tolerance={np.float32: 1e-3},
        eps=1e-5,
    ),
    row(
        "InceptionBN with stride",
        lambda: L.InceptionBN(3, 0, 3, 4, 2, 3, "max", stride=2),
        (2, 3, 6, 4),
        **STRIDED,
        lazy=lambda: L.InceptionBN(None, 0, 3, 4, 2, 3, "max", stride=2),
        reference=_inception_bn(set(), 2, TF.max_pool2d),
        tolerance={np.float32: 1e-3},
        eps=1e-5,
    ),
]
globals().update(checks_of(TABLE))


def test_initial_values():
    link = L.Highway(2, init_Wh=0.5, init_bh=3)
    assert (link.plain.W.array == 0.5).all() and link.plain.b.array.tolist() == [3, 3]
    assert link.transform.b.array.tolist() == [-1, -1]
    link = L.MLPConvolution2D(2, (3, 4), 1, conv_init=0.5, bias_init=2)
    assert all((c.W.array == 0.5).all() and (c.b.array == 2).all() for c in link)
    link = L.InceptionBN(3, 2, 3, 4, 2, 3, "avg", conv_init=0.5, dtype=np.float64)
    assert (link.conv33a.W.array == 0.5).all() and link.conv1.W.dtype == np.float64
    assert not hasattr(link, "poolp")


def test_the_window_may_be_the_second_argument():
    link = L.MLPConvolution2D((3, 4), 2)
    assert link(np.ones((1, 2, 5, 5), np.float32)).shape == (1, 4, 4, 4)
    assert link[0].W.shape == (3, 2, 2, 2)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            ValueError,
            r"MLPConvolution2D: out_channels must be a tuple .* but is \(\)",
            lambda: L.MLPConvolution2D(3, (), 3),
        ),
        (
            ValueError,
            "MLPConvolution2D: out_channels must be a tuple .* but is 4",
            lambda: L.MLPConvolution2D(3, 4, 3),
        ),
        (
            ValueError,
            "InceptionBN: pooltype must be 'max' or 'avg', not 'min'",
            lambda: L.InceptionBN(3, 2, 3, 4, 2, 3, "min"),
        ),
        (
            ValueError,
            "InceptionBN: with stride=2, out1 must be 0, but is 2",
            lambda: L.InceptionBN(3, 2, 3, 4, 2, 3, "max", stride=2),
        ),
        (ValueError, "Linear: in_size must be positive, but is 0", lambda: L.Highway(0)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
