"""NumPy's .npz files: a zip archive of one .npy file per array. Nothing is pickled or unpickled.

Each archive member has a checksum (CRC-32) of its content, and the archive's comment, at the end of
the file, has a checksum of the list of members. A mark in the header of each member shows that
there must be such a comment. All checksums are verified before any value is restored. Files of
Chainer 7 and of ``numpy.savez`` have neither mark nor comment, and can be loaded as well.
"""

import contextlib
import hashlib
import io
import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.lib import format as npy

from mpchain.serializer import DamagedFileError, Deserializer, MissingKeyError, Serializer
from mpchain.serializers import files, values
from mpchain.serializers.restoring import StoredArrays, restore_checked
from mpchain.typing import Array

NamePattern: TypeAlias = str | Callable[[str], bool]
IgnoreNames: TypeAlias = NamePattern | Collection[NamePattern] | None
"""The type of the argument ``ignore_names``: a name, a function that returns whether the entry of a
full name is ignored, or a collection of names and functions; None ignores nothing."""

_CHUNK = 1 << 20
_END = 22 + (1 << 16)  # the most bytes at the end of an archive that locate its directory
_MOST_HEADER = 1 << 16  # bytes of a member that are read to parse its header
_COMMENT = b"mpchain npz 1 "
_MARK = b"mp\x08\x00mpchain1"  # an "extra field" of zip with id, length and content
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

# Chainer 7 stored None as a pickled object array. These are the SHA-256 sums of the bytes that
# versions of NumPy write for None, by which None is recognized without unpickling.
_PICKLED_NONE = {
    "42d0d2122355569b3e1a93b250795f04ae397d9abd537a72b5b608d0810be2f3",
    "76b5f9760552cdb10626b6ad7ac42df51b7d52495ae9fc0bb96ecd0ba489d697",
    "b0dab5270003f00f00f247b2140e1b0f1d582b054613488bf280e59edbb6f1b4",
}


class DictionarySerializer(Serializer):
    """Saves into a dictionary of host arrays.

    Args:
        target: the dictionary to fill with ``'path/of/the/value': array``; None makes a new
            dictionary. Host arrays are not copied.
        path: prefix of the names.

    Example:
        >>> serializer = DictionarySerializer()
        >>> serializer.save(L.Linear(3, 2))
        >>> {name: array.shape for name, array in serializer.target.items()}
        {'W': (2, 3), 'b': (2,)}
    """

    def __init__(self, target: dict[str, Any] | None = None, path: str = "") -> None:
        self.target = {} if target is None else target
        self.path = _as_prefix(path)

    def __getitem__(self, key: str) -> Self:
        return type(self)(self.target, self.path + key.strip("/"))

    def __call__(self, key: str, value: object) -> Any:
        key = self.path + key.lstrip("/")
        self.target[key] = values.to_array(key, value)
        return value


class NpzDeserializer(Deserializer):
    """Restores from a mapping of names to host arrays.

    Args:
        npz: the result of :func:`numpy.load` for an .npz file, or the dictionary of a
            :class:`DictionarySerializer`.
        path: prefix of the names.
        strict: whether a missing entry is an error; if not, the object keeps its present value.
        ignore_names: entries to leave unchanged: a full name, a function from full names to bool,
            or a list of names and functions.

    Attributes:
        latest (list): a list with one element, the name that was requested last.

    Example:
        >>> link = L.Scale(W_shape=(2,))
        >>> NpzDeserializer({"W": np.array([3.0, 4.0])}).load(link)
        >>> link.W.array
        array([3., 4.], dtype=float32)
    """

    def __init__(
        self,
        npz: Mapping[str, Any],
        path: str = "",
        strict: bool = True,
        ignore_names: IgnoreNames = None,
    ) -> None:
        if isinstance(npz, np.lib.npyio.NpzFile):
            opened: Any = npz.zip
            npz = dict(_Members(files.name_of(opened.fp), opened, ""))
        self.npz = npz
        self.path = _as_prefix(path)
        self.strict = strict
        self.ignore_names: list[NamePattern] = _as_list(ignore_names)
        self.latest = [self.path]

    def __getitem__(self, key: str) -> "NpzDeserializer":
        path = self.path + key.strip("/")
        child = NpzDeserializer(self.npz, path, self.strict, self.ignore_names)
        child.latest = self.latest
        return child

    def __call__(self, key: str, value: Any) -> Any:
        self.latest[0] = key = self.path + key.lstrip("/")
        if self.ignores(key):
            return value
        if key in self.npz:
            return values.from_array(key, self.npz[key], value)
        if self.strict:
            raise MissingKeyError(f"there is no array {key!r}")
        return value

    def ignores(self, key: str) -> bool:
        """Returns whether ``ignore_names`` matches the full name ``key``."""
        return any(n == key if isinstance(n, str) else n(key) for n in self.ignore_names)


def _as_prefix(path):
    path = path.strip("/")
    return path + "/" if path else ""


def _as_list(ignore_names) -> list[NamePattern]:
    if ignore_names is None:
        return []
    names = list(ignore_names) if isinstance(ignore_names, (list, tuple, set)) else [ignore_names]
    for name in names:
        if not (isinstance(name, str) or callable(name)):
            raise ValueError(
                "NpzDeserializer: ignore_names must be a name, a function of a name, or a list of "
                f"names and functions, not {name!r}"
            )
    return names


def save_npz(file: files.File, obj: object, compression: bool = False) -> None:
    """Saves an object (a link, an optimizer, a trainer, ...) to an .npz file.

    Args:
        file: a path, written atomically under exactly that name, or a file object opened for
            writing bytes.
        obj: the object; its ``serialize`` method determines the values that are saved.
        compression: whether to compress the arrays. Trained weights are like noise to a compressor:
            compression takes some fifty times longer and saves little, so (unlike in Chainer) it is
            off by default.

    Raises:
        TypeError: a value is not a number, boolean, string, array of these, or None.

    Example:
        >>> model, other = L.Linear(3, 2), L.Linear(3, 2)
        >>> save_npz("model.npz", model)
        >>> load_npz("model.npz", other)
        >>> np.array_equal(model.W.array, other.W.array)
        True
    """
    serializer = DictionarySerializer()
    serializer.save(obj)
    write_npz(file, serializer.target, compression)


def load_npz(
    file: files.File,
    obj: object,
    path: str = "",
    strict: bool = True,
    ignore_names: IgnoreNames = None,
) -> None:
    """Restores an object from an .npz file.

    All arrays that the object requests are checked, and all checksums are verified, before the
    object is changed.

    Args:
        file: a path, or a file object opened for reading bytes.
        obj: the object.
        path: the object's path in the file, such as ``'updater/model:main/'`` in a snapshot.
        strict: whether an array that the file lacks is an error; if not, the object keeps its
            present value.
        ignore_names: arrays to leave unchanged: a full name, a function from full names to bool, or
            a list of names and functions.

    Raises:
        SerializationError: an array in the file does not match the object
            (:class:`MissingKeyError` if arrays are missing; the message lists all of them), or the
            file is damaged (:class:`DamagedFileError`).

    Example:
        >>> write_npz("snapshot", {"updater/model:main/W": np.ones((2, 3), "f")})
        >>> link = L.Linear(3, 2)
        >>> load_npz("snapshot", link, path="updater/model:main", strict=False)
        >>> link.W.array[0]
        array([1., 1., 1.], dtype=float32)
    """
    with open_npz(file, path, maps=True) as arrays:
        restore("load_npz", file, arrays, obj, path, strict, ignore_names)


def restore(
    function: str, file: files.File, arrays: Mapping[str, Array], obj: object, *options: Any
) -> None:
    """Restores an object from the arrays of a file.

    Args:
        function: the public function, for messages.
        file: the path or file object, for messages.
        arrays: maps names to arrays; see :func:`restore_checked`.
        obj: the object.
        options: ``path``, ``strict`` and ``ignore_names`` of :class:`NpzDeserializer`.
    """
    restore_checked(function, files.name_of(file), NpzDeserializer(arrays, *options), obj)


def write_npz(file: files.File, arrays: Mapping[str, Array], compression: bool = False) -> None:
    """Writes a mapping of names to arrays as an .npz file; for the arguments see :func:`save_npz`.

    Example:
        >>> write_npz("arrays.npz", {"x": np.arange(3)})
        >>> read_npz("arrays.npz")
        {'x': array([0, 1, 2])}
    """
    method = zipfile.ZIP_DEFLATED if compression else zipfile.ZIP_STORED
    with (
        files.fast_checksums(),
        files.open_file(file, writes=True) as opened,
        zipfile.ZipFile(opened, "w", method) as archive,
    ):
        for key, array in arrays.items():
            info = zipfile.ZipInfo(key + ".npy")
            info.compress_type = method
            info.extra = _MARK
            with archive.open(info, "w", force_zip64=True) as member:
                _write_member(member, array)
        archive.comment = _fingerprint(archive)


def _write_member(member, array):
    array = values.as_stored(array)
    header = {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": False}
    npy.write_array_header_1_0(member, header | {"shape": array.shape})
    data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    # The data is written in chunks, which stay in the cache between the checksum and the write.
    for start in range(0, len(data), _CHUNK):
        member.write(data[start : start + _CHUNK])


def _fingerprint(archive):
    """Returns the comment with the checksum of the directory, in which damage might hide an
    array."""
    members = archive.infolist()
    listing = "".join(
        f"{m.filename}:{m.compress_type}:{m.compress_size}:{m.file_size}:{m.CRC}\n" for m in members
    )
    return _COMMENT + f"members={len(members)} crc32={files.crc32(listing.encode()):08x}".encode()


def read_npz(file: files.File, path: str = "") -> dict[str, Array]:
    """Reads an .npz file and verifies it; see :func:`write_npz` for an example.

    Args:
        file: a path, or a file object opened for reading bytes.
        path: only arrays below this path are read.

    Returns:
        A dict from name to array.

    Raises:
        DamagedFileError: the file is damaged; the message names the file and the array.
    """
    with open_npz(file, path) as arrays:
        return dict(arrays)


@contextlib.contextmanager
def open_npz(file: files.File, path: str = "", maps: bool = False) -> Iterator[StoredArrays]:
    """Context manager: opens the arrays below a path in an .npz file; the arrays are read on
    access.

    Args:
        file: a path, or a file object opened for reading bytes.
        path: prefix of the names.
        maps: whether arrays may be views of the file, for a caller that copies them at once.

    Yields:
        A mapping of names to arrays.

    Raises:
        DamagedFileError: the file is not an .npz file, or its list of arrays is damaged; the
            message names the file.
    """
    with files.open_file(file) as opened:
        name = files.name_of(opened)
        with files.parsing(f"{name} is not an .npz file, or was truncated"):
            # The end of the file is read first without zipfile, which would report an error of the
            # disk as damage.
            opened.seek(max(opened.seek(0, os.SEEK_END) - _END, 0))
            opened.read()
            archive = zipfile.ZipFile(opened)
        with archive:
            opened.seek(0)
            is_ours = archive.comment.startswith(_COMMENT) or _MARK in opened.read(1024)
            if is_ours and archive.comment != _fingerprint(archive):
                raise DamagedFileError(f"{name} is damaged: its list of arrays fails its checksum")
            opened.seek(0)
            view = files.view_of(opened) if maps else None
            yield _Members(name, archive, _as_prefix(path), view)


class _Members(StoredArrays):
    """The arrays of an archive, which can also be read as views."""

    def __init__(self, name, archive, prefix, view=None):
        super().__init__({})
        self._name, self._archive, self._view, self._headers = name, archive, view, {}
        for info in archive.infolist():
            key, extension = os.path.splitext(info.filename)
            if key in self:
                raise DamagedFileError(f"{name} has two arrays named {key!r}")
            if key.startswith(prefix) and extension == ".npy":
                self._entries[key] = info

    def read(self, key):
        with self._parsing(key) as info:
            header, start = self._header(info)  # this checks the size against shape and dtype
            content = self._content(info)
            if header is None:
                return np.array(None)
            shape, dtype, fortran_order = header
            array = np.frombuffer(content, dtype, offset=start)  # the array is read-only
            return array.reshape(shape, order="F" if fortran_order else "C")

    def _content(self, info):
        if self._view is None or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            return self._archive.read(info)
        # When the header was read, the two entries of the member were compared. The local entry has
        # the lengths of the name and of the extra field at its end.
        at = info.header_offset + 26
        n_name, n_extra = np.frombuffer(self._view[at : at + 4], "<u2").tolist()
        content = self._view[at + 4 + n_name + n_extra :][: info.file_size]
        if files.crc32(content) != info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename!r}")
        return content

    def header(self, key):
        with self._parsing(key) as info:
            header, _ = self._header(info)
            return None if header is None or header[1] == values.NONE_DTYPE else header[:2]

    def verify(self, keys: Collection[str]):
        for key in self:
            if key in keys:
                self._kept[key] = self[key]
            else:  # reading in chunks saves memory
                with self._parsing(key) as info:
                    self._header(info)
                    with self._archive.open(info) as member:
                        while member.read(_CHUNK):
                            pass

    @contextlib.contextmanager
    def _parsing(self, key):
        with files.parsing(f"{self._name}: array {key!r} cannot be read"):
            yield self._entries[key]

    def _header(self, info):
        if info.filename not in self._headers:
            with self._archive.open(info) as member:
                header = _parse_header(member.read(_MOST_HEADER), info.file_size)
            self._headers[info.filename] = header
        return self._headers[info.filename]


def _parse_header(content, size):
    """Parses the first bytes of an .npy file of ``size`` bytes.

    Returns:
        ``((shape, dtype, whether in Fortran order), start)``, or ``(None, start)`` for a stored
        None; the data begins at ``start``.
    """
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in _HEADER_READERS:
        raise ValueError(f"version {version} of the .npy format is unknown")
    shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    start = stream.tell()
    if dtype.hasobject:
        if len(content) == size and hashlib.sha256(stream.read()).hexdigest() in _PICKLED_NONE:
            return None, start
        raise ValueError(
            "it holds pickled Python objects, which are never loaded: that could run any code"
        )
    values.check_shape(shape)
    expected = start + math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"the member has {size} bytes, but must have {expected}")
    return (shape, values.loaded_dtype(dtype), fortran_order), start
