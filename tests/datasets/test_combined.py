"""Tests TupleDataset, DictDataset, ConcatenatedDataset and TransformDataset."""

import numpy as np
import pytest

from mpchain.datasets import ConcatenatedDataset, DictDataset, TransformDataset, TupleDataset


def test_tuple_dataset():
    x, t = np.arange(6.0).reshape(3, 2), [10, 20, 30]
    dataset = TupleDataset(x, t)
    assert len(dataset) == 3
    example = dataset[1]
    assert isinstance(example, tuple)
    np.testing.assert_array_equal(example[0], [2, 3])
    assert example[1] == 20
    assert [label for _, label in dataset[::-1]] == [30, 20, 10]
    assert dataset[-1][1] == 30


def test_dict_dataset():
    dataset = DictDataset(x=np.arange(3), t=[10, 20, 30])
    assert len(dataset) == 3
    assert dataset[1] == {"x": 1, "t": 20}
    assert dataset[1:] == [{"x": 1, "t": 20}, {"x": 2, "t": 30}]


@pytest.mark.parametrize("kind", [TupleDataset, DictDataset])
def test_datasets_side_by_side_must_exist(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__}: pass at least one dataset"):
        kind()


def test_datasets_side_by_side_must_have_one_length():
    with pytest.raises(ValueError, match="one length, but dataset 0 has 2, dataset 1 has 3"):
        TupleDataset([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="one length, but x has 2, t has 3"):
        DictDataset(x=[1, 2], t=[1, 2, 3])


def test_concatenated_dataset():
    dataset = ConcatenatedDataset([0, 1], [], np.array([2]), [3, 4])
    assert len(dataset) == 5
    assert list(dataset) == [0, 1, 2, 3, 4]
    assert dataset[1:4] == [1, 2, 3]
    assert dataset[-1] == 4
    with pytest.raises(IndexError):
        dataset[5]
    assert list(ConcatenatedDataset()) == []


def test_transform_dataset_transforms_when_read():
    seen = []

    def transform(example):
        seen.append(example)
        return example * 10

    dataset = TransformDataset([1, 2, 3], transform)
    assert len(dataset) == 3
    assert seen == []
    assert dataset[1] == 20
    assert seen == [2]
    assert dataset[:] == [10, 20, 30]


@pytest.mark.parametrize("indices", [[2, -3, 2], [True, False, True], []])
@pytest.mark.parametrize("as_index", [list, np.array])
def test_indices_give_columns(indices, as_index):
    x, words = np.arange(6.0).reshape(3, 2), ["a", "b", "c"]
    index = as_index(indices)
    index = index.astype(int) if as_index is np.array and not indices else index
    positions = np.arange(3)[index].tolist()
    columns = TupleDataset(x, words)[index]
    assert type(columns) is tuple
    np.testing.assert_array_equal(columns[0], x[index])
    assert columns[1] == [words[i] for i in positions]
    by_key = DictDataset(x=x, t=TupleDataset(x, x[:, 0]))[index]
    np.testing.assert_array_equal(by_key["x"], x[index])
    np.testing.assert_array_equal(by_key["t"][1], x[index, 0])


def test_batches_of_a_loop_without_iterator():
    x, t = np.random.RandomState(0).randn(7, 2), np.arange(7)
    data = TupleDataset(x, t)
    order = np.random.RandomState(1).permutation(7)
    for i in range(0, 7, 3):
        batch_x, batch_t = data[order[i : i + 3]]
        np.testing.assert_array_equal(batch_x, x[order[i : i + 3]])
        np.testing.assert_array_equal(batch_t, order[i : i + 3])
    assert type(data[1:3]) is list and len(data[1:3][0]) == 2
    assert data[np.int64(2)][1] == data[np.array(2)][1] == 2
