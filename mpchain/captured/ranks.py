"""The ranks whose captured steps hold work that they do together."""

from typing import Any


class Ranks:
    """The ranks that capture and launch their graphs together: NCCL demands that whether an
    operation is captured, and each launch of a graph that holds one, is the same on all of them
    (its user guide, "Using NCCL with CUDA Graphs").

    This base class is one rank, which need not ask others.

    Attributes:
        n_captures: how many captures they began together.

    Example:
        >>> from mpchain.captured.ranks import Ranks
        >>> Ranks().agree(1), Ranks().exchange("done")
        (True, ['done'])
    """

    n_captures = 0

    def agree(self, number: int) -> bool:
        """Returns whether all ranks, each of which calls it in each step, give the same number."""
        return True

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values of all ranks."""
        return [value]

    def give_up(self) -> None:
        """Called on all ranks when some of them could not capture what others did."""
