"""``python -m mpchain.gpu_doctor.ranks``: compares ranks on GPUs with the same ranks on CPUs, and
prints a line of JSON for each result.

``mpchain-launch doctor --gpu FOLDER`` runs this program on two ranks.
"""

import json
import os
import traceback
from collections.abc import Callable

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.backend import Device, get_device
from mpchain.backends import cuda
from mpchain.backends.nccl_bindings import BINDINGS, find_binding
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from mpchain.distributed.communicators import Communicator
from mpchain.gpu_doctor.check import TOLERANCE, Results, difference, is_double
from mpchain.link import Chain

TIMEOUT = 60.0
"""Number of seconds that a rank waits for other ranks before it fails."""

N_TIMED, N_BYTES = 10, 64 << 20

Check = Callable[[Communicator, Device], Results]


def _draw(comm, *shape):
    return np.random.RandomState(comm.rank).randn(*shape).astype(np.float32)


def _collectives(comm, device):
    x, stack = device.send(_draw(comm, 257, 33)), device.xp.stack
    results = {"allreduce": comm.allreduce(x), "bcast": comm.bcast(x, root=comm.size - 1)}
    results |= {"allgather": stack(comm.allgather(x))}
    results |= {"alltoall": stack(comm.alltoall([x + i for i in range(comm.size)]))}
    return results


def _dropped_sources(comm, device):
    """Checks collectives whose memory is freed and reused while another stream reads it."""
    results = {}
    for i in range(8):
        x = device.send(_draw(comm, 512, 256) + i)
        request = comm.iallgather(x.T)  # x.T is not contiguous, so a copy is sent
        del x
        for _ in range(2):
            device.xp.full((512, 256), np.nan, np.float32)
        results[f"sent {i}"] = device.xp.stack(request.Wait())
    return results


class _MLP(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden, self.more = L.Linear(64, 1024), L.Linear(1024, 1024)
            self.out = L.Linear(1024, 4)

    def forward(self, x):
        return self.out(F.relu(self.more(F.relu(self.hidden(x)))))


def _training(*, double_buffering: bool = False) -> Check:
    """Returns a check of six training steps whose gradients fill two buckets; the check returns the
    final parameters."""

    def training(comm, device):
        np.random.seed(0)
        model = L.Classifier(_MLP())
        model.to_device(device)
        optimizer = create_multi_node_optimizer(
            optimizers.MomentumSGD(0.05), comm, double_buffering=double_buffering
        ).setup(model)
        x = device.send(_draw(comm, 6, 16, 64))
        t = device.send((np.arange(16) % 4).astype(np.int32))
        for rows in x:
            optimizer.update(model, rows, t)
        return {name: param.array for name, param in sorted(model.namedparams())}

    return training


CHECKS: dict[str, Check] = {
    "collectives": _collectives,
    "dropped sources": _dropped_sources,
    "training": _training(),
    "training, double buffering": _training(double_buffering=True),
}
"""Maps names to functions of a communicator and a device; the returned arrays must equal the arrays
that ranks compute on CPUs with MPI, to rounding."""


def compare(check: Check, comm: Communicator, device: Device) -> dict[str, object]:
    """Returns whether a check gives the same results on the ranks' devices as on their CPUs.

    Args:
        check: the check; collective.
        comm: the ranks.
        device: this rank's device.

    Returns:
        dict: ``ok``, and ``error``: the largest difference, relative to an array's largest number.

    Example:
        >>> compare(CHECKS["collectives"], comm, mpchain.get_device("@numpy"))
        {'ok': True, 'error': 0.0}
    """
    wanted = check(comm, get_device("@numpy"))
    with device.create_context():
        got = check(comm, device)
    errors = [difference(cuda.to_cpu(got[name]), wanted[name]) for name in wanted]
    worst = float(max(comm.allgather_obj(np.max(errors))))
    return {"ok": worst <= TOLERANCE, "error": worst}


def refusal_of_one_gpu(comm: Communicator, device: Device) -> dict[str, object]:
    """Returns whether ranks that share a GPU get an error that names this cause.

    Example:
        >>> refusal_of_one_gpu(comm, mpchain.get_device("@cupy:0"))  # doctest: +SKIP
        {'ok': True, 'error': 0.0}
    """
    try:
        with device.create_context():
            comm.allreduce(device.xp.ones(3, np.float32))
    except RuntimeError as error:
        is_clear = "use the same GPU" in str(error)
        return {"ok": is_clear, "error": 0.0 if is_clear else str(error)}
    return {"ok": False, "error": "no error"}


def seconds_of_a_sum(comm: Communicator, device: Device, n_bytes: int = N_BYTES) -> float:
    """Returns the time of an all-reduce in seconds, measured by the GPU's clock.

    Example:
        >>> seconds_of_a_sum(comm, mpchain.get_device("@cupy:0"))  # doctest: +SKIP
        0.0004
    """
    with device.create_context():
        x = device.xp.ones(n_bytes // 4, np.float32)
        comm.allreduce(x)
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        for _ in range(N_TIMED):
            comm.allreduce(x)
        end.record()
        end.synchronize()
    return cuda.cupy.cuda.get_elapsed_time(begin, end) / 1e3 / N_TIMED


def _works(binding):
    try:
        find_binding(binding)
    except RuntimeError:
        return False
    return True


def _check_nccl(comm, device):
    """Yields (name, result) of all checks."""
    for name, check in CHECKS.items():
        yield name, compare(check, comm, device)
    for binding in filter(_works, BINDINGS):
        with type(comm)(comm.mpi_comm, binding=binding) as other:
            yield f"collectives by {binding}", compare(_collectives, other, device)
    n_bytes = 1 << 20 if is_double() else N_BYTES
    seconds = seconds_of_a_sum(comm, device, n_bytes)
    yield f"all-reduce of {n_bytes >> 20} MiB", {"ok": True, "seconds": seconds}


def _check_one_gpu(comm, device):
    yield "NCCL refuses two ranks on one GPU", refusal_of_one_gpu(comm, device)
    staged = create_communicator("non_cuda_aware", timeout=TIMEOUT)
    yield "training, through host memory", compare(CHECKS["training"], staged, device)


def run(comm: Communicator, *, share_gpu: bool) -> None:
    """Runs the checks, and prints the results on rank 0; all ranks call this function.

    Args:
        comm: the ranks.
        share_gpu: whether the ranks share one GPU without NCCL's permission
            (``NCCL_MULTI_RANK_GPU_ENABLE``).

    Raises:
        Exception: a check raised an exception; the rank prints the traceback first.

    Example:
        >>> run(mpchain.create_communicator("pure_nccl"), share_gpu=False)  # doctest: +SKIP
        {"name": "collectives", "ok": true, "error": 1.2e-07}
        ...
    """
    device = get_device(f"@cupy:{comm.intra_rank % cuda.device_count()}")
    results = (_check_one_gpu if share_gpu else _check_nccl)(comm, device)
    while True:
        try:
            name, result = next(results)
        except StopIteration:
            return
        except Exception:
            error = f"rank {comm.rank}: {traceback.format_exc()}"
            print(json.dumps({"name": "an exception", "ok": False, "error": error}), flush=True)
            raise
        if comm.rank == 0:
            print(json.dumps({"name": name, **result}), flush=True)


if __name__ == "__main__":
    allowed = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    share_gpu = cuda.device_count() == 1 and not allowed
    run(create_communicator("pure_nccl", timeout=TIMEOUT), share_gpu=share_gpu)
