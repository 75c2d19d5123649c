import importlib.util
import json
import os
import pathlib
import shutil

import pytest

from launch import doctor, gpu_doctor, inquiry, mpirun
from tests.launch.conftest import ROOT

DOUBLES = pathlib.Path(__file__).parents[1] / "gpu" / "doubles"
MEASURE = "mpchain.gpu_doctor.speed"
GOOD, BAD = {"ok": True, "error": 1.2e-7}, {"ok": False, "error": 0.5}


def lines(findings):
    return {finding.item: (finding.verdict, finding.found) for finding in findings}


def hints(findings):
    return {finding.item: finding.hint for finding in findings}


def checked(*versions, n_gpus=2, is_double=False, **checks):
    found = {"versions": versions, "checks": checks, "GPUs": n_gpus, "is a double": is_double}
    return json.dumps(found)


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Function of the answers of the programs; returns the findings, the file and the commands."""

    def check(*answers):
        answers, commands = iter(answers), []

        def run_on_all(wanted, timeout):
            commands.append(wanted[""])
            return {"": (*next(answers, (0, "")), "", "")[:3]}

        monkeypatch.setattr(inquiry, "run_on_all", run_on_all)
        path = tmp_path / "gpu.json"
        findings = gpu_doctor.check_gpu(str(path))
        assert next(answers, None) is None
        written = json.loads(path.read_text())
        if len(commands) > 1:
            assert [c[-2:] for c in commands[-2:]] == [["-m", MEASURE], [MEASURE, "pytorch"]]
        return findings, written, commands

    monkeypatch.setattr(mpirun, "find", lambda: object())
    return check


@pytest.mark.parametrize(("plan", "verdict"), [("planned", "ok"), ("no library", "note")])
def test_first_gpu(check, monkeypatch, plan, verdict):
    monkeypatch.setattr(mpirun, "find", lambda: None)
    failed = {"ok": False, "error": "Traceback ...\nValueError: no kernel\n"}
    versions = "mpchain: 0.1.0", "SciPy: 1.17", "  GPU: H200", "cuDNN: 9.28", "  convolution: "
    output = checked(*versions[:4], versions[4] + plan, matmul=GOOD, pooling=BAD, softmax=failed)
    findings, written, _ = check((0, f"a line\n{output}\n", "a warning"))
    assert json.loads(output).items() <= written.items()
    assert written["messages"]["check"] == "a warning"
    assert lines(findings) == {
        "mpchain": ("ok", "0.1.0"),
        "GPU": ("ok", "H200"),
        "cuDNN": (verdict, "9.28"),
        "matmul": ("ok", "as on the CPU, to 1e-07 of the largest number"),
        "pooling": ("FAIL", "differs from the CPU by 5e-01 of the largest number"),
        "softmax": ("FAIL", "an exception"),
        "two ranks": ("note", "not tested"),
    }
    said = hints(findings)
    assert said["softmax"].startswith("ValueError: no kernel; the traceback is in ")
    assert said["pooling"].startswith("please report it, with ")
    assert said["cuDNN"] == ("" if verdict == "ok" else "no library; slower kernels run instead")
    assert said["two ranks"].startswith("it needs mpirun: ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((0, '{"reason": "no CuPy"}'), "no CuPy"),
        ((-11, ""), "the check did not end: exit code -11"),
        ((None, "", "no answer within 600 s"), "the check did not end: no answer within 600 s"),
    ],
)
def test_gpu_that_does_not_work(check, answer, reason):
    (finding,), written, _ = check(answer)
    assert (finding.verdict, finding.hint) == ("FAIL", reason)
    assert written["reason"] == reason


@pytest.mark.parametrize(("differences", "verdict"), [([], "ok"), (["cupy.tri: missing"], "note")])
def test_names_of_cupy(check, monkeypatch, differences, verdict):
    monkeypatch.setattr(mpirun, "find", lambda: None)
    (finding, _), _, _ = check((0, json.dumps({**json.loads(checked()), "contract": differences})))
    assert finding.verdict == verdict
    assert all(line in finding.hint for line in differences)


def results(**found):
    return "".join(json.dumps({"name": name, **each}) + "\n" for name, each in found.items())


def test_ranks_with_a_gpu_each(check):
    printed = results(training=GOOD, collectives=BAD, sum={"ok": True, "seconds": 2e-3})
    findings, written, (_, command, *_) = check((0, checked()), (0, f"a line\n{printed}"))
    assert command[-2:] == ["-m", "mpchain.gpu_doctor.ranks"] and "--env" not in command
    assert [each["name"] for each in written["two ranks"]] == ["training", "collectives", "sum"]
    assert lines(findings) == {
        "two ranks: training": ("ok", "as on the CPU, to 1e-07 of the largest number"),
        "two ranks: collectives": ("FAIL", "differs from the CPU by 5e-01 of the largest number"),
        "two ranks: sum": ("ok", "2 ms"),
    }


def test_ranks_that_do_not_end(check):
    ended = (1, results(training=GOOD), "mpchain-launch: the job took more than 300 s\n")
    findings, written, _ = check((0, checked()), ended)
    assert lines(findings)["two ranks"] == ("FAIL", "did not end")
    assert hints(findings)["two ranks"].startswith("mpchain-launch: the job took more than 300 s;")
    assert written["messages"]["two ranks"] == ended[2]


def test_ranks_that_share_a_gpu(check):
    """That NCCL does not let them is no failure; that mpchain does not say so is one."""
    refused = results(refusal={"ok": False, "error": "no error"})
    error = results(an_exception={"ok": False, "error": "Traceback ...\nNcclError: duplicate GPU"})
    answers = (0, checked(n_gpus=1)), (0, refused), (1, error, "it failed")
    findings, _, (_, _, command, *_) = check(*answers)
    assert command[command.index("--env") + 1] == "NCCL_MULTI_RANK_GPU_ENABLE=1"
    assert lines(findings) == {
        "two ranks, one GPU: refusal": ("FAIL", "an exception"),
        "two ranks, NCCL on one GPU: an_exception": ("note", "an exception"),
    }


@pytest.mark.parametrize(("is_double", "verdict"), [(False, "ok"), (True, "note")])
def test_speed(check, monkeypatch, is_double, verdict):
    monkeypatch.setattr(mpirun, "find", lambda: None)
    times = [{"milliseconds": {"step": 0.5 * i, "host": 0.25}} for i in (1, 2)]
    failed = {"error": "Traceback ...\nMemoryError: too large\n"}
    ours = results(MLP=times[0], layer=times[0], conv=times[0], cell=failed)
    theirs = json.dumps({"version": "2.13"}) + "\n" + results(MLP=times[1], layer=failed)
    answers = (0, ours), (-9, theirs, "")
    findings, written, _ = check((0, checked(is_double=is_double)), *answers)
    assert written["speed"]["PyTorch"][0] == {"version": "2.13"}
    assert lines(findings[1:]) == {
        "training step: MLP": (
            verdict,
            "0.5 ms (0.25 ms of the host); PyTorch 1 ms (0.25 ms of the host)",
        ),
        "training step: layer": (
            verdict,
            "0.5 ms (0.25 ms of the host); PyTorch raises MemoryError: too large",
        ),
        "training step: conv": (verdict, "0.5 ms (0.25 ms of the host)"),
        "training step: cell": ("FAIL", "an exception"),
        "speed of PyTorch": ("note", "not measured"),
    }
    assert hints(findings)["speed of PyTorch"] == "exit code -9"
    assert ("not times of a GPU" in hints(findings)["training step: MLP"]) == is_double


def test_file_that_cannot_be_written(capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--gpu", "no/such/folder/gpu.json"])
    assert "--gpu no/such/folder/gpu.json: No such file or directory" in capsys.readouterr().err


needs_double = pytest.mark.skipif(
    not (shutil.which("g++") and mpirun.find()),
    reason="the doubles need g++ and mpirun",
)


@pytest.fixture
def examine(start, tmp_path):
    """Function that runs the doctor on the doubles: its exit code, the findings, and the file."""

    def examine(*folders, n_gpus=2):
        path = os.pathsep.join(map(str, [*folders, DOUBLES, ROOT]))
        variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        variables["CUPY_DOUBLE_DEVICES"] = str(n_gpus)
        process = start("doctor", "--gpu", "gpu.json", "--json", env=variables).process
        output, errors = process.communicate(timeout=800)
        assert errors == ""
        found = json.loads((tmp_path / "gpu.json").read_text())
        return process.returncode, json.loads(output), found

    return examine


@needs_double
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_gpus", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_double(examine, n_gpus):
    code, findings, found = examine(n_gpus=n_gpus)
    assert code == 0, findings
    passed = {finding["item"] for finding in findings if finding["verdict"] == "ok"}
    assert {"GPU", "CuPy", *found["checks"]} <= passed
    ranks = ["two ranks"] if n_gpus == 2 else ["two ranks, one GPU", "two ranks, NCCL on one GPU"]
    for name in ranks:
        assert found[name] and {f"{name}: {each['name']}" for each in found[name]} <= passed
    for name in ("mpchain", "PyTorch")[: 1 + bool(importlib.util.find_spec("torch"))]:
        rows = [row for row in found["speed"][name] if "name" in row]
        assert len(rows) == 6 and all(row["milliseconds"]["step"] > 0 for row in rows), rows
    assert found["messages"]["check"] == ""  # such as accesses to memory without an order


FAULTS = """
import numpy as np
import mpchain.functions as F
from mpchain.distributed.communicators import nccl

right, run = F.tanh, nccl.Connection.run
F.tanh = lambda x: right(x) * (1 if isinstance(x.array, np.ndarray) else 1.01)

def sum_half(self, name, *args, stream):
    if name == "all_reduce":
        args = *args[:2], args[2] // 2, *args[3:]
    run(self, name, *args, stream=stream)

nccl.Connection.run = sum_half
"""


@needs_double
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_planted_faults(examine, tmp_path):
    """A function that is wrong by one percent on GPUs, and sums of the first half of arrays."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    code, findings, _ = examine(tmp_path)
    failed = {finding["item"]: finding for finding in findings if finding["verdict"] == "FAIL"}
    assert code == 1
    assert failed["elementwise"]["found"].startswith("differs from the CPU by 1e-02 of the largest")
    assert failed["two ranks: collectives"]["found"].startswith("differs from the CPU by ")
