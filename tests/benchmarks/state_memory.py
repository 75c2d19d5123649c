"""Measures how much of Adam's state each rank holds, with an ordinary and a sharded optimizer.

``python -m tests.benchmarks.state_memory`` measures 4 ranks, for an MLP of 2.8 M parameters.
"""

import argparse
import json
import sys

import numpy as np

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import (
    create_communicator,
    create_multi_node_optimizer,
    create_sharded_optimizer,
)
from mpchain.link import Sequential
from tests.distributed import ranks


def bytes_of_state(comm, sharded, n_units):
    """Returns the bytes of the update rules' states on this rank after two updates."""
    model = Sequential(
        L.Linear(784, n_units), F.relu, L.Linear(n_units, n_units), F.relu, L.Linear(n_units, 10)
    )
    create = create_sharded_optimizer if sharded else create_multi_node_optimizer
    optimizer = create(optimizers.Adam(), comm).setup(model)
    x = np.random.RandomState(comm.rank).uniform(size=(4, 784)).astype(np.float32)
    for _ in range(2):
        optimizer.update(lambda: F.mean(model(x) ** 2))
    states = [array for param in model.params() for array in param.update_rule.state.values()]
    return sum(array.nbytes for array in states)


def measure(n_ranks, n_units):
    """Measures the state on several ranks.

    Returns:
        Bytes by rank with the ordinary optimizer, and with the sharded one.
    """
    command = ["-m", "mpi4py", "-m", "tests.benchmarks.state_memory", "--rank", str(n_units)]
    status, outputs, own_output = ranks.run(n_ranks, command, timeout=100)
    if status != 0:
        raise RuntimeError(ranks.report(status, outputs, own_output))
    pairs = [json.loads(output.splitlines()[-1]) for output in outputs]
    return [plain for plain, _ in pairs], [sharded for _, sharded in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--units", type=int, default=1200)
    parser.add_argument("--rank", type=int, help="what each rank is started with: the units")
    args = parser.parse_args()
    if args.rank is not None:
        comm = create_communicator()
        print(json.dumps([bytes_of_state(comm, sharded, args.rank) for sharded in (False, True)]))
        return
    plain, sharded = measure(args.ranks, args.units)
    print("rank  ordinary  sharded  (MB of Adam's state)")
    for rank, (whole, part) in enumerate(zip(plain, sharded, strict=True)):
        print(f"{rank:4}  {whole / 1e6:8.3f}  {part / 1e6:7.3f}  {part / whole:.4f}")


if __name__ == "__main__":
    sys.exit(main())
