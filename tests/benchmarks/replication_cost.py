"""Measures how long it takes to send 25 million float32 parameters in 161 arrays from rank 0.

``python -m tests.benchmarks.replication_cost`` measures ``bcast_data`` on two ranks, in turns with
plain broadcasts of as many bytes by mpi4py: of one flat array, and of each array.
"""

import sys

from tests.benchmarks.bandwidth import SIZES
from tests.benchmarks.groups import Group, compare

_MPCHAIN = (
    SIZES
    + """
from mpchain.distributed import create_communicator
from mpchain.link import Link
from mpchain.variable import Parameter
comm = create_communicator('naive')
model = Link()
with model.init_scope():
    for i, gradient in enumerate(gradients):
        setattr(model, f'p{i:03}', Parameter(gradient))
def step():
    comm.bcast_data(model)
"""
)

_PLAIN = (
    SIZES
    + """
from mpi4py import MPI
FLAT = {flat}
arrays = [np.ones(25_000_000, np.float32)] if FLAT else gradients
def step():
    for array in arrays:
        MPI.COMM_WORLD.Bcast(array)
"""
)


def main(rounds=15):
    """Prints the comparison."""
    groups = [
        Group("mpchain", _MPCHAIN),
        Group("mpi4py, flat", _PLAIN.format(flat=True)),
        Group("mpi4py, by array", _PLAIN.format(flat=False)),
    ]
    compare("broadcasting 25 M float32 in 161 arrays, two ranks", groups, "mpi4py, flat", rounds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
