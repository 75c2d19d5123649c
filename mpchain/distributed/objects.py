"""Gathers objects of all ranks with an MPI call that raises an error if a rank dies in it."""

import pickle
from typing import Any

import numpy as np


def allgather(mpi_comm: Any, obj: Any) -> list:
    """Returns the objects of all ranks; collective.

    mpi4py's own ``allgather`` calls ``MPI_Allgatherv``. If a rank dies during this call, Open MPI
    5.0.8 to 5.0.11 return success, and leave the memory for the results unchanged.
    ``MPI_Allgather`` raises an error.

    Args:
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
        obj: an object that can be pickled. All objects are padded to the size of the largest.

    Example:
        >>> class OneRank:
        ...     size = 1
        ...     def Allgather(self, sent, received):
        ...         received[...] = sent
        >>> allgather(OneRank(), {"rank": 0})
        [{'rank': 0}]
    """
    data = np.frombuffer(pickle.dumps(obj, 5), np.uint8)
    sizes = np.zeros(mpi_comm.size, np.int64)
    mpi_comm.Allgather(np.array([data.size], np.int64), sizes)
    row = np.zeros(sizes.max(), np.uint8)
    row[: data.size] = data
    rows = np.zeros((mpi_comm.size, row.size), np.uint8)
    mpi_comm.Allgather(row, rows)
    return [pickle.loads(row[:size]) for row, size in zip(rows, sizes, strict=True)]
