import os
import pathlib
import signal
import subprocess
import sys

import pytest

import launch
from launch import start_program

START = pathlib.Path(launch.__file__).with_name("start_program.py")


@pytest.fixture
def begin(tmp_path):
    """Yields a function that starts start_program.py as the supervisor does, and returns the
    process and the end of its pipe from which the supervisor reads."""
    processes = []

    def begin(*arguments):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, START, str(writer), str(int(signal.SIGUSR1)), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[writer],
            cwd=tmp_path,
            text=True,
        )
        os.close(writer)
        processes.append((process, os.fdopen(reader)))
        return processes[-1]

    yield begin
    for process, pipe in processes:
        process.kill()
        process.communicate()
        pipe.close()


@pytest.mark.parametrize("module", [[], ["-m"]])
def test_program_sees_what_python_would_show_it(begin, script, tmp_path, module):
    (tmp_path / "folder").mkdir()
    script("import sys; print(__name__, sys.argv, sys.path[0])", "folder/task.py")
    name = "folder.task" if module else "folder/task.py"
    process, _ = begin(*module, name, "-x", "a b")
    expected = subprocess.run(
        [sys.executable, *module, name, "-x", "a b"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.communicate() == (expected.stdout, "")


def test_signal_shows_where_the_program_is(begin, script):
    path = script("""
        import time

        def wait_for_ever():
            print("waiting", flush=True)
            while True:
                time.sleep(60)  # hangs until it is killed

        wait_for_ever()
    """)
    process, pipe = begin(str(path))
    process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    lines = [pipe.readline() for _ in range(2)]
    assert lines[0][0] == chr(start_program.STARTED)
    lines[0] = lines[0][1:]
    assert lines[0] == f"Current thread 0x{lines[0][17:33]} (most recent call first):\n"
    assert f'File "{path}", line' in lines[1] and "in wait_for_ever" in lines[1]
    assert process.poll() is None


def test_traceback_begins_with_the_program(begin, script):
    path = script("def f():\n    raise ValueError('boom')\n\nf()\n")
    process, _ = begin(str(path))
    errors = process.communicate()[1].splitlines()
    assert process.returncode == 1
    assert errors[:2] == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 4, in <module>',
    ]
    assert errors[-1] == "ValueError: boom"


def test_error_of_the_start_is_shown_whole(begin):
    process, _ = begin("missing.py")
    assert "missing.py" in process.communicate()[1]
    assert process.returncode == 1


def test_exit_code(begin, script):
    process, _ = begin(str(script("raise SystemExit(7)")))
    assert process.communicate() == ("", "")
    assert process.returncode == 7
