"""Writes rank 0's record of each update."""

import base64
import dataclasses
import gc
import math
import os
import struct
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from mpchain.observers import Observer, Span
from mpchain.optimizer import Optimizer
from mpchain.replays import pieces
from mpchain.replays.fingerprints import Fingerprint
from mpchain.replays.pieces import Table
from mpchain.replays.records import Writer
from mpchain.reporter import is_scalar
from mpchain.variable import as_array

_SHARE = 0.012
"""Share of a step's time that fingerprints may take; the number of recorded pieces follows."""

MOST_VALUES = 24
"""Maximum number of reported values that are recorded."""


@dataclasses.dataclass
class Update:
    """An update of an optimizer.

    Attributes:
        t: the number of the update, from 1: the optimizer's ``t`` after the update. For a start,
            the ``t`` from which the run continues.
        model: the checksum of the parameters' names, shapes and dtypes; a number follows if several
            optimizers have equal models.
        n_ranks: the number of ranks.
        n_samples: the number of samples of all ranks; None if it is unknown.
        own: the loss of the first micro-batch of rank 0; None if it is unknown.
        values: the reported means, by name.
        first: the index of the first piece.
        prints: the fingerprints of the pieces from ``first`` on.
        is_start: whether this is the state before the first update, and not an update.
    """

    t: int
    model: str
    n_ranks: int = 1
    n_samples: int | None = None
    own: float | None = None
    values: dict[str, float] = dataclasses.field(default_factory=dict)
    first: int = 0
    prints: list[Fingerprint] = dataclasses.field(default_factory=list)
    is_start: bool = False


class Watch(Observer):
    """Observes updates of optimizers; subclasses define what to do with the observed updates.

    Only the outermost update is observed, because multi-node optimizers call other optimizers.

    Attributes:
        n_forward: the number of losses that were computed in the update.
    """

    sees_functions = False

    def __init__(self):
        self._tables: dict[int, Table] = {}
        # This dict maps a key to the optimizers of equal models.
        self._keys: dict[str, list[weakref.ref]] = {}
        self._depth, self._t, self._own, self._values = 0, 0, [], None
        self._n_samples = None
        self.n_forward = 0

    def begins(self, span: Span) -> None:
        if span.kind != "optimizer" or span.thing.target is None:
            return
        self._depth += 1
        if self._depth == 1:
            self._t, self._own, self.n_forward = span.thing.t, [], 0
            self._values = self._n_samples = None
            self.update_begins(span.thing)

    def ends(self, span: Span, begun: Any) -> None:
        if span.kind == "forward" and self._depth and span.result is not None:
            self.n_forward += 1
            if not self._own:
                self._own.append(as_array(span.result))
        if span.kind != "optimizer" or span.thing.target is None:
            return
        if isinstance(span.result, dict):
            self._values = span.result
        self._depth -= 1
        if self._depth == 0:
            self._n_samples = _n_samples(span.thing)
            self.update_ends(span.thing, not span.has_failed and span.thing.t > self._t)

    def update_begins(self, optimizer: object) -> None:
        """Is called before an update."""

    def update_ends(self, optimizer: object, is_done: bool) -> None:
        """Is called after an update; ``is_done`` is false if it failed or only added gradients."""

    def table(self, optimizer: Optimizer) -> tuple[Table, list]:
        """Returns the pieces of an optimizer's parameters, and its initialized parameters."""
        named = {n: p for n, p in optimizer.target.namedparams() if p.is_initialized}
        params = list(named.values())
        table = self._tables.get(id(optimizer))
        if table is None or table.ids != tuple(map(id, params)):
            table = self._tables[id(optimizer)] = Table(named)
            table.key = self._key(optimizer, table)
            self.new_table(optimizer, table)
        return table, params

    def _key(self, optimizer, table):
        """Returns a key of the optimizer, which differs between optimizers with equal models."""
        key = pieces.checksum(table.shape)
        known = self._keys.setdefault(key, [])
        if known and optimizer not in (reference() for reference in known):
            gc.collect()  # a restarted program has replaced the optimizer with another
        places = [i for i, reference in enumerate(known) if reference() in (None, optimizer)]
        place = places[0] if places else len(known)
        known[place : place + 1] = [weakref.ref(optimizer)]
        return f"{key}.{place}" if place else key

    def new_table(self, optimizer: object, table: Table) -> None:
        """Is called when the parameters of a table are seen for the first time."""

    def describe(self, optimizer: Optimizer) -> Update:
        """Returns the facts about the update that has just ended, without fingerprints."""
        model = self._tables[id(optimizer)].key
        comm = optimizer.communicator
        own = float(self._own[0]) if self._own else None
        values = {
            name: float(as_array(value))
            for name, value in list((self._values or {}).items())[:MOST_VALUES]
            if is_scalar(as_array(value) if hasattr(value, "array") else value)
        }
        n_ranks = 1 if comm is None else comm.size
        return Update(optimizer.t, model, n_ranks, self._n_samples, own, values)


class Recorder(Watch):
    """Writes a line for each update, on rank 0.

    Args:
        folder: the folder of the record.
        about: facts about the program for the first line.
    """

    def __init__(self, folder: str, about: dict[str, Any]):
        super().__init__()
        self._folder, self._about = folder, about
        self._writer: Writer | None = None
        self._ranks: Any = None  # the first communicator, which has all ranks
        self._has_failed = False
        self._names: list[str] = []
        self._speed = self._step = self._began = None
        self._pid = os.getpid()

    def update_begins(self, optimizer: object) -> None:
        if not self._writes(optimizer):
            return
        self.table(optimizer)
        now = time.perf_counter()
        if self._began is not None:
            passed = now - self._began
            self._step = passed if self._step is None else 0.8 * self._step + 0.2 * passed
        self._began = now

    def update_ends(self, optimizer: Optimizer, is_done: bool) -> None:
        if not is_done or not self._writes(optimizer):
            return
        began = time.perf_counter()
        table, params = self.table(optimizer)
        if not params:
            return
        n_elements = _SHARE * self._step / self._speed if self._step and self._speed else 0
        first, last = table.turn(optimizer.t, n_elements)
        update = self.describe(optimizer)
        update.first, update.prints = first, table.take(params, first, last)
        self._write(lambda writer: self._write_update(writer, update))
        passed = (time.perf_counter() - began) / max(table.n_elements(first, last), 1)
        self._speed = passed if self._speed is None else 0.8 * self._speed + 0.2 * passed

    def new_table(self, optimizer: Optimizer, table: Table) -> None:
        if not table.names:
            return
        kind = type(optimizer.actual_optimizer).__name__
        params = [p for _, p in optimizer.target.namedparams() if p.is_initialized]
        start = Update(optimizer.t, table.key, is_start=True)
        start.prints = table.take(params, 0, len(table.pieces))

        def write(writer):
            writer.write({"model": table.key, "optimizer": kind, "parameters": table.shape})
            self._write_update(writer, start)

        self._write(write)

    def communicator(self, comm: object) -> None:
        if self._ranks is None:
            self._ranks = comm

    def _writes(self, optimizer):
        comm = optimizer.communicator
        if self._has_failed or os.getpid() != self._pid:
            return False
        # An elastic communicator may shrink.
        size = math.inf if comm is None or comm.is_elastic else comm.size
        if self._ranks is not None and size < self._ranks.size:
            self._has_failed = True
            reason = "an optimizer averages over only some ranks, so its steps cannot be replayed"
            self._warn(reason, comm)
            return False
        return comm is None or comm.rank == 0

    def _warn(self, reason, comm=None):
        if comm is None or comm.rank == 0:
            text = f"--record: nothing is recorded any more in {self._folder}: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _write(self, write: Callable[[Writer], None]) -> None:
        try:
            if self._writer is None:
                self._writer = Writer(self._folder)
                self._writer.write(self._about)
            write(self._writer)
        except OSError as error:
            self._has_failed = True
            self._warn(error)

    def _write_update(self, writer, update):
        if list(update.values) != self._names:
            self._names = list(update.values)
            writer.write({"values": self._names})
        writer.write(pack(update))


def _n_samples(optimizer):
    """Returns the number of samples of all ranks in the last update; None if it is unknown."""
    comm = optimizer.communicator
    if comm is None:
        return optimizer.n_samples
    if comm.divided.n is not None:
        return int(comm.divided.n)
    n = optimizer.current_step.rank_states.n_samples
    # An unknown number of samples counts as 1 for each rank.
    return None if n in (0, comm.size) else int(n)


def pack(update: Update) -> dict[str, Any]:
    """Returns the content of a record's line about an update."""
    line: dict[str, Any] = {"start" if update.is_start else "t": update.t, "model": update.model}
    line |= {"ranks": update.n_ranks}
    if update.n_samples is not None:
        line["samples"] = update.n_samples
    numbers = [*update.values.values(), *([] if update.own is None else [update.own])]
    line["loss"] = _text(struct.pack(f"<{len(numbers)}d", *numbers))
    line["from"] = update.first
    line["prints"] = _text(b"".join(each.pack() for each in update.prints))
    return line


def _text(data):
    return base64.b64encode(data).decode()
