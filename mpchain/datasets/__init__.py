"""Datasets made of other datasets, and sets of real data."""

from mpchain.datasets.combined import (
    ConcatenatedDataset,
    DictDataset,
    TransformDataset,
    TupleDataset,
)
from mpchain.datasets.digits import get_digits, get_mnist5k
from mpchain.datasets.mnist import (
    get_fashion_mnist,
    get_fashion_mnist_labels,
    get_kuzushiji_mnist,
    get_kuzushiji_mnist_labels,
    get_mnist,
)
from mpchain.datasets.split import (
    SubDataset,
    get_cross_validation_datasets,
    get_cross_validation_datasets_random,
    split_dataset,
    split_dataset_n,
    split_dataset_n_random,
    split_dataset_random,
)

__all__ = [
    "ConcatenatedDataset",
    "DictDataset",
    "SubDataset",
    "TransformDataset",
    "TupleDataset",
    "get_cross_validation_datasets",
    "get_cross_validation_datasets_random",
    "get_digits",
    "get_fashion_mnist",
    "get_fashion_mnist_labels",
    "get_kuzushiji_mnist",
    "get_kuzushiji_mnist_labels",
    "get_mnist",
    "get_mnist5k",
    "split_dataset",
    "split_dataset_n",
    "split_dataset_n_random",
    "split_dataset_random",
]
