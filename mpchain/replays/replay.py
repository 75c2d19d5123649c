"""Computes the steps of a record again, in one process."""

import functools
import os
import pdb
import re
import tempfile
from collections.abc import Sequence

import numpy as np

from mpchain.observers import Span
from mpchain.optimizer import Optimizer
from mpchain.replays import comparison, debugging, program
from mpchain.replays.finder import Finder
from mpchain.replays.fingerprints import unpacked
from mpchain.replays.history import History, Model
from mpchain.replays.pieces import Table
from mpchain.replays.recording import Update, Watch
from mpchain.replays.records import RecordError
from mpchain.replays.samples import Samples, parts_of_rank

_CHECKPOINT = re.compile(r"iteration_(\d+)|snapshot_iter_(\d+)")


class Reached(SystemExit):
    """Ends the program, because the requested step is computed or the replay is refused."""


class Folders:
    """Temporary folders that replace the program's folders of results and checkpoints. They contain
    links to the checkpoints before a step.

    Args:
        step: the number of the step.

    Attributes:
        linked: the numbers of the checkpoints that are linked.
        left_out: the numbers of the checkpoints that are too new.
    """

    def __init__(self, step: int):
        self._step = step
        self._root = tempfile.TemporaryDirectory(prefix="mpchain_replay_")
        self._by_original: dict[str, str] = {}
        self.linked: list[int] = []
        self.left_out: list[int] = []

    def of(self, path: str) -> str:
        """Returns the folder that replaces a folder of the program."""
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
        for n, name in early:
            self.linked.append(n)
            os.symlink(os.path.join(path, name), os.path.join(temporary, name))

    def close(self) -> None:
        """Removes the folders."""
        self._root.cleanup()


class Replay(Watch):
    """Computes updates of a record again, up to a step.

    Args:
        history: the record.
        step: the last step to compute.
        n_parts: the number of micro-batches of each batch, for a run whose parameters are rounded
            differently; None divides batches as the ranks did.
        rank: the rank whose samples are examined in the step; None examines the samples that cause
            a non-finite number, or rank 0's samples.
        stops: whether a debugger opens in the step.

    Attributes:
        begun_at: the number of updates before the first computed update.
        is_exact: whether bits do not depend on the number of ranks.
        updates: pairs: an update of the record, and the same update as this process computed it.
        samples: the indices of the last batch's samples.
        finder: the object that looks for non-finite numbers in the step.
        at: the index of the micro-batch that is examined.
        counts: the numbers of samples of the micro-batches.
        folders: the folders that replace the program's folders of results and checkpoints.
    """

    def __init__(
        self,
        history: History,
        step: int,
        n_parts: int | None = None,
        *,
        rank: int | None = None,
        stops: bool = False,
    ):
        super().__init__()
        self.history, self.step, self._n_parts = history, step, n_parts
        self._rank, self._stops = rank, stops
        self.samples, self.finder = Samples(), None
        self.at, self._refusal, self._has_broken = 0, "", False
        self.counts: list[int | None] = []
        self.folders = Folders(step)
        self.begun_at: int | None = None
        self.is_exact = False
        self.updates: list[tuple[Update, Update]] = []

    def folder(self, path: str) -> str:
        return self.folders.of(path)

    def n_parts(self, optimizer: Optimizer) -> int:
        if optimizer.communicator.micro_shards:
            return 1
        if any(link.needs_all_ranks for link in optimizer.target.links()):
            return 1
        return self._n_parts or self._model(optimizer)[1].at(optimizer.t + 1).n_ranks

    def _model(self, optimizer) -> tuple[str, Model]:
        models = self.history.models
        table = self._tables.get(id(optimizer))
        key = "" if table is None else table.key
        return (key, models[key]) if key in models else ("", self.history.main)

    def new_table(self, optimizer: Optimizer, table: Table) -> None:
        if not table.names:
            return
        key, t = table.key, optimizer.t
        model = self.history.models.get(key)
        if model is None:
            self._refuse(
                f"the program has other parameters ({', '.join(table.names[:3])}, ...) than the "
                "record: run the program of the record with the same arguments"
            )
        if self.begun_at is None:
            self.begun_at = t
            if t >= self.step:
                self._refuse(
                    f"the program continued from step {t}, which is not before step {self.step}"
                )
        start = model.starts.get(t) or model.updates.get(t)
        if start is None:
            return
        own = Update(t, key)
        _, own = self._same_pieces(start, own, optimizer, table)
        if not [*comparison.differences(start, own, table.pieces, table.shape)]:
            if self._n_parts is not None:
                _round_otherwise(optimizer.target)
            return
        if t in self.folders.linked:
            self._refuse(
                f"the checkpoint of step {t} has other parameters than the record, so another run "
                "wrote it: restore the checkpoints of the recorded run"
            )
        self._refuse(self._why_not_from_the_start())

    def _why_not_from_the_start(self):
        newer = self.folders.left_out
        kept = f" (the oldest checkpoint is of step {min(newer)})" if newer else ""
        return (
            f"there is no checkpoint before step {self.step}{kept}, and the program does not begin "
            "with the parameters of the record: keep more checkpoints, or set seeds"
        )

    def _same_pieces(self, recorded, own, optimizer, table):
        """Computes fingerprints of the pieces that have a fingerprint in the record."""
        params = [p for _, p in optimizer.target.namedparams() if p.is_initialized]
        own.first, end = recorded.first, recorded.first + len(recorded.prints)
        own.prints = [unpacked(p) for p in table.take(params, own.first, end)]
        own.n_ranks = recorded.n_ranks
        return recorded, own

    def begins(self, span: Span) -> None:
        super().begins(span)
        if span.kind == "input" and span.name == "iterator":
            self.samples.watch(span.thing)

    def update_begins(self, optimizer: Optimizer) -> None:
        self.table(optimizer)
        if self._is_the_step(optimizer):
            self.finder = Finder(self._stop if self._rank is None else None, optimizer.target)
            self.finder.__enter__()

    def _is_the_step(self, optimizer):
        model = self._model(optimizer)[1]
        return optimizer.t + 1 == self.step and model is self.history.main and not self._n_parts

    def parts(self, optimizer: object, parts: Sequence) -> Sequence:
        if self.finder is None:
            return parts
        self.counts = [n for n, _ in parts]
        n_ranks = self.history.main.at(self.step).n_ranks
        own = parts_of_rank(self._rank or 0, n_ranks, len(parts)) if len(parts) > 1 else [0]
        self.at = min([i for i in own if self.counts[i] != 0], default=own[0])
        return [
            (n, function and self._look_at(i, function)) for i, (n, function) in enumerate(parts)
        ]

    def _look_at(self, number, function):
        """Returns a watched loss function, in which the debugger opens if this was requested."""
        stops = self._stops and number == self.at
        if self._rank is None and self.history.is_finite(self.step) is False:
            stops = False  # the finder opens the debugger where the number is computed

        @functools.wraps(function)
        def compute(*args, **kwargs):
            nonlocal stops
            assert self.finder is not None  # the replayed step has begun
            self.finder.part = number
            if not stops:
                return function(*args, **kwargs)
            stops = False
            return debugging.call(function, *args, **kwargs)

        return compute

    def _stop(self, frame):
        if self._stops:
            self._stops = False
            debugging.stop(frame)

    def update_ends(self, optimizer: Optimizer, is_done: bool) -> None:
        if self.finder is not None:
            self.finder.__exit__()
        if not is_done:
            self._has_broken, self.finder = self.finder is not None, None
            return
        table, _ = self.table(optimizer)
        model = self._model(optimizer)[1]
        update = self.describe(optimizer)
        recorded = model.updates.get(update.t)
        self._check_batch(recorded, update)
        if recorded is not None and self.n_forward < recorded.n_ranks:
            update.own = None  # the recorded loss covers more samples than rank 0 had
        if recorded is not None:
            self.updates.append(self._same_pieces(recorded, update, optimizer, table))
        comm = optimizer.communicator
        self.is_exact = comm is not None and bool(comm.micro_shards)
        if model is self.history.main and update.t >= self.step:
            raise Reached(0)

    def _check_batch(self, recorded, update):
        if recorded is None or None in (recorded.n_samples, update.n_samples):
            return
        if recorded.n_samples != update.n_samples:
            self._refuse(
                f"the batch of update {update.t} has {update.n_samples} samples in one process, "
                f"but had {recorded.n_samples} on {recorded.n_ranks} ranks: divide batches among "
                "the ranks by create_sharded_iterator or comm.batch, not data by scatter_dataset"
            )

    def differences(self) -> dict[int, list[comparison.Difference]]:
        """Returns the differences from the record: maps the indices of :attr:`updates` that differ
        to lists of differences."""
        found = {}
        for i, (recorded, own) in enumerate(self.updates):
            model = self.history.models[recorded.model]
            differ = comparison.differences(recorded, own, model.pieces(), model.shape)
            if differ := list(differ):
                found[i] = differ
        return found

    def run(self) -> None:
        """Runs the program until the step is computed.

        Raises:
            RecordError: the program is not the recorded one, or does not reach the step.
            Exception: the program raised an error; if this was in the step, a debugger was opened
                first if requested.
        """
        try:
            with self:
                program.run(self.history.about)
        except Reached:
            if self._refusal:
                raise RecordError(self._refusal) from None
            return
        except Exception as error:
            if self._stops and self._has_broken:
                pdb.post_mortem(error.__traceback__)
            raise
        finally:
            self.folders.close()
        raise RecordError(f"the program ended before step {self.step}")

    def _refuse(self, reason):
        """Ends the program with a message; trainers print a traceback for any other exception."""
        self._refusal = reason
        raise Reached(2)


def _round_otherwise(model):
    """Changes each parameter by about one rounding."""
    random = np.random.RandomState(0)
    for _, param in sorted(model.namedparams()):
        if param.is_initialized:
            eps = 2.0 ** -(10 if param.dtype.itemsize == 2 else 23)
            factor = 1 + eps * random.choice([-1, 1], param.shape)
            param.array[...] *= param.xp.asarray(factor, param.dtype)
