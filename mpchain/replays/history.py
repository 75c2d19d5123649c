"""Reads a whole record: the updates that led to the end of the run."""

import base64
import dataclasses
import math
import os
import struct
from typing import Any

from mpchain.replays import fingerprints, pieces, records
from mpchain.replays.recording import Update
from mpchain.replays.records import RecordError


@dataclasses.dataclass
class Model:
    """The record of an optimizer's parameters.

    Attributes:
        shape: names, shapes and dtypes.
        updates: the updates that led to the end of the run, by number; updates that were repeated
            after a checkpoint or a loss of ranks appear once.
        starts: the states from which runs started, by the number of updates before the start.
    """

    shape: list
    updates: dict[int, Update] = dataclasses.field(default_factory=dict)
    starts: dict[int, Update] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [name for name, *_ in self.shape]

    def at(self, t: int) -> Update:
        """Returns the update with number ``t``; for the update in which the run failed, which was
        not recorded, returns its likely content."""
        if t in self.updates:
            return self.updates[t]
        last = self.updates[max(self.updates)] if self.updates else Update(t, "")
        return dataclasses.replace(last, t=t, own=None, values={}, prints=[])

    def forget(self, t: int) -> None:
        """Discards the updates from number ``t`` on, which will be repeated."""
        for updates in (self.updates, self.starts):
            for later in [number for number in updates if number >= t]:
                del updates[later]

    def pieces(self) -> list[pieces.Piece]:
        """Returns the pieces of parameters that have fingerprints."""
        return pieces.divide([_product(shape) for _, shape, _ in self.shape])


def _product(shape):
    n = 1
    for length in shape:
        n *= length
    return n


class History:
    """The content of a record.

    Args:
        folder: the folder of the record.

    Attributes:
        folder: the argument of the same name.
        about: facts about the program.
        models: the :class:`Model` of each optimizer, by the key that is the attribute ``model`` of
            :class:`~mpchain.replays.recording.Update`.

    Raises:
        RecordError: there is no record, it is damaged, or it has no step.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = os.fspath(folder)
        self.about: dict[str, Any] = {}
        self.models: dict[str, Model] = {}
        self._values: list[str] = []
        self._is_new = False
        for line in records.read(folder):
            self._take(line)
        if not any(model.updates for model in self.models.values()):
            raise RecordError(f"the record in {self.folder} has no step: the run ended before one")

    def _take(self, line):
        if "format" in line:
            self.about, self._is_new = line, True
        elif "parameters" in line:
            self.models.setdefault(line["model"], Model(line["parameters"]))
        elif "values" in line:
            self._values = line["values"]
        else:
            update = unpack(line, self._values)
            model = self.models[update.model]
            if update.is_start:
                # A new run has started from the beginning in the same folder.
                if self._is_new and update.t <= 1:
                    self.models = {update.model: Model(model.shape)}
                    model = self.models[update.model]
                self._is_new = False
                model.forget(update.t + 1)
                model.starts[update.t] = update
            else:
                if update.t in model.updates:
                    model.forget(update.t)
                model.updates[update.t] = update

    def first_not_finite(self) -> int:
        """Returns the number of the first update whose losses or parameters are not finite.

        Raises:
            RecordError: all are finite.
        """
        for t in self.main.updates:
            if not self.is_finite(t):
                return t
        raise RecordError(
            f"all losses and parameters in the record in {self.folder} are finite: choose a step "
            "by --step"
        )

    def is_finite(self, t: int) -> bool:
        """Returns whether all recorded losses and parameters of an update are finite."""
        update = self.main.at(t)
        losses = [*update.values.values(), 0.0 if update.own is None else update.own]
        return all(map(math.isfinite, losses)) and fingerprints.all_finite(update.prints)

    @property
    def main(self) -> Model:
        """The optimizer whose updates count as steps: the one with the most updates."""
        return max(self.models.values(), key=lambda model: len(model.updates))


def unpack(line: dict[str, Any], names: list[str]) -> Update:
    """Returns the update that a line of the record holds.

    Args:
        line: the result of :func:`mpchain.replays.recording.pack`.
        names: the names of the reported values.

    Example:
        >>> from mpchain.replays.recording import pack
        >>> unpack(pack(Update(3, "of", values={"loss": 0.5})), ["loss"]).values
        {'loss': 0.5}
    """
    data = base64.b64decode(line["loss"])
    numbers = struct.unpack(f"<{len(data) // 8}d", data)
    return Update(
        t=line["start"] if "start" in line else line["t"],
        model=line["model"],
        n_ranks=line["ranks"],
        n_samples=line.get("samples"),
        own=numbers[len(names)] if "t" in line and len(numbers) > len(names) else None,
        values=dict(zip(names, numbers)) if "t" in line else {},
        first=line["from"],
        prints=fingerprints.unpack(base64.b64decode(line["prints"])),
        is_start="start" in line,
    )
