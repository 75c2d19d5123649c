"""Deletes annexes from a copy of the source, and tests the rest.

``python -m tests.tools.annexes all`` deletes all annexes at once, and runs the quick tests of the
rest; ``imports`` deletes each annex in turn and imports the rest; ``each`` then also runs the quick
tests. Other options are passed to pytest. ``mpchain/annexes.py`` says what an annex is. The tests
of an annex are those in its folder below ``tests/``, those in :data:`TESTS`, and those marked
``annex("its name")``.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from mpchain.annexes import ANNEXES

ROOT = pathlib.Path(__file__).parents[2]

TESTS = {
    "captured": (
        "tests/distributed/optimizers/test_captured*.py tests/gpu/test_*graphs.py "
        "tests/gpu/test_compiles.py tests/gpu/test_planted_faults.py tests/gpu/test_cudnn.py "
        "tests/gpu/test_tf32.py"
    ),
    "gpu_kernels": "tests/gpu/conftest.py tests/gpu/test_*.py",
    "launcher": "tests/page/test_in_browser.py",
    "metrics": "tests/distributed/test_metrics_on_ranks.py",
    "profiling": (
        "tests/distributed/test_profiles.py tests/test_model_summary.py tests/launch/test_trace.py"
    ),
    "recovery": (
        "tests/distributed/elastic*.py tests/distributed/test_elastic*.py "
        "tests/launch/test_elastic_training.py tests/replays/test_replay.py"
    ),
    "replays": "tests/benchmarks/record_cost.py",
    "transforms": "tests/distributed/test_transforms_on_ranks.py",
}
"""Tests of annexes that are outside of the folders ``tests/...`` with the annexes' names."""

# Python must find only the copy, because an installation for development finds the whole source.
_SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if not f.__module__.startswith("__editable__")]
"""

_IMPORT_ALL = """import importlib, pathlib, sys
failed = 0
for path in sorted([*pathlib.Path("mpchain").rglob("*.py"), *pathlib.Path("launch").rglob("*.py")]):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if path.stem.startswith(("probe_", "__main__", "start_", "lost_")) or "packages" in path.parts:
        continue
    try:
        importlib.import_module(name)
    except Exception as error:
        failed += 1
        print(f"{name}: {type(error).__name__}: {error}")
import mpchain
for name in dir(mpchain):
    getattr(mpchain, name)
sys.exit(failed > 0)
"""


def delete(root: pathlib.Path, annexes: Sequence[str]) -> None:
    """Deletes annexes, their lines in the register and the files of their tests from a copy.

    Args:
        root: the copy.
        annexes: names of annexes.
    """
    register = root / "mpchain/annexes.py"
    text = register.read_text("utf-8")
    for annex in annexes:
        text, n = re.subn(rf'^    "{annex}": ".*",\n', "", text, flags=re.MULTILINE)
        assert n == 1, f"{register}: {annex} has {n} lines"
        for folder in ANNEXES[annex].split():
            shutil.rmtree(root / folder)
            tests = root / "tests" / folder.removeprefix("mpchain/")
            shutil.rmtree(tests, ignore_errors=True)
        for pattern in TESTS.get(annex, "").split():
            for path in root.glob(pattern):
                path.unlink()
    register.write_text(text, "utf-8")


@contextlib.contextmanager
def copy_without(annexes: Sequence[str], source: pathlib.Path = ROOT) -> Iterator[pathlib.Path]:
    """Makes a copy of the source without some annexes; it is deleted on exit.

    Args:
        annexes: names of annexes.
        source: the folder to copy.
    """
    with tempfile.TemporaryDirectory(prefix="mpchain_annexes_") as folder:
        root = pathlib.Path(folder, "source")
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*cache", "result")
        shutil.copytree(source, root, ignore=ignored)
        delete(root, annexes)
        pathlib.Path(folder, "site").mkdir()
        pathlib.Path(folder, "site", "sitecustomize.py").write_text(_SITE, "utf-8")
        yield root


def run(root: pathlib.Path, *arguments: str) -> int:
    """Runs Python in a copy, so that it finds mpchain only there; returns the exit code."""
    paths = os.pathsep.join([str(root), str(root.parent / "site")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def import_the_rest(root: pathlib.Path) -> int:
    """Imports the modules of a copy, except programs, and reads each name of mpchain; returns the
    exit code."""
    return run(root, "-W", "ignore", "-c", _IMPORT_ALL)


def test_the_rest(root: pathlib.Path, options: Sequence[str] = ()) -> int:
    """Runs the quick tests of a copy; returns the exit code."""
    chosen = ["-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow and not whole"]
    return run(root, "-m", "pytest", *chosen, *options, "tests")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the task of the command line; returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["all", "imports", "each"])
    parser.add_argument("--only", nargs="*", default=[*ANNEXES], choices=ANNEXES, metavar="ANNEX")
    chosen, options = parser.parse_known_args(arguments)
    failed = []
    for annexes in [chosen.only] if chosen.what == "all" else [[each] for each in chosen.only]:
        begin, name = time.perf_counter(), " ".join(annexes)
        print(f"== without {name}", flush=True)
        with copy_without(annexes) as root:
            code = import_the_rest(root)
            if not code and chosen.what != "imports":
                code = test_the_rest(root, options)
        failed += [name] * (code != 0)
        print(f"== without {name}: {time.perf_counter() - begin:.0f} seconds", flush=True)
    print(*(f"FAILED without {name}" for name in failed), sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
