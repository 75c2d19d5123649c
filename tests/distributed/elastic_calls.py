"""Kills ranks during a call of MPI or of a communicator, until one rank is left.

``python -m tests.distributed.elastic_calls CALL ...`` kills ranks of four, one after the other, at
random moments while all ranks repeat one call. Each call must return the right result or raise an
error, never a stale or other value. The program prints wrong results, and fails if there are any or
if the last rank does not finish.

Each rank runs ``python -m tests.distributed.elastic_calls --rank CALL FOLDER N``.
"""

import argparse
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from tests.distributed import ranks

N_RANKS = 4
LONGEST = 0.1  # the longest time in seconds from the start of the calls to a kill
LIMIT = 180  # the time limit in seconds


class Wrong(Exception):
    """A call has returned a wrong result."""


class Calls:
    """Methods that each make one call of an elastic communicator or of its MPI, with values that
    differ in each turn, and check the result.

    Args:
        comm: the communicator.
        n: number of elements of each rank.
    """

    def __init__(self, comm, n):
        self.comm, self.n = comm, n
        self.mpi_comm, self.rank, self.size = comm.mpi_comm, comm.rank, comm.size
        self.mpi = sys.modules["mpi4py.MPI"]

    def values(self, i, ranks=None):
        """Returns the values of some ranks in a turn, or the values of this rank."""
        ranks = [self.rank] if ranks is None else ranks
        return np.repeat([1000 * i + 7 * rank for rank in ranks], self.n)

    def room(self, n=1):
        return np.full(n * self.n, -1)

    def all(self, i):
        return self.values(i, range(self.size))

    def total(self, i):
        return self.values(i, range(self.size)).reshape(self.size, -1).sum(axis=0)

    def expect(self, received, expected):
        if not np.array_equal(received, expected):
            raise Wrong(f"{received!r:.60} instead of {expected!r:.60}")

    def wait(self, *requests):
        while not self.mpi.Request.Testall(list(requests)):
            time.sleep(0)  # other processes get time to run

    def object(self, i, rank=None):
        return {"rank": self.rank if rank is None else rank, "text": f"{i}" * self.n}

    # Calls of MPI

    def Allgather(self, i):
        out = self.room(self.size)
        self.mpi_comm.Allgather(self.values(i), out)
        self.expect(out, self.all(i))

    def Allgatherv(self, i):
        out = self.room(self.size)
        self.mpi_comm.Allgatherv(self.values(i), (out, [self.n] * self.size))
        self.expect(out, self.all(i))

    def Allreduce(self, i):
        out = self.values(i)
        self.mpi_comm.Allreduce(self.mpi.IN_PLACE, out)
        self.expect(out, self.total(i))

    def Bcast(self, i):
        root = i % self.size
        out = self.values(i) if self.rank == root else self.room()
        self.mpi_comm.Bcast(out, root)
        self.expect(out, self.values(i, [root]))

    def Reduce(self, i):
        root, out = i % self.size, self.room()
        self.mpi_comm.Reduce(self.values(i), out, root=root)
        if self.rank == root:
            self.expect(out, self.total(i))

    def bcast(self, i):
        root = i % self.size
        out = self.mpi_comm.bcast(self.object(i) if self.rank == root else None, root)
        self.expect(out, self.object(i, root))

    def gather(self, i):
        root = i % self.size
        out = self.mpi_comm.gather(self.object(i), root)
        if self.rank == root:
            self.expect(out, [self.object(i, rank) for rank in range(self.size)])

    def scatter(self, i):
        root = i % self.size
        objects = [self.object(i, rank) for rank in range(self.size)]
        out = self.mpi_comm.scatter(objects if self.rank == root else None, root)
        self.expect(out, self.object(i))

    def alltoall(self, i):
        out = self.mpi_comm.alltoall([self.object(i + rank) for rank in range(self.size)])
        self.expect(out, [self.object(i + self.rank, rank) for rank in range(self.size)])

    def allgather(self, i):
        out = self.mpi_comm.allgather(self.object(i))
        self.expect(out, [self.object(i, rank) for rank in range(self.size)])

    def Barrier(self, i):
        self.mpi_comm.Barrier()

    def Ibarrier(self, i):
        self.wait(self.mpi_comm.Ibarrier())

    def Ibcast(self, i):
        root = i % self.size
        out = self.values(i) if self.rank == root else self.room()
        self.wait(self.mpi_comm.Ibcast(out, root))
        self.expect(out, self.values(i, [root]))

    def Iallreduce(self, i):
        out = self.values(i)
        self.wait(self.mpi_comm.Iallreduce(self.mpi.IN_PLACE, out))
        self.expect(out, self.total(i))

    def Isend(self, i):
        """Tests Isend and Irecv."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent, rooms = self.values(i), {rank: self.room() for rank in others}
        requests = [self.mpi_comm.Irecv(x, rank, 0) for rank, x in rooms.items()]
        self.wait(*requests, *(self.mpi_comm.Isend(sent, rank, 0) for rank in others))
        for rank, x in rooms.items():
            self.expect(x, self.values(i, [rank]))

    def isend(self, i):
        """Tests isend and issend, in turns, and improbe, in a ring."""
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        send = (self.mpi_comm.isend, self.mpi_comm.issend)[i % 2]
        request = send(self.object(i), after, 0)
        while (message := self.mpi_comm.improbe(before, 0)) is None:
            time.sleep(0)  # other processes get time to run
        out = message.recv()
        self.wait(request)
        self.expect(out, self.object(i, before))

    def Dup(self, i):
        part = self.mpi_comm.Dup()
        self.expect(part.size, self.size)
        part.Free()

    def Split(self, i):
        part = self.mpi_comm.Split(0, self.rank)
        self.expect(part.size, self.size)
        part.Free()

    def Split_type(self, i):
        part = self.mpi_comm.Split_type(self.mpi.COMM_TYPE_SHARED, self.rank)
        self.expect(part.size, self.size)
        part.Free()

    # Calls of the communicator

    def allgather_obj(self, i):
        out = self.comm.allgather_obj(self.object(i))
        self.expect(out, [self.object(i, rank) for rank in range(self.size)])

    def bcast_obj(self, i):
        root = i % self.size
        out = self.comm.bcast_obj(self.object(i) if self.rank == root else None, root=root)
        self.expect(out, self.object(i, root))

    def gather_obj(self, i):
        root = i % self.size
        out = self.comm.gather_obj(self.object(i), root)
        if self.rank == root:
            self.expect(out, [self.object(i, rank) for rank in range(self.size)])

    def scatter_obj(self, i):
        root = i % self.size
        objects = [self.object(i, rank) for rank in range(self.size)]
        out = self.comm.scatter_obj(objects if self.rank == root else None, root)
        self.expect(out, self.object(i))

    def alltoall_obj(self, i):
        out = self.comm.alltoall_obj([self.object(i + rank) for rank in range(self.size)])
        self.expect(out, [self.object(i + self.rank, rank) for rank in range(self.size)])

    def allreduce_obj(self, i):
        self.expect(self.comm.allreduce_obj(i + self.rank), sum(i + r for r in range(self.size)))

    def allreduce(self, i):
        self.expect(self.comm.allreduce(self.values(i)), self.total(i))

    def broadcast(self, i):
        root = i % self.size
        out = self.comm.bcast(self.values(i) if self.rank == root else None, root)
        self.expect(out, self.values(i, [root]))

    def gather_arrays(self, i):
        self.expect(np.concatenate(self.comm.allgather(self.values(i))), self.all(i))

    def exchange(self, i):
        out = self.comm.alltoall(tuple(self.values(i + rank) for rank in range(self.size)))
        for rank, x in enumerate(out):
            self.expect(x, self.values(i + self.rank, [rank]))

    def messages(self, i):
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        if self.rank == 0:
            self.comm.send(self.values(i), after)
        self.expect(self.comm.recv(before), self.values(i, [before]))
        if self.rank != 0:
            self.comm.send(self.values(i), after)

    def sum_in_shared_memory(self, i):
        if not hasattr(self, "buffer"):
            (self.buffer,) = self.comm.make_buffers([(self.n, np.int64)])
        self.buffer[:] = self.values(i)
        self.comm.begin_sum(self.buffer).Wait()
        self.expect(self.buffer, self.total(i))


OF_COMMUNICATORS = [
    *("allgather_obj", "bcast_obj", "gather_obj", "scatter_obj", "alltoall_obj", "allreduce_obj"),
    *("allreduce", "broadcast", "gather_arrays", "exchange", "messages", "sum_in_shared_memory"),
]
OF_MPI = [
    *("Allgather", "Allreduce", "Bcast", "Reduce", "bcast", "gather", "scatter", "alltoall"),
    *("Barrier", "Ibarrier", "Ibcast", "Iallreduce", "Isend", "isend"),
]
"""Methods of MPI that elastic communicators use; they must raise errors if a rank is lost."""

TOGETHER = {"Irecv": "Isend", "issend": "isend", "improbe": "isend"}
"""Maps methods to the method above that also tries them."""

DEFECTS = {
    "Allgatherv": "returns success and leaves the room as it was",
    "allgather": "calls Allgatherv",
    "Dup": "may end the other ranks by SIGSEGV",
    "Split": "may end the other ranks by SIGSEGV",
    "Split_type": "may end the other ranks by SIGSEGV",
}
"""For each call, what Open MPI 5.0.11 does wrong if a rank dies in it; see
docs/guides/failure.md."""


def call_until_one_is_left(name, folder, n):
    """Repeats a call on this rank until only one rank is left."""
    from mpchain.distributed import RanksLost, create_communicator

    comm = create_communicator("naive", elastic=True)
    errors = RanksLost, sys.modules["mpi4py.MPI"].Exception
    me, turn = comm.rank, 0
    while comm.size > 1:
        calls = Calls(comm, n)
        pathlib.Path(folder, f"at_{comm.size}_{me}_{os.getpid()}").touch()
        for i in itertools.count(turn):
            try:
                getattr(calls, name)(i)
            except errors:
                break
            except Exception as error:  # the calls go on until one reports the loss
                print(f"{name} of {comm.size} ranks: {type(error).__name__}: {error}", flush=True)
        comm.shrink()
        turn = max(comm.allgather_obj(i)) + 1
    pathlib.Path(folder, "done").touch()


def lose_ranks_in(name, seed, n=1):
    """Loses ranks in a call; returns a text about wrong results, and whether the last rank
    finished."""
    draw = random.Random(f"{name} {seed} {n}")
    with tempfile.TemporaryDirectory() as folder:
        rank = ["tests.distributed.elastic_calls", "--rank", name, folder, str(n)]
        process = subprocess.Popen(
            [ranks._mpirun(), "-n", str(N_RANKS), "--with-ft", "ulfm", sys.executable, "-m", *rank],
            env=ranks.environment() | {ranks.MARK: str(N_RANKS)},
            cwd=ranks.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        end, pids = time.monotonic() + LIMIT, {}
        for size in range(N_RANKS, 1, -1):
            at = []
            while len(at) < size and process.poll() is None and time.monotonic() < end:
                time.sleep(1e-3)  # no event exists to wait for, so poll
                at = list(pathlib.Path(folder).glob(f"at_{size}_*"))
            pids |= {path.name.split("_")[2]: int(path.name.split("_")[3]) for path in at}
            if len(at) == size:
                time.sleep(draw.uniform(0, LONGEST))  # the kill must come at a random moment
                os.kill(pids[draw.choice(sorted(path.name.split("_")[2] for path in at))], 9)
        try:
            output, _ = process.communicate(timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            output = ranks.end(process) + "past the time limit\n"
        for pid in pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        lines = [line for line in output.splitlines() if "NBC_Progress" not in line]
        return "\n".join(lines).strip(), pathlib.Path(folder, "done").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", nargs="*", default=OF_MPI + OF_COMMUNICATORS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("-n", type=int, nargs="+", default=[1, 3000], help="numbers of elements")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        name, folder, n = options.rank
        call_until_one_is_left(name, folder, int(n))
        return
    n_bad = 0
    for name, n, seed in itertools.product(options.calls, options.n, options.seeds):
        output, is_done = lose_ranks_in(name, seed, n)
        n_bad += bool(output) or not is_done
        text = "as it should be" if is_done and not output else f"done: {is_done}\n{output:.1000}"
        print(f"{name:20} {n:5} elements, seed {seed}: {text}", flush=True)
    sys.exit(f"{n_bad} runs were wrong" if n_bad else 0)


if __name__ == "__main__":
    main()
