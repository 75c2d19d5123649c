"""Tests the indexing of datasets."""

import numpy as np
import pytest

from mpchain.dataset import DatasetMixin


class Squares(DatasetMixin):
    def __len__(self):
        return 5

    def get_example(self, i):
        return i * i


@pytest.mark.parametrize(
    "index",
    [
        0,
        4,
        -1,
        -5,
        np.int64(2),
        np.array(3),
        slice(None),
        slice(1, 4),
        slice(None, None, -2),
        slice(7, 9),
        [0, -1],
        np.array([], int),
        np.array([3, 3, 0]),
        np.array([True, False, False, True, False]),
        [False, True, False, False, True],
    ],
    ids=repr,
)
def test_indices_mean_what_they_mean_to_an_array(index):
    expected = np.arange(5)[index] ** 2
    result = Squares()[index]
    assert isinstance(result, list) == (expected.ndim > 0)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("index", [5, -6, [0, 5], np.array([-6])])
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError, match=r"Squares: index (5|-6) is out of range for 5 examples"):
        Squares()[index]


def test_a_boolean_index_must_cover_the_dataset():
    with pytest.raises(IndexError, match=r"Squares: a boolean index must have shape \(5,\)"):
        Squares()[np.array([True, False])]


def test_an_index_must_be_an_integer():
    with pytest.raises(TypeError):
        Squares()[1.5]


def test_iteration_ends():
    assert list(Squares()) == [0, 1, 4, 9, 16]


def test_no_indices():
    assert Squares()[[]] == []


def test_what_a_dataset_does_not_define():
    class Unbounded(DatasetMixin):
        def get_example(self, i):
            return i**2

    assert Unbounded()[1000] == 1_000_000
    with pytest.raises(NotImplementedError, match="Unbounded does not implement __len__"):
        len(Unbounded())
    with pytest.raises(NotImplementedError, match="DatasetMixin does not implement get_example"):
        DatasetMixin().get_example(0)
