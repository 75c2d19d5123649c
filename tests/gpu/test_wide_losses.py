"""Tests the gradient of the cross entropy by wide loads: it has the bits of the narrow kernel."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain.kernels.gpu import cuda_losses, cuda_wide
from tests.gpu import nvrtc

SIZES = [(8, 3), (2, 8), (8, 13), (40, 130), (8, 1), (24, 2)]
"""Samples and classes: the elements fill words of 128 bits, but rows begin anywhere in them."""
OPTIONS = {
    "mean": {},
    "each sample": {"reduce": "no"},
    "weights": {"class_weight": True, "normalize": False},
}


def _gradient(device, x, t, options):
    send = mpchain.get_device(device).send
    options = dict(options)
    if options.get("class_weight"):
        options["class_weight"] = send(np.linspace(0.5, 2, x.shape[1]).astype(x.dtype))
    x = mpchain.Variable(send(x))
    loss = F.softmax_cross_entropy(x, send(t), **options)
    loss.grad = send(np.linspace(1, 2, loss.size).reshape(loss.shape).astype(x.dtype))
    loss.backward()
    return mpchain.cuda.to_cpu(x.grad)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("labels", ["i", "l"])
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_same_bits_as_the_narrow_kernel(options, dtype, labels, double, monkeypatch):
    for n, n_classes in SIZES:
        x = (3 * np.random.randn(n, n_classes)).astype(dtype)
        t = np.random.randint(0, n_classes, n).astype(labels)
        t[1] = -1
        double.reset()
        wide = _gradient("@cupy:0", x, t, options)
        assert any("gradient_wide" in name for name, _ in double.launches)
        with monkeypatch.context() as patch:
            patch.setattr(cuda_wide, "is_aligned", lambda x: False)
            double.reset()
            narrow = _gradient("@cupy:0", x, t, options)
        assert not any("gradient_wide" in name for name, _ in double.launches)
        np.testing.assert_array_equal(wide, narrow)
        tolerance = {"e": 4e-3, "f": 1e-5, "d": 1e-12}[dtype]
        right = _gradient("@numpy", x, t, options)
        np.testing.assert_allclose(wide, right, tolerance, tolerance)
    assert double.not_noted == {}


@pytest.mark.gpu
def test_extremes(double):
    x = np.random.randn(8, 4).astype("f")
    x[0, 1], x[1, 2], x[2, 0], x[3] = np.nan, np.inf, -np.inf, 3e38
    t = np.array([0, 1, 2, 3, 0, 1, 7, -5])  # the last two labels are no classes
    wide = _gradient("@cupy:0", x, t, {"reduce": "no"})
    assert np.isnan(wide[:2]).all()
    with np.errstate(invalid="ignore"):
        expected = np.exp(x - x.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
    expected -= np.arange(4) == t[:, None]
    expected *= np.linspace(1, 2, 8)[:, None]
    np.testing.assert_allclose(wide[2:6], expected[2:6], 1e-5, 1e-6)


@pytest.mark.gpu
def test_rows_that_fill_no_words_and_axes_after_the_classes(double):
    for shape in ((3, 5), (2, 4, 2)):
        x = np.random.randn(*shape).astype("e")
        t = np.zeros((shape[0], *shape[2:]), "i")
        double.reset()
        result = _gradient("@cupy:0", x, t, {})
        assert not any("gradient_wide" in name for name, _ in double.launches)
        np.testing.assert_allclose(result, _gradient("@numpy", x, t, {}), 4e-3, 4e-3)


@pytest.mark.skipif(nvrtc.load() is None, reason=nvrtc.REASON)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("kind, wide", [("float16", "float"), ("float", "float")])
def test_it_compiles(kind, wide, architecture):
    for star in ("", "*"):
        text = cuda_losses._WIDE_GRADIENT.format(
            header=cuda_wide.HEADER.format(kind=kind),
            gradient=cuda_losses._GRADIENT,
            **{"wide": wide, "g": kind, "t": "int", "star": star, "many": 8},
        )
        log, binary = nvrtc.compiled(text, architecture)
        assert log == "" and binary
