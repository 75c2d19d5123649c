"""CIFAR-10 and CIFAR-100, downloaded once in their binary form, which is read without pickle."""

from typing import NamedTuple

import numpy as np

from mpchain.dataset.archives import read_tar
from mpchain.datasets.combined import TupleDataset
from mpchain.datasets.downloads import load, make_datasets
from mpchain.serializers.npz import read_npz
from mpchain.typing import Array, DTypeLike

_PIXELS = 3 * 32 * 32


class _Source(NamedTuple):
    url: str
    sha256: str
    train: dict[str, int]  # maps each file in the archive to its number of images
    test: dict[str, int]
    n_labels: int  # bytes before the pixels; the last of these bytes is the label


SOURCES = {
    "cifar10": _Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        {f"cifar-10-batches-bin/data_batch_{i}.bin": 10_000 for i in range(1, 6)},
        {"cifar-10-batches-bin/test_batch.bin": 10_000},
        n_labels=1,
    ),
    "cifar100": _Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        {"cifar-100-binary/train.bin": 50_000},
        {"cifar-100-binary/test.bin": 10_000},
        n_labels=2,
    ),
}


def get_cifar10(
    withlabel: bool = True, ndim: int = 3, scale: float = 1.0, dtype: DTypeLike | None = None
) -> list[TupleDataset] | list[Array]:
    """Returns CIFAR-10: 50,000 and 10,000 color images of 32x32 pixels in ten classes.

    The data is downloaded (170 MB) by the first call and cached in
    :func:`mpchain.dataset.get_dataset_root`.

    Args:
        withlabel: whether examples are pairs of image and label (int32), or images only.
        ndim: 3 for images of shape (3, 32, 32), 1 for (3072,).
        scale: the greatest value of a pixel; the least is 0.
        dtype: the dtype of the images; None means ``config.dtype``.

    Returns:
        Training and test set: two :class:`TupleDataset`, or two arrays of images without labels.

    Raises:
        OSError: the download failed.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
    https://www.cs.toronto.edu/~kriz/cifar.html

    Example:
        >>> train, test = mpchain.datasets.get_cifar10()  # doctest: +SKIP
        >>> train[0][0].shape, len(train), len(test)  # doctest: +SKIP
        ((3, 32, 32), 50000, 10000)
    """
    return _get("cifar10", withlabel, ndim, scale, dtype)


def get_cifar100(
    withlabel: bool = True, ndim: int = 3, scale: float = 1.0, dtype: DTypeLike | None = None
) -> list[TupleDataset] | list[Array]:
    """Returns CIFAR-100, which has 100 classes; for the arguments see :func:`get_cifar10`.

    The labels are the 100 fine labels, not the 20 coarse ones.

    Example:
        >>> train, test = mpchain.datasets.get_cifar100(ndim=1)  # doctest: +SKIP
    """
    return _get("cifar100", withlabel, ndim, scale, dtype)


def _get(name, withlabel, ndim, scale, dtype):
    kept = {f"cifar/{name.replace('cifar', 'cifar-')}.npz": _read}  # the name in Chainer's cache
    file = f"{name}/pixels_and_labels"
    arrays = load(f"get_{name}", file, lambda fetch: _make(name, fetch), kept=kept)
    return make_datasets(f"get_{name}", arrays, 255, withlabel, ndim, scale, dtype, np.int32)


def _read(path):
    arrays = read_npz(path)
    return arrays | {key: arrays[key].reshape(-1, 3, 32, 32) for key in ("train_x", "test_x")}


def _make(name, fetch):
    source = SOURCES[name]
    record = source.n_labels + _PIXELS
    sizes = {file: n * record for file, n in (source.train | source.test).items()}
    content = read_tar(fetch(source.url, source.sha256), sizes)
    arrays = {}
    for part, files in (("train", source.train), ("test", source.test)):
        joined = b"".join([content[file] for file in files])
        table = np.frombuffer(joined, np.uint8).reshape(-1, record)
        arrays[f"{part}_x"] = table[:, source.n_labels :].reshape(-1, 3, 32, 32)
        arrays[f"{part}_y"] = table[:, source.n_labels - 1]
    return arrays
