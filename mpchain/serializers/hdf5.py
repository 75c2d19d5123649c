"""HDF5 files, through h5py (the extra ``io``): groups for children, one dataset per array.

Each dataset has an attribute with the checksum of its dtype, shape and content, which
:class:`HDF5Deserializer` verifies. A file of :func:`save_hdf5` moreover has the checksums of all
its bytes, since the HDF5 library may crash on a damaged file: :func:`load_hdf5` verifies them
before the library sees the file (see :mod:`mpchain.serializers.sealed`). Files of Chainer 7 have
neither and load as well.
"""

import contextlib
import io
import os
import zlib
from collections.abc import Mapping

import numpy as np

from mpchain.serializer import DamagedFileError, Deserializer, MissingKeyError, Serializer
from mpchain.serializers import sealed
from mpchain.serializers.files import is_of_the_system, replacing
from mpchain.serializers.npz import restore
from mpchain.serializers.values import as_bytes, from_array, from_bytes, is_none, to_array

_MOST_UNWRITTEN = 1 << 20  # bytes that a dataset may claim without having been written
_CHECKSUM = "mpchain crc32"
_DTYPE = "mpchain dtype"
"""Attribute of a dataset of bytes: the dtype that HDF5 does not know and the bytes have."""


class HDF5Serializer(Serializer):
    """Saves into an HDF5 group.

    Args:
        group (h5py.Group): where the object is put.
        compression (int): level of gzip (0 to 9) for arrays of more than one element; None for no
            compression.
    """

    def __init__(self, group, compression=4):
        _load_h5py("HDF5Serializer")
        self.group = group
        self.compression = compression

    def __getitem__(self, key):
        return HDF5Serializer(self.group.require_group(key.strip("/")), self.compression)

    def __call__(self, key, value):
        key = key.strip("/")
        array = to_array(f"{self.group.name}/{key}".lstrip("/"), value)
        if is_none(array):  # as Chainer stores None: a dataset without an element
            self.group.create_dataset(key, data=_load_h5py("HDF5Serializer").Empty("f"))
            return value
        plain = array if _is_known(array.dtype) else as_bytes(array)
        compression = self.compression if plain.size > 1 else None
        dataset = self.group.create_dataset(key, data=plain, compression=compression)
        dataset.attrs[_CHECKSUM] = _checksum(plain)
        if plain is not array:
            dataset.attrs[_DTYPE] = array.dtype.str
        return value


class HDF5Deserializer(Deserializer):
    """Restores from an HDF5 group.

    Args:
        group (h5py.Group): where the object is; None for nowhere, where everything is missing.
        strict (bool): whether a missing dataset is an error; otherwise the object keeps its present
            value.
    """

    def __init__(self, group, strict=True):
        self.group = group
        self.strict = strict

    def __getitem__(self, key):
        group = None if self.group is None else self.group.get(key.strip("/"))
        return HDF5Deserializer(group, self.strict)

    def __call__(self, key, value):
        key = key.strip("/")
        dataset = None if self.group is None else self.group.get(key)
        if dataset is not None:
            return from_array(key, _read(dataset), value)
        if self.strict:
            where = "a group that does not exist" if self.group is None else self.group.name
            raise MissingKeyError(f"there is no dataset {key!r} in {where}")
        return value


class _DeferringFile(io.FileIO):
    """A file for the HDF5 library that keeps an error in writing to itself until it is asked.

    The library cannot close a file that it cannot write to (the disk is full), and crashes later.
    """

    error = None

    def write(self, data):
        """Writes all of the data, or pretends to."""
        n_written, data = 0, memoryview(data)
        while n_written < len(data) and self.error is None:
            try:
                n_written += super().write(data[n_written:])
            except BaseException as error:
                self.error = error
        return len(data)

    def truncate(self, size):
        """Changes the size of the file, or pretends to."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size

    def raise_error(self):
        """Raises what went wrong first, if anything did."""
        if self.error is not None:
            raise self.error


def save_hdf5(filename, obj, compression=4):
    """Saves an object (a link, an optimizer, a trainer, ...) to an HDF5 file, atomically.

    Args:
        filename (str): path of the file.
        obj: the object; its ``serialize`` method says what is saved.
        compression (int): level of gzip (0 to 9); None for no compression, which is many times
            faster.

    Raises:
        TypeError: a value is no number, boolean, string or None.
        RuntimeError: h5py is not installed (``pip install 'mpchain[io]'``).
    """
    h5py = _load_h5py("save_hdf5")
    with replacing(filename) as temporary:
        with _DeferringFile(temporary, "w+") as deferring:
            with h5py.File(deferring, "w", userblock_size=sealed.BLOCK) as file:
                HDF5Serializer(file, compression).save(obj)
            deferring.raise_error()
        with h5py.File(temporary, "r") as file:
            ranges = {name: _ranges(dataset) for name, dataset in _datasets(h5py, file).items()}
        sealed.seal(temporary, ranges)


def load_hdf5(filename, obj):
    """Restores an object from an HDF5 file of :func:`save_hdf5`, of Chainer or of another program.

    What the object asks for must fit, and all checksums are verified, before it is touched. Files
    of other programs have no checksums: a damaged one may even hang the HDF5 library.

    Args:
        filename (str): path of the file.
        obj: the object.

    Raises:
        SerializationError: something in the file does not fit (:class:`MissingKeyError` if arrays
            are missing; the message lists all of them), or the file is damaged
            (:class:`DamagedFileError`).
        RuntimeError: h5py is not installed (``pip install 'mpchain[io]'``).
    """
    h5py = _load_h5py("load_hdf5")
    path = os.fspath(filename)
    sealed.verify(path)
    try:
        file = h5py.File(path, "r")
    except Exception as error:  # the bytes are foreign: whatever fails in reading them is damage
        if is_of_the_system(error):
            raise
        raise DamagedFileError(f"{path} is no HDF5 file, or was truncated: {error}") from error
    with file:
        try:
            datasets = _Datasets(h5py, file)
        except Exception as error:
            if is_of_the_system(error):
                raise
            raise DamagedFileError(f"{path} cannot be read: {error}") from error
        restore("load_hdf5", filename, datasets, obj)


class _Datasets(Mapping):
    """The datasets of a file as arrays by name, which are read when asked for."""

    def __init__(self, h5py, file):
        self._datasets, self._kept = _datasets(h5py, file), {}

    def __iter__(self):
        return iter(self._datasets)

    def __len__(self):
        return len(self._datasets)

    def __contains__(self, key):
        return key in self._datasets

    def __getitem__(self, key):
        return self._kept[key] if key in self._kept else _read(self._datasets[key])

    def header(self, key):
        """Returns (shape, dtype) of an array; None for None."""
        return _header(self._datasets[key])

    def verify(self, keys):
        """Reads the arrays of the given names, which verifies them. (The file's own checksums,
        where it has any, were verified before.)"""
        for key in self:
            self.header(key)
        self._kept = {key: self[key] for key in keys}


def _load_h5py(function):
    try:
        import h5py
    except ImportError as error:
        raise RuntimeError(
            f"{function}: h5py is not installed: pip install 'mpchain[io]'"
        ) from error
    return h5py


def _is_known(dtype):
    """Whether HDF5 has the dtype; strings of characters, times and long doubles it has not."""
    known = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return known or (dtype.kind == "S" and dtype.itemsize > 0)


def _checksum(array):
    """CRC-32 of an array's dtype, shape and content."""
    what = zlib.crc32(f"{array.dtype.str} {array.shape} ".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), what)


def _datasets(h5py, file):
    """The datasets of a file by name. (No links are followed: they might lead to other files.)"""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    return found


def _ranges(dataset):
    """Where a dataset's bytes are in the file: list of (offset, length)."""
    if dataset.shape is None or dataset.size == 0:
        return []
    if dataset.chunks is None:
        return [(dataset.id.get_offset(), dataset.id.get_storage_size())]
    chunks = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
    return [(chunk.byte_offset, chunk.size) for chunk in chunks]


def _header(dataset):
    """(shape, dtype) of the array that a dataset stands for; None for None."""
    with _reading(dataset):
        if not hasattr(dataset, "dtype"):
            raise ValueError("it is a group, not a dataset")
        if dataset.external or dataset.is_virtual:
            raise ValueError("its content is in other files, which are never opened")
        if dataset.shape is None:
            return None
        if dataset.dtype.hasobject:
            raise ValueError(f"dtype {dataset.dtype} of Python objects is not supported")
        if dataset.nbytes > _MOST_UNWRITTEN and dataset.id.get_storage_size() == 0:
            raise ValueError(f"its {dataset.nbytes} bytes were never written")
        dtype = dataset.attrs.get(_DTYPE)
        if dtype is None:
            return dataset.shape, dataset.dtype
        return None if dtype == "None" else (dataset.shape[:-1], np.dtype(dtype))


def _read(dataset):
    if _header(dataset) is None:
        return np.array(None)
    with _reading(dataset):
        array = dataset[()] if dataset.shape else np.array(dataset[()], dataset.dtype)
        expected = dataset.attrs.get(_CHECKSUM)
        if expected is not None and expected != _checksum(array):
            raise ValueError("it fails its checksum")
        dtype = dataset.attrs.get(_DTYPE)
        return array if dtype is None else from_bytes(array, dtype)


@contextlib.contextmanager
def _reading(dataset):
    try:
        yield
    except Exception as error:
        if is_of_the_system(error):
            raise
        name = dataset.name.lstrip("/")
        raise DamagedFileError(f"array {name!r} cannot be read: {error}") from error
