"""HDF5 files, through h5py (the extra ``io``): groups for children, one dataset per array.

Each dataset of an array has an attribute with the checksum of dtype, shape and content, which
:class:`HDF5Deserializer` verifies. A file of :func:`save_hdf5` also has checksums of all its bytes,
because the HDF5 library may crash on a damaged file: :func:`load_hdf5` verifies them before the
library reads the file (see :mod:`mpchain.serializers.sealed`). Files of Chainer 7 have neither kind
of checksums, and can be loaded as well.
"""

import io
import os
from collections.abc import Collection
from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.serializer import Deserializer, MissingKeyError, Serializer
from mpchain.serializers import sealed, values
from mpchain.serializers.files import PathLike, crc32, parsing, replacing
from mpchain.serializers.npz import restore
from mpchain.serializers.restoring import StoredArrays

_MOST_UNWRITTEN = 1 << 20  # bytes that a dataset may claim without being written
_CHECKSUM = "mpchain crc32"
_DTYPE = "mpchain dtype"
"""Attribute of a dataset of bytes: the dtype of the bytes, which HDF5 does not know."""


class HDF5Serializer(Serializer):
    """Saves into an HDF5 group.

    Args:
        group (h5py.Group): the group for the object.
        compression: gzip level (0 to 9) for arrays with more than one element; None disables
            compression.

    Raises:
        RuntimeError: h5py is not installed (``pip install 'mpchain[io]'``).

    Example:
        >>> import h5py
        >>> with h5py.File("model.h5", "w") as group:
        ...     HDF5Serializer(group).save(L.Linear(3, 2))
        ...     HDF5Deserializer(group).load(L.Linear(3, 2))
        ...     group["W"].shape
        (2, 3)
    """

    def __init__(self, group: Any, compression: int | None = 4) -> None:
        _load_h5py("HDF5Serializer")
        self.group = group
        self.compression = compression

    def __getitem__(self, key: str) -> "HDF5Serializer":
        return HDF5Serializer(self.group.require_group(key.strip("/")), self.compression)

    def __call__(self, key: str, value: Any) -> Any:
        key = key.strip("/")
        array = values.to_array(f"{self.group.name}/{key}".lstrip("/"), value)
        if values.is_none(array):  # Chainer represents None by an empty dataset
            self.group.create_dataset(key, data=_load_h5py("HDF5Serializer").Empty("f"))
            return value
        array = values.as_stored(array)
        plain = array if _is_known(array.dtype) else values.as_bytes(array)
        compression = self.compression if plain.size > 1 else None
        dataset = self.group.create_dataset(key, data=plain, compression=compression)
        dataset.attrs[_CHECKSUM] = _checksum(plain)
        if plain is not array:
            dataset.attrs[_DTYPE] = array.dtype.str
        return value


class HDF5Deserializer(Deserializer):
    """Restores from an HDF5 group.

    Args:
        group (h5py.Group): the group of the object; None stands for an empty group.
        strict: whether a missing dataset is an error; if not, the object keeps its present value.

    Example:
        >>> HDF5Deserializer(None, strict=False).load(L.Linear(3, 2))
    """

    def __init__(self, group: Any, strict: bool = True) -> None:
        self.group = group
        self.strict = strict

    def __getitem__(self, key: str) -> "HDF5Deserializer":
        group = None if self.group is None else self.group.get(key.strip("/"))
        return HDF5Deserializer(group, self.strict)

    def __call__(self, key: str, value: Any) -> Any:
        key = key.strip("/")
        dataset = None if self.group is None else self.group.get(key)
        if dataset is not None:
            return values.from_array(key, _read(dataset), value)
        if self.strict:
            where = "a group that does not exist" if self.group is None else self.group.name
            raise MissingKeyError(f"there is no dataset {key!r} in {where}")
        return value


class _DeferringFile(io.FileIO):
    """A file that hides write errors from the HDF5 library.

    The library cannot close a file to which it cannot write (for example on a full disk), and
    crashes later.

    Attributes:
        error: the first error, which is raised when the library has closed the file.
    """

    error = None

    def write(self, data):
        """Writes all of the data, or pretends to after an error."""
        n_written, data = 0, memoryview(data)
        while n_written < len(data) and self.error is None:
            try:
                n_written += super().write(data[n_written:])
            except BaseException as error:
                self.error = error
        return len(data)

    def truncate(self, size):
        """Changes the size of the file, or pretends to after an error."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size


def save_hdf5(filename: PathLike, obj: object, compression: int | None = 4) -> None:
    """Saves an object (a link, an optimizer, a trainer, ...) to an HDF5 file, atomically.

    Args:
        filename: path of the file.
        obj: the object; its ``serialize`` method determines the values that are saved.
        compression: gzip level (0 to 9); None disables compression, which is many times faster.

    Raises:
        TypeError: a value is not a number, boolean, string, array of these, or None.
        RuntimeError: h5py is not installed (``pip install 'mpchain[io]'``).

    Example:
        >>> model, other = L.Linear(3, 2), L.Linear(3, 2)
        >>> save_hdf5("model.h5", model)
        >>> load_hdf5("model.h5", other)
        >>> np.array_equal(model.W.array, other.W.array)
        True
    """
    h5py = _load_h5py("save_hdf5")
    with replacing(filename) as temporary:
        with _DeferringFile(temporary, "w+") as deferring:
            with h5py.File(deferring, "w", userblock_size=sealed.BLOCK) as file:
                HDF5Serializer(file, compression).save(obj)
            if deferring.error is not None:
                raise deferring.error
        with h5py.File(temporary, "r") as file:
            ranges = {name: _ranges(dataset) for name, dataset in _datasets(h5py, file).items()}
        sealed.seal(temporary, ranges)


def load_hdf5(filename: PathLike, obj: object) -> None:
    """Restores an object from an HDF5 file of :func:`save_hdf5`, of Chainer or of another program.

    All arrays that the object requests are checked, and all checksums are verified, before the
    object is changed. Files of other programs have no checksums: a damaged file may even make the
    HDF5 library hang.

    Args:
        filename: path of the file.
        obj: the object.

    Raises:
        SerializationError: an array in the file does not match the object
            (:class:`MissingKeyError` if arrays are missing; the message lists all of them), or the
            file is damaged (:class:`DamagedFileError`).
        RuntimeError: h5py is not installed (``pip install 'mpchain[io]'``).

    Example:
        >>> optimizer = optimizers.Adam().setup(L.Linear(3, 2))
        >>> save_hdf5("optimizer.h5", optimizer)
        >>> load_hdf5("optimizer.h5", optimizer)
    """
    h5py = _load_h5py("load_hdf5")
    path = os.fspath(filename)
    sealed.verify(path)
    with parsing(f"{path} is not an HDF5 file, or was truncated"):
        file = h5py.File(path, "r")
    with file:
        with parsing(f"{path} cannot be read"):
            datasets = _Datasets(_datasets(h5py, file))
        restore("load_hdf5", filename, datasets, obj)


class _Datasets(StoredArrays):
    """The datasets of an open file."""

    def read(self, key):
        return _read(self._entries[key])

    def header(self, key):
        return _header(self._entries[key])

    def verify(self, keys: Collection[str]):
        # Reading verifies the checksum of an array. A file with checksums was verified as a whole
        # when it was opened, so arrays that are not read were verified, too.
        for key in self:
            self.header(key)
        self._kept = {key: self[key] for key in keys}


def _load_h5py(function):
    message = f"{function}: h5py is not installed: pip install 'mpchain[io]'"
    return annexes.library("h5py", message)


def _is_known(dtype):
    """Returns whether HDF5 has a dtype; strings of characters, times and long doubles are
    missing."""
    known = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    known = known or (dtype.kind == "S" and dtype.itemsize > 0)
    return known or values.loaded_dtype(dtype) != dtype


def _checksum(array):
    """Returns the CRC-32 of an array's dtype, shape and content."""
    what = crc32(f"{array.dtype.str} {array.shape} ".encode())
    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), what)


def _datasets(h5py, file):
    """Returns the datasets of a file by name, except links, which might refer to other files."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    return found


def _ranges(dataset):
    """Returns the positions of a dataset's bytes in the file: a list of (offset, length)."""
    if dataset.shape is None or dataset.size == 0:
        return []
    if dataset.chunks is None:
        return [(dataset.id.get_offset(), dataset.id.get_storage_size())]
    chunks = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
    return [(chunk.byte_offset, chunk.size) for chunk in chunks]


def _header(dataset):
    """Returns (shape, dtype) of the array that a dataset stores, or None for a stored None."""
    with _reading(dataset):
        if not hasattr(dataset, "dtype"):
            raise ValueError("the entry is a group, not a dataset")
        if dataset.external or dataset.is_virtual:
            raise ValueError("the content is in other files, which are never opened")
        if dataset.shape is None:
            return None
        if dataset.dtype.hasobject:
            raise ValueError(f"dtype {dataset.dtype}, which holds Python objects, is not supported")
        if dataset.nbytes > _MOST_UNWRITTEN and dataset.id.get_storage_size() == 0:
            raise ValueError(f"the {dataset.nbytes} bytes of the dataset were never written")
        dtype = dataset.attrs.get(_DTYPE)
        if dtype is None:
            return dataset.shape, values.loaded_dtype(dataset.dtype)
        return None if dtype == "None" else (dataset.shape[:-1], np.dtype(dtype))


def _read(dataset):
    if _header(dataset) is None:
        return np.array(None)
    with _reading(dataset):
        array = dataset[()] if dataset.shape else np.array(dataset[()], dataset.dtype)
        expected = dataset.attrs.get(_CHECKSUM)
        if expected is not None and expected != _checksum(array):
            raise ValueError("the content fails its checksum")
        if (dtype := dataset.attrs.get(_DTYPE)) is None:
            return array.view(values.loaded_dtype(array.dtype))
        return values.from_bytes(array, dtype)


def _reading(dataset):
    return parsing(f"array {dataset.name.lstrip('/')!r} cannot be read")
