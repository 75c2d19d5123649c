"""Communication between ranks as one differentiable function, and the table of its adjoints."""

import collections
import weakref

import numpy as np

from mpchain import functions as F
from mpchain.backend import get_array_module
from mpchain.configuration import config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.function_node import FunctionNode
from mpchain.variable import Variable, as_variable


def _parts(comm, x, axis):
    """The slices of ``x`` that belong to the ranks."""
    before = (slice(None),) * axis
    bounds = [partition(x.shape[axis], rank, comm.size) for rank in range(comm.size)]
    return [x[(*before, slice(*pair))] for pair in bounds]


def _joined(comm, x, axis):
    parts = comm.allgather(x)
    whole = get_array_module(x).concatenate(parts, axis)
    held = [part.shape[axis] for part in parts]
    if held != [part.shape[axis] for part in _parts(comm, whole, axis)]:
        raise ValueError(f"join: the ranks must have even parts, as of split, but have {held}")
    return whole


_N_MESSAGES = weakref.WeakKeyDictionary()
"""For each communicator, how often a rank has sent to another, or received from it, with a tag."""


_AGAIN = ", to be differentiated again (enable_double_backprop=True)"


def _identify(node, *kind):
    """Returns what a message is, in words that the two ranks must agree on.

    In backward a rank may send or receive fewer messages than its peer, where its gradients do not
    depend on some: then another one would be taken for the one that is expected.
    """
    if node.number is None:
        counts = _N_MESSAGES.setdefault(node.comm, collections.Counter())
        counts[kind] += 1
        node.number = counts[kind]
    message = f"message {node.number} with tag {kind[-1]}"
    return f"gradient {node.order} of {message}" if node.order else message


def _send(node, xs, rank, tag):
    identity = _identify(node, "to", rank, tag)
    if node.order and config.enable_backprop:
        identity += _AGAIN
    # The receiver is told whether it has to send gradients back.
    header = np.array([node.is_awaited], np.int32)
    node.comm.send((header, *xs), rank, tag, identity=identity)
    return ()


def _receive(node, xs, rank, tag):
    identity = _identify(node, "from", rank, tag)
    if node.order:
        # What this rank differentiates again must not be the last that its peer does.
        again = identity + _AGAIN
        identity = again if config.enable_backprop else (identity, again)
    header, *ys = node.comm.recv(rank, tag, identity=identity)
    node.is_awaited = bool(header[0])
    return ys


def _at_root(y):
    return () if y is None else [y]


# For each operation its adjoint, and what it does: from the arrays that this rank gives, if any, to
# those that it gets, if any. Both are called with the same further arguments.
_TABLE = {
    "allreduce": ("allreduce", lambda node, xs: [node.comm.allreduce(*xs)]),
    "bcast": ("reduce", lambda node, xs, root: [node.comm.bcast(*xs or [None], root)]),
    "reduce": ("bcast", lambda node, xs, root: _at_root(node.comm.reduce(*xs, root))),
    "gather": ("scatter", lambda node, xs, root: node.comm.gather(*xs, root) or ()),
    "scatter": ("gather", lambda node, xs, root: [node.comm.scatter(xs or None, root)]),
    "allgather": ("reduce_scatter", lambda node, xs: node.comm.allgather(*xs)),
    "reduce_scatter": ("allgather", lambda node, xs: [node.comm.reduce_scatter(xs)]),
    "alltoall": ("alltoall", lambda node, xs: node.comm.alltoall(xs)),
    "send": ("recv", _send),
    "recv": ("send", _receive),
    "pseudo_connect": ("pseudo_connect", lambda node, xs: xs),
    # Between what is the same on all ranks, and counts once, and what each has of its own:
    "distribute": ("sum_up", lambda node, xs: xs),
    "sum_up": ("distribute", lambda node, xs: [node.comm.allreduce(*xs)]),
    "split": ("join", lambda node, xs, axis: [_parts(node.comm, *xs, axis)[node.comm.rank]]),
    "join": ("split", lambda node, xs, axis: [_joined(node.comm, *xs, axis)]),
}
# What all tokens start from that depend on nothing else: one leaf, which holds no gradient as there
# is no Variable. Were it another each time, :func:`mpchain.functions.forget` could not tell that a
# function depends on the same variables when it is called again.
_START = Variable(np.empty(0, np.float32)).node

# Of these, different ranks do different things.
_ONE_SIDED = ("bcast", "reduce", "gather", "scatter", "send", "recv")

# Of these, a rank knows by its input whether the others will want gradients.
_DECIDED_HERE = ("send", "distribute", "split")


class Communication(FunctionNode):
    """An application of an operation of the table: the only node class of all of them.

    Beside arrays it takes and returns a *token*, an empty Variable. By tokens, applications depend
    on each other that shall be executed one after the other, and where a rank gives no array, or
    gets none, the token is the node's place in the graph. As the gradients of tokens are tokens,
    all this holds for the graph of the gradient, too.

    Args:
        operation (str): name in the table.
        comm (Communicator): the ranks; None where nothing travels.
        arguments (dict): the operation's further arguments.
        is_awaited (bool): for ``send``: whether gradients are to come back. ``recv`` sets it.
        order (int): of the derivative that it is part of; 0 in forward.
        number (int): that of the message in forward whose derivative it is; None in forward.
    """

    def __init__(self, operation, comm, arguments, is_awaited=True, order=0, number=None):
        self.operation = operation
        self.comm = comm
        self.arguments = arguments
        self.is_awaited = is_awaited
        self.order, self.number = order, number

    @property
    def label(self):
        return self.operation

    def check_inputs(self, variables):
        super().check_inputs(variables[:-1])  # the token is in host memory, wherever the arrays are

    def forward(self, inputs):
        *xs, token = inputs
        _, compute = _TABLE[self.operation]
        return (*compute(self, xs, **self.arguments), token)

    def keep(self, in_data, targets, outputs):
        self._token_array = outputs[-1]
        self._kinds = [(get_array_module(y), y.shape, y.dtype) for y in outputs[:-1]]

    def backward(self, target_input_indexes, grad_outputs):
        *gys, token = grad_outputs
        gys = [
            xp.zeros(shape, dtype) if gy is None else gy
            for gy, (xp, shape, dtype) in zip(gys, self._kinds, strict=True)
        ]
        if self.operation in _ONE_SIDED and config.enable_backprop:
            token = self._after_myself(token)
        adjoint, _ = _TABLE[self.operation]
        source = self.order + 1, self.number
        gxs, token = communicate(adjoint, self.comm, gys, token, source, **self.arguments)
        return (*gxs, token)

    def _after_myself(self, token):
        """Makes the token of the gradient depend on this node.

        The gradient of a linear operation does not depend on its input. But another rank's may, by
        what it computed from the result; then it comes here again for the next order, and so must
        this rank.
        """
        own = self.output_variable(len(self._kinds), self._token_array)
        return own if token is None else own + token


def communicate(operation, comm, xs, token=None, source=(0, None), **arguments):
    """Applies an operation; returns the list of Variables that this rank gets, and the token.

    The result requires a gradient whether or not the input does: all ranks must take part in
    backward or none, and this rank's input does not tell about the others'. Only of messages the
    sender tells, and what is the same on all ranks is so in this, too.

    ``source`` has the order of derivative and the number of a message, see :class:`Communication`.
    """
    is_awaited = True
    if operation in _DECIDED_HERE:
        is_awaited = config.enable_backprop and any(as_variable(x).requires_grad for x in xs)
    if token is None:
        token = _new_token() if is_awaited else as_variable(np.empty(0, np.float32))
    node = Communication(operation, comm, arguments, is_awaited, *source)
    *ys, after = node.apply((*xs, token))
    if node.is_awaited:
        return ys, after
    return [Variable(y.array, requires_grad=False) for y in ys], token


def _new_token():
    return _START.variable_with(np.empty(0, np.float32))


def token_of(x):
    """Makes a token that depends on a Variable; None for anything else."""
    if not isinstance(x, Variable):
        return None
    return F.cast(F.flatten(x)[:0], np.float32)


def _check_comm(function, comm):
    if not isinstance(comm, Communicator):
        raise TypeError(
            f"{function}: the communicator must be a Communicator, not {type(comm).__name__}"
        )


def _collective(operation, comm, xs, **arguments):
    """Applies an operation to which every rank gives arrays; returns what this rank gets."""
    _check_comm(operation, comm)
    return communicate(operation, comm, xs, **arguments)


def _from_root(operation, comm, xs, root):
    """Applies an operation to which only the root gives arrays; returns the only Variable."""
    _check_comm(operation, comm)
    if comm.rank == root:
        (y,), _ = communicate(operation, comm, xs, root=root)
    else:
        (y,), _ = communicate(operation, comm, [], token_of(xs[0] if xs else None), root=root)
    return y


def allreduce(comm, x):
    """Sums over the ranks.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array, of the same shape and dtype on all ranks.

    Returns:
        Variable of the same shape, the same on all ranks.
    """
    (y,), _ = _collective("allreduce", comm, [x])
    return y


def bcast(comm, x, root=0):
    """Gives the root's array to all ranks.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array at the root. Elsewhere None, or any Variable, on which the result is
            then made to depend, with the gradient zero.
        root (int): the rank whose array it is.

    Returns:
        Variable, on every rank.
    """
    return _from_root("bcast", comm, [x], root)


def reduce(comm, x, root=0):
    """Sums over the ranks, for the root.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array, of the same shape and dtype on all ranks.
        root (int): the rank that gets the sum.

    Returns:
        Variable of the same shape at the root, a delegate variable elsewhere.
    """
    ys, delegate = _collective("reduce", comm, [x], root=root)
    return ys[0] if ys else delegate


def gather(comm, x, root=0):
    """Gives the arrays of all ranks to the root.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array; shapes may differ between ranks.
        root (int): the rank that gets them.

    Returns:
        tuple of Variables, one per rank, at the root; a delegate variable elsewhere.
    """
    ys, delegate = _collective("gather", comm, [x], root=root)
    return tuple(ys) if ys else delegate


def scatter(comm, xs, root=0):
    """Gives each rank one of the root's arrays.

    Args:
        comm (Communicator): the ranks.
        xs: sequence of Variables or arrays, one per rank, at the root; shapes may differ. Elsewhere
            None, or any Variable, see :func:`bcast`.
        root (int): the rank whose arrays they are.

    Returns:
        Variable, on every rank.
    """
    return _from_root("scatter", comm, xs if comm.rank == root else [xs], root)


def allgather(comm, x):
    """Gives the arrays of all ranks to all ranks.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array; shapes may differ between ranks.

    Returns:
        tuple of Variables, one per rank, the same on all ranks.
    """
    ys, _ = _collective("allgather", comm, [x])
    return tuple(ys)


def reduce_scatter(comm, xs):
    """Sums over the ranks as many arrays as there are ranks, and gives each rank one of the sums.

    Args:
        comm (Communicator): the ranks.
        xs: sequence of Variables or arrays, one per rank; the shapes of those for one rank must be
            the same on all ranks.

    Returns:
        Variable.
    """
    (y,), _ = _collective("reduce_scatter", comm, xs)
    return y


def alltoall(comm, xs):
    """Gives each rank one array of every rank.

    Args:
        comm (Communicator): the ranks.
        xs: sequence of Variables or arrays, one per rank; shapes may differ.

    Returns:
        tuple of Variables: what each rank has at this rank's place.
    """
    ys, _ = _collective("alltoall", comm, xs)
    return tuple(ys)


def send(x, communicator, rank, tag=0):
    """Sends arrays to another rank, which must call :func:`recv`, and waits until it is there.

    In backward the gradients come back, unless no array requires one.

    Args:
        x: Variable or array, or a sequence of them.
        communicator (Communicator): the ranks.
        rank (int): the receiver.
        tag (int): the message's tag.

    Returns:
        The delegate variable, an empty Variable by which backward finds its way to here: call its
        ``backward``, or give it to :func:`recv` or :func:`pseudo_connect`.
    """
    _check_comm("send", communicator)
    xs = x if isinstance(x, (tuple, list)) else [x]
    _, delegate = communicate("send", communicator, xs, rank=rank, tag=tag)
    return delegate


def recv(communicator, rank, delegate_variable=None, tag=0, force_tuple=False):
    """Receives what another rank sends.

    In backward the gradients are sent back, before anything that ``delegate_variable`` depends on.

    Args:
        communicator (Communicator): the ranks.
        rank (int): the sender.
        delegate_variable (Variable): what the result is made to depend on.
        tag (int): the message's tag.
        force_tuple (bool): whether a single array, too, is returned as a tuple.

    Returns:
        Variable, or a tuple of them if there are several.
    """
    _check_comm("recv", communicator)
    token = token_of(delegate_variable)
    ys, token = communicate("recv", communicator, [], token, rank=rank, tag=tag)
    if delegate_variable is not None and not any(y.requires_grad for y in ys):
        ys = list(_tied(delegate_variable, ys))
    return ys[0] if len(ys) == 1 and not force_tuple else tuple(ys)


def pseudo_connect(delegate_variable, *actual_variables):
    """Returns variables as they are, but makes them depend on another, too.

    In backward, what that one depends on is executed after everything that depends on the results.

    Args:
        delegate_variable (Variable): a delegate variable, or any other. None changes nothing.
        actual_variables: Variables or arrays.

    Returns:
        Variable, or a tuple of them if there are several.

    Raises:
        TypeError: there are no ``actual_variables``.
    """
    if not actual_variables:
        raise TypeError("pseudo_connect: actual_variables must be given: there are none")
    if delegate_variable is None:
        ys = tuple(map(as_variable, actual_variables))
    else:
        ys = _tied(delegate_variable, actual_variables)
    return ys[0] if len(ys) == 1 else ys


def _tied(delegate_variable, xs):
    ys, _ = communicate("pseudo_connect", None, xs, token_of(delegate_variable))
    return tuple(ys)


def distribute(comm, x):
    """Begins a computation in which each rank has its own part, from what is the same on all.

    With :func:`sum_up`, :func:`split` and :func:`join` this is for models whose layers are divided
    among the ranks, while what is between the layers, and the loss, is the same on all of them. The
    gradients, too, of what is the same on all ranks are the same on all: those of one loss, not of
    the ranks' sum. So a rank's gradients are right as they are, and not to be summed over these
    ranks. (Each of them may at once be a rank of another communicator, for parallel data.)

    Args:
        comm (Communicator): the ranks.
        x: Variable or array, the same on all ranks.

    Returns:
        ``x``; its gradient will be the sum of what the ranks contribute to it.
    """
    (y,), _ = _collective("distribute", comm, [x])
    return y


def sum_up(comm, x):
    """Ends a computation in which each rank has its own part: sums these.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array, of the same shape on all ranks.

    Returns:
        Variable, the same on all ranks, and so must be what they go on to compute from it: the
        gradient of ``x`` will be that of the sum. See :func:`distribute`.
    """
    (y,), _ = _collective("sum_up", comm, [x])
    return y


def split(comm, x, axis=0):
    """Begins a computation in which each rank has its own part: a slice of what all have.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array, the same on all ranks.
        axis (int): the axis along which the ranks get even parts; the first ranks one element more
            where it cannot be divided evenly.

    Returns:
        Variable; see :func:`distribute`.
    """
    (y,), _ = _collective("split", comm, [x], axis=_axis("split", x, axis))
    return y


def join(comm, x, axis=0):
    """Ends a computation in which each rank has its own part: joins these to one array.

    Args:
        comm (Communicator): the ranks.
        x: Variable or array; the parts must be even, as those of :func:`split`.
        axis (int): the axis along which they are joined.

    Returns:
        Variable, the same on all ranks; see :func:`distribute`.

    Raises:
        ValueError: the parts are not even.
    """
    (y,), _ = _collective("join", comm, [x], axis=_axis("join", x, axis))
    return y


def _axis(function, x, axis):
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{function}: x of shape {x.shape} has no axis {axis}")
    return axis % x.ndim
