"""The newest checkpoint of a job, from which a restart goes on."""

import fnmatch
import os
import re

PATTERNS = ("snapshot_*", "checkpoint_*")


class Checkpoints:
    """The checkpoints in one folder: files or folders that appear under their name when complete.

    Args:
        folder: The folder, which need not exist yet.
        pattern: Shell pattern of their names; None for `PATTERNS`.
        all_count: Whether those that are there already count; if not, only what this job writes.
    """

    def __init__(self, folder: str, pattern: str | None = None, all_count: bool = False):
        self._folder = folder
        self._patterns = (pattern,) if pattern else PATTERNS
        self._old = {} if all_count else self._entries()

    def newest(self) -> str | None:
        """Path of the newest one, None if there is none."""
        entries = self._entries()
        new = [path for path, state in entries.items() if state != self._old.get(path)]
        return max(new, key=lambda path: (entries[path][0], _natural(path)), default=None)

    def _entries(self):
        """Path → what changes when it is written again: time, size, number of the file."""
        found = {}
        try:
            entries = list(os.scandir(self._folder))
        except OSError:  # it does not exist yet, or its host is away
            return found
        for entry in entries:
            if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in self._patterns):
                try:
                    state = entry.stat()
                except FileNotFoundError:  # an old one, deleted while we look
                    continue
                found[os.path.abspath(entry.path)] = state.st_mtime_ns, state.st_size, state.st_ino
        return found


def _natural(path):
    """Sorting key by which ``iter_900`` comes before ``iter_1000``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]
