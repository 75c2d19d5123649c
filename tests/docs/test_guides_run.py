"""Tests that every Python block of every guide runs and prints what the page shows."""

import os
import pkgutil
import re
import subprocess
import sys

import pytest

from mpchain import functions, links
from tests.distributed import ranks
from tests.docs import guides

pytestmark = pytest.mark.whole

PAGES = {path.stem: path for path in guides.GUIDES}
ON_RANKS = [name for name, path in PAGES.items() if guides.runs_on_ranks(path)]
QUICK = {"index", "own-function", "variables"}


def _marked(names, quick=QUICK):
    marks = {name: pytest.mark.slow if name in quick else pytest.mark.long for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", _marked(PAGES))
def test_in_one_process(name, tmp_path):
    if "<!-- needs mpirun -->" in PAGES[name].read_text("utf-8") and (reason := ranks.why_not()):
        pytest.skip(reason)
    for module in re.findall(r"<!-- needs (onnxruntime) -->", PAGES[name].read_text("utf-8")):
        pytest.importorskip(module, reason=f"{module} is not installed")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MPCHAIN_GUIDE_FOLDER": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-m", "tests.docs.guides", str(PAGES[name])]
    result = subprocess.run(
        command,
        env=environ,
        cwd=guides.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", _marked(ON_RANKS, quick=()))
def test_on_two_ranks(name, tmp_path):
    if reason := ranks.why_not():
        pytest.skip(reason)
    command = ["-m", "mpi4py", "-m", "tests.docs.guides", str(PAGES[name])]
    result = ranks.run(2, command, environ={"MPCHAIN_GUIDE_FOLDER": str(tmp_path)})
    assert result[0] == 0, ranks.report(*result)


def test_blocks_have_their_lines_and_outputs():
    text = "a\n```python\nx = 1\n```\n\n```text\n1\n```\n```python\ny\n```\nb\n```text\n2\n```\n"
    assert [*guides.blocks(text)] == [(2, "x = 1\n", "1\n"), (9, "y\n", None)]


def test_pages_start_with_an_example():
    """A page has a title, a few lines of text, and then code."""
    for path in guides.GUIDES:
        before, fence, _ = path.read_text("utf-8").partition("```")
        assert fence and before.count("\n") < 16, path.name


def _quoted(path):
    """Returns the code in the lines of a page; in tables that compare, only the code on mpchain's
    side."""
    text = guides.FENCE.sub("", path.read_text("utf-8"))
    if path.stem.startswith("from-"):
        text = "\n".join(line.split(" | ")[-1] for line in text.splitlines() if line[:1] == "|")
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("name", PAGES)
def test_names_in_the_text_exist(name, words_of_the_source):
    for code in _quoted(PAGES[name]):
        if match := re.match(r"mpchain(\.[A-Za-z_]\w*)+", code):
            pkgutil.resolve_name(match[0])  # the error says which part of the name does not exist
        elif match := re.match(r"([FL])\.(\w+)", code):
            assert hasattr({"F": functions, "L": links}[match[1]], match[2]), code
        elif re.fullmatch(r"[A-Za-z_][\w.]*", code):
            assert words_of_the_source.issuperset(re.findall(r"\w+", code)), code


@pytest.fixture(scope="module")
def words_of_the_source():
    folders = ("mpchain", "launch", "tests", "examples")
    paths = [path for folder in folders for path in (guides.ROOT / folder).rglob("*.py")]
    paths += [guides.ROOT / "pyproject.toml", *(guides.ROOT / "mpchain").rglob("*.txt")]
    return {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
