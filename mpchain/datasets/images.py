"""Datasets of image files, decoded by Pillow (the extra ``data``) when they are read."""

import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import annexes, configuration
from mpchain.dataset import DatasetMixin
from mpchain.dataset.archives import check_names
from mpchain.datasets.combined import ConcatenatedDataset, TransformDataset
from mpchain.typing import Array, DTypeLike


class ImageDataset(DatasetMixin):
    """Image files, without labels.

    An example is an array of shape (channels, height, width): one channel for gray images (and
    palette images, whose values are palette indices), three for RGB, one more for transparency.
    The values are not scaled; they are mostly from 0 to 255. Images of different kinds or sizes
    must be converted to one form before they can be stacked into a batch.

    Args:
        paths: list of the paths of the files, or the path of a text file with one path per line.
        root: folder to which the paths are relative.
        dtype: the dtype of the arrays; None means ``config.dtype``.

    Raises:
        RuntimeError: Pillow is not installed (``pip install 'mpchain[data]'``).

    Example:
        >>> dataset = ImageDataset(["cat.png", "dog.png"], root="images")  # doctest: +SKIP
        >>> dataset[0].shape  # doctest: +SKIP
        (3, 224, 224)
    """

    def __init__(
        self,
        paths: str | os.PathLike | Sequence[str],
        root: str = ".",
        dtype: DTypeLike | None = None,
    ):
        load_pillow(type(self).__name__)
        self._paths = _read_lines(paths) if _is_path(paths) else list(paths)
        self._root = root
        self._dtype = configuration.get_dtype(dtype)

    def __len__(self) -> int:
        return len(self._paths)

    def get_example(self, i: int) -> Any:
        path = os.path.join(self._root, self._paths[i])
        with open(path, "rb") as file:
            return decode(path, file, self._dtype)


class _Labeled(DatasetMixin):
    """Base of datasets whose examples are pairs of image and label."""

    def __init__(self, images, labels, label_dtype):
        self._images = images
        self._labels = [np.array(label, label_dtype) for label in labels]

    def __len__(self):
        return len(self._labels)

    def get_example(self, i):
        return self._images[i], self._labels[i]


class LabeledImageDataset(_Labeled):
    """Image files with labels; an example is a pair of an array, as in :class:`ImageDataset`, and a
    label, an array of shape ().

    Args:
        pairs: list of pairs of path and label, or the path of a text file with a path, a space and
            a label in each line.
        root: folder to which the paths are relative.
        dtype: the dtype of the images; None means ``config.dtype``.
        label_dtype: the dtype of the labels.

    Raises:
        ValueError: a line has no integer label.
        RuntimeError: Pillow is not installed (``pip install 'mpchain[data]'``).

    Example:
        >>> pairs = [("cat.png", 0), ("dog.png", 1)]
        >>> dataset = LabeledImageDataset(pairs, root="images")  # doctest: +SKIP
        >>> image, label = dataset[1]  # doctest: +SKIP
    """

    def __init__(
        self,
        pairs: str | os.PathLike | Sequence[tuple[str, int]],
        root: str = ".",
        dtype: DTypeLike | None = None,
        label_dtype: DTypeLike = np.int32,
    ):
        found = _read_pairs(type(self).__name__, pairs) if _is_path(pairs) else list(pairs)
        paths, labels = zip(*found) if found else ((), ())
        super().__init__(ImageDataset(paths, root, dtype), labels, label_dtype)


class ZippedImageDataset(DatasetMixin):
    """The image files of a zip archive, in the archive's order; for the examples see
    :class:`ImageDataset`.

    The archive stays open while the dataset is used; other processes, and unpickled copies, open it
    again.

    Args:
        zipfilename: path of the archive, which must have only image files.
        dtype: the dtype of the arrays; None means ``config.dtype``.

    Raises:
        ValueError: the file is not a zip archive, or a member leads out of the archive's folder.
        RuntimeError: Pillow is not installed (``pip install 'mpchain[data]'``).

    Example:
        >>> ZippedImageDataset("images.zip")[0].shape  # doctest: +SKIP
        (3, 224, 224)
    """

    def __init__(self, zipfilename: str | os.PathLike, dtype: DTypeLike | None = None):
        load_pillow(type(self).__name__)
        self._path = os.fspath(zipfilename)
        self._dtype = configuration.get_dtype(dtype)
        self._archive: zipfile.ZipFile | None = None
        self._process: int | None = None
        self._names = [info.filename for info in self._open().infolist() if not info.is_dir()]
        check_names(self._path, self._names)

    def _open(self) -> zipfile.ZipFile:
        # A process shares the position in an open file with the processes that were forked from it.
        if self._archive is None or self._process != os.getpid():
            try:
                self._archive = zipfile.ZipFile(self._path)
            except zipfile.BadZipFile as error:
                raise ValueError(
                    f"{type(self).__name__}: {self._path} is not a zip archive: {error}"
                ) from error
            self._process = os.getpid()
        return self._archive

    def __getstate__(self) -> Any:
        return self.__dict__ | {"_archive": None, "_process": None}

    def close(self) -> None:
        """Closes the archive; reading an image opens it again."""
        if self._archive is not None and self._process == os.getpid():
            self._archive.close()
        self._archive = self._process = None

    def __del__(self) -> None:
        if getattr(self, "_archive", None) is not None:
            self.close()

    def __len__(self) -> int:
        return len(self._names)

    def get_example(self, i: int) -> Any:
        return self.read(self._names[i])

    def read(self, name: str) -> Array:
        """Returns the image with the given name in the archive, as an array."""
        path = f"{self._path}/{name}"
        try:
            content = self._open().read(name)
        except KeyError as error:
            raise ValueError(
                f"{type(self).__name__}: {self._path} has no member {name!r}"
            ) from error
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        return decode(path, io.BytesIO(content), self._dtype)


class MultiZippedImageDataset(ConcatenatedDataset):
    """The image files of several zip archives, one archive after another.

    Args:
        zipfilenames: list of paths of archives.
        dtype: the dtype of the arrays; None means ``config.dtype``.

    Example:
        >>> dataset = MultiZippedImageDataset(["a.zip", "b.zip"])  # doctest: +SKIP
    """

    def __init__(self, zipfilenames: Sequence[str | os.PathLike], dtype: DTypeLike | None = None):
        super().__init__(*[ZippedImageDataset(path, dtype) for path in zipfilenames])


class LabeledZippedImageDataset(_Labeled):
    """The image files of a zip archive with labels; see :class:`LabeledImageDataset`.

    Args:
        zipfilename: path of the archive.
        labelfilename: path of a text file with a name in the archive, a space and a label in each
            line.
        dtype: the dtype of the images; None means ``config.dtype``.
        label_dtype: the dtype of the labels.

    Raises:
        ValueError: the file is not a zip archive, a member leads out of the archive's folder, or a
            line has no integer label.
        RuntimeError: Pillow is not installed (``pip install 'mpchain[data]'``).

    Example:
        >>> image, label = LabeledZippedImageDataset("a.zip", "labels.txt")[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        zipfilename: str | os.PathLike,
        labelfilename: str | os.PathLike,
        dtype: DTypeLike | None = None,
        label_dtype: DTypeLike = np.int32,
    ):
        pairs = _read_pairs(type(self).__name__, labelfilename)
        names, labels = zip(*pairs) if pairs else ((), ())
        archive = ZippedImageDataset(zipfilename, dtype)
        super().__init__(TransformDataset(names, archive.read), labels, label_dtype)


def load_pillow(kind: str) -> Any:
    """Returns Pillow's module ``Image``.

    Raises:
        RuntimeError: Pillow is not installed; the message begins with ``kind``.
    """
    message = f"{kind}: Pillow is not installed: pip install 'mpchain[data]'"
    return annexes.library("PIL.Image", message)


def decode(path: str, file: object, dtype: DTypeLike, color: str | None = None) -> Array:
    """Returns the array of shape (channels, height, width) of an image.

    Args:
        path: the name of the image, for errors.
        file: the file object, or the path, that Pillow opens.
        dtype: the dtype of the array.
        color: Pillow's mode to which the image is converted; None leaves it unchanged.

    Raises:
        ValueError: the file cannot be read as an image.
    """
    try:
        with load_pillow("ImageDataset").open(file) as image:
            array = np.asarray(image if color is None else image.convert(color))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return np.ascontiguousarray(array, dtype)


def _is_path(paths):
    return isinstance(paths, (str, os.PathLike))


def _read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def _read_pairs(kind, path):
    pairs = []
    for line in _read_lines(path):
        name, *label = line.rsplit(maxsplit=1)
        try:
            pairs.append((name, int(label[0])))
        except (IndexError, ValueError) as error:
            raise ValueError(
                f"{kind}: each line of {path} must be a path, a space and an integer label, "
                f"but one is {line!r}"
            ) from error
    return pairs
