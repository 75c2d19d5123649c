"""Extensions that output a log report's entries as a table, JSON lines, or for TensorBoard."""

import csv
import importlib.util
import itertools
import json
import math
import numbers
import os
import re
from collections.abc import Iterable
from typing import Any, TextIO

from mpchain.serializer import AbstractSerializer
from mpchain.training.extension import Extension
from mpchain.training.extensions.log_report import AwaitedKeys, LogReport
from mpchain.training.output_files import OutputFiles
from mpchain.training.progress import print_line, terminal_columns
from mpchain.training.states import serialize_optional
from mpchain.training.trainer import Trainer


class LogFollower(Extension):
    """Outputs each entry of a :class:`LogReport` once.

    Subclasses define :meth:`write`.

    Args:
        log_report: name of the log report in the trainer, or a :class:`LogReport` that is not in
            the trainer; this extension then calls it.

    Example:
        >>> class Show(LogFollower):
        ...     def write(self, entries):
        ...         print(*[entry["iteration"] for entry in entries])
        >>> trainer = testing.get_trainer_with_mock_updater((1, "epoch"), iter_per_epoch=4)
        >>> trainer.extend(Show(extensions.LogReport(trigger=(2, "iteration"))))
        >>> trainer.run()
        2
        4
    """

    def __init__(self, log_report: str | LogReport = "LogReport") -> None:
        self._name: Any = log_report
        self._own = log_report if isinstance(log_report, LogReport) else None
        self._log = []
        self._n_written = 0

    def initialize(self, trainer: Trainer) -> None:
        """Initializes a log report that is not in the trainer."""
        if self._own:
            self._own.initialize(trainer)

    def __call__(self, trainer: Trainer) -> None:
        """Outputs the entries that are new since the last call."""
        if self._own:
            self._own(trainer)
        self._log = (self._own or trainer.get_extension(self._name)).log
        self._write_new()

    def finalize(self) -> None:
        """Outputs the entries that were logged after the last call."""
        self._write_new()
        if self._own:
            self._own.finalize()

    def _write_new(self):
        entries = self._log[self._n_written :]
        if entries:
            self.write(entries)
            self._n_written = len(self._log)

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Outputs entries that were not written before."""
        raise NotImplementedError(f"{type(self).__name__} does not implement write")

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the log report that is not in the trainer."""
        if self._own:
            self._own.serialize(serializer["_log_report"])


class PrintReport(LogFollower):
    """Prints chosen values of a :class:`LogReport` as a table, one line per entry.

    After a resume the table starts with the earlier entries. If the table is wider than the
    terminal, the names in its header take several lines.

    Args:
        entries: names of the values, one column each; values that an entry lacks are left blank.
            At the end of training a warning lists the names that no entry has. None means
            all logged values that fit the width of the terminal; the header is printed again when
            new values appear.
        log_report: see :class:`LogFollower`.
        out: the stream to print to; None means standard output.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        >>> trainer.extend(PrintReport(["epoch", "iteration"]))
        >>> trainer.run()
        epoch       iteration
        0           1
        0           2
    """

    is_report = True

    def __init__(
        self,
        entries: Iterable[str] | None,
        log_report: str | LogReport = "LogReport",
        out: TextIO | None = None,
    ) -> None:
        super().__init__(log_report)
        self._is_open = entries is None
        self._entries = list(entries or ())
        self._widths = []
        self._out = out
        self._awaited = AwaitedKeys(type(self).__name__, self._entries)

    @property
    def entries(self) -> list[str]:
        """The names of the columns."""
        return self._entries

    def __call__(self, trainer: Trainer) -> None:
        """Prints the entries that are new since the last call, below the names of the columns."""
        if not self._widths and not self._is_open:
            self._print_header()
        super().__call__(trainer)

    def finalize(self) -> None:
        """Prints the entries that were logged after the last call, and warns of columns that no
        entry has."""
        super().finalize()
        self._awaited.warn()

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Prints entries, one line each."""
        for entry in entries:
            self._awaited.see(entry)
            if self._is_open and (names := _columns_for(entry, self._entries, self._room())):
                self._entries = names
                self._print_header()
            self._print_row(_format(entry.get(name)) for name in self._entries)

    def _room(self):
        return terminal_columns(self._out) or 120

    def _print_header(self):
        heads = [[name] for name in self._entries]
        self._widths = [max(10, len(name)) for name in self._entries]
        if sum(self._widths) + 2 * len(heads) - 2 > (terminal_columns(self._out) or math.inf):
            heads = [_fold(name) for name in self._entries]
            self._widths = [_folded_width(name) for name in self._entries]
        for line in itertools.zip_longest(*heads, fillvalue=""):
            self._print_row(line)

    def _print_row(self, cells):
        row = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True))
        print_line(row.rstrip(), self._out)


_LEAST_WIDTHS = {"epoch": 6, "iteration": 9, "elapsed_time": 8}
"""Least widths of columns with a folded header; other columns have 10, for 6 digits."""


def _fold(name, width=10):
    """Splits a name before slashes and underscores into lines of at most ``width`` characters,
    unless a part of the name is longer."""
    lines = [""]
    for part in re.findall(r"[/_]?[^/_]*", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def _folded_width(name):
    return max(_LEAST_WIDTHS.get(name, 10), *map(len, _fold(name)))


def _columns_for(entry, known, room):
    """Returns the columns for the known values and the values of an entry; None if they are
    unchanged."""
    found = [name for name, value in entry.items() if isinstance(value, (numbers.Real, str))]
    names = [name for name in dict.fromkeys([*known, *found]) if name not in _LEAST_WIDTHS]
    while len(names) > 1 and sum(_folded_width(n) + 2 for n in [*_LEAST_WIDTHS, *names]) - 2 > room:
        names.pop()
    columns = ["epoch", "iteration", *names, "elapsed_time"]
    return None if columns == known else columns


def _format(value):
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


class _LogFile(LogFollower):
    """Writes one file in the trainer's folder; no other job may write the file at the same time."""

    is_report = True

    def __init__(self, filename: str, log_report: str | LogReport) -> None:
        super().__init__(log_report)
        self._filename, self._path = filename, ""
        self._files = OutputFiles(type(self).__name__, filename)

    def initialize(self, trainer: Trainer) -> None:
        """Makes sure that no other job writes the file."""
        super().initialize(trainer)
        self._files.claim(trainer)
        self._path = os.path.join(trainer.out, self._filename)

    def finalize(self) -> None:
        """Writes the entries that were logged after the last call."""
        super().finalize()
        self._files.release()


class JsonLinesReport(_LogFile):
    """Appends each entry of a :class:`LogReport` to a file, as one line of JSON.

    A resumed run first removes the entries after the snapshot from the file. NaN and infinities are
    written the way Python's json module writes them. The extension keeps the file of an earlier
    run, and refuses other jobs, as :class:`LogReport` does.

    Args:
        filename: name of the file in the trainer's folder.
        log_report: see :class:`LogFollower`.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        >>> trainer.extend(JsonLinesReport())
        >>> trainer.run()
        >>> import pathlib
        >>> print(pathlib.Path("result/log.jsonl").read_text())
        {"epoch": 0, "iteration": 1, "elapsed_time": ...}
        {"epoch": 0, "iteration": 2, "elapsed_time": ...}
    """

    def __init__(
        self, filename: str = "log.jsonl", log_report: str | LogReport = "LogReport"
    ) -> None:
        super().__init__(filename, log_report)

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Appends a line for each entry; the first call of a run starts the file."""
        lines = "".join(json.dumps(entry, default=float) + "\n" for entry in entries)
        path, is_first = self._path, self._n_written == 0
        with self._files.open(path) if is_first else open(path, "a", encoding="utf-8") as file:
            file.write(lines)


class CsvReport(_LogFile):
    """Writes the entries of a :class:`LogReport` to a file with comma-separated values.

    The first line has the names. The file is replaced as a whole after each entry, so that it has
    the columns of all entries; values that an entry lacks are left blank. A resumed run keeps the
    earlier entries. The extension keeps the file of an earlier run, and refuses other jobs, as
    :class:`LogReport` does.

    Args:
        filename: name of the file in the trainer's folder.
        log_report: see :class:`LogFollower`.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        >>> trainer.extend(CsvReport())
        >>> trainer.run()
        >>> import pathlib
        >>> print(pathlib.Path("result/log.csv").read_text())
        epoch,iteration,elapsed_time
        0,1,...
        0,2,...
    """

    def __init__(
        self, filename: str = "log.csv", log_report: str | LogReport = "LogReport"
    ) -> None:
        super().__init__(filename, log_report)

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Writes the file with all entries."""
        names = list(dict.fromkeys(itertools.chain.from_iterable(self._log)))
        with self._files.open(self._path) as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self._log)


class TensorBoardReport(LogFollower):
    """Writes the numbers in the entries of a :class:`LogReport` for TensorBoard.

    The extension needs tensorboardX (``pip install 'mpchain[tensorboard]'``), not TensorFlow. The
    horizontal axis is the iteration. A resumed run deletes the points after the snapshot.

    Args:
        folder: name of a folder in the trainer's folder.
        log_report: see :class:`LogFollower`.

    Raises:
        RuntimeError: tensorboardX is not installed.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(extensions.LogReport(trigger=(100, "iteration")))
        >>> trainer.extend(TensorBoardReport())  # doctest: +SKIP
    """

    is_report = True

    def __init__(
        self, folder: str = "tensorboard", log_report: str | LogReport = "LogReport"
    ) -> None:
        super().__init__(log_report)
        if importlib.util.find_spec("tensorboardX") is None:
            raise RuntimeError(
                "TensorBoardReport: tensorboardX is not installed; "
                "pip install 'mpchain[tensorboard]'"
            )
        self._folder = folder
        self._path = self._writer = None

    def initialize(self, trainer: Trainer) -> None:
        """Determines the path of the folder."""
        super().initialize(trainer)
        self._path = os.path.join(trainer.out, self._folder)

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Adds a point for each number."""
        if self._writer is None:
            self._writer = self._open(entries[0]["iteration"])
        for entry in entries:
            for name, value in entry.items():
                if isinstance(value, numbers.Real) and name != "iteration":
                    self._writer.add_scalar(name, value, entry["iteration"])
        self._writer.flush()

    def _open(self, iteration):
        from tensorboardX import SummaryWriter

        purge_step = iteration if self._n_written else None
        # By default, two files that are created in the same second have the same name.
        suffix = f".{iteration}.{os.getpid()}"
        return SummaryWriter(self._path, purge_step=purge_step, filename_suffix=suffix)

    def finalize(self) -> None:
        """Writes the entries that were logged after the last call, and closes the file."""
        super().finalize()
        if self._writer is not None:
            self._writer.close()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the number of entries that were written."""
        super().serialize(serializer)
        self._n_written = serialize_optional(serializer, "_n_written", self._n_written)
