"""An mpirun that fails to start in passing is tried again; any other failure is not."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

FAKE = """#!{python}
import os, sys
with open({counter!r}, "a") as file:
    file.write("x")
if "--version" in sys.argv:
    print("mpirun (Open MPI) 5.0.0")
    sys.exit()
print({words!r})
sys.exit(213)
"""


@pytest.mark.parametrize(
    "words, starts",
    [("The PMIx server's listener thread failed to start.", 3), ("Something else.", 1)],
)
def test_a_passing_failure(words, starts, tmp_path):
    counter = tmp_path / "starts"
    fake = tmp_path / "mpirun"
    fake.write_text(FAKE.format(python=sys.executable, counter=str(counter), words=words))
    fake.chmod(0o755)
    code = (
        "from launch.job import Job; from launch.plan import Plan;"
        "from launch.mpirun import OpenMpi;"
        f"plan = Plan(n=2, program=[], starter=OpenMpi({str(fake)!r}), grace=1.0);"
        "raise SystemExit(Job(plan).run())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 213
    assert len(counter.read_text()) == starts
    assert result.stderr.count("failed to start; trying again") == starts - 1
    assert words in result.stderr
