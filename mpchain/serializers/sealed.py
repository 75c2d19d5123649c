"""Checksums of all bytes of a file, which are verified without the library for its format.

A sealed file begins and ends with the same block of 512 bytes, which has the position and the
checksum of a table. The table, which stands before the last block, has a checksum of the bytes of
each array, and a checksum of all other bytes between the first block and the table. The format of
the file must allow both blocks: HDF5 lets a "user block" precede a file, and ignores bytes after
the file.
"""

import json
import os

from mpchain.serializer import DamagedFileError
from mpchain.serializers.files import crc32, parsing

BLOCK = 512
_MARK = b"mpchain sealed 1 "
_CHUNK = 1 << 20


def seal(path: str, ranges: dict[str, list[tuple[int, int]]]) -> None:
    """Seals a file whose first 512 bytes are free.

    Args:
        path: path of the file.
        ranges: maps each array to a list of (offset, length) of its bytes.

    Example:
        >>> with open("x", "wb") as file:
        ...     _ = file.write(bytes(BLOCK) + b"content")
        >>> seal("x", {"x": [(BLOCK, 7)]})
        >>> verify("x")
    """
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        table = {
            "arrays": {name: [_crc32(file, parts), parts] for name, parts in ranges.items()},
            "rest": _crc32(file, _others(ranges.values(), end)),
        }
        content = json.dumps(table).encode()
        block = _block(end, content)
        file.seek(end)
        file.write(content + block)
        file.seek(0)
        file.write(block)


def verify(path: str) -> None:
    """Verifies a file of :func:`seal`; accepts any file that was never sealed.

    Raises:
        DamagedFileError: the file is damaged; the message names the file and the damaged arrays.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        first = _read_at(file, 0, BLOCK)
        last = _read_at(file, max(size - BLOCK, 0), BLOCK)
        if not (first.startswith(_MARK) or last.startswith(_MARK)):
            return
        if first != last:
            raise DamagedFileError(f"{path} is damaged: its first and last block differ")
        table, end = _read_table(path, file, size, first)
        arrays = table["arrays"]
        damaged = [name for name, (value, parts) in arrays.items() if _crc32(file, parts) != value]
        if damaged:
            listing = ", ".join([*map(repr, damaged[:20]), *["..."][: len(damaged) > 20]])
            what = f"arrays {listing}" if damaged[1:] else f"array {listing}"
            raise DamagedFileError(f"{path}: {what} cannot be read: the content fails its checksum")
        ranges = [parts for _, parts in arrays.values()]
        if _crc32(file, _others(ranges, end)) != table["rest"]:
            raise DamagedFileError(
                f"{path} is damaged: the metadata of its arrays fails its checksum"
            )


def _block(end, table):
    text = _MARK + f"table={end} length={len(table)} crc32={crc32(table):08x}\n".encode()
    return text.ljust(BLOCK, b"\0")


def _read_table(path, file, size, block):
    """Returns the verified table of a file, and the table's position."""
    with parsing(f"{path} is damaged"):
        end = int(block.split()[3].removeprefix(b"table="))
        content = _read_at(file, end, size - BLOCK - end)
    if _block(end, content) != block:
        raise DamagedFileError(
            f"{path} is damaged: the table of its checksums fails its own checksum"
        )
    return json.loads(content), end


def _others(ranges, end):
    """Returns the ranges of bytes between the first block and ``end`` that are not in
    ``ranges``."""
    at, others = BLOCK, []
    for offset, length in sorted(part for parts in ranges for part in parts):
        others.append((at, offset - at))
        at = offset + length
    return [*others, (at, end - at)]


def _crc32(file, ranges):
    value = 0
    for offset, length in ranges:
        file.seek(offset)
        while length > 0 and (chunk := file.read(min(length, _CHUNK))):
            value = crc32(chunk, value)
            length -= len(chunk)
    return value


def _read_at(file, offset, length):
    file.seek(offset)
    return file.read(length)
