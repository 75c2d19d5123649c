"""Fixtures of the tests that run in one process and on every rank of several.

A test in this folder must pass with any number of ranks, one included.
``test_under_mpirun.py`` runs the folder again under ``mpirun``.
"""

import os
import pathlib

import pytest

from mpchain.distributed import create_communicator
from mpchain.distributed.communicators import MpiCommunicator
from tests.distributed import ranks


@pytest.fixture(scope="session")
def comm():
    """The communicator of all ranks; under mpirun, even with one rank, that is an MPI one."""
    if ranks.MARK not in os.environ:
        return create_communicator()
    from mpi4py import MPI

    return MpiCommunicator(MPI.COMM_WORLD)


@pytest.fixture
def folder(comm, tmp_path):
    """A folder that all ranks know."""
    return pathlib.Path(comm.bcast_obj(str(tmp_path)))


@pytest.fixture
def needs_mpirun():
    """For tests that start ranks themselves."""
    if reason := ranks.why_not():
        pytest.skip(reason)
