"""Tests the registry of annexes, and the tool that deletes annexes."""

import re
import subprocess
import sys

import pytest

import mpchain
from mpchain import annexes
from mpchain.training.updaters import StandardUpdater
from tests.tools import annexes as tool


@pytest.fixture
def nothing(monkeypatch):
    """Makes all annexes appear deleted, and discards what was imported from them."""
    monkeypatch.setattr(annexes, "ANNEXES", {})
    for package in (mpchain, mpchain.links, mpchain.distributed):
        for name in ("capture", "profile", "onnx", "caffe", "InMemoryCheckpoint"):
            if name in vars(package):
                monkeypatch.delattr(package, name)


@pytest.mark.parametrize(
    "package, name, annex",
    [
        (mpchain, "capture", "captured"),
        (mpchain, "profile", "profiling"),
        (mpchain, "onnx", "interop"),
        (mpchain.links, "caffe", "interop"),
        (mpchain.distributed, "InMemoryCheckpoint", "recovery"),
    ],
)
def test_a_name_of_a_missing_annex_names_it(nothing, package, name, annex):
    message = f"{package.__name__}.{name} needs the annex '{annex}', which this copy of mpchain"
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(package, name)
    assert name not in dir(package)


def test_an_option_of_a_missing_annex_names_it(nothing):
    model = mpchain.links.Linear(2, 1)
    optimizer = mpchain.optimizers.SGD().setup(model)
    iterator = mpchain.iterators.SerialIterator([0], 1)
    StandardUpdater(iterator, optimizer)
    with pytest.raises(annexes.MissingAnnexError, match="StandardUpdater: graph=True needs the"):
        StandardUpdater(iterator, optimizer, graph=True)


@pytest.mark.annex("metrics")
def test_what_is_there_is_found(nothing):
    assert annexes.find("captured", "captured") is None
    annexes.ANNEXES["metrics"] = "mpchain/metrics"
    assert annexes.find("metrics", "metrics") is sys.modules["mpchain.metrics"]
    assert "metrics" in dir(mpchain) and "profile" not in dir(mpchain)


def test_unknown_names_are_as_before(nothing):
    with pytest.raises(AttributeError, match=r"use mpchain\.no_backprop_mode"):
        mpchain.no_grad
    with pytest.raises(AttributeError, match=r"'mpchain\.distributed' has no attribute 'nonsense'"):
        mpchain.distributed.nonsense


@pytest.mark.annex("metrics")
def test_an_annex_is_deleted_with_its_line_and_its_tests(tmp_path):
    for folder in ("mpchain/metrics", "tests/metrics", "tests/distributed", "mpchain/page"):
        (tmp_path / folder).mkdir(parents=True)
    of_ranks = tmp_path / "tests/distributed/test_metrics_on_ranks.py"
    of_ranks.touch()
    register = tmp_path / "mpchain/annexes.py"
    text = (tool.ROOT / "mpchain/annexes.py").read_text("utf-8")
    register.write_text(text, "utf-8")
    tool.delete(tmp_path, ["metrics"])
    assert not any((tmp_path / path).exists() for path in ("mpchain/metrics", "tests/metrics"))
    assert not of_ranks.exists() and (tmp_path / "mpchain/page").exists()
    line = '    "metrics": "mpchain/metrics",\n'
    assert line in text and register.read_text("utf-8") == text.replace(line, "")
    with pytest.raises(AssertionError, match="metrics has 0 lines"):
        tool.delete(tmp_path, ["metrics"])


@pytest.mark.annex("launcher", "metrics")
@pytest.mark.long
def test_the_tool_finds_what_imports_a_deleted_annex(capfd):
    with tool.copy_without(["metrics", "launcher"]) as root:
        assert tool.import_the_rest(root) == 0
        (root / "mpchain/leak.py").write_text("import mpchain.metrics\n", "utf-8")
        (root / "mpchain/other.py").write_text("import mpchain_launch\n", "utf-8")
        assert tool.import_the_rest(root) == 1
    printed = capfd.readouterr().out
    assert "mpchain.leak: ModuleNotFoundError: No module named 'mpchain.metrics'" in printed
    assert "mpchain.other: ModuleNotFoundError: No module named 'mpchain_launch'" in printed


def test_a_variable_of_the_launcher_names_a_missing_annex():
    """Importing mpchain reads the variable that ``mpchain-launch --record`` sets."""
    program = """
import mpchain.annexes, os, sys
del sys.modules["mpchain"]
mpchain.annexes.ANNEXES.clear()
os.environ["MPCHAIN_RECORD"] = "record"
import mpchain
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tool.ROOT, check=False)
    assert "MissingAnnexError: mpchain-launch --record needs the annex 'replays'" in done.stderr
