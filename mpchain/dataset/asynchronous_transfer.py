"""A converter that copies a batch to a GPU while the GPU computes with the previous batch."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.dataset.convert import Converter, concat_examples
from mpchain.typing import DeviceLike


class ConcatWithAsyncTransfer(Converter):
    """Works like :func:`concat_examples`, but copies to a GPU asynchronously.

    The batch is first copied to page-locked host memory. The copy from there to the GPU runs on a
    separate stream, while kernels use the previous batch. The converter keeps two batches, so every
    updater needs its own instance.

    The arrays of a batch must not be used after two more batches were requested. For other devices,
    the converter does the same as :func:`concat_examples`.

    Args:
        stream: the stream of the copies; None makes a new stream.
        compute_stream: the stream of the kernels that use the arrays; None means
            the stream that is current when a batch is requested.

    Example:
        >>> converter = mpchain.dataset.ConcatWithAsyncTransfer()
        >>> x, t = converter([(np.zeros(3), 1), (np.ones(3), 0)], device="@numpy")
        >>> x.shape, t
        ((2, 3), array([1, 0]))
    """

    _last_compute: Any = None

    def __init__(self, stream: Any = None, compute_stream: Any = None):
        self._stream = stream
        self._compute_stream = compute_stream
        self._device: backend.GpuDevice | None = None
        self._slots: tuple[_Slot, _Slot] | None = None

    def __del__(self):
        # The memory pool reuses the memory of the last batches on the stream of the copies, so this
        # stream must wait for the kernels that use them.
        if self._device and self._last_compute is not None and not sys.is_finalizing():
            with self._device.create_context():
                self._stream.wait_event(self._last_compute.record())

    def __call__(
        self, batch: Sequence, device: DeviceLike | None = None, padding: object = None
    ) -> Any:
        """See :func:`concat_examples`.

        Raises:
            RuntimeError: an earlier batch was copied to another GPU.
        """
        device = None if device is None else backend.get_device(device)
        if not isinstance(device, cuda.GpuDevice):
            return concat_examples(batch, device, padding)
        arrays = concat_examples(batch, None, padding)
        with device.create_context():
            self._prepare(device)
            return self._transfer(arrays)

    def _prepare(self, device):
        if self._device is None:
            self._device = device
            self._slots = _Slot(), _Slot()
            if self._stream is None:
                self._stream = cuda.Stream(non_blocking=True)
        elif self._device != device:
            raise RuntimeError(
                f"ConcatWithAsyncTransfer: an instance copies to one GPU only; it has copied to "
                f"{self._device} and cannot copy to {device}: make another instance"
            )

    def _transfer(self, arrays):
        compute = self._compute_stream or cuda.cupy.cuda.get_current_stream()
        self._last_compute = compute
        assert self._slots is not None  # _prepare has already made them
        slot, previous = self._slots
        self._slots = previous, slot
        # All kernels that use the previous batch are queued by now. The kernels that use this
        # slot's batch were queued when the previous batch was requested.
        previous.end_of_use = compute.record()
        if slot.end_of_use is not None:
            self._stream.wait_event(slot.end_of_use)
        if slot.end_of_copy is not None:
            slot.end_of_copy.synchronize()  # the host memory is about to be overwritten
        slot.arrays.clear()
        result = self._map(arrays, slot)
        slot.end_of_copy = self._stream.record()
        compute.wait_event(slot.end_of_copy)
        return result

    def _map(self, arrays, slot):
        if isinstance(arrays, tuple):
            return tuple([self._map(array, slot) for array in arrays])
        if isinstance(arrays, dict):
            return {key: self._map(array, slot) for key, array in arrays.items()}
        return slot.send(arrays, self._stream)


class _Slot:
    """The host and GPU memory of one batch."""

    def __init__(self):
        self.arrays = []  # arrays on the GPU, which kernels may still use
        self.end_of_use = None
        self.end_of_copy = None
        self._pinned = {}

    def send(self, array, stream):
        """Starts to copy a host array; returns the array on the GPU."""
        if cuda.is_gpu_array(array):
            return array
        with stream:
            target = cuda.cupy.empty(array.shape, array.dtype)
        if array.size > 0:
            source = self._pinned_memory(len(self.arrays), array)
            source[...] = array
            target.set(source, stream)
        self.arrays.append(target)
        return target

    def _pinned_memory(self, index, array):
        memory = self._pinned.get(index)
        if memory is None or memory.size() < array.nbytes:
            memory = self._pinned[index] = cuda.cupy.cuda.alloc_pinned_memory(array.nbytes)
        return np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
