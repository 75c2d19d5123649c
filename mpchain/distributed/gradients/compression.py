"""Compression of gradients: functions that send a bucket in fewer bytes.

A compression is a function or a callable object. It is called with the communicator and a bucket of
gradients (``buckets.py``), starts to replace ``bucket.values`` with their sum over the ranks, and
returns a request with ``Test()`` and ``Wait()``. Buckets come in the same order on all ranks. Only
:func:`exact` sums without an error; the other compressions save time on slow networks.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mpchain import backend
from mpchain.distributed.communicators import Communicator
from mpchain.serializer import AbstractSerializer
from mpchain.typing import Array
from mpchain.utils.flat_layout import FlatLayout


class Bucket(Protocol):
    """A compression's view of a ``Bucket`` of ``mpchain/distributed/gradients/buckets.py``.

    Attributes:
        values: flat array of this rank's gradients, which the sum over the ranks overwrites.
        layout: maps each parameter to its elements in ``values``.
    """

    values: Array
    layout: FlatLayout

    def views(self) -> dict[str, Array]:
        """Returns a dict from each parameter's name to its gradient, a view of ``values``."""
        raise NotImplementedError

    def begin_sum(self, comm: Communicator, dtype: str | None = None) -> Any:
        """Starts to replace ``values`` with their sum, sent in ``dtype``, or exactly if ``dtype``
        is None; returns the request."""


def exact(comm: Communicator, bucket: Bucket) -> Any:
    """Sums gradients in their own precision. This compression is the default, unless the
    communicator's ``allreduce_grad_dtype`` is float16.

    Example:
        >>> from mpchain.distributed.gradients import compression
        >>> make = mpchain.distributed.create_multi_node_optimizer
        >>> optimizer = make(optimizers.SGD(), comm, compression=compression.exact)
    """
    return bucket.begin_sum(comm)


def float16(comm: Communicator, bucket: Bucket) -> Any:
    """Sends gradients in half precision between hosts, and sums them in their own precision; NCCL
    also sums in half precision.

    Magnitudes below 3e-8 become zero, and magnitudes of 65520 or more become infinite, so scale
    the loss.

    Example:
        >>> from mpchain.distributed.gradients import compression
        >>> make = mpchain.distributed.create_multi_node_optimizer
        >>> optimizer = make(optimizers.SGD(), comm, compression=compression.float16)
    """
    return bucket.begin_sum(comm, "float16")


def bfloat16(comm: Communicator, bucket: Bucket) -> Any:
    """Sends gradients as :func:`float16` does, but with 8 significant bits and the range of
    float32.

    Example:
        >>> from mpchain.distributed.gradients import compression
        >>> make = mpchain.distributed.create_multi_node_optimizer
        >>> optimizer = make(optimizers.SGD(), comm, compression=compression.bfloat16)
    """
    return bucket.begin_sum(comm, "bfloat16")


def configured(comm: Communicator) -> Callable[[Communicator, Bucket], Any]:
    """Returns the compression for the communicator's ``allreduce_grad_dtype``.

    Example:
        >>> configured(comm).__name__
        'exact'
    """
    return float16 if comm.get_config("allreduce_grad_dtype") == "float16" else exact


class ErrorFeedback:
    """Base of compressions that send an approximation, and add its error to the next gradients.

    Each rank keeps its errors by parameter name, and saves them with the optimizer. A rank restores
    the errors that it saved, and starts without errors if it saved none. Every rank should
    therefore save a snapshot: if only rank 0 does, the other ranks' errors are lost on resuming.

    Example:
        >>> class Signs(ErrorFeedback):
        ...     def __call__(self, comm, bucket):
        ...         self._add_errors(bucket.views())
        ...         values = bucket.values.copy()
        ...         bucket.values[...] = np.sign(values) * abs(values).mean()
        ...         for name, view in bucket.layout.views(values - bucket.values).items():
        ...             self._errors[name] = view
        ...         return comm.iallreduce(bucket.values)
    """

    def __init__(self):
        self._errors = {}

    def _add_errors(self, views):
        for name, view in views.items():
            if name in self._errors:
                view += backend.get_array_module(view).asarray(self._errors[name])

    def serialize(self, serializer: AbstractSerializer, comm: Communicator) -> None:
        """Saves or restores the errors of this rank."""
        saved = serialize_arrays(serializer["errors"], self._errors)
        whose = serializer("rank", f"{comm.rank} of {comm.size}")
        is_mine = str(whose) == f"{comm.rank} of {comm.size}"
        self._errors = saved if is_mine else {}


def serialize_arrays(serializer: AbstractSerializer, arrays: dict[str, Any]) -> dict[str, Any]:
    """Saves arrays by name, or returns a dict of the saved arrays, which may be empty.

    Example:
        >>> saved = mpchain.serializers.DictionarySerializer()
        >>> _ = serialize_arrays(saved, {"/W": np.ones(2)})
        >>> serialize_arrays(mpchain.serializers.NpzDeserializer(saved.target), {})
        {'/W': array([1., 1.])}
    """
    names = sorted(arrays)
    try:
        names = json.loads(str(serializer("names", json.dumps(names))))
    except KeyError:
        return {}
    return {name: serializer(str(i), arrays.get(name)) for i, name in enumerate(names)}


class TopK(ErrorFeedback):
    """Sends only the elements of a bucket with the greatest magnitudes; the other elements
    accumulate until they are sent.

    See A. F. Aji, K. Heafield, Sparse communication for distributed gradient descent, EMNLP 2017.

    Args:
        ratio: the share of the elements that are sent, above 0 and at most 1.

    Example:
        >>> from mpchain.distributed.gradients.compression import TopK
        >>> make = mpchain.distributed.create_multi_node_optimizer
        >>> optimizer = make(optimizers.SGD(), comm, compression=TopK(ratio=0.1))
    """

    def __init__(self, ratio: float = 0.01):
        super().__init__()
        if not 0 < ratio <= 1:
            raise ValueError(f"TopK: ratio must be above 0 and at most 1, not {ratio}")
        self.ratio = ratio

    def __call__(self, comm: Communicator, bucket: Bucket) -> Any:
        values, views = bucket.values, bucket.views()
        xp = backend.get_array_module(values)
        self._add_errors(views)
        k = max(1, int(self.ratio * values.size)) if values.size else 0
        index = xp.argpartition(abs(values), values.size - k)[values.size - k :]
        if xp is np:
            return self._sum_on_host(comm, values, views, index)
        # Values and indices are sent in one message, so the bits of the values are read as
        # integers.
        as_integers = np.dtype(f"int{8 * values.itemsize}")
        message = xp.concatenate([index.astype(as_integers), values[index].view(as_integers)])
        values[index] = 0
        self._errors.update({name: view.copy() for name, view in views.items()})
        return comm.begin(self._steps(values, comm.iallgather(message), k))

    def _sum_on_host(self, comm, values, views, index):
        """Begins a sum in which hosts send each other only the sums of their ranks."""
        sent = values[index]
        values[index] = 0
        self._errors.update({name: view.copy() for name, view in views.items()})
        values[...] = 0
        values[index] = sent
        return comm.iallreduce(values, "sparse")

    @staticmethod
    def _steps(values, request, k):
        messages = yield from request.steps()
        values[...] = 0
        for message in messages:
            values[message[:k]] += message[k:].view(values.dtype)


class PowerSGD(ErrorFeedback):
    """Sends gradients of matrices as products of two narrow matrices, if these have fewer elements
    together, and other gradients exactly.

    A gradient of more than two axes is taken as a matrix, whose rows are indexed by its first axis.
    See T. Vogels, S. P. Karimireddy, M. Jaggi, PowerSGD: practical low-rank gradient compression
    for distributed optimization, NeurIPS 2019.

    Args:
        rank: the number of columns of each factor.
        seed: the seed of the first factors, the same on all ranks.

    Example:
        >>> from mpchain.distributed.gradients.compression import PowerSGD
        >>> make = mpchain.distributed.create_multi_node_optimizer
        >>> optimizer = make(optimizers.SGD(), comm, compression=PowerSGD(rank=2))
    """

    def __init__(self, rank: int = 4, seed: int = 0):
        super().__init__()
        if rank < 1:
            raise ValueError(f"PowerSGD: rank must be at least 1, not {rank}")
        self.rank, self.seed = rank, seed
        self._factors = {}  # by name; each step starts from the factors of the last step
        self._room = {}

    def serialize(self, serializer: AbstractSerializer, comm: Communicator) -> None:
        """Saves or restores the errors of this rank, and the factors."""
        super().serialize(serializer, comm)
        self._factors = serialize_arrays(serializer["factors"], self._factors)

    def __call__(self, comm: Communicator, bucket: Bucket) -> Any:
        views = bucket.views()
        matrices = {
            name: view.reshape(len(view), -1)
            for name, view in views.items()
            if view.ndim > 1 and self.rank * (len(view) + view.size // len(view)) < view.size
        }
        others = {name: view for name, view in views.items() if name not in matrices}
        self._add_errors(matrices)
        if tuple(views) not in self._room:
            self._room[tuple(views)] = self._make_room(comm, bucket.values, matrices, others)
        return comm.begin(self._steps(comm, matrices, others, self._room[tuple(views)]))

    def _make_room(self, comm, values, matrices, others):
        """Makes two flat arrays and views of their parts: one for all first factors and the
        gradients that are sent exactly, the other for all second factors.

        The arrays of different buckets may be summed in any order.
        """
        first, second = FlatLayout(values.dtype), FlatLayout(values.dtype)
        for name, matrix in matrices.items():
            first.append(name, (matrix.shape[0], self.rank))
            second.append(name, (matrix.shape[1], self.rank))
        for name, view in others.items():
            first.append(name, view.shape)
        if isinstance(values, np.ndarray):
            arrays = comm.make_buffers([(x.size, values.dtype) for x in (first, second)])
        else:
            xp = backend.get_array_module(values)
            arrays = [xp.zeros(x.size, values.dtype) for x in (first, second)]
        return *arrays, first.views(arrays[0]), second.views(arrays[1])

    def _steps(self, comm, matrices, others, room):
        first, second, lefts, rights = room
        xp = backend.get_array_module(first)
        for name, matrix in matrices.items():
            lefts[name][...] = matrix @ xp.asarray(self._factor(name, matrix))
        for name, view in others.items():
            lefts[name][...] = view
        yield from comm.begin_sum(first).steps()
        for name, matrix in matrices.items():
            left, right = lefts[name], rights[name]
            left[...] = xp.linalg.qr(left)[0]
            right[...] = matrix.T @ left
            self._errors[name] = matrix - left @ right.T
        yield from comm.begin_sum(second).steps()
        for name, matrix in matrices.items():
            matrix[...] = lefts[name] @ rights[name].T
            self._factors[name] = rights[name].copy()
        for name, view in others.items():
            view[...] = lefts[name]

    def _factor(self, name, matrix):
        if name not in self._factors:
            seed = [self.seed, *name.encode()]
            random = np.random.RandomState(seed).standard_normal((matrix.shape[1], self.rank))
            self._factors[name] = random.astype(matrix.dtype)
        return self._factors[name]
