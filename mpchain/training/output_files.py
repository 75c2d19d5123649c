"""Files that extensions write in the trainer's folder: one job at a time, and no results lost.

While training runs, the process that writes the files of a name holds a lock on a hidden file
beside them, which says who it is. The lock is the operating system's: it ends with the process. A
second job that would write the same files is refused; so nobody else writes or deletes them, and
what a killed process has left half-written can be removed. Other processes of the same job, in
which several ranks may add an extension of which one writes, are let through.
"""

import contextlib
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

from mpchain.training.progress import print_line

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

# What files are called while they are written, before their names; a name can have it twice, since
# a snapshot's writer and the function that it calls both make sure that no file appears too early.
_TEMPORARY = r"(?:\.[0-9a-f]{8}\.tmp\.)+"
_SECONDS_TO_INTRODUCE = 5
"""For how long a process may hold a lock before it has said who it is."""


class OutputFiles:
    """The files of one name in the trainer's folder.

    Args:
        owner (str): what writes them, for messages.
        template (str): their name, as a format string.
    """

    def __init__(self, owner, template):
        self._owner, self._template = owner, template
        self._lock = self._trainer = None
        self._earlier = {}  # path -> what its file was when the training began

    def claim(self, trainer):
        """Locks the files; removes what a killed process has left of some.

        Raises:
            RuntimeError: another job is writing them.
        """
        if self._lock is not None:
            return
        folder = os.path.realpath(trainer.out)

        def find_earlier():
            return {path: _identity(path) for path in find_files(folder, self._template)}

        name = f".{self._template.replace(os.sep, '_')}.lock"
        lock = FileLock(os.path.join(folder, name), find_earlier)
        path = os.path.join(trainer.out, self._template)
        if not lock.acquire():
            raise RuntimeError(
                f"{self._owner}: {path} is being written by another job ({lock.holder_text()}): "
                "use another folder, or wait until it has ended"
            )
        self._lock, self._trainer = lock, trainer
        if lock.is_unsupported:
            warnings.warn(
                f"{self._owner}: {folder} is on a file system without locks: nothing keeps another "
                f"job from writing {self._template} at the same time",
                RuntimeWarning,
                stacklevel=3,
            )
        elif lock.is_new:
            for leftover in find_files(folder, self._template, _TEMPORARY):
                os.remove(leftover)
        # A rank that comes late takes what the first has found, not what that has written since.
        self._earlier = lock.holder["earlier"] if lock.is_shared else find_earlier()

    def keep_earlier(self, path):
        """Renames a file that this run is about to replace, if it is of an earlier run.

        That is a run which this one does not resume. The file gets a name which no snapshot has.

        Args:
            path: the file that will be written.
        """
        earlier = self._earlier.pop(os.path.realpath(path), None)
        if earlier is None or self._trainer.is_resumed or _identity(path) != earlier:
            return
        root, extension = os.path.splitext(path)
        number = 1
        while os.path.exists(f"{root}.old{number}{extension}"):
            number += 1
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            os.rename(path, f"{root}.old{number}{extension}")
            print_line(f"{path} of an earlier run is now {root}.old{number}{extension}")

    def release(self):
        """Unlocks the files."""
        if self._lock is not None:
            self._lock.release()
            self._lock = self._trainer = None
            self._earlier = {}


def find_files(folder, template, prefix=""):
    """Returns the paths of the files in a folder whose name a format string can have produced.

    Args:
        prefix (str): regular expression of what comes before the name.
    """
    pattern = re.compile(prefix + "".join(literal + field for literal, field in _parse(template)))
    return [entry.path for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]


def progress_in(path, template):
    """Returns the progress of training that a file's name tells: (iteration or epoch,), or ()."""
    parts = list(string.Formatter().parse(template))
    for ending in ("updater.iteration", "updater.epoch", "updater.epoch_detail"):
        fields = [i for i, (_, field, _, _) in enumerate(parts) if (field or "").endswith(ending)]
        if fields:
            pattern = "".join(
                literal + (f"({field})" if i == fields[0] else field)
                for i, (literal, field) in enumerate(_parse(template))
            )
            text = re.fullmatch(pattern, os.path.basename(path))[1]
            with contextlib.suppress(ValueError):
                return (float(text),)
    return ()


def _parse(template):
    """Yields regular expressions of the literal parts, each with that of the field behind it."""
    for literal, field, _, _ in string.Formatter().parse(template):
        # No free text: a temporary or derived file beside a snapshot must not match.
        yield re.escape(literal), "" if field is None else r"[-+\w]+(?:\.\d+)?"


class FileLock:
    """A file that is locked by at most one process, and by that as often as it wants.

    Args:
        path: the file.
        find_earlier: function that returns what else the file says, which JSON can hold.
    """

    _held = {}  # path -> [descriptor, how often it was acquired]
    _guard = threading.Lock()

    def __init__(self, path, find_earlier=dict):
        self._path, self._find_earlier = path, find_earlier
        self.is_new = self.is_shared = self.is_unsupported = False
        self.holder = {}

    def acquire(self):
        """Returns whether this process may write: by the lock, or as part of the holder's job."""
        with self._guard:
            if self._path in self._held:
                self._held[self._path][1] += 1
                return True
            limit = time.monotonic() + _SECONDS_TO_INTRODUCE
            while not self._try():
                if self.holder:
                    self.is_shared = self.holder.get("job") == _job() is not None
                    return self.is_shared
                if time.monotonic() > limit:
                    return False
                time.sleep(0.01)
            return True

    def _try(self):
        """Makes one attempt; notes who holds the lock if that fails."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError):
                self.holder = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
            os.close(descriptor)
            return False
        except (OSError, AttributeError):  # AttributeError: there is no fcntl
            os.close(descriptor)
            os.unlink(self._path)
            self.is_unsupported = True
            return True
        if not _is_file_at(descriptor, self._path):  # its holder has ended and removed it meanwhile
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        introduction = _introduction() | {"earlier": self._find_earlier()}
        os.pwrite(descriptor, json.dumps(introduction).encode(), 0)
        os.fsync(descriptor)
        self._held[self._path] = [descriptor, 1]
        self.is_new = True
        return True

    def holder_text(self):
        """Says who holds the lock."""
        if not self.holder:
            return "which did not say who it is"
        return "host {host}, process {pid}, since {since}: {command}".format_map(self.holder)

    def release(self):
        """Removes the file, unless this process needs it elsewhere."""
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
    def forget(cls):
        """In a forked process: holds no lock. (A lock lasts until every copy is closed.)"""
        for descriptor, _ in cls._held.values():
            os.close(descriptor)
        cls._held, cls._guard = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FileLock.forget)


def _identity(path):
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return [status.st_ino, status.st_mtime_ns, status.st_size]  # alike on all hosts


def _is_file_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _introduction():
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": shlex.join(sys.argv),
        "job": _job(),
    }


def _job(environ=os.environ):
    """What the processes that one launcher has started have in common; None without a launcher."""
    for name in ("MPCHAIN_JOB", "PMIX_NAMESPACE"):  # mpchain-launch; Open MPI, srun with PMIx
        if name in environ:
            return environ[name]
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":  # srun
        return f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if "PMI_JOBID" not in environ and environ.get("PMI_SIZE", "1") != "1":  # MPICH's mpirun
        return f"process {os.getppid()}"
    return environ.get("PMI_JOBID")  # other launchers
