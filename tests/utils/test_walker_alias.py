"""Tests sampling by Walker's alias method."""

import numpy as np
import pytest

from mpchain.backends.cpu import CpuDevice
from mpchain.utils.walker_alias import WalkerAlias


@pytest.mark.parametrize("weights", [[1], [1, 2, 3, 4], [5, 0, 0, 1e-3], [0.25] * 4, [1, 1e6]])
def test_the_table_has_exactly_the_given_probabilities(weights):
    table = WalkerAlias(weights)
    n = len(weights)
    probabilities = table._shares / n
    np.add.at(probabilities, table._aliases, (1 - table._shares) / n)
    np.testing.assert_allclose(probabilities, np.divide(weights, np.sum(weights)), atol=1e-12)


@pytest.mark.parametrize("shape", [5, (), (3, 2), (0, 4)])
def test_shape_and_dtype_of_samples(shape):
    samples = WalkerAlias([1, 2]).sample(shape)
    assert samples.dtype == np.int32 and samples.shape == np.empty(shape).shape


def test_shares_of_samples():
    samples = WalkerAlias([1, 2, 0, 4, 3]).sample(50_000)
    expected = np.array([1, 2, 0, 4, 3]) / 10
    # The bound is five standard deviations of a share.
    bound = 5 * np.sqrt(expected * (1 - expected) / len(samples))
    assert (abs(np.bincount(samples, minlength=5) / len(samples) - expected) <= bound).all()


def test_samples_repeat_by_seed_and_after_a_move():
    table = WalkerAlias([1, 2, 3])
    first = table.sample(20)
    np.random.seed(0)
    assert (table.to_device(CpuDevice()).sample(20) == first).all()
    assert table.to_cpu() is table and table.device == CpuDevice() and table.xp is np


@pytest.mark.parametrize("probs", [[], [-1, 2], [0, 0], [np.nan, 1], [[1, 2]], [np.inf, 1]])
def test_weights_that_are_none(probs):
    with pytest.raises(ValueError, match="WalkerAlias: probs must be a vector of finite"):
        WalkerAlias(probs)
