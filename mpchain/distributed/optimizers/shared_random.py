"""Random numbers that are the same on all ranks."""

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np

from mpchain.distributed.communicators import Communicator


@contextlib.contextmanager
def random_numbers_of_rank_0(comm: Communicator) -> Iterator[None]:
    """Context manager: within it, NumPy's global generator yields rank 0's numbers on all ranks.

    Afterwards it continues from there on rank 0, and on ranks where it was in the same state as on
    rank 0 before. On others it returns to its state, so that their other draws (dropout) stay
    different.

    Args:
        comm: the ranks, all of which enter it.

    Example:
        >>> with random_numbers_of_rank_0(comm):
        ...     len(set(comm.allgather_obj(np.random.rand())))
        1
    """
    state = np.random.get_state()
    states = comm.allgather_obj(_fingerprint(state))
    if len(set(states)) == 1:
        yield
        return
    of_rank_0 = comm.bcast_obj(state if comm.rank == 0 else None)
    np.random.set_state(of_rank_0)
    try:
        yield
    finally:
        if states[comm.rank] != states[0]:
            np.random.set_state(state)


def _fingerprint(state):
    kind, key, *position = state
    return kind, hashlib.blake2b(key, digest_size=16).digest(), *position
