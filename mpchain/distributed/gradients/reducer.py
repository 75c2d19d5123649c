"""The interface between a multi-node optimizer and the averaging of gradients."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.control import ControlMessage
from mpchain.serializer import AbstractSerializer
from mpchain.typing import Array
from mpchain.variable import Parameter, Variable


class Reducer:
    """Replaces the gradients of parameters by their means over the samples of all ranks.

    This base class leaves gradients unchanged, which is right for a single rank. Each rank
    processes its samples in one or several parts. A step is::

        reducer.begin(n_samples)
        for n_part, loss in parts:  # the mean loss over a part
            loss.backward(loss_scale=reducer.weight(n_part), on_leaf=reducer.ready)
            reducer.end_part(n_part)
        reducer.finish()

    Pass ``on_leaf`` only for the last part, because no gradient is final before the backward pass
    of that part.

    Args:
        comm: the communicator of the ranks.
        zero_fill: whether a gradient that is None on some ranks counts as zeros there. If not,
            :meth:`finish` raises ValueError.
        message: the value of :attr:`message`; None makes a new one.

    Attributes:
        parts_per_batch: the number of parts on each rank, if it is fixed. In that case,
            :meth:`end_part` copies the gradients of each part, so that they may be cleared
            afterwards.
        pieces: None if :meth:`finish` has set whole gradients. If this rank got only slices of some
            gradients, a dict from name to a flat array, or to None if no rank has that gradient.
        has_gathered: whether a rank has asked for whole gradients in a step whose gradients are
            divided.
        overlaps: whether :meth:`ready` has something to do in this step.
        is_exact: whether the gradients belong to the present step, up to the rounding of their
            sums.
        allows_dynamic_loss_scale: whether the loss scale may change from step to step.
        can_be_replayed: whether captured steps may pass gradients to the reducer and use the means.
        message: the data that the ranks sum in :meth:`finish`, besides gradients.
        params: the watched parameters, including parameters that are not initialized.

    Example:
        >>> reducer = Reducer(comm)
        >>> reducer.begin(8)
        >>> reducer.weight(2), reducer.finish()
        (0.25, 8)
    """

    if TYPE_CHECKING:  # reducers with can_be_replayed have these attributes

        def why_not_in_graphs(self) -> str | None: ...
        def begin_launch(self, n_samples: float | None, **options: Any) -> None: ...
        def tell(self, presence: Sequence[bool]) -> float: ...

    parts_per_batch: int | None = None
    pieces: dict[str, Array | None] | None = None
    is_exact = allows_dynamic_loss_scale = True
    can_be_replayed = has_gathered = False
    overlaps = False

    def __init__(
        self, comm: Communicator, zero_fill: bool = True, message: ControlMessage | None = None
    ):
        self._comm, self._zero_fill = comm, zero_fill
        # These are the numbers of samples on all ranks, and of ranks without samples.
        self._total = np.zeros(2)
        self.message = message or ControlMessage(comm)
        self.watch({})

    def watch(self, params: Mapping[str, Parameter]) -> None:
        """Sets the parameters, given by name; names must be the same on all ranks.

        Parameters that are not initialized are left out until ``watch`` is called again.
        """
        self.message.params = params
        self.params = list(params.values())
        self._params = {name: param for name, param in params.items() if param.is_initialized}

    def begin(
        self,
        n_samples: float | None = None,
        *,
        n_total: float | None = None,
        n_empty: int | None = None,
        is_empty: bool = False,
        losses_are_weighted: bool = False,
    ) -> None:
        """Starts a step; must be called before the forward pass, so that communication overlaps it.

        Args:
            n_samples: the number of samples on this rank, or another weight. If all ranks pass
                None, they have equal weights.
            n_total: the number of samples of all ranks, if all ranks know it. The number is then
                only checked, at the end of the step.
            n_empty: the number of ranks that compute no loss in this step, if all ranks know it.
            is_empty: whether this rank computes no loss.
            losses_are_weighted: whether gradients are those of losses times :meth:`weight`. If not,
                the reducer multiplies the gradients by this rank's weight.
        """
        self._n_samples = 1 if n_samples is None else n_samples
        self._n_total, self._n_empty = n_total, n_empty
        if n_total is None or n_empty is None:
            self._total[:] = self._n_samples, is_empty
            self._total_request = self._comm.iallreduce(self._total)

    def n_samples(self) -> float:
        """Returns the number of samples on all ranks; if it is unknown, the number of ranks."""
        if self._n_total is None:
            self._total_request.Wait()
            n = float(self._total[0])
            self._n_total = int(n) if n.is_integer() else n
        return self._n_total

    def n_empty(self) -> int:
        """Returns the number of ranks that compute no loss in this step."""
        if self._n_empty is None:
            self._total_request.Wait()
            self._n_empty = int(self._total[1])
        return self._n_empty

    def _check_total(self, n):
        """Raises ValueError unless ``n``, the sum over the ranks, is the known number of
        samples."""
        if not math.isclose(n, self.n_samples()):  # sums of weights may have rounding errors
            raise ValueError(
                f"MultiNodeOptimizer.update: the batch of all ranks has {self._n_total} samples, "
                f"as given to comm.batch or known from the iterator, but the ranks have {n:g} "
                "together: their parts must cover the batch without overlapping"
            )

    def weight(self, n_part: float | None = None) -> float:
        """Returns ``n_part`` (None: 1) divided by the number of samples on all ranks.

        All ranks must call this method at the same point, even for 0 samples: the first call may
        communicate.
        """
        return float((1 if n_part is None else n_part) / (self.n_samples() or 1))

    def ready(self, param: Variable) -> None:
        """Marks the gradient of ``param`` as final; ignores variables that are not watched."""

    def take(self, param: Variable) -> bool:
        """Copies the final gradient of ``param``, but starts no sum.

        Returns:
            Whether the sum of a bucket can start.
        """
        return False

    def end_part(self, n_part: float | None) -> None:
        """Ends the backward pass of a part of ``n_part`` samples. The gradients of a part without
        samples do not count."""

    def finish(self) -> float:
        """Ends the step, and sets the gradients.

        Returns:
            The number of samples on all ranks over which the gradients are means; 0 if there are no
            gradients to update parameters with.
        """
        self.message.begin([self._n_samples])
        self._check_total(*self.message.wait())
        return self.n_samples()

    def renewed(self) -> "Reducer":
        """Returns a reducer of the same kind for the ranks that the communicator has now."""
        return type(self)(self._comm, zero_fill=self._zero_fill)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state that is kept from step to step."""
