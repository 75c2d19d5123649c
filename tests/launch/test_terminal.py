"""Tests what the launcher writes to a terminal and to a file."""

import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from launch import mpirun
from tests.launch.conftest import LIMIT, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mpirun.find() is None, reason="needs mpirun: pip install 'mpchain[mpi]'"),
]

TRAINING = """
    import os
    from mpchain import testing
    from mpchain.training import extensions

    trainer = testing.get_trainer_with_mock_updater((2, "epoch"))
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    trainer.writes_reports = rank == 0
    speak = lambda trainer: print("rank", rank, "speaks")
    trainer.extend(speak, trigger=(7, "iteration"), name="speak")
    values = {"validation/main/" + name: 0.5 for name in ("loss", "accuracy", "precision")}
    trainer.extend(lambda trainer: trainer.observation.update(values), name="see", priority=300)
    extensions.standard_reports(trainer)
    trainer.run()
"""


def screen_of(text, columns):
    """Returns the final lines of a terminal, which wraps long lines."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            if piece.startswith("\x1b[K"):
                shown, piece = "", piece.removeprefix("\x1b[K")
            assert "\x1b" not in piece
            shown = piece + shown[len(piece) :]
        lines += [shown[i : i + columns] for i in range(0, max(len(shown), 1), columns)]
    return lines


def run_on_terminal(arguments, columns, folder):
    """Runs the launcher on a terminal; returns its exit code and its output."""
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "launch", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    pieces = []
    try:
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    except OSError:  # on Linux, this error marks the end
        pass
    os.close(terminal)
    return process.wait(timeout=LIMIT), b"".join(pieces).decode()


EXPECTED = """\
[0] epoch   iteration  validation  validation  validation  elapsed
[0]                    /main/loss  /main       /main       _time
[0]                                /accuracy   /precision
[0] 1       10         0.5         0.5         0.5         T
[0] 2       20         0.5         0.5         0.5         T
[0] 100% |################| epoch 2.00, 20 it, R
[0] 2 epochs (20 iterations) in T: validation/main/loss 0.5,
[0]   validation/main/accuracy 0.5, validation/main/precision 0.5
[0] results are in result
"""


def without_times(lines):
    texts = [re.sub(r"\d:\d\d:\d\d|\d\.\d{3,}\S*$", "T", line) for line in lines]
    texts = [re.sub(r"[█▏▎▍▌▋▊▉]", "#", re.sub(r"20 it, .*", "20 it, R", text)) for text in texts]
    return [text.rstrip() for text in texts]


def test_bar_table_and_closing_lines_on_a_terminal(script, tmp_path):
    pytest.importorskip("tqdm")
    code, output = run_on_terminal(["-n", 2, script(TRAINING)], 80, tmp_path)
    lines = screen_of(output, 80)
    assert code == 0, output
    # Progress bars were drawn before the end.
    assert re.search(r"\x1b\[K\[0\] +\d\d?% \|", output)
    assert all(
        re.search(r"^\[([01])\] rank \1 speaks$", line) for line in lines if "speaks" in line
    )
    assert without_times(line for line in lines if re.match(r"\[0\] (?!rank)", line)) == (
        EXPECTED.splitlines()
    )


def test_a_file_gets_the_plain_table(script, run):
    code, output, errors = run("-n", 2, script(TRAINING), env={"MPCHAIN_COLUMNS": "80"})
    assert code == 0, errors
    assert "\r" not in output and "%" not in output
    table = [line for line in output.splitlines() if re.match(r"\[0\] (?!rank)", line)]
    names = ["epoch", "iteration", *(f"validation/main/{n}" for n in ("loss", "accuracy"))]
    assert table[0].split() == ["[0]", *names, "validation/main/precision", "elapsed_time"]
    assert [line.split()[1] for line in table[1:3]] == ["1", "2"]
    assert table[-1] == "[0] results are in result"
    assert len(table) == 5
