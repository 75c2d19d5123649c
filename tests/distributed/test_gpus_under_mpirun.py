"""Runs the variants on GPUs again on several ranks with one imitated GPU each, for each binding."""

import importlib.util
import shutil

import pytest

from mpchain.backends.nccl_bindings import BINDINGS
from tests.distributed.test_under_mpirun import FOLDER
from tests.distributed.test_under_mpirun import ranks_of as ranks_of

FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("test_*.py")
    if "\nON_GPUS = True\n" in path.read_text("utf-8")
)
MODULES = {"nccl4py": "nccl", "cupy": "cupy_backends", "pynccl": "ctypes"}
# The limit in seconds: the tests take half a minute on two free cores, longer on busy cores.
LIMIT = 560

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(LIMIT + 40),
    pytest.mark.skipif(shutil.which("g++") is None, reason="the doubles need g++"),
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_file_on_ranks(n_ranks, binding, file, needs_mpirun, ranks_of):
    if importlib.util.find_spec(MODULES[binding]) is None:
        pytest.skip(f"{binding} is not installed")
    failure = ranks_of(n_ranks, limit=LIMIT).run(
        "--gpu=double", "-m", "gpu", f"--nccl={binding}", str(FOLDER / file)
    )
    assert not failure, failure
