"""Tests ``python -m mpchain.examples``: the list and the copies (`.ci/wheel` checks an
installation)."""

import subprocess
import sys

from tests.distributed import ranks
from tests.examples.programs import ROOT


def _run(*command, status=0):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**ranks.environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def test_list_has_each_script_with_its_title():
    lines = _run("-m", "examples", "list").splitlines()
    scripts = [path.name for path in sorted(ROOT.glob("examples/*/*.py"))]
    assert [line.split()[1] for line in lines] == scripts
    assert lines[0].split()[0] == "cifar" and "VGG-like" in lines[0]


def test_copy(tmp_path):
    printed = _run("-m", "examples", "copy", "glance", "--to", tmp_path)
    assert f"python {tmp_path}/glance/train_table.py --help" in printed
    names = {path.name for path in (tmp_path / "glance").iterdir()}
    assert names == {"train_table.py", "README.md"}
    again = _run("-m", "examples", "copy", "glance", "--to", tmp_path, status=2)
    assert "exists already" in again
    assert "no example 'glanze'" in _run("-m", "examples", "copy", "glanze", status=2)
