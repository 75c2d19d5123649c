"""Differentiable messages between ranks: send and recv, and exchanges between neighbors."""

import functools
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpchain.configuration import config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import describe, make_room
from mpchain.distributed.functions import communication
from mpchain.distributed.watch import CollectiveMismatchError, call_at_end
from mpchain.typing import Input
from mpchain.variable import Variable, as_variable

_AGAIN = ", to be differentiated again (enable_double_backprop=True)"


def _number(comm, kind):
    counts = comm.n_crossing  # the counts restart when ranks are lost
    counts["function", *kind] += 1
    return counts["function", *kind]


def _identify(node, *kind):
    """Returns the description of a message, on which both ranks must agree.

    In backward, a rank may send or receive fewer messages than its peer, if its gradients do not
    depend on some of them. The description keeps the peer from accepting a message other than the
    one it expects.
    """
    if node.number is None:
        node.number = _number(node.comm, kind)
    message = f"message {node.number} with tag {kind[-1]}"
    return f"gradient {node.order} of {message}" if node.order else message


def _send(node, xs, rank, tag):
    identity = _identify(node, "to", rank, tag)
    if node.order and config.enable_backprop:
        identity += _AGAIN
    # The shape of this empty array tells the receiver whether to send gradients back, without a
    # message of its own. In backward, ranks may disagree about which messages exist.
    is_awaited = np.empty((int(node.is_awaited), 0), np.int32)
    node.comm.send((is_awaited, *xs), rank, tag, identity=identity, confirm=node.order > 0)
    return ()


def _receive(node, xs, rank, tag):
    identity = _identify(node, "from", rank, tag)
    if node.order:
        # If this rank differentiates again, its peer must do so, too.
        again = identity + _AGAIN
        identity = again if config.enable_backprop else (identity, again)
    is_awaited, *ys = node.comm.recv(rank, tag, identity=identity)
    node.is_awaited = len(is_awaited) > 0
    return ys


_WITH_GRAPH = weakref.WeakKeyDictionary()
"""For each communicator the nodes that await gradients, by rank and key of their messages."""


def _exchange(node, xs, dest, origin, kind, like, is_adjoint=False):
    """Sends an array and receives another; the adjoint operation sends back the gradient of the
    received array."""
    if node.number is None:
        _look_for_lost(node.comm)
        node.number = tuple(
            _number(node.comm, (way, rank, kind)) for way, rank in (("to", dest), ("from", origin))
        )
    sent, received = node.number
    if is_adjoint:
        (dest, origin), (sent, received) = (origin, dest), (received, sent)
    keys = (kind, node.order, sent), (kind, node.order, received)
    again = node.order > 0 and config.enable_backprop
    if dest is not None and config.enable_backprop:
        nodes = _WITH_GRAPH.setdefault(node.comm, weakref.WeakValueDictionary())
        nodes[dest, (kind, node.order + 1, sent)] = node
    y = node.comm.sendrecv(*xs, dest, origin, keys=keys, again=again)
    if y is None:
        y = make_room(like)
        y[...] = 0
    return [y]


def _look_for_lost(comm):
    """Raises an error if a received gradient belongs to a node that no longer exists."""
    nodes = _WITH_GRAPH.get(comm, {})
    for source, key in comm.unclaimed():
        kind, order, number = key
        if order > 0 and (source, key) not in nodes:
            raise CollectiveMismatchError(
                f"rank {comm.rank} of {comm.size}: rank {source} has sent back gradient {order} of "
                f"message {number} ({kind[0]}), but the loss here did not depend on the result of "
                f"that call, so a gradient is wrong. Use the result, or tie it to another one by "
                "pseudo_connect; a rank without a source can pass the value that it gets as fill"
            )


@functools.cache
def _look_at_end_too():
    call_at_end(_look_at_end)


def _look_at_end():
    for comm in list(_WITH_GRAPH):
        try:
            _look_for_lost(comm)
        except RuntimeError as error:  # MPI also raises RuntimeError once ranks are lost
            print(error, file=sys.stderr)


communication.TABLE |= {
    "send": ("recv", _send),
    "recv": ("send", _receive),
    "sendrecv": ("sendrecv's adjoint", _exchange),
    "sendrecv's adjoint": (
        "sendrecv",
        lambda node, xs, **arguments: _exchange(node, xs, **arguments, is_adjoint=True),
    ),
}


def send(
    communicator: Communicator, x: Input | Sequence[Input], rank: int, tag: int = 0
) -> Variable:
    """Sends arrays to another rank, which must call :func:`recv`, and waits for that call.

    In backward, the receiver sends the gradients back, unless no array requires a gradient.

    Args:
        communicator: the communicator of the ranks. ChainerMN's order, ``send(x, communicator,
            rank)``, is accepted, too.
        x: Variable or array, or a sequence of Variables or arrays.
        rank: the receiver.
        tag: the message's tag.

    Returns:
        The delegate variable, an empty Variable through which backward reaches this call: call its
        ``backward``, or pass it to :func:`recv` or :func:`pseudo_connect`.

    Example:
        >>> delegate = mpchain.distributed.functions.send(comm, Variable(np.ones(2)), rank=0)
        >>> mpchain.distributed.functions.recv(comm, 0, delegate)
        variable([1., 1.])
    """
    comm, sent = (x, communicator) if isinstance(x, Communicator) else (communicator, x)
    communication.check_comm("send", comm)
    xs = sent if isinstance(sent, (tuple, list)) else [sent]
    _, delegate = communication.communicate("send", comm, xs, rank=rank, tag=tag)
    return delegate


def recv(
    communicator: Communicator,
    rank: int,
    delegate_variable: Variable | None = None,
    tag: int = 0,
    force_tuple: bool = False,
) -> Variable | tuple[Variable, ...]:
    """Receives arrays that another rank sends.

    Backward sends the gradients back before it reaches anything that ``delegate_variable`` depends
    on.

    Args:
        communicator: the communicator of the ranks.
        rank: the sender.
        delegate_variable: a Variable on which the result will depend; None adds no dependency.
        tag: the message's tag.
        force_tuple: whether to return a tuple for a single array, too.

    Returns:
        Variable, or a tuple of Variables if several arrays were sent.

    Example:
        >>> delegate = mpchain.distributed.functions.send(comm, np.ones(2), rank=0, tag=1)
        >>> mpchain.distributed.functions.recv(comm, 0, delegate, tag=1, force_tuple=True)
        (variable([1., 1.]),)
    """
    communication.check_comm("recv", communicator)
    token = communication.token_of(delegate_variable)
    ys, token = communication.communicate("recv", communicator, [], token, rank=rank, tag=tag)
    if delegate_variable is not None and not any(y.requires_grad for y in ys):
        ys = list(communication.tied(delegate_variable, ys))
    return ys[0] if len(ys) == 1 and not force_tuple else tuple(ys)


def sendrecv(
    comm: Communicator,
    x: Input,
    dest: int | None,
    source: int | None,
    tag: int = 0,
    *,
    fill: Input | float | None = None,
) -> Variable:
    """Sends an array to one rank and receives another, as ``MPI_Sendrecv`` does.

    The call does not wait for the receiver, so ranks cannot wait for each other in a circle,
    neither here nor in backward, if all ranks call ``sendrecv`` in the same order. Backward sends
    gradients in the opposite direction. As with other collectives, the loss of each rank must
    depend on the result; a rank that finds a lost gradient raises an error.

    Args:
        comm: the communicator of the ranks.
        x: Variable or array; shapes may differ between ranks.
        dest: the receiver; None, or ``MPI.PROC_NULL``, sends nothing.
        source: the sender; None, or ``MPI.PROC_NULL``, receives nothing.
        tag: the messages' tag. Messages with one tag between two ranks arrive in order.
        fill: value that a rank without a source gets, such as boundary values; it is broadcast to
            the shape of ``x``. None means zeros.

    Returns:
        Variable: the array that the source has sent; without a source, ``fill``.

    Example:
        >>> mpchain.distributed.functions.sendrecv(comm, np.ones(2), dest=None, source=None)
        variable([0., 0.])
    """
    return _between("sendrecv", comm, x, (dest, source), ("sendrecv", tag), fill)


def permute(
    comm: Communicator,
    x: Input,
    pairs: Iterable[tuple[int, int]],
    *,
    fill: Input | float | None = None,
) -> Variable:
    """Sends arrays along a permutation of ranks, or of some of the ranks.

    Args:
        comm: the communicator of the ranks; all ranks must pass the same pairs.
        x: Variable or array; shapes may differ between ranks.
        pairs: pairs (source, dest); a rank may be the source of at most one pair and the
            destination of at most one.
        fill: see :func:`sendrecv`.

    Returns:
        Variable: the array that this rank's source has sent; see :func:`sendrecv`.

    Raises:
        ValueError: a rank is the source or the destination of two pairs, or does not exist.

    Example:
        >>> mpchain.distributed.functions.permute(comm, np.ones(2), [(0, 0)])
        variable([1., 1.])
    """
    communication.check_comm("permute", comm)
    pairs = sorted((int(source), int(dest)) for source, dest in pairs)
    for argument, ranks in zip(("source", "destination"), zip(*pairs)):
        if len({*ranks}) < len(ranks) or not {*ranks} <= {*range(comm.size)}:
            raise ValueError(
                f"permute: each {argument} must be a different rank from 0 to {comm.size - 1}, "
                f"but the pairs are {pairs}"
            )
    to, origin = dict(pairs), {dest: source for source, dest in pairs}
    ends = to.get(comm.rank), origin.get(comm.rank)
    return _between("permute", comm, x, ends, ("permute", tuple(pairs)), fill)


def shift(
    comm: Communicator,
    x: Input,
    offset: int = 1,
    *,
    wrap: bool = False,
    fill: Input | float | None = None,
) -> Variable:
    """Sends each rank's array to the rank that is ``offset`` ranks after it.

    Args:
        comm: the communicator of the ranks; all ranks must pass the same offset.
        x: Variable or array; shapes may differ between ranks.
        offset: the number of ranks by which arrays move; it may be negative.
        wrap: whether the first rank follows the last rank.
        fill: value that a rank gets if no rank is ``offset`` before it; see :func:`sendrecv`.

    Returns:
        Variable: the array of rank ``comm.rank - offset``; see :func:`sendrecv`.

    Example:
        >>> mpchain.distributed.functions.shift(comm, np.ones(2), fill=5.0)
        variable([5., 5.])
    """
    communication.check_comm("shift", comm)

    def neighbor(distance: int) -> int | None:
        rank = comm.rank + distance
        return rank % comm.size if wrap else rank if 0 <= rank < comm.size else None

    ends = neighbor(offset), neighbor(-offset)
    return _between("shift", comm, x, ends, ("shift", offset, wrap), fill)


def _between(function, comm, x, ends, kind, fill):
    communication.check_comm(function, comm)
    x = as_variable(x)
    dest, source = (_rank(comm, function, *end) for end in zip(("dest", "source"), ends))
    if comm.size > 1:
        _look_at_end_too()
    arguments = {"dest": dest, "origin": source, "kind": kind, "like": describe(x.array)}
    (y,), _ = communication.communicate("sendrecv", comm, [x], **arguments)
    return y if source is not None or fill is None else y + fill


def _rank(comm, function, argument, rank):
    """Checks and returns a rank; returns None for ``MPI.PROC_NULL``, which stands for no rank."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if rank is None or (mpi is not None and rank == mpi.PROC_NULL):
        return None
    comm.check_rank(function, argument, rank)
    return rank
