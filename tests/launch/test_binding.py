import os

import pytest

from launch import binding


@pytest.fixture
def machine(monkeypatch):
    """Function that makes a machine of so many processors, hardware threads and GPUs."""

    def machine(processors, threads_per_core=1, limit="max 100000", gpus=0):
        def read(path):
            if path.endswith("cpu.max"):
                return limit
            processor = int(path.split("/cpu/cpu")[1].split("/")[0])
            return f"siblings of core {processor // threads_per_core}"

        files = ["null", "nvidiactl", "nvidia-uvm", *[f"nvidia{i}" for i in range(gpus)]]
        monkeypatch.setattr(binding, "_read", read)
        monkeypatch.setattr(binding, "_usable_processors", lambda: set(range(processors)))
        monkeypatch.setattr(os, "listdir", lambda path: files if path == "/dev" else [])
        monkeypatch.setattr(binding, "find_program", lambda names, folders: None)

    return machine


@pytest.mark.parametrize(
    ("arguments", "cores"),
    [
        ((8,), 8),
        ((8, 2), 4),
        ((8, 1, "200000 100000"), 2),
        ((8, 1, "150000 100000"), 2),
        ((8, 1, "10000 100000"), 1),
        ((8, 1, ""), 8),
    ],
)
def test_cores(machine, arguments, cores):
    machine(*arguments)
    assert binding.cores() == cores


def test_cores_of_this_machine():
    assert 1 <= binding.cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", ["2"]),
        ("0, 3", ["0", "3"]),
        ("0,-1,1", ["0"]),
        ("GPU-8932f937,MIG-1a2b/3/0", ["GPU-8932f937", "MIG-1a2b/3/0"]),
    ],
)
def test_gpus_that_the_user_lists(machine, visible, gpus):
    machine(2, gpus=4)
    assert binding.gpus({"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_gpus_from_device_files(machine):
    machine(2, gpus=3)
    assert binding.gpus({}) == ["0", "1", "2"]


def test_gpus_from_nvidia_smi(machine, monkeypatch, tmp_path):
    machine(2)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: a)'\necho 'GPU 1: A (UUID: b)'\n")
    program.chmod(0o755)
    monkeypatch.setattr(binding, "find_program", lambda names, folders: str(program))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert binding.gpus({}) == ["0", "1"]


def test_no_gpu(machine):
    machine(2)
    assert binding.gpus({}) == []


def test_each_local_rank_gets_threads_and_sees_all_gpus(machine):
    # Programs choose their GPU by intra_rank, under mpirun and under the launcher.
    machine(8, gpus=2)
    for variables in ({}, {"CUDA_VISIBLE_DEVICES": "3,1"}):
        share = binding.rank_variables(variables, 3)
        assert share == dict.fromkeys(binding.THREAD_VARIABLES, "2")


def test_more_ranks_than_cores_get_one_thread_each(machine):
    machine(2)
    assert binding.rank_variables({}, 3)["OMP_NUM_THREADS"] == "1"


def test_numbers_of_threads_of_the_user_hold(machine):
    machine(8)
    # OpenBLAS and MKL follow OMP_NUM_THREADS unless they are told otherwise.
    assert binding.rank_variables({"OMP_NUM_THREADS": "3"}, 2) == {}
    share = binding.rank_variables({"OPENBLAS_NUM_THREADS": "3"}, 2)
    assert share == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
