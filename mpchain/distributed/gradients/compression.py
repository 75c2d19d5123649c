"""How buckets of gradients travel between ranks.

A compression is a function, or a callable object: it takes the communicator and a
:class:`~mpchain.distributed.gradients.buckets.Bucket`, begins to replace ``bucket.values`` by their
sum over the ranks, and returns a request with ``Test()`` and ``Wait()``. Buckets come in the same
order on all ranks. Only :func:`exact` is exact; the others save time where the network is slow.
"""

import itertools
import json

import numpy as np

from mpchain import backend


def exact(comm, bucket):
    """Sums as precisely as one process does."""
    return comm.iallreduce(bucket.values)


def float16(comm, bucket):
    """Gradients travel in half precision between hosts, and are summed in their own; NCCL also sums
    in half precision.

    Magnitudes below 6e-8 vanish, and above 65504 become infinite: scale the loss.
    """
    return comm.iallreduce(bucket.values, wire_dtype="float16")


def bfloat16(comm, bucket):
    """As :func:`float16`, with 8 significant bits and the range of float32."""
    return comm.iallreduce(bucket.values, wire_dtype="bfloat16")


def configured(comm):
    """Returns the compression that the communicator's ``allreduce_grad_dtype`` asks for."""
    return float16 if comm.get_config("allreduce_grad_dtype") == "float16" else exact


class ErrorFeedback:
    """Base of compressions that send an approximation, and add what it lacks to the next gradients.

    What is lacking is kept on each rank by parameter name, and saved with the optimizer. A rank
    gets back what itself has saved; where it did not save anything, it starts with nothing lacking.
    So it is best if every rank saves a snapshot; if only rank 0 does, what the others had not sent
    yet is lost when training is resumed.
    """

    def __init__(self):
        self._errors = {}

    def _add_errors(self, views):
        for name, view in views.items():
            if name in self._errors:
                view += backend.get_array_module(view).asarray(self._errors[name])

    def serialize(self, serializer, comm):
        """Saves or restores the errors of this rank."""
        saved = _serialize_arrays(serializer["errors"], self._errors)
        whose = serializer("rank", f"{comm.rank} of {comm.size}")
        is_mine = str(whose) == f"{comm.rank} of {comm.size}"
        self._errors = saved if is_mine else {}


def _serialize_arrays(serializer, arrays):
    """Saves arrays by name, or returns the saved ones; none where the file has none."""
    names = sorted(arrays)
    try:
        names = json.loads(str(serializer("names", json.dumps(names))))
    except KeyError:
        return {}
    return {name: serializer(str(i), arrays.get(name)) for i, name in enumerate(names)}


class TopK(ErrorFeedback):
    """Only the largest elements of a bucket travel; the others wait, and add up.

    See A. F. Aji, K. Heafield, Sparse communication for distributed gradient descent, EMNLP 2017.

    Args:
        ratio (float): the share of the elements that travel, above 0 and at most 1.
    """

    def __init__(self, ratio=0.01):
        super().__init__()
        if not 0 < ratio <= 1:
            raise ValueError(f"TopK: ratio must be above 0 and at most 1, not {ratio}")
        self.ratio = ratio

    def __call__(self, comm, bucket):
        values, views = bucket.values, bucket.views()
        xp = backend.get_array_module(values)
        self._add_errors(views)
        k = max(1, int(self.ratio * values.size)) if values.size else 0
        index = xp.argpartition(abs(values), values.size - k)[values.size - k :]
        # One message: whole numbers as wide as the values, of which the values' bits are some.
        as_integers = np.dtype(f"int{8 * values.itemsize}")
        message = xp.concatenate([index.astype(as_integers), values[index].view(as_integers)])
        values[index] = 0
        self._errors.update({name: view.copy() for name, view in views.items()})
        return comm.begin(self._steps(values, comm.iallgather(message), k))

    @staticmethod
    def _steps(values, request, k):
        messages = yield from request.steps()
        values[...] = 0
        for message in messages:
            values[message[:k]] += message[k:].view(values.dtype)


class PowerSGD(ErrorFeedback):
    """Gradients of matrices travel as products of two narrow ones; the others exactly.

    A gradient of more than two axes is a matrix of its first axis and the others. See T. Vogels,
    S. P. Karimireddy, M. Jaggi, PowerSGD: practical low-rank gradient compression for distributed
    optimization, NeurIPS 2019.

    Args:
        rank (int): the number of columns of each factor.
        seed (int): of the first factors, the same on all ranks.
    """

    def __init__(self, rank=4, seed=0):
        super().__init__()
        if rank < 1:
            raise ValueError(f"PowerSGD: rank must be at least 1, not {rank}")
        self.rank, self.seed = rank, seed
        self._factors = {}  # by name: what the last step ended with is where the next one begins
        self._room = {}

    def serialize(self, serializer, comm):
        """Saves or restores the errors of this rank, and the factors."""
        super().serialize(serializer, comm)
        self._factors = _serialize_arrays(serializer["factors"], self._factors)

    def __call__(self, comm, bucket):
        views = bucket.views()
        matrices = {
            name: view.reshape(len(view), -1)
            for name, view in views.items()
            if view.ndim > 1 and self.rank * (len(view) + view.size // len(view)) < view.size
        }
        others = [view.reshape(-1) for name, view in views.items() if name not in matrices]
        self._add_errors(matrices)
        if tuple(views) not in self._room:
            self._room[tuple(views)] = self._make_room(comm, bucket.values, matrices, others)
        return comm.begin(self._steps(comm, matrices, others, self._room[tuple(views)]))

    def _make_room(self, comm, values, matrices, others):
        """Makes the arrays of all first factors, and the other gradients, and of all second ones.

        They can be summed in any order, relative to those of other buckets.
        """
        n_first = sum(self.rank * len(m) for m in matrices.values()) + sum(x.size for x in others)
        n_second = sum(self.rank * m.shape[1] for m in matrices.values())
        if isinstance(values, np.ndarray):
            return comm.make_buffers([(n_first, values.dtype), (n_second, values.dtype)])
        xp = backend.get_array_module(values)
        return [xp.zeros(n_first, values.dtype), xp.zeros(n_second, values.dtype)]

    def _steps(self, comm, matrices, others, room):
        first, second = room
        xp = backend.get_array_module(first)
        lefts = self._cut(first, [len(m) for m in matrices.values()])
        rights = self._cut(second, [m.shape[1] for m in matrices.values()])
        rest = first[sum(x.size for x in lefts) :]
        for (name, matrix), left in zip(matrices.items(), lefts, strict=True):
            left[...] = matrix @ xp.asarray(self._factor(name, matrix))
        if others:
            xp.concatenate(others, out=rest)
        yield from comm.begin_sum(first).steps()
        for (name, matrix), left, right in zip(matrices.items(), lefts, rights, strict=True):
            left[...] = xp.linalg.qr(left)[0]
            right[...] = matrix.T @ left
            self._errors[name] = matrix - left @ right.T
        yield from comm.begin_sum(second).steps()
        for (name, matrix), left, right in zip(matrices.items(), lefts, rights, strict=True):
            matrix[...] = left @ right.T
            self._factors[name] = right.copy()
        for view in others:
            view[...], rest = rest[: view.size], rest[view.size :]

    def _cut(self, array, lengths):
        """Returns the parts of a flat array as matrices with these numbers of rows."""
        ends = np.cumsum([0, *lengths]) * self.rank
        return [array[i:j].reshape(-1, self.rank) for i, j in itertools.pairwise(ends)]

    def _factor(self, name, matrix):
        if name not in self._factors:
            seed = [self.seed, *name.encode()]
            random = np.random.RandomState(seed).standard_normal((matrix.shape[1], self.rank))
            self._factors[name] = random.astype(matrix.dtype)
        return self._factors[name]
