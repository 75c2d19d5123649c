"""The extension that writes means of reported values to a JSON file."""

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from mpchain.serializer import AbstractSerializer
from mpchain.training.extension import Extension
from mpchain.training.named_parts import listing
from mpchain.training.output_files import OutputFiles
from mpchain.training.states import parse_json, serialize_part
from mpchain.training.trainer import Trainer
from mpchain.training.triggers.interval import IntervalMeans, TriggerLike


class LogReport(Extension):
    """Averages reported values over an interval and writes them to a JSON file.

    The file holds a list with one dict per interval: the means of the values over the iterations
    that reported them, ``epoch``, ``iteration`` and ``elapsed_time`` (seconds). The file is
    replaced as a whole after each interval; a resumed run keeps the earlier entries. NaN and
    infinities are written the way Python's json module writes them.

    The file of an earlier run is kept, unless this run resumes that run: ``log`` is renamed to
    ``log.old1``. Another job that would write the same file at the same time is refused.

    On several ranks, each rank logs what it observes, and rank 0 writes the file. Values that
    :class:`~mpchain.distributed.MultiNodeUpdater` and multi-node evaluators report are means over
    the samples of all ranks. Any other value is rank 0's own, unless an
    :class:`~mpchain.distributed.extensions.ObservationAggregator` combines it. An entry also has
    ``ranks/slowest``, the number of the rank that worked longest in the interval, and
    ``ranks/waiting``, the mean share of the time that ranks waited for each other.

    Args:
        keys: names of the values; None means all reported values. At the end of training a
            warning lists the names that were never reported.
        trigger: the interval; see :func:`get_trigger`.
        postprocess: function of the new entry, which it may change. The entry has all values, also
            those of evaluators, and ``epoch``. On several ranks, the function is called on each
            rank.
        filename: name of the file in the trainer's folder, in which fields such as ``{epoch}``
            stand for values of the entry; None means no file.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(lambda t: t.observation.update(loss=1.5), name="observe", priority=300)
        >>> log_report = LogReport(trigger=(2, "iteration"))
        >>> trainer.extend(log_report)
        >>> trainer.run()
        >>> log_report.log
        [{'loss': 1.5, 'epoch': 0, 'iteration': 2, 'elapsed_time': ...}]
    """

    def __init__(
        self,
        keys: Sequence[str] | None = None,
        trigger: TriggerLike = (1, "epoch"),
        postprocess: Callable[[dict[str, Any]], Any] | None = None,
        filename: str | None = "log",
    ) -> None:
        self._postprocess = postprocess
        self._filename = filename
        self._log = []
        self._writes = True
        self._means = IntervalMeans(trigger, keys)
        self._ranks = _RankTimes(keys)
        awaited = (key for key in keys or () if key not in _RankTimes.names)
        self._awaited = AwaitedKeys(type(self).__name__, awaited)
        self._files = OutputFiles(type(self).__name__, filename)

    @property
    def log(self) -> list[dict[str, Any]]:
        """A list of the entries so far."""
        return self._log

    def initialize(self, trainer: Trainer) -> None:
        """Makes sure that no other job writes the file."""
        self._writes = trainer.writes_reports
        if self._writes:
            self._files.claim(trainer)

    def on_ranks_lost(self, trainer: Trainer) -> None:
        """Begins to write the file if this rank has become rank 0."""
        self.initialize(trainer)

    def __call__(self, trainer: Trainer) -> None:
        """Adds the values of this iteration; adds an entry if the interval ends here."""
        means = self._means(trainer)
        self._awaited.see(trainer.observation, means is not None)
        if means is None:
            return
        entry: dict[str, Any] = {key: float(mean) for key, mean in means.items()}
        entry |= self._ranks.take(trainer.updater)
        entry["epoch"] = trainer.updater.epoch
        entry["iteration"] = trainer.updater.iteration
        entry["elapsed_time"] = trainer.elapsed_time
        if self._postprocess is not None:
            self._postprocess(entry)
        self._log.append(entry)
        if self._filename is not None and self._writes:
            path = os.path.join(trainer.out, self._filename.format(**entry))
            with self._files.open(path) as file:
                json.dump(self._log, file, indent=4, default=float)

    def finalize(self) -> None:
        """Allows other jobs to write the file, and warns about names that were never reported."""
        self._files.release()
        if self._writes:
            self._awaited.warn()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the entries, the interval and the sums so far."""
        self._means.serialize(serializer, serialize_part)
        log = parse_json(serializer("_log", json.dumps(self._log, default=float)), list)
        if not all(isinstance(entry, dict) for entry in log):
            raise ValueError("the entries of the log must be dicts")
        self._log = log


class _RankTimes:
    """Computes log entries for the ranks' working and waiting times."""

    names = ("ranks/slowest", "ranks/waiting")

    def __init__(self, keys):
        self._keys = keys
        self._before = None

    def take(self, updater):
        """Returns a dict of the values of the steps since the last call; empty in one process."""
        times = updater.rank_times()
        if times is None or not times.any():
            return {}
        passed, before = times, self._before
        if before is not None and before.shape == times.shape and (before != times).any():
            passed = times - before
        self._before = times
        work, waiting = passed
        values = int(work.argmax()), float(waiting.sum() / passed.sum())
        found = dict(zip(self.names, values, strict=True))
        return {k: v for k, v in found.items() if self._keys is None or k in self._keys}


class AwaitedKeys:
    """Names of values that an extension waits for; warns about names that are never reported.

    Such names are often misspelled.

    Args:
        extension: the extension's class, for the warning.
        keys: the names.

    Example:
        >>> awaited = AwaitedKeys("LogReport", ["loss"])
        >>> awaited.see({"loss": 0.5})
        >>> awaited.warn()
    """

    def __init__(self, extension: str, keys: Iterable[str]) -> None:
        self._extension = extension
        self._missing = list(dict.fromkeys(keys))
        self._others: set[str] = set()
        self._is_complete = False

    def see(self, observation: Collection[str], is_complete: bool = True) -> None:
        """Records that names were reported.

        Args:
            observation: the names.
            is_complete: whether an interval ends here, in which all names should have been
                reported.
        """
        self._is_complete |= is_complete
        if self._missing:
            self._missing = [key for key in self._missing if key not in observation]
            self._others.update(observation)

    def warn(self) -> None:
        """Warns, after training, of names that were never reported, if an interval has ended."""
        if self._missing and self._is_complete:
            warnings.warn(
                f"{self._extension}: values that were never reported: {listing(self._missing)}; "
                f"reported were {', '.join(map(repr, sorted(self._others)))}",
                UserWarning,
            )
