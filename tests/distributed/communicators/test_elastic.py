"""Tests the detection of lost ranks, as far as one process can imitate it."""

import math
import pickle
import threading
import types

import pytest

from mpchain.backends import pynccl
from mpchain.backends.nccl_bindings import Connection, NcclError
from mpchain.distributed import RanksLost, create_communicator, scatter_dataset
from mpchain.distributed.communicators import MpiCommunicator, progress
from mpchain.distributed.communicators.elastic import (
    Elasticity,
    check_can_lose_ranks,
    follows_from_loss_in,
)
from mpchain.distributed.watch import NeedsRestartError


class LossDetector:
    def check(self):
        raise RanksLost([3], {3: "imitated"})

    def loss_behind(self, error, *, in_collective):
        return RanksLost([2], {2: "imitated"}) if isinstance(error, OSError) else None


@pytest.fixture
def detector(detect_losses):
    detect_losses(LossDetector())


def test_who_waits_learns_of_it(detector):
    with pytest.raises(RanksLost, match=r"^lost rank 3 \(imitated\)$") as caught:
        progress.wait_until(lambda: False)
    assert caught.value.ranks == [3] and caught.value.cause == {3: "imitated"}


def test_errors_that_follow_from_a_loss(detector):
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
    with pytest.raises(RuntimeError, match=r"needs Open MPI 5, .* but the MPI library is MPICH"):
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


class Imitated(Elasticity):
    """Detects a loss when the test says so, without an MPI that loses ranks."""

    def __init__(self, comm=None, notices=lambda: True, has_lost=False):
        self._comm, self._has_lost, self._notices = comm, has_lost, notices
        self._mpi = types.SimpleNamespace(Exception=OSError)
        self._turn = threading.Lock()

    def _loss(self):
        return "loss"

    def _revoke(self):
        pass

    def rebuild(self, base):
        return self._rebuild(base, True)


class Failing(Connection):
    """A connection by NCCL, whose calls fail with a given status."""

    def __init__(self):
        self.binding, self._nccl, self._comm = "pynccl", pynccl, None

    def _reason(self):
        return ""

    def fail(self, status):
        with self._explained():
            raise pynccl.Error("ncclX: imitated", status)


def test_what_is_divided_among_the_ranks_is_refused(detect_losses):
    comm = create_communicator()
    elasticity = Imitated(comm)
    detect_losses(elasticity)
    data = scatter_dataset(range(4), comm)
    with pytest.raises(
        NeedsRestartError, match="scatter_dataset has divided a data set; start it again"
    ):
        elasticity.shrink(True)
    del data
    assert elasticity.refusals() == []


@pytest.mark.parametrize(("status", "timeout", "learns"), [(6, 60, 1), (6, -1, 0), (4, 60, 0)])
def test_nccl_may_notice_earlier_than_mpi(status, timeout, learns, clock):
    """An error of NCCL that can follow from a lost rank is reported as that loss, if MPI notices
    the loss in time."""
    clock.step = 3.0  # longer than the detection of a lost rank takes
    looks = iter([False, False, True])
    elasticity = Imitated(types.SimpleNamespace(timeout=timeout), lambda: next(looks))
    with pytest.raises(
        NcclError, match=rf"^NCCL by pynccl: ncclX: imitated \({status}\)$"
    ) as caught:
        Failing().fail(status)
    found = elasticity.loss_behind(caught.value, in_collective=False)
    assert found == ("loss" if learns else None)


def test_what_follows_from_the_end_of_work_on_gpus():
    error = FloatingPointError("loss is nan")
    assert Imitated(has_lost=True).loss_behind(error, in_collective=False) == "loss"
    assert Imitated(has_lost=False).loss_behind(error, in_collective=False) is None


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (b"", EOFError),
        (b"\0\0\0", pickle.UnpicklingError),
        (b"cno_such_module\nx\n.", ImportError),
        (b"I1\n", EOFError),
        (b"\x8c\x01\xff.", UnicodeDecodeError),
    ],
)
def test_garbage_that_a_collective_received_may_follow_from_a_loss(received, expected):
    elasticity = Imitated()
    with pytest.raises(expected) as caught:
        pickle.loads(received)
    assert elasticity.loss_behind(caught.value, in_collective=True) == "loss"
    assert elasticity.loss_behind(caught.value, in_collective=False) is None


class _Base:
    """A communicator of MPI that finds after some polls that a rank is lost."""

    def __init__(self, n_looks):
        self.n_looks = n_looks

    def Is_revoked(self):
        return False

    def Get_failed(self):
        return types.SimpleNamespace(size=int(self.n_looks <= 0))

    def Iprobe(self):
        self.n_looks -= 1


def test_any_exception_may_follow_from_a_loss_while_ranks_find_each_other(clock):
    assert follows_from_loss_in(_Base(3), EOFError())
    assert follows_from_loss_in(_Base(math.inf), RanksLost([1], {1: "imitated"}))
    assert not follows_from_loss_in(_Base(math.inf), EOFError())


def test_a_communicator_is_made_again_if_garbage_came_as_another_rank_was_lost(clock):
    """An error that has another cause is raised."""
    for n_looks in (0, math.inf):
        comm = types.SimpleNamespace(watch=None, join=lambda base: pickle.loads(b""))
        elasticity = Imitated(comm)
        base = _Base(n_looks)
        base.Agree = lambda flags: flags
        if n_looks == 0:
            assert elasticity.rebuild(base) == 0
        else:
            with pytest.raises(EOFError):
                elasticity.rebuild(base)


def test_a_communicator_has_it_only_if_asked():
    assert MpiCommunicator.elasticity is None
