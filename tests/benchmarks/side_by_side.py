"""Runs the same work in one process per library, in turns, and prints medians and ratios.

A workload is a Python text that defines ``step()``; it runs in a separate process, because Chainer
needs another NumPy and because libraries in one process share threads and caches. With one thread,
CPU time is compared, which a busy machine disturbs least; with more threads, wall time.
"""

import math
import os
import statistics
import subprocess
import sys

# Steps run for this many seconds before a turn is measured: after a turn, OpenMP threads of PyTorch
# use the cores for 20 ms more, the caches contain its arrays, and threads of the next library have
# to wake up.
_SETTLING = 0.05

_WORKER = """
import resource, sys, time
exec(sys.stdin.read({length}))
if {keeps_memory} and "mpchain" in sys.modules:
    sys.modules["mpchain.backends.host_memory"].keep_freed_memory()
def steps(n):
    for _ in range(n):
        step()
def cpu_time():
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
def wall_time():
    return time.perf_counter()
def settle():
    end = time.perf_counter() + {settling}
    step()
    while time.perf_counter() < end:
        step()
def seconds(n):
    begin = {clock}()
    steps(n)
    return {clock}() - begin
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print([step(), step()], flush=True)
steps({n_first} - 2)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


def interpreter(library):
    """Returns the Python of a library; MPCHAIN_TEST_CHAINER_PYTHON names Chainer's, which
    is None if the variable is not set."""
    if library == "chainer":
        return os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON")
    return sys.executable


class Worker:
    """A process that repeats one workload on request.

    Args:
        library (str): the library whose interpreter runs the workload.
        workload (str): Python text that defines ``step()``.
        threads (int): number of threads of its kernels.
        clock (str): ``cpu_time`` or ``wall_time``; by default CPU time for one thread,
            and wall time for more.
        n_first (int): steps before the first turn.
        environment (dict): more variables.
        keeps_memory (bool): whether mpchain keeps freed memory, as in a Trainer.

    Attributes:
        first: what its first two steps returned, such as losses.
        seconds: list of the seconds of a step in each turn.
        peak: the peak of its memory in MiB; None before :meth:`close`.
    """

    def __init__(
        self,
        library,
        workload,
        threads=1,
        clock=None,
        n_first=3,
        environment=None,
        *,
        keeps_memory=True,
    ):
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        clock = clock or ("cpu_time" if threads == 1 else "wall_time")
        self.library = library
        sizes = {"length": len(workload), "n_first": n_first, "settling": _SETTLING}
        sizes["keeps_memory"] = keeps_memory
        text = _WORKER.format(clock=clock, **sizes)
        self.process = subprocess.Popen(
            [interpreter(library), "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(variables, str(threads)), **(environment or {})},
        )
        self.process.stdin.write(workload)
        self.process.stdin.flush()
        self.first = eval(self._read(), {"nan": math.nan, "inf": math.inf})
        self.seconds, self.peak = [], None

    def run(self, repetitions):
        """Runs the workload and returns the seconds of one repetition."""
        return self.ask(f"seconds({repetitions})") / repetitions

    def take_turn(self, repetitions):
        """Measures some repetitions, after repetitions that are not measured."""
        self.ask("settle()")
        self.seconds.append(self.run(repetitions))

    def ask(self, expression):
        """Returns the value of an expression in the process."""
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return eval(self._read())

    def close(self):
        """Ends the process."""
        self.peak = self.ask("peak()")
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.library} worker ended: see its traceback above")
        return line


def compare(title, workloads, rounds=21, repetitions=10, threads=1):
    """Measures workloads in turns; prints the median of each, and its ratio to PyTorch's.

    Args:
        title (str): printed first.
        workloads (dict): Python text by library; those whose interpreter is unknown are left out.
        rounds (int): how often each gets its turn.
        repetitions (int): steps per turn.
        threads (int): number of threads of each process.

    Returns:
        dict: median seconds per step, by library.
    """
    workers = [Worker(name, text, threads) for name, text in workloads.items() if interpreter(name)]
    for worker in workers:
        worker.run(1)
    for _ in range(rounds):
        for worker in workers:
            worker.take_turn(repetitions)
    for worker in workers:
        worker.close()
    medians = {worker.library: statistics.median(worker.seconds) for worker in workers}
    print(title)
    for name, seconds in medians.items():
        ratio = seconds / medians["torch"]
        print(f"  {name:8} {seconds * 1e3:9.3f} ms   {ratio:6.2f} x torch")
    return medians
