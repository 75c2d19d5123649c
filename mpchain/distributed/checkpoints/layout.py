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

import hashlib
import json
import os
import re
import shutil

from mpchain.serializer import SerializationError
from mpchain.serializers.files import open_atomic, sync_folder

FORMAT = "mpchain checkpoint 1"
MANIFEST = "manifest.json"
_NAME = re.compile(r"iteration_(\d+)")


def name_of(iteration):
    """The name of a checkpoint's folder."""
    return f"iteration_{iteration}"


def temporary_name_of(name, run):
    """Its name while it is written, in a run with that id."""
    return f".{name}.{run}.tmp"


def find(folder):
    """Returns the names of the checkpoints in a folder, the oldest first."""
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: int(_NAME.fullmatch(name)[1]))


def remove_leftovers(folder):
    """Removes what an earlier run was writing or removing when it ended."""
    for name in os.listdir(folder):
        if name.startswith(".iteration_") and name.endswith(".tmp"):
            shutil.rmtree(os.path.join(folder, name))


def remove(folder, name, run):
    """Removes a checkpoint, which at no time can be taken for a whole one."""
    doomed = os.path.join(folder, temporary_name_of(name + ".old", run))
    os.rename(os.path.join(folder, name), doomed)
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


def read_json(path):
    """Reads and verifies what :func:`write_json` or :func:`write_message` wrote.

    Raises:
        SerializationError: the file is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text, checksum, end = file.read().split("\n")
    except (OSError, ValueError) as error:
        raise SerializationError(f"{os.path.basename(path)} cannot be read: {error}") from error
    if end or checksum != _sha256(text):
        raise SerializationError(f"{os.path.basename(path)} is damaged: its checksum is another")
    return json.loads(text)


def seal_of(path):
    """Returns size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def _sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
