"""Loading a checkpoint on any number of ranks, or the one before if it is damaged."""

import contextlib
import os
import warnings
from collections.abc import Mapping

import numpy as np

from mpchain.distributed.checkpoints import layout
from mpchain.serializer import SerializationError
from mpchain.serializers.npz import restore

_OF_RANKS = ("_", "extensions/", "extension_triggers/", "stop_trigger/")
_RANDOM = "_random/"


def load_checkpoint(folder, target, comm):
    """Restores an object from the latest checkpoint that is whole; collective.

    Each file is verified before the object is touched. Where one is missing or damaged, rank 0
    warns and renames the checkpoint, and the one before it is loaded.

    With another number of ranks than it was saved with, what was divided among the ranks is divided
    anew; what belongs to each rank (random states, states of extensions that only some of them
    have) is kept by those that there are, and new ranks have that of the last one, but keep their
    own random states where those of the ranks differed.

    Args:
        folder: folder of the checkpoints.
        target: the object.
        comm (Communicator): the ranks.

    Returns:
        int: the number of the checkpoint; None if there is none.

    Raises:
        SerializationError: it does not fit the object, or this number of ranks.
    """
    names = comm.bcast_obj(layout.find(folder) if comm.rank == 0 else None)
    for name in reversed(names):
        path = os.path.join(folder, name)
        manifest, damage = None, ""
        try:
            manifest = _read_manifest(path)
            damage = _find_damage(path, manifest, comm.rank, comm.size)
        except SerializationError as error:
            damage = str(error)
        damages = list(dict.fromkeys(filter(None, comm.allgather_obj(damage))))
        if not damages:
            with contextlib.ExitStack() as stack:
                values = Values(path, manifest, comm.rank, comm.size, stack)
                restore("load_checkpoint", path, values, target)
            return int(name.rpartition("_")[2])
        if comm.rank == 0:
            new_name = layout.set_aside(folder, name)
            warnings.warn(
                f"the checkpoint {path} is not whole and is now called {new_name}; the one before "
                f"it is used, if there is one: {'; '.join(damages)}",
                RuntimeWarning,
                stacklevel=2,
            )
        comm.barrier()
    return None


def _read_manifest(path):
    manifest = layout.read_json(os.path.join(path, layout.MANIFEST))
    if manifest.get("format") != layout.FORMAT:
        raise SerializationError(
            f"{layout.MANIFEST} is of the format {manifest.get('format')!r}, not {layout.FORMAT!r}"
        )
    return manifest


def _find_damage(path, manifest, rank, size):
    """Says what is wrong with this rank's share of the parts; empty if nothing is."""
    damages = []
    for number in range(rank, manifest["ranks"], size):
        name = f"part_{number}.npz"
        try:
            seal = layout.seal_of(os.path.join(path, name))
        except OSError as error:
            damages.append(f"{name} cannot be read: {error.strerror}")
            continue
        if seal != manifest["parts"][number]:
            damages.append(f"{name} is damaged: size or checksum are others")
    return "; ".join(damages)


class Values(Mapping):
    """The values of a checkpoint by name, as a rank is to have them; each is read when it is asked
    for.

    Args:
        path: folder of the checkpoint.
        manifest (dict): its manifest.
        rank, size (int): this rank, and the number of ranks now.
        stack (contextlib.ExitStack): closes the files.
    """

    def __init__(self, path, manifest, rank, size, stack):
        self._path, self._rank, self._size = path, rank, size
        self._n_saved, self._table = manifest["ranks"], manifest["values"]
        self._stack, self._files = stack, {}

    def __iter__(self):
        return (key for key in self._table if key in self)

    def __len__(self):
        return sum(1 for _ in self)

    def __contains__(self, key):
        return key in self._table and ("start" in self._table[key][0] or self._choose(key) != [])

    def __getitem__(self, key):
        entries = self._table[key]
        if "start" in entries[0]:
            return self._put_together(key, entries)
        chosen = self._choose(key)
        if not chosen:
            raise KeyError(key)
        return self._read(key, chosen[0]["part"])

    def _choose(self, key):
        """The entry of a value for this rank, as a list of one; empty if it is not to have one."""
        entries = self._table[key]
        if len(entries) == 1:
            return entries
        is_of_ranks = key.startswith(_OF_RANKS)
        if self._size != self._n_saved and not is_of_ranks:
            raise SerializationError(
                f"{key!r} differs between the {self._n_saved} ranks that have saved it, so that "
                f"only so many ranks can load it, not {self._size}"
            )
        if key.startswith(_RANDOM) and self._rank >= self._n_saved:
            return []
        like = min(self._rank, self._n_saved - 1)
        own = [entry for entry in entries if like in entry["ranks"]]
        return own or [entry for entry in entries if 0 in entry["ranks"]]

    def _put_together(self, key, entries):
        parts = [(entry["start"], self._read(key, entry["part"])) for entry in entries]
        parts.sort(key=lambda part: (part[0], part[1].size))
        whole = np.empty(entries[0]["shape"], parts[0][1].dtype)
        flat, at = whole.reshape(-1), 0
        for start, part in parts:
            if part.size > 0:
                if start != at:
                    break
                flat[at : at + part.size] = part
                at += part.size
        if at != flat.size:
            raise SerializationError(f"{key!r}: the parts of the ranks do not make up the whole")
        return whole

    def _read(self, key, number):
        if number not in self._files:
            path = os.path.join(self._path, f"part_{number}.npz")
            self._files[number] = self._stack.enter_context(np.load(path))
        return self._files[number][key]
