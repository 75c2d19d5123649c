"""Tests the convolution family: values against PyTorch, lazy sizes, and wrong input."""

import inspect

import numpy as np
import pytest

from mpchain import links as L
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

TF = torch.nn.functional


def _layer(function, *arguments, **options):
    """Returns a reference with the parameter W and, if there is one, b."""
    return lambda w, x: function(x, w["W"], w.get("b"), *arguments, **options)


def _depthwise(stride, pad):
    def reference(w, x):
        multiplier, channels, *ksize = w["W"].shape
        W = w["W"].transpose(0, 1).reshape(channels * multiplier, 1, *ksize)
        return TF.conv2d(x, W, w.get("b"), stride, pad, groups=channels)

    return reference


def _local(stride):
    def reference(w, x):
        W, (kh, kw) = w["W"], w["W"].shape[4:]
        windows = x.unfold(2, kh, stride).unfold(3, kw, stride)
        return torch.einsum("ncijkl,oijckl->noij", windows, W) + w.get("b", 0)

    return reference


def _deformable(pad):
    """Returns a reference: a convolution of linearly interpolated pixels, with zeros outside."""

    def reference(w, x):
        W, (kh, kw) = w["deform_conv/W"], w["deform_conv/W"].shape[2:]
        offset = TF.conv2d(x, w["offset_conv/W"], w["offset_conv/b"], padding=pad)
        oh, ow = offset.shape[2:]
        row, column = torch.meshgrid(torch.arange(oh), torch.arange(ow), indexing="ij")
        y = 0
        for k in range(kh * kw):
            right = column + k % kw - pad + offset[:, k]
            down = row + k // kw - pad + offset[:, kh * kw + k]
            sizes = torch.tensor([x.shape[3], x.shape[2]])
            grid = (torch.stack([right, down], -1) * 2 + 1) / sizes - 1
            sample = TF.grid_sample(x, grid, "bilinear", "zeros", align_corners=False)
            y = y + torch.einsum("ncij,oc->noij", sample, W[:, :, k // kw, k % kw])
        return y + w["deform_conv/b"][:, None, None]

    return reference


TABLE = [
    row(
        "Convolution1D",
        lambda: L.Convolution1D(4, 6, 3, stride=2, pad=1, groups=2),
        (2, 4, 9),
        params={"W": (6, 2, 3), "b": (6,)},
        lazy=lambda: L.Convolution1D(None, 6, 3, stride=2, pad=1, groups=2),
        reference=_layer(TF.conv1d, 2, 1, groups=2),
    ),
    row(
        "Convolution2D",
        lambda: L.Convolution2D(4, 6, (3, 2), stride=(1, 2), pad=(1, 0), dilate=2, groups=2),
        (2, 4, 9, 8),
        params={"W": (6, 2, 3, 2), "b": (6,)},
        lazy=lambda: L.Convolution2D(None, 6, (3, 2), (1, 2), (1, 0), dilate=2, groups=2),
        reference=_layer(TF.conv2d, (1, 2), (1, 0), 2, 2),
    ),
    row(
        "Convolution2D of output and window",
        lambda: L.Convolution2D(3, 6, 3),
        (2, 3, 5, 5),
        params={"W": (6, 3, 3, 3), "b": (6,)},
        lazy=lambda: L.Convolution2D(6, 3),
        reference=_layer(TF.conv2d),
    ),
    row(
        "Convolution3D",
        lambda: L.Convolution3D(2, 3, 2, nobias=True),
        (2, 2, 3, 4, 3),
        params={"W": (3, 2, 2, 2, 2)},
        lazy=lambda: L.Convolution3D(None, 3, 2, nobias=True),
        reference=_layer(TF.conv3d),
    ),
    row(
        "ConvolutionND",
        lambda: L.ConvolutionND(2, 3, 4, 3),
        (2, 3, 5, 5),
        params={"W": (4, 3, 3, 3), "b": (4,)},
        lazy=lambda: L.ConvolutionND(2, None, 4, 3),
        reference=_layer(TF.conv2d),
    ),
    row(
        "Deconvolution1D",
        lambda: L.Deconvolution1D(4, 6, 3, stride=2, groups=2),
        (2, 4, 5),
        params={"W": (4, 3, 3), "b": (6,)},
        lazy=lambda: L.Deconvolution1D(None, 6, 3, stride=2, groups=2),
        reference=_layer(TF.conv_transpose1d, 2, groups=2),
    ),
    row(
        "Deconvolution2D",
        lambda: L.Deconvolution2D(4, 6, 3, stride=2, pad=1, outsize=(10, 9)),
        (2, 4, 5, 5),
        params={"W": (4, 6, 3, 3), "b": (6,)},
        lazy=lambda: L.Deconvolution2D(None, 6, 3, stride=2, pad=1, outsize=(10, 9)),
        reference=_layer(TF.conv_transpose2d, 2, 1, (1, 0)),
    ),
    row(
        "Deconvolution3D",
        lambda: L.Deconvolution3D(2, 3, 2, nobias=True),
        (2, 2, 3, 2, 3),
        params={"W": (2, 3, 2, 2, 2)},
        lazy=lambda: L.Deconvolution3D(None, 3, 2, nobias=True),
        reference=_layer(TF.conv_transpose3d),
    ),
    row(
        "DeconvolutionND",
        lambda: L.DeconvolutionND(2, 3, 4, 3, dilate=2),
        (2, 3, 5, 5),
        params={"W": (3, 4, 3, 3), "b": (4,)},
        lazy=lambda: L.DeconvolutionND(2, None, 4, 3, dilate=2),
        reference=_layer(TF.conv_transpose2d, dilation=2),
    ),
    row(
        "DilatedConvolution2D",
        lambda: L.DilatedConvolution2D(3, 4, 3, 2, 1, 2),
        (2, 3, 7, 8),
        params={"W": (4, 3, 3, 3), "b": (4,)},
        lazy=lambda: L.DilatedConvolution2D(None, 4, 3, 2, 1, 2),
        reference=_layer(TF.conv2d, 2, 1, 2),
    ),
    row(
        "DepthwiseConvolution2D",
        lambda: L.DepthwiseConvolution2D(3, 2, (3, 2), 2, 1),
        (2, 3, 5, 4),
        params={"W": (2, 3, 3, 2), "b": (6,)},
        lazy=lambda: L.DepthwiseConvolution2D(None, 2, (3, 2), 2, 1),
        reference=_depthwise(2, 1),
    ),
    row(
        "DepthwiseConvolution2D without bias",
        lambda: L.DepthwiseConvolution2D(3, 1, 2, nobias=True),
        (2, 3, 5, 4),
        params={"W": (1, 3, 2, 2)},
        reference=_depthwise(1, 0),
    ),
    row(
        "LocalConvolution2D",
        lambda: L.LocalConvolution2D(3, 4, (6, 5), 2, 2),
        (2, 3, 6, 5),
        params={"W": (4, 3, 2, 3, 2, 2), "b": (4, 3, 2)},
        lazy=lambda: L.LocalConvolution2D(None, 4, None, 2, 2),
        reference=_local(2),
    ),
    row(
        "LocalConvolution2D without bias",
        lambda: L.LocalConvolution2D(3, 2, 4, (3, 2), nobias=True),
        (2, 3, 4, 4),
        params={"W": (2, 2, 3, 3, 3, 2)},
        lazy=lambda: L.LocalConvolution2D(3, 2, ksize=(3, 2), nobias=True),
        reference=_local(1),
    ),
    row(
        "DeformableConvolution2D",
        lambda: L.DeformableConvolution2D(2, 3, (3, 2), pad=1),
        (2, 2, 4, 5),
        params={
            "offset_conv/W": (12, 2, 3, 2),
            "offset_conv/b": (12,),
            "deform_conv/W": (3, 2, 3, 2),
            "deform_conv/b": (3,),
        },
        lazy=lambda: L.DeformableConvolution2D(None, 3, (3, 2), pad=1),
        reference=_deformable(1),
        eps=1e-5,
    ),
]
globals().update(checks_of(TABLE))
WITH_ONE_WINDOW = [case for case in TABLE if case.name.startswith(("Conv", "Deconv", "De", "Di"))]
WITH_ONE_WINDOW = [case for case in WITH_ONE_WINDOW if not case.name.startswith("Deformable")]


@pytest.mark.parametrize("case", WITH_ONE_WINDOW, ids=lambda case: case.name)
def test_same_values_by_the_same_seed_lazy_or_not(case):
    if case.lazy is None:
        pytest.skip("needs a layer with lazy sizes")
    link, lazy = case.make(), case.lazy()
    np.random.seed(3)
    lazy(np.ones(case.inputs[0], np.float32))
    np.random.seed(3)
    link.W.initialize(link.W.shape)
    np.testing.assert_array_equal(lazy.W.array, link.W.array)


@pytest.mark.parametrize("case", WITH_ONE_WINDOW, ids=lambda case: case.name)
def test_from_params(case):
    link, x = case.make(), np.random.randn(*case.inputs[0]).astype(np.float32)
    known = inspect.signature(type(link)).parameters
    options = {name: value for name, value in link.printable_specs if name in known}
    for name in ("in_channels", "out_channels", "channel_multiplier", "ksize", "nobias"):
        options.pop(name, None)
    made = type(link).from_params(link.W, link.b, **options)
    np.testing.assert_array_equal(made(x).array, link(x).array)
    assert made.W.array is not link.W.array
    assert repr(made) == repr(link)


def test_repr():
    assert repr(L.Convolution2D(3, 4, 5, pad=2)) == (
        "Convolution2D(in_channels=3, out_channels=4, ksize=(5, 5), stride=(1, 1), pad=(2, 2), "
        "nobias=False, cover_all=False, dilate=(1, 1), groups=1)"
    )
    assert repr(L.DepthwiseConvolution2D(3, 2, 5)) == (
        "DepthwiseConvolution2D(in_channels=3, channel_multiplier=2, ksize=(5, 5), "
        "stride=(1, 1), pad=(0, 0), nobias=False)"
    )


def test_initial_values():
    assert (L.Convolution2D(3, 2, 3, initialW=0.5, initial_bias=2).W.array == 0.5).all()
    W = np.random.randn(3, 2, 3, 3).astype(np.float32)
    link = L.DeformableConvolution2D(2, 3, 3, deform_initialW=W)
    np.testing.assert_array_equal(link.deform_conv.W.array, W)
    assert link.offset_conv.W.array.any()
    assert not L.DeformableConvolution2D(2, 3, 3).deform_conv.W.array.any()


def test_deformable_convolution_without_offsets_is_a_convolution():
    link = L.DeformableConvolution2D(
        2, 3, 3, pad=1, offset_initialW=0, deform_initialW=None, deform_nobias=True
    )
    W = link.deform_conv.W.array[...] = np.random.randn(3, 2, 3, 3)
    x = np.random.randn(2, 2, 5, 4).astype(np.float32)
    expected = TF.conv2d(torch.tensor(x).double(), torch.tensor(W), padding=1)
    np.testing.assert_allclose(link(x).array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            ValueError,
            "groups=2 must divide out_channels=3",
            lambda: L.Convolution2D(4, 3, 3, groups=2),
        ),
        (
            ValueError,
            "groups=2 must divide in_channels=3",
            lambda: L.Convolution2D(3, 4, 3, groups=2),
        ),
        (
            ValueError,
            r"Convolution2D: x must have 4 axes \(N, C, ...\), but has shape \(2, 3\)",
            lambda: L.Convolution2D(None, 4, 3)(np.ones((2, 3), np.float32)),
        ),
        (
            ValueError,
            r"Deconvolution1D: groups=2 must divide in_channels=3",
            lambda: L.Deconvolution1D(None, 4, 3, groups=2)(np.ones((2, 3, 5), np.float32)),
        ),
        (
            ValueError,
            "Convolution2D: out_channels must be positive, but is 0",
            lambda: L.Convolution2D(3, 0, 3),
        ),
        (
            InvalidType,
            "Convolution1D: ksize must be one integer or 1, each at least 1: ksize: -1",
            lambda: L.Convolution1D(3, 4, -1),
        ),
        (
            InvalidType,
            r"Deconvolution2D: outsize must be .*: outsize: \(3, 4, 5\)",
            lambda: L.Deconvolution2D(3, 4, 1, outsize=(3, 4, 5)),
        ),
        (
            InvalidType,
            "DilatedConvolution2D: dilate must be .*: dilate: 0",
            lambda: L.DilatedConvolution2D(3, 4, 1, dilate=0),
        ),
        (
            InvalidType,
            "LocalConvolution2D: stride must be .*: stride: 0",
            lambda: L.LocalConvolution2D(3, 4, 5, 1, 0),
        ),
        (
            InvalidType,
            "DeformableConvolution2D: ksize must be",
            lambda: L.DeformableConvolution2D(3, 4, (1, 2, 3)),
        ),
        (ValueError, "ConvolutionND: ndim must be positive", lambda: L.ConvolutionND(0, 3, 4, 3)),
        (
            ValueError,
            "Convolution3D: groups must be positive, but is 0",
            lambda: L.Convolution3D(3, 4, 1, groups=0),
        ),
        (
            TypeError,
            "DepthwiseConvolution2D: in_channels must be an int, not 3.0",
            lambda: L.DepthwiseConvolution2D(3.0, 2, 3),
        ),
        (TypeError, "LocalConvolution2D: ksize must be given", lambda: L.LocalConvolution2D(3, 4)),
        (
            ValueError,
            r"LocalConvolution2D: in_size .* windows of size \(5, 5\) do not fit in \(4, 6\)",
            lambda: L.LocalConvolution2D(3, 4, (4, 6), 5),
        ),
        (
            ValueError,
            r"LocalConvolution2D: x must have 4 axes .* but has shape \(2, 3\)",
            lambda: L.LocalConvolution2D(3, 4, ksize=2)(np.ones((2, 3), "f")),
        ),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "message, call",
    [
        (
            "convolution_2d: x has 2 channels but W expects 3",
            lambda: L.Convolution2D(3, 2, 1)(np.ones((1, 2, 3, 3), "f")),
        ),
        (
            "depthwise_convolution_2d: W must have as many channels",
            lambda: L.DepthwiseConvolution2D(3, 2, 1)(np.ones((1, 2, 3, 3), "f")),
        ),
        (
            "local_convolution_2d: W must have weights for each",
            lambda: L.LocalConvolution2D(3, 2, 4, 1)(np.ones((1, 3, 3, 3), "f")),
        ),
    ],
)
def test_inputs_that_do_not_fit(message, call):
    with pytest.raises(Exception, match=message):
        call()
