"""Spare ranks of an elastic job, which wait and then replace lost ranks."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpchain.distributed import global_except_hook
from mpchain.distributed.communicators import Communicator, MpiCommunicator, create_communicator
from mpchain.distributed.communicators.elastic import (
    Elasticity,
    follows_from_loss_in,
    refuse,
)
from mpchain.distributed.communicators.mpi import load_mpi
from mpchain.distributed.objects import allgather
from mpchain.distributed.watch import losses, note, waiting_for

_NAP = 0.05  # seconds between polls of a spare rank
_DISMISSED = 1  # the tag of the messages that dismiss spare ranks

NO_LOSS = None, 0, 0.0


class Spares:
    """The ranks of a job, of which the last are spare ranks; tracks the ranks that train.

    The function that trains runs on all but the spare ranks. When some of the training ranks are
    lost, the others leave the function, spare ranks take the places of the lost ranks, and all of
    them begin the function again. Each :class:`~mpchain.distributed.InMemoryCheckpoint` in it then
    continues from its latest copies.

    Args:
        n: the number of spare ranks.
        options: arguments of :func:`~mpchain.create_communicator`.

    Attributes:
        n: the number of spare ranks that are left.
        resumes: whether training begins again.
        lost: the reasons why ranks were lost between the last two beginnings of training, by the
            rank's id in the job.
        replaced: a dict from each lost rank to the rank that then replaced it.
        loss: about the ``InMemoryCheckpoint`` in which this rank noticed a loss: its list of
            copies, its iteration, and the time.
    """

    def __init__(self, n: int, options: Mapping[str, Any]):
        self._mpi = load_mpi()
        world = self._mpi.COMM_WORLD
        if n >= world.size:
            raise ValueError(
                f"run_elastic: of {world.size} ranks, {n} cannot be spare: at least one must train"
            )
        if options.get("mpi_comm") is not None:
            raise ValueError("run_elastic: mpi_comm must be None if the job has spare ranks")
        self._options, self._me = options, world.rank
        self._everyone = MpiCommunicator(world, elastic=True)
        self._everyone.elasticity.retire()  # a lost spare rank does not disturb training
        self._everyone.timeout = options.get("timeout")
        self._hosts = allgather(world, self._mpi.Get_processor_name())
        # The index is a place in training, the value the rank that fills it.
        self._places = list(range(world.size - n))
        self.n, self.resumes = n, False
        self.lost, self.replaced, self.loss = {}, {}, NO_LOSS
        self._told = set()
        self._refusals = []
        self._copies, self._n_made = [], 0
        global_except_hook.add_hook()

    # These methods run around training.

    def copies_of_next(self) -> list:
        """Returns the list of copies for the ``InMemoryCheckpoint`` that is now made; if the
        program has made it before, the list has its copies."""
        if self._n_made == len(self._copies):
            self._copies.append([])
        self._n_made += 1
        return self._copies[self._n_made - 1]

    def wait_for_all(self, comm: Communicator) -> None:
        """Waits until all ranks that train have finished.

        Raises:
            RanksLost: ranks are lost.
        """
        watch = comm.watch
        if watch is not None:
            watch.is_leaving = True  # a wait of any length in the barrier is no failure
        try:
            comm.barrier()
        finally:
            if watch is not None:
                watch.is_leaving = False

    def dismiss(self) -> None:
        """Dismisses all spare ranks, which then exit."""
        base = self._everyone.mpi_comm
        with contextlib.suppress(self._mpi.Exception):
            Elasticity.any_is_lost |= base.Get_failed().size > 0
            for rank, number in enumerate(self._left()):
                if number not in self._places:
                    base.Isend(np.empty(0), rank, _DISMISSED)

    def note_refusals(self, comm: Communicator) -> None:
        """Records why training could not continue on fewer ranks, while its objects still exist."""
        self._refusals = sorted({*self._refusals, *comm.elasticity.refusals()})

    # These methods choose the ranks that train.

    def begin(self) -> Communicator:
        """Returns the communicator of the ranks that train; a spare rank waits until it is needed.

        Raises:
            SystemExit: training is over, and this spare rank was not needed.
        """
        comm = self._next(dict(enumerate(self._places)))
        assert comm is not None  # training has not finished on any rank
        return comm

    def begin_again(self, comm: Communicator, *, has_finished: bool) -> Communicator | None:
        """Replaces lost ranks; collective over all surviving ranks.

        Args:
            comm: the communicator of the ranks that train.
            has_finished: whether this rank has finished.

        Returns:
            A new communicator; None if all ranks have finished and none is lost.
        """
        self._places = [rank for rank in self._places if rank not in comm.lost_ranks]
        is_over, places = self._regroup(has_finished)
        if is_over:
            return None
        self.resumes = True
        return self._next(places)

    def _next(self, places, is_over=False):
        while True:
            made = None
            while not is_over and (made := self._divide(places)) is None:
                is_over, places = self._regroup(False)
            if made is None:
                raise SystemExit
            if self._me in self._places:
                return made[0]
            self._wait()
            is_over, places = self._regroup(True)

    def _left(self):
        """Returns the surviving ranks, numbered as in the whole job."""
        watch = self._everyone.watch
        return [self._me] if watch is None else list(watch.world_ranks)

    def _regroup(self, has_finished):
        """Finds the surviving ranks; returns whether all have finished, and the rank for each
        place."""
        all_finished = self._everyone.elasticity.shrink_own(has_finished)
        left = self._left()
        is_over = all_finished and set(self._places) <= set(left)
        if not is_over and not set(self._places) & set(left):
            refuse("all ranks that trained are lost, and spare ranks have no state")
        return is_over, fill(self._places, left, self._hosts)

    def _divide(self, places):
        """Makes the communicator of the ranks that train; returns a tuple of it, or of None on a
        spare rank; returns None if ranks were lost meanwhile."""
        if self._refusals and len(places) < len(self._places):
            refuse("; ".join(self._refusals))
        while losses.detectors:
            losses.detectors[0].abandon()
        base, comm = self._everyone.mpi_comm, None
        place = next((i for i, rank in places.items() if rank == self._me), None)
        trains = place is not None
        color = 0 if trains else self._mpi.UNDEFINED
        try:
            with waiting_for(self._everyone, "the ranks that begin training again"):
                part = base.Split(color, place or 0)
            if trains:
                comm = create_communicator(**{**self._options, "mpi_comm": part})
                if len(places) == base.size and comm.watch is not None:
                    comm.watch.watch_end(part)  # from now on, this communicator shrinks by itself
            is_made = True
        except Exception as error:
            if not follows_from_loss_in(base, error):
                raise
            is_made = False
            base.Revoke()
        try:
            is_made = base.Agree(int(is_made))
        except self._mpi.Exception:  # all ranks raise the error, or none does
            is_made = False
        if not is_made:
            return None
        self._take(places, comm)
        return (comm,)

    def _take(self, places, comm):
        """Records the rank that fills each place."""
        before = self._places
        self.replaced = {before[i]: r for i, r in places.items() if r != before[i]}
        for lost, rank in self.replaced.items():
            if rank == self._me:
                note("replaced", rank=lost)
        self._places = list(places.values())
        self.n = len(self._left()) - len(places)
        self.lost = {r: c for r, c in self._everyone.lost_ranks.items() if r not in self._told}
        self._told |= self.lost.keys()
        self._n_made, self._refusals = 0, []
        if comm is not None:
            comm.spares = self
            comm.lost_ranks |= self._everyone.lost_ranks

    def _wait(self):
        """Sleeps until the training ranks need this spare rank, or have finished.

        Raises:
            SystemExit: the training ranks have dismissed this rank.
        """
        base, mpi = self._everyone.mpi_comm, self._mpi
        members = base.Get_group()
        with _ignored_signals():
            while not base.Is_revoked():
                with contextlib.suppress(mpi.Exception):
                    if base.Iprobe(mpi.ANY_SOURCE, _DISMISSED):
                        raise SystemExit
                failed = base.Get_failed()
                if failed.size:
                    base.Ack_failed()  # Iprobe would raise an error for lost ranks
                    ranks = mpi.Group.Translate_ranks(failed, None, members)
                    left = self._left()
                    if set(self._places) <= {left[rank] for rank in ranks}:
                        base.Revoke()
                time.sleep(_NAP)
        self.resumes = True


def fill(places: Sequence[int], left: Sequence[int], hosts: Sequence[str]) -> dict[int, int]:
    """Returns the rank for each place after ranks were lost; some places may remain empty.

    A spare rank takes a place on its own host if possible.

    Args:
        places: the previous rank of each place.
        left: the surviving ranks, including spare ranks.
        hosts: the host of each rank.

    >>> fill([0, 1, 2], [1, 3, 4], ["a", "b", "b", "b", "a"])
    {0: 4, 1: 1, 2: 3}
    >>> fill([0, 1, 2], [1, 3], ["a", "b", "b", "b"])
    {1: 1, 2: 3}
    """
    spare = [rank for rank in left if rank not in places]
    found = {place: rank for place, rank in enumerate(places) if rank in left}
    vacant = [place for place in range(len(places)) if place not in found]
    for is_near in (True, False):
        for place in vacant:
            fits = [r for r in spare if not is_near or hosts[r] == hosts[places[place]]]
            if place not in found and fits:
                found[place] = fits[0]
                spare.remove(fits[0])
    return dict(sorted(found.items()))


@contextlib.contextmanager
def _ignored_signals() -> Iterator[None]:
    """Context manager: within it, signals that end training do not end a spare rank before the
    others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
