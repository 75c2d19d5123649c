"""Copying gradients into the memory of a bucket, and summing them over the ranks."""

import itertools
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.requests import Request
from mpchain.typing import Array
from mpchain.utils.flat_layout import FlatLayout, put
from mpchain.variable import Parameter, own_grad, set_grads


class Slot:
    """One slot of a bucket: memory for all its gradients.

    Args:
        values: flat array.
        layout: the offsets of the gradients in the array.

    Attributes:
        values: the argument of the same name.
        views: dict from name to gradient, a part of ``values`` in the parameter's shape.

    Example:
        >>> layout = FlatLayout(np.float32)
        >>> layout.append("/W", (2, 3))
        >>> Slot(np.zeros(6, np.float32), layout).views["/W"].shape
        (2, 3)
    """

    def __init__(self, values: Array, layout: FlatLayout):
        self.values = values
        self.views = layout.views(values)

    def is_held(self, params: Iterable[Parameter] = ()) -> bool:
        """Returns whether there is any reference to a part of the memory, other than the ``grad``
        of these parameters, which must be in the order of ``views``."""
        # Two references to an array are the slot's own: the attribute or dict entry, and
        # getrefcount's argument. Each array that is a part of ``values``, or of a view, also refers
        # to ``values``. A gradient that has become a Variable may be held by it, and counts as
        # held.
        views = self.views.values()
        n_own = 2 * len(views) + sum(map(operator.is_, map(own_grad, params), views))
        return (
            sys.getrefcount(self.values) > 2 + len(views)
            or sum(map(sys.getrefcount, views)) > n_own
        )


class HostTransport:
    """Copies gradients into a bucket as soon as they are taken.

    Args:
        layout: the offsets of the gradients in the memory.
        params: the parameters of the layout, by name.
        wire_dtype: the dtype in which gradients are summed.
        length: the number of elements of the memory.

    Attributes:
        keeps_dtype: whether gradients are summed in their own dtype.
        slot: the slot in use.
        specification: pair of the number of elements that the bucket needs in host memory, and
            their dtype.

    Example:
        >>> params = dict(L.Linear(2, 2).namedparams())
        >>> layout = FlatLayout(np.float32)
        >>> layout.append("/W", (2, 2))
        >>> transport = HostTransport(layout, {"/W": params["/W"]}, np.dtype(np.float32), 4)
        >>> transport.allocate([np.zeros(*transport.specification)])
        >>> transport.put("/W", np.ones((2, 2), np.float32), factor=0.5)
        >>> transport.begin_sum(comm).Wait()
        array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """

    is_on_gpu = False

    def __init__(
        self, layout: FlatLayout, params: Mapping[str, Parameter], wire_dtype: np.dtype, length: int
    ):
        self._layout, self._params = layout, params
        self._wire_dtype, self._length = wire_dtype, length
        self.keeps_dtype = layout.dtype == wire_dtype
        self.specification = 0 if self.is_on_gpu else length, wire_dtype

    def allocate(self, arrays: Sequence[Array]) -> None:
        """Sets the flat arrays to use, which must have the size and dtype of
        :attr:`specification`."""
        self._unused, self._slots = list(arrays), []
        self.slot = self._new_slot()

    def _can_make_slot(self):
        return bool(self._unused)

    def _new_slot(self):
        self._slots.append(Slot(self._unused.pop(0), self._layout))
        return self._slots[-1]

    def _free_slots(self):
        return [slot for slot in self._slots if slot is not self.slot and not slot.is_held()]

    def all_others_are_held(self) -> bool:
        """Returns whether other references exist to all slots except the current one."""
        return not (self._can_make_slot() or self._free_slots())

    def begin(self, losses_are_weighted: bool) -> None:
        """Starts a step in a slot to which there are no other references."""
        if not self.slot.is_held(self._params.values()):
            return
        if free := self._free_slots():
            self.slot = free[0]
        elif self._can_make_slot():
            self.slot = self._new_slot()
        else:
            raise RuntimeError(
                "GradientReducer.begin: the program holds gradients that it read before they were "
                "means over all ranks: copy them, or read them after the optimizer's update"
            )

    def put(self, name: str, grad: Array | None, factor: float) -> None:
        """Copies a gradient times a factor. If its dtype is kept, the copy replaces the original,
        whose memory is then free for the rest of backward."""
        view = self.slot.views[name]
        put(view, grad, factor)
        if grad is not None and self.keeps_dtype:
            set_grads([(self._params[name], view)])

    def put_all(self, grads: Iterable[Array | None]) -> bool:
        """Copies the gradients of all parameters at once, without a factor. Returns False, and
        copies nothing, if a gradient is None or must be converted."""
        grads = list(grads)
        if not (self.keeps_dtype and all(map(operator.is_not, grads, itertools.repeat(None)))):
            return False
        views = self.slot.views.values()
        for view, grad in zip(views, grads):
            view[...] = grad
        set_grads(zip(self._params.values(), views))
        return True

    def filled(self) -> Slot:
        """Returns the slot, after all gradients of :meth:`put` have been copied into it."""
        return self.slot

    def begin_sum(self, comm: Communicator, wire_dtype: str | None = None) -> Request:
        """Begins to replace the values with their sum over the ranks; for ``wire_dtype`` see
        :meth:`mpchain.distributed.Communicator.iallreduce`."""
        return comm.iallreduce(self.slot.values, wire_dtype)


class GpuTransport(HostTransport):
    """Lets the sum on a GPU read gradients without a copy, and multiply them by their factor.

    If code needs the values before the sum, or the sum has another dtype than the gradients, one
    kernel first copies all gradients.

    Args:
        layout, params, wire_dtype, length: see :class:`HostTransport`.
    """

    is_on_gpu = True

    def _can_make_slot(self):
        return True

    def _new_slot(self):
        slot = Slot(self._xp.zeros(self._length, self._wire_dtype), self._layout)
        self._slots = [*self._slots[-1:], slot]
        return slot

    @property
    def _xp(self):
        return next(iter(self._params.values())).xp

    def begin(self, losses_are_weighted: bool) -> None:
        super().begin(losses_are_weighted)
        self._grads, self._factor = {}, None if losses_are_weighted else 1.0

    def begin_in_graph(self) -> None:
        """Starts a step in the memory of the graph that is being captured."""
        self._own_slots = self._slots, self.slot
        # Replays overwrite this array, so the program's gradients of other steps need other memory.
        self.slot = Slot(self._xp.empty(self._length, self._wire_dtype), self._layout)
        self._slots = [self.slot]
        self._grads, self._factor = {}, None

    def end_in_graph(self) -> None:
        """Switches back to the memory of steps outside the graph."""
        self._slots, self.slot = self._own_slots
        self._grads = {}

    def put(self, name: str, grad: Array | None, factor: float) -> None:
        self._grads[name] = grad
        if self._factor is not None:
            self._factor = factor or 1.0  # the factor is 0 if this rank has no gradients

    def put_all(self, grads: Iterable[Array | None]) -> bool:
        return False

    def filled(self) -> Slot:
        self._fill()
        if self._factor is not None:
            self.slot.values *= self.slot.values.dtype.type(self._factor)
            self._factor = None
        return self.slot

    def begin_sum(self, comm: Communicator, wire_dtype: str | None = None) -> Request:
        if wire_dtype is not None:
            return comm.iallreduce(self.filled().values, wire_dtype)
        if not self.keeps_dtype:
            self._fill()
        parts = self._parts() if self._grads else None
        request = comm.iallreduce(self.slot.values, factor=self._factor, parts=parts)
        self._factor = None
        self._set_gradients()
        return request

    def _parts(self):
        """Returns the flattened gradients in the order of the values."""
        grads, dtype = self._grads, self._layout.dtype
        return [
            self._xp.zeros(view.size, dtype)
            if grads[name] is None
            else grads[name].ravel().astype(dtype, copy=False)
            for name, view in self.slot.views.items()
        ]

    def _fill(self):
        if not self._grads:
            return
        parts, views = self._parts(), self.slot.views.values()
        if sum(part.size for part in parts) == self._layout.size:
            self._xp.concatenate(parts, out=self.slot.values[: self._layout.size])
        else:  # the layout also has parameters that no longer exist
            for view, part in zip(views, parts, strict=True):
                view[...] = part.reshape(view.shape)
        self._set_gradients()

    def _set_gradients(self):
        """Sets the parameters' gradients to views of the values."""
        for name, grad in self._grads.items():
            if grad is not None and self.keeps_dtype:
                self._params[name].grad = self.slot.views[name]  # this frees the old gradient
        self._grads = {}
