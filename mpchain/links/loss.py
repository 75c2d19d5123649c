"""Losses with parameters."""

import heapq
from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.backends.dtypes import is_floating
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.functions.declaring.precision import check_widths
from mpchain.initializers import Uniform, get_initializer
from mpchain.link import Link
from mpchain.observers import one_call
from mpchain.typing import Array, DTypeLike, InitialValue, Input
from mpchain.utils.type_check import check
from mpchain.utils.walker_alias import WalkerAlias
from mpchain.variable import Parameter, Variable, as_array, as_variable


def _paths_of(tree):
    """Finds the path from the root to each label of a tree of pairs.

    Returns:
        tuple: a dict from each label to the indices of the inner nodes on its path and the turns at
        these nodes (1 for left, -1 for right); and the number of inner nodes.
    """
    paths, n_inner = {}, 0
    stack = [(tree, (), ())]
    while stack:
        node, nodes, turns = stack.pop()
        if not isinstance(node, tuple):
            _check_leaf(node, paths)
            paths[node] = nodes, turns
            continue
        if len(node) != 2:
            raise ValueError(
                "BinaryHierarchicalSoftmax: every inner node of tree must be a pair, but a node "
                f"has {len(node)} children: {node!r}"
            )
        nodes = (*nodes, n_inner)
        n_inner += 1
        left, right = node
        stack += [(right, nodes, (*turns, -1)), (left, nodes, (*turns, 1))]
    return paths, n_inner


def _check_leaf(label, paths):
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)) or label < 0:
        raise TypeError(
            "BinaryHierarchicalSoftmax: the leaves of tree must be labels, integers from 0 on, "
            f"but one is {label!r}"
        )
    if label in paths:
        raise ValueError(f"BinaryHierarchicalSoftmax: label {label} occurs twice in tree")


class BinaryHierarchicalSoftmax(Link):
    """Cross entropy of labels that are the leaves of a binary tree.

    Each inner node has a vector w. The left child has the probability sigmoid(w . x), and the right
    child sigmoid(-w . x); the probability of a label is the product along its path. The time for a
    batch is proportional to the length of the longest path of its labels, not to the number of
    labels in the tree.

        >>> tree = L.BinaryHierarchicalSoftmax.create_huffman_tree({0: 5, 1: 3, 2: 1})
        >>> loss = L.BinaryHierarchicalSoftmax(4, tree)

    Args:
        in_size: number of input features.
        tree: nested pairs (tuples) with labels (int) as leaves.
        dtype: dtype of the parameter; None means ``config.dtype``.

    Attributes:
        W (Parameter): a vector for each inner node, (n_nodes, in_size), in depth-first order, left
            subtrees first.

    Raises:
        TypeError: a leaf is not a label.
        ValueError: an inner node is not a pair, or a label occurs twice.

    See F. Morin and Y. Bengio, Hierarchical probabilistic neural network language model, AISTATS
    2005.
    """

    def __init__(self, in_size: int, tree: object, dtype: DTypeLike = None) -> None:
        super().__init__()
        paths, n_inner = _paths_of(tree)
        # All paths are concatenated. Two arrays hold the start and the length of each label's path.
        ways = [paths.get(label) for label in range(max(paths) + 1)]
        known = [way for way in ways if way is not None]
        self._lengths = np.array([-1 if way is None else len(way[0]) for way in ways])
        self._begins = np.cumsum(np.maximum(self._lengths, 0)) - np.maximum(self._lengths, 0)
        self._nodes = np.array([node for nodes, _ in known for node in nodes], np.int32)
        self._turns = np.array([turn for _, turns in known for turn in turns], np.int8)
        with self.init_scope():
            self.W = Parameter(get_initializer(Uniform(1), dtype), (n_inner, in_size))

    @staticmethod
    def create_huffman_tree(word_counts: Mapping[int, float]) -> Any:
        """Makes the Huffman tree, in which frequent labels have short paths.

        Args:
            word_counts: number of occurrences by label (int).

        Returns:
            Nested pairs (tuples) with labels as leaves.

        Raises:
            ValueError: ``word_counts`` is empty.

        See D. Huffman, A method for the construction of minimum-redundancy codes, 1952.
        """
        if not word_counts:
            raise ValueError(
                "BinaryHierarchicalSoftmax.create_huffman_tree: word_counts must not be empty"
            )
        # Entries with equal counts are ordered by the first position of a label in word_counts,
        # because trees cannot be compared.
        queue = [(count, i, label) for i, (label, count) in enumerate(word_counts.items())]
        heapq.heapify(queue)
        while len(queue) > 1:
            (count, i, left), (other, j, right) = heapq.heappop(queue), heapq.heappop(queue)
            heapq.heappush(queue, (count + other, min(i, j), (left, right)))
        return queue[0][2]

    def device_resident_accept(self, visitor: DeviceResidentsVisitor) -> None:
        """Shows ``visitor`` the link and the arrays of the paths."""
        super().device_resident_accept(visitor)
        for name in ("_lengths", "_begins", "_nodes", "_turns"):
            setattr(self, name, visitor.visit_array(getattr(self, name)))

    def forward(self, x: Input, t: Input) -> Variable:
        """Computes the loss.

        Args:
            x: Variable or array (N, in_size), floating point.
            t: Variable or array of integers (N,): labels.

        Returns:
            Variable: the sum over the samples of -log(probability of the label), shape ().

        Raises:
            InvalidType: a shape or dtype is wrong.
            ValueError: a label is not in the tree.
        """
        t = as_array(t)
        name = "BinaryHierarchicalSoftmax"
        fits = x.ndim == 2 and is_floating(x.dtype) and x.shape[1] == self.W.shape[1]
        check(fits, name, "x must be floating point (N, in_size)", x=x, W=self.W)
        check_widths(name, {"x": x}, {"W": self.W})
        fits = t.dtype.kind in "iu" and t.shape == x.shape[:1]
        check(fits, name, "t must hold an integer per sample", t=t, x=x)
        known = (t >= 0) & (t < len(self._lengths))
        known &= one_call(getitem, self._lengths, self.xp.where(known, t, 0)) >= 0
        if not bool(known.all()):
            raise ValueError(f"{name}: t holds {int(t[~known][0])}, which is not in the tree")
        lengths = one_call(getitem, self._lengths, t)[:, None]
        steps = self.xp.arange(int(lengths.max()) if len(t) else 0)
        on_way = steps < lengths
        places = self.xp.where(on_way, one_call(getitem, self._begins, t)[:, None] + steps, 0)
        rows = F.embed_id(
            self.xp.where(on_way, one_call(getitem, self._nodes, places), -1),
            self.W,
            ignore_label=-1,
        )
        scores = F.reshape(F.matmul(rows, F.expand_dims(x, 2)), places.shape)
        losses = F.softplus(-scores * one_call(getitem, self._turns, places).astype(x.dtype))
        return F.sum(losses * on_way.astype(x.dtype))


class _Sampled(Link):
    """Base of sampled losses, with a vector for each label and a sampler that draws labels in
    proportion to weights."""

    def __init__(
        self, in_size: int | None, weights, sample_size: int, dtype: DTypeLike = None
    ) -> None:
        super().__init__()
        self.sampler = WalkerAlias(weights)
        self.sample_size = sample_size
        with self.init_scope():
            self.W = Parameter(get_initializer(0, dtype), (len(weights), in_size))

    def device_resident_accept(self, visitor: DeviceResidentsVisitor) -> None:
        """Shows ``visitor`` the link, and moves the sampler to the device of the link."""
        super().device_resident_accept(visitor)
        self.sampler.to_device(self.device)


class NegativeSampling(_Sampled):
    """Negative sampling: :func:`mpchain.functions.negative_sampling` with its parameters.

        >>> loss = L.NegativeSampling(3, counts=[10, 5, 2, 1], sample_size=2)
        >>> float(loss(np.ones((5, 3), np.float32), np.zeros(5, np.int32)).array)  # of zero vectors
        10.397207260131836

    Args:
        in_size: number of input features.
        counts: number of occurrences of each label.
        sample_size: number of negative labels to draw for each sample.
        power: labels are drawn in proportion to counts ** power.
        dtype: dtype of the parameter; None means ``config.dtype``.

    Attributes:
        W (Parameter): a vector for each label, (len(counts), in_size), initially zeros.
        sampler (WalkerAlias): draws the labels.
    """

    def __init__(
        self,
        in_size: int,
        counts: Sequence[float] | Array,
        sample_size: int,
        power: float = 0.75,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__(in_size, np.power(counts, float(power)), sample_size, dtype)

    def forward(
        self, x: Input, t: Array, reduce: str = "sum", *, return_samples: bool = False
    ) -> Variable | tuple[Variable, Array]:
        """Computes the loss.

        Args:
            x: Variable or array (N, in_size), floating point.
            t: array of integers (N,): labels; samples of label -1 are ignored.
            reduce: ``'sum'``, or ``'no'`` for one loss per sample.
            return_samples: whether to return the labels too, as an array (N, 1 + sample_size) whose
                first column is ``t``.

        Returns:
            Variable: shape (), or (N,) with ``reduce='no'``. With ``return_samples``, a tuple of
            this Variable and the labels.
        """
        return F.negative_sampling(
            x,
            t,
            self.W,
            self.sampler.sample,
            self.sample_size,
            reduce,
            return_samples=return_samples,
        )


class BlackOut(_Sampled):
    """BlackOut: :func:`mpchain.functions.black_out` with its parameters.

        >>> loss = L.BlackOut(3, counts=[10, 5, 2, 1], sample_size=2)
        >>> loss(np.ones((5, 3), np.float32), np.zeros(5, np.int32)).shape
        ()

    Args:
        in_size: number of input features.
        counts: number of occurrences of each label; labels are drawn in proportion to these
            numbers.
        sample_size: number of negative labels to draw for each sample.

    Attributes:
        W (Parameter): a vector for each label, (len(counts), in_size), initially zeros.
        sampler (WalkerAlias): draws the labels.
        sample_data: array of integers (N, sample_size) that is used instead of drawn labels; None
            draws labels.
    """

    sample_data = None

    def __init__(self, in_size: int, counts: Sequence[float] | Array, sample_size: int) -> None:
        super().__init__(in_size, counts, sample_size)

    def forward(self, x: Input, t: Input) -> Variable:
        """Computes the loss.

        Args:
            x: Variable or array (N, in_size), floating point.
            t: array of integers (N,): labels.

        Returns:
            Variable: the mean over the samples, shape ().
        """
        samples = self.sample_data
        if samples is None:
            samples = self.sampler.sample((x.shape[0], self.sample_size))
        return F.black_out(x, t, self.W, samples)


class CRF1d(Link):
    """Linear-chain conditional random field: :func:`mpchain.functions.crf1d` with its parameters.

        >>> crf = L.CRF1d(3)
        >>> xs = [np.eye(3, dtype=np.float32)[[t]] for t in (2, 0, 1)]
        >>> scores, path = crf.argmax(xs)
        >>> [int(labels[0]) for labels in path]
        [2, 0, 1]

    Args:
        n_label: number of labels.
        initial_cost: initializer, number or array (n_label, n_label); None means zeros.

    Attributes:
        cost (Parameter): the score of each transition, (n_label, n_label), from the first index to
            the second.
    """

    def __init__(self, n_label: int, initial_cost: InitialValue = None) -> None:
        super().__init__()
        with self.init_scope():
            initial = get_initializer(0 if initial_cost is None else initial_cost)
            self.cost = Parameter(initial, (n_label, n_label))

    def forward(
        self,
        xs: Sequence[Input],
        ys: Sequence[Input],
        reduce: str = "mean",
        transpose: bool = False,
    ) -> Variable:
        """Computes the negative log-likelihood of label sequences.

        Args:
            xs: Variables or arrays (B_t, n_label), one for each time step, B_t never increasing;
                with ``transpose``, (length, n_label), one for each sequence, in any order.
            ys: arrays of integers: labels, (B_t,), or (length,) with ``transpose``.
            reduce: ``'mean'`` over the sequences, or ``'no'`` for one loss per sequence.
            transpose: whether the elements of the lists are sequences instead of time steps.

        Returns:
            Variable: shape (), or (B,) with ``reduce='no'``, in the order of decreasing lengths.
        """
        if not transpose:
            return F.crf1d(self.cost, xs, ys, reduce)
        order = _order_of(xs)
        if len(ys) != len(xs):
            raise ValueError(
                f"CRF1d: ys must have as many elements as xs, {len(xs)}, but has {len(ys)}"
            )
        ys = F.transpose_sequence([as_variable(ys[i]) for i in order])
        return F.crf1d(self.cost, F.transpose_sequence([xs[i] for i in order]), ys, reduce)

    def argmax(self, xs: Sequence[Input], transpose: bool = False) -> tuple[Variable, list[Array]]:
        """Finds the best label sequences.

        Args:
            xs, transpose: see :meth:`forward`.

        Returns:
            tuple: the scores of the sequences, a Variable (B,), in the order of decreasing
            lengths; and a list of arrays of int32: the labels at each time step, (B_t,), or with
            ``transpose`` the labels of each sequence, in the order of ``xs``.
        """
        if not transpose:
            return F.argmax_crf1d(self.cost, xs)
        order = _order_of(xs)
        score, path = F.argmax_crf1d(self.cost, F.transpose_sequence([xs[i] for i in order]))
        paths = F.transpose_sequence(path)
        return score, [paths[i].array for i in np.argsort(order)]


def _order_of(xs):
    """Returns the indices of sequences, the longest first."""
    if not xs:
        raise ValueError("CRF1d: xs must hold at least one sequence, but is empty")
    return np.argsort([-x.shape[0] for x in xs], kind="stable")
