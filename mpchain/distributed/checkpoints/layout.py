"""How a checkpoint lies on the disk.

A folder ``iteration_<n>`` is a checkpoint, and whole: it gets this name, by which alone it is
found, when all that is in it is on the disk. In it are

- ``part_<r>.npz``, what rank r has written. A value that is the same on several ranks is written by
  one of them, so that all write about as much.
- ``manifest.json``, which has the number of ranks, size and SHA-256 of each part, which value is in
  which part, and a checksum of its own.

While it is written, the folder is called ``.iteration_<n>.<id of the run>.tmp``. One that turned
out to be damaged is called ``iteration_<n>.damaged``.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import time

from mpchain.serializer import DamagedFileError
from mpchain.serializers.files import open_atomic, sync_folder
from mpchain.serializers.npz import open_npz

MANIFEST = "manifest.json"
SECONDS_TO_APPEAR = 30.0
"""How long a file that must exist may be invisible: hosts cache the folders of a file server."""

_NAME = re.compile(r"iteration_(\d+)")
_LONGEST_PAUSE = 0.5


def name_of(iteration):
    """The name of a checkpoint's folder."""
    return f"iteration_{iteration}"


def temporary_name_of(name, run):
    """Its name while it is written, in a run with that id."""
    return f".{name}.{run}.tmp"


def find(folder):
    """Returns the names of the checkpoints in a folder, the oldest first."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if _NAME.fullmatch(e.name) and e.is_dir()]
    return sorted(names, key=lambda name: int(_NAME.fullmatch(name)[1]))


def make_folder(folder):
    """Creates a folder, and those above it, such that they survive a power failure."""
    if os.path.isdir(folder):
        return
    os.makedirs(folder, exist_ok=True)
    path = pathlib.Path(folder).resolve()
    for above in path.parents:  # the trainer may just have made those, too
        if above.stat().st_dev != path.stat().st_dev:
            break
        with contextlib.suppress(PermissionError):  # this job did not make it
            sync_folder(above)


def remove_leftovers(folder):
    """Removes what an earlier run was writing or removing when it ended."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_ours = entry.name.startswith(".iteration_") and entry.name.endswith(".tmp")
            if is_ours and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)


def remove(folder, name, run):
    """Removes a checkpoint, which at no time can be taken for a whole one; of a link, the link."""
    doomed = os.path.join(folder, temporary_name_of(name + ".old", run))
    os.rename(os.path.join(folder, name), doomed)
    if os.path.islink(doomed):
        os.unlink(doomed)
    else:
        shutil.rmtree(doomed)


def set_aside(folder, name):
    """Renames a damaged checkpoint; returns its new name."""
    number, new = 0, f"{name}.damaged"
    while os.path.exists(os.path.join(folder, new)):
        number += 1
        new = f"{name}.damaged_{number}"
    os.rename(os.path.join(folder, name), os.path.join(folder, new))
    return new


def commit(folder, name, run):
    """Gives a folder that is complete its name, and makes that durable."""
    temporary, final = (
        os.path.join(folder, temporary_name_of(name, run)),
        os.path.join(folder, name),
    )
    sync_folder(temporary)
    if os.path.exists(final):  # the same iteration of an earlier run, which went on from before it
        remove(folder, name, run)
    os.rename(temporary, final)
    sync_folder(folder)


def write_json(path, content):
    """Writes a file with its own checksum."""
    with open_atomic(path, "w") as file:
        file.write(_with_checksum(content))


def write_message(path, content):
    """Writes a file that other ranks wait for, and that need not survive the job."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(_with_checksum(content))
    os.replace(f"{path}.tmp", path)


def _with_checksum(content):
    text = json.dumps(content, separators=(",", ":"))
    return f"{text}\n{_sha256(text)}\n"


def open_when_visible(path):
    """Opens a file that exists, even where the file system does not show it yet.

    Raises:
        FileNotFoundError: it was not seen within :data:`SECONDS_TO_APPEAR`.
    """
    end, pause = time.monotonic() + SECONDS_TO_APPEAR, 0.01
    while True:
        try:
            return open(path, "rb")
        except FileNotFoundError:
            if time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def read_json(path):
    """Reads and verifies what :func:`write_json` or :func:`write_message` wrote.

    Raises:
        DamagedFileError: its content is wrong.
        OSError: it cannot be read.
    """
    name = os.path.basename(path)
    with open_when_visible(path) as file:
        content = file.read()
    try:
        text, checksum, end = content.decode().split("\n")
    except ValueError as error:
        raise DamagedFileError(f"{name} is damaged: {error}") from error
    if end or checksum != _sha256(text):
        raise DamagedFileError(f"{name} is damaged: its checksum is another")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{name} is damaged: {error}") from error


def seal_of(path):
    """Returns size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def find_damage(path, seal, keys):
    """Says what is wrong with a part; empty if nothing is.

    Args:
        path: the file.
        seal (dict): its size and SHA-256.
        keys: names of the arrays in it.

    Raises:
        OSError: it cannot be read.
    """
    name = os.path.basename(path)
    with open_when_visible(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != seal["bytes"]:
            return f"{name} is damaged: it has {size} bytes, not {seal['bytes']}"
        if hashlib.file_digest(file, "sha256").hexdigest() != seal["sha256"]:
            return f"{name} is damaged: its checksum is another"
        try:
            with open_npz(file) as arrays:
                lacking = sorted(set(keys) - set(arrays))
        except DamagedFileError as error:
            return f"{name} is damaged: {error}"
    return f"{name} is damaged: it lacks {', '.join(lacking[:20])}" if lacking else ""


def _sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
