"""Runs pytest several times on the same ranks, which start and import modules only once.

Each rank runs ``python -m tests.distributed.pytest_on_ranks FOLDER``.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from tests.distributed import ranks

LIMIT = 280  # the time limit in seconds, below pytest's limit for a test


class Ranks:
    """Ranks under mpirun, which wait for the next run without using a core.

    Args:
        n: The number of ranks.
        limit: The largest number of seconds of a run.
    """

    def __init__(self, n, limit=LIMIT):
        self.n, self._limit = n, limit
        self._process = None

    def run(self, *arguments):
        """Runs pytest on every rank.

        Args:
            arguments: The arguments of pytest.

        Returns:
            The output to show if the run failed; empty if pytest succeeded on every rank.
        """
        if self._process is None:
            self._start()
        before = [len(text) for text in ranks.outputs_in(self._folder.name, self.n)]
        statuses = []
        for stream in self._streams:
            print(json.dumps(arguments), file=stream, flush=True)
        for stream in self._streams:
            try:
                statuses.append(stream.readline().strip())
            except OSError:  # the time limit was exceeded, or a rank was killed
                statuses.append("")
        if statuses == ["0"] * self.n:
            return ""
        status, own_output = self.end()
        outputs = [text[n:] for text, n in zip(self._outputs, before, strict=True)]
        return ranks.report(status, outputs, own_output)

    def _start(self):
        """Starts mpirun; repeats the start if Open MPI fails temporarily."""
        self._folder = tempfile.TemporaryDirectory()
        command = ["-m", "tests.distributed.pytest_on_ranks", self._folder.name]
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{self._folder.name}/socket")
            server.listen(self.n)
            server.settimeout(1)
            self._process = ranks.start(self.n, command, self._folder.name)
            connections = []
            while len(connections) < self.n:
                try:
                    connections.append(server.accept()[0])
                except TimeoutError:
                    if self._process.poll() is not None:
                        break
        self._streams = []
        for connection in connections:
            connection.settimeout(self._limit)
            self._streams.append(connection.makefile("rw"))
            connection.close()  # the stream keeps the connection open
        if len(connections) < self.n:
            _, own_output = self.end()
            if ranks.PASSING_FAILURE not in own_output:
                raise RuntimeError(ranks.report(1, self._outputs, own_output))
            self._start()

    def end(self):
        """Ends the ranks; returns mpirun's exit status (None if mpirun was killed) and its
        output."""
        process, self._process = self._process, None
        for stream in self._streams:
            stream.close()
        try:
            own_output, status = process.communicate(timeout=30)[0], process.returncode
        except subprocess.TimeoutExpired:
            own_output, status = ranks.end(process), None
        self._outputs = ranks.outputs_in(self._folder.name, self.n)
        self._folder.cleanup()
        return status, own_output

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process is not None:
            self.end()


def _serve(folder):
    """Runs pytest on this rank as often as requested."""
    import pytest
    from mpi4py import MPI

    # Sessions of pytest delete old temporary folders, so each rank has its own folder.
    temporary = pathlib.Path(folder, f"temporary_{MPI.COMM_WORLD.rank}")
    temporary.mkdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{folder}/socket")
        with connection.makefile("rw") as stream:
            for line in stream:
                status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *json.loads(line)]))
                sys.stdout.flush()
                if status != 0:  # the other ranks would wait for this rank
                    MPI.COMM_WORLD.Abort(status)
                print(status, file=stream, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
