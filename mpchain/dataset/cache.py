"""The folder that caches downloaded and converted data sets."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.serializers.files import replacing

try:
    import fcntl
except ImportError:  # Windows has no fcntl
    fcntl = None

_root = None


def get_dataset_root() -> str:
    """Returns the folder of the cache.

    The folder is the argument of :func:`set_dataset_root`; otherwise the environment variable
    ``MPCHAIN_DATASET_ROOT`` or ``CHAINER_DATASET_ROOT``; otherwise ``~/.mpchain/dataset``.

    Example:
        >>> mpchain.dataset.set_dataset_root("/data")
        >>> mpchain.dataset.get_dataset_root()
        '/data'
        >>> mpchain.dataset.set_dataset_root(None)
    """
    if _root is not None:
        return _root
    path = os.environ.get("MPCHAIN_DATASET_ROOT") or os.environ.get("CHAINER_DATASET_ROOT")
    return os.path.expanduser(path or os.path.join("~", ".mpchain", "dataset"))


def set_dataset_root(path: str | None) -> None:
    """Sets the folder of the cache; None restores the default of :func:`get_dataset_root`.

    Example:
        >>> mpchain.dataset.set_dataset_root("/data")
        >>> mpchain.dataset.get_dataset_directory("mnist", create_directory=False)
        '/data/mnist'
        >>> mpchain.dataset.set_dataset_root(None)
    """
    global _root  # noqa: PLW0603 (a setting of the process)
    _root = None if path is None else os.path.expanduser(path)


def find_kept(*names: str) -> str | None:
    """Returns the path of a file that mpchain or Chainer has cached, or None if there is none.

    The file is searched below :func:`get_dataset_root`, then below ``CHAINER_DATASET_ROOT``, and,
    unless :func:`set_dataset_root` or ``MPCHAIN_DATASET_ROOT`` sets a root, below
    ``~/.chainer/dataset``.

    Args:
        names: the folders below the root, and the name of the file.

    Example:
        >>> find_kept("pfnet", "chainer", "mnist", "none.npz") is None
        True
    """
    roots = [get_dataset_root(), os.environ.get("CHAINER_DATASET_ROOT")]
    if _root is None and not os.environ.get("MPCHAIN_DATASET_ROOT"):
        roots.append(os.path.join("~", ".chainer", "dataset"))
    paths = [os.path.join(os.path.expanduser(root), *names) for root in roots if root]
    return next(filter(os.path.exists, paths), None)


def get_dataset_directory(dataset_name: str, create_directory: bool = True) -> str:
    """Returns the path of the folder of one data set.

    Args:
        dataset_name: the name of the data set, with ``/`` between its parts.
        create_directory: whether to make the folder if it does not exist.

    Example:
        >>> mpchain.dataset.get_dataset_directory("pfnet/mnist", create_directory=False)
        '...pfnet...mnist'
    """
    path = os.path.join(get_dataset_root(), *dataset_name.split("/"))
    if create_directory:
        os.makedirs(path, exist_ok=True)
    return path


def cache_or_load_file(
    path: str, creator: Callable[[str], Any], loader: Callable[[str], Any]
) -> Any:
    """Loads a file, or creates it if it does not exist; only one of several processes creates it.

    Args:
        path: name of the file.
        creator: function of a temporary path that writes the file there and returns the content.
        loader: function of the path that returns the content.

    Returns:
        The content of the file.

    Example:
        >>> def create(path):
        ...     np.save(path + ".npy", np.arange(3)), os.rename(path + ".npy", path)
        ...     return np.arange(3)
        >>> with mpchain.utils.tempdir() as folder:
        ...     [cache_or_load_file(f"{folder}/x", create, np.load) for _ in range(2)]
        [array([0, 1, 2]), array([0, 1, 2])]
    """
    if os.path.exists(path):
        return loader(path)
    with locked(path):
        if os.path.exists(path):
            return loader(path)
        with replacing(path) as temporary:
            return creator(temporary)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Context manager: for one ``path``, only one process of this machine at a time is in the
    block; on Windows, there is no such limit.

    Example:
        >>> with mpchain.utils.tempdir() as folder, locked(f"{folder}/file"):
        ...     os.listdir(folder)
        ['file.lock']
    """
    with open(f"{path}.lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
