"""A dynamic loss scale that is stored on a GPU, so that the host need not wait for the GPU in each
step.

The kernels of a step check on the GPU whether a gradient is not finite, and leave parameters and
states unchanged if so. The host learns of a skipped step when the GPU has run the step, possibly
some steps later; until then, the host does not know how many updates each parameter has had.
Scalars of a step that depend on the number of updates, such as Adam's, are passed to the kernels
for each possible count.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.gpu.cuda_steps import MOST_ROWS, Guard, find_not_finite, guarded
from mpchain.observers import current
from mpchain.typing import Array

MAXIMUM = 65504.0  # this is the largest number in float16

_MOST_PENDING = MOST_ROWS - 1
"""The maximum number of steps with unknown outcomes; the host then waits for the first of these
steps."""

_TEXT = f"""
extern "C" __global__ void mpchain_loss_scale(
    const int* found, double* scale, int* counts, double growth) {{
  if (*found) {{
    *scale *= 0.5;
    counts[0] += 1;
    counts[1] = 1;
  }} else {{
    *scale *= counts[1] ? growth : 2.0;
  }}
  if (*scale < 1.0) *scale = 1.0;
  if (*scale > {MAXIMUM}) *scale = {MAXIMUM};
}}
"""


class Outcome(NamedTuple):
    """The GPU's report to the host about a step.

    Attributes:
        t: the number of the step.
        rules: the update rules of the parameters.
        names: the parameters whose gradients are not finite; empty if the step was taken.
    """

    t: int
    rules: Sequence[Any]
    names: Sequence[str]


class LossScaleOnGpu:
    """The loss scale on the GPU, and the steps whose outcomes the host does not know yet.

    Args:
        scale: the scale of the next step.
        growth: the factor by which a step with finite gradients multiplies the scale, once a step
            has been skipped.
        was_reduced: whether a step has been skipped already. Before the first skipped step, each
            step doubles the scale.

    Attributes:
        factor: the scale, a float64 array on the current GPU.

    Example:
        >>> scale = LossScaleOnGpu(1.0, 1.0007, False)  # doctest: +SKIP
    """

    def __init__(self, scale: float, growth: float, was_reduced: bool):
        xp = cuda.cupy
        self.factor: Array = xp.full((), scale, np.float64)
        self._counts = xp.full(2, was_reduced, np.int32)
        self._growth, self._n_known = growth, int(was_reduced)
        self._pending: collections.deque = collections.deque()

    def step(
        self, t: int, named: Sequence[tuple[str, Any]], update: Callable[[], Any], rules: Sequence
    ) -> None:
        """Takes a step that leaves parameters unchanged if a gradient is not finite.

        Args:
            t: the number of the step.
            named: names and arrays of the gradients.
            update: a function that takes the step with
                :func:`mpchain.kernels.gpu.cuda_steps.take_steps`.
            rules: the update rules.
        """
        names, found = find_not_finite(named)
        with guarded(Guard(found, self._counts, *self._now(), self._now)):
            update()
        arguments = found, self.factor, self._counts, np.float64(self._growth)
        cuda.raw(_TEXT, "mpchain_loss_scale")((1,), (1,), arguments)
        if current.graph is None:
            self.note(t, found, names, rules)
        else:
            current.graph.scales(self, found, names, rules)

    def _now(self):
        return self._n_known, len(self._pending) + 1

    def arrays(self) -> list[Array]:
        """Returns the GPU arrays that a step changes: the scale and the counts."""
        return [self.factor, self._counts]

    def note(self, t: int, found: "cuda.GpuArray", names: Sequence[str], rules: Sequence) -> None:
        """Starts to copy a step's flags from the GPU, without waiting for the copy.

        Args:
            t, rules: see :meth:`step`.
            found, names: see :func:`mpchain.kernels.gpu.cuda_steps.find_not_finite`.
        """
        memory = cuda.cupy.cuda.alloc_pinned_memory(found.nbytes)
        flags = np.frombuffer(memory, found.dtype, found.size)
        found.get(out=flags, blocking=False)
        event = cuda.Event(disable_timing=True)
        event.record()
        self._pending.append((event, flags, names, t, rules))

    def outcomes(self, waits: bool) -> Iterator[Outcome]:
        """Yields the outcomes of the steps whose flags have reached the host, in order.

        Args:
            waits: whether to wait until the GPU has reported all outcomes.
        """
        while self._pending:
            event, flags, names, t, rules = self._pending[0]
            if waits or len(self._pending) >= _MOST_PENDING:
                event.synchronize()
            elif not event.done:
                return
            self._pending.popleft()
            self._n_known += int(flags[0])
            bad = [name for name, is_bad in zip(names, flags[1:], strict=True) if is_bad]
            yield Outcome(t, rules, bad)
