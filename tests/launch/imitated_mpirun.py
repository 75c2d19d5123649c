"""Runs a job of two ranks whose mpirun is a program of a test."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_with_mpirun(path: pathlib.Path, starter: str) -> subprocess.CompletedProcess:
    """Runs the launcher with the given mpirun.

    Args:
        path: The program, which is made executable.
        starter: Name of the class of `launch.mpirun` that starts it.
    """
    path.chmod(0o755)
    code = (
        "from launch.job import Job; from launch.plan import Plan; from launch import mpirun;"
        f"plan = Plan(n=2, program=[], starter=mpirun.{starter}({str(path)!r}), grace=1.0);"
        "raise SystemExit(Job(plan).run())"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
