"""What all communicators have for ranks that are lost while the others continue."""

import weakref
from typing import Any


class LosesRanks:
    """The part of a communicator for lost ranks; here no rank can be lost.

    Attributes:
        lost_ranks: why ranks were lost, by their numbers among all ranks of the job.
        dependents: objects whose ``fit_to_ranks()`` :meth:`shrink` calls, which then forget what
            depends on the number of ranks; keys of a weak dictionary, in the order of their making.
        spares: :class:`~mpchain.distributed.recovery.spares.Spares` of the job; None without.

    Example:
        >>> comm.is_elastic, comm.lost_ranks
        (False, {})
    """

    def __init__(self):
        self.lost_ranks: dict[int, str] = {}
        self.dependents: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self.spares: Any = None
        self.needs_all = weakref.WeakKeyDictionary()

    def end_work(self, *, for_good: bool = False) -> None:
        """Ends what is under way on GPUs, where it waits for lost ranks. Any thread may call it,
        and again; the communicator's own also to free what NCCL has."""

    @property
    def is_elastic(self) -> bool:
        """Whether the other ranks can continue when ranks are lost."""
        return False

    def agree(self) -> None:
        """Waits until every rank has called it, and agrees that none was lost before; collective.

        Raises:
            RanksLost: ranks are lost; on all others, or on none of them.

        >>> comm.agree()
        """

    def shrink(self, *, goes_back: bool = True) -> bool:
        """Makes this the communicator of the ranks that are left; all of them call it.

        Everything that is under way is dropped. Ranks are numbered anew, in the same order. Call it
        after a :class:`~mpchain.distributed.RanksLost`, which all calls raise until then.
        :class:`~mpchain.distributed.InMemoryCheckpoint` does so, and restores the training state.

        Args:
            goes_back: whether this rank can go back to an earlier state with the others; if not,
                it is about to start anew.

        Returns:
            Whether all ranks can go back.

        Raises:
            RuntimeError: training cannot continue without the lost ranks, and why: start it again
                from its last checkpoint.

        >>> comm.shrink()
        True
        """
        return True
