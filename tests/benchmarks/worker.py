"""One process of a group that :mod:`tests.benchmarks.groups` measures; any Python can run it.

It connects to the measuring process, is told a Python text that defines ``step()``, and repeats it
whenever asked. Meanwhile it waits without using a core, as MPI's own waiting would.
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
        if "mpchain" in sys.modules:  # A Trainer does this, too.
            sys.modules["mpchain.backends.host_memory"].keep_freed_memory()
        step = workload["step"]
        for _ in range(4):  # the first steps allocate, and agree on what the others do
            step()
        connection.send("ready")
        while (n := connection.recv()) > 0:
            begin = time.perf_counter()
            for _ in range(n):
                step()
            connection.send((time.perf_counter() - begin) / n)


if __name__ == "__main__":
    main()
