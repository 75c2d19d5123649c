"""Data sets that are downloaded and converted once."""

import os
from collections.abc import Callable

import numpy as np

from mpchain import configuration
from mpchain.dataset import cache_or_load_file, cached_download, get_dataset_directory
from mpchain.dataset.cache import find_kept
from mpchain.datasets.combined import TupleDataset
from mpchain.serializers.npz import read_npz, write_npz
from mpchain.typing import Array, DTypeLike


def load(
    function: str,
    name: str,
    make: Callable,
    compression: bool = False,
    hint: str = "",
    kept: dict[str, Callable] | None = None,
) -> dict[str, Array]:
    """Returns the arrays of a data set, from mpchain's cache, Chainer's cache, or a download.

    Args:
        function: the public function, for messages.
        name: folder and name of the file in the cache, without extension.
        make: function of ``fetch`` that returns a dict of arrays; ``fetch(url, sha256)``
            downloads a file and returns its path.
        compression: whether the file in the cache is compressed.
        hint: text that is added to the message if a download fails.
        kept: dict from each file in which Chainer stores the data set, below ``pfnet/chainer``, to
            a function of its path that returns a dict of arrays.

    Raises:
        OSError: a download failed.

    Example:
        >>> load("get_mine", "mine/table", lambda fetch: make(fetch(url, sha256)))  # doctest: +SKIP
    """

    def fetch(url, sha256):
        try:
            return cached_download(url, sha256)
        except OSError as error:
            raise OSError(f"{function}: {error}{hint}") from error

    def create(path):
        arrays = make(fetch)
        write_npz(path, arrays, compression=compression)
        return arrays

    folder, stem = os.path.split(name)
    path = os.path.join(get_dataset_directory(folder), f"{stem}.npz")
    if kept and not os.path.exists(path):
        files = [find_kept("pfnet", "chainer", *file.split("/")) for file in kept]
        if None not in files:
            return {k: v for read, file in zip(kept.values(), files) for k, v in read(file).items()}
    return cache_or_load_file(path, create, read_npz)


def make_datasets(
    function: str,
    arrays: dict[str, Array],
    white: int,
    withlabel: bool,
    ndim: int,
    scale: float,
    dtype: DTypeLike,
    label_dtype: DTypeLike,
    rgb_format: bool = False,
) -> list:
    """Makes a dataset of each part of a data set, such as its training and test set.

    Args:
        function: the public function, for messages.
        arrays: for each part, the images ``<part>_x``, integers of shape (n, height, width) or
            (n, channels, height, width) from 0 to ``white``, and the labels ``<part>_y`` of shape
            (n,).
        white: the largest pixel value.
        withlabel: whether examples are pairs of image and label, or images only.
        ndim: number of axes of an image: 1 for (pixels,), 2 for (height, width), which is
            impossible for images with channels, or 3 for (channels, height, width).
        scale: the value to which ``white`` is scaled; 0 stays 0.
        dtype: the dtype of the images; None means ``config.dtype``.
        label_dtype: the dtype of the labels.
        rgb_format: whether to repeat the only channel three times; requires ``ndim=3``.

    Returns:
        A list with a :class:`TupleDataset`, or an array of images, for each part.

    Example:
        >>> arrays = {"train_x": np.full((1, 2, 2), 255), "train_y": np.array([7])}
        >>> (train,) = make_datasets("get_mine", arrays, 255, True, 1, 1.0, np.float32, np.int32)
        >>> train[0]
        (array([1., 1., 1., 1.], dtype=float32), np.int32(7))
    """
    parts = [name.removesuffix("_x") for name in arrays if name.endswith("_x")]
    has_channels = arrays[f"{parts[0]}_x"].ndim == 4
    if ndim not in ((1, 3) if has_channels else (1, 2, 3)):
        allowed = "1 or 3" if has_channels else "1, 2 or 3"
        raise ValueError(f"{function}: ndim must be {allowed}, not {ndim!r}")
    if rgb_format and ndim != 3:
        raise ValueError(f"{function}: rgb_format needs ndim=3, but ndim is {ndim}")
    dtype = configuration.get_dtype(dtype)
    brightness = (np.arange(white + 1) * (scale / white)).astype(dtype)
    datasets = []
    for part in parts:
        images = _with_axes(brightness[arrays[f"{part}_x"]], ndim, rgb_format)
        labels = arrays[f"{part}_y"].astype(label_dtype)
        datasets.append(TupleDataset(images, labels) if withlabel else images)
    return datasets


def _with_axes(images, ndim, rgb_format):
    n, *channels, height, width = images.shape
    if rgb_format:
        return np.repeat(images[:, None], 3, axis=1)
    return images.reshape(
        {1: (n, -1), 2: images.shape, 3: (n, *(channels or (1,)), height, width)}[ndim]
    )
