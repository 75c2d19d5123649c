"""Reads members of archives into memory; never extracts them to a folder."""

import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping


def check_names(path: str | os.PathLike, names: Iterable[str]) -> None:
    """Raises ValueError if the name of a member may lead out of the archive's folder.

    Args:
        path: path of the archive, for messages.
        names: names of the archive's members.

    Example:
        >>> check_names("a.zip", ["images/1.png"])
        >>> check_names("a.zip", ["../b"])
        Traceback (most recent call last):
        ValueError: a.zip: member '../b' leads out of the archive's folder
    """
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise ValueError(f"{path}: member {name!r} leads out of the archive's folder")


def read_tar(path: str | os.PathLike, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Reads members of a tar archive, compressed or not, into memory.

    Args:
        path: path of the archive.
        sizes: maps the name of each member to read to the size in bytes that it must have.

    Returns:
        A dict from name to content.

    Raises:
        ValueError: the archive cannot be read or lacks a member, a member leads out of the
            archive's folder, or a member to read is not a regular file or has another size.

    Example:
        >>> read_tar("cifar-10-binary.tar.gz", {"batches.meta.txt": 61})  # doctest: +SKIP
        {'batches.meta.txt': b'airplane...'}
    """
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                check_names(path, [member.name])
                if member.name in sizes:
                    found[member.name] = _read_member(path, archive, member, sizes[member.name])
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as a tar archive: {error}") from error
    missing = sizes.keys() - found.keys()
    if missing:
        raise ValueError(f"{path}: missing member {', '.join(sorted(missing))}")
    return found


def _read_member(path, archive, member, size):
    if not member.isreg() or member.size != size:
        kind = f"a file of {member.size} bytes" if member.isreg() else "not a regular file"
        raise ValueError(
            f"{path}: member {member.name!r} must be a file of {size} bytes, but it is {kind}"
        )
    return archive.extractfile(member).read()
