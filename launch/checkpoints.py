"""The newest checkpoint of a job, from which a restart continues."""

import contextlib
import fnmatch
import os
import re

# The last pattern matches folders of mpchain's `extensions.checkpoint`, which get such a name when
# they are complete. A damaged folder has been renamed to iteration_<n>.damaged.
PATTERNS = ("snapshot_*", "checkpoint_*", "iteration_*")
# A file of an earlier run is renamed to <name>.old<n> if the current run would overwrite it.
UNUSABLE = re.compile(r"\..*|.*\.(tmp|part)|.*\.damaged(_\d+)?|.*\.old\d+(\.[^.]*)?", re.DOTALL)
# `extensions.checkpoint` writes checkpoints into this subfolder of the results.
OWN_PLACE = "checkpoints"
OWN_FOLDER = re.compile(r"iteration_\d+")
MANIFEST = "manifest.json"


class Checkpoints:
    """The checkpoints in one folder: files or folders that get their final name when complete.

    Names that begin with a dot, or end with ``.tmp``, ``.part``, ``.damaged`` or ``.old`` and a
    number, do not count. Files do not record which run wrote them, so with `all_count`, each run
    needs its own folder.

    Args:
        folder: The folder, which need not exist yet. Checkpoints in its subfolder ``checkpoints``
            count if the folder itself has none.
        pattern: Shell pattern for names of checkpoints; None stands for `PATTERNS`.
        all_count: Whether existing checkpoints count, too, and not only checkpoints of this job.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     for number in (9, 10):
        ...         open(os.path.join(folder, f"snapshot_iter_{number}"), "w").close()
        ...     os.path.basename(checkpoints.newest())
        'snapshot_iter_10'
    """

    def __init__(self, folder: str, pattern: str | None = None, all_count: bool = False):
        self._folder = folder
        self._patterns = (pattern,) if pattern else PATTERNS
        self._old = {} if all_count else self._entries()

    def newest(self) -> str | None:
        """Returns the path of the newest checkpoint, or None.

        A checkpoint is newer if the number in its name is greater, such as 900 and 1000 in
        ``snapshot_iter_900`` and ``snapshot_iter_1000``. The time of the file only breaks ties,
        because clocks may be set back.
        """
        entries = self._entries()
        new = [path for path, state in entries.items() if state != self._old.get(path)]
        direct = [path for path in new if os.path.dirname(path) == os.path.abspath(self._folder)]
        key = lambda path: (_numbers(path), entries[path][0], path)
        return max(direct or new, key=key, default=None)

    def _entries(self):
        """Returns a dict from each path to its time, size and inode, which change if it is
        rewritten."""
        found, entries = {}, []
        for folder in (self._folder, os.path.join(self._folder, OWN_PLACE)):
            # The folder may not exist yet, or its host may be unreachable.
            with contextlib.suppress(OSError):
                entries += os.scandir(folder)
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, each) for each in self._patterns):
                try:
                    state = entry.stat()
                except FileNotFoundError:  # the checkpoint was deleted in the meantime
                    continue
                if _is_usable(entry):
                    path = os.path.abspath(entry.path)
                    found[path] = state.st_mtime_ns, state.st_size, state.st_ino
        return found


def _is_usable(entry):
    if UNUSABLE.fullmatch(entry.name):
        return False
    is_own = OWN_FOLDER.fullmatch(entry.name) and entry.is_dir()
    return not is_own or os.path.exists(os.path.join(entry.path, MANIFEST))


def _numbers(path):
    return [int(number) for number in re.findall(r"[0-9]+", os.path.basename(path))]
