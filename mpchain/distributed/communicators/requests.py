"""Requests of operations that were begun."""

from collections.abc import Generator
from typing import Any


class Request:
    """The request of an operation that was begun; this class is for operations that are complete.

    Args:
        result: the result of the operation.

    Attributes:
        is_complete: whether the result is available.
        result: the result, if the operation is complete.

    Example:
        >>> comm.iallreduce(np.arange(3.0)).Wait()
        array([0., 1., 2.])
    """

    is_complete = True

    def __init__(self, result: Any = None):
        self.result = result

    def Test(self) -> bool:
        """Returns whether the operation is complete."""
        return True

    def Wait(self) -> Any:
        """Waits until the operation is complete, and returns its result."""
        return self.result

    def steps(self) -> Generator[None, None, Any]:
        """Returns a generator for use within another operation, which yields until the result
        exists."""
        yield from ()
        return self.Wait()
