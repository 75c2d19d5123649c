"""Extensions that write the log for other programs: JSON lines, TensorBoard."""

import importlib.util
import json
import numbers
import os

from mpchain.serializers.files import open_atomic
from mpchain.training.extensions.log_follower import LogFollower
from mpchain.training.output_files import OutputFiles
from mpchain.training.states import serialize_optional


class JsonLinesReport(LogFollower):
    """Writes the entries of a :class:`LogReport` to a file, one line of JSON each, as they come.

    Other than the report's own file it is never written anew, but for a resume: then it is cut
    back to the entries that the snapshot knows. NaN and infinities are written as Python's json
    module does. The file of an earlier run is kept, and other jobs are refused, as
    :class:`LogReport` does it.

    Args:
        filename: name of the file in the trainer's folder.
        log_report: see :class:`LogFollower`.
    """

    def __init__(self, filename="log.jsonl", log_report="LogReport"):
        super().__init__(log_report)
        self._filename = filename
        self._path = None
        self._files = OutputFiles(type(self).__name__, filename)

    def initialize(self, trainer):
        """Makes sure that no other job writes the file."""
        super().initialize(trainer)
        self._files.claim(trainer)
        self._path = os.path.join(trainer.out, self._filename)

    def finalize(self):
        """Writes what was logged after the last call."""
        super().finalize()
        self._files.release()

    def write(self, entries):
        """Appends a line for each entry; the first time in a run, starts the file."""
        lines = "".join(json.dumps(entry, default=float) + "\n" for entry in entries)
        if self._n_written == 0:
            self._files.keep_earlier(self._path)
            with open_atomic(self._path, "w") as file:
                file.write(lines)
        else:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(lines)


class TensorBoardReport(LogFollower):
    """Writes the numbers in the entries of a :class:`LogReport` for TensorBoard.

    It needs tensorboardX (``pip install 'mpchain[tensorboard]'``), not TensorFlow. The horizontal
    axis is the iteration. After a resume, points beyond the snapshot are taken back.

    Args:
        folder: name of a folder in the trainer's folder.
        log_report: see :class:`LogFollower`.

    Raises:
        RuntimeError: tensorboardX is not installed.
    """

    def __init__(self, folder="tensorboard", log_report="LogReport"):
        super().__init__(log_report)
        if importlib.util.find_spec("tensorboardX") is None:
            raise RuntimeError(
                "TensorBoardReport: tensorboardX is not installed; "
                "pip install 'mpchain[tensorboard]'"
            )
        self._folder = folder
        self._path = None
        self._writer = None

    def initialize(self, trainer):
        """Remembers the folder."""
        super().initialize(trainer)
        self._path = os.path.join(trainer.out, self._folder)

    def write(self, entries):
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
        # Its names of files tell no more than the second.
        suffix = f".{iteration}.{os.getpid()}"
        return SummaryWriter(self._path, purge_step=purge_step, filename_suffix=suffix)

    def finalize(self):
        """Writes what was logged after the last call, and closes the file."""
        super().finalize()
        if self._writer is not None:
            self._writer.close()

    def serialize(self, serializer):
        """Saves or restores how many entries were written."""
        super().serialize(serializer)
        self._n_written = serialize_optional(serializer, "_n_written", self._n_written)
