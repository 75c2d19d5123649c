"""Runs failed tests once more, alone, and counts the tests that then pass.

``python -m tests.tools.reruns [OPTION...]`` passes options to pytest. Such tests fail only on busy
cores; ``.ci/reruns`` says how often each of them did, and when it did last.
"""

import datetime
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[2]
FILE = ".ci/reruns"
HEAD = "# Tests that failed and then passed alone: how often, when last, which.\n"


def failed(root: pathlib.Path = ROOT) -> set[str]:
    """Returns the tests that failed in pytest's last run, from pytest's cache."""
    path = root / ".pytest_cache/v/cache/lastfailed"
    return set(json.loads(path.read_text("utf-8"))) if path.exists() else set()


def count(tests: Iterable[str], root: pathlib.Path = ROOT) -> None:
    """Increases the numbers of reruns of the given tests in :data:`FILE`, and sets their days."""
    path, rows = root / FILE, {}
    for line in path.read_text("utf-8").splitlines()[1:] if path.exists() else []:
        n, day, test = line.split(" ", 2)
        rows[test] = int(n), day
    for test in tests:
        rows[test] = rows.get(test, (0, ""))[0] + 1, datetime.date.today().isoformat()
    lines = [f"{n} {day} {test}\n" for test, (n, day) in sorted(rows.items())]
    path.write_text(HEAD + "".join(lines), "utf-8")


def rerun(options: Iterable[str] = (), root: pathlib.Path = ROOT) -> int:
    """Runs the failed tests once more, counts the tests that pass, and returns pytest's exit
    code."""
    before = failed(root)
    command = [sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none"]
    code = subprocess.run([*command, *options], check=False, cwd=root).returncode
    count(before - failed(root), root)
    return code


if __name__ == "__main__":
    sys.exit(rerun(sys.argv[1:]))
