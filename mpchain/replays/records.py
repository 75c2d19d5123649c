"""The file of a record: lines of JSON, each with a checksum."""

import json
import os
import zlib
from typing import Any

NAME = "record.jsonl"
FORMAT = 1


class RecordError(Exception):
    """A record cannot be used; the message is one sentence.

    >>> read("missing")
    Traceback (most recent call last):
    mpchain.replays.records.RecordError: there is no record in missing: run the program ...
    """


def line_of(content: dict[str, Any]) -> bytes:
    """Returns the content as a line of the file, with a checksum.

    >>> line_of({"t": 1})
    b'fe1bb45d {"t":1}\\n'
    """
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _content_of(line):
    """Returns the content of a line without its end; None if the line is damaged."""
    checksum, _, text = line.partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None


def read(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the contents of a record's lines; a truncated last line is left out.

    Raises:
        RecordError: there is no record, or it is damaged.
    """
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(
            f"there is no record in {os.fspath(folder)}: run the program with "
            f"--record={os.fspath(folder)}"
        ) from None
    *lines, rest = data.split(b"\n")
    contents = []
    for number, line in enumerate(lines, 1):
        content = _content_of(line)
        if content is None:
            if number == len(lines) and not rest:
                break
            # A killed writer left a part of a line, and another writer appended lines.
            raise RecordError(f"{path} is damaged in line {number}: restore it from a copy")
        contents.append(content)
    if not contents:
        raise RecordError(f"{path} holds no whole line: the run was killed before its first step")
    form = contents[0].get("format")
    if form != FORMAT:
        raise RecordError(
            f"{path} has format {form!r}, but this version of mpchain reads only {FORMAT}"
        )
    return contents


class Writer:
    """Appends whole lines to the record in a folder, so that no line is lost if the run is killed.

    Args:
        folder: the folder, which is created if necessary.

    Example:
        >>> writer = Writer("record")
        >>> writer.write({"format": FORMAT})
        >>> read("record")
        [{'format': 1}]
    """

    def __init__(self, folder: str):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, NAME)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._cut_torn_line()

    def _cut_torn_line(self):
        """Removes the part of a line that a killed writer left."""
        size = os.fstat(self._file).st_size
        end = os.pread(self._file, 1 << 20, max(0, size - (1 << 20)))
        kept = end.rfind(b"\n") + 1
        if kept < len(end):
            os.ftruncate(self._file, size - len(end) + kept)

    def write(self, content: dict[str, Any]) -> None:
        """Appends a line to the file."""
        os.write(self._file, line_of(content))
