"""The newest checkpoint of a job, from which a restart continues."""

import contextlib
import fnmatch
import os
import re

# The last is what mpchain's own `extensions.checkpoint` writes: folders that are whole as soon as
# they have this name. A folder that was found damaged is called iteration_<n>.damaged.
PATTERNS = ("snapshot_*", "checkpoint_*", "iteration_*")
# A file of an earlier run, which the present one would replace, is called <name>.old<n>.
UNUSABLE = re.compile(r"\..*|.*\.(tmp|part)|.*\.damaged(_\d+)?|.*\.old\d+(\.[^.]*)?", re.DOTALL)
# Subfolder of the results in which `extensions.checkpoint` writes them.
OWN_PLACE = "checkpoints"
OWN_FOLDER = re.compile(r"iteration_\d+")
MANIFEST = "manifest.json"


class Checkpoints:
    """The checkpoints in one folder: files or folders that appear under their name when complete.

    Names that begin with a dot, or end with ``.tmp``, ``.part``, ``.damaged`` or ``.old1``, do not
    count. Files do not record which run wrote them: with `all_count`, give each run its own folder.

    Args:
        folder: The folder, which need not exist yet. What is in its folder ``checkpoints`` counts
            where it has none itself.
        pattern: Shell pattern of their names; None for `PATTERNS`.
        all_count: Whether existing ones count; if not, only those that this job writes.

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
        """Returns the path of the newest one, or None.

        The numbers in the name decide, such as 900 and 1000 in ``snapshot_iter_900`` and
        ``snapshot_iter_1000``. The time of the file decides only between equal numbers, because
        clocks may be set back.
        """
        entries = self._entries()
        new = [path for path, state in entries.items() if state != self._old.get(path)]
        direct = [path for path in new if os.path.dirname(path) == os.path.abspath(self._folder)]
        key = lambda path: (_numbers(path), entries[path][0], path)
        return max(direct or new, key=key, default=None)

    def _entries(self):
        """Path → what changes when it is written again: time, size, number of the file."""
        found, entries = {}, []
        for folder in (self._folder, os.path.join(self._folder, OWN_PLACE)):
            # The folder does not exist yet, or its host is unreachable.
            with contextlib.suppress(OSError):
                entries += os.scandir(folder)
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, each) for each in self._patterns):
                try:
                    state = entry.stat()
                except FileNotFoundError:  # this old checkpoint was deleted in the meantime
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
