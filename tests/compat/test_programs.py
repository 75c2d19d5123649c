"""Runs small programs in the style of 2019, which import chainer.

``printed.txt`` contains the last line that each program printed with Chainer 7.8.1 and NumPy 1.23.
"""

import math
import pathlib
import runpy
import subprocess
import sys
import unittest
import warnings

import pytest

from tests.distributed import ranks

pytestmark = pytest.mark.slow

PROGRAMS = pathlib.Path(__file__).parent / "programs"
LINES = (PROGRAMS / "printed.txt").read_text("utf-8").splitlines()
PRINTED = dict(line.split(": ", 1) for line in LINES)
WITH_CHILDREN = {"lambda_in_multiprocess_iterator"}  # this program needs its own __main__


def values(line):
    """Returns the numbers and the words in a line."""
    found = []
    for word in line.split():
        try:
            found.append(float(word))
        except ValueError:
            found.append(word)
    return found


def equal(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)


def test_each_program_has_its_line():
    assert sorted(PRINTED) == sorted(path.stem for path in PROGRAMS.glob("*.py"))


IN_ANNEXES = {"private_state": ["interop"]}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.annex(annex) for annex in IN_ANNEXES.get(name, ())])
        for name in sorted(PRINTED)
    ],
)
def test_program(name, tmp_path, monkeypatch, capsys):
    program = str(PROGRAMS / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    if name in WITH_CHILDREN:
        command = [sys.executable, "-m", "mpchain.compat", program]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        output = run.stdout
    else:
        with warnings.catch_warnings():
            # pytest would raise these warnings; a program that runs by itself only prints them.
            warnings.simplefilter("ignore")
            try:
                runpy.run_path(program, run_name="__main__")
            # A skipped test in the program must not skip this test.
            except unittest.SkipTest as error:
                pytest.fail(f"{name} skips: {error}")
        output = capsys.readouterr().out
    found, expected = values(output.splitlines()[-1]), values(PRINTED[name])
    assert len(found) == len(expected) and all(map(equal, found, expected)), (found, expected)


@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(*row, marks=pytest.mark.long)
        for row in [
            ("train", "trained 3"),
            ("functions", "communicated"),
            ("checkpointer", "resumed 4"),
            ("pure_nccl", "refused"),
        ]
    ],
)
def test_program_of_chainermn(name, line, tmp_path):
    program = PROGRAMS.parent / "chainermn_programs" / f"{name}.py"
    command = ["-W", "ignore", "-m", "mpchain.compat", str(program), str(tmp_path)]
    status, outputs, ours = ranks.run(2, command)
    assert status == 0, (outputs, ours)
    assert line in outputs[0].splitlines()


@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_behaviours_of_chainermn(n, tmp_path):
    folder = PROGRAMS.parent / "chainermn_programs"
    program = ["-W", "ignore", "-m", "mpchain.compat", str(folder / "behaviours.py")]
    status, outputs, ours = ranks.run(n, [*program, str(tmp_path)])
    assert status == 0, (outputs, ours)
    expected = (folder / f"behaviours_{n}.txt").read_text("utf-8").splitlines()
    assert [line for line in outputs[0].splitlines() if not line.startswith("mpchain")] == expected


@pytest.mark.long
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")
def test_tied_parameters_on_ranks():
    folder = PROGRAMS.parent / "chainermn_programs"
    program = ["-W", "ignore", "-m", "mpchain.compat", str(folder / "tied.py"), "3"]
    status, outputs, ours = ranks.run(2, program)
    assert status == 0, (outputs, ours)
    expected = (folder / "tied_2.txt").read_text("utf-8").splitlines()
    assert [line for line in outputs[0].splitlines() if not line.startswith("mpchain")] == expected
