"""A dataset of the lines of text files."""

import array
import codecs
import locale
import mmap
import os
import re
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.dataset import DatasetMixin

# In Python's "utf-16" and "utf-32", a mark at the beginning says which of two byte orders follows.
_NATIVE = "-le" if sys.byteorder == "little" else "-be"
_MARKS = {
    "utf-16": {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be", b"": f"utf-16{_NATIVE}"},
    "utf-32": {BOM_UTF32_LE: "utf-32-le", BOM_UTF32_BE: "utf-32-be", b"": f"utf-32{_NATIVE}"},
    "utf-8-sig": {BOM_UTF8: "utf-8", b"": "utf-8"},
}
_Option = str | Sequence[str | None] | None
_ENDS = {None: ("\r\n", "\r", "\n"), "": ("\r\n", "\r", "\n")}


class TextDataset(DatasetMixin):
    """The lines of a text file, or of several files side by side; each line keeps its line end.

    The positions of the lines are found once; the files must not change afterwards. The dataset may
    be pickled for other processes that see the same files.

    Args:
        paths: path of a file, whose lines are the examples (str); or a list of paths of files with
            the same number of lines, so that an example is a tuple of str.
        encoding, errors, newline: see :func:`open`; each may be a list with one entry per file.
        filter_func: function of one line of each file that returns whether to keep the example.

    Raises:
        ValueError: there is no path, the numbers of lines differ, a list of options does not have
            one entry for each file, or ``newline`` is not one of the values of :func:`open`.

    Example:
        >>> with mpchain.utils.tempdir() as folder:
        ...     with open(f"{folder}/en.txt", "w") as file:
        ...         print("one", "two", sep=os.linesep, file=file)
        ...     TextDataset(f"{folder}/en.txt")[1].strip()
        'two'
    """

    def __init__(
        self,
        paths: str | os.PathLike | Sequence[str],
        encoding: _Option = None,
        errors: _Option = None,
        newline: _Option = None,
        filter_func: Callable | None = None,
    ):
        self._is_single = isinstance(paths, (str, os.PathLike))
        files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not files:
            raise ValueError("TextDataset: paths must name at least one file")
        options = [_for_each(files, option) for option in (encoding, errors, newline)]
        self._files = [_Lines(*each) for each in zip(files, *options, strict=True)]
        lengths = [len(file) for file in self._files]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"TextDataset: files must have the same number of lines, but these have {lengths}"
            )
        self._numbers = range(lengths[0])
        if filter_func is not None:
            self._numbers = [i for i in self._numbers if filter_func(*self._read(i))]

    def __len__(self) -> int:
        return len(self._numbers)

    def get_example(self, i: int) -> Any:
        lines = self._read(self._numbers[i])
        return lines[0] if self._is_single else lines

    def close(self) -> None:
        """Closes the files, which are opened again when an example is read."""
        for file in self._files:
            file.close()

    def _read(self, number):
        return tuple([file[number] for file in self._files])


def _for_each(paths, option):
    options = list(option) if isinstance(option, (list, tuple)) else [option] * len(paths)
    if len(options) != len(paths):
        raise ValueError(
            f"TextDataset: {option} must have one entry for each of the {len(paths)} files"
        )
    return options


class _Lines:
    """The lines of one file, which is mapped into memory: threads and processes may share it."""

    def __init__(self, path, encoding, errors, newline):
        if newline not in (None, "", "\n", "\r", "\r\n"):
            raise ValueError(
                f"TextDataset: newline must be None, '', '\\n', '\\r' or '\\r\\n', not {newline!r}"
            )
        self.path = os.path.abspath(path)
        self.errors = errors or "strict"
        self.newline: str | None = newline
        self._map: mmap.mmap | bytes | None = None
        content = self._content()
        self.encoding, start = _find_encoding(encoding or locale.getencoding(), content)
        self.starts = self._find_lines(content, start)

    def _content(self):
        if self._map is None:
            with open(self.path, "rb") as file:
                is_empty = os.fstat(file.fileno()).st_size == 0
                # An empty file cannot be mapped into memory.
                self._map = (
                    b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
        return self._map

    def close(self):
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        self._map = None

    def __getstate__(self):
        return self.__dict__ | {"_map": None}

    def _find_lines(self, content, start):
        """Returns the positions at which the lines begin, and the position at which the last line
        ends."""
        ends = [end.encode(self.encoding) for end in _ENDS.get(self.newline, (self.newline or "",))]
        width = len("\n".encode(self.encoding))
        starts = array.array("q", [start])
        for match in re.finditer(b"|".join(map(re.escape, ends)), content):
            if (match.start() - start) % width == 0:
                starts.append(match.end())
        if starts[-1] < len(content):
            starts.append(len(content))
        return starts

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, i):
        line = self._content()[self.starts[i] : self.starts[i + 1]]
        try:
            text = line.decode(self.encoding, self.errors)
        except UnicodeDecodeError as error:
            raise ValueError(f"TextDataset: line {i + 1} of {self.path}: {error}") from error
        if self.newline is None:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text


def _find_encoding(encoding, content):
    """Returns the encoding of the text after the mark, and the mark's length in bytes (0 without a
    mark)."""
    for mark, concrete in _MARKS.get(codecs.lookup(encoding).name, {}).items():
        if content[: len(mark)] == mark:
            return concrete, len(mark)
    return encoding, 0
