import collections
import json
import os
import pathlib
import shutil

import pytest

from launch import doctor, gpu_doctor, mpirun
from launch.findings import FAILURE, NOTE, OK
from mpchain.testing.kernel_cases import CASES
from tests.launch.conftest import ROOT

GOOD, BAD = {"ok": True, "error": 1.2e-7}, {"ok": False, "error": 0.5}


def judged(row, title="check: matmul", **options):
    step = gpu_doctor.Step(title, (), 60, **options)
    return [*gpu_doctor.judge(row, step, "results.jsonl", is_double=False)]


@pytest.mark.parametrize(
    ("row", "verdict", "found", "hint"),
    [
        (GOOD, OK, "as on the CPU, to 1e-07 of the largest number", ""),
        (BAD, FAILURE, "differs from the CPU by 5e-01 of the largest number", "please report it"),
        (
            {**BAD, "kernel": "cudnn, strided"},
            FAILURE,
            "differs from the CPU by 5e-01 of the largest number (cudnn, strided)",
            "please report it, with results.jsonl",
        ),
        (
            {"ok": False, "error": "Traceback ...\nValueError: no kernel\n"},
            FAILURE,
            "an exception",
            "ValueError: no kernel; the traceback is in results.jsonl",
        ),
        ({"reason": "needs PyTorch"}, NOTE, "not tested", "needs PyTorch"),
        ({"ended": "the process ended by SIGSEGV"}, FAILURE, "the process ended by SIGSEGV", "see"),
        ({"ended": "no time left"}, NOTE, "no time left", "see"),
        ({"found": "0.7 ms, 2950 GB/s", "milliseconds": 0.7}, OK, "0.7 ms, 2950 GB/s", ""),
        ({"ok": True, "seconds": 2e-3}, OK, "2 ms", ""),
    ],
)
def test_verdicts(row, verdict, found, hint):
    (finding,) = judged({"name": "matmul", **row})
    assert (finding.item, finding.verdict, finding.found) == ("matmul", verdict, found)
    assert finding.hint.startswith(hint)


@pytest.mark.parametrize(("plan", "verdict"), [("planned", OK), ("no library", NOTE)])
def test_versions(plan, verdict):
    lines = "mpchain: 0.1.0", "SciPy: 1.17", "  GPU: H200", "cuDNN: 9.28", f"  convolution: {plan}"
    findings = judged({"name": "versions", "versions": lines, "GPUs": 1})
    assert [(f.item, f.verdict, f.found) for f in findings] == [
        ("mpchain", OK, "0.1.0"),
        ("GPU", OK, "H200"),
        ("cuDNN", verdict, "9.28"),
    ]
    hint = "" if verdict == OK else "no library; slower kernels run instead"
    assert findings[-1].hint == hint


@pytest.mark.parametrize(("differences", "verdict"), [([], OK), (["cupy.tri: missing"], NOTE)])
def test_names_of_cupy(differences, verdict):
    (finding,) = judged({"name": "CuPy's names", "contract": differences})
    assert finding.verdict == verdict
    assert all(line in finding.hint for line in differences)


def test_what_a_refusal_of_nccl_on_one_gpu_is():
    """It is not a failure that NCCL refuses ranks that share a GPU."""
    options = {"title": "two ranks, A=1", "failed": NOTE, "can_go_on": False}
    (finding,) = judged({"name": "training", **BAD}, **options)
    assert (finding.item, finding.verdict) == ("two ranks, A=1: training", NOTE)


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"
PROGRAM = """
import json, os, signal, sys, time

def tell(**row):
    print(json.dumps(row), flush=True)

names = ["first", "second", "third", "fourth", "fifth"]
if sys.argv[1:2] == ["--after"]:
    del names[: names.index(sys.argv[2]) + 1]
print("the words of another library")
for name in names:
    tell(begin=name)
    if name == "second":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "third":
        time.sleep(1000)  # hangs until it is killed
    if name == "fourth":
        tell(name=name, ok=False, error="Traceback ...\\nIllegal address")
        sys.exit(3)
    tell(name=name, ok=True, error=0.0)
"""


@pytest.fixture
def run_program(tmp_path):
    """Returns a function that runs a program under the doctor, and returns the doctor and the rows
    of its file."""

    def run(text, limit=20, seconds=200):
        (tmp_path / "program.py").write_text(text)
        own = gpu_doctor.Doctor(str(tmp_path / "out"), seconds)
        own.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
        own.run_all([gpu_doctor.Step("all", ("-m", "program"), limit)])
        own.close()
        return own, _lines(pathlib.Path(own.path))

    return run


@pytest.mark.long
def test_a_crash_a_hang_and_a_lost_gpu_lose_one_result_each(run_program):
    own, rows = run_program(PROGRAM, limit=3)
    assert [(f.item, f.verdict, f.found) for f in own.findings] == [
        ("first", OK, "as on the CPU, to 0e+00 of the largest number"),
        ("second", FAILURE, "the process ended by SIGSEGV"),
        ("third", FAILURE, "no result within 3 s"),
        ("fourth", FAILURE, "an exception"),
        ("fifth", OK, "as on the CPU, to 0e+00 of the largest number"),
    ]
    assert [row["name"] for row in rows if "name" in row] == [f.item for f in own.findings]


def test_a_program_that_does_not_begin(run_program):
    own, rows = run_program("import no_such_library\n")
    (finding,) = own.findings
    assert (finding.item, finding.verdict) == ("all", FAILURE)
    assert "exit code 1: ModuleNotFoundError: No module named 'no_such_library'" in finding.found
    assert rows[0]["messages"].startswith("Traceback")


@pytest.mark.long
def test_results_are_written_when_they_are_known(run_program, tmp_path):
    """The program continues when it finds its first result in the file."""
    path = tmp_path / "out" / gpu_doctor.FILE
    look = f"while 'first' not in open({str(path)!r}).read(): pass"
    own, _ = run_program(PROGRAM.replace(f"    {CRASH}", f"    {look}"), limit=8)
    assert own.findings[1].verdict == OK


@pytest.mark.long
def test_the_end_of_the_time(run_program):
    own, _ = run_program(PROGRAM.replace(CRASH, "pass"), 90, 5)
    assert [f.verdict for f in own.findings] == [OK, OK, NOTE, NOTE]
    assert [f.found for f in own.findings[2:]] == ["no time left"] * 2


def test_folder_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        doctor.main(["--gpu", str(tmp_path / "file" / "folder")])
    assert "folder: Not a directory" in capsys.readouterr().err


def test_rehearsals_need_the_source_tree(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_doctor, "DOUBLES", tmp_path / "none")
    with pytest.raises(SystemExit):
        doctor.main(["--gpu", str(tmp_path), "--double"])
    assert "--double needs mpchain's source tree" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--double"], ["--seconds", "9"], ["--only", "nccl"]])
def test_options_that_need_the_option_gpu(words, capsys):
    with pytest.raises(SystemExit):
        doctor.main(words)
    assert f"{words[0]} needs --gpu FOLDER" in capsys.readouterr().err


needs_double = pytest.mark.skipif(not shutil.which("g++"), reason="the doubles need g++")


@pytest.fixture
def examine(start, tmp_path):
    """Returns a function that runs the doctor on the doubles, and returns exit code, findings and
    results."""

    def examine(*words, folders=(), n_gpus=2):
        path = os.pathsep.join(map(str, [*folders, ROOT]))
        variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        variables["CUPY_DOUBLE_DEVICES"] = str(n_gpus)
        command = "doctor", "--gpu", "gpu", "--double", "--json", *words
        process = start(*command, env=variables).process
        output, errors = process.communicate(timeout=800)
        assert errors == ""
        rows = _lines(tmp_path / "gpu" / gpu_doctor.FILE)
        return process.returncode, json.loads(output), rows

    return examine


@needs_double
@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_gpu(start, tmp_path):
    variables = {"PYTHONPATH": str(ROOT)}
    process = start("doctor", "--gpu", "gpu", "--json", env=variables).process
    output, _ = process.communicate(timeout=300)
    failed = [f for f in json.loads(output) if f["verdict"] == FAILURE]
    assert process.returncode == 1
    assert [f["item"] for f in failed] == ["GPU"] and failed[0]["found"] == "none that works"


@needs_double
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_gpus", [1, 2])
def test_double(examine, n_gpus):
    """Every part has a result, and nothing is wrong."""
    code, findings, rows = examine(n_gpus=n_gpus)
    assert code == 0, [f for f in findings if f["verdict"] == FAILURE]
    assert [f["item"] for f in findings if f["found"] == "no time left"] == []
    from mpchain.gpu_doctor import parts

    steps = {row["step"] for row in rows if "name" in row}
    expected = {row["title"] for row in parts.plan(is_double=True)}
    assert expected | ({"two ranks"} if mpirun.find() else set()) <= steps
    # No access to memory without an order is reported, for example.
    assert [row for row in rows if "messages" in row and "has no order" in row["messages"]] == []


FAULTS = """
import os, signal, sys, time

if "mpchain.gpu_doctor.parts" in sys.orig_argv and "plan" not in sys.orig_argv:
    import numpy as np
    import mpchain.functions as F
    from mpchain.kernels.gpu import cuda_reductions

    def plant(name, deed):
        right = getattr(F, name)

        def planted(x, *args, **options):
            y = right(x, *args, **options)
            return y if isinstance(x.array, np.ndarray) else deed(y)

        setattr(F, name, planted)

    plant("tanh", lambda y: y * 1.01)
    plant("average_pooling_2d", lambda y: os.kill(os.getpid(), signal.SIGSEGV))
    # It hangs until it is killed.
    plant("group_normalization", lambda y: time.sleep(1000))
    sys.modules["ml_dtypes"] = None
    right = cuda_reductions._along

    def along(kernel, axis, *arrays, numbers=()):
        y, x = right(kernel, axis, *arrays, numbers=numbers), arrays[0]
        if kernel.name == "softmax" and x.shape == (3, 5) and x.dtype == np.float64 and axis == 1:
            y *= 1.01
        if kernel.name == "softmax" and x.shape == (2, 3, 5, 1) and x.dtype == np.float16:
            os.abort()
        return y

    cuda_reductions._along = along
"""
LOST = {
    "elementwise": "differs from the CPU by 1e-02 of the largest number",
    "pooling": "the process ended by SIGSEGV",
    "group normalization": "no result within ",
    "MLP, mixed_bf16": "an exception",
    "softmax, matrix, float64": "differs from the CPU by 1e-02 of the largest number (cuda",
    "softmax, images, float16": "the process ended by SIGABRT",
}


@needs_double
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_planted_faults_lose_a_line_each(examine, tmp_path):
    """Planted faults are wrong, crashing or hanging functions, a wrong kernel, and a missing
    library."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    only = "check: elementwise,check: pooling,check: group,check: MLP,check: matmul,cases: softmax"
    code, findings, rows = examine("--only", only, folders=[tmp_path])
    assert code == 1
    failed = {f["item"]: f["found"] for f in findings if f["verdict"] == FAILURE}
    assert failed.keys() == LOST.keys()
    assert all(failed[item].startswith(found) for item, found in LOST.items())
    names = collections.Counter(row["name"] for row in rows if "name" in row)
    assert names.most_common(1)[0][1] == 1
    assert {"matmul", "matmul, transposed and in steps"} <= names.keys()
    assert sum(name.startswith("softmax, ") for name in names) == 3 * len(CASES["softmax"])
