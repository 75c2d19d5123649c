"""CIFAR-10 and CIFAR-100, downloaded once, in their binary form: no pickle is involved."""

import dataclasses
import os

import numpy as np

from mpchain.dataset import cache_or_load_file, cached_download, get_dataset_directory
from mpchain.dataset.archives import read_tar
from mpchain.datasets.pictures import make_datasets
from mpchain.serializers.npz import read_npz, write_npz

_PIXELS = 3 * 32 * 32


@dataclasses.dataclass(frozen=True)
class _Source:
    url: str
    sha256: str
    train: tuple  # files in the archive
    test: tuple
    n: int  # images in each of the files of the training set
    n_test: int
    n_labels: int  # bytes before the pixels; the last one is the label


_SOURCES = {
    "cifar10": _Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
        ("cifar-10-batches-bin/test_batch.bin",),
        10_000,
        10_000,
        1,
    ),
    "cifar100": _Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ("cifar-100-binary/train.bin",),
        ("cifar-100-binary/test.bin",),
        50_000,
        10_000,
        2,
    ),
}


def get_cifar10(withlabel=True, ndim=3, scale=1.0, dtype=None):
    """Returns CIFAR-10: 50,000 and 10,000 color pictures of 32x32 pixels in ten classes.

    It is downloaded (170 MB) on the first call and kept below
    :func:`mpchain.dataset.get_dataset_root`.

    Args:
        withlabel (bool): whether examples are pairs of image and label (int32), or images only.
        ndim (int): 3 for images of shape (3, 32, 32), 1 for (3072,).
        scale (float): pixels are between 0 and this.
        dtype: of the images; None for ``config.dtype``.

    Returns:
        Training and test set: two :class:`TupleDataset`, or two arrays of images without labels.

    Raises:
        OSError: it cannot be downloaded.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html
    """
    return _get("cifar10", withlabel, ndim, scale, dtype)


def get_cifar100(withlabel=True, ndim=3, scale=1.0, dtype=None):
    """Returns CIFAR-100: as CIFAR-10, but in 100 classes (arguments as :func:`get_cifar10`).

    The labels are the 100 fine ones.
    """
    return _get("cifar100", withlabel, ndim, scale, dtype)


def _get(name, *form):
    path = os.path.join(get_dataset_directory(name), "pixels_and_labels.npz")
    arrays = cache_or_load_file(path, lambda path: _create(name, path), read_npz)
    parts = [(arrays["train_x"], arrays["train_y"]), (arrays["test_x"], arrays["test_y"])]
    return make_datasets(f"get_{name}", parts, 255, *form, np.int32)


def _create(name, path):
    source = _SOURCES[name]
    record = source.n_labels + _PIXELS
    sizes = dict.fromkeys(source.train, source.n * record)
    sizes |= dict.fromkeys(source.test, source.n_test * record)
    try:
        files = read_tar(cached_download(source.url, source.sha256), sizes)
    except OSError as error:
        raise OSError(f"get_{name}: {error}") from error
    arrays = {}
    for part in ("train", "test"):
        content = b"".join([files[file] for file in getattr(source, part)])
        table = np.frombuffer(content, np.uint8).reshape(-1, record)
        arrays[f"{part}_x"] = table[:, source.n_labels :].reshape(-1, 3, 32, 32)
        arrays[f"{part}_y"] = table[:, source.n_labels - 1]
    write_npz(path, arrays)
    return arrays
