"""Runs as one process of a group that :mod:`tests.benchmarks.groups` measures, under any Python.

The process connects to the measuring process, receives a Python text that defines ``step()``, and
repeats the step on request. Between requests it waits without using a core, unlike MPI.
"""

import multiprocessing.connection
import os
import sys
import time


def main():
    address = "localhost", int(os.environ["MEASURE_PORT"])
    key = bytes.fromhex(os.environ["MEASURE_KEY"])
    variables = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
    rank = next((int(os.environ[name]) for name in variables if name in os.environ), 0)
    with multiprocessing.connection.Client(address, authkey=key) as connection:
        connection.send((os.environ["MEASURE_NAME"], rank))
        workload = {}
        exec(connection.recv(), workload)
        if "mpchain" in sys.modules:  # a Trainer makes this call, too
            sys.modules["mpchain.backends.host_memory"].keep_freed_memory()
        step = workload["step"]
        for _ in range(4):  # the first steps allocate memory, and agree on later steps
            step()
        connection.send("ready")
        while (n := connection.recv()) > 0:
            begin = time.perf_counter()
            for _ in range(n):
                step()
            connection.send((time.perf_counter() - begin) / n)


if __name__ == "__main__":
    main()
