"""How snapshots get into files."""

import os

from mpchain.serializers import save_npz
from mpchain.serializers.files import sync_folder


class Writer:
    """Base of what :func:`snapshot` calls to write a file."""

    def __call__(self, filename, outdir, target):
        """Writes a snapshot.

        Args:
            filename: name of the file.
            outdir: its folder.
            target: the object to save, which has ``serialize``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def finalize(self):
        """Called once when training has ended: waits until everything is written."""


class SimpleWriter(Writer):
    """Writes a snapshot at once, while training waits.

    The file appears under its name only when it is complete.

    Args:
        savefun: function of ``(path, target)`` that writes the file.
        kwds: further arguments of ``savefun``.
    """

    def __init__(self, savefun=save_npz, **kwds):
        self._savefun = savefun
        self._kwds = kwds

    def __call__(self, filename, outdir, target):
        """Writes the snapshot; see :class:`Writer`."""
        self.save(filename, outdir, target, self._savefun, **self._kwds)

    def save(self, filename, outdir, target, savefun, **kwds):
        """Lets ``savefun`` write to a temporary name, and renames the file when it is complete."""
        path = os.path.join(outdir, filename)
        folder, name = os.path.split(path)
        # The name ends as the final one does, since some functions append an ending of their own.
        temporary = os.path.join(folder, f".{os.getpid()}.{name}")
        try:
            savefun(temporary, target, **kwds)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(folder)
        finally:
            if os.path.exists(temporary):
                os.remove(temporary)
