"""Tests that masks drawn by the compiled loop are those of NumPy's generator."""

import numpy as np
import pytest

import mpchain.functions as F
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.mersenne import GlobalMasks
from tests.kernels.needs import needs_numba

pytestmark = pytest.mark.slow
DTYPES = [np.float32, np.float64]


@pytest.fixture
def drawn_by_loop():
    with thresholds.using(compiled_loop=-1):
        yield GlobalMasks()


def by_numpy(shape, dtype, ratio):
    keep = np.random.random_sample(shape) >= ratio
    return keep.astype(dtype) * np.dtype(dtype).type(1 / (1 - ratio))


@needs_numba
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_words", [0, 1, 2, 623, 624, 625])
def test_the_masks_and_what_is_drawn_next(drawn_by_loop, n_words, dtype):
    for shape in ((0,), (1,), (311,), (312,), (313, 7), (2, 3, 1000)):
        np.random.seed(3)
        np.random.randint(0, 1 << 31, size=n_words, dtype=np.int32)  # a word each
        before = np.random.get_state()
        masks = [drawn_by_loop.factors(shape, np.dtype(dtype), r) for r in (0.0, 0.3, 0.99)]
        after = np.random.random_sample(3)
        np.random.set_state(before)
        for mask, ratio in zip(masks, (0.0, 0.3, 0.99)):
            assert mask.dtype == dtype
            np.testing.assert_array_equal(mask, by_numpy(shape, dtype, ratio))
        np.testing.assert_array_equal(after, np.random.random_sample(3))


@needs_numba
def test_ratios_between_neighbouring_numbers(drawn_by_loop):
    np.random.seed(0)
    (number,) = np.random.random_sample(1)
    for ratio in (np.nextafter(number, 0), number, np.nextafter(number, 1)):
        np.random.seed(0)
        mask = drawn_by_loop.factors((1,), np.dtype("d"), float(ratio))
        assert (mask[0] > 0) == (number >= ratio)


@needs_numba
def test_half_precision_and_other_generators_are_drawn_by_numpy(drawn_by_loop):
    np.random.seed(0)
    half = drawn_by_loop.factors((50,), np.dtype("e"), 0.5)
    np.random.seed(0)
    np.testing.assert_array_equal(half, by_numpy((50,), "e", 0.5))
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        mask = drawn_by_loop.factors((50,), np.dtype("f"), 0.5)
        np.random.set_bit_generator(np.random.PCG64(1))
        np.testing.assert_array_equal(mask, by_numpy((50,), "f", 0.5))
    finally:
        np.random.set_bit_generator(before)


def test_small_programs_compile_nothing():
    masks = GlobalMasks()
    for _ in range(3):
        masks.factors((100,), np.dtype("f"), 0.5)
    assert masks.switch.n_elements == 300


@needs_numba
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_draws_the_same_before_and_after_the_compilation(dtype):
    x, found = np.ones((40, 50), dtype), []
    for least in (1 << 40, -1):
        np.random.seed(2)
        with thresholds.using(compiled_loop=least):
            found.append([F.dropout(x, 0.4).array for _ in range(3)])
    np.testing.assert_array_equal(*found)
