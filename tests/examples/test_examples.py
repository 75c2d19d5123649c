"""Each example with --test: on one process, some on two ranks, some resumed."""

import ast
import shutil

import pytest

from tests.distributed import ranks
from tests.examples import programs

FOLDER = programs.ROOT / "examples"
# These have tests of their own.
OTHERS = {"double_backward", "mnist"}
SCRIPTS = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.glob("*/*.py")
    if path.parent.name not in OTHERS
)
QUICK = {"glance/train_table.py", "own_function/softclip.py", "wgan_gp/train_wgan_gp.py"}
# The log of these does not depend on the number of ranks.
ALIKE = [
    "cifar/train_cifar.py",
    "crf_tagging/train_crf.py",
    "glance/train_table.py",
    "gpt/train_gpt.py",
    "maml/train_maml.py",
    "own_link/train_own_link.py",
    "parallel_convolution/train_parallel_convolution.py",
    "physics_informed/train_burgers.py",
    "pipeline/train_pipeline.py",
    "ptb/train_ptb.py",
    "wgan_gp/train_wgan_gp.py",
]
# These run on two ranks, too, but print what depends on it.
ON_TWO_RANKS = ["own_gradient_compression/train_signs.py", "seq2seq/train_seq2seq.py"]
RESUMED = ["dcgan/train_dcgan.py", "own_extension/train_own_extension.py", "ptb/train_ptb.py"]

needs_ranks = pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")


def _marked(scripts):
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in QUICK else slow) for name in scripts]


@pytest.mark.parametrize("script", _marked(SCRIPTS))
def test_one_process(script, tmp_path):
    if script.startswith("imagenet/"):
        pytest.importorskip("PIL", reason="it reads pictures")
    printed = programs.run(script, "--test", "--out", tmp_path)
    assert printed.strip() and "nan" not in printed.lower().split()
    assert any(tmp_path.iterdir())
    shutil.rmtree(tmp_path)  # some models are large


@needs_ranks
@pytest.mark.slow
@pytest.mark.parametrize("script", ALIKE)
def test_two_ranks_compute_what_one_process_computes(script, tmp_path):
    programs.run(script, "--test", "--out", tmp_path / "one")
    programs.run(script, "--test", "--out", tmp_path / "two", n_ranks=2)
    programs.check_alike(programs.log_of(tmp_path / "two"), programs.log_of(tmp_path / "one"))


@needs_ranks
@pytest.mark.slow
@pytest.mark.parametrize("script", ON_TWO_RANKS)
def test_two_ranks(script, tmp_path):
    assert programs.run(script, "--test", "--out", tmp_path, n_ranks=2).strip()
    assert programs.log_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("script", RESUMED)
def test_resumed_training_is_the_uninterrupted_one(script, tmp_path):
    programs.run(script, "--test", "--out", tmp_path / "whole")
    expected = programs.log_of(tmp_path / "whole")
    snapshot = programs.snapshots(tmp_path / "whole")[-2]  # before the last epoch
    programs.run(script, "--test", "--out", tmp_path / "rest", "--resume", snapshot)
    programs.check_alike(programs.log_of(tmp_path / "rest"), expected)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_short_and_explained(script):
    path = FOLDER / script
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 250
    assert f"python {path.name}" in ast.get_docstring(ast.parse(text))
    assert path.name in (path.parent / "README.md").read_text("utf-8")
