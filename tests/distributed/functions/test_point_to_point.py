"""Tests messages between two ranks, which are differentiable to every order, and the order of
messages."""

import re

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain.distributed import CollectiveMismatchError
from mpchain.distributed.functions import pseudo_connect, recv, send
from tests.distributed.devices import assert_allclose, assert_array_equal, xp
from tests.distributed.functions.test_communication import _orders, _variables

ON_GPUS = True


def _neighbors(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def _around(comm, compute, xs):
    """Passes variables around all ranks, from rank 0 to rank 0; each rank computes with them.

    Returns:
        The result on rank 0, and a delegate variable on other ranks.
    """
    before, after = _neighbors(comm)
    if comm.rank == 0:
        delegate = send(comm, compute(xs), after)
        return recv(comm, before, delegate)
    return send(compute(recv(comm, before)), comm, after)


def test_around_all_ranks(comm):
    def compute(x):
        return x**2 + x

    x, expected_x = _variables([xp.linspace(-0.5, 0.4, 6).reshape(2, 3)] * 2)
    y = _around(comm, compute, x)
    expected = expected_x
    for _ in range(comm.size):
        expected = compute(expected)
    F.sum(expected**3).backward()
    if comm.rank == 0:
        assert_allclose(y.array, expected.array, rtol=1e-14)
        F.sum(y**3).backward()
        assert_allclose(x.grad, expected_x.grad, rtol=1e-13)
    else:
        assert (y.shape, y.dtype) == ((0,), np.float32)
        y.backward()


@pytest.mark.parametrize("n_orders", [1, 2, 3])
def test_parameters_along_the_ranks(comm, n_orders):
    """Every rank has a parameter. A variable without elements replaces an input."""
    W_array = xp.linspace(0.5, 1.5, comm.size)
    everything = _variables(W_array[:, None])
    y = everything[0] ** 2
    for W in everything[1:]:
        y = F.sin(y * W)
    expected = _orders(F.sum(y**2), everything, n_orders)
    W = mpchain.Variable(W_array[comm.rank : comm.rank + 1])
    start = mpchain.Variable(xp.zeros(0, np.float32))
    if comm.rank == 0:
        y = pseudo_connect(start, W) ** 2
    else:
        y = F.sin(recv(comm, comm.rank - 1, start) * W)
    if comm.rank < comm.size - 1:
        loss = send(comm, y, comm.rank + 1)
    else:
        loss = F.sum(y**2)
    for theirs in expected:
        gW, token = mpchain.grad([loss], [W, start], enable_double_backprop=True)
        assert_allclose(gW.array, theirs[comm.rank], rtol=1e-12)
        # The messages for this gradient must be part of the graph on every rank.
        loss = pseudo_connect(token, F.sum(gW**2))


def test_tuples_of_different_shapes_and_dtypes(comm):
    kinds = [((2, 1), "f8"), ((2, 2), "f4"), ((2, 0), "f8"), ((), "f4")]
    xs = _variables([xp.full(shape, i + 1, dtype) for i, (shape, dtype) in enumerate(kinds)])
    ys = _around(comm, lambda xs: [2 * x for x in xs], xs)
    if comm.rank > 0:
        ys.backward()
        return
    assert [(y.shape, y.dtype) for y in ys] == [(x.shape, x.dtype) for x in xs]
    # The other results are not used, so their gradients are zeros.
    F.sum(ys[0]).backward(retain_grad=True)
    assert_array_equal(xs[0].grad, xp.full((2, 1), 2.0**comm.size))
    for x in xs[1:]:
        assert_array_equal(x.grad, xp.zeros(x.shape))
        assert x.grad.dtype == x.dtype


@pytest.mark.parametrize("tag", [0, 7])
def test_force_tuple(comm, tag):
    before, after = _neighbors(comm)
    x = xp.full(2, comm.rank, np.float32)
    if comm.rank == 0:
        send(comm, x, after, tag)
    (y,) = recv(comm, before, tag=tag, force_tuple=True)
    if comm.rank > 0:
        send(comm, [x], after, tag)  # a list of one array is equivalent to the array
    assert_array_equal(y.array, before)


def test_without_graph(comm):
    with mpchain.no_backprop_mode():
        x = mpchain.Variable(xp.ones(3))
        y = _around(comm, lambda x: 3 * x, x)
    assert y.creator is None
    if comm.rank == 0:
        assert_array_equal(y.array, 3.0**comm.size)


def test_data_needs_no_way_back(comm):
    """The sender's array requires no gradient, so no rank waits for a gradient in backward."""
    before, after = _neighbors(comm)
    x = xp.full(2, comm.rank + 1.0)
    W = mpchain.Parameter(xp.ones(2))
    if comm.rank == 0:
        delegate = send(comm, x, after)
        assert not delegate.requires_grad
    y = recv(comm, before)
    if comm.rank > 0:
        send(comm, x, after)
    assert not y.requires_grad
    F.sum(W * y).backward()
    assert_array_equal(W.grad, before + 1.0)


def test_data_that_comes_after_something_else(comm):
    before, after = _neighbors(comm)
    delegate = mpchain.Variable(xp.zeros(2))
    if comm.rank == 0:
        send(comm, xp.ones(1), after)
    y = recv(comm, before, delegate)
    if comm.rank > 0:
        send(comm, xp.ones(1), after)
    F.sum(y).backward()
    assert_array_equal(delegate.grad, xp.zeros(2))


def test_many_messages_come_back_in_the_opposite_order(comm):
    """The messages have the same shape and tag, and each gradient must reach its own message."""
    arrays = [xp.full(2, i + 1.0) for i in range(5)]
    partner = comm.rank + 1 - 2 * (comm.rank % 2)
    if partner >= comm.size:
        return
    if comm.rank < partner:
        xs, delegate = _variables(arrays), None
        for x in xs:
            delegate = send(comm, pseudo_connect(delegate, x), partner)
        delegate.backward()
        for i, (x, array) in enumerate(zip(xs, arrays)):
            assert_array_equal(x.grad, 2 * (i + 1) * array)
    else:
        ys = [recv(comm, partner)]
        for _ in arrays[1:]:
            ys.append(recv(comm, partner, ys[-1]))
        sum((i + 1) * F.sum(y**2) for i, y in enumerate(ys)).backward()


def test_from_a_rank_to_itself(comm):
    x = mpchain.Variable(xp.full(2, 3.0))
    y = recv(comm, comm.rank, send(comm, x**2, comm.rank, 5), 5)
    F.sum(y**2).backward()
    assert_array_equal(x.grad, 4 * 27.0)
    with pytest.raises(RuntimeError, match="waits for a message with tag 5 from itself"):
        recv(comm, comm.rank, tag=5)


def test_ranks_that_are_not_there(comm):
    with pytest.raises(ValueError, match=f"send: dest must be a rank from 0 to {comm.size - 1}"):
        send(comm, xp.ones(1), comm.size)
    with pytest.raises(ValueError, match=f"recv: source must be .*, not {comm.size}"):
        recv(comm, comm.size)


# pseudo_connect


def test_pseudo_connect_returns_what_it_is_given():
    delegate = mpchain.Variable(xp.zeros(0, np.float32))
    x, y = _variables([xp.ones((2, 3)), xp.arange(2.0)])
    for first in (delegate, None):
        actual = pseudo_connect(first, x)
        assert_array_equal(actual.array, x.array)
        both = pseudo_connect(first, x, y)
        assert isinstance(both, tuple)
        assert_array_equal(both[1].array, y.array)
    with pytest.raises(TypeError, match="pseudo_connect: pass at least one Variable"):
        pseudo_connect(delegate)


@pytest.mark.parametrize("shape", [(0,), (), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pseudo_connect_to_third_order(shape, dtype):
    """The gradient of the delegate variable is zero for every dtype."""
    delegate = mpchain.Variable(xp.ones(shape, dtype))
    x, y = _variables([xp.full(2, 0.5), xp.full(3, 2.0)])
    a, b = pseudo_connect(delegate, x, y)
    loss = F.sum(a**3) * F.sum(b**3)
    expected = _orders(F.sum(x**3) * F.sum(y**3), [x, y])
    for ours, theirs in zip(_orders(loss, [x, y, delegate]), expected, strict=True):
        for gradient, other in zip(ours, theirs):
            assert_allclose(gradient, other)
        assert_array_equal(ours[2], xp.zeros(shape))
        assert ours[2].dtype == dtype


def test_pseudo_connect_orders_backward():
    executed = []

    class Notes(mpchain.FunctionNode):
        def __init__(self, name):
            self.name = name

        def forward(self, inputs):
            return inputs

        def backward(self, targets, gys):
            executed.append(self.name)
            return gys

    x = mpchain.Variable(xp.ones(2))
    (a,) = Notes("first").apply((x,))
    (b,) = Notes("second").apply((pseudo_connect(a, x),))
    (c,) = Notes("third").apply((pseudo_connect(b, x),))
    F.sum(c * a).backward()
    assert executed == ["third", "second", "first"]


def test_an_empty_variable_can_start_backward():
    x = mpchain.Variable(xp.ones(3))
    (x[:0] * 2).backward()
    assert_array_equal(x.grad, xp.zeros(3))


def unlike(error, receiver, expected, sender, sent):
    """Checks that an error names the expected and the sent message and both lines; returns True."""
    first, *lines = str(error).split("\n")
    assert re.fullmatch(r"(send|recv): the receiver expects another message:", first)
    for line, begin in zip(
        lines, (f"rank {receiver} expects {expected}", f"rank {sender} sends {sent}"), strict=True
    ):
        assert line.startswith(f"  {begin}, by "), line
        assert f"called at {__file__}:" in line
    return True


def test_identities_that_differ(comm):
    """Both ranks raise an error, or only the receiver; later messages arrive as before."""
    if comm.size == 1:
        comm.send(xp.ones(1), 0, identity="an apple")
        with pytest.raises(CollectiveMismatchError, match=r"rank 0 expects a pear, by "):
            comm.recv(0, identity="a pear")
    elif comm.rank == 0:
        with pytest.raises(CollectiveMismatchError) as caught:
            comm.send(xp.ones(1), 1, identity="an apple")
        assert unlike(caught.value, 1, "a pear", 0, "an apple")
        comm.send(xp.ones(1), 1)  # the send has no identity to check, and waits for no confirmation
        comm.send(xp.ones(1), 1, identity="an orange", confirm=False)
        comm.send(xp.ones(1), 1, identity="a plum")
    elif comm.rank == 1:
        for sent in ("an apple", "an unidentified array", "an orange"):
            with pytest.raises(CollectiveMismatchError) as caught:
                comm.recv(0, identity="a pear")
            assert unlike(caught.value, 1, "a pear", 0, sent)
        assert comm.recv(0, identity=("a pear", "a plum")).tolist() == [1.0]


def test_only_gradients_are_confirmed(comm, note_calls):
    """In forward, no rank waits for an answer, and the shape of an array identifies the expected
    message."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    answers, exchanges = note_calls(comm, "_answer"), note_calls(comm, "_exchange")
    x = mpchain.Variable(xp.ones(2))
    if comm.rank == 0:
        loss = send(comm, x**2, 1)
    elif comm.rank == 1:
        loss = F.sum(recv(comm, 0))
    else:
        return
    assert answers == []
    assert [x.size for pairs in exchanges for _, x in pairs[0] + pairs[1]] == [0, 2]
    loss.backward()
    assert answers == ([(None, 1)] if comm.rank == 0 else [])


def test_a_gradient_of_another_message(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    if comm.rank == 0:
        x = mpchain.Variable(xp.ones(2))
        first, _ = send(comm, x, 1), send(comm, x**2, 1)
        with pytest.raises(CollectiveMismatchError, match=r"gradient 1 of message \d+ with tag 0"):
            first.backward()
    elif comm.rank == 1:
        _, second = recv(comm, 0), recv(comm, 0)
        with pytest.raises(CollectiveMismatchError, match=r"gradient 1 of message \d+ with tag 0"):
            F.sum(second).backward()


def test_a_gradient_of_another_order(comm):
    """Rank 1 omits its message of the first order; rank 0 must not use the second message
    instead."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    if comm.rank == 0:
        x = mpchain.Variable(xp.array([0.5]))
        delegate = send(comm, x, 1)
        with pytest.raises(CollectiveMismatchError) as caught:
            mpchain.grad([delegate], [x], enable_double_backprop=True)
    elif comm.rank == 1:
        y, w = recv(comm, 0), mpchain.Variable(xp.array([2.0]))
        (gw,) = mpchain.grad([F.sum(w**2 * y**3)], [w], enable_double_backprop=True)
        with pytest.raises(CollectiveMismatchError) as caught:
            F.sum(gw**2).backward()
    else:
        return
    assert re.search(
        r"rank 0 expects gradient 1 of message \d+ with tag 0, to be differentiated again .*\n"
        r"  rank 1 sends gradient 1 of message \d+ with tag 0, by",
        str(caught.value),
    )
