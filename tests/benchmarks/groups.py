"""Measures groups of processes in turns: each group does the same work, in its own way.

A busy machine changes from minute to minute. So all groups exist at the same time and take turns,
and the median of the ratios within the rounds counts.
"""

import contextlib
import multiprocessing.connection
import os
import pathlib
import secrets
import shutil
import statistics
import subprocess
import sys

from tests.distributed import ranks

WORKER = str(pathlib.Path(__file__).with_name("worker.py"))
PORT_OF_TORCH = 29_513


def chainer_python():
    """Returns the interpreter with Chainer 7.8.1 and mpi4py, which MPCHAIN_TEST_CHAINER_PYTHON
    names."""
    return os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON")


class Group:
    """Processes that repeat one workload together on request.

    Args:
        name (str): name of the group.
        workload (str): Python text that defines ``step()``.
        launcher (str): ``mpirun``, ``torch`` (environment variables) or ``alone`` (independent).
        python (str): the interpreter.
        n (int): number of processes, of one thread each.
    """

    def __init__(self, name, workload, launcher="mpirun", python=sys.executable, n=2):
        self.name, self.workload, self.n = name, workload, n
        self.launcher, self.python = launcher, python
        self.seconds = []

    def start(self, listener, key, environ):
        """Starts the processes, and waits until all are ready."""
        environ = environ | {
            "MEASURE_PORT": str(listener.address[1]),
            "MEASURE_KEY": key.hex(),
            "MEASURE_NAME": self.name,
        }
        command = [self.python, WORKER]
        if self.launcher == "mpirun":
            mpirun = shutil.which("mpirun", path=os.path.dirname(self.python))
            options = ["-n", str(self.n), "--bind-to", "none"]
            self._processes = [subprocess.Popen([mpirun, *options, *command], env=environ)]
        else:
            self._processes = [
                subprocess.Popen(command, env=environ | self._variables_of(rank))
                for rank in range(self.n)
            ]
        self._connections = [listener.accept() for _ in range(self.n)]
        for connection in self._connections:
            assert connection.recv()[0] == self.name
            connection.send(self.workload)
        for connection in self._connections:
            assert connection.recv() == "ready"

    def _variables_of(self, rank):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(self.n)}
        return variables | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(PORT_OF_TORCH)}

    def run(self, repetitions):
        """Runs steps, and returns the seconds of one step of the slowest process."""
        for connection in self._connections:
            connection.send(repetitions)
        seconds = max(connection.recv() for connection in self._connections)
        self.seconds.append(seconds)
        return seconds

    def end(self):
        """Ends the processes."""
        for connection in self._connections:
            connection.send(0)
        for process in self._processes:
            process.wait(timeout=30)


@contextlib.contextmanager
def _running(groups):
    key = secrets.token_bytes(16)
    with multiprocessing.connection.Listener(("localhost", 0), authkey=key) as listener:
        for group in groups:
            group.start(listener, key, ranks.environment())
        yield
        for group in groups:
            group.end()


def compare(title, groups, reference, rounds=15, repetitions=1):
    """Measures groups in turns, and prints each group's median and its ratio to a reference.

    Args:
        title (str): printed first.
        groups (list of Group): those whose ``python`` is None are left out.
        reference (str): name of the group to which the others are compared.
        rounds (int): how often each gets its turn.
        repetitions (int): steps per turn.

    Returns:
        dict: the median of the ratios within the rounds, by name.
    """
    groups = [group for group in groups if group.python is not None]
    with _running(groups):
        for _ in range(rounds):
            for group in groups:
                group.run(repetitions)
    by_name = {group.name: group.seconds for group in groups}
    print(title)
    ratios = {}
    for name, seconds in by_name.items():
        ratios[name] = statistics.median(
            mine / other for mine, other in zip(seconds, by_name[reference], strict=True)
        )
        median, least = statistics.median(seconds) * 1e3, min(seconds) * 1e3
        print(
            f"  {name:22} {median:9.2f} ms (least {least:8.2f})   "
            f"{ratios[name]:5.2f} x {reference}",
            flush=True,
        )
    return ratios
