"""Runs the variants on GPUs again on several ranks, each with an imitated GPU, by each binding."""

import shutil

import pytest

from mpchain.distributed.communicators.nccl_bindings import BINDINGS
from tests.distributed.pytest_on_ranks import Ranks
from tests.distributed.test_under_mpirun import FOLDER

FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("test_*.py")
    if "\nON_GPUS = True\n" in path.read_text("utf-8")
)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the doubles need g++"),
]


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("binding", BINDINGS)
def test_files_on_ranks(n_ranks, binding, needs_mpirun):
    pytest.importorskip({"nccl4py": "nccl.bindings", "cupy": "cupy_backends"}.get(binding, "numpy"))
    failures = []
    with Ranks(n_ranks) as ranks:
        for file in FILES:
            options = ["--gpu=double", "-m", "gpu", f"--nccl={binding}"]
            failures.append(ranks.run(*options, str(FOLDER / file)))
    assert not any(failures), "\n\n".join(failures)
