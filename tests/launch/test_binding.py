import ast
import os
import subprocess
import sys

import pytest

from launch import binding


@pytest.fixture
def read_by(monkeypatch):
    """Returns a function that sets the function that reads system files."""
    return lambda read: monkeypatch.setattr(binding, "read", read)


@pytest.fixture
def nvidia_smi(monkeypatch):
    """Returns a function that sets the path of nvidia-smi; None means that it is not installed."""
    return lambda path: monkeypatch.setattr(binding, "find_program", lambda names, folders: path)


@pytest.fixture
def machine(monkeypatch, read_by, nvidia_smi):
    """Returns a function that imitates a machine with given processors, hardware threads and
    GPUs."""

    def machine(
        processors,
        threads_per_core=1,
        limit="max 100000",
        gpus=0,
        domains=1,
        old_limit="",
        first=0,
        gpu_domains=(),
    ):
        per_domain = processors // domains
        places = [f"0000:{16 * i + 26:02X}:00.0" for i in range(len(gpu_domains))]

        def read(path):
            if path == "/proc/self/cgroup":
                return "3:cpuset:/x\n4:cpu,cpuacct:/\n0::/"
            if path.startswith("/sys/bus/pci/devices/"):
                return str(dict(zip(map(str.lower, places), gpu_domains))[path.split("/")[-2]])
            if path.startswith("/proc/driver/nvidia/gpus/"):
                return (
                    f"Model:\t H100\nGPU UUID: \t GPU-{places.index(path.split('/')[-2])}a\nIRQ: 7"
                )
            if path.endswith("cpu.max"):
                return limit if path == "/sys/fs/cgroup/cpu.max" else ""
            if path.endswith("_us"):
                names = ("quota", "period")
                return dict(zip(names, old_limit.split())).get(path.split("_")[1], "")
            if path.startswith("/sys/devices/system/node/node"):
                start = per_domain * int(path.removesuffix("/cpulist")[29:])
                return f"{start}-{start + per_domain - 1}"
            core = int(path.split("/cpu/cpu")[1].split("/")[0]) // threads_per_core
            return f"{core * threads_per_core}-{(core + 1) * threads_per_core - 1}"

        n_gpus = gpus or len(gpu_domains)
        files = ["null", "nvidiactl", "nvidia-uvm", *[f"nvidia{i}" for i in range(n_gpus)]]
        read_by(read)
        nodes = ["online", *[f"node{i}" for i in range(domains)]]
        listings = {"/dev": files, "/sys/devices/system/node": nodes}
        listings["/proc/driver/nvidia/gpus"] = places[::-1]
        monkeypatch.setattr(binding, "_usable_processors", lambda: set(range(first, processors)))
        monkeypatch.setattr(os, "listdir", lambda path: listings.get(path, []))
        nvidia_smi(None)

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
        ((8, 1, "", 0, 1, "150000 100000"), 2),
        ((8, 1, "", 0, 1, "-1 100000"), 8),
    ],
)
def test_cores(machine, arguments, cores):
    machine(*arguments)
    assert binding.cores() == cores


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/slurm/job_7/step_0", {"slurm/job_7/cpu.max": "150000 100000"}, 1.5),
        (
            "0::/slurm/job_7",
            {"slurm/cpu.max": "400000 100000", "slurm/job_7/cpu.max": "max 100000"},
            4.0,
        ),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "800000 100000"}, 2.0),
        (
            "5:cpu,cpuacct:/docker/x\n6:memory:/docker/x",
            {"cpu/docker/x/cpu.cfs_quota_us": "50000", "cpu/docker/x/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("5:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/x", {"cpu/x/cpu.cfs_quota_us": "1", "cpu/x/cpu.cfs_period_us": "2"}, None),
        ("0::/elsewhere", {}, None),
        ("", {"cpu.max": "300000 100000"}, 3.0),
    ],
)
def test_quota_of_nested_groups(read_by, groups, files, quota):
    planted = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    planted["/proc/self/cgroup"] = groups
    read_by(lambda path: planted.get(path, ""))
    assert binding.quota() == quota


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


def test_gpus_from_nvidia_smi(machine, nvidia_smi, monkeypatch, tmp_path):
    machine(2)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: a)'\necho 'GPU 1: A (UUID: b)'\n")
    program.chmod(0o755)
    nvidia_smi(str(program))
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
    # OpenBLAS and MKL follow OMP_NUM_THREADS unless their own variables are set.
    assert binding.rank_variables({"OMP_NUM_THREADS": "3"}, 2) == {}
    share = binding.rank_variables({"OPENBLAS_NUM_THREADS": "3"}, 2)
    assert share == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("machine_of", "mode", "n", "listings"),
    [
        ({"processors": 8}, "cores", 3, ["0-1", "2-3", "4-5"]),
        ({"processors": 8, "threads_per_core": 2}, "cores", 4, ["0-1", "2-3", "4-5", "6-7"]),
        ({"processors": 8, "first": 4}, "cores", 2, ["4-5", "6-7"]),  # the machine has a cpuset
        ({"processors": 8, "first": 3, "threads_per_core": 2}, "cores", 3, ["3", "4-5", "6-7"]),
        (
            {"processors": 12, "domains": 2},
            "cores",
            3,
            ["0-3", "4-7", "8-11"],
        ),  # rank 1 has cores of both domains, which cannot be avoided
        (
            {"processors": 10, "domains": 2},
            "cores",
            4,
            ["0-1", "2-3", "5-6", "7-8"],
        ),  # no rank has cores of both domains
        ({"processors": 8, "domains": 2}, "numa", 4, ["0-3", "0-3", "4-7", "4-7"]),
        ({"processors": 8, "domains": 4}, "numa", 2, ["0-3", "4-7"]),
        ({"processors": 8, "domains": 2}, "numa", 1, ["0-7"]),
    ],
)
def test_share(machine, machine_of, mode, n, listings):
    machine(**machine_of)
    shares = [binding.share(mode, rank, n, "") for rank in range(n)]
    assert [binding.listing(processors) for processors, _ in shares] == listings
    assert {why_not for _, why_not in shares} == {""}


@pytest.mark.parametrize(
    ("variables", "n", "wanted"),
    [
        ({}, 4, [1, 1, 0, 0]),
        ({}, 6, [1, 1, 0, 0, 1, 1]),  # ranks 4 and 5 share the first GPUs
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, 2, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3a,GPU-1"}, 2, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3a,MIG-7"}, 2, [0, None]),
        ({"CUDA_VISIBLE_DEVICES": ""}, 2, []),
    ],
)
def test_domains_of_gpus(machine, variables, n, wanted):
    machine(8, domains=2, gpu_domains=(1, 1, 0, 0))
    assert binding.gpu_domains(variables, n) == wanted


def test_no_domains_of_gpus(machine):
    machine(8, gpus=2)
    assert binding.gpu_domains({}, 2) == []
    machine(8, gpu_domains=(-1, -1))  # the kernel reports -1 if there is only one domain
    assert binding.gpu_domains({}, 2) == []


@pytest.mark.parametrize(
    ("mode", "wanted", "listings"),
    [
        ("cores", [1, 1, 0, 0], ["4-5", "6-7", "0-1", "2-3"]),
        ("cores", [1, None, 0, 0], ["4-5", "6-7", "0-1", "2-3"]),
        ("cores", [1, 1, 1, 1], ["4-5", "6-7", "0-1", "2-3"]),  # no processors are left
        ("cores", [5, 0], ["4-7", "0-3"]),
        ("cores", [], ["0-3", "4-7"]),
        ("numa", [1, 0, None, 7], ["4-7", "0-3", "4-7", "4-7"]),
    ],
)
def test_share_near_the_gpu(machine, mode, wanted, listings):
    machine(8, domains=2)
    n = len(listings)
    shares = [binding.share(mode, rank, n, "", wanted)[0] for rank in range(n)]
    assert [binding.listing(processors) for processors in shares] == listings


@pytest.mark.parametrize(
    ("machine_of", "n", "why_not"),
    [
        ({"processors": 4}, 5, "5 ranks have only 4 cores"),
        ({"processors": 8, "threads_per_core": 2}, 5, "5 ranks have only 4 cores"),
        (
            {"processors": 8, "limit": "250000 100000"},
            2,
            "the CPU quota of 2.5 cores does not name cores to bind ranks to",
        ),
    ],
)
def test_no_share(machine, machine_of, n, why_not):
    machine(**machine_of)
    assert binding.share("cores", 0, n, "") == (set(), why_not)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores"
)
def test_ranks_of_a_job_and_bound_processes_of_others(run, script):
    path = script("import os; print(sorted(os.sched_getaffinity(0)))")
    code, output, errors = run("-n", 2, "--bind", "cores", "--no-prefix", path)
    assert code == 0
    usable = os.sched_getaffinity(0)
    first, second = map(set, map(ast.literal_eval, output.splitlines()))
    (line,) = [line for line in errors.splitlines() if line.startswith("mpchain-launch: binding: ")]
    if "not bound: " in line:  # another process uses the cores, or this process is limited
        assert first == second == usable
    else:
        assert first and second and not first & second and first | second <= usable
        of_rank_0 = binding.listing(min(first, second, key=min))
        assert f"rank 0 on {os.uname().nodename}: processors {of_rank_0};" in line
    assert "binding" not in run("-n", 2, path)[2]

    one = {min(usable)}
    bind_and_wait = f"import os; os.sched_setaffinity(0, {one}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", bind_and_wait],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MPCHAIN_JOB": "mine"},
    ) as other:
        other.stdout.readline()
        assert binding._somebody_bound(usable, "") != ""
        found = binding._somebody_bound(usable, "MPCHAIN_JOB=mine")
        assert f"process {other.pid} " not in found
        other.communicate(b"\n")
    with binding.bound(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == usable
