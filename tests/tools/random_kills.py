"""Kills ranks, mpirun or the launcher of a training job at random moments, and checks what remains.

    python -m tests.tools.random_kills [--kills 50] [--ranks 3] [--restarts] [--seed 0]

Each job trains examples/mnist on the digits. After a kill, the job must end with an exit code other
than 0, no process of the job may be alive 10 s later, and if a rank was killed, the report must
name the rank. With --restarts, the launcher is not killed, the job must end without error, and its
log must, except for times, equal the log of an undisturbed run in all digits.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "mnist" / "train_mnist.py"
# This variable in the environment of a process shows that it belongs to the job.
MARK = "MPCHAIN_TEST_JOB"
TIME_TO_VANISH = 10.0
LIMIT = 180.0


class TrainingJob:
    """A launcher that trains; a mark in the environment identifies its processes.

    Args:
        folder: The folder of the results.
        ranks: The number of ranks.
        epochs: The number of epochs.
        options: Further options of the launcher.
    """

    def __init__(self, folder: str, ranks: int, epochs: int, options=()):
        self.folder, self.ranks = folder, ranks
        self._mark = os.urandom(8).hex()
        out = os.path.join(folder, "out")
        shutil.rmtree(out, ignore_errors=True)
        train = [str(EXAMPLE), "--epoch", str(epochs), "--out", out, "--snapshot", "10"]
        self._errors = open(os.path.join(folder, "errors"), "w+b")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "launch", "-n", str(ranks), "--checkpoint-dir", out),
                *(*options, *train, "--double"),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: self._mark, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        self.log_path = os.path.join(out, "log")
        self.snapshots = lambda: [name for name in _list(out) if name.startswith("snapshot_")]

    @property
    def errors(self) -> str:
        """The standard error of the launcher and the ranks."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def processes(self) -> dict[int, list[str]]:
        """Returns the command lines of the job's living processes."""
        found = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                mark = f"{MARK}={self._mark}".encode()
                if name.isdigit() and mark in pathlib.Path(f"/proc/{name}/environ").read_bytes():
                    line = pathlib.Path(f"/proc/{name}/cmdline").read_bytes()
                    found[int(name)] = line.decode(errors="replace").split("\0")
        return found

    def wait_for_training(self):
        """Waits until the first snapshot is written, or the launcher has ended."""
        self._wait(lambda: self.snapshots() or self.process.poll() is not None)

    def victims(self, kind: str) -> list[int]:
        """Returns the IDs of the processes of a kind: ``rank``, ``mpirun`` or ``launcher``."""
        if kind == "launcher":
            return [self.process.pid]
        word = {"rank": "start_program.py", "mpirun": "start_rank.py"}[kind]
        lines = self.processes()
        named = {each for each, line in lines.items() if any(w.endswith(word) for w in line)}
        if kind == "rank":
            return sorted(named)
        # The command line of mpirun, which is not Python, contains that of the guard.
        return sorted(each for each in named if "python" not in os.path.basename(lines[each][0]))

    def wait_for_end(self) -> int:
        """Waits for the launcher; returns its exit code."""
        return self.process.wait(LIMIT)

    def wait_until_gone(self) -> float:
        """Waits until no process is left; returns the seconds, or raises an error after 10
        seconds."""
        start = time.monotonic()
        self._wait(lambda: not self.processes(), TIME_TO_VANISH)
        return time.monotonic() - start

    def log(self) -> list[dict]:
        """Returns the log of the training, without times."""
        entries = json.loads(pathlib.Path(self.log_path).read_text())
        times = {"elapsed_time", "ranks/slowest", "ranks/waiting"}
        return [{key: entry[key] for key in entry if key not in times} for entry in entries]

    def close(self):
        """Ends the remaining processes."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        self._errors.close()

    def _wait(self, condition, limit=LIMIT):
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"after {limit} s still {self.processes()}\n{self.errors}")
            time.sleep(0.02)  # no event exists to wait for, so poll


def _list(folder):
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def check_kill(job: TrainingJob, kind: str, chance: random.Random, patience: float) -> str:
    """Kills a process of a kind and checks the consequences; returns a line about the kill."""
    job.wait_for_training()
    time.sleep(chance.uniform(0, patience))  # the kill must come at a random moment
    victims = job.victims(kind)
    assert victims, f"the job ended too early\n{job.errors}"
    victim = chance.choice(victims)
    os.kill(victim, signal.SIGKILL)
    code = job.wait_for_end()
    seconds = job.wait_until_gone()
    report = job.errors.rstrip().rpartition("\n")[2]
    assert code != 0, job.errors
    if kind == "rank":
        assert f"of {job.ranks} on " in report and "SIGKILL" in report, job.errors
    return f"{kind} killed: exit code {code}, nobody left after {seconds:.2f} s: {report}"


def check_restart(job: TrainingJob, kind: str, chance: random.Random, patience, expected) -> str:
    """Kills a process of a kind, and checks that training ends as if there had been no kill."""
    job.wait_for_training()
    time.sleep(chance.uniform(0, patience))  # the kill must come at a random moment
    victims = job.victims(kind)
    if victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(victims), signal.SIGKILL)
    code = job.wait_for_end()
    job.wait_until_gone()
    assert code == 0, job.errors
    assert job.log() == expected, f"{job.log()}\n{expected}"
    lines = [line for line in job.errors.splitlines() if ": restart 1 of" in line]
    return f"{kind} killed: {lines[0].partition(': ')[2] if lines else 'too late'}; same result"


def main(arguments=None):
    """Runs all kills; an AssertionError describes the first failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--patience", type=float, default=2.0, help="longest time before a kill")
    parser.add_argument("--restarts", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    kinds = ["rank", "mpirun"] + ["launcher"] * (not options.restarts)
    with tempfile.TemporaryDirectory() as folder:
        expected = None
        if options.restarts:
            job = TrainingJob(folder, options.ranks, options.epochs)
            assert job.wait_for_end() == 0, job.errors
            expected = job.log()
            job.close()
        for number in range(options.kills):
            kind = chance.choice(kinds)
            more = ["--restarts", "2", "--backoff", "0.1"] if options.restarts else []
            job = TrainingJob(folder, options.ranks, options.epochs, more)
            try:
                if options.restarts:
                    line = check_restart(job, kind, chance, options.patience, expected)
                else:
                    line = check_kill(job, kind, chance, options.patience)
                print(f"{number + 1:3d} {line}", flush=True)
            finally:
                job.close()
    print(f"all {options.kills} kills went as they should")


if __name__ == "__main__":
    main()
