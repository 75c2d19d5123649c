"""Tests batches that are copied while the GPU computes with the previous batch."""

import numpy as np
import pytest

import mpchain
from mpchain.dataset import ConcatWithAsyncTransfer

pytestmark = pytest.mark.gpu


def test_each_batch_is_there_when_it_is_used():
    convert, device = ConcatWithAsyncTransfer(), mpchain.get_device("@cupy:0")
    results = []
    for i in range(5):
        x, t = convert([(np.full(3, i, np.float32), i), (np.ones(3, np.float32), -i)], device)
        results.append((x * 2, t + 1))
    for i, (x, t) in enumerate(results):
        assert x.get().tolist() == [[2 * i] * 3, [2] * 3]
        assert t.get().tolist() == [i + 1, 1 - i]


def test_the_last_batches_are_kept_while_kernels_use_them(double):
    convert, device = ConcatWithAsyncTransfer(), mpchain.get_device("@cupy:0")
    for i in range(3):
        x = convert([np.full(3, i, np.float32)], device)
        y = x + 1
        del x
    before = len(double.faults)
    del convert
    assert double.faults[before:] == []
    assert y.get().tolist() == [[3] * 3]
