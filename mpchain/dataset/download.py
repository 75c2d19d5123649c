"""Downloading files once."""

import contextlib
import hashlib
import os
import sys

from mpchain.dataset.cache import get_dataset_directory, locked
from mpchain.serializers.files import replacing

_CHUNK = 1 << 16
_TIMEOUT = 60  # seconds without a single byte


def cached_download(url, sha256=None):
    """Downloads a file unless it is in the cache (once, if several processes ask at the same time).

    Args:
        url (str): an http, https, ftp or file address.
        sha256 (str): the hexadecimal SHA-256 checksum of the file, which is verified if given.

    Returns:
        str: path of the file in the cache (below :func:`get_dataset_root`).

    Raises:
        OSError: the file cannot be fetched, is truncated, or fails its checksum.
    """
    folder = get_dataset_directory("_dl_cache")
    path = os.path.join(folder, hashlib.sha256(url.encode()).hexdigest())
    if _is_valid(path, sha256):
        return path
    with locked(path):
        if not _is_valid(path, sha256):
            with replacing(path) as temporary:
                _download(url, temporary)
                _verify(url, temporary, sha256)
    return path


def _is_valid(path, sha256):
    return os.path.exists(path) and (sha256 is None or _sha256_of(path) == sha256)


def _download(url, path):
    # urllib takes a third of numpy's import time, and few programs download anything.
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, open(path, "wb") as file:
            _copy(response, file, os.path.basename(url))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise OSError(f"cached_download: {url} could not be fetched: {error}") from error


def _copy(response, file, name):
    length = response.headers.get("Content-Length")
    total = None if length is None else int(length)
    done = 0
    with progress(name, total) as update:
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            update(len(chunk))
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done} of {total} bytes")


def _verify(url, path, sha256):
    if sha256 is not None and (found := _sha256_of(path)) != sha256:
        raise OSError(
            f"cached_download: {url} must have the SHA-256 checksum {sha256}, "
            f"but what came has {found}"
        )


def _sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def progress(name, total):
    """Shows on standard error how far a transfer is: a bar on a terminal with tqdm, else a line now
    and then.

    Args:
        name (str): what is transferred.
        total (int): its size in bytes; None if unknown.

    Yields:
        A function to be called with the number of bytes that have just come.
    """
    tqdm = _load_tqdm() if sys.stderr.isatty() else None
    if tqdm is None:
        yield _Lines(name, total).update
    else:
        with tqdm.tqdm(desc=name, total=total, unit="B", unit_scale=True) as bar:
            yield bar.update


def _load_tqdm():
    try:
        import tqdm
    except ImportError:  # a comfort, not a need
        return None
    return tqdm


class _Lines:
    """Prints a line at each tenth of the total, or at each 10 MB where the total is unknown."""

    def __init__(self, name, total):
        self.name = name
        self.total = total
        self.step = max(total / 10, 1) if total else 10e6
        self.done = 0

    def update(self, n):
        before, self.done = self.done, self.done + n
        if self.done // self.step > before // self.step:
            of = f" of {self.total / 1e6:.1f}" if self.total else ""
            print(f"{self.name}: {self.done / 1e6:.1f}{of} MB", file=sys.stderr, flush=True)
