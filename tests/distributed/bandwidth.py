"""How long 25 million float32 gradients in 161 arrays take to be averaged over the ranks.

``mpirun -n 2 python -m tests.distributed.bandwidth`` measures, interleaved, the buckets of
mpchain (all gradients at once, that is without any backward to overlap with), and mpi4py's
``Allreduce`` array by array: with its division by the number of ranks, and bare and in place.
"""

import statistics

import numpy as np
from mpi4py import MPI

from mpchain.distributed import create_communicator
from mpchain.distributed.buckets import GradientReducer
from mpchain.variable import Parameter

LARGE = [2_359_296] * 3 + [1_048_576] * 6 + [2_048_000] + [589_824] * 6 + [262_144] * 14
N_ARRAYS, N_ELEMENTS = 161, 25_000_000


def sizes():
    """As in a ResNet-50: few large arrays and many small ones, mixed."""
    n_small = N_ARRAYS - len(LARGE)
    small = [(N_ELEMENTS - sum(LARGE)) // n_small] * n_small
    return np.random.RandomState(0).permutation(LARGE + small).tolist()


def main(repetitions=15):
    comm = create_communicator("naive", MPI.COMM_WORLD)
    gradients = [np.ones(n, np.float32) for n in sizes()]
    sums = [np.empty_like(gradient) for gradient in gradients]
    params = {f"/{i:03}": Parameter(np.zeros_like(g)) for i, g in enumerate(gradients)}
    reducer = GradientReducer(comm)
    reducer.watch(params)

    def buckets():
        for param, gradient in zip(params.values(), gradients):
            param.grad = gradient
        reducer.begin(32)
        reducer.finish()

    def array_by_array():
        for gradient, total in zip(gradients, sums):
            comm.mpi_comm.Allreduce(gradient, total)
            total /= comm.size

    def array_by_array_in_place():
        for total in sums:
            comm.mpi_comm.Allreduce(MPI.IN_PLACE, total)

    ways = [buckets, array_by_array, array_by_array_in_place]
    times = {way: [] for way in ways}
    for i in range(repetitions + 2):  # the first two warm up
        for total in sums:
            total[...] = 1
        for way in ways:
            comm.barrier()
            start = MPI.Wtime()
            way()
            slowest = max(comm.allgather_obj(MPI.Wtime() - start))
            if i >= 2:
                times[way].append(1000 * slowest)
    if comm.rank == 0:
        ours = statistics.median(times[buckets])
        for way in ways:
            median, least = statistics.median(times[way]), min(times[way])
            figures = f"{median:6.1f} ms (least {least:.1f}); buckets / this: {ours / median:.2f}"
            print(f"{way.__name__:24} {figures}")


if __name__ == "__main__":
    main()
