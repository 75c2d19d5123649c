"""Tests the cache of compiled loops, and sums of rows."""

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
import mpchain.functions as F
from mpchain import Variable
from mpchain.kernels.cpu import compiler, loop_cache, wide_vectors
from mpchain.kernels.cpu.compiler import compile_loop, compile_written_loop
from mpchain.kernels.cpu.numba_cpu import add_rows

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]

numba = pytest.importorskip("numba", reason="needs numba, which compiles the loops")

PROGRAM = """
import numpy as np
import mpchain
from mpchain import kernels
from mpchain.kernels import steps, thresholds
from mpchain.kernels.cpu.compiler import load_numba

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


thresholds.compiled_step = 0
before = x.copy()
steps.take_step(descend, x, gx, [], lambda: {"lr": 0.5})
np.testing.assert_array_equal(x, before - np.float32(0.5) * gx)
print(mpchain.__file__)
"""


@pytest.mark.long
def test_neither_package_nor_home_can_be_written(tmp_path):
    package = tmp_path / "mpchain"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(pathlib.Path(mpchain.__file__).parent, package, ignore=ignore)
    # Even root cannot make a folder at the path of a file.
    (package / "kernels/cpu/__pycache__").touch()
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
def cache_in(monkeypatch):
    """Returns a function that sets the folder of numba's cache, as NUMBA_CACHE_DIR does."""
    return lambda path: monkeypatch.setattr(numba.config, "CACHE_DIR", str(path))


@pytest.fixture
def package_in(monkeypatch):
    """Returns a function that sets the folder of the package."""
    return lambda path: monkeypatch.setattr(compiler, "__file__", str(path / "compiler.py"))


@pytest.fixture
def loop(tmp_path, cache_in):
    """Returns a function from a separate file, whose compiled code is cached in a folder of the
    test."""
    (tmp_path / "loops.py").write_text(
        "def double(x):\n    for i in range(x.size):\n        x[i] *= 2\n"
    )
    spec = importlib.util.spec_from_file_location("loops", tmp_path / "loops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cache_in(tmp_path / "cache")
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
    assert all(path.stat().st_size > 100 for path in tmp_path.glob("cache/*/*.nb?"))


DAMAGE = """
import pathlib, sys
import numpy as np
from mpchain.kernels.cpu.compiler import compile_loop

sys.path.insert(0, ".")
from loops import double

def check():
    x = np.arange(5.0)
    compile_loop(double)(x)
    np.testing.assert_array_equal(x, [0, 2, 4, 6, 8])

check()
for path in pathlib.Path("cache").glob("*/*.nb?"):
    whole = path.read_bytes()
    for place in range(5, len(whole), max(1, len(whole) // 5)):
        damaged = bytearray(whole)
        for i in range(place, len(whole), 97):
            damaged[i] ^= 0x5a
        path.write_bytes(damaged)
        check()
        assert path.read_bytes() != damaged  # compiled anew, and kept
    whole = path.read_bytes()
"""


@pytest.mark.long
def test_flipped_bits_end_no_process(loop, tmp_path):
    """LLVM aborts the process when it loads some of these files."""
    paths = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE],
        env={**os.environ, **paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def said(monkeypatch):
    """Returns a list of the messages about folders."""
    said = []
    say = lambda text: said.append(text) if text != loop_cache.COMPILES else None
    monkeypatch.setattr(loop_cache, "say", say)
    return said


def _belong_to_another_user(path):
    if os.geteuid() != 0:
        pytest.skip("needs root, who can change the owner of files")
    os.chown(path, 12345, 12345)


def _be_writable_by_others(path):
    path.chmod(0o757)


def _be_writable_by_a_group(path):
    if os.geteuid() != 0:
        pytest.skip("needs root, who can change the owner of files")
    os.chown(path, -1, 1)
    path.chmod(0o770)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_belong_to_another_user, "which belongs to another user"),
        *(
            pytest.param(make, "which other users may write", marks=pytest.mark.long)
            for make in (_be_writable_by_others, _be_writable_by_a_group)
        ),
    ],
)
def test_folders_of_others_are_not_used(
    tmp_path, monkeypatch, cache_in, package_in, said, make, words
):
    """Files in these folders would be unpickled, and so executed."""
    (tmp_path / "__pycache__").touch()  # the package folder cannot be written
    package_in(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    folder = tmp_path / "home/.cache/mpchain"
    _check(compile_written_loop("example", TEXT))
    (path,) = folder.glob("loop_*")
    assert path.read_text() == TEXT
    assert folder.stat().st_mode & 0o777 == 0o700
    cached = sorted((folder / "__pycache__").iterdir())
    assert len(cached) == 3 and said == []

    make(folder / "__pycache__")
    times = [file.stat().st_mtime_ns for file in cached]
    _check(compile_written_loop("example", TEXT))
    assert times == [file.stat().st_mtime_ns for file in cached]
    assert len(said) == 1 and f"not cached in {folder}/__pycache__, {words}; set NUMBA" in said[0]
    make(folder)
    path.unlink()
    _check(compile_written_loop("example", TEXT))
    assert not path.exists()
    cache_in(tmp_path / "own")
    _check(compile_written_loop("example", TEXT))
    assert len([*(tmp_path / "own").glob("loop_*")]) == 1


def test_other_options_are_not_the_cached_loop(tmp_path, cache_in):
    cache_in(tmp_path)
    text = "def run(x, y):\n    for i in range(x.size):\n        y[i] = (x[i] + 1e20) - 1e20"
    y = np.empty(64)
    for _ in range(2):
        for options, expected in (({}, 0), ({"fastmath": {"reassoc", "nsz"}}, 1)):
            compile_written_loop("example", text, **options)(np.ones(64), y)
            np.testing.assert_array_equal(y, expected)


def test_wide_vectors_are_not_the_cached_loop(tmp_path, cache_in):
    cache_in(tmp_path)

    def square(x):
        for i in range(x.size):
            x[i] *= x[i]

    for is_wide in (False, True):
        x, loop = np.arange(100, dtype=np.float32), compile_loop(square, is_wide)
        loop(x)
        np.testing.assert_array_equal(x, np.arange(100) ** 2)
        (assembly,) = loop.inspect_asm().values()  # loops from the cache have none
        if wide_vectors.pipeline() is not None:
            assert ("zmm" in assembly) == is_wide


def test_files_of_others_are_passed_over(loop, tmp_path):
    _check(compile_loop(loop))
    for path in tmp_path.glob("cache/*/*"):
        _belong_to_another_user(path)
    compiled = compile_loop(loop)
    _check(compiled)
    assert {path.stat().st_uid for path in tmp_path.glob("cache/*/*")} == {os.geteuid()}


@pytest.mark.parametrize(
    ("rank", "n_lines"), [("0", 1), pytest.param("1", 0, marks=pytest.mark.long)]
)
def test_compiling_that_takes_long_is_announced(tmp_path, rank, n_lines):
    program = """
from mpchain.kernels.cpu import loop_cache
from mpchain.kernels.cpu.compiler import compile_written_loop
import numpy as np

loop_cache.PATIENCE = 0.0
for factor in range(2):
    text = f"def multiply(x):\\n    for i in range(x.size):\\n        x[i] *= {factor}"
    compile_written_loop("example", text)(np.ones(3))
"""
    paths = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for n in (n_lines, 0):  # the second time, the loops are in the cache
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **paths, "OMPI_COMM_WORLD_RANK": rank},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert (done.returncode, done.stderr.count("\n")) == (0, n), done.stderr
        assert done.stderr.count("mpchain: compiling loops for this machine") == n


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


def test_written_loops_are_cached_beside_their_text(tmp_path, package_in):
    package_in(tmp_path)
    for _ in range(2):  # the second run finds the file and the compiled loop
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


def test_written_loops_where_no_file_can_be_written(tmp_path, monkeypatch, package_in):
    (tmp_path / "__pycache__").touch()
    package_in(tmp_path)
    for home in (tmp_path / "home", "/proc/nowhere"):
        monkeypatch.setenv("HOME", str(home))
        _check(compile_written_loop("example", TEXT))
    assert len([*tmp_path.glob("home/.cache/mpchain/loop_*")]) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [7, 400])
def test_rows_are_added_in_place_in_the_order_of_numpy(n, dtype):
    random = np.random.RandomState(0)
    x, rows = random.randn(n, 40).astype(dtype), random.randn(300, 2, 40).astype(dtype)
    rows[3, 0, :3], rows[4, 1, 0], rows[5, 1, 0] = np.nan, np.inf, -np.inf
    ids = random.randint(-n, n, (300, 2))
    expected = x.copy()
    with np.errstate(invalid="ignore"):
        np.add.at(expected, ids, rows)
    assert add_rows(x, rows, ids)
    np.testing.assert_array_equal(x, expected)
    ids[7, 1] = n
    with pytest.raises(IndexError, match=f"index {n} is out of bounds"):
        F.scatter_add(x, ids, rows)
    np.testing.assert_array_equal(x, expected)  # nothing was added
    assert not add_rows(x.astype(np.float16), rows, ids)
    assert not add_rows(x.T.copy().T, rows, ids)
    with mpchain.using_config("kernels", ("reference",)):
        assert not add_rows(x, rows, ids)


def test_three_orders_of_derivatives_of_scatter_add():
    random = np.random.RandomState(0)
    a, b, ids = random.randn(9, 40), random.randn(300, 40), random.randint(-9, 9, 300)

    def results():
        x, y = Variable(a), Variable(b)
        found = [F.sum(F.scatter_add(x, ids, y) ** 4)]
        for _ in range(3):
            grads = mpchain.grad([found[-1]], [x, y], enable_double_backprop=True)
            found += [F.sum(grads[0] ** 2) + F.sum(grads[1] ** 3), *grads][::-1]
        return [y.array for y in found]

    found = results()
    with mpchain.using_config("kernels", ("reference",)):
        for y, expected in zip(found, results(), strict=True):
            np.testing.assert_allclose(y, expected, 1e-9)
