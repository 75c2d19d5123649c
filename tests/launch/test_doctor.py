import argparse
import importlib.util
import json
import os
import re
import resource
import socket
import sys

import pytest

from launch import batch_doctor, doctor, inquiry, mpirun, probe_host, transports
from launch.findings import Finding, table

GIB = 1 << 30
HEALTHY = {
    "host": "vm",
    "python": "3.11.7",
    "mpchain": "0.1.0",
    "numpy": "2.4.6",
    "blas": "openblas 0.3",
    "numba": "0.66",
    "onednn": "2023.2.0",
    "mpi4py": "4.1.2",
    "mpi": "Open MPI v5.0.11",
    "cuda_aware": "no",
    "driver": "570.1",
    "gpus": ["H200", "H200"],
    "topology": ["GPU0 X NV18", "GPU1 NV18 X"],
    "cuda": "13.0",
    "nccl": "2.27.7",
    "cudnn": "9.1",
    "shared_memory": 64 * GIB,
    "free_disk": 500 * GIB,
    "temporary_files": 50 * GIB,
    "locked_memory": -1,
    "container": "",
    "process_limit": 60000,
    "address_space": -1,
    "memory": 64 * GIB,
    "folders": {"container": "", "unwritable": [], "inside": []},
    "connection": "yes",
    "adapters": [],
    "clock": 1e9,
}


def lines(findings):
    return {finding.item: (finding.verdict, finding.found) for finding in findings}


def hints(findings):
    return {finding.item: finding.hint for finding in findings}


def test_healthy_host():
    found = lines(doctor.judge(HEALTHY))
    assert {verdict for verdict, _ in found.values()} == {"ok", "note"}
    assert found["cuda aware"] == ("note", "no")
    assert found["gpus"] == ("ok", "2 (H200)")
    assert found["topology"] == ("ok", "GPU0 X NV18; GPU1 NV18 X")
    assert found["shared memory"] == ("ok", "64.0 GiB")
    assert "host" not in found


def test_host_without_gpus():
    found = lines(
        doctor.judge({**HEALTHY, "gpus": [], "cuda": {"error": "No module named 'cupy'"}})
    )
    assert found["gpus"] == ("ok", "none")
    assert not {"cuda", "nccl", "cudnn", "driver", "topology", "cuda aware"} & set(found)


@pytest.mark.parametrize(
    ("item", "value", "verdict", "hint"),
    [
        ("mpchain", {"error": "No module named 'mpchain'"}, "FAIL", "pip install mpchain"),
        ("numpy", {"error": "PackageNotFoundError: numpy"}, "FAIL", "pip install numpy"),
        ("numba", {"error": "PackageNotFoundError: numba"}, "note", "'mpchain[cpu]'"),
        ("onednn", "", "note", "convolutions on CPUs are slower"),
        ("mpi4py", {"error": "PackageNotFoundError: mpi4py"}, "WARN", "'mpchain[mpi]'"),
        ("mpi", {"error": "RuntimeError: cannot load MPI"}, "WARN", "'mpchain[mpi]'"),
        ("cuda", {"error": "No module named 'cupy'"}, "WARN", "'mpchain[gpu]'"),
        ("nccl", {"error": "ImportError: libnccl"}, "WARN", "'mpchain[gpu]'"),
        ("cudnn", {"error": "PackageNotFoundError"}, "note", "'mpchain[gpu]'"),
        ("shared memory", GIB // 16, "WARN", "--shm-size"),
        ("free disk", GIB // 2, "WARN", "free some space, or choose another folder"),
        ("cuda aware", "unknown", "note", "through host memory unless NCCL"),
    ],
)
def test_what_is_wrong(item, value, verdict, hint):
    findings = doctor.judge({**HEALTHY, item.replace(" ", "_"): value})
    assert lines(findings)[item][0] == verdict
    assert hint in hints(findings)[item]


def test_same_versions():
    (finding,) = doctor.compare({"a": HEALTHY, "b": HEALTHY})
    assert (finding.verdict, finding.found) == ("ok", "2 hosts have the same versions")
    assert doctor.compare({"a": HEALTHY}) == []


def test_different_versions():
    other = {**HEALTHY, "mpi": "MPICH 5.0.2", "numpy": {"error": "none"}}
    found = lines(doctor.compare({"a": HEALTHY, "b": other}))
    assert found == {
        "mpi differs": ("FAIL", "a: Open MPI v5.0.11, b: MPICH 5.0.2"),
        "numpy differs": ("WARN", "a: 2.4.6, b: none"),
    }


def test_another_mpi4py():
    other = HEALTHY | {"mpi4py": "3.1.6"}
    (finding,) = doctor.compare({"a": HEALTHY, "b": other})
    assert (finding.item, finding.verdict, finding.found) == (
        *("mpi4py differs", "FAIL"),
        "a: 4.1.2, b: 3.1.6",
    )
    assert finding.hint == "install the same mpi4py on all hosts"


def test_table():
    findings = [
        Finding("python", "ok", "3.11.7", host="a"),
        Finding("shared memory", "WARN", "0.1 GiB", "more of it", host="long"),
        Finding("latency", "ok", "5 µs"),
    ]
    assert table(findings).splitlines() == [
        "ok    a     python         3.11.7",
        "WARN  long  shared memory  0.1 GiB  -- more of it",
        "ok    all   latency        5 µs",
    ]
    assert table(findings[2:]) == "ok  latency  5 µs"


@pytest.fixture
def examine(local_hosts, install_mpirun, answer_commands, capsys):
    """Returns a function that runs the doctor with an mpirun and an unreachable host."""

    def examine(found):
        local_hosts()
        install_mpirun(found)
        answer_commands(255, "", "ssh: No route to host")
        assert doctor.main(["--hosts", "a:2", "--json"]) == 1
        return json.loads(capsys.readouterr().out)

    return examine


def test_host_that_does_not_answer(examine):
    findings = examine(None)
    assert findings[0]["found"] == "no batch system; hosts a:2"
    assert (findings[1]["item"], findings[1]["verdict"]) == ("mpirun", "WARN")
    assert findings[2]["hint"].startswith("host a cannot be reached (ssh: No route to host)")
    assert len(findings) == 3


def test_mpirun_that_does_not_fit(examine):
    _, finding, _ = examine(mpirun.UnknownMpirunError("x is not the mpirun of y"))
    assert (finding["verdict"], finding["hint"]) == ("FAIL", "x is not the mpirun of y")


def test_mpirun_whose_jobs_cannot_be_elastic(examine, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # srun is not on the path
    _, found, elastic, _ = examine(mpirun.Mpich("/x/mpirun"))
    assert (found["verdict"], found["found"]) == ("ok", "/x/mpirun (MPICH)")
    assert (elastic["verdict"], elastic["found"]) == ("note", "no")
    assert elastic["hint"] == "--elastic needs Open MPI 5 with ULFM: /x/mpirun is not Open MPI's"


@pytest.mark.parametrize(
    ("item", "value", "verdict", "words"),
    [
        (
            "container",
            "Docker",
            "note",
            "an mpirun outside must be the same MPI, in the same version",
        ),
        ("locked_memory", 65536, "WARN", "set ulimit -l unlimited"),
        ("temporary_files", 1 << 20, "WARN", "set TMPDIR to a local folder with space"),
        ("process_limit", 100, "WARN", "ulimit -u 65536"),
        ("address_space", GIB, "WARN", "ulimit -v unlimited"),
        ("memory", GIB // 2, "WARN", "ask for more (--mem of Slurm, mem of PBS)"),
        ("connection", {"error": "TimeoutError: timed out"}, "FAIL", "allow TCP between the hosts"),
        (
            "folders",
            {"container": "Apptainer", "unwritable": ["/out"], "inside": []},
            "FAIL",
            "apptainer exec --bind /out ...",
        ),
        (
            "folders",
            {"container": "", "unwritable": ["/out"], "inside": []},
            "FAIL",
            "choose another folder, or TMPDIR",
        ),
        (
            "folders",
            {"container": "Docker", "unwritable": [], "inside": ["/out"]},
            "note",
            "what is written there ends with the container: docker run -v /out:/out ...",
        ),
    ],
)
def test_planted_surroundings(item, value, verdict, words):
    for planted, expected in ((HEALTHY, "ok"), (HEALTHY | {item: value}, verdict)):
        findings = doctor.judge(planted)
        assert lines(findings)[item.replace("_", " ")][0] == expected
    assert words in hints(findings)[item.replace("_", " ")]


def test_clocks_apart():
    other = HEALTHY | {"clock": HEALTHY["clock"] + 400}
    (finding,) = doctor.compare({"a": HEALTHY, "b": other})
    assert (finding.item, finding.found) == ("clocks differ", "by 400 s")
    assert finding.hint.endswith("set the clocks by NTP")
    near = HEALTHY | {"clock": HEALTHY["clock"] + 100}
    assert lines(doctor.compare({"a": HEALTHY, "b": near})).keys() == {"hosts"}


def test_probe_of_containers(tmp_path, monkeypatch):
    for variable in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(variable, raising=False)
    assert probe_host.container(str(tmp_path)) == ""
    (tmp_path / ".dockerenv").touch()
    assert probe_host.container(str(tmp_path)) == "Docker"
    (tmp_path / "run").mkdir()
    # Podman's file exists, also in a container from a Docker image.
    (tmp_path / "run" / ".containerenv").touch()
    assert probe_host.container(str(tmp_path)) == "Podman"
    monkeypatch.setenv("APPTAINER_CONTAINER", "/x.sif")
    assert probe_host.container(str(tmp_path)) == "Apptainer"


def test_probe_of_locked_memory(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, before[1]))
        assert probe_host.locked_memory(str(tmp_path)) == -1
        (tmp_path / "mlx5_0").touch()
        assert probe_host.locked_memory(str(tmp_path)) == 65536
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def plant(folder, name, words):
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{words}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("plugins", "verdict", "words"),
    [
        ("none pmi2", "note", "it lacks pmix: use mpirun"),
        ("none pmix pmi2", "ok", ""),
        ("none", "note", "it lacks pmix: use mpirun"),
    ],
)
def test_plug_ins_of_srun(monkeypatch, tmp_path, plugins, verdict, words):
    plant(tmp_path, "srun", f"MPI plugin types are... {plugins}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = batch_doctor.judge(mpirun.OpenMpi("/x/mpirun"), {})
    assert finding.verdict == verdict
    assert words in finding.hint


LIST = "MPI plugin types are... none pmix pmi2\nspecific pmix plugin versions available: {}"


@pytest.mark.parametrize(
    ("info", "versions", "verdict", "found", "words"),
    [
        # Debian's Open MPI 4.1.4 has ext3x, other builds have pmix3x or the older PMI-2 (s2).
        ("MCA pmix: ext3x", "pmix_v3,pmix_v4", "ok", "(PMIx 3 and 4, the library's 3)", ""),
        (
            "MCA pmix: pmix3x",
            "pmix_v5",
            "note",
            "(PMIx 5, the library's 3)",
            "PMIx 3 may not under",
        ),
        ("MCA pmix: s1\nMCA pmix: s2", "pmix_v5", "ok", "(PMIx 5)", ""),
        (
            "MCA pmix: isolated",
            *("pmix_v4", "note", "(PMIx 4)"),
            "your Open MPI was built without Slurm's PMI, so srun cannot start its ranks: use "
            "mpirun (mpchain-launch)",
        ),
    ],
)
def test_pmi_of_open_mpi_4(monkeypatch, tmp_path, info, versions, verdict, found, words):
    plant(tmp_path, "srun", LIST.format(versions))
    plant(tmp_path, "ompi_info", info)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = batch_doctor.judge(mpirun.OpenMpi(f"{tmp_path}/mpirun"), {})
    assert (finding.verdict, finding.found) == (verdict, f"pmi2 pmix {found}")
    assert words in finding.hint and bool(finding.hint) == bool(words)


def test_pmix_of_open_mpi_5(monkeypatch, tmp_path):
    plant(tmp_path, "srun", LIST.format("pmix_v4"))
    plant(tmp_path, "ompi_info", "MCA pml: ob1")
    plant(tmp_path, "pmix_info", "                    PMIX: 5.0.11rc1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = batch_doctor.judge(mpirun.OpenMpi(f"{tmp_path}/mpirun"), {})
    assert (finding.verdict, finding.found) == ("ok", "pmi2 pmix (PMIx 4, the library's 5)")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("echo size 2; echo size 2", ""),
        ("echo size 1; echo size 1", "each of two ranks is alone: their starter is not of the"),
        ("echo 'srun: error: Invalid MPI type' >&2; exit 1", "Slurm lacks the plug-in for MPI"),
        ("echo ModuleNotFoundError: no mpi4py >&2; exit 1", "ModuleNotFoundError: no mpi4py"),
        ("exit 3", "code 3"),
    ],
)
def test_trials_of_two_ranks(words, cause):
    found = batch_doctor.try_ranks(["sh", "-c", words])
    assert found.startswith(cause) and bool(found) == bool(cause)


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpchain[mpi]")
def test_two_singletons():
    """Only starting two processes shows that the starter does not connect them by MPI."""
    twice = ["sh", "-c", '"$@" && "$@"', "sh"]
    assert batch_doctor.try_ranks(twice).startswith("each of two ranks is alone")


def test_a_plug_in_that_cannot_be_loaded(monkeypatch, tmp_path):
    """Debian's plug-in for PMIx is listed, but cannot be loaded without a library."""
    path = tmp_path / "srun"
    plant(tmp_path, "srun", "")
    path.write_text(
        "#!/bin/sh\n[ $1 = --mpi=list ] && echo pmix && exit\n"
        "echo 'srun: error: pmi/pmix: can not load PMIx library' >&2; exit 1\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = batch_doctor.judge(mpirun.OpenMpi("/x/mpirun"), {"SLURM_JOB_ID": "1"})
    assert finding.verdict == "note"
    assert "srun --mpi=pmix failed (Slurm's plug-in for PMIx lacks its library" in finding.hint


@pytest.mark.parametrize(
    ("components", "verdict", "words"),
    [("MCA plm: ssh", "note", "build one --with-tm"), ("MCA plm: tm", "ok", "")],
)
def test_pbs_that_does_not_start_the_ranks(monkeypatch, tmp_path, components, verdict, words):
    monkeypatch.setenv("PATH", str(tmp_path))  # srun is not on the path
    plant(tmp_path, "prte_info", components)
    variables = {"PBS_NODEFILE": plant(tmp_path, "nodes", "a")}
    (finding,) = batch_doctor.judge(mpirun.OpenMpi(f"{tmp_path}/mpirun"), variables)
    assert finding.verdict == verdict
    assert words in finding.hint


def test_pbs_on_a_host_without_the_list(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # srun is not on the path
    (finding,) = batch_doctor.judge(mpirun.OpenMpi("/x/mpirun"), {"PBS_NODEFILE": "/nowhere"})
    assert (finding.verdict, finding.found) == ("FAIL", "cannot read /nowhere")
    assert "start there, or pass --hosts" in finding.hint


def test_lsf_without_blaunch(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = batch_doctor.judge(mpirun.OpenMpi("/x/mpirun"), {"LSB_DJOB_HOSTFILE": "/x"})
    assert (finding.verdict, finding.found) == ("WARN", "no blaunch in PATH")
    assert finding.hint.endswith("source LSF's profile.lsf")
    plant(tmp_path, "blaunch", "")
    (finding,) = batch_doctor.judge(mpirun.OpenMpi("/x/mpirun"), {"LSB_DJOB_HOSTFILE": "/x"})
    assert finding.verdict == "ok"


def test_probe_of_memory(tmp_path):
    """The smallest limit of the job's groups applies, in both versions of cgroups."""
    process = tmp_path / "proc/self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text("4:memory:/job/step\n0::/user\n")
    for folder in ("sys/fs/cgroup/memory/job/step", "sys/fs/cgroup/user"):
        (tmp_path / folder).mkdir(parents=True)
    whole = probe_host.memory(str(tmp_path))
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "sys/fs/cgroup/user/memory.max").write_text("max\n")
    (tmp_path / "sys/fs/cgroup/memory/job/memory.limit_in_bytes").write_text("3000000\n")
    assert probe_host.memory(str(tmp_path)) == 3000000
    (tmp_path / "sys/fs/cgroup/user/memory.max").write_text("2000000\n")
    assert probe_host.memory(str(tmp_path)) == 2000000


def test_probe_of_limits_and_folders():
    """The user may start 100 processes with 1 GiB of addresses, and owns none of the folders."""
    code = (
        "import os, resource, sys, json; sys.argv[1:] = ['/proc/1']; import probe_host\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "if os.geteuid() == 0: os.setgroups([]), os.setresgid(1, 1, 1), os.setresuid(1, 1, 1)\n"
        "found = probe_host.process_limit(), probe_host.address_space(), probe_host.folders()\n"
        "print(json.dumps(found))"
    )
    command = ["env", f"PYTHONPATH={os.path.dirname(doctor.PROBE_HOST)}", sys.executable]
    ((code, output, errors),) = inquiry.run_on_all({"": [*command, "-c", code]}, 60).values()
    assert code == 0, errors
    processes, addresses, folders = json.loads(output)
    assert (processes, addresses) == (100, 1 << 30)
    assert "/proc/1" in folders["unwritable"]


def test_probe_of_the_connection(command_line):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1,{listener.getsockname()[1]}"
        command_line("probe_host.py", ".", place)
        assert probe_host.connection() == "yes"
    assert "error" in probe_host._ask(probe_host.connection)  # no process listens any more


BETWEEN = {"places": ["rank 0 on a", "rank 3 on b"], "latency": 1.5e-6, "speed": 1 << 32}
FAST = ": 1.5 µs, 4.00 GiB/s between rank 0 on a and rank 3 on b"
SUMMARY = "Connection summary: (pml)\n  on-host:  all connections are sm\n"


@pytest.mark.parametrize(
    ("line", "adapters", "verdict", "found"),
    [
        ("  off-host: all connections are n/a\n", True, "ok", "on-host sm"),
        ("  off-host: all connections are tcp\n", False, "ok", "on-host sm, off-host tcp"),
        ("  off-host: all connections are tcp\n", True, "WARN", "on-host sm, off-host tcp"),
        ("  off-host: all connections are ucx\n", True, "ok", "on-host sm, off-host ucx"),
        (
            "  off-host: all connections are ucx=tcp;eth0\n",
            *(True, "WARN", "on-host sm, off-host ucx=tcp;eth0"),
        ),
        (
            "  off-host: all connections are ucx\n"
            "ucp_worker.c:1912 UCX  INFO    ucp_context_0 inter-node cfg#2 tag(tcp/eth0)\n",
            *(True, "WARN", "on-host sm, off-host ucx=tcp/eth0"),
        ),
    ],
)
def test_transports(line, adapters, verdict, found):
    finding = transports.judge(SUMMARY + line, BETWEEN, adapters)
    assert (finding.verdict, finding.found) == (verdict, found + FAST)
    assert ("use an Open MPI or an MPICH with UCX" in finding.hint) == (verdict == "WARN")


# MPICH 5.0.2 prints this with UCX and with libfabric.
MPICH_BY_UCX = """\
[1795713897.630508] [vm:9899 :0] ucp_worker.c:1912 UCX  INFO    ucp_context_0 intra-node cfg#1 \
tag(sysv/memory cma/memory)  rma(sysv/memory posix/memory)  am(sysv/memory cma/memory)
[1795713897.630511] [vm:9900 :0] ucp_worker.c:1912 UCX  INFO    ucp_context_0 inter-node cfg#2 \
tag(rc_mlx5/mlx5_0:1)  rma(rc_mlx5/mlx5_0:1)
"""
MPICH_BY_OFI = (
    "==== Capability set configuration ====\nlibfabric provider: sockets - 192.0.2.0/24\n"
)


@pytest.mark.parametrize(
    ("output", "verdict", "found"),
    [
        (MPICH_BY_UCX, "ok", "on-host ucx=sysv/memory cma/memory, off-host ucx=rc_mlx5/mlx5_0:1"),
        (MPICH_BY_OFI, "WARN", "off-host libfabric sockets"),
    ],
)
def test_transports_of_mpich(output, verdict, found):
    finding = transports.judge(output, BETWEEN, has_adapters=True)
    assert (finding.verdict, finding.found) == (verdict, found + FAST)
    assert ("or an MPICH with UCX" in finding.hint) == (verdict == "WARN")


@pytest.mark.parametrize(("version", "verdict"), [("5.0.9", "ok"), ("5.0.11", "note")])
def test_open_mpi_with_a_known_defect(examine, tmp_path, version, verdict):
    path = plant(tmp_path, "mpirun", f"mpirun (Open MPI) {version}")
    plant(tmp_path, "ompi_info", "FT MPI support: yes")
    elastic = examine(mpirun.OpenMpi(path))[-2]
    assert elastic["verdict"] == verdict
    assert ('"openmpi<5.0.10"' in elastic["hint"]) == (verdict == "note")


@pytest.mark.long
def test_probe_of_gpus(tmp_path):
    program = tmp_path / "nvidia-smi"
    rows = r"\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n\nLegend:\n"
    cases = [
        "*name*) echo H200; echo H200;;",
        "*driver*) echo 570.1;;",
        f'*topo*) printf "{rows}";;',
    ]
    program.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *cases, "esac", ""]))
    program.chmod(0o755)
    command = [
        "env",
        f"PATH={tmp_path}:{os.environ['PATH']}",
        sys.executable,
        doctor.PROBE_HOST,
        ".",
    ]
    ((code, output, _),) = inquiry.run_on_all({"": command}, 60).values()
    answer = json.loads(output)
    assert code == 0
    assert (answer["gpus"], answer["driver"]) == (["H200", "H200"], "570.1")
    assert answer["topology"] == ["GPU0 X NV18", "GPU1 NV18 X"]
    assert answer["free_disk"] > 0


@pytest.mark.skipif(
    mpirun.find() is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpchain[mpi]"
)
def test_this_installation(run):
    code, output, errors = run("doctor", "--json", "--results", "not/yet")
    assert (code, errors) == (0, "")
    findings = {finding["item"]: finding for finding in json.loads(output)}
    assert findings["python"]["found"] == ".".join(map(str, sys.version_info[:3]))
    assert findings["mpi"]["verdict"] == "ok"
    assert "µs for 8 bytes between 2 ranks" in findings["latency"]["found"]
    assert "GiB/s" in findings["bandwidth"]["found"]
    carried = r"on-host \S+.*: [\d.e+]+ µs, [\d.]+ GiB/s between rank 0 on \S+ and rank 1 on \S+"
    assert re.fullmatch(carried, findings["transports"]["found"])
    assert {"numpy", "blas", "mpirun", "free disk", "shared memory"} <= set(findings)


NO_OPTIONS = argparse.Namespace(ranks=None, hosts="", hostfile="")


@pytest.mark.parametrize(("seconds", "verdict"), [(5e-6, "ok"), (2e-3, "WARN")])
def test_speed(answer_commands, seconds, verdict):
    times = {"8": seconds, "1048576": 2e-3, "16777216": 1 / 64}
    printed = json.dumps({"ranks": 3, "seconds": times, "between": BETWEEN})
    answer_commands(0, printed + "\nUCX  INFO  another line\n")
    carried, latency, bandwidth = transports.measure(NO_OPTIONS)
    assert carried.found == "unknown" + FAST
    assert latency.verdict == verdict
    assert latency.found == f"{1e6 * seconds:.0f} µs for 8 bytes between 3 ranks"
    assert bool(latency.hint) == (verdict == "WARN")
    assert bandwidth.found == (
        "1.00 GiB/s (1024 KiB in 2.00 ms, 16384 KiB in 15.62 ms) between 3 ranks"
    )


def test_all_reduce_that_fails(answer_commands):
    answer_commands(3, "", "words\nmpchain-launch: rank 1 of 2 ended with exit code 3\n")
    (finding,) = transports.measure(NO_OPTIONS)
    assert (finding.verdict, finding.found) == ("FAIL", "rank 1 of 2 ended with exit code 3")
    assert "run it by hand: " in finding.hint and "probe_allreduce.py" in finding.hint
