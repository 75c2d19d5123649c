"""Tests the GPUs of this host: runs parts of :mod:`mpchain.gpu_doctor`, each in a separate process.

Every result is written to a file as a line as soon as it is known, so a test that hangs, crashes
or takes too long does not lose the results of others.
"""

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import mpirun
from .findings import FAILURE, NOTE, OK, Finding

SECONDS = 570
FILE = "results.jsonl"
DOUBLES = pathlib.Path(__file__).parents[1] / "tests" / "gpu" / "doubles"
AT_ONCE = 6
TIME_TO_PLAN = 60.0
TIME_OF_RANKS = 80
LEAST = 2.0  # seconds that a process must have left to begin
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE=1"  # it makes NCCL accept two ranks on one GPU
VERSIONS = ("mpchain", "GPU", "CUDA driver", "CUDA runtime", "CuPy", "NCCL")
PARTS = "mpchain.gpu_doctor.parts"


class Step(NamedTuple):
    """A program that prints results.

    Attributes:
        title: the name of the step in the file of results and for ``--only``.
        command: the arguments of Python that run the program.
        limit: the most seconds until the next result.
        at_once: whether other steps may run at the same time.
        failed: the verdict if a result is a failure.
        can_go_on: whether the program has the option ``--after``, which names the test to continue
            after.
    """

    title: str
    command: tuple[str, ...]
    limit: float
    at_once: bool = False
    failed: str = FAILURE
    can_go_on: bool = True


class Doctor:
    """Runs steps, and writes and judges their results.

    Args:
        folder: the folder of the file of results, created if it does not exist.
        seconds: the time limit: when it has passed, no step begins, and running steps are ended.
        is_double: whether the tests' double of CuPy replaces the GPU.
        say: a function that is called with each finding as soon as it is known.

    Attributes:
        path: the path of the file of results.
        environment: the environment variables of the processes.
        rows: all results.
        findings: the findings about these results.
    """

    def __init__(
        self,
        folder: str,
        seconds: float = SECONDS,
        is_double: bool = False,
        say: Callable[[Finding], None] = lambda finding: None,
    ):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, FILE)
        self._file = open(self.path, "a", encoding="utf-8", buffering=1)
        self._end, self._lock = time.monotonic() + seconds, threading.Lock()
        self._begin = time.monotonic()
        self.is_double, self._say = is_double, say
        self.rows: list[dict] = []
        self.findings: list[Finding] = []
        self.environment = dict(os.environ)
        paths = [str(DOUBLES), str(DOUBLES / "rehearsal")] if is_double else []
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, *sys.path]))

    def run(self, step: Step) -> list[dict]:
        """Runs a step and returns its results. If a test ends the process, the step continues with
        the next test if it can go on."""
        after, rows = None, []
        while True:
            told, begun, why = self._run_once(step, after)
            rows += told
            if why is None:
                return rows
            if why != "":
                rows.append(self.note(step, {"name": begun or step.title, "ended": why}))
            if begun is None or not step.can_go_on:
                return rows
            after = begun

    def _run_once(self, step, after):
        """Returns the results, the name of the last test that had begun, and why the process ended:
        None if it finished, an empty string if it died after sending the last test's result."""
        left = self._end - time.monotonic()
        if left < LEAST:
            return [], None, "no time left"
        words = [*step.command]
        words[2:2] = ["--after", after] if after else []
        command = [sys.executable, *words]
        rows, begun, is_told = [], after, False
        with tempfile.TemporaryFile("w+", errors="replace") as messages:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": messages}
            process: Any = subprocess.Popen(
                command,
                **pipes,
                env=self.environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            watch = _Watch(process, min(step.limit, left))
            for line in process.stdout or ():
                watch.restart(min(step.limit, max(self._end - time.monotonic(), 0)))
                row = _parsed(line)
                if "begin" in row:
                    begun, is_told = row["begin"], False
                elif row:
                    rows.append(self.note(step, row))
                    is_told = True
            code = process.wait()
            watch.stop()
            process.stdout.close()
            messages.seek(0)
            said = messages.read()[-6000:].strip()
        if said or code:
            self._write({"step": step.title, "exit code": code, "messages": said})
        if code == 0:
            return rows, begun, None
        if watch.has_ended:
            why = f"no result within {step.limit:.0f} s"
            why = "no time left" if time.monotonic() >= self._end else why
        else:
            why = _why(code)
            why += f": {said.rpartition(chr(10))[2]}" if said and code > 0 else ""
        return rows, begun, "" if is_told and not watch.has_ended else why

    def _write(self, row):
        with self._lock:
            second = round(time.monotonic() - self._begin, 1)
            self._file.write(json.dumps({**row, "second": second}) + "\n")
            self._file.flush()

    def note(self, step: Step, row: dict) -> dict:
        """Writes a result, judges it and returns it."""
        self._write({"step": step.title, **row})
        findings = [*judge(row, step, self.path, self.is_double)]
        with self._lock:
            self.rows.append(row)
            self.findings += findings
            for finding in findings:
                self._say(finding)
        return row

    def run_all(self, steps: Iterable[Step]) -> None:
        """Runs steps in order; adjacent steps that allow it run at the same time."""
        n = min(AT_ONCE, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            waiting: list = []
            for step in steps:
                if not step.at_once:
                    _finish(waiting)
                    self.run(step)
                else:
                    waiting.append(pool.submit(self.run, step))
            _finish(waiting)

    def found(self, key: str) -> Any:
        """Returns a value of the first result that has this key; None if no result has it."""
        return next((row[key] for row in self.rows if key in row), None)

    def close(self) -> None:
        """Closes the file of results."""
        self._file.close()


def _finish(waiting):
    while waiting:
        waiting.pop(0).result()


class _Watch:
    """Ends a process and its descendants after a time, unless the timer is restarted."""

    def __init__(self, process, seconds):
        self._process, self.has_ended = process, False
        self._timer = self._make(seconds)

    def _make(self, seconds):
        timer = threading.Timer(seconds, self._kill)
        timer.daemon = True
        timer.start()
        return timer

    def _kill(self):
        self.has_ended = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def restart(self, seconds):
        self._timer.cancel()
        self._timer = self._make(seconds)

    def stop(self):
        self._timer.cancel()


def _parsed(line):
    """Parses a line of JSON; returns an empty dict for any other line, which a library printed."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) and ("begin" in row or "name" in row) else {}


def _why(code):
    if code < 0:
        return f"the process ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def check_gpu(
    folder: str,
    seconds: float = SECONDS,
    is_double: bool = False,
    only: str = "",
    say: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Returns the findings about GPUs.

    Args:
        folder: The folder of ``results.jsonl``, to which all results are written as lines of JSON.
        seconds: The time limit, after which no further step is run, and running steps are ended.
        is_double: Whether the tests' double of CuPy replaces the GPU.
        only: A word, or several words joined by commas: only steps whose title contains a word are
            run, and the first step, which describes the machine.
        say: A function that is called with each finding as soon as it is known.

    Example:
        >>> check_gpu("gpu")  # doctest: +SKIP
    """
    doctor = Doctor(folder, seconds, is_double, say)
    try:
        words = ["-m", PARTS, "plan", *["double"] * is_double]
        first = Step("plan", tuple(words), TIME_TO_PLAN, can_go_on=False)
        plan = [*_planned(doctor, first)]
        doctor.run_all(plan[:1])  # the first step describes the machine
        if doctor.found("GPUs"):
            steps = itertools.chain(plan[1:], _ranks(doctor), _suites(doctor))
            words = [word for word in only.split(",") if word]
            wanted = lambda step: not words or any(word in step.title for word in words)
            doctor.run_all(filter(wanted, steps))
        return summary(doctor.findings)
    finally:
        doctor.close()


def _planned(doctor, step) -> Iterator[Step]:
    command = [sys.executable, *step.command]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=doctor.environment,
            timeout=step.limit,
            check=False,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        why = "" if done.returncode == 0 else f"{_why(done.returncode)}: {done.stderr.strip()}"
    except subprocess.TimeoutExpired:
        rows, why = [], f"no result within {step.limit:.0f} s"
    if why:
        doctor.note(step, {"name": "plan", "ended": why})
    for row in rows:
        command = "-m", PARTS, *row["arguments"]
        yield Step(row["title"], command, row["limit"], row["at_once"])


def _ranks(doctor) -> Iterator[Step]:
    """Yields a step of two ranks, each with its own GPU. If there is only one GPU, NCCL must refuse
    to share it, and a second step sets a variable that allows sharing."""
    try:
        is_there = mpirun.find()
    except mpirun.UnknownMpirunError as error:
        is_there, reason = None, str(error)
    else:
        reason = f"this test needs mpirun: {mpirun.INSTALL}"
    if not is_there:
        doctor.note(Step("two ranks", (), 0), {"name": "two ranks", "reason": reason})
        return
    for variable in (None, SHARED)[: 2 if doctor.found("GPUs") == 1 else 1]:
        title = f"two ranks{f', {variable}' if variable else ''}"
        launcher = ["-m", __package__, "-n", "2", "--no-prefix", f"--timeout={TIME_OF_RANKS - 10}"]
        launcher += ["--env", variable] if variable else []
        program = *launcher, "-m", "mpchain.gpu_doctor.ranks"
        # With the variable, NCCL either works or refuses; neither is a failure.
        failed = NOTE if variable else FAILURE
        yield Step(title, program, TIME_OF_RANKS, failed=failed, can_go_on=False)


def _suites(doctor) -> Iterator[Step]:
    """Yields the tests of kernels, then a few under compute-sanitizer, if this is a source tree and
    no double replaces the GPU."""
    tests = DOUBLES.parents[1]
    if doctor.is_double or not (tests / "kernels").is_dir():
        return
    options = "-m gpu -o filterwarnings=default -p no:cacheprovider --maxfail=40 -q".split()
    pytest = ["-m", PARTS, "command", sys.executable, "-m", "pytest", *options]
    few = str(tests / "kernels" / "test_kernels.py"), "-k", "float32 and normalization"
    yield Step("tests of kernels", (*pytest, str(tests / "kernels")), 150, can_go_on=False)
    for tool in ("memcheck", "racecheck", "initcheck"):
        sanitizer = ["compute-sanitizer", "--error-exitcode", "86", "--tool", tool]
        command = ["-m", PARTS, "command", *sanitizer, *pytest[3:], *few]
        yield Step(f"compute-sanitizer {tool}", tuple(command), 60, can_go_on=False, failed=NOTE)


def judge(row: dict, step: Step, path: str, is_double: bool) -> Iterator[Finding]:
    """Yields the findings about a result.

    Example:
        >>> step = Step("check: matmul", (), 60)
        >>> (finding,) = judge({"name": "matmul", "ok": True, "error": 1e-7}, step, "", False)
        >>> finding.verdict, finding.found
        ('ok', 'as on the CPU, to 1e-07 of the largest number')
    """
    is_of_part = step.can_go_on or row["name"] == step.title
    name = row["name"] if is_of_part else f"{step.title}: {row['name']}"
    if "ended" in row:
        verdict = NOTE if row["ended"] == "no time left" else step.failed
        yield Finding(name, verdict, row["ended"], f"see {path}")
    elif "versions" in row:
        yield from _judge_versions(row, name)
    elif "contract" in row:
        yield from _judge_names(row["contract"], path)
    elif "reason" in row:
        yield Finding(name, NOTE, "not tested", row["reason"])
    elif row.get("ok") is False:
        yield _failure(name, row, step, path)
    elif "seconds" in row and "found" not in row:
        yield Finding(name, OK, f"{1e3 * row['seconds']:.3g} ms")
    elif "found" in row:
        is_time = is_double and "milliseconds" in row
        hint = "not measured on a GPU: CuPy is the double of the tests" if is_time else ""
        yield Finding(name, NOTE if is_time else OK, row["found"], hint)
    elif "error" in row:
        yield Finding(name, OK, f"as on the CPU, to {row['error']:.0e} of the largest number")


def _failure(name, row, step, path):
    if isinstance(row["error"], str):
        reason = row["error"].strip().rpartition("\n")[2]
        return Finding(name, step.failed, "an exception", f"{reason}; the traceback is in {path}")
    found = f"differs from the CPU by {row['error']:.0e} of the largest number"
    kernel = f" ({row['kernel']})" if "kernel" in row else ""
    return Finding(name, step.failed, found + kernel, f"please report it, with {path}")


def _judge_versions(row, name):
    if row.get("ok") is False:
        yield Finding("GPU", FAILURE, "none that works", row["error"])
    versions = dict(line.strip().partition(": ")[::2] for line in row["versions"])
    for item in filter(versions.__contains__, VERSIONS):
        is_missing = "not installed" in versions[item]
        yield Finding(item, NOTE if is_missing else OK, versions[item])
    if "convolution" in versions:
        plans, reason = versions["convolution"] == "planned", versions["convolution"]
        hint = "" if plans else f"{reason}; slower kernels run instead"
        yield Finding("cuDNN", OK if plans else NOTE, versions["cuDNN"], hint)


def _judge_names(differences, path):
    """Yields a finding about the names that CuPy exports, if they were compared."""
    if differences:
        found = f"{len(differences)} differ from the CuPy with which mpchain is tested"
        hint = f"these matter only if a check fails; {differences[0]}; all are in {path}"
        yield Finding("CuPy's names", NOTE, found, hint)
    elif differences is not None:
        yield Finding("CuPy's names", OK, "as in the CuPy with which mpchain is tested")


def summary(findings: list[Finding]) -> list[Finding]:
    """Merges the findings about an operation's successful cases into one finding.

    Example:
        >>> good = [Finding(f"softmax, {i}, float32", OK, "as on the CPU") for i in range(3)]
        >>> [(f.item, f.found) for f in summary(good)]
        [('softmax', '3 cases as on the CPU')]
    """
    counts = collections.Counter(_operation(f) for f in findings)
    merged = {key for key, n in counts.items() if key is not None and n > 1}
    result, seen = [], set()
    for finding in findings:
        key = _operation(finding)
        if key not in merged:
            result.append(finding)
        elif key not in seen:
            seen.add(key)
            result.append(Finding(key, OK, f"{counts[key]} cases as on the CPU"))
    return result


def _operation(finding):
    """Returns the operation of a successful case; None for other findings."""
    words = finding.item.split(", ")
    is_case = len(words) > 2 and words[-1] in ("float16", "float32", "float64")
    is_well = finding.verdict == OK and finding.found.startswith("as on the CPU")
    return words[0] if is_case and is_well else None
