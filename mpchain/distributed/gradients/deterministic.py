"""Gradients whose bits do not depend on the number of ranks.

A batch is divided into a fixed number of micro-shards, and each is worked through by itself: so
matrices have the same shapes, and rounding is the same, wherever that is done. What they yield is
summed in the order of a fixed binary tree. Random numbers are drawn anew for each micro-shard.
"""

import contextlib
import functools

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import config, using_config


class Tree:
    """The sum of a fixed number of terms, in the order of a binary tree, of which each rank has a
    contiguous part of the terms.

    Args:
        comm (Communicator): the ranks.
        n_terms (int): a multiple of the number of ranks.
        make_room: function that returns a new flat array for a term.
    """

    def __init__(self, comm, n_terms, make_room):
        self._comm, self._n_terms, self._make_room = comm, n_terms, make_room
        self._nodes = {}  # by range of terms: sums that are not yet part of a greater one
        self._free = []  # arrays that can be used again: new memory costs more than sums
        self._total = None

    def room(self):
        """Returns an array for the next term; what :meth:`sum` returned is not needed any more."""
        if self._total is not None:
            self._free.append(self._total)
            self._total = None
        return self._free.pop() if self._free else self._make_room()

    def add(self, index, term):
        """Adds one of this rank's terms, an array from :meth:`room`."""
        path = [(0, self._n_terms)]
        while path[-1] != (index, index + 1):
            path.append(next(part for part in _halves(path[-1]) if part[0] <= index < part[1]))
        self._nodes[path.pop()] = term
        while path:
            left, right = _halves(path[-1])
            if left not in self._nodes or right not in self._nodes:
                return
            total, other = self._nodes.pop(left), self._nodes.pop(right)
            total += other
            self._free.append(other)
            self._nodes[path.pop()] = total

    def sum(self):
        """Returns the sum of all ranks' terms; collective. Afterwards there are none."""
        comm = self._comm
        nodes, self._nodes = sorted(self._nodes.items()), {}
        arrays = [array for _, array in nodes]
        self._total, *others = arrays
        self._free += others
        if comm.size == 1:
            return self._total
        n = self._total.size
        slices = [slice(n * i // comm.size, n * (i + 1) // comm.size) for i in range(comm.size)]
        xp = backend.get_array_module(self._total)
        # Each rank finishes the tree for one slice of the array.
        held = {
            place: row
            for rank, rows in enumerate(comm.alltoall([_rows(xp, arrays, s) for s in slices]))
            for place, row in zip(self._places(rank), rows, strict=True)
        }
        for place, part in zip(slices, comm.allgather(_fold((0, self._n_terms), held))):
            self._total[place] = part
        return self._total

    def _places(self, rank):
        """The greatest nodes of the tree all of whose terms a rank has."""
        first, last = (self._n_terms * r // self._comm.size for r in (rank, rank + 1))
        return list(_within((0, self._n_terms), first, last))


def _rows(xp, arrays, place):
    """Returns a slice of some arrays, one row of each."""
    return arrays[0][None, place] if len(arrays) == 1 else xp.stack([x[place] for x in arrays])


def _halves(place):
    begin, end = place
    middle = (begin + end) // 2
    return (begin, middle), (middle, end)


def _within(place, first, last):
    begin, end = place
    if first <= begin and end <= last:
        yield place
    elif begin < last and first < end:
        for half in _halves(place):
            yield from _within(half, first, last)


def _fold(place, held):
    if place in held:
        return held[place]
    left, right = _halves(place)
    return _fold(left, held) + _fold(right, held)


class DeterministicReducer:
    """Replaces gradients by their means over the samples of all ranks, bit by bit the same on any
    number of ranks.

    A step is :meth:`begin`, then for each of this rank's micro-shards the gradients of the mean
    loss over its samples, times :meth:`share_of`, and :meth:`add`; then :meth:`finish`.

    Args:
        comm (Communicator): the ranks; a reproducible one.
        zero_fill (bool): whether a gradient that only some micro-shards have counts as zeros in the
            others; if not, ``finish`` raises ValueError.
    """

    def __init__(self, comm, *, zero_fill=True):
        self._comm, self._zero_fill = comm, zero_fill
        self._n_own = comm.micro_shards // comm.size
        self._totals = np.zeros(2)
        self._seed = (0,)
        self.watch({})

    def watch(self, params):
        """Sets the parameters, by name; they must be initialized, and the same on all ranks."""
        self._params = dict(sorted(params.items()))
        self._trees = {}  # by dtype

    def serialize(self, serializer):
        """Nothing waits from step to step."""

    def begin(self, n_samples, seed=(0,)):
        """Starts a step.

        Args:
            n_samples (int): this rank's number of samples.
            seed (sequence of int): what random numbers are drawn from in the step, 32-bit words,
                the same on all ranks.
        """
        self._seed = seed
        self._totals[:] = n_samples, n_samples > 0
        self._request = self._comm.iallreduce(self._totals)
        self._counts = np.int64(0)
        self._n_added = 0

    def n_ranks_with_samples(self):
        """Returns how many ranks have samples in this step."""
        return int(self._total(1))

    def share_of(self, n):
        """Returns what part of all samples ``n`` are."""
        return float(n / max(self._total(0), 1))

    def _total(self, index):
        self._request.Wait()
        return self._totals[index]

    def seeded(self, index, function, with_initial_values=False):
        """Returns a function that calls another for this rank's micro-shard ``index``: with NumPy's
        global generator in a state that is drawn for it, and otherwise left as it is.

        Args:
            index (int): as above.
            function: function without arguments.
            with_initial_values (bool): whether the function initializes persistent values, which
                are drawn alike in all micro-shards.
        """
        shard = self._comm.rank * self._n_own + index

        def call():
            rng = config.rng
            if rng is None and with_initial_values:
                rng = np.random.RandomState([*self._seed])
            with _seeded([*self._seed, shard]), using_config("rng", rng):
                return function()

        return call

    def add(self, has_samples):
        """Takes the parameters' gradients for this rank's next micro-shard, and clears them.

        Args:
            has_samples (bool): whether it has any; if not, the gradients do not count.
        """
        grads = {name: param.grad if has_samples else None for name, param in self._params.items()}
        counts = [has_samples, *(grad is not None for grad in grads.values())]
        self._counts = self._counts + np.array(counts, np.int64)
        place = self._comm.rank * self._n_own + self._n_added
        for dtype, params in self._by_dtype().items():
            if dtype not in self._trees:
                xp, n = next(iter(params.values())).xp, sum(p.size for p in params.values())
                make_room = functools.partial(xp.empty, n, dtype)
                self._trees[dtype] = Tree(self._comm, self._comm.micro_shards, make_room)
            tree = self._trees[dtype]
            pieces = [(param.size, grads[name]) for name, param in params.items()]
            tree.add(place, _fill(tree.room(), pieces))
        self._n_added += 1
        for param in self._params.values():
            param.cleargrad()

    def _by_dtype(self):
        """Parameters by name, by the dtype in which their gradients are summed."""
        groups = {}
        for name, param in self._params.items():
            groups.setdefault(self._comm.gradient_dtype(param.dtype), {})[name] = param
        return groups

    def finish(self):
        """Sets the gradients.

        Returns:
            The number of samples of all ranks.
        """
        n_shards, *counts = self._comm.allreduce(self._counts).tolist()
        counts = dict(zip(self._params, counts, strict=True))
        lacking = [name for name, n in counts.items() if 0 < n < n_shards]
        if lacking and not self._zero_fill:
            raise ValueError(
                "gradients are None in some micro-shards only, and count as zeros only with "
                f"zero_fill=True: {', '.join(lacking)}"
            )
        for dtype, params in self._by_dtype().items():
            flat = self._trees[dtype].sum()
            for name, param in params.items():
                part, flat = flat[: param.size], flat[param.size :]
                mean = part.reshape(param.shape).astype(param.dtype, copy=False)
                param.grad = mean if counts[name] else None
        return int(self._total(0))


def _fill(flat, pieces):
    begin = 0
    for size, grad in pieces:
        flat[begin : begin + size] = 0 if grad is None else grad.reshape(-1)
        begin += size
    return flat


@contextlib.contextmanager
def _seeded(seed):
    state = np.random.get_state()
    np.random.seed(seed)
    if cuda.available:
        cuda.cupy.random.seed(np.random.randint(2**31))
    try:
        yield
    finally:
        np.random.set_state(state)
