"""Reading members of archives. Nothing is ever extracted to a folder."""

import tarfile
import zlib


def check_names(path, names):
    """Refuses an archive that tries to lead out of its folder: whoever made it means no good.

    Args:
        path: the archive, for messages.
        names: names of its members.
    """
    for name in names:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise ValueError(f"{path}: member {name!r} leads out of the archive's folder")


def read_tar(path, sizes):
    """Reads members of a tar archive, compressed or not, into memory.

    Args:
        path: the archive.
        sizes (dict): for each name that is wanted, the size in bytes that it must have.

    Returns:
        dict: name to bytes.

    Raises:
        ValueError: the archive is damaged, lacks a member, or is not what it should be.
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
        raise ValueError(f"{path}: there is no member {', '.join(sorted(missing))}")
    return found


def _read_member(path, archive, member, size):
    if not member.isreg() or member.size != size:
        kind = f"a file of {member.size} bytes" if member.isreg() else "no regular file"
        raise ValueError(
            f"{path}: member {member.name!r} must be a file of {size} bytes, but is {kind}"
        )
    return archive.extractfile(member).read()
