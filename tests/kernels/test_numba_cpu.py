"""Compiled loops where their cache cannot be written or read."""

import importlib.util
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

import mpchain
from mpchain.kernels import numba_cpu
from mpchain.kernels.numba_cpu import compile_loop, compile_written_loop

pytestmark = pytest.mark.slow

numba = pytest.importorskip("numba", reason="numba compiles the loops")

PROGRAM = """
import numpy as np
import mpchain
from mpchain import kernels
from mpchain.kernels import steps
from mpchain.kernels.numba_cpu import load_numba

assert load_numba()
x = np.random.default_rng(0).normal(size=(4, 8, 64, 64)).astype(np.float32)
gamma, beta = np.ones((1, 8, 1, 1), np.float32), np.zeros((1, 8, 1, 1), np.float32)
arguments = x, gamma, beta, (0, 2, 3), 1e-3
assert kernels.batch_normalization.select(*arguments).library == "numba_cpu"
y, mean, inverse_std, _ = kernels.batch_normalization(*arguments)
np.testing.assert_allclose(y, (x - x.mean((0, 2, 3), keepdims=True)) * inverse_std, 1e-4, 1e-4)
arguments = x, x, gamma, mean, inverse_std, (0, 2, 3)
assert kernels.batch_normalization_gradient.select(*arguments).library == "numba_cpu"
gx, _, g_beta = kernels.batch_normalization_gradient(*arguments)
np.testing.assert_allclose(g_beta[0, :, 0, 0], x.sum((0, 2, 3)), 1e-3, 1e-2)


def descend(p, g, lr):
    return (p - lr * g,)


steps._ELEMENTS_WORTH_COMPILING = 0
before = x.copy()
steps.take_step(descend, x, gx, [], {"lr": 0.5})
np.testing.assert_array_equal(x, before - np.float32(0.5) * gx)
print(mpchain.__file__)
"""


@pytest.mark.long
def test_neither_package_nor_home_can_be_written(tmp_path):
    package = tmp_path / "mpchain"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(pathlib.Path(mpchain.__file__).parent, package, ignore=ignore)
    # Even root cannot make a folder where a file is.
    (package / "kernels/__pycache__").touch()
    nowhere = {name: "/proc/nowhere" for name in ("HOME", "XDG_CACHE_HOME")}
    environment = {**os.environ, **nowhere, "PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(package / "__init__.py")


@pytest.fixture
def loop(tmp_path, monkeypatch):
    """A function from a file of its own, and a folder for its cache."""
    (tmp_path / "loops.py").write_text(
        "def double(x):\n    for i in range(x.size):\n        x[i] *= 2\n"
    )
    spec = importlib.util.spec_from_file_location("loops", tmp_path / "loops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    return module.double


def _check(compiled):
    for dtype in (np.float32, np.float64, np.float32):
        x = np.arange(5, dtype=dtype)
        compiled(x)
        np.testing.assert_array_equal(x, [0, 2, 4, 6, 8])


def _files_of_cache(tmp_path):
    return sorted(path.suffix for path in tmp_path.glob("cache/*/*.nb?"))


def test_the_cache_is_used(loop, tmp_path):
    _check(compile_loop(loop))
    assert _files_of_cache(tmp_path) == [".nbc", ".nbc", ".nbi"]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache(loop, tmp_path, suffix):
    _check(compile_loop(loop))
    for path in tmp_path.glob(f"cache/*/*.{suffix}"):
        path.write_bytes(b"")
    _check(compile_loop(loop))


def test_a_full_disk(loop, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        _check(compile_loop(loop))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _files_of_cache(tmp_path) == []


def test_mistakes_of_the_function_are_raised(tmp_path):
    with pytest.raises(numba.TypingError):
        compile_loop(lambda x: x.no_such_attribute)(np.zeros(1))


TEXT = "def double(x):\n    for i in range(x.size):\n        x[i] *= 2"


def test_written_loops_are_cached_beside_their_text(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_cpu, "__file__", str(tmp_path / "numba_cpu.py"))
    for _ in range(2):  # the second finds the file, and what was compiled
        _check(compile_written_loop("example", TEXT))
        (path,) = tmp_path.glob("__pycache__/*.txt")
        assert path.read_text() == TEXT and len(list(path.parent.iterdir())) == 2
        assert sorted(p.suffix for p in path.parent.glob("__pycache__/*")) == [
            ".nbc",
            ".nbc",
            ".nbi",
        ]
    path.write_text("damaged")
    _check(compile_written_loop("example", TEXT))
    assert path.read_text() == TEXT


def test_written_loops_where_no_file_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "__pycache__").touch()
    monkeypatch.setattr(numba_cpu, "__file__", str(tmp_path / "numba_cpu.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert numba_cpu._kept(TEXT).startswith(str(tmp_path / "home/.cache/mpchain/loop_"))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert numba_cpu._kept(TEXT) is None
    _check(compile_written_loop("example", TEXT))
