"""Averaging gradients while the next step is computed."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.gradients.compression import serialize_arrays
from mpchain.distributed.gradients.control import ControlMessage
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.serializer import AbstractSerializer
from mpchain.variable import Parameter, Variable


class DoubleBufferingReducer(Reducer):
    """A :class:`GradientReducer` that sets in each step the means of the step before.

    Communication can therefore take as long as a step. The first step has no gradients yet.

    Args:
        comm, zero_fill, compression: see :class:`GradientReducer`.

    Example:
        >>> param = mpchain.Parameter(np.zeros(1, np.float32))
        >>> reducer = DoubleBufferingReducer(comm)
        >>> reducer.watch({"/W": param})
        >>> for step in range(2):
        ...     reducer.begin(n_samples=3)
        ...     param.grad = np.full(1, step, np.float32)
        ...     print(reducer.finish(), param.grad)
        0 None
        3 [0.]
    """

    # The waiting gradients were computed with the loss scale of the previous step.
    is_exact = allows_dynamic_loss_scale = False

    def __init__(
        self,
        comm: Communicator,
        *,
        zero_fill: bool = True,
        compression: Callable[..., Any] | None = None,
    ):
        self._kept = None  # the sample count and the means by name, while no sum is pending
        self._is_pending = False
        message = ControlMessage(comm)
        # There are two reducers with two states, because the next step begins before compression
        # has updated the state of this step.
        self._current, self._previous = (
            GradientReducer(
                comm,
                zero_fill=zero_fill,
                compression=copy.deepcopy(compression),
                message=message,
            )
            for _ in range(2)
        )
        super().__init__(comm, zero_fill, message)

    def renewed(self) -> "DoubleBufferingReducer":
        compression = self._current.compression
        return type(self)(self._comm, zero_fill=self._zero_fill, compression=compression)

    def watch(self, params: Mapping[str, Parameter]) -> None:
        """Sets the parameters, but keeps the means that are waiting for the next step."""
        self._settle()
        super().watch(params)
        self._current.watch(params)
        self._previous.watch(params)

    def begin(self, n_samples: float | None = None, **options: Any) -> None:
        self._current.begin(n_samples, **options)

    @property
    def overlaps(self) -> bool:
        return self._current.overlaps

    def ready(self, param: Variable) -> None:
        self._current.ready(param)

    def n_samples(self) -> float:
        return self._current.n_samples()

    def n_empty(self) -> int:
        return self._current.n_empty()

    def finish(self) -> float:
        self._settle()  # the message must still belong to the previous step
        self._current.start()
        n_samples, means = self._kept or (0, {})
        for name, param in self._params.items():
            param.grad = means.get(name)
        self._current, self._previous = self._previous, self._current
        self._is_pending, self._kept = True, None
        return n_samples

    def _settle(self):
        """Completes pending sums."""
        if self._is_pending:
            means = self._previous.means()
            self._kept = self._previous.n_samples(), means
            self._is_pending = False

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the means that are waiting for the next step, and the compression's
        state."""
        self._settle()
        self._current.serialize(serializer["current"])
        self._previous.serialize(serializer["previous"])
        n_samples, means = self._kept or (0, {})
        n_samples = int(serializer("n_samples", n_samples))
        waiting = {name: mean for name, mean in means.items() if mean is not None}
        waiting = {
            name: self._params[name].device.send(mean) if name in self._params else mean
            for name, mean in serialize_arrays(serializer, waiting).items()
        }
        self._kept = (n_samples, waiting) if n_samples else None
