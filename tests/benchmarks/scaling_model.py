"""Estimates how a training step on GPUs scales to numbers of ranks that no test has.

``python -m tests.benchmarks.scaling_model`` prints the share of a step's time that the GPUs of 8 to
1,024 ranks spend on what one GPU does. Gradients are summed by NCCL beside backward; what is left
when backward ends is exposed. The control message is summed on the hosts by MPI.

Two cases are printed, because this model does not know which one holds:

- ``host ahead``: kernels are launched asynchronously, so the Python of the step runs while the GPU
  still works on what was launched before. Python of the ranks, and the message, which the host
  waits for at the end of each step, then cost nothing. This assumes that the host launches a step
  in less time than the GPU needs for it, by more than the message and that Python take together,
  and that nothing in the step makes the host wait for the GPU, as reading a loss does.
- ``host late``: the GPU waits for the host, as it does where kernels are small or where the host
  waits for the GPU in each step. Then all Python of the ranks and all of the message lengthen the
  step.

Which one holds can be seen in a profile of one GPU: the host is ahead if the GPU is never idle.
Nothing here is measured on a network. Ranks that come late, and are waited for, are left out.
"""

import argparse

from mpchain.distributed.communicators.progress import _factors
from mpchain.distributed.gradients.buckets import FIRST_GPU_BUCKET_BYTES, GPU_BUCKET_BYTES

GPUS_PER_HOST = 8
# Each GPU has a network interface of 400 Gb/s. A ring of NCCL uses one interface, and carries an
# eighth of the data. NCCL's own tests reach about 0.9 of its bandwidth.
BYTES_PER_SECOND = GPUS_PER_HOST * 50e9 * 0.9
NCCL_BEGIN = 20e-6  # the seconds from the call to the first byte: launch and protocol
NCCL_HOP = 6e-6  # the seconds of a hop of NCCL's tree between hosts
MESSAGE = 3e-6  # the seconds of a small MPI message between hosts
POST = 0.9e-6  # the seconds to begin and test an Isend or Irecv by mpi4py; measured: 0.83 us
SHARED_SUM = 20e-6  # the assumed seconds of a small sum of a host's ranks in shared memory
PYTHON = 100e-6  # the goal in seconds for what tests.benchmarks.control_cost measures

# ResNet-50 in the order of backward: millions of parameters, and billions of multiplications (He et
# al., 2015, table 1, and the shapes of the layers), for the classifier, stages 5 to 2, and the
# first layer.
STAGES = [(2.05, 0.002), (14.96, 0.81), (7.10, 1.47), (1.22, 1.04), (0.22, 0.68), (0.01, 0.12)]
BACKWARD = 2 / 3  # the share of a step: backward needs two products for each product of forward


def buckets(backward):
    """Returns pairs: the time at which a bucket is full, and its number of bytes.

    Within a stage gradients come evenly.
    """
    n_parts, made, now, filled, most = 100, [], 0.0, 0.0, FIRST_GPU_BUCKET_BYTES
    work = sum(w for _, w in STAGES)
    for params, of_stage in STAGES:
        for _ in range(n_parts):
            now += backward * of_stage / work / n_parts
            filled += 4e6 * params / n_parts
            if filled >= most:
                made.append((now, filled))
                filled, most = 0.0, GPU_BUCKET_BYTES
    return [*made, (now, filled)]


def exposed_sums(n_ranks, backward):
    """Returns the seconds from the end of backward to the end of the last bucket's sum."""
    n_hosts, end = max(n_ranks // GPUS_PER_HOST, 1), 0.0
    latency = NCCL_BEGIN + 2 * NCCL_HOP * (n_hosts - 1).bit_length()
    for full, n_bytes in buckets(backward):  # buckets are summed one after another
        sent = 2 * n_bytes * (n_ranks - 1) / n_ranks / BYTES_PER_SECOND
        end = max(end, full) + latency + sent
    return end - backward


def control(n_ranks):
    """Returns the seconds of the control message, without the Python of the step."""
    stages = _factors(n_ranks // GPUS_PER_HOST) if n_ranks > GPUS_PER_HOST else []
    # In a stage of n hosts, each exchanges messages with the others twice: parts, and their sums.
    return SHARED_SUM + sum(2 * (MESSAGE + 2 * (n - 1) * POST) for n in stages)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=float, default=30, help="milliseconds on one GPU")
    step = 1e-3 * parser.parse_args().step
    print(f"ResNet-50, step of {1e3 * step:g} ms, {GPUS_PER_HOST} GPUs a host, 400 Gb/s each")
    print(f"share of a step; the ranks' Python takes {1e6 * PYTHON:.0f} us (the goal)")
    print("ranks  sums exposed  message  host ahead  host late")
    for n in (8, 128, 256, 512, 1024):
        sums, message = exposed_sums(n, BACKWARD * step), control(n)
        ahead, late = step / (step + sums), step / (step + sums + message + PYTHON)
        print(f"{n:5} {1e6 * sums:10.0f} us {1e6 * message:5.0f} us {ahead:11.3f} {late:10.3f}")


if __name__ == "__main__":
    main()
