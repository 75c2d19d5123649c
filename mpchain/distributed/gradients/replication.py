"""Making parameters the same on all ranks."""

import hashlib

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import using_config


def synchronise(comm, params):
    """Makes parameters the same on all ranks.

    Where they differ, those of the lowest rank that has initialised the parameter count: of rank 0,
    if it has. A parameter that is not initialised on a rank is initialised there. One that is not
    initialised anywhere stays so.

    Args:
        comm (Communicator): the ranks.
        params (dict): parameters by name, with the same names on all ranks.

    Returns:
        list of str: the names of the parameters that differed, the same list on all ranks.

    Raises:
        ValueError: names, shapes or dtypes differ between ranks.
    """
    names = sorted(params)
    tables = comm.allgather_obj({name: _fingerprint(params[name]) for name in names})
    _check_names(tables)
    differing = []
    for name in names:
        held = [table[name] for table in tables]
        if len(set(held)) > 1:
            _check_shapes(name, held)
            root = next(rank for rank, fingerprint in enumerate(held) if fingerprint is not None)
            _take_from(comm, params[name], root, held[root])
            differing.append(name)
    return differing


def _fingerprint(param):
    """Shape, dtype and a hash of the bytes; None for an uninitialised parameter."""
    if not param.is_initialized:
        return None
    array = np.ascontiguousarray(cuda.to_cpu(param.array))
    digest = hashlib.blake2b(array.reshape(-1).view(np.uint8), digest_size=16).digest()
    return param.shape, str(param.dtype), digest


def _take_from(comm, param, root, fingerprint):
    if not param.is_initialized:
        # These values are about to be replaced: they must not cost the program random numbers.
        with using_config("rng", np.random.RandomState(0)):
            param.initialize(fingerprint[0])
    array = comm.bcast(param.array if comm.rank == root else None, root)
    if comm.rank != root:
        backend.copyto(param.array, array)


def _check_names(tables):
    for rank, table in enumerate(tables):
        unlike = set(tables[0]) ^ set(table)
        if unlike:
            name = min(unlike)
            has, lacks = (0, rank) if name in tables[0] else (rank, 0)
            raise ValueError(
                f"the model must have the same parameters on all ranks, but rank {has} has {name} "
                f"and rank {lacks} has not"
            )


def _check_shapes(name, held):
    kinds = {fingerprint[:2] for fingerprint in held if fingerprint is not None}
    if len(kinds) > 1:
        text = ", ".join(f"rank {r}: {h[0]} {h[1]}" for r, h in enumerate(held) if h is not None)
        raise ValueError(f"parameter {name} must have one shape and dtype on all ranks: {text}")
