"""Finds how the nodes in the graph of a loss depend on the samples of a rank."""

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mpchain.typing import Array
from mpchain.variable import Parameter, Variable, VariableNode

REDUCTIONS = frozenset("sum mean max min prod logsumexp".split())
"""Labels of functions that reduce axes. Their first constant is the axis, or the axes, except for
``prod``, which reduces the last axis and has no constants."""

_ALONG_AXES = frozenset(
    "softmax log_softmax scaled_softmax normalize sample_normalization rms_normalization map_axis "
    "cumsum cumprod".split()
)
"""Labels of functions that combine the elements along axes without reducing these. The last two
have no constants and combine elements along the last axis."""


class State(enum.Enum):
    """How a node depends on the samples, if an axis does not describe the dependence.

    Example:
        >>> State.SUMS.value
        'sums over the samples'
    """

    SUMS = "sums over the samples"
    MIXED = "an axis of the samples, but each row depends on sums over them"
    ONE = "the values of one sample"
    PAIRS = "values of pairs of samples"
    OTHER = "an unknown dependence on the samples"


class SampleGraph:
    """The nodes that a loss depends on, and how they depend on the samples.

    Functions that this class does not know are assumed to keep the axis of the samples if that axis
    has the same length in the input and the output. Values that all ranks computed together, or
    that depend only on parameters, do not depend on the samples of one rank.

    Args:
        loss: the loss of some samples.
        n: the number of samples.
        batches: the arrays from which the loss was computed, whose rows are samples. The rows of
            other arrays with ``n`` rows are samples, too, unless a parameter has an axis of that
            length.

    Attributes:
        n: the argument of the same name.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> loss = F.sum(F.mean(F.linear(x, W), axis=0) ** 2)
        >>> [str(graph.state(y)) for graph in [SampleGraph(loss, 5)] for y in graph.nodes()]
        ['0', 'State.SUMS', 'State.SUMS', 'State.SUMS']
    """

    def __init__(self, loss: Variable, n: int, batches: Iterable[Array] = ()):
        self.n = n
        self._batches = {_address(x): x.size for x in batches if x.shape[:1] == (n,)}
        # The keys are ids of nodes, which the loss keeps alive.
        self._states: dict[int, int | State | None] = {}
        # These are the lengths of parameters' axes. A constant with a length among them is not a
        # batch.
        self._lengths = set()
        self._order = _ordered(loss.node)
        for node in self._order:
            if _is_parameter(node):
                self._lengths.update(node.shape)
        self._kept = dict(self._find_arrays())
        for node in self._order:
            self._states[id(node)] = self._find(node)

    def nodes(self) -> Iterator[VariableNode]:
        """Yields the computed nodes that depend on samples, each after its dependencies."""
        for node in self._order:
            if node.creator_node is not None and self.depends(node):
                yield node

    def arrays(self) -> Iterator[Array]:
        """Yields the arrays that the program passed to functions of samples and that have a row for
        each sample, if the graph keeps the arrays."""
        leaves = {}
        for node in self.nodes():
            leaves |= {id(x): x for x in node.creator_node.inputs if x.creator_node is None}
        for x in leaves.values():
            array = self._kept.get(id(x))
            is_batch = self.state(x) == 0 or x.shape[:1] == (self.n,)
            if array is not None and is_batch and not _is_parameter(x):
                yield array

    def _find_arrays(self):
        for node in self._order:
            for i, x in enumerate(() if node.creator_node is None else node.creator_node.inputs):
                if x.creator_node is None:
                    yield id(x), array_of(node.creator_node, i)

    def depends(self, node: VariableNode) -> bool:
        return self._states[id(node)] is not None

    def state(self, node: VariableNode) -> int | State | None:
        """Returns the axis of the samples; a :class:`State` if an axis does not describe the
        dependence; None for a node that does not depend on the samples."""
        return self._states[id(node)]

    def reduces(self, function: Any) -> bool:
        """Returns whether a function reduces the axis of the samples, or all axes."""
        x = function.inputs[0]
        if function.label not in REDUCTIONS:
            return False
        axes, state = axes_of(function), self.state(x)
        return len(axes) == len(x.shape) or (isinstance(state, int) and state in axes)

    def _find(self, node):
        function = node.creator_node
        if function is None:
            return self._of_leaf(node)
        if _is_of_all_ranks(function):
            return None
        states = [s for x in function.inputs if (s := self._states[id(x)]) is not None]
        if not states:
            return None
        if all(state is State.ONE for state in states):
            return State.ONE
        return self._behind(function, node.shape, states)

    def _of_leaf(self, node):
        if _is_parameter(node) or node.shape[:1] in ((), (1,)):
            return None
        if node.shape[0] % self.n == 0 and self._is_batch(self._kept.get(id(node))):
            return 0
        if node.shape[0] in self._lengths:
            return None
        return 0 if node.shape[0] == self.n else State.OTHER

    def _is_batch(self, array):
        """Returns whether an array holds the samples, which may be divided into more rows, such as
        words."""
        if array is None or not array.flags.c_contiguous or not array.size:
            return False
        base, address = array.base, _address(array)
        if self._batches.get(address) == array.size:
            return True
        is_own = getattr(base, "shape", ())[:1] == (self.n,) and self.n not in self._lengths
        return is_own and base.size == array.size and _address(base) == address

    def _behind(self, function, shape, states):
        """Returns the state of the output of a function whose inputs depend on samples."""
        label, state = function.label, states[0]
        if shape == () or (self.reduces(function) and isinstance(state, int)):
            return State.SUMS
        if State.OTHER in states:
            return State.OTHER
        if label == "matrix_product":
            return self._of_product(function)
        if {State.SUMS, State.MIXED} & {*states}:
            return State.SUMS if {*states} == {State.SUMS} else State.MIXED
        if getattr(function, "is_elementwise", False):
            return self._broadcast(function, len(shape))
        if not isinstance(state, int) or len({*states}) > 1:
            return state if len({*states}) == 1 else State.OTHER
        if label in _ALONG_AXES and _is_declared(function) and state in _axes_along(function):
            return State.PAIRS
        x, axis = function.inputs[0], _moved(function, state, len(shape))
        if label == "reshape":  # rows of several axes may be merged and split again
            return 0 if state == 0 and shape[0] and shape[0] % self.n == 0 else State.OTHER
        if isinstance(axis, int) and shape[axis : axis + 1] != x.shape[state : state + 1]:
            return State.OTHER
        return axis

    def _broadcast(self, function, n_axes):
        """Returns the state of an elementwise function; its inputs are aligned at the last axis."""
        pairs = [(x, self._states[id(x)]) for x in function.inputs]
        axes = {n_axes - len(x.shape) + axis for x, axis in pairs if isinstance(axis, int)}
        return axes.pop() if len(axes) == 1 else State.PAIRS

    def _of_product(self, function):
        """Returns the state of a product of matrices: an axis, sums over samples, pairs of samples,
        or an unknown dependence."""
        x, w = function.inputs
        if len(x.shape) != 2 or len(w.shape) != 2:
            return State.OTHER
        rows, columns = self._states[id(x)], self._states[id(w)]
        if (rows, columns) in {(1, 0), (1, None), (None, 0)}:
            return State.SUMS
        if (rows, columns) == (0, 1):
            return State.PAIRS
        return {(0, None): 0, (None, 1): 1}.get((rows, columns), State.OTHER)


def axes_of(function: Any) -> tuple[int, ...]:
    """Returns the axes that a reduction reduces; no axis is negative."""
    # ``prod`` has no constants, and reduces the last axis.
    return _of_input(function, (*function.constants, -1)[0])


def _axes_along(function):
    """Returns the axes along which a function in ``_ALONG_AXES`` combines elements."""
    constants = dict(zip(function.declaration.constant_names, function.constants))
    return _of_input(function, constants.get("axis", -1))


def _of_input(function, axis):
    """Returns the axes of the first input that an argument names; no axis is negative."""
    n_axes = len(function.inputs[0].shape)
    if axis is None:
        return tuple(range(n_axes))
    return tuple(i % n_axes for i in (axis if isinstance(axis, Sequence) else [axis]))


def _moved(function, axis, n_axes):
    """Returns the axis of the samples in the output of a function that may move it, or the state of
    an output without that axis."""
    label, x = function.label, function.inputs[0]
    if label in REDUCTIONS and not any(function.constants[1:2]):
        return axis - sum(i < axis for i in axes_of(function))
    if label == "transpose":
        axes = function.constants[0]
        order = range(n_axes)[::-1] if axes is None else [i % n_axes for i in axes]
        return [*order].index(axis)
    if label == "get_item":
        return _behind_indices(function.constants[0], axis, len(x.shape))
    # Broadcasting aligns the last axes of arrays.
    return axis + n_axes - len(x.shape) if label == "broadcast_to" else axis


def _behind_indices(indices, axis, n_axes):
    """Returns the position of an axis after indexing, or the state of a result without the axis."""
    indices = [*indices] if isinstance(indices, tuple) else [indices]
    if any(not (i is None or isinstance(i, (int, slice))) for i in indices):
        return State.OTHER
    own = -1  # the axis from which the current index selects
    for place, index in enumerate(indices + [slice(None)] * n_axes):
        own += index is not None
        if own == axis:
            dropped = sum(isinstance(i, int) for i in indices[:place])
            return State.ONE if isinstance(index, int) else place - dropped
    return State.OTHER


def array_of(function: Any, i: int) -> Any:
    """Returns an input array of a function; None if the graph does not keep it.

    Example:
        >>> y = F.exp(mpchain.Variable(np.ones(2))) * np.full(2, 3.0)
        >>> array_of(y.creator_node, 1)
        array([3., 3.])
    """
    array = function.inputs[i].data
    return function.kept(False)[i] if array is None and hasattr(function, "kept") else array


def _is_parameter(node):
    return isinstance(node.get_variable_or_none(), Parameter)


def _address(array):
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return interface["data"][0]


def _is_declared(function):
    return hasattr(function, "declaration")


def _is_of_all_ranks(function):
    return hasattr(function, "comm")


def _ordered(root):
    """Returns the nodes from which a root node was computed, each after its own inputs."""
    order, is_done = [], {}
    stack = [root]
    while stack:
        node = stack[-1]
        if id(node) not in is_done:
            is_done[id(node)] = False
            function = node.creator_node
            inputs = () if function is None or _is_of_all_ranks(function) else function.inputs
            stack += [x for x in inputs if id(x) not in is_done]
        else:
            stack.pop()
            if not is_done[id(node)]:
                is_done[id(node)] = True
                order.append(node)
    return order
