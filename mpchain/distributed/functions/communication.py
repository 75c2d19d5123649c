"""Communication between ranks as one differentiable function, and the table of adjoint
operations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.backend import get_array_module
from mpchain.backends.cuda import is_gpu_array
from mpchain.configuration import config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.function_node import FunctionNode
from mpchain.typing import Array, Input
from mpchain.variable import Variable, as_variable


def parts_of(comm: Communicator, x: Array, axis: int) -> list[Array]:
    """Returns for each rank the slice of ``x`` along an axis that belongs to the rank.

    >>> parts_of(comm, np.arange(3), 0)
    [array([0, 1, 2])]
    """
    before = (slice(None),) * axis
    bounds = [partition(x.shape[axis], rank, comm.size) for rank in range(comm.size)]
    return [x[(*before, slice(*pair))] for pair in bounds]


def _joined(comm, x, axis):
    parts = comm.allgather(x)
    whole = get_array_module(x).concatenate(parts, axis)
    held = [part.shape[axis] for part in parts]
    if held != [part.shape[axis] for part in parts_of(comm, whole, axis)]:
        raise ValueError(f"join: the ranks must pass parts of the sizes of split, not {held}")
    return whole


def _at_root(y):
    return () if y is None else [y]


# This table maps each operation to its adjoint and its computation. The computation maps the arrays
# that this rank sends, if any, to the arrays that it receives, if any. The operation and its
# adjoint take the same further arguments. `messages.py` adds its own operations.
TABLE = {
    "allreduce": ("allreduce", lambda node, xs: [node.comm.allreduce(*xs)]),
    "bcast": ("reduce", lambda node, xs, root: [node.comm.bcast(*xs or [None], root)]),
    "reduce": ("bcast", lambda node, xs, root: _at_root(node.comm.reduce(*xs, root))),
    "gather": ("scatter", lambda node, xs, root: node.comm.gather(*xs, root) or ()),
    "scatter": ("gather", lambda node, xs, root: [node.comm.scatter(xs or None, root)]),
    "allgather": ("reduce_scatter", lambda node, xs: node.comm.allgather(*xs)),
    "reduce_scatter": ("allgather", lambda node, xs: [node.comm.reduce_scatter(xs)]),
    "alltoall": ("alltoall", lambda node, xs: node.comm.alltoall(xs)),
    "pseudo_connect": ("pseudo_connect", lambda node, xs: xs),
    # These operations convert between shared values, which count once, and each rank's own values.
    "distribute": ("sum_up", lambda node, xs: xs),
    "sum_up": ("distribute", lambda node, xs: [node.comm.allreduce(*xs)]),
    "split": ("join", lambda node, xs, axis: [parts_of(node.comm, xs[0], axis)[node.comm.rank]]),
    "join": ("split", lambda node, xs, axis: [_joined(node.comm, xs[0], axis)]),
}
# This node is the leaf of all tokens that depend on nothing else. It holds no gradient, because it
# has no Variable. It is always the same node, so that :func:`mpchain.functions.forget` finds that a
# function depends on the same variables when the function is called again.
_START = Variable(np.empty(0, np.float32)).node

# In these operations, ranks have different roles.
_ONE_SIDED = ("bcast", "reduce", "gather", "scatter", "send", "recv")

# In these operations, a rank can tell from its input whether the other ranks need gradients.
_DECIDED_HERE = ("send", "distribute", "split")


class Communication(FunctionNode):
    """An application of any operation of the table; all operations share this node class.

    Besides arrays, the node takes and returns a *token*, an empty Variable. Tokens create
    dependencies between applications that must run one after the other. If a rank sends or receives
    no array, only the token connects the node to the graph. The graph of the gradient is connected
    in the same way, because the gradients of tokens are tokens.

    Args:
        operation: name in the table.
        comm: the communicator of the ranks; None if the operation sends nothing.
        arguments: the operation's further arguments.
        is_awaited: whether the results require gradients; for ``send``, whether the receiver must
            send gradients back. ``recv`` sets it.
        order: order of the derivative that the node is part of; 0 in forward.
        number: number of the forward message whose derivative the node computes; None in forward.

    Example:
        >>> (y,), token = communicate("allreduce", comm, [Variable(np.ones(2))])
        >>> y.creator.label, token.shape
        ('allreduce', (0,))
    """

    def __init__(
        self,
        operation: str,
        comm: Communicator | None,
        arguments: dict[str, Any],
        is_awaited: bool = True,
        order: int = 0,
        number: int | None = None,
    ):
        self.operation, self.comm, self.arguments = operation, comm, arguments
        self.is_awaited, self.order, self.number = is_awaited, order, number

    @property
    def label(self) -> str:
        return self.operation

    def check_inputs(self, variables: Sequence[Variable]) -> None:
        super().check_inputs(variables[:-1])  # the token is always in host memory

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        *xs, token = inputs
        _, compute = TABLE[self.operation]
        return (*compute(self, xs, **self.arguments), token)

    def keep(self, in_data: Sequence, targets: Sequence, outputs: Sequence[Array]) -> None:
        self._token_array = outputs[-1]
        self._kinds = [(get_array_module(y), y.shape, y.dtype) for y in outputs[:-1]]

    def backward(self, target_input_indexes: tuple, grad_outputs: tuple) -> tuple:
        *gys, token = grad_outputs
        gys = [
            xp.zeros(shape, dtype) if gy is None else gy
            for gy, (xp, shape, dtype) in zip(gys, self._kinds, strict=True)
        ]
        if self.operation in _ONE_SIDED and config.enable_backprop:
            token = self._after_myself(token)
        adjoint, _ = TABLE[self.operation]
        source = self.order + 1, self.number
        gxs, token = communicate(adjoint, self.comm, gys, token, source, **self.arguments)
        return (*gxs, token)

    def _after_myself(self, token):
        """Makes the token of the gradient depend on this node.

        The gradient of a linear operation does not depend on its input, but another rank's gradient
        may, through computations on the result. The other rank then runs this node again for the
        next order, so this rank must do so, too.
        """
        own = self.output_variable(len(self._kinds), self._token_array)
        return own if token is None else own + token


def communicate(
    operation: str,
    comm: Communicator | None,
    xs: Sequence[Input],
    token: Variable | None = None,
    source: tuple[int, int | None] = (0, None),
    **arguments: Any,
) -> tuple[list[Variable], Variable]:
    """Applies an operation; returns the list of Variables that this rank gets, and the token.

    The result always requires a gradient, even if the input does not: either all ranks must take
    part in backward or none, and a rank does not know the inputs of the other ranks. The
    exceptions are messages, whose sender decides, and values that are the same on all ranks.

    ``source`` is a pair of the order of derivative and the number of a message, see
    :class:`Communication`.
    """
    is_awaited = True
    if operation in _DECIDED_HERE:
        is_awaited = config.enable_backprop and any(as_variable(x).requires_grad for x in xs)
    if token is None:
        empty = np.empty(0, np.float32)
        token = _START.variable_with(empty) if is_awaited else as_variable(empty)
    node = Communication(operation, comm, arguments, is_awaited, *source)
    *ys, after = node.apply((*xs, token))
    if node.is_awaited:
        return ys, after
    return [Variable(y.array, requires_grad=False) for y in ys], token


def token_of(x: object) -> Variable | None:
    """Returns a token that depends on a Variable; None for anything else.

    >>> token_of(Variable(np.ones(3))).shape
    (0,)
    """
    if not isinstance(x, Variable):
        return None
    token = F.cast(F.flatten(x)[:0], np.float32)
    return F.copy(token, "@numpy") if is_gpu_array(token.array) else token


def check_comm(function: str, comm: object) -> None:
    """Raises TypeError unless ``comm`` is a communicator.

    >>> check_comm("allreduce", comm)
    """
    if not isinstance(comm, Communicator):
        raise TypeError(
            f"{function}: comm must be a Communicator, such as the result of "
            f"create_communicator, not {type(comm).__name__}"
        )


def _collective(operation, comm, xs, **arguments):
    """Applies an operation to the arrays of all ranks; returns the result for this rank."""
    check_comm(operation, comm)
    return communicate(operation, comm, xs, **arguments)


def _from_root(operation, comm, xs, root):
    """Applies an operation whose arrays come from the root; returns this rank's only Variable."""
    check_comm(operation, comm)
    if comm.rank == root:
        (y,), _ = communicate(operation, comm, xs, root=root)
    else:
        (y,), _ = communicate(operation, comm, [], token_of(xs[0] if xs else None), root=root)
    return y


def allreduce(comm: Communicator, x: Input) -> Variable:
    """Sums the arrays of all ranks.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array, of the same shape and dtype on all ranks.

    Returns:
        Variable of the same shape, the same on all ranks.

    Example:
        >>> mpchain.distributed.functions.allreduce(comm, np.ones(2))
        variable([1., 1.])
    """
    (y,), _ = _collective("allreduce", comm, [x])
    return y


def bcast(comm: Communicator, x: Input | None, root: int = 0) -> Variable:
    """Sends the root's array to all ranks.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array at the root. On other ranks None, or any Variable: the result then
            depends on that Variable, with a gradient of zero.
        root: the rank that sends its array.

    Returns:
        Variable with the root's array, on every rank.

    Example:
        >>> mpchain.distributed.functions.bcast(comm, np.ones(2))
        variable([1., 1.])
    """
    return _from_root("bcast", comm, [x], root)


def reduce(comm: Communicator, x: Input, root: int = 0) -> Variable:
    """Sums the arrays of all ranks on the root.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array, of the same shape and dtype on all ranks.
        root: the rank that gets the sum.

    Returns:
        Variable of the same shape at the root, a delegate variable elsewhere.

    Example:
        >>> mpchain.distributed.functions.reduce(comm, np.ones(2))
        variable([1., 1.])
    """
    ys, delegate = _collective("reduce", comm, [x], root=root)
    return ys[0] if ys else delegate


def gather(comm: Communicator, x: Input, root: int = 0) -> tuple[Variable, ...] | Variable:
    """Sends the arrays of all ranks to the root.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array; shapes may differ between ranks.
        root: the rank that gets the arrays.

    Returns:
        At the root, a tuple of Variables, one per rank; on other ranks, a delegate variable.

    Example:
        >>> mpchain.distributed.functions.gather(comm, np.ones(2))
        (variable([1., 1.]),)
    """
    ys, delegate = _collective("gather", comm, [x], root=root)
    return tuple(ys) if ys else delegate


def scatter(comm: Communicator, xs: Sequence[Input] | None, root: int = 0) -> Variable:
    """Sends each rank one of the root's arrays.

    Args:
        comm: the communicator of the ranks.
        xs: at the root, a sequence of Variables or arrays, one per rank; shapes may differ. On
            other ranks None, or any Variable, see :func:`bcast`.
        root: the rank that sends its arrays.

    Returns:
        Variable with the array for this rank.

    Example:
        >>> mpchain.distributed.functions.scatter(comm, [np.ones(2)])
        variable([1., 1.])
    """
    return _from_root("scatter", comm, xs if comm.rank == root else [xs], root)


def allgather(comm: Communicator, x: Input) -> tuple[Variable, ...]:
    """Sends the arrays of all ranks to all ranks.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array; shapes may differ between ranks.

    Returns:
        tuple of Variables, one per rank, the same on all ranks.

    Example:
        >>> mpchain.distributed.functions.allgather(comm, np.ones(2))
        (variable([1., 1.]),)
    """
    ys, _ = _collective("allgather", comm, [x])
    return tuple(ys)


def reduce_scatter(comm: Communicator, xs: Sequence[Input]) -> Variable:
    """Sums one array per rank over the ranks, and gives each rank one of the sums.

    Args:
        comm: the communicator of the ranks.
        xs: sequence of Variables or arrays, one per rank; all ranks must pass the same shape for
            one rank.

    Returns:
        Variable with the sum of the arrays for this rank.

    Example:
        >>> mpchain.distributed.functions.reduce_scatter(comm, [np.ones(2)])
        variable([1., 1.])
    """
    (y,), _ = _collective("reduce_scatter", comm, xs)
    return y


def alltoall(comm: Communicator, xs: Sequence[Input]) -> tuple[Variable, ...]:
    """Sends each rank one array of every rank.

    Args:
        comm: the communicator of the ranks.
        xs: sequence of Variables or arrays, one per rank; shapes may differ.

    Returns:
        tuple of Variables, one per rank: the array that the rank passed at this rank's index.

    Example:
        >>> mpchain.distributed.functions.alltoall(comm, [np.ones(2)])
        (variable([1., 1.]),)
    """
    ys, _ = _collective("alltoall", comm, xs)
    return tuple(ys)


def pseudo_connect(
    delegate_variable: Variable | None, *actual_variables: Input
) -> Variable | tuple[Variable, ...]:
    """Returns variables unchanged, but makes them depend on another variable, too.

    Backward reaches the inputs of that variable only after all computations that use the results.

    Args:
        delegate_variable: a delegate variable, or any other Variable. None adds no dependency.
        actual_variables: Variables or arrays.

    Returns:
        Variable, or a tuple of Variables if several are passed.

    Raises:
        TypeError: there are no ``actual_variables``.

    Example:
        >>> x = Variable(np.ones(2))
        >>> mpchain.distributed.functions.pseudo_connect(None, x)
        variable([1., 1.])
    """
    if not actual_variables:
        raise TypeError("pseudo_connect: pass at least one Variable or array in actual_variables")
    if delegate_variable is None:
        ys = tuple(map(as_variable, actual_variables))
    else:
        ys = tied(delegate_variable, actual_variables)
    return ys[0] if len(ys) == 1 else ys


def tied(delegate_variable: Variable, xs: Sequence[Input]) -> tuple[Variable, ...]:
    """Returns variables that also depend on another variable; see :func:`pseudo_connect`.

    >>> tied(Variable(np.ones(1)), [np.ones(2)])
    (variable([1., 1.]),)
    """
    ys, _ = communicate("pseudo_connect", None, xs, token_of(delegate_variable))
    return tuple(ys)


def distribute(comm: Communicator, x: Input) -> Variable:
    """Marks values that all ranks share as inputs of a computation that the ranks divide among
    them.

    With :func:`sum_up`, :func:`split` and :func:`join` this function is for models whose layers are
    divided among the ranks, while the values between the layers, and the loss, are the same on all
    ranks. The gradients of shared values are also the same on all ranks: they are gradients of one
    loss, not of the sum of the ranks' losses. A rank's gradients are therefore correct already, and
    must not be summed over these ranks. (Each rank may also belong to another communicator, for
    data parallelism.)

    Args:
        comm: the communicator of the ranks.
        x: Variable or array, the same on all ranks.

    Returns:
        ``x``, whose gradient is the sum of the ranks' contributions.

    Example:
        >>> mpchain.distributed.functions.distribute(comm, np.ones(2))
        variable([1., 1.])
    """
    (y,), _ = _collective("distribute", comm, [x])
    return y


def sum_up(comm: Communicator, x: Input) -> Variable:
    """Ends a computation that the ranks divide among them: sums the results of the ranks.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array, of the same shape on all ranks.

    Returns:
        Variable, the same on all ranks. All ranks must do the same computations with it, since the
        gradient of ``x`` is the gradient of the sum. See :func:`distribute`.

    Example:
        >>> mpchain.distributed.functions.sum_up(comm, np.ones(2))
        variable([1., 1.])
    """
    (y,), _ = _collective("sum_up", comm, [x])
    return y


def split(comm: Communicator, x: Variable | Array, axis: int = 0) -> Variable:
    """Begins a computation that the ranks divide among them: each rank gets a slice of an array.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array, the same on all ranks.
        axis: the axis along which ``x`` is divided. If its length is not divisible by the number of
            ranks, the first ranks get one element more.

    Returns:
        Variable with this rank's slice; see :func:`distribute`.

    Example:
        >>> mpchain.distributed.functions.split(comm, np.ones(2))
        variable([1., 1.])
    """
    (y,), _ = _collective("split", comm, [x], axis=_axis("split", x, axis))
    return y


def join(comm: Communicator, x: Variable | Array, axis: int = 0) -> Variable:
    """Ends a computation that the ranks divide among them: concatenates the ranks' arrays.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array; the ranks must have slices of the sizes that :func:`split` makes.
        axis: the axis along which the arrays are concatenated.

    Returns:
        Variable, the same on all ranks; see :func:`distribute`.

    Raises:
        ValueError: the ranks have other sizes than :func:`split` makes, or ``x`` lacks the axis.

    Example:
        >>> mpchain.distributed.functions.join(comm, np.ones(2))
        variable([1., 1.])
    """
    (y,), _ = _collective("join", comm, [x], axis=_axis("join", x, axis))
    return y


def _axis(function, x, axis):
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{function}: x of shape {x.shape} has no axis {axis}")
    return axis % x.ndim
