"""Runs the examples with --test, in one process and on two ranks, and some resumed."""

import ast
import shutil

import pytest

from tests.distributed import ranks
from tests.examples import programs

FOLDER = programs.ROOT / "examples"
ALL = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.py"))
# Another file tests the examples of double_backward.
SCRIPTS = [script for script in ALL if not script.startswith("double_backward/")]
QUICK = {"glance/train_table.py", "own_function/softclip.py"}
QUICK_ON_RANKS = {"glance/train_table.py"}
# The output or log of these examples depends on the number of ranks.
DIFFERENT = {
    "dqn/train_dqn.py",
    "imagenet/train_imagenet.py",
    "own_extension/train_own_extension.py",
    "own_gradient_compression/train_signs.py",
    "seq2seq/train_seq2seq.py",
}
RESUMED = ["dcgan/train_dcgan.py", "own_extension/train_own_extension.py", "ptb/train_ptb.py"]

needs_ranks = pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")


def _marked(scripts, quick):
    marks = {name: pytest.mark.slow if name in quick else pytest.mark.long for name in scripts}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("script", _marked(SCRIPTS, QUICK))
def test_one_process(script, tmp_path):
    if script.startswith("imagenet/"):
        pytest.importorskip("PIL", reason="needs Pillow, which reads images")
    printed = programs.run(script, "--test", "--out", tmp_path)
    assert printed.strip() and "nan" not in printed.lower().split()
    assert any(tmp_path.iterdir())
    shutil.rmtree(tmp_path)  # some models are large


@needs_ranks
@pytest.mark.parametrize("script", _marked(SCRIPTS, QUICK_ON_RANKS))
def test_two_ranks(script, tmp_path):
    """Two ranks compute what one process computes, except in the scripts of :data:`DIFFERENT`."""
    one, two = tmp_path / "one", tmp_path / "two"
    printed = programs.run(script, "--test", "--out", two, n_ranks=2)
    assert printed.strip() or programs.logs(two)  # in a pipeline, only the last rank prints
    if script not in DIFFERENT:
        expected = programs.run(script, "--test", "--out", one)
        programs.check_logs(two, one)
        assert programs.logs(one) or printed == expected


@pytest.mark.long
@pytest.mark.parametrize("script", RESUMED)
def test_resumed_training_is_the_uninterrupted_one(script, tmp_path):
    programs.run(script, "--test", "--out", tmp_path / "whole")
    expected = programs.log_of(tmp_path / "whole")
    # This snapshot was written before the last epoch.
    snapshot = programs.snapshots(tmp_path / "whole")[-2]
    programs.run(script, "--test", "--out", tmp_path / "rest", "--resume", snapshot)
    programs.check_alike(programs.log_of(tmp_path / "rest"), expected)


@pytest.mark.parametrize("script", ALL)
def test_scripts_are_short_and_explained(script):
    path = FOLDER / script
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 250
    assert f"python {path.name}" in ast.get_docstring(ast.parse(text))
    assert path.name in (path.parent / "README.md").read_text("utf-8")
