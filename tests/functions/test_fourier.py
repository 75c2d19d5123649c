"""Tests discrete Fourier transforms."""

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch


def _reference(function):
    def call(real, imag):
        y = function(torch.complex(real, imag))
        return y.real.clone(), y.imag.clone()

    return call


TABLE = [
    row("fft", lambda *x: F.fft(x), _reference(torch.fft.fft), (2, 5), (2, 5)),
    row("ifft", lambda *x: F.ifft(x), _reference(torch.fft.ifft), (2, 6), (2, 6)),
    row(
        "real part", lambda *x: F.fft(x)[0], lambda *x: _reference(torch.fft.fft)(*x)[0], (4,), (4,)
    ),
    row(
        "power",
        lambda *x: sum(y * y for y in F.fft(x)),
        lambda *x: sum(y * y for y in _reference(torch.fft.fft)(*x)),
        (3, 4),
        (3, 4),
    ),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "fourier") == set()


def test_one_undoes_the_other():
    x = [Variable(np.random.randn(2, 7)) for _ in range(2)]
    for y, z in zip(x, F.ifft(F.fft(x))):
        np.testing.assert_allclose(y.array, z.array, 1e-12)


def test_an_empty_batch():
    x = Variable(np.zeros((0, 3), np.float32))
    real, imag = F.fft((x, x.array))
    F.sum(imag).backward()
    assert real.shape == x.grad.shape == (0, 3) and real.dtype == np.float32


@pytest.mark.parametrize("function", [F.fft, F.ifft])
def test_wrong_inputs(function):
    name, x = function.__name__, np.ones((2, 3))
    for wrong in (x, (x,), np.ones((2, 3))):
        with pytest.raises(TypeError, match=rf"{name}: x must be a pair \(real, imag\), but is"):
            function(wrong)
    with pytest.raises(InvalidType, match=rf"{name}: real and imag must have .*\(2, 3\).*\(2,"):
        function((x, x[:, :2]))
    with pytest.raises(InvalidType, match=rf"{name}: real and imag must have .*float32"):
        function((x, x.astype(np.float32)))
    with pytest.raises(InvalidType, match=rf"{name}: .* must be floating point.*int64"):
        function((x.astype(np.int64),) * 2)
    with pytest.raises(InvalidType, match=rf"{name}: .* with a last axis.*\(\)"):
        function((np.array(1.0), np.array(1.0)))
