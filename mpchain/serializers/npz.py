"""NumPy's .npz files: a zip archive of one .npy file per array. Nothing is pickled or unpickled.

Each array has the checksum of its archive member (CRC-32), and the archive's comment, at the end of
the file, has one of the list of members. A mark in the header of each member tells that there must
be such a comment. All is verified before anything is restored; files of Chainer 7 and of
``numpy.savez`` have neither mark nor comment and load as well.
"""

import contextlib
import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.lib import format as npy

from mpchain.serializer import DamagedFileError, Deserializer, MissingKeyError, Serializer
from mpchain.serializers.files import is_of_the_system, open_atomic
from mpchain.serializers.restoring import restore_checked
from mpchain.serializers.values import NONE_DTYPE, check_shape, from_array, to_array

_CHUNK = 1 << 20
_END = 22 + (1 << 16)  # bytes at the end of an archive, at most, that say where its directory is
_MOST_HEADER = 1 << 16  # bytes of a member that are read for its header
_COMMENT = b"mpchain npz 1 "
_MARK = b"mp\x08\x00mpchain1"  # an "extra field" of the zip format: id, length, content
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

# Chainer 7 stored None as a pickled object array, which NumPy (by version) writes as one of these.
_PICKLED_NONE = frozenset(
    (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q"
        b"\x02c_codecs\nencode\nq\x03X\x01\x00\x00\x00bq\x04X\x06\x00\x00\x00latin1q\x05\x86q"
        b"\x06Rq\x07\x87q\x08Rq\t(K\x01)cnumpy\ndtype\nq\nX\x02\x00\x00\x00O8q\x0b\x89\x88\x87q"
        b"\x0cRq\r(K\x03X\x01\x00\x00\x00|q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tq\x0fb"
        b"\x89]q\x10Natq\x11b.",
        b"\x80\x03cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q"
        b"\x02C\x01bq\x03\x87q\x04Rq\x05(K\x01)cnumpy\ndtype\nq\x06X\x02\x00\x00\x00O8q\x07\x89"
        b"\x88\x87q\x08Rq\t(K\x03X\x01\x00\x00\x00|q\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tq"
        b"\x0bb\x89]q\x0cNatq\rb.",
        b"\x80\x04\x95\x87\x00\x00\x00\x00\x00\x00\x00\x8c\x16numpy._core.multiarray\x94\x8c"
        b"\x0c_reconstruct\x94\x93\x94\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94K\x00\x85\x94"
        b"C\x01b\x94\x87\x94R\x94(K\x01)h\x03\x8c\x05dtype\x94\x93\x94\x8c\x02O8\x94\x89\x88"
        b"\x87\x94R\x94(K\x03\x8c\x01|\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?t\x94b\x89]"
        b"\x94Nat\x94b.",
    )
)


class DictionarySerializer(Serializer):
    """Saves into a dictionary of host arrays.

    Args:
        target (dict): filled with ``'path/of/the/value': array``; a new one for None. Arrays are
            not copied.
        path (str): where in it the object is put.
    """

    def __init__(self, target=None, path=""):
        self.target = {} if target is None else target
        self.path = _as_prefix(path)

    def __getitem__(self, key):
        return DictionarySerializer(self.target, self.path + key.strip("/"))

    def __call__(self, key, value):
        key = self.path + key.lstrip("/")
        self.target[key] = to_array(key, value)
        return value


class NpzDeserializer(Deserializer):
    """Restores from a mapping of names to host arrays.

    Args:
        npz: what :func:`numpy.load` returns for an .npz file, or the dictionary of a
            :class:`DictionarySerializer`.
        path (str): where in it the object is.
        strict (bool): whether a missing entry is an error; otherwise the object keeps its present
            value.
        ignore_names: entries to leave as they are: a full name, a function from full names to bool,
            or a list of these.

    Attributes:
        latest (list): the one name that was asked for last, for messages.
    """

    def __init__(self, npz, path="", strict=True, ignore_names=None):
        self.npz = dict(_Members(npz.zip, "")) if isinstance(npz, np.lib.npyio.NpzFile) else npz
        self.path = _as_prefix(path)
        self.strict = strict
        self.ignore_names = _as_list(ignore_names)
        self.latest = [self.path]

    def __getitem__(self, key):
        path = self.path + key.strip("/")
        child = NpzDeserializer(self.npz, path, self.strict, self.ignore_names)
        child.latest = self.latest
        return child

    def __call__(self, key, value):
        self.latest[0] = key = self.path + key.lstrip("/")
        if self.ignores(key):
            return value
        if key in self.npz:
            return from_array(key, self.npz[key], value)
        if self.strict:
            raise MissingKeyError(f"there is no array {key!r}")
        return value

    def ignores(self, key):
        """Returns whether ``ignore_names`` covers that full name."""
        return any(
            key == name if isinstance(name, str) else name(key) for name in self.ignore_names
        )


def _as_prefix(path):
    path = path.strip("/")
    return path + "/" if path else ""


def _as_list(ignore_names):
    if ignore_names is None:
        return []
    names = list(ignore_names) if isinstance(ignore_names, (list, tuple, set)) else [ignore_names]
    for name in names:
        if not (isinstance(name, str) or callable(name)):
            raise ValueError(
                "NpzDeserializer: ignore_names must be a name, a function of one, or a list of "
                f"these, not {name!r}"
            )
    return names


def save_npz(file, obj, compression=False):
    """Saves an object (a link, an optimizer, a trainer, ...) to an .npz file.

    Args:
        file: a path, written atomically under exactly that name, or a file object opened for
            writing bytes.
        obj: the object; its ``serialize`` method says what is saved.
        compression (bool): whether to compress. Trained weights are noise to a compressor: it costs
            some fifty times the time and saves little, so (unlike Chainer) it is off unless asked
            for.

    Raises:
        TypeError: a value is no number, boolean, string or None.
    """
    serializer = DictionarySerializer()
    serializer.save(obj)
    write_npz(file, serializer.target, compression)


def load_npz(file, obj, path="", strict=True, ignore_names=None):
    """Restores an object from an .npz file.

    What the object asks for must fit, and all checksums are verified, before it is touched.

    Args:
        file: a path, or a file object opened for reading bytes.
        obj: the object.
        path (str): where in the file it is, such as ``'updater/model:main/'`` in a trainer's
            snapshot.
        strict (bool): whether an array that the file lacks is an error; otherwise the object keeps
            its present value.
        ignore_names: arrays to leave as they are: a full name, a function from full names to bool,
            or a list of these.

    Raises:
        SerializationError: something in the file does not fit (:class:`MissingKeyError` if arrays
            are missing; the message lists all of them), or the file is damaged
            (:class:`DamagedFileError`).
    """
    with open_npz(file, path) as arrays:
        restore("load_npz", file, arrays, obj, path, strict, ignore_names)


def restore(function, file, arrays, obj, path="", strict=True, ignore_names=None):
    """Restores an object from the arrays of a file (arguments as :func:`load_npz`).

    Args:
        function (str): the public function, for messages.
        file: the file, for messages.
        arrays (Mapping): name to array.
    """
    deserializer = NpzDeserializer(arrays, path, strict, ignore_names)
    restore_checked(function, name_of(file), deserializer, obj)


def name_of(file):
    """Returns the name of a path or file object, for messages."""
    return os.fspath(file) if is_path(file) else str(getattr(file, "name", file))


def is_path(file):
    """Returns whether ``file`` is a path, not a file object."""
    return isinstance(file, (str, os.PathLike))


def write_npz(file, arrays: Mapping, compression=False):
    """Writes a mapping of names to arrays as an .npz file (arguments as :func:`save_npz`)."""
    if is_path(file):
        with open_atomic(file) as opened:
            write_npz(opened, arrays, compression)
        return
    method = zipfile.ZIP_DEFLATED if compression else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(key + ".npy")
            info.compress_type = method
            info.extra = _MARK
            with archive.open(info, "w", force_zip64=True) as member:
                _write_member(member, array)
        archive.comment = _fingerprint(archive)


def _write_member(member, array):
    npy.write_array_header_1_0(
        member,
        {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape},
    )
    data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    # In chunks, so that what the checksum has read is still in the cache when it is written.
    for start in range(0, len(data), _CHUNK):
        member.write(data[start : start + _CHUNK])


def _fingerprint(archive):
    """The comment without which damage to the directory might hide an array unnoticed."""
    members = archive.infolist()
    listing = "".join(
        f"{m.filename}:{m.compress_type}:{m.compress_size}:{m.file_size}:{m.CRC}\n" for m in members
    )
    return _COMMENT + f"members={len(members)} crc32={zlib.crc32(listing.encode()):08x}".encode()


def read_npz(file, path=""):
    """Reads an .npz file and verifies it.

    Args:
        file: a path, or a file object opened for reading bytes.
        path (str): read only what is below it.

    Returns:
        dict: name to array.

    Raises:
        DamagedFileError: the file is damaged; the message names file and array.
    """
    with open_npz(file, path) as arrays:
        return dict(arrays)


@contextlib.contextmanager
def open_npz(file, path=""):
    """Context manager: the arrays below a path in an .npz file, to be read when asked for.

    Args:
        file, path: see :func:`read_npz`.

    Yields:
        Mapping: name to array.

    Raises:
        DamagedFileError: the list of arrays is damaged; the message names the file.
    """
    if is_path(file):
        with open(file, "rb") as opened, open_npz(opened, path) as arrays:
            yield arrays
        return
    try:
        # First without zipfile, which takes an error of the system in reading the end for damage.
        file.seek(max(file.seek(0, os.SEEK_END) - _END, 0))
        file.read()
        archive = zipfile.ZipFile(file)
    except Exception as error:  # the bytes are foreign: whatever fails in reading them is damage
        if is_of_the_system(error):
            raise
        raise DamagedFileError(
            f"{name_of(file)} is no .npz file, or was truncated: {error}"
        ) from error
    with archive:
        archive.fp.seek(0)
        is_ours = archive.comment.startswith(_COMMENT) or _MARK in archive.fp.read(1024)
        if is_ours and archive.comment != _fingerprint(archive):
            raise DamagedFileError(
                f"{name_of(file)} is damaged: its list of arrays fails its checksum"
            )
        yield _Members(archive, _as_prefix(path))


class _Members(Mapping):
    """The arrays of an archive by name. What is kept of an array by :meth:`verify` is read once."""

    def __init__(self, archive, prefix):
        self._archive, self._infos, self._kept, self._headers = archive, {}, {}, {}
        for info in archive.infolist():
            key, extension = os.path.splitext(info.filename)
            if key in self._infos:
                raise DamagedFileError(f"{name_of(archive.fp)} has two arrays named {key!r}")
            if key.startswith(prefix) and extension == ".npy":
                self._infos[key] = info

    def __iter__(self):
        return iter(self._infos)

    def __len__(self):
        return len(self._infos)

    def __contains__(self, key):
        return key in self._infos

    def __getitem__(self, key):
        if key in self._kept:
            return self._kept[key]
        with self._reading(key) as info:
            self._header(info)  # first: the size that it means is that of the content, or it lies
            return parse_npy(self._archive.read(info))

    def header(self, key):
        """Returns (shape, dtype) of an array; None for None."""
        with self._reading(key) as info:
            header, _ = self._header(info)
            return None if header is None or header[1] == NONE_DTYPE else header[:2]

    def verify(self, keys):
        """Verifies all arrays; those of the given names are kept, of others no more than a part
        is in memory at a time."""
        for key in self:
            if key in keys:
                self._kept[key] = self[key]
            else:
                with self._reading(key) as info:
                    self._header(info)
                    with self._archive.open(info) as member:
                        while member.read(_CHUNK):
                            pass

    @contextlib.contextmanager
    def _reading(self, key):
        try:
            yield self._infos[key]
        except Exception as error:
            if is_of_the_system(error):
                raise
            raise DamagedFileError(
                f"{name_of(self._archive.fp)}: array {key!r} cannot be read: {error}"
            ) from error

    def _header(self, info):
        if info.filename not in self._headers:
            self._headers[info.filename] = self._read_header(info)
        return self._headers[info.filename]

    def _read_header(self, info):
        with self._archive.open(info) as member:
            return _parse_header(member.read(_MOST_HEADER), info.file_size)


def parse_npy(content):
    """Returns the (read-only) array in the bytes of an .npy file: exactly its header and its data.

    Raises:
        ValueError: they are not that, or hold pickled objects.
    """
    header, start = _parse_header(content, len(content))
    if header is None:
        return np.array(None)
    shape, dtype, fortran_order = header
    array = np.frombuffer(content, dtype, offset=start)
    return array.reshape(shape, order="F" if fortran_order else "C")


def _parse_header(content, size):
    """Reads the first bytes of an .npy file of that size.

    Returns:
        ``((shape, dtype, whether in Fortran's order), start)``, or ``(None, start)`` for None;
        ``start`` is where the data begin.
    """
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in _HEADER_READERS:
        raise ValueError(f"version {version} of the .npy format is unknown")
    shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    start = stream.tell()
    if dtype.hasobject:
        if len(content) == size and stream.read() in _PICKLED_NONE:
            return None, start
        raise ValueError(
            "it holds pickled Python objects, which are never loaded since that could run any code"
        )
    check_shape(shape)
    expected = start + math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"it has {size} bytes, but should have {expected}")
    return (shape, dtype, fortran_order), start
