"""Fixtures of the tests that run in one process and on every rank of several.

A test in this folder must pass with any number of ranks, one included.
``test_under_mpirun.py`` runs those that use the fixture ``comm`` again under ``mpirun``.
"""

import functools
import os
import pathlib

import pytest

from mpchain.distributed import create_communicator
from mpchain.distributed.communicators import MpiCommunicator
from tests.distributed import ranks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what starts ranks as slow; on several ranks, leaves out what is the same on each."""
    for item in items:
        if "needs_mpirun" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    if ranks.MARK in os.environ:
        same = [item for item in items if "comm" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=same)
        items[:] = [item for item in items if item not in same]


@functools.cache  # a process may run pytest several times
def _all_ranks():
    from mpi4py import MPI

    return MpiCommunicator(MPI.COMM_WORLD)


@pytest.fixture(scope="session")
def comm():
    """The communicator of all ranks; under mpirun, even with one rank, that is an MPI one."""
    return _all_ranks() if ranks.MARK in os.environ else create_communicator()


@pytest.fixture
def folder(comm, tmp_path):
    """A folder that all ranks know."""
    return pathlib.Path(comm.bcast_obj(str(tmp_path)))


@pytest.fixture
def needs_mpirun():
    """For tests that start ranks themselves."""
    if reason := ranks.why_not():
        pytest.skip(reason)
