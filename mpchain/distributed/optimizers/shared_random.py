"""Random numbers that are the same on all ranks."""

import contextlib
from collections.abc import Iterator

import numpy as np

from mpchain.distributed.communicators import Communicator


@contextlib.contextmanager
def random_numbers_of_rank_0(comm: Communicator, are_equal: bool = False) -> Iterator[None]:
    """Context manager: within it, NumPy's global generator yields rank 0's numbers on all ranks.

    Afterwards it continues from there on rank 0, and on ranks where it was in the same state as on
    rank 0 before. On others it returns to its state, so that their other draws (dropout) stay
    different.

    Args:
        comm: the ranks, all of which enter it.
        are_equal: whether all ranks know that their states are equal.

    Example:
        >>> with random_numbers_of_rank_0(comm):
        ...     len(set(comm.allgather_obj(np.random.rand())))
        1
    """
    if are_equal:
        yield
        return
    state = np.random.get_state()
    of_rank_0 = comm.bcast_obj(state)
    np.random.set_state(of_rank_0)
    try:
        yield
    finally:
        if not all(map(np.array_equal, state, of_rank_0)):
            np.random.set_state(state)
