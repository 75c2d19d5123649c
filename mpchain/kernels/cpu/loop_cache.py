"""Caches numba's compiled loops in files, but only in folders into which no other user can
write."""

import functools
import hashlib
import os
import pathlib
import pickle
import sys
import threading
import time
from typing import Any, cast

PATIENCE = 2.0
"""The seconds of compilation after which mpchain prints a line that explains the delay."""

COMPILES = (
    "compiling loops for this machine, which takes seconds to minutes; later runs find the loops "
    "in the cache, if the cache can be written"
)

_KNOWS_OWNERS = hasattr(os, "geteuid")  # Windows lacks os.geteuid and the module pwd
# A user who can change this file is trusted, because such a user can change mpchain itself.
_OWNERS = {os.stat(__file__).st_uid, *([os.geteuid(), 0] if _KNOWS_OWNERS else [])}
_RANKS = "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"


@functools.cache
def say(text: str) -> None:
    """Prints a line to standard error, at most once per process and text. With several ranks, only
    rank 0 prints.

    Example:
        >>> say("compiling takes long")
    """
    if all(os.environ.get(name, "0") == "0" for name in _RANKS):
        print(f"mpchain: {text}", file=sys.stderr, flush=True)


def is_safe(folder: str | os.PathLike) -> bool:
    """Returns whether no other user can write into a folder, which may be missing. If another user
    can, the function prints a line. The check is needed because the cache holds code that is
    executed.

    Example:
        >>> is_safe("/nowhere")
        True
    """
    try:
        status = os.stat(folder)
    except OSError:  # OSError means that the folder is missing or inaccessible
        return True
    if not _KNOWS_OWNERS:
        return True
    if status.st_uid not in _OWNERS:
        reason = "which belongs to another user"
    elif status.st_mode & 0o002 or (status.st_mode & 0o020 and not _has_own_group(folder)):
        reason = "which other users may write"
    else:
        return True
    say(
        f"compiled loops are not cached in {os.fspath(folder)}, {reason}; set NUMBA_CACHE_DIR to a "
        "folder that only you can write"
    )
    return False


def _has_own_group(folder):
    """Returns whether a folder's group is the private group that many systems create for each
    user."""
    try:
        return pathlib.Path(folder).group() == pathlib.Path(folder).owner()
    except KeyError:  # KeyError means that the user or group id has no name
        return False


def cache(compiled: Any, is_wide: bool = False) -> None:
    """Enables the cache on disk for a function that ``numba.njit`` has made.

    Each file ends with its checksum. Files that are damaged, or that belong to another user, are
    ignored and written again.

    Args:
        compiled: the function, without a cache.
        is_wide: whether it is compiled with wide vectors, which numba's key does not contain.

    Raises:
        RuntimeError: no safe folder for the cache can be written.
    """
    compiled._cache = _cache_class()(compiled.py_func, is_wide)


def is_stored(compiled: object) -> bool:
    """Returns whether the cache has machine code of a compiled function for this processor.

    Args:
        compiled: a function that ``numba.njit`` has made.
    """
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is None:  # the loop has no cache
        return False
    processor = cast(Any, compiled).targetctx.codegen().magic_tuple()
    return any(processor in key for key in index._load_index())


def remove(compiled: object) -> None:
    """Removes the cache that :func:`cache` gave to a compiled function, because it failed."""
    from numba.core import caching

    cast(Any, compiled)._cache = caching.NullCache()


@functools.cache
def _cache_class():
    from numba.core import caching, event

    event.register("numba:compile", _patience())

    class File(caching.IndexDataCacheFile):
        def _load_index(self):
            data = _checked(self._index_path)
            if data is None:
                return {}
            version, (stamp, overloads) = pickle.loads(data)
            is_fresh = version == self._version and stamp == self._source_stamp
            return overloads if is_fresh else {}

        def _save_index(self, overloads):
            contents = self._version, (self._source_stamp, overloads)
            self._save(self._index_path, contents)

        def _load_data(self, name):
            data = _checked(self._data_path(name))
            return None if data is None else pickle.loads(data)

        def _save_data(self, name, data):
            self._save(self._data_path(name), data)

        def _save(self, path, contents):
            data = self._dump(contents)
            with self._open_for_write(path) as file:
                file.write(data + _checksum(data))

    base = caching.FunctionCache._impl_class

    class Implementation(base):
        _locator_classes = [*map(_careful, base._locator_classes)]

    class Cache(caching.FunctionCache):
        _impl_class = Implementation

        def __init__(self, function, is_wide):
            super().__init__(function)
            self._is_wide = is_wide
            names = self._cache_path, self._impl.filename_base
            self._cache_file = File(*names, self._impl.locator.get_source_stamp())

        def _index_key(self, sig, codegen):
            return *super()._index_key(sig, codegen), self._is_wide

    return Cache


def _careful(locator):
    """Returns a numba class that finds folders as the given class does, but accepts only safe
    folders."""

    class Careful(locator):
        @classmethod
        def from_function(cls, function, file):
            found = super().from_function(function, file)
            return found if found is not None and is_safe(found.get_cache_path()) else None

    return Careful


def _checksum(data):
    return hashlib.sha256(data).digest()


def _checked(path):
    """Returns the contents of a file; None if the file is missing or damaged, or belongs to another
    user."""
    try:
        with open(path, "rb") as file:
            contents = file.read() if os.fstat(file.fileno()).st_uid in _OWNERS else b""
    except OSError:
        return None
    data = contents[:-32]
    return data if contents[-32:] == _checksum(data) else None


def _patience():
    """Returns a numba listener that prints a line if the compilation of mpchain's loops takes a
    long time."""
    from numba.core.event import Listener

    class Patience(Listener):
        spent, timer = 0.0, None  # spent is the total of the seconds for all loops so far

        def on_start(self, event):
            if self.timer is None and _is_ours(event):
                self.begun, left = time.monotonic(), max(0.0, PATIENCE - self.spent)
                self.timer = threading.Timer(left, say, [COMPILES])
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, event):
            if self.timer is not None and _is_ours(event):
                self.timer.cancel()
                self.timer = None
                self.spent += time.monotonic() - self.begun

    return Patience()


def _is_ours(event):
    # A function that a program made by exec may have no module.
    return (event.data["dispatcher"].py_func.__module__ or "").startswith("mpchain.")
