"""The folder where data sets are kept once they have been downloaded or prepared."""

import contextlib
import os

from mpchain.serializers.files import replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_root = None


def get_dataset_root():
    """Returns the folder below which data sets are kept.

    It is what :func:`set_dataset_root` was given, else the environment variable
    ``MPCHAIN_DATASET_ROOT``, else ``CHAINER_DATASET_ROOT``, else ``~/.mpchain/dataset``.
    """
    if _root is not None:
        return _root
    path = os.environ.get("MPCHAIN_DATASET_ROOT") or os.environ.get("CHAINER_DATASET_ROOT")
    return os.path.expanduser(path or os.path.join("~", ".mpchain", "dataset"))


def set_dataset_root(path):
    """Sets the folder below which data sets are kept; None goes back to the environment's."""
    global _root  # noqa: PLW0603 (a setting of the process)
    _root = None if path is None else os.path.expanduser(path)


def get_dataset_directory(dataset_name, create_directory=True):
    """Returns the folder of one data set.

    Args:
        dataset_name (str): its name, with ``/`` between parts.
        create_directory (bool): whether to make the folder if there is none.
    """
    path = os.path.join(get_dataset_root(), *dataset_name.split("/"))
    if create_directory:
        os.makedirs(path, exist_ok=True)
    return path


def cache_or_load_file(path, creator, loader):
    """Loads a file; if there is none, makes it first (one of several processes that ask at once).

    Args:
        path: name of the file.
        creator: function of a temporary path that writes the file there and returns its content.
        loader: function of the path that returns the content.

    Returns:
        The content.
    """
    if os.path.exists(path):
        return loader(path)
    with locked(path):
        if os.path.exists(path):
            return loader(path)
        with replacing(path) as temporary:
            return creator(temporary)


@contextlib.contextmanager
def locked(path):
    """Context manager: one process of this machine at a time is in the block for a ``path``."""
    with open(f"{path}.lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
