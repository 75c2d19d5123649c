"""Random numbers that are the same on all ranks."""

import contextlib
import hashlib

import numpy as np


@contextlib.contextmanager
def random_numbers_of_rank_0(comm):
    """Context manager: within it, NumPy's global generator yields rank 0's numbers on all ranks.

    On rank 0, and on ranks whose generator is in the same state, it goes on from there afterwards;
    on others it is as it was before, so that ranks that draw differently (dropout) go on doing so.

    Args:
        comm (Communicator): the ranks, all of which enter it.
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
