"""Communicators: groups of ranks that send each other arrays and objects."""

import math
import os
import sys
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.nccl_bindings import find_binding
from mpchain.distributed.communicators import environment
from mpchain.distributed.communicators.communicator import Communicator as Communicator
from mpchain.distributed.communicators.mpi import DummyCommunicator as DummyCommunicator
from mpchain.distributed.communicators.mpi import MpiCommunicator as MpiCommunicator
from mpchain.distributed.communicators.mpi import load_mpi
from mpchain.distributed.communicators.nccl import NcclCommunicator as NcclCommunicator
from mpchain.distributed.watch import check_timeout
from mpchain.kernels import thresholds
from mpchain.observers import current
from mpchain.typing import DTypeLike

CommunicatorBase = Communicator

_CLASSES = {
    "naive": MpiCommunicator,
    "flat": MpiCommunicator,
    "non_cuda_aware": MpiCommunicator,
    "pure_nccl": NcclCommunicator,
    "hierarchical": NcclCommunicator,
    "two_dimensional": NcclCommunicator,
    "single_node": NcclCommunicator,
    "dummy": DummyCommunicator,
}


ELASTIC_VARIABLE = "MPCHAIN_ELASTIC"

MICRO_SHARDS = 12
"""Default number of micro-shards into which a reproducible communicator divides batches."""


def create_communicator(
    communicator_name: str | None = None,
    mpi_comm: object = None,
    *,
    allreduce_grad_dtype: DTypeLike | None = None,
    batched_copy: bool = True,
    reproducible: bool = False,
    micro_shards: int = MICRO_SHARDS,
    timeout: float | None = None,
    elastic: bool | None = None,
) -> Communicator:
    """Makes the communicator of this launch.

    A single process, started without ``mpirun`` or as its only rank, gets a :class:`Communicator`,
    which needs no mpi4py. With several ranks, an uncaught exception on one rank ends all ranks;
    this function installs the hook that does so (:mod:`mpchain.distributed.global_except_hook`).

    Args:
        communicator_name: None chooses NCCL if there are GPUs and NCCL, and otherwise MPI.
            ``naive`` and ``non_cuda_aware`` use MPI, and copy CuPy arrays through host memory;
            ``flat`` uses a CUDA-aware MPI, which gets CuPy arrays directly; ``pure_nccl`` (also
            ``hierarchical``, ``two_dimensional``, ``single_node``) uses NCCL for CuPy arrays and
            MPI for all else; ``dummy`` does not sum gradients, which shows how much time the sums
            take.
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks; None means all of the job.
        allreduce_grad_dtype: dtype in which gradients are summed: float16, float32 or float64; NCCL
            only.
        batched_copy: kept for ChainerMN's programs; gradients are always summed in buckets.
        reproducible: whether any number of ranks computes the same parameters and persistent values
            (running statistics) to the bit. :class:`~mpchain.distributed.MultiNodeUpdater`, or
            ``update`` of a multi-node optimizer within ``comm.batch``, then divides each batch into
            ``micro_shards`` micro-shards, whose gradients are summed in a fixed order. Training is
            slower: a step computes its micro-shards one after another, and sums only after the
            last one. All convolutions of this process on the CPU are then computed as sums of
            products, not in tiles.
        micro_shards: the number of micro-shards, at least the number of ranks. The result depends
            on it, but is the same on all numbers of ranks up to it. Steps are fastest if it is a
            multiple of the number of ranks; otherwise ranks wait for those with one micro-shard
            more.
        timeout: seconds after which a rank that waits for others ends the job, if one of them does
            not work: it is stopped or dead, or has neither computed nor read nor written for that
            long. A report names that rank, and says where in the program each rank is. As long as
            all of them work, the waiting rank reports the wait once, and waits up to 1800 s (or
            ``timeout``, if that is longer), or without limit at the end of the program. None uses
            the environment variable ``MPCHAIN_COLLECTIVE_TIMEOUT``, or 300; with ``inf``, ranks
            wait forever.
        elastic: whether training continues without ranks that die, or that are killed because they
            do not work for ``timeout`` seconds (:class:`~mpchain.distributed.InMemoryCheckpoint`).
            Training then needs Open MPI, started by ``mpirun --with-ft ulfm`` or ``mpchain-launch
            --elastic``. None is True if the environment variable ``MPCHAIN_ELASTIC`` is 1.

    Raises:
        ValueError: the name is unknown, ``allreduce_grad_dtype`` does not fit it,
            ``micro_shards`` is less than the number of ranks, or ``timeout`` is not positive.
        RuntimeError: mpi4py is missing under ``mpirun``; ``mpirun`` and mpi4py belong to different
            MPI installations; NCCL is named but there is no GPU or no NCCL; ``elastic`` is set but
            the MPI library cannot lose ranks; or the job has spare ranks, for which
            :func:`~mpchain.distributed.run_elastic` makes the communicator.

    Example:
        >>> comm = mpchain.create_communicator()
        >>> comm.rank, comm.size
        (0, 1)
    """
    if communicator_name is not None and communicator_name not in _CLASSES:
        names = ", ".join(sorted(_CLASSES))
        raise ValueError(
            f"create_communicator: unknown name {communicator_name!r}; the names are {names}"
        )
    timeout = check_timeout(timeout)
    mpi_comm = _ranks(mpi_comm)
    if elastic is None:
        elastic = os.environ.get(ELASTIC_VARIABLE) == "1"
    communicator_class = _choose_class(communicator_name, mpi_comm)
    options: dict[str, Any] = {"elastic": True} if elastic else {}
    if allreduce_grad_dtype is not None:
        options["allreduce_grad_dtype"] = _gradient_dtype(communicator_class, allreduce_grad_dtype)
    if communicator_name == "flat":
        options["cuda_aware"] = True
    comm = Communicator() if mpi_comm is None else communicator_class(mpi_comm, **options)
    comm.timeout = timeout
    comm.micro_shards = micro_shards if reproducible else None
    if reproducible:
        thresholds.put(tiles=math.inf)
    comm.set_config("batched_copy", batched_copy)
    for observer in current.observers or ():
        observer.communicator(comm)
    return comm


def _choose_class(name, mpi_comm):
    if name is None:
        several = mpi_comm is not None and mpi_comm.size > 1
        return NcclCommunicator if several and _has_nccl() else MpiCommunicator
    if _CLASSES[name] is NcclCommunicator:
        try:
            cuda.check_cuda_available()
        except RuntimeError as error:
            raise RuntimeError(f"create_communicator: {name!r} needs a GPU: {error}") from error
        try:
            find_binding()
        except RuntimeError as error:
            raise RuntimeError(f"create_communicator: {name!r} needs NCCL: {error}") from error
    return _CLASSES[name]


def _has_nccl():
    if not cuda.available:
        return False
    try:
        find_binding()
    except RuntimeError:
        return False
    return True


def _gradient_dtype(communicator_class, dtype):
    if communicator_class is not NcclCommunicator:
        raise ValueError(
            f"create_communicator: allreduce_grad_dtype={dtype!r} needs a communicator of NCCL, "
            "such as 'pure_nccl'; leave it out for others"
        )
    dtype = np.dtype(dtype)
    if dtype.name not in ("float16", "float32", "float64"):
        raise ValueError(
            "create_communicator: allreduce_grad_dtype must be float16, float32 or float64, "
            f"not {dtype}"
        )
    return dtype


def _ranks(mpi_comm):
    """Returns the MPI communicator of the job; None if there is only one process."""
    if mpi_comm is not None:
        return mpi_comm
    launch = environment.launched()
    if launch is None and "mpi4py.MPI" not in sys.modules:
        return None
    variable, n_ranks = launch or ("", 1)
    try:
        mpi = load_mpi()
    except RuntimeError as error:
        if n_ranks == 1:
            return None
        raise RuntimeError(
            f"create_communicator: this process is one of {n_ranks} ranks ({variable}); {error}"
        ) from error
    if mpi.COMM_WORLD.size == 1:
        if n_ranks > 1:
            raise RuntimeError(_mismatch(mpi, variable, n_ranks))
        return None
    if n := environment.n_spares():
        variable = environment.SPARES_VARIABLE
        raise RuntimeError(
            f"create_communicator: {mpi.COMM_WORLD.size} ranks include {n} spare "
            f"({variable}): call run_elastic, which makes the communicator and lets them wait"
        )
    return mpi.COMM_WORLD


def _mismatch(mpi, variable, n_ranks):
    if variable == environment.TORCHRUN_SIZE:
        return (
            f"create_communicator: torchrun started {n_ranks} processes ({variable}), but not as "
            f"ranks of MPI: start the program with mpchain-launch -n {n_ranks} or mpirun. (For "
            "independent processes give mpi_comm=MPI.COMM_SELF.)"
        )
    if variable == environment.SLURM_SIZE:
        return (
            f"create_communicator: srun started {n_ranks} processes ({variable}), but not as ranks "
            "of MPI: start the program with mpchain-launch or mpirun in the job, or with srun "
            "--mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH). (For independent processes give "
            "mpi_comm=MPI.COMM_SELF.)"
        )
    library = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    return (
        f"create_communicator: the launcher started {n_ranks} ranks or more ({variable}), but the "
        f"MPI library that mpi4py has loaded ({library}) sees only this one: they belong to "
        "different MPI installations. Start the program with the mpirun of that library, or "
        "install mpi4py against the launcher's. (For independent processes give "
        "mpi_comm=MPI.COMM_SELF.)"
    )
