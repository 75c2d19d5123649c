"""Safetensors files: a JSON header, then the plain bytes of the arrays.

The library safetensors neither verifies checksums nor loads bfloat16 into NumPy, so this module
reads and writes the format itself. The header's metadata has checksums of the header and of each
array, which other readers ignore. Files of other programs have no checksums, and can be loaded as
well. Format: https://github.com/huggingface/safetensors
"""

import json
from collections.abc import Mapping

import numpy as np

from mpchain.backends.dtypes import as_dtype, is_bfloat16
from mpchain.serializers.files import File, crc32, name_of, open_file, parsing, view_of
from mpchain.serializers.npz import DictionarySerializer, IgnoreNames, restore
from mpchain.serializers.values import as_bytes, check_shape, from_bytes, is_none
from mpchain.typing import Array

_CODES = {"|b1": "BOOL", "|i1": "I8", "|u1": "U8"} | {
    f"<{kind}{n}": f"{kind.upper()}{8 * n}" for kind in "iuf" for n in (2, 4, 8)
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()} | {"BF16": "<u2", "C64": "<c8"}
_START = b'{"__metadata__": {"mpchain": "crc32='
_NO_CRC32 = b"00000000"
_MOST_HEADER = 100_000_000  # bytes; this is the limit of the format's own library


def save_safetensors(file: File, obj: object) -> None:
    """Saves an object (a link, an optimizer, a trainer, ...) to a safetensors file.

    Args:
        file: a path, written atomically under exactly that name, or a file object opened for
            writing bytes.
        obj: the object; its ``serialize`` method determines the values that are saved.

    Raises:
        TypeError: a value is not a number, boolean, string, array of these, or None.

    Example:
        >>> model, other = L.Linear(3, 2), L.Linear(3, 2)
        >>> save_safetensors("model.safetensors", model)
        >>> load_safetensors("model.safetensors", other)
        >>> np.array_equal(model.W.array, other.W.array)
        True
    """
    serializer = DictionarySerializer()
    serializer.save(obj)
    write_safetensors(file, serializer.target)


def load_safetensors(
    file: File, obj: object, path: str = "", strict: bool = True, ignore_names: IgnoreNames = None
) -> None:
    """Restores an object from a safetensors file of :func:`save_safetensors` or another program.

    The file is read and its checksums are verified before the object is changed. bfloat16 arrays
    of other programs become float32 if the object has no array for them.

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
        >>> write_safetensors("weights", {"linear/W": np.ones((2, 3), "f")})
        >>> link = L.Linear(3, 2, nobias=True)
        >>> load_safetensors("weights", link, path="linear")
    """
    with open_file(file) as opened:
        arrays = _read(name_of(opened), view_of(opened))
    restore("load_safetensors", file, arrays, obj, path, strict, ignore_names)


def write_safetensors(file: File, arrays: Mapping[str, Array]) -> None:
    """Writes a mapping of names to arrays as a safetensors file.

    Args:
        file: see :func:`save_safetensors`.
        arrays: maps names to arrays.

    Example:
        >>> write_safetensors("x.safetensors", {"x": np.arange(3)})
        >>> read_safetensors("x.safetensors")
        {'x': array([0, 1, 2])}
    """
    tensors, entries, records, at = {}, {}, {}, 0
    for key, array in arrays.items():
        plain = _plain(array)
        tensors[key] = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
        narrow = is_bfloat16(array.dtype)
        stored = array.dtype.name if narrow else array.dtype.str
        dtype = None if plain is array else "None" if is_none(array) else stored
        records[key] = [crc32(tensors[key]), dtype]
        code = "BF16" if narrow else _CODES[plain.dtype.str]
        entries[key] = {"dtype": code, "shape": plain.shape}
    # Arrays with large elements come first, so that each array is aligned to the size of its
    # elements.
    order = sorted(entries, key=lambda key: -np.dtype(_DTYPES[entries[key]["dtype"]]).itemsize)
    for key in order:
        entries[key]["data_offsets"] = [at, at + len(tensors[key])]
        at += len(tensors[key])
    with open_file(file, writes=True) as opened:
        opened.write(_header(entries, records))
        for key in order:
            opened.write(tensors[key])


def _plain(array):
    """Returns the array, a view as uint16 if it is bfloat16, its bytes if the format lacks another
    dtype, or an empty array for None."""
    if is_none(array):
        return np.empty(0, np.uint8)
    if is_bfloat16(array.dtype):
        return array.view(np.uint16)
    return array if array.dtype.str in _CODES else as_bytes(array)


def _header(entries, records):
    """Returns the bytes at the beginning of the file: the length of the header, and the header."""
    metadata = {
        "mpchain": f"crc32={_NO_CRC32.decode()}",
        "mpchain arrays": json.dumps(records, ensure_ascii=False),
    }
    text = json.dumps({"__metadata__": metadata} | entries, ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    at = len(_START)
    text = text[:at] + b"%08x" % crc32(text) + text[at + 8 :]
    return len(text).to_bytes(8, "little") + text


def read_safetensors(file: File) -> dict[str, Array]:
    """Reads a safetensors file and verifies it; see :func:`write_safetensors` for an example.

    Args:
        file: a path, or a file object opened for reading bytes.

    Returns:
        A dict from name to array.

    Raises:
        DamagedFileError: the file is damaged, or is not a safetensors file; the message names the
            file and, if one array is damaged, the array.
    """
    with open_file(file) as opened:
        return _read(name_of(opened), memoryview(opened.read()))


def _read(name, content):
    with parsing(f"{name} is not a safetensors file, or is damaged"):
        header, data = _split(content)
        records = json.loads(header.pop("__metadata__", {}).get("mpchain arrays", "{}"))
        _check_layout(header, len(data))
    arrays = {}
    for key, entry in header.items():
        with parsing(f"{name}: array {key!r} cannot be read"):
            arrays[key] = _parse(entry, data, records.get(key))
    return arrays


def _split(content):
    """Returns the header, which is parsed and verified, and the bytes of the data."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(len(content) - 8, _MOST_HEADER):
        raise ValueError(f"the header cannot have {length} bytes")
    text = bytes(content[8 : 8 + length])
    at = len(_START)
    if text.count(b'"mpchain') and text[at : at + 8] != b"%08x" % crc32(
        text[:at] + _NO_CRC32 + text[at + 8 :]
    ):
        raise ValueError("the header fails its checksum")
    return json.loads(str(text, "utf-8"), object_pairs_hook=_unique), content[8 + length :]


def _unique(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("the header has a name twice")
    return dict(pairs)


def _check_layout(header, size):
    """Raises an error unless the arrays fill the data without gap or overlap."""
    offsets = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    ends = [0, *(end for _, end in offsets)]
    starts = [*(start for start, _ in offsets), size]
    if ends != starts:
        raise ValueError(f"the {len(header)} arrays do not fill the {size} bytes of data")


def _parse(entry, data, record):
    """Returns the array of an entry of the header; it may be read-only."""
    code, shape = entry["dtype"], tuple(entry["shape"])
    if code not in _DTYPES:
        raise ValueError(f"dtype {code} is not supported")
    check_shape(shape)
    start, end = entry["data_offsets"]
    content = data[start:end]
    if record is not None and crc32(content) != record[0]:
        raise ValueError("the content fails its checksum")
    array = np.frombuffer(content, _DTYPES[code]).reshape(shape)
    if record is not None and record[1] == "bfloat16":
        return array.view(as_dtype("bfloat16"))
    if code == "BF16":  # bfloat16 is the upper half of a float32
        return (array.astype("<u4") << 16).view("<f4")
    return array if record is None or record[1] is None else from_bytes(array, record[1])
