"""Lost ranks: what notices them, and the exception by which programs learn of it."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class RanksLost(RuntimeError):
    """Ranks have died, or were ended because they did not work any more; the others can continue.

    Communicators raise it, if they are elastic: in the call that waits for the lost ranks, and in
    all calls from then on, until ``comm.shrink()``. Programs that use a
    :class:`~mpchain.training.Trainer` need not catch it; others see
    :class:`~mpchain.distributed.InMemoryCheckpoint`.

    Args:
        ranks: the numbers that the lost ranks had. More may be lost.
        cause: why each of them is lost.

    Attributes:
        ranks, cause: as given.
        has_shrunk: whether the communicator is that of the surviving ranks already.
        is_handled: whether :func:`~mpchain.distributed.run_elastic` lets spare ranks take their
            places, so that it is no failure of the program.

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
        """Returns the loss of ranks that an exception is a consequence of; None if it is not.

        Args:
            error: the exception.
            in_collective: whether a collective has raised it, which may have received garbage.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Gives up the communicator."""
        raise NotImplementedError

    def refusals(self) -> list[str]:
        """Returns why training cannot continue on fewer ranks."""
        raise NotImplementedError

    def shrink_own(self, goes_back: bool) -> bool:
        """Shrinks the communicator, and no other of the process."""
        raise NotImplementedError


detectors: list[LossDetector] = []
"""Those of this process's elastic communicators, in the order in which they were made."""


def check() -> None:
    """Raises :class:`RanksLost` if a communicator of this process has lost ranks.

    >>> check()
    """
    for detector in detectors:
        detector.check()


def raise_loss_behind(error: Exception, *, in_collective: bool = True) -> None:
    """Raises :class:`RanksLost` if an exception is a consequence of it.

    Args:
        error: the exception.
        in_collective: whether a collective has raised it.

    >>> raise_loss_behind(ValueError("something else"))
    """
    if not isinstance(error, RanksLost):
        for detector in detectors:
            if loss := detector.loss_behind(error, in_collective=in_collective):
                raise loss from error
