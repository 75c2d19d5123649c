"""How gradients come from several processes to the main one, and parameters go back.

An exchange has two ends. The main process calls :meth:`publish` and :meth:`collect`; the others,
which got theirs from :meth:`end_for`, call :meth:`take` and :meth:`give`.
"""

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.iterators.shared_memory import Segment

_ALIGNMENT = 64


class SharedMemoryExchange:
    """Parameters and gradients in shared memory: one segment for the parameters, and one for each
    other process's gradients.

    Args:
        params (dict): the main process's parameters by name; all are initialized.
        n_others (int): number of other processes.
    """

    def __init__(self, params, n_others):
        self._params = params
        self._layout = _Layout(params)
        self._segments = []
        try:
            for _ in range(1 + n_others):
                self._segments.append(Segment(self._layout.nbytes))
        except OSError:
            self.close()
            raise

    def end_for(self, index):
        """Returns what the process of that number, from 0, uses; it can be sent there."""
        return _SharedMemoryEnd(
            self._layout, self._segments[0].name, self._segments[1 + index].name
        )

    def publish(self, announce):
        """Lets the others have the parameters; calls ``announce``, which tells them to take."""
        for name, param in self._params.items():
            self._layout.view(self._segments[0], name)[...] = cuda.to_cpu(param.array)
        announce()

    def collect(self, names, share, wait):
        """Replaces gradients by the sum of all processes', each of them multiplied by its share.

        Args:
            names (list of str): of the parameters for which any process has a gradient.
            share (float): of this process.
            wait: called to wait until the others have given theirs.
        """
        wait()
        for name in names:
            param = self._params[name]
            total = self._layout.view(self._segments[1], name).copy()
            for segment in self._segments[2:]:
                total += self._layout.view(segment, name)
            if param.grad is not None:
                total += share * cuda.to_cpu(param.grad).astype(total.dtype, copy=False)
            param.grad = param.device.send(total.astype(param.dtype, copy=False))

    def close(self):
        """Frees the shared memory."""
        for segment in self._segments:
            segment.close()
            segment.unlink()
        self._segments = []


class _SharedMemoryEnd:
    def __init__(self, layout, parameters, gradients):
        self._layout = layout
        self._names = parameters, gradients

    def connect(self, params):
        """Sets this process's parameters, by name."""
        self._params = params
        self._parameters, self._gradients = (Segment(name=name) for name in self._names)

    def take(self):
        """Takes over the parameters of the main process."""
        for name, param in self._params.items():
            backend.copyto(param.array, self._layout.view(self._parameters, name).copy())

    def give(self, names, share):
        """Gives the gradients of these parameters, times ``share``; zeros where there are none."""
        for name in names:
            grad = self._params[name].grad
            view = self._layout.view(self._gradients, name)
            if grad is None:
                view[...] = 0
            else:
                np.multiply(cuda.to_cpu(grad), view.dtype.type(share), out=view)


class _Layout:
    """Where each parameter, or its gradient, is in a segment."""

    def __init__(self, params):
        self._places = {}
        self.nbytes = _ALIGNMENT
        for name, param in params.items():
            # Gradients in float16 are summed in float32, and so is the room.
            dtype = np.dtype(np.float32) if param.dtype == np.float16 else param.dtype
            self._places[name] = self.nbytes, dtype, param.shape
            nbytes = param.size * dtype.itemsize
            self.nbytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, segment, name):
        """The array of that parameter in the segment."""
        start, dtype, shape = self._places[name]
        return np.ndarray(shape, dtype, segment.buf, start)


class NcclExchange:
    """Parameters and gradients on GPUs, one for each process, by NCCL.

    Args:
        params (dict): the main process's parameters by name; all are initialized.
        n_others (int): number of other processes.

    Raises:
        RuntimeError: CuPy finds no NCCL.
    """

    def __init__(self, params, n_others):
        cuda.check_cuda_available()
        if not cuda.cupy.cuda.nccl.available:
            raise RuntimeError(
                "MultiprocessParallelUpdater: several GPUs need NCCL, which CuPy does not find: "
                "pip install 'mpchain[gpu]'"
            )
        self._identity = cuda.cupy.cuda.nccl.get_unique_id()
        self._size = 1 + n_others
        self._params = params
        self._end = _NcclEnd(self._identity, self._size, 0)
        self._end.connect(params)

    def end_for(self, index):
        return _NcclEnd(self._identity, self._size, 1 + index)

    def publish(self, announce):
        announce()  # all take part at the same time
        self._end.take()

    def collect(self, names, share, wait):
        sums = self._end.give(names, share)
        wait()
        for name, total in sums.items():
            param = self._params[name]
            param.grad = total.astype(param.dtype, copy=False)

    def close(self):
        """Abandons the connection, lest it waits for a process that has ended."""
        self._end.close()


class _NcclEnd:
    _comm = None

    def __init__(self, identity, size, rank):
        self._identity, self._size, self._rank = identity, size, rank

    def connect(self, params):
        self._params = params

    def _nccl(self):
        nccl = cuda.cupy.cuda.nccl
        if self._comm is None:
            self._comm = nccl.NcclCommunicator(self._size, self._identity, self._rank)
        return nccl, self._comm, cuda.cupy.cuda.get_current_stream().ptr

    def take(self):
        nccl, comm, stream = self._nccl()
        nccl.groupStart()
        for param in self._params.values():
            pointer = param.array.data.ptr
            dtype = getattr(nccl, f"NCCL_{param.dtype.name.upper()}")
            comm.broadcast(pointer, pointer, param.size, dtype, 0, stream)
        nccl.groupEnd()

    def give(self, names, share):
        """Takes part in the sums, which only the main process gets; returns them by name."""
        nccl, comm, stream = self._nccl()
        sums = {}
        for name in names:
            param = self._params[name]
            dtype = np.float32 if param.dtype == np.float16 else param.dtype
            grad = param.xp.zeros(param.shape, dtype) if param.grad is None else param.grad
            sums[name] = param.xp.multiply(grad, share, dtype=dtype, order="C")
        nccl.groupStart()
        for total in sums.values():
            pointer = total.data.ptr
            dtype = getattr(nccl, f"NCCL_{total.dtype.name.upper()}")
            comm.reduce(pointer, pointer, total.size, dtype, nccl.NCCL_SUM, 0, stream)
        nccl.groupEnd()
        return sums

    def close(self):
        if self._comm is not None:
            self._comm.abort()
            self._comm = None
