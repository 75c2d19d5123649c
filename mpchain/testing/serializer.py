"""Round trips through files."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from mpchain import serializers


def save_and_load(src: Any, dst: Any, filename: str, saver: Callable, loader: Callable) -> None:
    """Saves ``src`` to a file in a temporary folder, and loads it into ``dst``.

    Args:
        src, dst: objects of the same structure.
        filename: name of the file.
        saver, loader: functions of (path, object).

    Example:
        >>> save, load = mpchain.serializers.save_npz, mpchain.serializers.load_npz
        >>> testing.save_and_load(L.Linear(2, 3), L.Linear(2, 3), "model.npz", save, load)
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, filename)
        saver(path, src)
        loader(path, dst)


def save_and_load_npz(src: Any, dst: Any) -> None:
    """Saves ``src`` to an NPZ file and loads it into ``dst``.

    Example:
        >>> source, target = L.Linear(2, 3), L.Linear(2, 3)
        >>> testing.save_and_load_npz(source, target)
        >>> np.array_equal(source.W.array, target.W.array)
        True
    """
    save_and_load(src, dst, "tmp.npz", serializers.save_npz, serializers.load_npz)


def save_and_load_hdf5(src: Any, dst: Any) -> None:
    """Saves ``src`` to an HDF5 file and loads it into ``dst``.

    Example:
        >>> testing.save_and_load_hdf5(L.Linear(2, 3), L.Linear(2, 3))  # doctest: +SKIP
    """
    save_and_load(src, dst, "tmp.h5", serializers.save_hdf5, serializers.load_hdf5)
