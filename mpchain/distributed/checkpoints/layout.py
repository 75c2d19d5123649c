"""Files of a checkpoint.

A checkpoint is a folder ``iteration_<n>``, which gets this name when all of its files are on the
disk:

- ``part_<r>.npz``: the values that rank r wrote. One rank writes each value that several ranks
  share, such that all ranks write about the same amount.
- ``manifest.json``: the number of ranks, the size and SHA-256 of each part, the part that holds
  each value, and a checksum of the manifest itself.

While a checkpoint is being written, its folder is called ``.iteration_<n>.<id of the run>.tmp``. A
checkpoint that turned out to be damaged is called ``iteration_<n>.damaged``, or, if that name is
taken, ``iteration_<n>.damaged_<k>``.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import time
from collections.abc import Collection
from typing import IO, Any, TypeAlias

from mpchain.serializer import DamagedFileError
from mpchain.serializers.files import open_atomic, sync_folder
from mpchain.serializers.npz import open_npz

Path: TypeAlias = str | os.PathLike[str]

MANIFEST = "manifest.json"
SECONDS_TO_APPEAR = 30.0
"""Seconds for which an existing file may be invisible: hosts cache folders of file servers."""

_NAME = r"iteration_(\d+)"
_LONGEST_PAUSE = 0.5
_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
"""Types of file systems that no other host changes."""


def name_of(iteration: int) -> str:
    """Returns the name of a checkpoint's folder.

    >>> name_of(7)
    'iteration_7'
    """
    return f"iteration_{iteration}"


def temporary_name_of(name: str, run: str) -> str:
    """Returns the name of a checkpoint's folder while the run with that id writes the files.

    >>> temporary_name_of("iteration_7", "f00")
    '.iteration_7.f00.tmp'
    """
    return f".{name}.{run}.tmp"


def find(folder: Path, pattern: str = _NAME, are_folders: bool = True) -> list[str]:
    """Returns the names of the checkpoints in a folder, the oldest first.

    Args:
        folder: the folder, which need not exist.
        pattern: regular expression for the names, with a group for the number of the iteration.
        are_folders: whether the checkpoints are folders; if not, they are files.

    >>> find("missing")
    []
    """
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        names = [
            e.name for e in entries if re.fullmatch(pattern, e.name) and e.is_dir() == are_folders
        ]
    return sorted(names, key=lambda name: int(re.findall(pattern, name)[0]))


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, so that they survive a power failure."""
    if os.path.isdir(folder):
        return
    os.makedirs(folder, exist_ok=True)
    path = pathlib.Path(folder).resolve()
    for above in path.parents:  # the trainer may just have made these folders, too
        if above.stat().st_dev != path.stat().st_dev:
            break
        with contextlib.suppress(PermissionError):  # another user may own this folder
            sync_folder(above)


def remove_leftovers(folder: Path) -> None:
    """Removes files that an earlier run was writing or removing when it ended."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_ours = entry.name.startswith(".iteration_") and entry.name.endswith(".tmp")
            if is_ours and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)


def remove(folder: Path, name: str, run: str) -> None:
    """Removes a checkpoint or the link to it; its name never refers to an incomplete checkpoint."""
    doomed = os.path.join(folder, temporary_name_of(name + ".old", run))
    os.rename(os.path.join(folder, name), doomed)
    if os.path.islink(doomed):
        os.unlink(doomed)
    else:
        shutil.rmtree(doomed)


def set_aside(folder: Path, name: str) -> str:
    """Renames a damaged checkpoint; returns its new name."""
    number, new = 0, f"{name}.damaged"
    while os.path.exists(os.path.join(folder, new)):
        number += 1
        new = f"{name}.damaged_{number}"
    os.rename(os.path.join(folder, name), os.path.join(folder, new))
    return new


def commit(folder: Path, name: str, run: str) -> None:
    """Renames a complete folder to its final name, so that a power failure cannot undo it."""
    temporary, final = (os.path.join(folder, n) for n in (temporary_name_of(name, run), name))
    sync_folder(temporary)
    # If this folder exists, an earlier run wrote it, and this run resumed before that iteration.
    if os.path.exists(final):
        remove(folder, name, run)
    os.rename(temporary, final)
    sync_folder(folder)


def write_json(path: Path, content: object) -> None:
    """Writes a file that contains its own checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(f"{folder}/x.json", [1, 2])
    ...     read_json(f"{folder}/x.json")
    [1, 2]
    """
    with open_atomic(path, "w") as file:
        file.write(_with_checksum(content))


def write_message(path: Path, content: object) -> None:
    """Writes a file that :func:`read_json` verifies, but that need not survive the job."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(_with_checksum(content))
    os.replace(f"{path}.tmp", path)


def _with_checksum(content):
    text = json.dumps(content, separators=(",", ":"))
    return f"{text}\n{_sha256(text)}\n"


def open_when_visible(path: Path) -> IO[bytes]:
    """Opens a file that exists, even if the file system does not show it yet.

    Raises:
        FileNotFoundError: the file did not appear within :data:`SECONDS_TO_APPEAR`.
        DamagedFileError: the path is not a regular file, but a folder or a pipe, for example.
    """
    name, end, pause = os.path.basename(path), time.monotonic() + SECONDS_TO_APPEAR, 0.01
    while True:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
                raise DamagedFileError(f"{name} is damaged: it is not a regular file")
            return open(path, "rb")
        except FileNotFoundError:
            if time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_local(folder: Path) -> bool:
    """Returns whether a folder is on a disk of this host, where an invisible file does not exist.

    >>> is_local("/proc"), is_local("missing")
    (False, False)
    """
    try:
        device = os.stat(folder).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(m[2] == number and m[m.index("-") + 1] in _LOCAL for m in mounts)


def read_json(path: Path) -> Any:
    """Reads and verifies a file that :func:`write_json` or :func:`write_message` wrote.

    Raises:
        DamagedFileError: the content does not match its checksum.
        OSError: the file cannot be read.
    """
    with open_when_visible(path) as file:
        content = file.read()
    try:
        text, checksum, end = content.decode().split("\n")
        if end or checksum != _sha256(text):
            raise ValueError("checksum mismatch")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{os.path.basename(path)} is damaged: {error}") from error


def seal_of(path: Path) -> dict[str, Any]:
    """Returns the size in bytes and SHA-256 of a file.

    >>> seal_of(os.devnull)["bytes"]
    0
    """
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def find_damage(path: Path, seal: dict[str, Any], keys: Collection[str]) -> str:
    """Returns what is damaged in a part file; the empty string if nothing is.

    Args:
        path: the file.
        seal: the file's size in bytes and SHA-256, as :func:`seal_of` returned them.
        keys: names of the arrays that the file must hold.

    Raises:
        OSError: the file cannot be read.
    """
    name = os.path.basename(path)
    try:
        opened = open_when_visible(path)
    except DamagedFileError as error:
        return str(error)
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size != seal["bytes"]:
            return f"{name} is damaged: it has {size} bytes, not {seal['bytes']}"
        if hashlib.file_digest(file, "sha256").hexdigest() != seal["sha256"]:
            return f"{name} is damaged: checksum mismatch"
        try:
            with open_npz(file) as arrays:
                lacking = sorted(set(keys) - set(arrays))
        except DamagedFileError as error:
            return f"{name} is damaged: {error}"
    return f"{name} is damaged: it lacks {', '.join(lacking[:20])}" if lacking else ""


def _sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
