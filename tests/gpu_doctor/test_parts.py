import json
import sys

import numpy as np
import pytest

from mpchain import kernels
from mpchain.backends import cuda
from mpchain.gpu_doctor import kernels as of_kernels
from mpchain.gpu_doctor import parts
from mpchain.gpu_doctor.check import NotHere, outcome
from mpchain.testing.kernel_cases import CASES


def test_the_plan_names_parts_once():
    for is_double in (False, True):
        rows = [*parts.plan(is_double)]
        titles = [row["title"] for row in rows]
        assert len({*titles}) == len(titles) and titles[0] == "machine"
        assert {row["arguments"][0] for row in rows} == parts.PARTS.keys() - {"command"}
        assert all(row["limit"] > 0 for row in rows)


def test_a_part_tells_what_begins_and_what_it_finds(capsys):
    assert parts.main(["command", sys.executable, "-c", "print('word')"]) == 0
    begin, row = map(json.loads, capsys.readouterr().out.splitlines())
    assert begin == {"begin": sys.executable}
    assert row == {"name": sys.executable, "ok": True, "found": "word"}
    parts.main(["command", sys.executable, "-c", "raise SystemExit(4)"])
    assert "exit code 4" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_part_goes_on_after_a_name(capsys):
    parts.main(["--after", "softmax, vector, float64", "cases", "softmax"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"begin": "softmax, long rows, float16"}
    assert all(row["ok"] for row in rows[1::2]) and len(rows) == 12


def test_outcomes():
    def lacks():
        raise NotHere("a library")

    assert outcome(lacks) == {"reason": "needs a library"}
    assert "ZeroDivisionError" in outcome(lambda: 1 / 0)["error"]


@pytest.mark.gpu
def test_nccl_is_tried_in_a_graph_too(double, capsys):
    double.reset()
    parts.main(["nccl"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()][1::2]
    n_found = sum(row.get("found") == "sums, also in a graph" for row in rows)
    n_graphs = sum(n for (name, _), n in double.launches.items() if name == "graph")
    assert n_graphs == n_found > 0


@pytest.mark.gpu
def test_a_lost_gpu_ends_the_process(monkeypatch, capsys):
    def part():
        yield "first", lambda: {"ok": False, "error": "illegal address"}
        yield "second", lambda: {"ok": True, "found": "never"}

    class Lost(cuda.cupy.cuda.Device):
        def synchronize(self):
            raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setitem(parts.PARTS, "nccl", part)
    assert parts.main(["nccl"]) == 0  # the GPU still works
    monkeypatch.setattr(cuda.cupy.cuda, "Device", Lost)
    capsys.readouterr()
    assert parts.main(["nccl"]) == parts.GPU_IS_LOST
    assert "second" not in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("operation", CASES)
def test_cases_of_the_suite(operation):
    for name, find in of_kernels.cases(operation):
        row = find()
        assert row["ok"], (name, row)


@pytest.mark.gpu
def test_a_wrong_kernel_is_found(monkeypatch):
    operation = kernels.operations["concatenate"]
    (kernel,) = (k for k in operation.kernels if k.library == "cuda_joining")
    wrong = kernel._replace(compute=lambda *args: kernel.compute(*args) * np.float32(1.01))
    monkeypatch.setattr(operation, "_kernels", [wrong, operation.kernels[-1]])
    row = dict(of_kernels.cases("concatenate"))["concatenate, rows, float32"]()
    assert not row["ok"] and row["kernel"] == "cuda_joining, contiguous"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["basics", "speeds", "nccl", "plans", "machine"])
def test_parts_that_measure(name):
    for _, find in parts.PARTS[name]():
        assert outcome(find).get("ok") is not False
