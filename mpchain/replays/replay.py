"""Computes the steps of a record again, in one process."""

import os
import re
import tempfile
from typing import Any

from mpchain.replays import comparison, pieces, program
from mpchain.replays.history import History, Model
from mpchain.replays.pieces import Table
from mpchain.replays.recording import Update, Watch
from mpchain.replays.records import RecordError

_CHECKPOINT = re.compile(r"iteration_(\d+)|snapshot_iter_(\d+)")


class Reached(SystemExit):
    """Ends the program: the step that was asked for is computed."""


class Folders:
    """What stands for folders of results and checkpoints: temporary ones, with links to the newest
    checkpoints before a step.

    Args:
        step: the number of the step.

    Attributes:
        linked: numbers of the checkpoints that are linked.
        left_out: numbers of those that are too new.
    """

    def __init__(self, step: int):
        self._step = step
        self._root = tempfile.TemporaryDirectory(prefix="mpchain_replay_")
        self._by_original: dict[str, str] = {}
        self.linked: list[int] = []
        self.left_out: list[int] = []

    def of(self, path: str) -> str:
        """Returns the folder that stands for one."""
        path = os.path.abspath(path)
        for original, temporary in self._by_original.items():
            if path == temporary:
                return path
            if path.startswith(temporary + os.sep):
                path = os.path.join(original, os.path.relpath(path, temporary))
                break
        if path not in self._by_original:
            number = len(self._by_original)
            temporary = os.path.join(self._root.name, f"{number}_{os.path.basename(path)}")
            os.mkdir(temporary)
            self._by_original[path] = temporary
            self._link(path, temporary)
        return self._by_original[path]

    def _link(self, path, temporary):
        names = os.listdir(path) if os.path.isdir(path) else []
        found = [(int(m[1] or m[2]), m[0]) for m in map(_CHECKPOINT.fullmatch, names) if m]
        early = [(n, name) for n, name in found if n < self._step]
        self.left_out += [n for n, _ in found if n >= self._step]
        for n, name in sorted(early)[-1:]:
            self.linked.append(n)
            os.symlink(os.path.join(path, name), os.path.join(temporary, name))

    def close(self) -> None:
        """Removes the folders."""
        self._root.cleanup()


class Replay(Watch):
    """Compares each update with the record, up to a step.

    Args:
        history: the record.
        step: the last step to compute.
        exact: whether bits must be equal.

    Attributes:
        n_equal, n_rounded: numbers of updates whose fingerprints are equal, or differ by rounding.
        first_difference: the first that is more than rounding.
        begun_at: the number of updates before the first that was computed.
        last: the update of the step.
    """

    def __init__(self, history: History, step: int):
        super().__init__()
        self.history, self.step = history, step
        self.folders = Folders(step)
        self.n_equal = self.n_rounded = 0
        self.first_difference: comparison.Difference | None = None
        self.begun_at: int | None = None
        self.last: Update | None = None

    def folder(self, path: str) -> str:
        return self.folders.of(path)

    def n_parts(self, optimizer: Any) -> int:
        if optimizer.communicator.micro_shards:
            return 1
        if any(link.needs_all_ranks for link in optimizer.target.links()):
            return 1
        _, model = self._model(optimizer)
        recorded = model.updates.get(optimizer.t + 1)
        return 1 if recorded is None else recorded.n_ranks

    def _model(self, optimizer) -> tuple[str, Model]:
        models = self.history.models
        table = self._tables.get(id(optimizer))
        key = "" if table is None else pieces.checksum(table.shape)
        return (key, models[key]) if key in models else ("", self.history.main)

    def new_table(self, optimizer: Any, table: Table) -> None:
        if not table.names:
            return
        key, t = pieces.checksum(table.shape), optimizer.t
        model = self.history.models.get(key)
        if model is None:
            raise RecordError(
                f"the program has other parameters ({', '.join(table.names[:3])}, ...) than the "
                "record: it is another program, or has other arguments"
            )
        if self.begun_at is None:
            self.begun_at = t
            if t >= self.step:
                raise RecordError(
                    f"the program continued from step {t}, which is not before step {self.step}"
                )
        start = model.starts.get(t) or model.updates.get(t)
        if start is None:
            return
        params = [p for _, p in optimizer.target.namedparams() if p.is_initialized]
        own = Update(t, key, start.n_ranks, first=start.first)
        own.prints = table.take(params, start.first, start.first + len(start.prints))
        result, _ = comparison.compare(start, own, table.pieces, table.shape, exact=True)
        if result == comparison.EQUAL:
            return
        if self.folders.linked and max(self.folders.linked) == t:
            raise RecordError(
                f"the checkpoint of step {t} has other parameters than the record: it is of "
                "another run"
            )
        raise RecordError(self._why_not_from_the_start())

    def _why_not_from_the_start(self):
        newer = self.folders.left_out
        kept = f"; the oldest that is left is of step {min(newer)}" if newer else ""
        return (
            f"there is no checkpoint before step {self.step}{kept}, and the program does not begin "
            "with the parameters of the record: keep more checkpoints, or set seeds"
        )

    def update_begins(self, optimizer: Any) -> None:
        self.table(optimizer)

    def update_ends(self, optimizer: Any, has_failed: bool) -> None:
        if has_failed:
            return
        table, params = self.table(optimizer)
        key, model = self._model(optimizer)
        update = self.describe(optimizer, key)
        recorded = model.updates.get(update.t)
        if recorded is not None:
            update.first = recorded.first
            update.prints = table.take(params, update.first, update.first + len(recorded.prints))
            update.n_ranks = recorded.n_ranks
            self._compare(recorded, update, table, exact=bool(_micro_shards(optimizer)))
        if model is self.history.main and update.t >= self.step:
            self.last = update
            raise Reached(0)

    def _compare(self, recorded, update, table, exact):
        n_steps = update.t - (self.begun_at or 0)
        result, difference = comparison.compare(
            recorded, update, table.pieces, table.shape, n_steps=n_steps, exact=exact
        )
        self.n_equal += result == comparison.EQUAL
        self.n_rounded += result == comparison.ROUNDED
        if difference is not None and self.first_difference is None:
            self.first_difference = difference

    def run(self) -> None:
        """Runs the program until the step is computed.

        Raises:
            RecordError: it is another program, or does not come to the step.
        """
        try:
            with self:
                program.run(self.history.about)
        except Reached:
            return
        finally:
            self.folders.close()
        raise RecordError(f"the program ended before step {self.step}")


def _micro_shards(optimizer):
    comm = optimizer.communicator
    return None if comm is None else comm.micro_shards
