"""Gradients whose bits do not depend on the number of ranks.

A batch is divided into a fixed number of micro-shards, and each is processed separately. On any
rank, matrices therefore have the same shapes and rounding is the same. The results are summed in
the order of a fixed binary tree.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.persistents import MicroShardPersistents, remembered
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.typing import Array
from mpchain.utils.flat_layout import layouts
from mpchain.variable import Parameter


class Tree:
    """The sum of a fixed number of terms in the order of a binary tree.

    Each rank has a contiguous part of the terms.

    Args:
        comm: the communicator of the ranks.
        n_terms: the number of terms, at least the number of ranks.
        make_room: function that returns a new flat array for a term.

    Example:
        >>> tree = Tree(comm, 3, lambda: np.empty(2))
        >>> for i in range(3):
        ...     tree.add(i, np.full(2, i))
        >>> tree.sum()
        array([3, 3])
    """

    def __init__(self, comm: Communicator, n_terms: int, make_room: Callable[[], Array]):
        self._comm, self._n_terms, self._make_room = comm, n_terms, make_room
        self._nodes = {}  # maps a range of terms to its sum, until it is merged
        self._free = []  # arrays to reuse, because allocation costs more than the sums
        self._total = None

    def room(self) -> Array:
        """Returns an array for the next term, which may be the array that :meth:`sum` returned."""
        if self._total is not None:
            self._free.append(self._total)
            self._total = None
        return self._free.pop() if self._free else self._make_room()

    def add(self, index: int, term: Array) -> None:
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

    def sum(self) -> Array:
        """Returns the sum of all ranks' terms, and removes the terms; collective."""
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
        """Returns the largest nodes of the tree whose terms are all on the given rank."""
        first, last = (self._n_terms * r // self._comm.size for r in (rank, rank + 1))
        return list(_within((0, self._n_terms), first, last))


def _rows(xp, arrays, place):
    """Returns the same slice of several arrays, stacked as rows."""
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


class DeterministicReducer(Reducer):
    """Averages gradients over the samples of all ranks, with the same bits on any number of ranks.

    The parts of a batch are this rank's micro-shards, which may be empty. The losses of the parts
    must be weighted. :class:`MicroShardPersistents` combines persistent values in the same way.

    Args:
        comm: a reproducible communicator.
        zero_fill: whether a gradient that only some micro-shards have counts as zeros in the other
            micro-shards.

    Example:
        >>> reproducible = mpchain.create_communicator(reproducible=True, micro_shards=2)
        >>> reducer = DeterministicReducer(reproducible)
        >>> reducer.parts_per_batch
        2
    """

    def __init__(self, comm: Communicator, *, zero_fill: bool = True):
        super().__init__(comm, zero_fill)
        self.parts_per_batch = len(comm.own_shards)

    def watch(self, params: Mapping[str, Parameter]) -> None:
        super().watch(dict(sorted(params.items())))
        # If there are fewer ranks than micro-shards, a rank has several.
        self.parts_per_batch = len(self._comm.own_shards)
        self._layouts = layouts(self._params.items())
        self._trees = [self._tree(layout) for layout in self._layouts]

    def _tree(self, layout):
        xp = self._params[next(iter(layout.slices))].xp
        dtype = self._comm.gradient_dtype(layout.dtype)
        return Tree(self._comm, self._comm.micro_shards, lambda: xp.empty(layout.size, dtype))

    def begin(self, n_samples: float | None = None, **options: Any) -> None:
        super().begin(n_samples, **options)
        self._counts = np.zeros(1, np.int64)
        self._n_ended = 0
        self._persistents = MicroShardPersistents(self._comm)
        self._uninitialized = [
            param
            for model in remembered(self._comm).values()
            for param in model.params()
            if not param.is_initialized
        ]

    def end_part(self, n_part: float | None) -> None:
        """Adds the gradients of a micro-shard of ``n_part`` samples to the sum, and clears them."""
        grads = {name: param.grad if n_part else None for name, param in self._params.items()}
        counts = [bool(n_part), *(grad is not None for grad in grads.values())]
        self._counts = self._counts + np.array(counts, np.int64)
        place = self._comm.own_shards[self._n_ended]
        for layout, tree in zip(self._layouts, self._trees, strict=True):
            tree.add(place, layout.fill(tree.room(), grads))
        self._n_ended += 1
        for param in self._params.values():
            param.cleargrad()
        self._persistents.add(n_part)

    def finish(self) -> float:
        own = set(map(id, self.params))
        if any(param.is_initialized and id(param) not in own for param in self._uninitialized):
            raise RuntimeError(
                "MultiNodeOptimizer.update: the loss function has initialized parameters of "
                "another optimizer's model, whose values would depend on the number of ranks: pass "
                "the sizes of the inputs to the links of that model"
            )
        self._persistents.finish()
        self.message.begin([self._n_samples, *self._counts.tolist()])
        n_samples, n_shards, *held = self.message.wait()
        self._check_total(n_samples)
        counts = dict(zip(self._params, held, strict=True))
        lacking = [name for name, n in counts.items() if 0 < n < n_shards]
        if lacking and not self._zero_fill:
            raise ValueError(
                "gradients are None in some micro-shards only; use zero_fill=True to count them as "
                f"zeros there: {', '.join(lacking)}"
            )
        for layout, tree in zip(self._layouts, self._trees, strict=True):
            for name, mean in layout.views(tree.sum()).items():
                grad = mean.astype(layout.dtype, copy=False)
                self._params[name].grad = grad if counts[name] else None
        return self.n_samples()
