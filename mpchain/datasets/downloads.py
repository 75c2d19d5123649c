"""Data sets that are downloaded and converted once."""

import os
from collections.abc import Callable

from mpchain.dataset import cache_or_load_file, cached_download, get_dataset_directory
from mpchain.dataset.cache import find_kept
from mpchain.serializers.npz import read_npz, write_npz
from mpchain.typing import Array


def load(
    function: str,
    name: str,
    make: Callable,
    compression: bool = False,
    hint: str = "",
    kept: dict[str, Callable] | None = None,
) -> dict[str, Array]:
    """Returns the arrays of a data set, from the cache, or else Chainer's, if it has them.

    Args:
        function: the public function, for messages.
        name: folder and name, without extension, of the file in the cache.
        make: function of ``fetch`` that returns the arrays by name; ``fetch(url, sha256)``
            downloads a file and returns its path.
        compression: whether the file in the cache is compressed.
        hint: added to the message if a download fails.
        kept: the files in which Chainer keeps the data set, below ``pfnet/chainer``, each with a
            function of its path that returns arrays by name.

    Raises:
        OSError: a download failed.

    Example:
        >>> load("get_mine", "mine/table", lambda fetch: make(fetch(url, sha256)))  # doctest: +SKIP
    """

    def fetch(url, sha256):
        try:
            return cached_download(url, sha256)
        except OSError as error:
            raise OSError(f"{function}: {error}{hint}") from error

    def create(path):
        arrays = make(fetch)
        write_npz(path, arrays, compression=compression)
        return arrays

    folder, stem = os.path.split(name)
    path = os.path.join(get_dataset_directory(folder), f"{stem}.npz")
    if kept and not os.path.exists(path):
        files = [find_kept("pfnet", "chainer", *file.split("/")) for file in kept]
        if None not in files:
            return {k: v for read, file in zip(kept.values(), files) for k, v in read(file).items()}
    return cache_or_load_file(path, create, read_npz)
