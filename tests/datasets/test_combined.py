"""TupleDataset, DictDataset, ConcatenatedDataset, TransformDataset."""

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
    assert [label for _, label in dataset[[2, 0]]] == [30, 10]
    assert dataset[-1][1] == 30


def test_dict_dataset():
    dataset = DictDataset(x=np.arange(3), t=[10, 20, 30])
    assert len(dataset) == 3
    assert dataset[1] == {"x": 1, "t": 20}
    assert dataset[1:] == [{"x": 1, "t": 20}, {"x": 2, "t": 30}]


@pytest.mark.parametrize("kind", [TupleDataset, DictDataset])
def test_datasets_side_by_side_must_exist(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__}: no datasets are given"):
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
