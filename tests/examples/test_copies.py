"""``python -m mpchain.examples``: the list, copies, and the wheel that brings the scripts."""

import subprocess
import sys

import pytest

from tests.distributed import ranks
from tests.examples.programs import ROOT


def _run(*command, cwd=ROOT, status=0, path=ROOT):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**ranks.environment(), "PYTHONPATH": str(path)},
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


@pytest.mark.long
def test_wheel_brings_the_examples(tmp_path):
    """What setup.py builds is what a wheel contains."""
    pytest.importorskip("setuptools", reason="it builds what the wheel contains")
    steps = ["egg_info", "--egg-base", tmp_path, "build", "--build-base", tmp_path / "build"]
    _run("setup.py", "-q", *steps, "--build-lib", tmp_path / "site")
    for path in ROOT.glob("examples/*/*.py"):
        there = tmp_path / "site" / "mpchain" / path.relative_to(ROOT)
        assert there.read_text("utf-8") == path.read_text("utf-8")
    printed = _run("-m", "mpchain.examples", "list", cwd=tmp_path, path=tmp_path / "site")
    assert "glance" in printed and "train_table.py" in printed
