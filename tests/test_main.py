"""Tests ``python -m mpchain``."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mpchain
from mpchain import __main__ as main_module

PROJECT = tomllib.loads((Path(mpchain.__file__).parents[1] / "pyproject.toml").read_text("utf-8"))


@pytest.mark.slow
def test_the_command():
    command = [sys.executable, "-m", "mpchain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"mpchain {mpchain.__version__} on Python ")
    assert "Extras:\n" in done.stdout and "use_ideep" not in done.stdout
    assert len(done.stdout.splitlines()) == 4 + len(main_module.BRINGS)
    command.append("--verbose")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"mpchain: {mpchain.__version__}\n" in done.stdout and "use_ideep" in done.stdout
    assert "softmax: reference: runs\n" in done.stdout
    assert "Extras:\n" in done.stdout


def test_kernels_that_run_and_why_others_do_not(without_numba):
    lines = main_module.kernels_in_use()
    reason = "numba is not installed (pip install 'mpchain[cpu]') or NUMBA_DISABLE_JIT is set"
    assert f"batch_normalization: numba_cpu: no: {reason}" in lines
    assert {"batch_normalization: reference: runs", "random_words: reference: runs"} <= set(lines)
    assert sum(line.endswith(": runs") for line in lines) == 4


def test_what_extras_lack(pretend_installed, capsys):
    requirements = [
        "numpy>=2.0",
        'scipy; extra == "cpu"',
        "numba ; extra == 'cpu'",
        f"onednn==1; (sys_platform == '{sys.platform}') and extra == 'cpu'",
        "for-others; (sys_platform == 'another') and extra == 'cpu'",
        'h5py; extra == "io"',
        'ruff; extra == "test"',
    ]
    pretend_installed(requirements, {"h5py", "scipy"}.__contains__)
    missing = main_module.missing_packages()
    assert missing.pop("cpu") == ["numba", "onednn"]
    assert missing and not any(missing.values()) and "test" not in missing
    main_module.main([])
    printed = capsys.readouterr().out
    assert re.search(
        r"\ncpu +lacks numba, onednn: pip install 'mpchain\[cpu\]' \(faster .*\)\n", printed
    )
    assert re.search(r"\nio +installed\n", printed)


def test_without_installation(pretend_installed, capsys):
    pretend_installed(None, lambda name: False)
    main_module.main([])
    assert capsys.readouterr().out.count("only its source is on the path\n") == 1


def test_every_extra_of_users_is_explained():
    extras = set(PROJECT["project"]["optional-dependencies"])
    # The extra compat brings no library, only another version of NumPy.
    of_developers = {"docs", "gpu-test", "lint", "reference", "test"}
    assert extras - set(main_module.BRINGS) <= {"compat", *of_developers}
    assert set(main_module.BRINGS) <= extras
