"""Starts the profile that ``mpchain-launch --trace`` requests through an environment variable."""

import atexit
import os
from typing import Any

from mpchain.distributed.communicators import load_mpi
from mpchain.distributed.communicators.environment import launched
from mpchain.profiling.clocks import compare
from mpchain.profiling.session import Profile, save
from mpchain.profiling.trace import merge_files, path_of_rank, trace_of, write

VARIABLE = "MPCHAIN_TRACE"
"""Environment variable that names the folder of the trace."""

STEPS = 100

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class LaunchedProfile(Profile):
    """A profile of a program that does not mention profiling.

    The ranks compare their clocks through the first communicator that contains all of them. After
    the given number of steps, or at the end of the program, each rank writes a file, and the rank
    that is last to write merges the files, because at the end of a program no rank can rely on
    messages. A rank that makes no communicator leaves its own file.

    Args:
        folder: the folder of the files.
        steps: number of steps after which recording ends.

    Example:
        >>> profile = LaunchedProfile("result").__enter__()
        >>> y = F.exp(np.zeros(2))
        >>> profile.finish()
        >>> sorted(os.listdir("result"))
        ['trace.json', 'trace.txt']
    """

    def __init__(self, folder: str, steps: int = STEPS):
        super().__init__(steps=steps)
        self._path = os.path.join(folder, "trace.json")
        self._pid = os.getpid()
        self._of_run = 0, 1, ""  # the rank, the number of ranks, and a text that all ranks share

    def _on_communicator(self, comm: Any) -> None:
        if self._of_run[1] > 1 or comm.size < load_mpi().COMM_WORLD.size:
            return
        parts = {"collective", "wait"}  # spans inside of spans of their kind are not recorded
        self._recorder.open |= parts
        with self.span("compare clocks"):
            self._of_run = comm.rank, comm.size, comm.bcast_obj(os.urandom(8).hex())
            self._clock = compare(comm, self._clock.origin)
        self._recorder.open -= parts

    def stop(self) -> None:
        is_active = self._is_recording
        super().stop()
        if is_active:
            self._write()

    def finish(self) -> None:
        """Ends recording at the end of the program, and writes what was recorded."""
        if os.getpid() == self._pid:  # a forked process writes nothing
            self.stop()

    def _write(self):
        rank, size, run = self._of_run
        self.trace = trace_of(self._recorder, self._clock, rank, size, run)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        _, n_launched = launched() or ("", 1)
        if size == n_launched == 1:
            save(self.trace, self._path)
            return
        if size == 1:
            rank = int(next(os.environ[name] for name in _RANK_VARIABLES if name in os.environ))
        write(self.trace, path_of_rank(self._path, rank))
        if size > 1 and (merged := merge_files(self._path, run)):
            save(merged, self._path)


def start() -> LaunchedProfile | None:
    """Starts the profile if the environment variable is set.

    The variable is then removed, because processes that the program starts are not ranks.

    >>> start() is None
    True
    """
    folder = os.environ.pop(VARIABLE, "")
    if not folder:
        return None
    profile = LaunchedProfile(folder)
    profile.__enter__()
    atexit.register(profile.finish)
    return profile
