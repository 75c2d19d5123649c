"""Detects that an MPI communicator has lost ranks, and continues without them.

MPI must be able to lose ranks through the interface ULFM (User-Level Failure Mitigation): calls
that involve a lost rank raise errors; any rank can revoke a communicator, which makes the calls of
all other ranks raise errors as well; and the surviving ranks can create a new communicator.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
from types import ModuleType
from typing import Any

from mpchain.backends.nccl_bindings import NcclError
from mpchain.distributed.communicators import progress
from mpchain.distributed.communicators.communicator import Communicator
from mpchain.distributed.watch import NeedsRestartError, RanksLost, add_look, losses, note

_BETWEEN_LOOKS = 0.005  # seconds between polls of a waiting rank
_DONE, _GOES_BACK = 1, 2  # flags that all ranks agree on
_UNTIL_NOTICED = 2.0  # seconds after an MPI error within which lost ranks must be found

_OF_GARBAGE = (
    pickle.UnpicklingError,
    *(ArithmeticError, AttributeError, BufferError, EOFError, ImportError),
    *(LookupError, MemoryError, TypeError, ValueError),
)
"""Exceptions that a collective may raise after a loss, because it received garbage."""


def can_lose_ranks() -> bool:
    """Returns whether MPI was started with support for losing ranks.

    >>> can_lose_ranks()
    False
    """
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "0") not in ("0", "false")


def finalize_unless_lost() -> None:
    """Finalizes MPI at the end of the program, unless ranks were lost: MPI would wait for them."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized() and not Elasticity.any_is_lost:
        mpi.Finalize()


def check_can_lose_ranks(mpi: ModuleType) -> None:
    """Raises RuntimeError unless this job's MPI can lose ranks.

    Args:
        mpi: the module ``mpi4py.MPI``.
    """
    library = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    if "Open MPI" not in library or not hasattr(mpi.Comm, "Shrink"):
        raise RuntimeError(
            "create_communicator: elastic=True needs Open MPI 5, which survives the loss of ranks, "
            f"and mpi4py 4, but the MPI library is {library}"
        )
    if not can_lose_ranks():
        raise RuntimeError(
            "create_communicator: elastic=True needs fault tolerance, which MPI was started "
            "without: start the program by mpchain-launch --elastic, or by mpirun --with-ft ulfm"
        )


class Elasticity:
    """Notices that a communicator has lost ranks, and rebuilds it from the surviving ranks.

    This rank, or its watchdog's thread while the rank computes or waits within MPI, notices the
    loss and revokes all MPI communicators of the communicator. All ranks therefore raise
    :class:`RanksLost`.

    Args:
        comm: the communicator.
        mpi: the module ``mpi4py.MPI``.
    """

    any_is_lost = False
    """Whether any communicator of this process has lost ranks."""

    timeout = 2.0
    """Seconds during which the watchdog's thread looks for lost ranks twenty times."""

    def __init__(self, comm: Communicator, mpi: ModuleType):
        check_can_lose_ranks(mpi)
        self._comm, self._mpi = comm, mpi
        self._turn = threading.Lock()  # held while the MPI communicators are replaced
        self._has_lost = self._is_retired = False
        self._looked_at = 0.0
        losses.detectors.append(self)
        if mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            add_look(self)

    # These methods detect lost ranks.

    def check(self) -> None:
        now = time.monotonic()
        if self._has_lost or now - self._looked_at > _BETWEEN_LOOKS:
            self._looked_at = now
            if self._notices():
                raise self._loss()

    def loss_behind(self, error: Exception, *, in_collective: bool) -> RanksLost | None:
        signs = self._mpi.Exception, NcclError, *(_OF_GARBAGE if in_collective else ())
        # After work on GPUs was aborted, its results are undefined, so any error may follow.
        if not (self._has_lost or isinstance(error, signs)):
            return None
        # NCCL may notice earlier than MPI that a host has lost its network.
        patience = self._comm.timeout if getattr(error, "is_of_others", False) else _UNTIL_NOTICED
        end = time.monotonic() + patience
        while not self._notices():
            if time.monotonic() > end:
                return None
            time.sleep(1e-4)
        return self._loss()

    def look(self, now: float) -> None:
        """Looks for lost ranks; the watchdog's thread calls this method."""
        if not self._mpi.Is_finalized():
            self._notices()

    def tell_end(self) -> None:
        """Does nothing; the watchdog's thread calls this method when the program is over."""

    def _notices(self):
        """Returns whether ranks are lost, and lets the other ranks notice it, too."""
        with self._turn:
            base = self._comm.mpi_comm
            if base is None or self._is_retired:
                return False
            if not self._has_lost:
                with contextlib.suppress(self._mpi.Exception):
                    base.Iprobe(self._mpi.ANY_SOURCE)  # MPI detects failures only during calls
                self._has_lost = base.Is_revoked() or base.Get_failed().size > 0
            if self._has_lost:
                Elasticity.any_is_lost = True
                self._revoke()
            return self._has_lost

    def _revoke(self):
        parts = [part for part in list(self._comm.needs_all) if isinstance(part, Communicator)]
        for comm in [self._comm, *parts]:
            for mpi_comm in [comm.mpi_comm, *comm.owned]:
                with contextlib.suppress(self._mpi.Exception):
                    mpi_comm.Revoke()
        # Work on GPUs is aborted last: an abort that fails cannot keep the other ranks from
        # noticing the loss.
        for comm in [self._comm, *parts]:
            comm.end_work()

    def _loss(self):
        base, watch = self._comm.mpi_comm, self._comm.watch
        group, failed = base.Get_group(), base.Get_failed()
        ranks = sorted(self._mpi.Group.Translate_ranks(failed, None, group))
        return RanksLost(ranks, {rank: watch.cause_of(rank) for rank in ranks})

    # These methods rebuild the communicator.

    def abandon(self) -> None:
        """Abandons the communicator, although other ranks may still wait in it; not collective."""
        with self._turn:
            if self._comm.mpi_comm is not None:  # the constructor has run up to this point
                self._revoke()
                self._comm.end_work(for_good=True)
        self.retire()
        if self._comm.watch is not None:
            self._comm.watch.be_replaced()

    def retire(self) -> None:
        """Stops looking for lost ranks, because the communicator is not used any more."""
        if self in losses.detectors:
            losses.detectors.remove(self)
        with self._turn:
            self._is_retired = True

    def agree(self) -> None:
        """See :meth:`Communicator.agree`."""
        with self._waiting("the agreement that no rank is lost"):
            try:
                has_all = self._comm.mpi_comm.Agree(int(not self._has_lost))
            except self._mpi.Exception:
                has_all = False
        if not has_all:
            self._has_lost = True
            self._notices()
            raise self._loss()

    def _waiting(self, text):
        watch = self._comm.watch
        return contextlib.nullcontext() if watch is None else watch.waiting(text)

    def shrink(self, goes_back: bool) -> bool:
        """See :meth:`Communicator.shrink`; all communicators of the process shrink."""
        for detector in losses.detectors:
            if reasons := detector.refusals():
                refuse("; ".join(reasons))
        return all([detector.shrink_own(goes_back) for detector in losses.detectors])

    def shrink_own(self, goes_back: bool) -> bool:
        """Shrinks this communicator, but no other communicator of the process."""
        comm, old, watch = self._comm, self._comm.mpi_comm, self._comm.watch
        if watch is None:
            return goes_back  # only one rank is left
        with self._turn:
            self._has_lost = True
            self._revoke()
        base = old
        with self._waiting("the agreement on the surviving ranks"):
            while True:
                base = base.Shrink()
                flags = self._rebuild(base, goes_back)
                if flags & _DONE:
                    break
        progress.forget_all()
        comm.forget_messages()
        for dependent in list(comm.dependents):
            dependent.fit_to_ranks()
        left = self._mpi.Group.Translate_ranks(base.Get_group(), None, old.Get_group())
        lost = sorted(set(range(old.size)) - set(left))
        causes = {watch.world_ranks[rank]: watch.cause_of(rank) for rank in lost}
        comm.lost_ranks |= causes
        if causes:
            Elasticity.any_is_lost = True
            note("lost", ranks=list(causes), causes=causes)
        return bool(flags & _GOES_BACK)

    def refusals(self) -> list[str]:
        """Returns the reasons why training cannot continue on fewer ranks."""
        return sorted(set(self._comm.needs_all.values()))

    def _rebuild(self, base: Any, goes_back: bool) -> int:
        """Rebuilds the communicator on ``base``; returns the flags that all ranks have set. Returns
        0 if a rank failed to rebuild or was lost meanwhile."""
        comm, watch = self._comm, self._comm.watch
        with self._turn:
            comm.mpi_comm, comm.owned, self._has_lost = base, [], False
        try:
            comm.join(base)
            flags = _DONE | _GOES_BACK * goes_back
        except Exception as error:
            flags, is_of_mpi = 0, isinstance(error, RuntimeError)  # or of NCCL
            follows_from_loss = is_of_mpi or follows_from_loss_in(base, error)
            with self._turn:
                self._revoke()
            if not follows_from_loss:
                raise
        with contextlib.suppress(self._mpi.Exception):  # all ranks raise the error, or none does
            flags = base.Agree(flags)
            if flags & _DONE:
                watch.be_replaced()
                return flags
        if comm.watch not in (None, watch):
            comm.watch.be_replaced()
        comm.watch = watch
        return 0


def renew(comm: Communicator) -> Communicator:
    """Returns a copy of a communicator that keeps only its MPI communicators.

    The function makes no MPI communicator and sends nothing, because a rank could be lost
    meanwhile.
    """
    new = object.__new__(type(comm))
    vars(new).update((name, vars(comm)[name]) for name in comm.passed_on)
    Communicator.__init__(new)
    if comm.elasticity is not None:
        with comm.elasticity._turn:
            comm.elasticity._comm = new
    return new


def follows_from_loss_in(mpi_comm: Any, error: Exception) -> bool:
    """Returns whether lost ranks caused an exception; the answer may take a moment.

    Args:
        mpi_comm: ``mpi4py.MPI.Comm`` of the ranks.
        error: the exception, of any class, since calls that lose a rank may return garbage.
    """
    end = time.monotonic() + _UNTIL_NOTICED
    while not (isinstance(error, RanksLost) or mpi_comm.Is_revoked() or mpi_comm.Get_failed().size):
        if time.monotonic() > end:
            return False
        time.sleep(1e-3)
        with contextlib.suppress(RuntimeError):  # MPI's errors are RuntimeErrors
            mpi_comm.Iprobe()  # MPI detects failures only during calls
    return True


def refuse(reason: str) -> None:
    """Raises NeedsRestartError, and tells the launcher."""
    note("restart", cause=reason)
    raise NeedsRestartError(
        f"Communicator.shrink: training cannot continue without the lost ranks: {reason}; start it "
        "again from its last checkpoint"
    )
