"""Starts examples as users do, on one process or several ranks."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.distributed import ranks

ROOT = pathlib.Path(__file__).parents[2]


def run(script, *options, n_ranks=1):
    """Runs a script of examples/, with all warnings as errors; returns what rank 0 printed."""
    command = ["-W", "error", str(ROOT / "examples" / script), *map(str, options)]
    if n_ranks > 1:
        status, outputs, own_output = ranks.run(n_ranks, command)
        assert status == 0, ranks.report(status, outputs, own_output)
        return outputs[0]
    result = subprocess.run(
        [sys.executable, *command],
        env=ranks.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stderr.splitlines()  # compiling for a long time prints a notice
    assert [x for x in lines if not x.startswith("mpchain: compiling loops")] == []
    return result.stdout


def log_of(out):
    """Returns the entries of the log in a folder, without times."""
    entries = json.loads((pathlib.Path(out) / "log").read_text())
    times = {"elapsed_time", "ranks/slowest", "ranks/waiting"}
    return [{k: v for k, v in entry.items() if k not in times} for entry in entries]


def logs(out):
    """Returns the folders, relative to the given folder, that contain logs."""
    return sorted(path.parent.relative_to(out) for path in pathlib.Path(out).rglob("log"))


def check_logs(out, expected):
    """Checks that two folders contain logs with the same numbers, to rounding."""
    assert logs(out) == logs(expected)
    for folder in logs(out):
        check_alike(log_of(out / folder), log_of(expected / folder))


def snapshots(out):
    """Returns the paths of the snapshots in a folder, the latest last."""
    found = pathlib.Path(out).glob("snapshot_iter_*")
    return sorted(found, key=lambda path: int(re.sub(r"\D", "", path.name)))


def check_alike(log, expected, rtol=1e-4):
    """Checks that two logs have the same numbers, to rounding."""
    assert len(log) == len(expected) > 0
    for entry, reference in zip(log, expected):
        assert entry == pytest.approx(reference, rel=rtol, abs=1e-6)
