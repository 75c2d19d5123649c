"""A dataset of images in folders, with one folder for each class."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpchain import configuration
from mpchain.dataset import DatasetMixin
from mpchain.datasets.images import decode, load_pillow
from mpchain.typing import DTypeLike

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageFolderDataset(DatasetMixin):
    """The image files in a folder that has a folder for each class.

    An example is a pair of an array (channels, height, width), with values mostly from 0 to 255,
    and a label: the index of the class in :attr:`classes`, an array of shape (). Files are in the
    folder of their class or below it. They are sorted by class, then by path, so that all ranks
    have the same order. The dataset holds paths and labels; an image is decoded when it is read.

    Args:
        root: path of the folder.
        classes: names of the classes in the order of their labels; None means all folders, sorted.
        color: ``'RGB'`` or ``'L'`` (gray) converts all images; None leaves them unchanged.
        extensions: endings of the names of image files, in lower case.
        dtype: the dtype of the images; None means ``config.dtype``.
        label_dtype: the dtype of the labels.

    Attributes:
        classes: names of the classes.
        paths: paths of the files.
        labels: array of the labels, of shape (n,).

    Raises:
        ValueError: there are no classes, or a class has no folder or no images.
        RuntimeError: Pillow is not installed (``pip install 'mpchain[data]'``).

    Example:
        >>> dataset = ImageFolderDataset("flowers/train")  # doctest: +SKIP
        >>> dataset.classes  # doctest: +SKIP
        ['daisy', 'rose']
        >>> image, label = dataset[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        classes: Iterable[str] | None = None,
        *,
        color: str | None = "RGB",
        extensions: tuple[str, ...] = EXTENSIONS,
        dtype: DTypeLike | None = None,
        label_dtype: DTypeLike = np.int32,
    ):
        load_pillow("ImageFolderDataset")
        if classes is None:
            classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.classes = list(classes)
        if not self.classes:
            raise ValueError(f"ImageFolderDataset: {os.fspath(root)} has no folders of classes")
        found = [_images(os.path.join(root, name), extensions) for name in self.classes]
        self.paths = [path for paths in found for path in paths]
        self.labels = np.repeat(np.arange(len(found)), list(map(len, found))).astype(label_dtype)
        self._color = color
        self._dtype = configuration.get_dtype(dtype)

    def __len__(self) -> int:
        return len(self.paths)

    def get_example(self, i: int) -> Any:
        with open(self.paths[i], "rb") as file:
            image = decode(self.paths[i], file, self._dtype, self._color)
        return image, self.labels[i, ...]


def _images(folder, extensions):
    if not os.path.isdir(folder):
        raise ValueError(f"ImageFolderDataset: there is no folder {folder}")
    found = [
        os.path.join(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(tuple(extensions))
    ]
    if not found:
        endings = ", ".join(extensions)
        raise ValueError(f"ImageFolderDataset: {folder} has no images ({endings})")
    return sorted(found)
