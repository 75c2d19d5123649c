"""Loads a checkpoint on any number of ranks, or the previous one if the checkpoint is damaged."""

import contextlib
import functools
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mpchain import observers
from mpchain.backends.dtypes import is_floating
from mpchain.distributed.checkpoints import layout, manifests
from mpchain.distributed.checkpoints.agreement import on_all_ranks
from mpchain.distributed.communicators import Communicator
from mpchain.serializer import DamagedFileError, SerializationError
from mpchain.serializers.npz import open_npz, restore
from mpchain.typing import Array

_OF_RANKS = re.compile(
    r"_|extensions/|extension_triggers/|stop_trigger/|updater/optimizer:[^/]+/exchange/compression/"
)
RANDOM = "_random/"

T = TypeVar("T")


def load_checkpoint(folder: layout.Path, target: object, comm: Communicator) -> int | None:
    """Restores an object from the latest intact checkpoint; collective.

    All files of a checkpoint are verified before the object is changed. If the content of a file is
    wrong, rank 0 warns and renames the checkpoint, and the checkpoint before it is loaded.

    If the number of ranks is the saved one, each rank gets back its own state, bit by bit.
    Otherwise, values that were divided among the ranks are divided anew. Values of single ranks
    (random states, states of extensions that only some ranks have) stay with their rank. New ranks
    get the values of the last saved rank, but keep their own random states if the saved ones
    differed between ranks. Persistent values of links that differ, such as the statistics of batch
    normalization, are combined: floating-point values are averaged over the ranks (as
    :class:`~mpchain.distributed.extensions.AllreducePersistent` does); integers are counts, so
    the greatest one is used.

    Args:
        folder: folder of the checkpoints.
        target: the object.
        comm: the communicator of the ranks.

    Returns:
        The number of the checkpoint; None if the folder has no checkpoint.

    Raises:
        OSError: a rank cannot read a file; raised on all ranks, and nothing is renamed. For half a
            minute, the rank tries again to find a missing file. If the folder is on a disk of the
            only host, the checkpoint then counts as damaged.
        SerializationError: every checkpoint is damaged, and nothing is renamed; or a checkpoint
            does not fit the object, does not fit this number of ranks, or has the format of a
            later version.

    Example:
        >>> import tempfile
        >>> from mpchain.distributed import load_checkpoint, save_checkpoint
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(folder, L.Linear(3, 2), comm, iteration=7)
        ...     load_checkpoint(folder, L.Linear(3, 2), comm)
        7
    """
    folder = observers.folder(folder)
    agree = functools.partial(
        on_all_ranks,
        comm,
        "load_checkpoint",
        advice="no checkpoint was renamed; start again when the file can be read, or move its "
        "folder elsewhere to use the checkpoint before it",
    )
    names = agree(lambda: layout.find(folder) if comm.rank == 0 else None)[0]
    contents = {}

    def find_damage(name):
        path = os.path.join(folder, name)
        contents[name], damage = agree(_read_manifest, path, comm)[0]
        damages = [damage] if damage else agree(_find_damage, path, contents[name], comm)
        return "; ".join(filter(None, damages))

    name, damages = latest_whole(names, find_damage)
    if name is None and names:
        listing = "\n".join(f"{name}: {damage}" for name, damage in damages.items())
        raise SerializationError(
            f"load_checkpoint: all {len(names)} checkpoints in {folder} are damaged, and none "
            "was renamed; restore one from a copy, or move the folder elsewhere to train from "
            f"the start\n{listing}"
        )
    if name is None:
        return None
    agree(lambda: _set_aside(folder, damages) if comm.rank == 0 else None)
    agree(_restore, os.path.join(folder, name), contents[name], target, comm)
    return int(name.rpartition("_")[2])


def latest_whole(
    names: Sequence[T], find_damage: Callable[[T], str]
) -> tuple[T | None, dict[T, str]]:
    """Finds the latest intact checkpoint.

    Args:
        names: the checkpoints, the oldest first.
        find_damage: function that returns what is damaged in a checkpoint; the empty string if
            nothing is.

    Returns:
        The latest intact checkpoint, or None; and a dict from each later checkpoint to its damage.

    Example:
        >>> latest_whole([1, 2, 3], {1: "", 2: "", 3: "checksum mismatch"}.get)
        (2, {3: 'checksum mismatch'})
    """
    damages = {}
    for name in reversed(names):
        damage = find_damage(name)
        if not damage:
            return name, damages
        damages[name] = damage
    return None, damages


def _read_manifest(path, comm):
    """Returns on rank 0 the manifest of a checkpoint and "", or None and what is damaged."""
    if comm.rank != 0:
        return None
    try:
        return manifests.read(path), ""
    except DamagedFileError as error:
        return None, str(error)
    except FileNotFoundError:
        if _may_be_hidden(path, comm):
            raise
        return None, f"{layout.MANIFEST} is missing"


def _may_be_hidden(path, comm):
    """Returns whether a checkpoint may have files that this rank does not see, because they are on
    a file server or another host's disk."""
    return comm.inter_size > 1 or not layout.is_local(path)


def _find_damage(path, manifest, comm):
    """Returns the damage in this rank's share of the part files; the empty string if there is
    none."""
    damages = []
    for number in range(comm.rank, manifest["ranks"], comm.size):
        keys = [
            key
            for key, entries in manifest["values"].items()
            if any(entry["part"] == number for entry in entries)
        ]
        part = f"part_{number}.npz"
        try:
            seal = manifest["parts"][number]
            damages.append(layout.find_damage(os.path.join(path, part), seal, keys))
        except FileNotFoundError:
            if _may_be_hidden(path, comm):
                raise
            damages.append(f"{part} is missing")
    return "; ".join(filter(None, damages))


def _set_aside(folder, damages):
    for name, damage in damages.items():
        warnings.warn(
            f"load_checkpoint: the checkpoint {os.path.join(folder, name)} is damaged: {damage}; "
            f"it was renamed to {layout.set_aside(folder, name)}, and the one before it is used",
            RuntimeWarning,
            stacklevel=2,
        )


def _restore(path, manifest, target, comm):
    with contextlib.ExitStack() as stack:
        values = Values(path, manifest, comm.rank, comm.size, stack)
        restore("load_checkpoint", path, values, target)


class Values(Mapping):
    """A mapping from names to the values that a rank gets from a checkpoint. Access reads a value.

    Args:
        path: folder of the checkpoint.
        manifest: the manifest of the checkpoint.
        rank, size: this rank, and the number of ranks now.
        stack: the context that closes the part files when it ends.
    """

    def __init__(
        self, path: layout.Path, manifest: dict, rank: int, size: int, stack: contextlib.ExitStack
    ):
        self._path, self._rank, self._size = path, rank, size
        self._n_saved, self._table = manifest["ranks"], manifest["values"]
        self._stack, self._parts = stack, {}

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._table if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: Any) -> bool:
        entries = self._table.get(key, [])
        is_new = self._rank >= self._n_saved and len(entries) > 1
        return bool(entries) and not (is_new and key.startswith(RANDOM))

    def __getitem__(self, key: str) -> Array:
        entries = self._chosen(key)
        if "start" in entries[0]:
            return self._put_together(key, entries)
        if len(entries) > 1:
            return self._combine(key, entries)
        return self._read(key, entries[0])

    def header(self, key: str) -> tuple[tuple, np.dtype] | None:
        """Returns (shape, dtype) of a value; None if the value is None."""
        entries = self._chosen(key)
        header = self._part(entries[0]).header(key)
        if "start" in entries[0]:
            return tuple(entries[0]["shape"]), header[1]
        return self._header_of_all(key, entries) if len(entries) > 1 else header

    def _chosen(self, key):
        """Returns the entries of this rank's value: one entry, several to combine, or all parts."""
        if key not in self:
            raise KeyError(key)
        entries = self._table[key]
        is_own = self._size == self._n_saved or _OF_RANKS.match(key)
        if not is_own or "start" in entries[0]:
            return entries
        like = min(self._rank, self._n_saved - 1)
        return [entry for entry in entries if like in entry["ranks"]] or entries[:1]

    def _header_of_all(self, key, entries):
        """Returns (shape, dtype) of a combined value, which another number of ranks gets if the
        ranks' values differ."""
        headers = {self._part(entry).header(key) for entry in entries}
        if len(headers) == 1 and all("persistent" in entry for entry in entries):
            shape, dtype = next(iter(headers)) or ((), np.dtype(bool))
            if is_floating(dtype) or (dtype.kind in "iu" and shape == ()):
                return shape, dtype
        raise SerializationError(
            f"{key!r} differs between the {self._n_saved} ranks that saved it and cannot be "
            f"combined, so that only {self._n_saved} ranks can load it, not {self._size}; load it "
            f"on {self._n_saved} ranks, make it the same on all of them, and save again"
        )

    def _combine(self, key, entries):
        _, dtype = self._header_of_all(key, entries)
        arrays = [self._read(key, entry) for entry in entries]
        if not is_floating(dtype):
            return max(arrays)
        weights = [len(entry["ranks"]) for entry in entries]
        total = sum(weight * x.astype(np.float64) for weight, x in zip(weights, arrays))
        return np.asarray(total / sum(weights)).astype(dtype)

    def _put_together(self, key, entries):
        parts = [(entry["start"], self._read(key, entry)) for entry in entries]
        parts.sort(key=lambda part: (part[0], part[1].size))
        at = 0
        for start, part in parts:
            if part.size > 0 and start != at:
                break
            at += part.size
        shape = entries[0]["shape"]
        if at != sum(part.size for _, part in parts) or at != math.prod(shape):
            raise SerializationError(
                f"{key!r}: the parts of the ranks do not make up the whole array of shape {shape}"
            )
        return np.concatenate([part for _, part in parts]).reshape(shape)

    def _read(self, key, entry):
        return self._part(entry)[key]

    def _part(self, entry):
        """Returns the arrays in the part that holds an entry, by name."""
        number = entry["part"]
        if number not in self._parts:
            path = os.path.join(self._path, f"part_{number}.npz")
            file = self._stack.enter_context(layout.open_when_visible(path))
            self._parts[number] = self._stack.enter_context(open_npz(file))
        return self._parts[number]
