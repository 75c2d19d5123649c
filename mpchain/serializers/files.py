"""Writes files that are never seen half-written, and tells damaged files from disk errors."""

import contextlib
import errno
import functools
import io
import mmap
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeAlias

from mpchain.serializer import DamagedFileError

PathLike: TypeAlias = str | os.PathLike[str]
File: TypeAlias = PathLike | IO[bytes]


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[str]:
    """Context manager: yields a temporary name for a file, which is renamed when it is complete.

    The temporary name is in the same folder and has the same ending. At the end of the block, the
    file is synced to the disk and renamed. If the block raises an error, or the process dies in it,
    an earlier file of that name remains unchanged.

    Args:
        path: path of the file. A symbolic link is followed, not replaced.

    Yields:
        The temporary name; the block creates the file.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: writing failed, for example on a full disk; ``filename`` is the name of the file.
        ValueError: ``path`` exists and is not a regular file.

    Example:
        >>> with replacing("array.npy") as temporary:
        ...     np.save(temporary, np.zeros(3))
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"cannot write {name}: folder {folder} does not exist")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"cannot write {path}: it is not a regular file")
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
def open_atomic(path: PathLike, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Context manager: opens a file that gets its name only when it is complete and on the disk.

    Args:
        path: path of the file, which is replaced at the end of the block. If the block raises an
            error, an earlier file of that name remains unchanged. A symbolic link is followed.
        mode: ``'wb'``, or ``'w'`` for text (UTF-8 unless ``encoding`` says otherwise).
        options: further arguments of :func:`open`.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: ``mode`` is invalid, or ``path`` exists and is not a regular file.

    Example:
        >>> import os
        >>> with open_atomic("log", "w") as file:
        ...     print("half of it", file=file)
        ...     os.path.exists("log")
        False
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"open_atomic: mode must be 'w' or 'wb', not {mode!r}")
    if mode == "w":
        options.setdefault("encoding", "utf-8")
    with replacing(path) as temporary, open(temporary, mode, **options) as file:
        yield file


def open_file(file: File, *, writes: bool = False) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Opens a path, atomically for writing; returns a file object unchanged and leaves it open."""
    if isinstance(file, (str, os.PathLike)):
        return open_atomic(file) if writes else open(file, "rb")
    return contextlib.nullcontext(file)


def view_of(opened: IO[bytes]) -> memoryview:
    """Returns the rest of an open file: a view of a file on a disk, which is mapped into memory, or
    the bytes that were read from another file.

    The view must be used only for a short time: a file that is mapped must neither change nor
    shrink.

    Example:
        >>> with open("x", "wb") as file:
        ...     _ = file.write(b"content")
        >>> with open("x", "rb") as file:
        ...     bytes(view_of(file)[:4])
        b'cont'
    """
    if isinstance(opened, io.BufferedReader) and isinstance(opened.raw, io.FileIO):
        with contextlib.suppress(OSError, ValueError):  # the file is not regular, or is empty
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            return memoryview(content)[opened.tell() :]
    return memoryview(opened.read())


def name_of(file: object) -> str:
    """Returns the name of a path or file object, for messages."""
    return str(file if isinstance(file, os.PathLike) else getattr(file, "name", file))


def sync_folder(folder: PathLike) -> None:
    """Makes renames in a folder durable, if the system has an operation for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def parsing(what: str) -> Iterator[None]:
    """Context manager: turns errors in parsing the content of a file into DamagedFileError.

    Errors of the operating system (such as EIO or EMFILE) and MemoryError are not turned, because
    the file may be intact. An OSError without a number comes from a decompressor, and EINVAL from
    seeking to a position before the start of the file: both mean damage.

    Args:
        what: the text that precedes the error in the message.

    Raises:
        DamagedFileError: the block raised an error that means damage.
    """
    try:
        yield
    except Exception as error:
        is_of_the_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if is_of_the_system or isinstance(error, MemoryError):
            raise
        raise DamagedFileError(f"{what}: {error}") from error


def crc32(content: object, start: int = 0) -> int:
    """Returns the CRC-32 of bytes; ``start`` is the CRC-32 of the bytes before them.

    Example:
        >>> crc32(b"56789", crc32(b"1234")) == crc32(b"123456789") == 0xCBF43926
        True
    """
    return _fastest_crc32()(content, start)


@contextlib.contextmanager
def fast_checksums() -> Iterator[None]:
    """Context manager: the standard library's ``zipfile`` computes checksums with :func:`crc32`.

    All threads are affected until the last thread has left the context. The checksums are the same.

    Example:
        >>> with fast_checksums(), zipfile.ZipFile("files.zip", "w") as archive:
        ...     archive.writestr("a.txt", "123456789")
    """
    functions = zipfile.__dict__
    with _replaced_lock:
        _replaced.append(functions.get("crc32"))
        functions["crc32"] = crc32
    try:
        yield
    finally:
        with _replaced_lock:
            functions["crc32"] = _replaced[0] if len(_replaced) == 1 else crc32
            _replaced.pop()


_replaced_lock = threading.Lock()
_replaced: list[Any] = []  # the first element is the original function of zipfile


@functools.cache
def _fastest_crc32() -> Callable[[Any, int], int]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32  # ISA-L takes a fifth of zlib's time
