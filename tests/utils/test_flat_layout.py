"""Tests the layout of arrays one after another in flat arrays of one dtype."""

import math

import numpy as np
import pytest

from mpchain.utils.flat_layout import FlatLayout, layouts, put

SHAPES = {"a": (3, 4), "b": (), "c": (0, 2), "d": (5,), "e": (2, 2, 2)}


def layout():
    made = FlatLayout(np.float32)
    for name, shape in SHAPES.items():
        made.append(name, shape)
    return made


def test_views_are_the_whole_array_in_order():
    flat = np.arange(26, dtype=np.float32)
    views = layout().views(flat)
    assert {name: view.shape for name, view in views.items()} == SHAPES
    assert all(view.size == 0 or np.shares_memory(view, flat) for view in views.values())
    np.testing.assert_array_equal(np.concatenate([v.reshape(-1) for v in views.values()]), flat)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_filling(dtype):
    rng = np.random.default_rng(0)
    arrays = {name: np.asarray(rng.normal(size=s), dtype) for name, s in SHAPES.items()}
    arrays["d"] = None
    flat = np.full(26, np.nan, np.float32)
    made = layout()
    assert made.fill(flat, arrays, 0.5) is flat
    for name, view in made.views(flat).items():
        expected = np.zeros(5) if name == "d" else 0.5 * arrays[name].astype(np.float64)
        np.testing.assert_allclose(view, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 26, 40])
def test_parts_cover_each_array_once(size):
    made = layout()
    length = -(-made.size // size)
    parts = [made.part(rank, size) for rank in range(size)]
    for name, shape in SHAPES.items():
        elements = [i for part in parts for i in range(*part[name].indices(math.prod(shape)))]
        assert elements == list(range(math.prod(shape)))
    for part in parts:
        assert sum(place.stop - place.start for place in part.values()) <= length


def test_one_layout_for_each_dtype_unless_it_is_long():
    arrays = [(i, np.zeros(3, dtype)) for i, dtype in enumerate("fdfdff")]
    assert [list(made.slices) for made in layouts(arrays)] == [[0, 2, 4, 5], [1, 3]]
    assert [list(made.slices) for made in layouts(arrays, 24)] == [[0, 2], [1], [3], [4, 5]]
    assert [made.dtype for made in layouts(arrays)] == [np.float32, np.float64]
    assert layouts([]) == []


def test_a_factor_does_not_round_in_the_narrower_dtype():
    view = np.zeros(1, np.float32)
    put(view, np.array([60000], np.float16), 3)
    assert view == 180000
