"""Tests which communicator a launch gets, and the error if the requested one is impossible."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mpchain import links as L
from mpchain.backends import cuda
from mpchain.distributed import communicators, create_communicator
from mpchain.distributed.communicators import Communicator, DummyCommunicator, MpiCommunicator
from mpchain.distributed.communicators.environment import launched

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [None, "naive", "flat", "non_cuda_aware"])
def test_names_for_mpi(comm, name):
    with create_communicator(name, batched_copy=False) as made:
        assert type(made) is (MpiCommunicator if comm.size > 1 else Communicator)
        assert (made.rank, made.size) == (comm.rank, comm.size)
        assert made.get_config("batched_copy") is False
        assert made.allreduce(np.ones(2)).tolist() == [comm.size] * 2


def test_of_given_ranks(comm):
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    part = comm.mpi_comm.Split(comm.rank, 0)
    made = create_communicator("naive", part)
    assert type(made) is MpiCommunicator
    assert (made.size, made.mpi_comm) == (1, part)
    made.finalize()
    made.finalize()  # the second call does nothing
    part.Free()


def test_dummy(comm):
    with create_communicator("dummy", comm.mpi_comm) as made:
        assert isinstance(made, DummyCommunicator if comm.mpi_comm else Communicator)
        link = L.Parameter(np.zeros(3, np.float32))
        for _ in range(2):
            link.W.grad = np.full(3, comm.size * comm.rank, np.float32)
            made.multi_node_mean_grad(link)
            # The gradients are weighted, but not summed.
            assert link.W.grad.tolist() == [comm.rank] * 3
        assert made.bcast_obj(comm.rank) == 0
        assert made.iallreduce(np.ones(2)).Wait().tolist() == [comm.size] * 2


def test_unknown_name():
    with pytest.raises(
        ValueError, match="unknown name 'hoge'; the names are dummy, flat, hierarchical, naive"
    ):
        create_communicator("hoge")


@pytest.mark.skipif(cuda.available, reason="needs a host without a GPU")
@pytest.mark.parametrize("name", ["pure_nccl", "hierarchical", "two_dimensional", "single_node"])
def test_names_for_gpus_without_gpu(name):
    with pytest.raises(RuntimeError, match=f"create_communicator: '{name}' needs a GPU: a GPU is"):
        create_communicator(name)


def test_gradient_dtype_needs_nccl():
    with pytest.raises(ValueError, match=r"allreduce_grad_dtype=.*needs a communicator of NCCL"):
        create_communicator("naive", allreduce_grad_dtype="float32")


def test_wrong_gradient_dtype(pretend_cupy, monkeypatch):
    pretend_cupy(None)
    monkeypatch.setattr(communicators, "find_binding", lambda: "pynccl")
    with pytest.raises(
        ValueError, match="allreduce_grad_dtype must be float16, float32 or float64, not int32"
    ):
        create_communicator("pure_nccl", allreduce_grad_dtype="int32")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ("OMPI_COMM_WORLD_SIZE", 4)),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, ("PMI_SIZE", 3)),
        ({"PMIX_RANK": "2"}, ("PMIX_RANK", 3)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ("SLURM_STEP_NUM_TASKS", 8)),
        ({"PMI_SIZE": "many"}, None),
        ({"WORLD_SIZE": "4"}, None),
        ({"WORLD_SIZE": "4", "RANK": "1"}, None),
        ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}, ("WORLD_SIZE", 4)),
        ({"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, ("WORLD_SIZE", 4)),
    ],
    ids=str,
)
def test_launched(variables, expected):
    assert launched(variables) == expected


def in_fresh_process(script, **variables):
    """Runs a script in a process without a launcher but with the given variables."""
    launcher = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(launcher)}
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


MAKE = """
import sys
from mpchain.distributed import create_communicator
comm = create_communicator()
print(type(comm).__name__, "mpi4py" in sys.modules)
"""
WITHOUT_MPI4PY = "import sys; sys.modules['mpi4py'] = None\n" + MAKE


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(MAKE, id="with mpi4py", marks=pytest.mark.long),
        pytest.param(WITHOUT_MPI4PY, id="without"),
    ],
)
def test_one_process_does_not_import_mpi4py(script):
    assert in_fresh_process(script).stdout.split()[0] == "Communicator"
    assert "True" not in in_fresh_process(MAKE).stdout


def test_one_rank_without_mpi4py():
    done = in_fresh_process(WITHOUT_MPI4PY, OMPI_COMM_WORLD_SIZE="1")
    assert done.stdout.split()[0] == "Communicator", done.stderr


@pytest.mark.parametrize(
    "variable", ["TORCHELASTIC_RUN_ID", pytest.param("LOCAL_RANK", marks=pytest.mark.long)]
)
def test_processes_of_torchrun(variable):
    done = in_fresh_process(MAKE, **{variable: "1"}, WORLD_SIZE="2", RANK="1")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "create_communicator: torchrun started 2 processes (WORLD_SIZE)" in last
    assert "start the program with mpchain-launch -n 2 or mpirun" in last


def test_several_ranks_without_mpi4py():
    done = in_fresh_process(WITHOUT_MPI4PY, OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "this process is one of 2 ranks (OMPI_COMM_WORLD_SIZE); several ranks need" in last
    assert "pip install 'mpchain[mpi]'" in last


def test_launcher_of_another_mpi(needs_mpirun):
    # If only another launcher's variable is set, the library starts as a world of one rank.
    done = in_fresh_process(MAKE, PMI_SIZE="2")
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "the launcher started 2 ranks or more (PMI_SIZE), but the MPI library" in last
    assert "belong to different MPI installations" in last


def test_reproducible(comm):
    with create_communicator("naive", comm.mpi_comm) as made:
        assert made.micro_shards is None
    with create_communicator("naive", comm.mpi_comm, reproducible=True) as made:
        assert made.micro_shards == 12
        with made.split(0, made.rank) as part:
            assert part.micro_shards == 12
    least, n = comm.size, comm.size - 1
    with pytest.raises(ValueError, match=f"micro_shards must be at least .* {least}, but is {n}: "):
        create_communicator("naive", comm.mpi_comm, reproducible=True, micro_shards=n)
