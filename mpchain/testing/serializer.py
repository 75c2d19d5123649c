"""Round trips through files."""

import os
import tempfile

from mpchain import serializers


def save_and_load(src, dst, filename, saver, loader):
    """Saves ``src`` to a file in a temporary folder, and loads it into ``dst``.

    Args:
        src, dst: objects of the same structure.
        filename (str): name of the file.
        saver, loader: functions of (path, object).
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, filename)
        saver(path, src)
        loader(path, dst)


def save_and_load_npz(src, dst):
    """Saves ``src`` to an NPZ file and loads it into ``dst``."""
    save_and_load(src, dst, "tmp.npz", serializers.save_npz, serializers.load_npz)


def save_and_load_hdf5(src, dst):
    """Saves ``src`` to an HDF5 file and loads it into ``dst``."""
    save_and_load(src, dst, "tmp.h5", serializers.save_hdf5, serializers.load_hdf5)
