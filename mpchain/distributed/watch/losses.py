"""Lost ranks: the detectors that notice them, and the exception that programs get."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class RanksLost(RuntimeError):
    """Ranks have died, or were killed because they stopped working; the other ranks can continue.

    Elastic communicators raise this exception in the call that waits for the lost ranks, and in all
    later calls, until ``comm.shrink()``. Programs that use a
    :class:`~mpchain.training.Trainer` need not catch it; for other programs see
    :class:`~mpchain.distributed.InMemoryCheckpoint`.

    Args:
        ranks: the ids of the ranks that are known to be lost.
        cause: the reason for each lost rank.

    Attributes:
        ranks, cause: the arguments of the same names.
        has_shrunk: whether the communicator already consists of the surviving ranks.
        is_handled: whether :func:`~mpchain.distributed.run_elastic` replaces the lost ranks with
            spare ranks, so that the loss is not a failure of the program.

    Example:
        >>> raise RanksLost([2], {2: "its process is gone"})
        Traceback (most recent call last):
        ...
        mpchain.distributed.watch.losses.RanksLost: lost rank 2 (its process is gone)
    """

    has_shrunk = is_handled = False

    def __init__(self, ranks: Sequence[int], cause: Mapping[int, str]):
        self.ranks, self.cause = list(ranks), dict(cause)
        names = ", ".join(f"rank {rank} ({self.cause[rank]})" for rank in self.ranks)
        super().__init__(f"lost {names or 'ranks that another rank has noticed'}")


class LossDetector(Protocol):
    """Notices lost ranks on behalf of a communicator."""

    def check(self) -> None:
        """Raises :class:`RanksLost` if ranks are lost; called often."""
        raise NotImplementedError

    def loss_behind(self, error: Exception, *, in_collective: bool) -> RanksLost | None:
        """Returns the exception for the loss of ranks that caused ``error``; None if no loss did.

        Args:
            error: the exception.
            in_collective: whether a collective, which may have received garbage, has raised the
                exception.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Abandons the communicator, although other ranks may still wait in it."""
        raise NotImplementedError

    def refusals(self) -> list[str]:
        """Returns the reasons why training cannot continue on fewer ranks."""
        raise NotImplementedError

    def shrink_own(self, goes_back: bool) -> bool:
        """Shrinks this communicator, but no other communicator of the process."""
        raise NotImplementedError


detectors: list[LossDetector] = []
"""The loss detectors of this process's elastic communicators, in the order of creation."""


def check() -> None:
    """Raises :class:`RanksLost` if a communicator of this process has lost ranks.

    >>> check()
    """
    for detector in detectors:
        detector.check()


def raise_loss_behind(error: Exception, *, in_collective: bool = True) -> None:
    """Raises :class:`RanksLost` if a loss of ranks caused an exception.

    Args:
        error: the exception.
        in_collective: whether a collective has raised the exception.

    >>> raise_loss_behind(ValueError("something else"))
    """
    if not isinstance(error, RanksLost):
        for detector in detectors:
            if loss := detector.loss_behind(error, in_collective=in_collective):
                raise loss from error
