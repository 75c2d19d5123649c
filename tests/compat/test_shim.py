"""Tests the wheel that ``python -m mpchain.compat install`` builds and installs."""

import email
import os
import subprocess
import sys
import zipfile

import pytest

from mpchain.compat import shim

pytestmark = pytest.mark.slow

PROGRAM = """\
import importlib.metadata
import multiprocessing

def in_child(x):
    import chainer
    return float(chainer.functions.relu(chainer.Variable(x)).array.sum())

if __name__ == "__main__":
    import numpy as np
    import chainer.links as L, chainermn, chainerx
    print(importlib.metadata.version("chainer"), L.Linear.__module__, chainerx.is_available())
    with multiprocessing.get_context(METHOD).Pool(1) as pool:
        print(pool.apply(in_child, (np.ones(3, "f"),)))
"""


def test_the_wheel_says_what_it_is(tmp_path):
    with zipfile.ZipFile(shim.build(tmp_path)) as wheel:
        text = wheel.read("chainer-7.8.1+mpchain.dist-info/METADATA").decode()
        assert wheel.testzip() is None
    metadata = email.message_from_string(text)
    assert metadata["Summary"] == "mpchain compatibility shim, not Chainer"
    assert (metadata["Version"], metadata["Requires-Dist"]) == ("7.8.1+mpchain", "mpchain")


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_programs_and_their_children_find_the_packages(tmp_path, method):
    folder = tmp_path / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--target", str(folder), str(shim.build(tmp_path))]
    subprocess.run(command, check=True, timeout=120)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("METHOD", repr(method)))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    run = subprocess.run(
        [sys.executable, str(program)],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert run.stdout == "7.8.1+mpchain mpchain.links.connection False\n3.0\n"


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_a_program_that_runs_once_find_the_packages(tmp_path, method):
    program = tmp_path / "program.py"
    lines = PROGRAM.replace("METHOD", repr(method)).splitlines(keepends=True)
    program.write_text("".join(line for line in lines if "importlib" not in line))
    command = [sys.executable, "-m", "mpchain.compat", str(program)]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "3.0\n"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Returns a folder of installed packages, and a list to which pip only appends its calls."""
    calls = []
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(shim, "_pip", lambda *words: calls.append(words) or 0)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path, calls


def test_chainer_is_not_replaced(environment, capsys):
    folder, calls = environment
    (folder / "chainer-7.8.1.dist-info").mkdir()
    (folder / "chainer-7.8.1.dist-info/METADATA").write_text("Name: chainer\nVersion: 7.8.1\n")
    assert shim.install(ask=False) == 1
    assert "chainer 7.8.1 is installed here" in capsys.readouterr().err
    assert shim.uninstall() == 1
    assert calls == []


def test_a_folder_that_nobody_recorded_is_not_overwritten(environment, capsys):
    folder, calls = environment
    (folder / "chainer").mkdir()
    assert shim.install(ask=False) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"{folder}/chainer: no installed package owns this")
    assert calls == []
    (folder / "chainer").rmdir()
    assert shim.install(ask=False) == 0
    assert len(calls) == 1


def test_outside_of_a_virtual_environment_it_asks(environment, environment_at, monkeypatch, capsys):
    environment_at(sys.base_prefix)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert shim.install() == 1
    assert "is not a virtual environment" in capsys.readouterr().out
    assert environment[1] == []
