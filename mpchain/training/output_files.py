"""Files that extensions write in the trainer's folder: one job at a time, and no results lost.

While training runs, the process that writes the files of a name holds a lock on a hidden file
beside them, which describes the process. The operating system releases the lock when the process
ends. A second job that would write the same files is refused. No other job writes or deletes them,
so half-written files of a killed process can be removed. Other processes of the same job are not
refused, because several ranks may add an extension of which only one rank writes.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
import socket
import string
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import IO, Any

from mpchain.serializers.files import PathLike, open_atomic
from mpchain.training.job import job_id
from mpchain.training.progress import print_line
from mpchain.training.trainer import Trainer

try:
    import fcntl
except ImportError:  # this is not a POSIX system
    fcntl = None

# Names of files that are being written have this prefix, possibly twice: a snapshot's writer and
# the function that it calls both write to a temporary name.
_TEMPORARY = r"(?:\.[0-9a-f]{8}\.tmp\.)+"
_MOST_NAMED = 3
"""The most renamed files that a message lists."""
_SECONDS_TO_INTRODUCE = 5
"""Seconds that a process may hold a lock before it has written its description."""


class OutputFiles:
    """The files of one name in the trainer's folder.

    Args:
        owner: the class that writes the files, for messages.
        template: the name of the files, as a format string; None if no file is written.

    Example:
        >>> trainer, files = testing.get_trainer_with_mock_updater(), OutputFiles("Mine", "numbers")
        >>> trainer.out = "."
        >>> files.claim(trainer)
        >>> with files.open("numbers") as file:
        ...     print("1 2 3", file=file)
        >>> files.release()
    """

    def __init__(self, owner: str, template: str | None) -> None:
        self._owner, self._template = owner, template
        self._lock: FileLock | None = None
        self._trainer: Any = None
        self._renamed: list[tuple[PathLike, str]] = []
        # A dict from each path to the identity of its file at the start of training.
        self._earlier: dict[str, Any] = {}

    def claim(self, trainer: Trainer) -> None:
        """Locks the files; removes half-written files of a killed process.

        Raises:
            RuntimeError: another job is writing the files.
        """
        template = self._template
        if self._lock is not None or template is None:
            return
        folder = os.path.realpath(trainer.out)

        def find_earlier():
            return {path: _identity(path) for path in find_files(folder, template)}

        lock = FileLock(os.path.join(folder, hidden_name(template, "lock")), find_earlier)
        if not lock.acquire():
            raise RuntimeError(
                f"{self._owner}: {os.path.join(trainer.out, template)} is being written by another "
                f"job ({lock.holder_text()}): use another folder, or wait until it has ended"
            )
        self._lock, self._trainer = lock, trainer
        if lock.is_unsupported:
            warnings.warn(
                f"{self._owner}: {folder} is on a file system without locks, so another job could "
                f"write {template} at the same time",
                RuntimeWarning,
                stacklevel=3,
            )
        elif lock.is_new:
            index = hidden_name(template, "index").replace("{", "{{").replace("}", "}}")
            for name in (template, index):
                for leftover in find_files(folder, name, _TEMPORARY):
                    os.remove(leftover)
        # A rank that arrives late uses the list of earlier files that the first rank has found,
        # because that rank may have written files since.
        self._earlier = lock.holder["earlier"] if lock.is_shared else find_earlier()

    def open(self, path: PathLike, mode: str = "w") -> contextlib.AbstractContextManager[IO[Any]]:
        """Opens a file to replace it atomically; see :meth:`keep_earlier`."""
        self.keep_earlier(path)
        return open_atomic(path, mode)

    def keep_earlier(self, path: PathLike) -> None:
        """Renames a file that this run is about to replace, if an earlier run has written it.

        If this run was resumed from a snapshot, the file is not renamed. The new name has
        ``.old1``, ``.old2``, ... before its extension, so it is not the name of a snapshot.

        Args:
            path: the file that will be written.
        """
        earlier = self._earlier.pop(os.path.realpath(path), None)
        if earlier is None or self._trainer.is_resumed or _identity(path) != earlier:
            return
        root, extension = os.path.splitext(path)
        for number in itertools.count(1):
            name = f"{root}.old{number}{extension}"
            try:
                _give_second_name(path, name)
            except FileNotFoundError:
                return
            except FileExistsError:
                if _identity(name) == earlier:
                    return  # another rank has renamed the file first
            else:
                if _identity(name) == earlier:
                    self._renamed.append((path, name))
                else:  # another rank has replaced the file in the meantime
                    os.unlink(name)
                return

    def release(self) -> None:
        """Unlocks the files, and prints which files of an earlier run have been renamed.

        The names are printed at the end, so that they do not appear between the rows of a table.
        """
        if self._lock is not None:
            self._lock.release()
            self._lock, self._trainer, self._earlier = None, None, {}
        for path, name in self._renamed[:_MOST_NAMED]:
            print_line(f"renamed existing {path} to {name}")
        if len(self._renamed) > _MOST_NAMED:
            print_line(f"and {len(self._renamed) - _MOST_NAMED} more files")
        self._renamed = []


def _give_second_name(path, name):
    """Gives the file ``path``, which will be replaced, the second name ``name``, unless that
    exists.

    A rename could overwrite a file, and could rename a file that another rank has just written.
    """
    try:
        os.link(path, name)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # the file system does not support hard links
        os.rename(path, name)


def find_files(folder: PathLike, template: str, prefix: str = "") -> list[str]:
    """Returns the paths of the files in a folder whose names a format string can have produced.

    Args:
        folder: the folder.
        template: the format string.
        prefix: regular expression for the text before the name.

    Example:
        >>> open("iter_5", "w").close()
        >>> find_files(".", "iter_{.updater.iteration}")
        ['./iter_5']
    """
    pattern = re.compile(prefix + _pattern(template))
    return [entry.path for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]


def hidden_name(template: str, extension: str) -> str:
    """Returns the name of the hidden file for all files whose names a format string produces.

    Each field of the format string is replaced by its last word.

    Example:
        >>> hidden_name("snapshot_iter_{.updater.iteration}", "index")
        '.snapshot_iter_iteration.index'
    """
    fields = string.Formatter().parse(template)
    name = "".join(text + (field or "").rpartition(".")[2] for text, field, _, _ in fields)
    return f".{name.replace(os.sep, '_')}.{extension}"


def progress_in(path: PathLike, template: str) -> tuple[float, ...]:
    """Returns the progress of training in a file's name: (iteration or epoch,), or () if it has
    none.

    Example:
        >>> progress_in("result/iter_500", "iter_{.updater.iteration}")
        (500.0,)
    """
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    found = re.fullmatch(_pattern(template), os.path.basename(path))
    assert found is not None  # the file matches the template
    texts = found.groups()
    for ending in ("updater.iteration", "updater.epoch", "updater.epoch_detail"):
        for field, text in zip(fields, texts, strict=True):
            if field.endswith(ending):
                with contextlib.suppress(ValueError):
                    return (float(text),)
    return ()


def _pattern(template):
    """Returns a regular expression for names of a format string, with a group for each field."""
    # Fields do not match every text: temporary files and files derived from a snapshot must not
    # match.
    return "".join(
        re.escape(literal) + ("" if field is None else r"([-+\w]+(?:\.\d+)?)")
        for literal, field, _, _ in string.Formatter().parse(template)
    )


class FileLock:
    """A file that at most one process locks; this process may acquire the lock several times.

    Args:
        path: path of the file.
        find_earlier: function that returns additional content of the file, in JSON types.

    Example:
        >>> lock = FileLock(".lock")
        >>> lock.acquire()
        True
        >>> lock.release()
    """

    _held = {}  # maps each path to [descriptor, number of acquisitions]
    _guard = threading.Lock()

    def __init__(self, path: str, find_earlier: Callable[[], Any] = dict) -> None:
        self._path, self._find_earlier = path, find_earlier
        self.is_new = self.is_shared = self.is_unsupported = False
        self.holder: dict[str, Any] = {}

    def acquire(self) -> bool:
        """Tries to acquire the lock. Returns whether this process may write: it has the lock, it
        belongs to the holder's job, or the file system has no locks."""
        with self._guard:
            if self._path in self._held:
                self._held[self._path][1] += 1
                return True
            limit = time.monotonic() + _SECONDS_TO_INTRODUCE
            while not self._try():
                if self.holder:
                    self.is_shared = self.holder.get("job") == job_id() is not None
                    return self.is_shared
                if time.monotonic() > limit:
                    return False
                time.sleep(0.01)
            return True

    def _try(self):
        """Tries once to acquire the lock; if it fails, records who holds the lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is None:
                raise AttributeError("there is no fcntl")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError):
                self.holder = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
            os.close(descriptor)
            return False
        except (OSError, AttributeError):  # AttributeError means that there is no fcntl
            os.close(descriptor)
            os.unlink(self._path)
            self.is_unsupported = True
            return True
        # The holder of the lock has removed the file in the meantime.
        if _identity(descriptor) != _identity(self._path):
            os.close(descriptor)
            return False
        introduction = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": shlex.join(sys.argv),
            "job": job_id(),
            "earlier": self._find_earlier(),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(introduction).encode(), 0)
        os.fsync(descriptor)
        self._held[self._path] = [descriptor, 1]
        self.is_new = True
        return True

    def holder_text(self) -> str:
        """Returns a description of the process that holds the lock."""
        if not self.holder:
            return "which did not say who it is"
        return "host {host}, process {pid}, since {since}: {command}".format_map(self.holder)

    def release(self) -> None:
        """Undoes one acquisition. Undoing this process's last acquisition releases the lock and
        removes the file."""
        with self._guard:
            entry = self._held.get(self._path)
            if entry is None or self.is_shared:
                return
            entry[1] -= 1
            if entry[1] == 0:
                del self._held[self._path]
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
                os.close(entry[0])

    @classmethod
    def forget(cls) -> None:
        """Closes a forked process's copies of all locks. (A lock lasts until every copy is
        closed.)"""
        for descriptor, _ in cls._held.values():
            os.close(descriptor)
        cls._held, cls._guard = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FileLock.forget)


def _identity(file):
    """Returns an id of a path's or descriptor's file, the same on all hosts; None without a
    file."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(file)
        return [status.st_ino, status.st_mtime_ns, status.st_size]
    return None
