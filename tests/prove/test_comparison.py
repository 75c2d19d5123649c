"""Tests gaps of arrays against a loop over their elements, and the largest finite number."""

import itertools
import math

import numpy as np
import pytest

from mpchain.prove.comparison import gap, largest

NUMBERS = [0.0, -0.0, 1.0, 1.0000001, -3e38, 3e38, math.inf, -math.inf, math.nan, 1e-45]


def _distance(a, b):
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    distance = abs(a - b)
    return math.inf if math.isnan(distance) else distance


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gaps_are_those_of_a_loop(dtype):
    with np.errstate(over="ignore"):
        pairs = np.array([*itertools.product(NUMBERS, repeat=2)], dtype)
    for rows in (pairs, *[pairs[i : i + 7] for i in range(0, len(pairs), 7)]):
        a, b = rows.T
        expected = max(_distance(*map(float, pair)) for pair in rows)
        found = gap(a, b, tolerance=0.0)
        assert (found[0], found.is_large) == (expected, expected > 0)
        index = found[1]
        assert _distance(float(a[index]), float(b[index])) == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_the_largest_is_finite(dtype):
    numbers = np.array([1, -7, 3], dtype)
    assert largest(numbers) == 7
    if dtype != np.int32:
        assert largest(np.append(numbers, dtype(np.nan))) == 7
        assert largest(np.append(numbers, dtype(-np.inf))) == 7
    assert largest(numbers[:0]) == 0
