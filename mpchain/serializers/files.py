"""Writing files so that nobody ever sees half of one."""

import contextlib
import errno
import os


@contextlib.contextmanager
def replacing(path):
    """Context manager: a temporary name for a file that takes its own name when it is complete.

    The temporary name is in the same folder and has the same ending. At the end of the block the
    file is fsynced and renamed. If the block raises, or the process dies in it, a file that had the
    name before is still there unchanged.

    Args:
        path: name of the file. A symbolic link is followed, not replaced.

    Yields:
        str: the temporary name; the block creates the file.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: the disk is full, for instance; it has the name of the file.
        ValueError: ``path`` is something else than a regular file.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder} to write {name} to")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"only a regular file can be written to, but {path} is none")
    temporary = os.path.join(folder, f".{os.urandom(4).hex()}.tmp.{name[-200:]}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


@contextlib.contextmanager
def open_atomic(path, mode="wb", **options):
    """Context manager: a file that takes its name only when it is complete and on the disk.

    Args:
        path: name of the file; it is replaced as :func:`replacing` does it.
        mode (str): ``'wb'``, or ``'w'`` for text (UTF-8 unless ``encoding`` says otherwise).
        options: further arguments of :func:`open`.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: another mode, or ``path`` is something else than a regular file.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"open_atomic: mode must be 'w' or 'wb', not {mode!r}")
    if mode == "w":
        options.setdefault("encoding", "utf-8")
    with replacing(path) as temporary, open(temporary, mode, **options) as file:
        yield file


def sync_folder(folder):
    """Makes renames in a folder durable (a no-op where the system has no such operation)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_of_the_system(error):
    """Returns whether an error in reading a file is the operating system's, such as EIO or EMFILE.

    Any other is the content's, which is damaged: also EINVAL, by which a place before the start of
    the file is refused, and errors of decompressors, which are without a number.
    """
    is_os_error = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
    return is_os_error or isinstance(error, MemoryError)
