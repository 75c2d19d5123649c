import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from launch import binding, inquiry, mpirun, reach

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 60

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks this folder as slow: most tests start the launcher."""
    folder = f"{pathlib.Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker("slow")


def apart(text):
    """Returns output in which a line that several ranks printed is repeated for each rank."""
    if not text or not re.search(r"^\[\d+[,-]", text, re.MULTILINE):
        return text
    lines = []
    for line in text.splitlines(keepends=True):
        found = re.match(r"\[([\d,-]*[,-][\d,-]*)\] ", line)
        spans = [span.split("-") for span in found[1].split(",")] if found else []
        ranks = [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)]
        lines += [f"[{rank}] {line[found.end() :]}" for rank in ranks] or [line]
    return "".join(lines)


class Launched:
    """A running launcher; `stop` ends it and its process group."""

    def __init__(self, arguments, folder, before=(), **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
        self.process = subprocess.Popen(
            [*before, sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})},
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            **options,
        )

    def finish(self):
        """Returns exit code, standard output and standard error, in which each rank has its own
        lines."""
        output, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, apart(output), apart(errors)

    def read_lines(self, number):
        """Returns ``number`` or more lines of standard output, empty ones if it has ended; the
        test's time limit applies."""
        lines = []
        while len(lines) < number:
            line = self.process.stdout.readline()
            lines += apart(line).splitlines() if line else [""] * number
        return lines

    def mpirun(self):
        """Returns the process ID of mpirun."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        (child,) = pathlib.Path(path).read_text().split()
        return int(child)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a launcher; all started processes end with the test."""
    launched = []

    def start(*arguments, command=("-m", "launch"), folder=tmp_path, **options):
        launched.append(Launched([*command, *map(str, arguments)], folder, **options))
        return launched[-1]

    yield start
    for each in launched:
        each.stop()


@pytest.fixture
def run(start):
    """Returns a function that runs a launcher to its end, and returns exit code, standard output
    and standard error."""
    return lambda *arguments, **options: start(*arguments, **options).finish()


@pytest.fixture
def set_cores(monkeypatch):
    """Returns a function that sets the number of cores of this host."""
    return lambda n: monkeypatch.setattr(binding, "cores", lambda: n)


@pytest.fixture
def local_hosts(monkeypatch):
    """Returns a function that sets which host names mean this host."""
    return lambda *hosts: monkeypatch.setattr(reach, "is_local", hosts.__contains__)


@pytest.fixture
def install_mpirun(monkeypatch):
    """Returns a function that sets which mpirun is found, or why none is suitable."""

    def install(found):
        def find(kind="auto", in_slurm=False):
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(mpirun, "find", find)

    return install


@pytest.fixture
def answer_commands(monkeypatch):
    """Returns a function that sets the answers of commands that run on hosts."""

    def answer(code, output, errors=""):
        answers = lambda commands, timeout: dict.fromkeys(commands, (code, output, errors))
        monkeypatch.setattr(inquiry, "run_on_all", answers)

    return answer


@pytest.fixture
def script(tmp_path):
    """Returns a function that writes a script."""

    def script(text, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return script
