"""Tests print_runtime_info."""

import io
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

import mpchain
from mpchain import annexes
from mpchain.backends import cuda
from mpchain.utils.runtime_info import LAST_RUN_ON_HARDWARE, print_runtime_info


def _info():
    out = io.StringIO()
    print_runtime_info(out)
    return out.getvalue()


def _values(text):
    return {k.strip(): v for k, _, v in (line.partition(": ") for line in text.splitlines())}


def test_versions():
    values = _values(_info())
    assert values["mpchain"] == mpchain.__version__
    assert values["Python"] == platform.python_version()
    assert values["NumPy"] == np.__version__
    assert values["BLAS"]
    assert values["Platform"] == platform.platform()


@pytest.mark.parametrize("name", ["SciPy", "mpi4py"])
def test_what_is_not_installed_is_said(name, pretend_installed):
    pretend_installed([], lambda distribution: distribution != name.lower())
    values = _values(_info())
    assert values[name] == "not installed"
    assert values["mpi4py" if name == "SciPy" else "SciPy"] == "1"
    assert values["NCCL"] == "1"


def test_the_configuration_of_this_thread():
    with mpchain.using_config("user_entry", "of this thread"):
        text = _info()
    (line,) = [line for line in text.splitlines() if line.startswith("user_entry")]
    assert line.split(maxsplit=1) == ["user_entry", "of this thread"]


def test_standard_output_by_default(capsys):
    print_runtime_info()
    assert capsys.readouterr().out == _info()


@pytest.mark.parametrize("file", ["README.md", "docs/guides/gpu.md"])
def test_what_is_known_of_gpus_is_said_everywhere(file):
    state = (
        f"tested only against mock CUDA libraries; last run on a real GPU: {LAST_RUN_ON_HARDWARE}"
    )
    assert _values(_info())["GPU code"] == state
    text = (pathlib.Path(__file__).parents[1] / file).read_text()
    assert state.replace(";", ",") in " ".join(text.split())


@pytest.mark.skipif("cuda.available")
def test_why_there_is_no_gpu():
    assert _values(_info())["CuPy"] == cuda.unavailable_reason()


@pytest.mark.annex("gpu_kernels")
@pytest.mark.gpu
def test_gpu():
    values = _values(_info())
    assert values["CuPy"] == cuda.cupy.__version__
    assert values["GPU"] and int(values["CUDA runtime"])
    cudnn = annexes.find("gpu_kernels", "kernels.gpu.cudnn")
    assert values["convolution"] == (cudnn.why_no_plan() or "planned")


@pytest.mark.slow
def test_mpi_is_not_started():
    code = (
        "import io, sys, mpchain.utils.runtime_info as r; out = io.StringIO();"
        "r.print_runtime_info(out);"
        "assert 'MPI: not loaded' in out.getvalue(); assert 'mpi4py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mpi_library(monkeypatch):
    class Pretended:
        @staticmethod
        def Get_library_version():
            return "Open MPI v5.0, package\nident: 1\x00"

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Pretended)
    assert _values(_info())["MPI"] == "Open MPI v5.0, package"
