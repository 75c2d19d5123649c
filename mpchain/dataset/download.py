"""Downloads files to a cache, each only once."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.dataset.cache import find_kept, get_dataset_directory, locked
from mpchain.serializers.files import open_atomic, sync_folder

_CHUNK = 1 << 16
_TIMEOUT = 60  # seconds without a received byte
_ATTEMPTS = 5  # attempts to complete a file after broken connections


def cached_download(url: str, sha256: str | None = None) -> str:
    """Downloads a file unless it is in the cache; only one of several processes downloads it.

    If Chainer has downloaded the file (with the right checksum), that copy is used. A broken
    transfer is resumed, by this call or a later call, if the server allows it. Proxies are read
    from the environment (``http_proxy``, ``https_proxy``, ``no_proxy``).

    Args:
        url: an http, https, ftp or file address.
        sha256: the hexadecimal SHA-256 checksum of the file, which is verified. Without it, the
            checksum of the first download is recorded, and a later file with another checksum is
            refused.

    Returns:
        str: path of the file in the cache (below :func:`get_dataset_root`), or of Chainer's copy.

    Raises:
        OSError: the download failed, is truncated, or has another checksum.

    Example:
        >>> path = mpchain.dataset.cached_download("https://example.com/data.gz")  # doctest: +SKIP
    """
    folder = get_dataset_directory("_dl_cache")
    path = os.path.join(folder, hashlib.sha256(url.encode()).hexdigest())
    if _is_valid(path, sha256):
        return path
    # Chainer derives the file name from another checksum of the URL.
    kept = find_kept("_dl_cache", hashlib.md5(url.encode(), usedforsecurity=False).hexdigest())
    if kept is not None and sha256 in (None, _sha256_of(kept)):
        return kept
    with locked(path):
        if not _is_valid(path, sha256):
            download = _Download(url, path, sha256)
            download.fetch()
            download.keep()
    return path


def _is_valid(path, sha256):
    expected = sha256 or _read_text(f"{path}.sha256")
    return expected is not None and os.path.exists(path) and _sha256_of(path) == expected


def _read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


class _Download:
    """The transfer of a file through a partial file, which stays if the process ends.

    A second file beside the partial file holds what identifies the version of the file on the
    server (its ETag or date), so that parts of different versions are never joined.
    """

    def __init__(self, url, path, sha256):
        self.url, self.path, self.sha256 = url, path, sha256
        self.part = f"{path}.part"
        self.version = f"{path}.part.version"

    def fetch(self):
        """Completes and verifies the partial file."""
        was_resumed = self._complete()
        try:
            self._verify()
        except OSError:
            if not was_resumed:
                raise
            # The partial file was wrong, or the file on the server has changed, so the whole file
            # is fetched again.
            self._complete()
            self._verify()

    def keep(self):
        """Renames the complete partial file to its name in the cache."""
        if self.sha256 is None:
            with open_atomic(f"{self.path}.sha256", "w") as file:
                file.write(_sha256_of(self.part))
        with open(self.part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.part, self.path)
        sync_folder(os.path.dirname(self.path))
        _remove(self.version)

    def _complete(self):
        """Fetches the rest of the file; returns whether a part came from an earlier connection."""
        # Importing urllib takes a third of numpy's import time, and few programs download anything.
        import http.client
        import urllib.request

        done = self._done()
        for attempt in range(_ATTEMPTS):
            try:
                request = urllib.request.Request(self.url, headers=self._range_headers())
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                    self._receive(response)
                return done > 0 or attempt > 0
            except urllib.request.HTTPError as error:
                if error.code != 416:  # 416: the partial file is as long as the file, or longer
                    raise self._failure(error) from error
                self._forget()
            except (OSError, ValueError, http.client.HTTPException) as error:
                before, done = done, self._done()
                if done <= before or attempt + 1 == _ATTEMPTS:
                    raise self._failure(error) from error
        raise self._failure("the server refuses every range")

    def _failure(self, reason):
        return OSError(f"cached_download: {self.url} could not be fetched: {reason}")

    def _done(self):
        """Returns the number of bytes to resume from; removes a partial file that cannot be
        resumed."""
        if _read_text(self.version) is None:
            _remove(self.part)
        return os.path.getsize(self.part) if os.path.exists(self.part) else 0

    def _forget(self):
        _remove(self.part)
        _remove(self.version)

    def _range_headers(self):
        done = self._done()
        version = _read_text(self.version)
        return {"Range": f"bytes={done}-", "If-Range": version} if done else {}

    def _receive(self, response):
        headers = response.headers
        start = 0
        if getattr(response, "status", None) == 206:
            content_range = headers.get("Content-Range", "")
            start = int(content_range.removeprefix("bytes ").partition("-")[0])
        if start == 0:
            self._forget()
            version = headers.get("ETag", "W/")
            if version.startswith("W/"):  # a weak ETag does not promise equal bytes
                version = headers.get("Last-Modified")
            if version is not None:
                with open_atomic(self.version, "w") as file:
                    file.write(version)
        length = headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with open(self.part, "r+b" if start else "wb") as file:
            if file.seek(0, os.SEEK_END) != start:
                raise ValueError(f"the server continues at byte {start}, not at {file.tell()}")
            self._copy(response, file, start, total)

    def _copy(self, response, file, done, total):
        with progress(os.path.basename(self.url), total) as update:
            update(done)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                update(len(chunk))
        if total is not None and done != total:
            raise OSError(f"the connection ended after {done} of {total} bytes")

    def _verify(self):
        expected = self.sha256 or _read_text(f"{self.path}.sha256")
        found = _sha256_of(self.part)
        if expected in (None, found):
            return
        self._forget()
        if self.sha256 is not None:
            raise OSError(
                f"cached_download: {self.url} must have the SHA-256 checksum {expected}, "
                f"but the download has {found}"
            )
        raise OSError(
            f"cached_download: {self.url} has changed since its first download: its SHA-256 "
            f"checksum was {expected} and is {found}; delete {self.path}.sha256 to accept it"
        )


def _remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def progress(name: str, total: int | None) -> Iterator[Callable[[int], Any]]:
    """Shows the progress of a transfer on standard error, by tqdm on a terminal (if it is
    installed), otherwise by lines.

    Args:
        name: the name that is shown.
        total: the size in bytes; None if it is unknown.

    Yields:
        A function that must be called with the number of bytes that were just received.

    Example:
        >>> with progress("data.gz", total=2) as update:
        ...     for chunk in (b"a", b"b"):
        ...         update(len(chunk))
    """
    tqdm = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):  # tqdm may be missing
            import tqdm
    if tqdm is None:
        yield _Lines(name, total).update
    else:
        with tqdm.tqdm(desc=name, total=total, unit="B", unit_scale=True) as bar:
            yield bar.update


class _Lines:
    """Prints a line at each tenth of the total, or after each 10 MB if the total is unknown."""

    def __init__(self, name, total):
        self.name, self.total, self.done = name, total, 0
        self.step = max(total / 10, 1) if total else 10e6

    def update(self, n):
        before, self.done = self.done, self.done + n
        if self.done // self.step > before // self.step:
            of = f" of {self.total / 1e6:.1f}" if self.total else ""
            print(f"{self.name}: {self.done / 1e6:.1f}{of} MB", file=sys.stderr, flush=True)
