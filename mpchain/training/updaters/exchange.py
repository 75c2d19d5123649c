"""Sending gradients of several processes to the main one, and parameters back.

An exchange has two ends. The main process calls :meth:`publish` and :meth:`collect`; the others,
which got theirs from :meth:`end_for`, call :meth:`take` and :meth:`give`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.backends.dtypes import is_half
from mpchain.backends.nccl_bindings import (
    MOST_IN_GROUP,
    SUM,
    TYPES,
    Connection,
    find_binding,
    new_identity,
)
from mpchain.iterators.shared_memory import Segment
from mpchain.utils.flat_layout import layouts
from mpchain.variable import Parameter

_ALIGNMENT = 64


class SharedMemoryExchange:
    """Parameters and gradients in shared memory: one segment for the parameters, and one for each
    other process's gradients.

    Args:
        params: the main process's parameters by name; all are initialized.
        n_others: number of other processes.

    Example:
        >>> params = dict(L.Linear(2, 1).namedparams())
        >>> exchange = SharedMemoryExchange(params, n_others=1)
        >>> exchange.publish(lambda: None)
        >>> exchange.close()
    """

    def __init__(self, params: Mapping[str, Parameter], n_others: int):
        self._params, self._layouts = params, _layouts(params)
        self._segments: list[Segment] = []
        nbytes = sum(n for _, n in _specifications(self._layouts)) or _ALIGNMENT
        try:
            for _ in range(1 + n_others):
                self._segments.append(Segment(nbytes))
        except OSError:
            self.close()
            raise

    def end_for(self, index: int) -> "_SharedMemoryEnd":
        """Returns what another process, numbered from 0, uses; it can be sent there."""
        return _SharedMemoryEnd(self._segments[0].name, self._segments[1 + index].name)

    def publish(self, announce: Callable[[], Any]) -> None:
        """Provides the parameters to the others; ``announce`` tells these to take them."""
        arrays = {name: cuda.to_cpu(param.array) for name, param in self._params.items()}
        for layout, flat in zip(self._layouts, _flat_arrays(self._layouts, self._segments[0])):
            layout.fill(flat, arrays)
        announce()

    def collect(self, names: Collection[str], share: float, wait: Callable[[], Any]) -> None:
        """Replaces gradients by the sum of all processes', each of them multiplied by its share.

        Args:
            names: the parameters for which any process has a gradient.
            share: the share of this process.
            wait: called to wait until the others have given theirs.
        """
        wait()
        own = _host_gradients(self._params)
        flat_arrays = [_flat_arrays(self._layouts, segment) for segment in self._segments[1:]]
        for layout, (first, *others) in zip(self._layouts, zip(*flat_arrays)):
            total = first.copy()
            for flat in others:
                total += flat
            total += layout.fill(np.empty_like(total), own, share)
            _set_gradients(self._params, names, layout, total)

    def close(self) -> None:
        """Frees the shared memory."""
        for segment in self._segments:
            segment.close()
            segment.unlink()
        self._segments = []


class _SharedMemoryEnd:
    def __init__(self, parameters, gradients):
        self._names = parameters, gradients

    def connect(self, params):
        """Sets this process's parameters, by name."""
        self._params, self._layouts = params, _layouts(params)
        self._parameters, self._gradients = (Segment(name=name) for name in self._names)

    def take(self):
        """Copies the parameters of the main process."""
        for layout, flat in zip(self._layouts, _flat_arrays(self._layouts, self._parameters)):
            for name, view in layout.views(flat).items():
                backend.copyto(self._params[name].array, view.copy())

    def give(self, share):
        """Gives this process's gradients, times ``share``; zeros where there are none."""
        grads = _host_gradients(self._params)
        for layout, flat in zip(self._layouts, _flat_arrays(self._layouts, self._gradients)):
            layout.fill(flat, grads, share)


def _layouts(params):
    return layouts(sorted(params.items()))


def _sum_dtype(layout):
    """Gradients in float16 and bfloat16 are summed in float32."""
    return np.dtype(np.float32) if is_half(layout.dtype) else layout.dtype


def _specifications(layouts):
    """Yields each flat array's dtype, and the number of bytes that it takes in a segment."""
    for layout in layouts:
        dtype = _sum_dtype(layout)
        yield dtype, -(-layout.size * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def _flat_arrays(layouts, segment):
    """Yields the layouts' flat arrays, which are one after the other in a segment."""
    start = 0
    for layout, (dtype, nbytes) in zip(layouts, _specifications(layouts)):
        yield np.ndarray(layout.size, dtype, segment.buf, start)
        start += nbytes


def _host_gradients(params):
    grads = {name: param.grad for name, param in params.items()}
    return {name: None if grad is None else cuda.to_cpu(grad) for name, grad in grads.items()}


def _set_gradients(params, names, layout, total):
    for name, view in layout.views(total).items():
        if name in names:
            param = params[name]
            param.grad = param.device.send(view.astype(param.dtype, copy=False))


class NcclExchange:
    """Parameters and gradients on GPUs, one for each process, by NCCL.

    Args:
        params: the main process's parameters by name; all are initialized.
        n_others: number of other processes.

    Raises:
        RuntimeError: NCCL cannot be used.

    Example:
        >>> exchange = NcclExchange(dict(model.namedparams()), n_others=1)  # doctest: +SKIP
    """

    def __init__(self, params: Mapping[str, Parameter], n_others: int):
        cuda.check_cuda_available()
        try:
            binding = find_binding()
        except RuntimeError as error:
            raise RuntimeError(
                f"MultiprocessParallelUpdater: several GPUs need NCCL: {error}"
            ) from error
        self._place = 1 + n_others, new_identity(binding), binding
        self._end = self.end_for(-1)
        self._end.connect(params)

    def end_for(self, index: int) -> "_NcclEnd":
        return _NcclEnd(1 + index, *self._place)

    def publish(self, announce: Callable[[], Any]) -> None:
        announce()  # all take part at the same time
        self._end.take()

    def collect(self, names: Collection[str], share: float, wait: Callable[[], Any]) -> None:
        totals = self._end.give(share)
        wait()
        for layout, total in zip(self._end.layouts, totals):
            _set_gradients(self._end.params, names, layout, total)

    def close(self) -> None:
        """Aborts the connection, which might wait for a process that has ended."""
        self._end.close()


class _NcclEnd:
    _nccl = None

    def __init__(self, rank, size, identity, binding):
        self._rank, self._size, self._identity, self._binding = rank, size, identity, binding

    def connect(self, params):
        self.params, self.layouts = params, _layouts(params)

    def take(self):
        arrays = [param.array for _, param in sorted(self.params.items())]
        with self._gpu():
            # NCCL sees memory, in which the axes of the other processes' copies may be in order.
            sent = [x if x.flags.c_contiguous else x.copy("C") for x in arrays]
            self._run("broadcast", sent)
            for x, received in zip(arrays, sent):
                if received is not x:
                    x[...] = received

    def give(self, share):
        """Takes part in the sums, which only the main process gets; returns the flat arrays."""
        grads = {name: param.grad for name, param in self.params.items()}
        flat_arrays = []
        with self._gpu():
            for layout in self.layouts:
                flat = cuda.cupy.empty(layout.size, _sum_dtype(layout))
                flat_arrays.append(layout.fill(flat, grads, share))
        self._run("reduce", flat_arrays, SUM)
        return flat_arrays

    def _gpu(self):
        """That of the parameters, which need not be current in the main process."""
        return next(iter(self.params.values())).array.device

    def _run(self, collective, arrays, *operation):
        """Runs a collective of NCCL, whose root is the main process, on arrays in place."""
        with self._gpu():
            if self._nccl is None:
                self._nccl = Connection(self._size, self._identity, self._rank, self._binding)
            stream = cuda.cupy.cuda.get_current_stream().ptr
            for start in range(0, len(arrays), MOST_IN_GROUP):
                with self._nccl.group():
                    for x in arrays[start : start + MOST_IN_GROUP]:
                        place = x.data.ptr, x.data.ptr, x.size, TYPES[x.dtype.name]
                        self._nccl.run(collective, *place, *operation, 0, stream=stream)

    def close(self):
        if self._nccl is not None:
            self._nccl.abort()
            self._nccl = None
