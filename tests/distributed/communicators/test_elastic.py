"""Noticing lost ranks, as far as one process can imitate it."""

import types

import pytest

from mpchain.distributed import RanksLost, create_communicator, scatter_dataset
from mpchain.distributed.communicators import MpiCommunicator, progress
from mpchain.distributed.communicators.elastic import Elasticity, check_can_lose_ranks
from mpchain.distributed.watch import NeedsRestartError, losses


class Lookout:
    def check(self):
        raise RanksLost([3], {3: "imitated"})

    def loss_behind(self, error):
        return RanksLost([2], {2: "imitated"}) if isinstance(error, OSError) else None


@pytest.fixture
def lookout(monkeypatch):
    monkeypatch.setattr(losses, "lookouts", [Lookout()])


def test_who_waits_learns_of_it(lookout):
    with pytest.raises(RanksLost, match=r"^lost rank 3 \(imitated\)$") as caught:
        progress.wait_until(lambda: False)
    assert caught.value.ranks == [3] and caught.value.cause == {3: "imitated"}


def test_errors_that_follow_from_a_loss(lookout):
    def steps(error):
        yield
        raise error

    for error, expected in ((OSError(), RanksLost), (ZeroDivisionError(), ZeroDivisionError)):
        request = progress.PendingOperation(steps(error))
        with pytest.raises(expected):
            request.Wait()
        progress.forget_all()
    with pytest.raises(RanksLost, match="lost rank 2"):
        progress.wait_until(lambda: open("/nowhere/at/all"))


def _mpi(library):
    comm = type("Comm", (), {"Shrink": None})
    return types.SimpleNamespace(Get_library_version=lambda: library, Comm=comm)


def test_which_mpi_can_lose_ranks(monkeypatch):
    with pytest.raises(RuntimeError, match="needs Open MPI, which can lose ranks, not MPICH"):
        check_can_lose_ranks(_mpi("MPICH Version:      4.3\nMPICH"))
    monkeypatch.delenv("OMPI_MCA_mpi_ft_enable", raising=False)
    with pytest.raises(RuntimeError, match="mpirun --with-ft ulfm"):
        check_can_lose_ranks(_mpi("Open MPI v5.0.8, package"))
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    check_can_lose_ranks(_mpi("Open MPI v5.0.8, package"))


def test_one_process_has_no_ranks_to_lose(monkeypatch):
    assert not create_communicator(elastic=True).is_elastic
    monkeypatch.setenv("MPCHAIN_ELASTIC", "1")
    comm = create_communicator()
    assert comm.shrink() and comm.renewed() is not comm and comm.agree() is None


def test_what_is_divided_among_the_ranks_is_refused(monkeypatch):
    comm = create_communicator()
    elasticity = object.__new__(Elasticity)
    elasticity._comm = comm
    monkeypatch.setattr(losses, "lookouts", [elasticity])
    data = scatter_dataset(range(4), comm)
    with pytest.raises(
        NeedsRestartError, match="scatter_dataset has divided a data set; start it again"
    ):
        elasticity.shrink(True)
    del data
    elasticity._check_refusals()


def test_a_communicator_has_it_only_if_asked():
    assert MpiCommunicator._elasticity is None
