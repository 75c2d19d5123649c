"""A hook that measures the GPU memory that functions take."""

from typing import IO

from mpchain.backends import cuda
from mpchain.function_hook import FunctionHook
from mpchain.function_hooks.report import BYTE_UNITS, print_table, summarize
from mpchain.function_node import FunctionNode
from mpchain.typing import Arrays


class CupyMemoryProfileHook(FunctionHook):
    """Measures the GPU memory that forward and backward computations of functions take.

    *Used* bytes were taken from CuPy's memory pool; *acquired* bytes were added to the exhausted
    pool.

        >>> with CupyMemoryProfileHook() as hook:  # doctest: +SKIP
        ...     loss.backward()
        >>> hook.print_report()  # doctest: +SKIP

    Attributes:
        call_history: list of (label of the function, used bytes, acquired bytes).

    Raises:
        RuntimeError: no GPU can be used.
    """

    name = "CupyMemoryProfileHook"

    def __init__(self) -> None:
        cuda.check_cuda_available()
        self.call_history = []
        self._pool = _pool_watch()
        self._n_added = 0
        self._starts = {}

    def added(self, function: FunctionNode | None) -> None:
        # All functions share one memory hook of CuPy.
        if self._n_added == 0:
            self._pool.__enter__()
        self._n_added += 1

    def deleted(self, function: FunctionNode | None) -> None:
        self._n_added -= 1
        if self._n_added == 0:
            self._pool.__exit__()

    def forward_preprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        self._starts[id(function)] = self._pool.used_bytes, self._pool.acquired_bytes

    def forward_postprocess(self, function: FunctionNode, in_data: Arrays) -> None:
        used, acquired = self._starts.pop(id(function))
        pool = self._pool
        used, acquired = pool.used_bytes - used, pool.acquired_bytes - acquired
        self.call_history.append((function._impl_name, used, acquired))

    def backward_preprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self.forward_preprocess(function, in_data)

    def backward_postprocess(
        self, function: FunctionNode, in_data: Arrays, out_grad: Arrays
    ) -> None:
        self.forward_postprocess(function, in_data)

    def total_used_bytes(self) -> int:
        """Returns the total bytes that functions took from the pool."""
        return sum(used for _, used, _ in self.call_history)

    def total_acquired_bytes(self) -> int:
        """Returns the total bytes by which the pool grew."""
        return sum(acquired for _, _, acquired in self.call_history)

    def summary(self) -> dict[str, dict[str, float]]:
        """Returns, for each label, a dict of ``'used_bytes'``, ``'acquired_bytes'`` and
        ``'occurrence'`` (the number of computations)."""
        return summarize(self.call_history, ("used_bytes", "acquired_bytes"))

    def print_report(self, unit: str = "auto", file: IO[str] | None = None) -> None:
        """Prints the summary as a table.

        Args:
            unit: ``'B'``, ``'KB'``, ``'MB'``, ``'GB'`` or ``'TB'``; ``'auto'`` fits the largest
                number, ``'auto_foreach'`` each number.
            file: the output; None means the standard output.

        Raises:
            ValueError: the unit is unknown.
        """
        titles = {"used_bytes": "UsedBytes", "acquired_bytes": "AcquiredBytes"}
        print_table(self.summary(), "FunctionName", titles, BYTE_UNITS, unit, file)


def _pool_watch():
    """Returns a CuPy memory hook that counts bytes. The class is defined in this function, because
    its base class is in CuPy."""

    class PoolWatch(cuda.cupy.cuda.MemoryHook):
        name = "mpchain.CupyMemoryProfileHook"
        used_bytes = 0
        acquired_bytes = 0

        def malloc_postprocess(self, **allocation):
            self.used_bytes += allocation["mem_size"]

        def alloc_postprocess(self, **allocation):
            self.acquired_bytes += allocation["mem_size"]

    return PoolWatch()
