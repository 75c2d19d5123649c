"""Tests SubDataset and the functions that split datasets."""

import itertools

import numpy as np
import pytest

from mpchain import datasets
from mpchain.datasets import SubDataset


def lists(parts):
    return [list(part) for part in parts]


def test_sub_dataset():
    dataset = SubDataset("abcde", 1, 4)
    assert len(dataset) == 3
    assert list(dataset) == ["b", "c", "d"]
    assert dataset[-1] == "d"
    assert dataset[1:] == ["c", "d"]
    assert list(SubDataset("abcde", 1, 4, order=[4, 3, 2, 1, 0])) == ["d", "c", "b"]
    assert list(SubDataset("abcde", 1, 4, order=np.arange(5)[::-1])) == ["d", "c", "b"]
    with pytest.raises(IndexError, match="index 3 is out of range for 3 examples"):
        dataset[3]


@pytest.mark.parametrize(("start", "finish"), [(-1, 2), (2, 1), (0, 6)])
def test_sub_dataset_rejects_bounds(start, finish):
    with pytest.raises(ValueError, match=f"start is {start} and finish is {finish}"):
        SubDataset("abcde", start, finish)


def test_sub_dataset_rejects_an_order_of_another_length():
    with pytest.raises(ValueError, match="order must have the dataset's length 5, but has 2"):
        SubDataset("abcde", 0, 2, order=[0, 1])


def test_split_dataset():
    assert lists(datasets.split_dataset("abcd", 1)) == [["a"], ["b", "c", "d"]]
    assert lists(datasets.split_dataset("abcd", 4)) == [["a", "b", "c", "d"], []]
    order = [3, 2, 1, 0]
    assert lists(datasets.split_dataset("abcd", 1, order)) == [["d"], ["c", "b", "a"]]


def test_split_dataset_rejects():
    for split_at in (-1, 5):
        with pytest.raises(ValueError, match=f"between 0 and 4 .* not {split_at}"):
            datasets.split_dataset("abcd", split_at)
    with pytest.raises(TypeError):
        datasets.split_dataset("abcd", 1.5)


def test_split_dataset_random_has_the_order_of_the_seed():
    expected = np.random.RandomState(7).permutation(10).tolist()
    assert lists(datasets.split_dataset_random(range(10), 4, seed=7)) == [
        expected[:4],
        expected[4:],
    ]


@pytest.mark.parametrize(
    "split",
    [
        lambda: datasets.split_dataset_random(range(50), 20),
        lambda: datasets.split_dataset_n_random(range(50), 5),
        lambda: datasets.get_cross_validation_datasets_random(range(50), 5)[0],
    ],
)
def test_numpys_global_seed_determines_random_splits(split):
    np.random.seed(3)
    first = lists(split())
    np.random.seed(3)
    assert lists(split()) == first
    assert lists(split()) != first


def test_split_dataset_n_leaves_out_what_is_over():
    assert lists(datasets.split_dataset_n(range(11), 3)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert lists(datasets.split_dataset_n(range(2), 3)) == [[], [], []]
    parts = lists(datasets.split_dataset_n_random(range(9), 3, seed=0))
    assert sorted(itertools.chain(*parts)) == list(range(9))
    assert parts == lists(datasets.split_dataset_n_random(range(9), 3, seed=0))


def test_cross_validation_as_chainer_orders_it():
    # Chainer 7.8.1 returned these splits.
    assert [lists(pair) for pair in datasets.get_cross_validation_datasets(range(11), 3)] == [
        [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10]],
        [[7, 8, 9, 10, 0, 1, 2], [3, 4, 5, 6]],
        [[3, 4, 5, 6, 7, 8, 9, 10], [0, 1, 2]],
    ]


@pytest.mark.parametrize("n_folds", [1, 2, 3, 7, 20])
def test_cross_validation_tests_each_example_once(n_folds):
    pairs = datasets.get_cross_validation_datasets_random(range(20), n_folds, seed=1)
    assert len(pairs) == n_folds
    for train, test in pairs:
        assert sorted(list(train) + list(test)) == list(range(20))
    tests = [list(test) for _, test in pairs]
    assert sorted(itertools.chain(*tests)) == list(range(20))
    assert max(map(len, tests)) - min(map(len, tests)) <= 1


def test_numbers_of_parts_must_be_positive():
    with pytest.raises(ValueError, match="split_dataset_n: n must be at least 1, not 0"):
        datasets.split_dataset_n(range(3), 0)
    with pytest.raises(ValueError, match="n_folds must be at least 1, not -1"):
        datasets.get_cross_validation_datasets(range(3), -1)
