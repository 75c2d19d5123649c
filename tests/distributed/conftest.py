"""Fixtures of tests that run in one process and on each of several ranks.

A test in this folder must pass with any number of ranks, including one. ``test_under_mpirun.py``
runs the tests that use the fixture ``comm`` again under ``mpirun``.
"""

import functools
import os
import pathlib

import pytest

import mpchain
from mpchain.distributed import create_communicator
from mpchain.distributed.communicators import (
    MpiCommunicator,
    NcclCommunicator,
    arrays,
    mpi,
    nccl,
    progress,
)
from mpchain.distributed.gradients import buckets, control, replication
from mpchain.distributed.optimizers import counts, sharded
from mpchain.distributed.watch import losses
from tests.distributed import devices, ranks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks this folder as slow; on several ranks, deselects tests that are the same on each
    rank."""
    folder = f"{pathlib.Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker("slow")
    if ranks.MARK in os.environ:
        same = [item for item in items if "comm" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=same)
        items[:] = [item for item in items if item not in same]


def pytest_generate_tests(metafunc):
    """Adds a variant on GPUs to the tests with ``comm`` of a file that has ``ON_GPUS = True``."""
    if "comm" in metafunc.fixturenames and getattr(metafunc.module, "ON_GPUS", False):
        gpus = pytest.param("gpus", marks=pytest.mark.gpu)
        metafunc.parametrize("comm", ["host", gpus], indirect=True)


@functools.cache  # the cache serves processes that run pytest several times
def _all_ranks():
    from mpi4py import MPI

    return MpiCommunicator(MPI.COMM_WORLD)


@functools.cache
def _all_gpus(binding):
    MPI = pytest.importorskip("mpi4py.MPI")
    return NcclCommunicator(MPI.COMM_WORLD, binding=binding)


@pytest.fixture
def comm(request):
    """Returns the communicator of all ranks. On the host, under mpirun, it is an MPI communicator,
    even with one rank."""
    if getattr(request, "param", "host") == "host":
        yield _all_ranks() if ranks.MARK in os.environ else create_communicator()
        return
    comm = _all_gpus(request.config.option.nccl)
    with devices.using(mpchain.get_device(f"@cupy:{comm.intra_rank}")):
        yield comm


@pytest.fixture
def folder(comm, tmp_path):
    """Returns the path of a folder that all ranks use."""
    return pathlib.Path(comm.bcast_obj(str(tmp_path)))


LIMITS = {
    "at_once": (progress, "MOST_AT_ONCE"),
    "bucket_bytes": (buckets, "BUCKET_BYTES"),
    "first_gpu_bucket_bytes": (buckets, "FIRST_GPU_BUCKET_BYTES"),
    "gpu_bucket_bytes": (buckets, "GPU_BUCKET_BYTES"),
    "in_group": (nccl, "MOST_IN_GROUP"),
    "large": (mpi, "LARGE"),
    "large_part": (mpi, "LARGE_PART"),
    "names": (control, "MOST_NAMES"),
    "piece": (arrays, "PIECE"),
    "replicated_bytes": (replication, "BUCKET_BYTES"),
    "sharded_bytes": (sharded, "BUCKET_BYTES"),
    "sites": (counts, "_MOST_SITES"),
}


@pytest.fixture
def set_limits(monkeypatch):
    """Returns a function that sets limits of communication, by their names in ``LIMITS``."""

    def set_limits(**values):
        for name, value in values.items():
            monkeypatch.setattr(*LIMITS[name], value)

    return set_limits


@pytest.fixture
def split_hosts(monkeypatch):
    """Returns a function that sets the imitated host of each rank, as a function of the rank."""

    def split_hosts(host_of):
        split = lambda comm: comm.mpi_comm.Split(host_of(comm.rank), comm.rank)
        monkeypatch.setattr(MpiCommunicator, "_split_by_host", split)

    return split_hosts


@pytest.fixture
def detect_losses():
    """Returns a function that makes an object the only detector of lost ranks in the test."""
    before = losses.detectors[:]

    def detect_losses(detector):
        losses.detectors[:] = [detector]

    yield detect_losses
    losses.detectors[:] = before


@pytest.fixture
def note_calls(monkeypatch):
    """Returns a function that records calls of methods, and returns a list of their positional
    arguments."""

    def note_calls(comm, *names):
        calls = []
        for name in names:
            method = getattr(comm, name)
            call = lambda *args, method=method, **kw: calls.append(args) or method(*args, **kw)
            monkeypatch.setattr(comm, name, call)
        return calls

    return note_calls


@pytest.fixture
def needs_mpirun():
    """Skips a test that starts ranks if no ranks can be started."""
    if reason := ranks.why_not():
        pytest.skip(reason)
