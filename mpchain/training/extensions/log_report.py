"""The extension that writes means of reported values to a JSON file."""

import json
import os

from mpchain.reporter import DictSummary
from mpchain.serializers.files import open_atomic
from mpchain.training.extension import Extension
from mpchain.training.extensions.awaited_keys import AwaitedKeys
from mpchain.training.output_files import OutputFiles
from mpchain.training.triggers import get_trigger


class LogReport(Extension):
    """Averages reported values over an interval and writes them to a JSON file.

    The file holds a list with one dict an interval: the means of the values over the iterations
    that reported them, ``epoch``, ``iteration`` and ``elapsed_time`` (seconds). It is replaced as
    a whole after each interval, and goes on with the earlier entries after a resume. NaN and
    infinities are written as Python's json module does.

    The file of an earlier run, which this one does not resume, is kept: ``log`` is renamed to
    ``log.old1``. Another job that would write the same file at the same time is refused.

    Args:
        keys: names of the values; None means all that are reported. Of a name that was never
            reported, a warning tells when training is over.
        trigger: the interval; see :func:`get_trigger`.
        postprocess: function of the new entry, which it may change.
        filename: name of the file in the trainer's folder, in which fields such as ``{epoch}``
            stand for values of the entry; None means no file.
    """

    def __init__(self, keys=None, trigger=(1, "epoch"), postprocess=None, filename="log"):
        self._keys = keys
        self._trigger = get_trigger(trigger)
        self._postprocess = postprocess
        self._filename = filename
        self._log = []
        self._summary = DictSummary()
        self._awaited = AwaitedKeys(type(self).__name__, keys or ())
        self._files = None if filename is None else OutputFiles(type(self).__name__, filename)

    @property
    def log(self) -> list:
        """The entries so far, a list of dicts."""
        return self._log

    def initialize(self, trainer):
        """Makes sure that no other job writes the file."""
        if self._files is not None:
            self._files.claim(trainer)

    def __call__(self, trainer):
        """Adds the values of this iteration; ends the interval if its trigger fires."""
        self._summary.add(self._select(trainer.observation))
        is_complete = self._trigger(trainer)
        self._awaited.see(trainer.observation, is_complete)
        if is_complete:
            entry = self._make_entry(trainer)
            self._log.append(entry)
            self._write(trainer.out, entry)

    def finalize(self):
        """Warns of names that were never reported."""
        if self._files is not None:
            self._files.release()
        self._awaited.warn()

    def _select(self, observation):
        if self._keys is None:
            return observation
        return {key: observation[key] for key in self._keys if key in observation}

    def _make_entry(self, trainer):
        entry = {key: float(mean) for key, mean in self._summary.compute_mean().items()}
        self._summary = DictSummary()
        entry["epoch"] = trainer.updater.epoch
        entry["iteration"] = trainer.updater.iteration
        entry["elapsed_time"] = trainer.elapsed_time
        if self._postprocess is not None:
            self._postprocess(entry)
        return entry

    def _write(self, folder, entry):
        if self._filename is not None:
            path = os.path.join(folder, self._filename.format(**entry))
            self._files.keep_earlier(path)
            with open_atomic(path, "w") as file:
                json.dump(self._log, file, indent=4, default=float)

    def serialize(self, serializer):
        """Saves or restores the entries, the interval and the sums so far."""
        if hasattr(self._trigger, "serialize"):
            self._trigger.serialize(serializer["_trigger"])
        self._summary.serialize(serializer["_summary"])
        log = serializer("_log", json.dumps(self._log, default=float))
        self._log = json.loads(log)
