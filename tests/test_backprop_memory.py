"""Tests backpropagation with gradients that share arrays, with large graphs, and the lifetimes of
arrays."""

import contextlib
import gc
import itertools
import sys
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Parameter, Variable
from mpchain.functions import indexing
from mpchain.functions.declaring.declaration import differentiable
from tests.probes import doubled, full

pytestmark = pytest.mark.slow

# Memory that gradients share, or not.


GRAPHS = {
    "sum": lambda a, b: F.sum(a + b),
    "difference": lambda a, b: F.sum(a - b),
    "reshaped": lambda a, b: F.sum(F.reshape(a, (2, 1)) + F.reshape(b, (2, 1))),
    "concatenated": lambda a, b: F.sum(F.concat([a, b], 0)),
    "transposed": lambda a, b: F.sum(F.transpose(a) * 2 + b),
    "broadcast": lambda a, b: F.sum(F.broadcast_to(a, (3, 2)) + b),
    "same twice": lambda a, b: F.sum(a + a) + F.sum(b),
    "user function": lambda a, b: F.sum(doubled(a)[1] + doubled(b)[1]),
    "scalars": lambda a, b: a[0] + b[0],
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_gradients_of_leaves_are_their_own(graph):
    a, b = Variable(full(3)), Variable(full(4))
    y = graph(a, b)
    y.backward(retain_grad=True)
    kept = [y.grad, a.array, b.array]
    expected = a.grad.copy(), b.grad.copy()
    assert not np.shares_memory(a.grad, b.grad)
    for gradient in (a.grad, b.grad):
        assert gradient.flags.writeable
        assert not any(np.shares_memory(gradient, array) for array in kept)
    a.grad += 100
    np.testing.assert_array_equal(b.grad, expected[1])
    for leaf in (a, b):
        leaf.cleargrad()
    y.backward()
    np.testing.assert_array_equal(a.grad, expected[0])


def _parts_of_a_gradient(**options):
    """Returns the gradients of three leaves that are joined; the last one is reshaped before."""
    leaves = [Variable(full(i, 1 << 13)) for i in (3, 4)]
    leaves.append(Variable(full(5, (1, 1 << 13))))
    h = F.concat([*leaves[:2], F.reshape(leaves[2], leaves[2].shape[1:])], 0)
    F.sum(h * h).backward(**options)
    for leaf in leaves:
        np.testing.assert_array_equal(leaf.grad, 2 * leaf.array)
        assert leaf.grad.flags.writeable
    for first, second in itertools.combinations(leaves, 2):
        assert not np.shares_memory(first.grad, second.grad)
    return [leaf.grad for leaf in leaves]


def test_parts_of_a_gradient_are_not_copied_for_leaves():
    first, second, _ = _parts_of_a_gradient()
    assert first.base is second.base is not None


def test_a_reshaped_gradient_is_not_copied_for_a_leaf():
    b = Variable(full(3, (1, 1 << 13)))
    F.sum(F.exp(F.reshape(b, (-1,)))).backward()
    assert b.grad.base is not None
    np.testing.assert_array_equal(b.grad, np.exp(b.array))


class _Keeper(mpchain.FunctionHook):
    def __init__(self):
        self.arrays = []

    def backward_postprocess(self, function, in_data, out_grad):
        self.arrays += out_grad


def test_parts_of_a_gradient_that_something_holds_are_copied():
    assert all(gradient.base is None for gradient in _parts_of_a_gradient(retain_grad=True))
    with _Keeper() as keeper:
        gradients = _parts_of_a_gradient()
    assert not any(np.shares_memory(g, x) for g in gradients for x in keeper.arrays)


def test_overlapping_parts_of_a_gradient_are_copied():
    def derivative(g):
        n = len(g) // 3
        return g[:n], g[1 : n + 1], g[:n]  # the three slices together are as large as g

    @differentiable(joint=derivative, n_arrays=3)
    def overlapping(a, b, c):
        return np.concatenate([a, b, c])

    leaves = [Variable(full(i, 1 << 13)) for i in range(3)]
    F.sum(F.exp(overlapping(*leaves))).backward()
    assert all(leaf.grad.base is None for leaf in leaves)


def test_initial_gradients_are_not_handed_on():
    a, b = Variable(full(3)), Variable(full(4))
    y = a + b
    y.grad = full(1)
    y.backward()
    a.grad += 1
    b.grad += 2
    given = full(1)
    mpchain.backward([a + b], [given])
    np.testing.assert_array_equal(given, full(1))
    np.testing.assert_array_equal(a.grad, full(3))


def test_accumulation_does_not_change_an_array_that_others_hold():
    x = Variable(full(3))
    F.sum(x * 2).backward()
    first = x.grad
    F.sum(x * 2).backward()
    np.testing.assert_array_equal(first, full(2))


def test_one_array_for_two_inputs_becomes_two():
    @differentiable(joint=lambda g: (g * 2,) * 2, n_arrays=2)
    def _doubled_sum(a, b):
        return 2 * (a + b)

    a, b = Variable(full(3)), Variable(full(4))
    F.sum(_doubled_sum(a, b)).backward()
    assert not np.shares_memory(a.grad, b.grad)
    np.testing.assert_array_equal(a.grad, full(2))
    np.testing.assert_array_equal(b.grad, full(2))


def test_in_place_sums_do_not_leak_into_other_gradients():
    x = Variable(full(3))
    h = x * 1
    parts = [h + 0 for _ in range(4)]
    y = F.sum(F.add(*parts))
    y.backward(retain_grad=True)
    for part in parts:
        np.testing.assert_array_equal(part.grad, full(1))
    np.testing.assert_array_equal(h.grad, full(4))
    np.testing.assert_array_equal(x.grad, full(4))


@pytest.mark.parametrize("set_grad", [False, True])
def test_results_of_grad_do_not_share_memory(set_grad):
    a, b = Variable(full(3)), Variable(full(4))
    given = Variable(full(1))
    ga, gb = mpchain.grad([a + b], [a, b], [given], set_grad=set_grad)
    assert not np.shares_memory(ga.array, gb.array)
    assert not np.shares_memory(ga.array, given.array)


# Sizes.


def test_a_variable_used_many_times():
    x = Variable(full(1, dtype=np.float64))
    total = F.add(*[x * float(i) for i in range(1000)])
    total.grad = full(1, dtype=np.float64)
    total.backward()
    np.testing.assert_array_equal(x.grad, full(499500.0))


@pytest.mark.parametrize("double", [False, True])
def test_fan_out_of_ten_thousand(double):
    x = Variable(full(1, (1,), np.float64))
    h = x * 2
    ys = [h * 3 for _ in range(10_000)]
    mpchain.backward(ys, [np.ones(1)] * len(ys), enable_double_backprop=double)
    np.testing.assert_array_equal(x.grad, [60_000])
    del h, ys
    x.cleargrad()


@pytest.mark.long
def test_a_chain_of_a_hundred_thousand():
    x = Variable(full(1, (1,), np.float64))
    y = x
    for _ in range(100_000):
        y = y + 1
    assert y.rank == 100_000
    (g,) = mpchain.grad([y], [x])
    np.testing.assert_array_equal(g.array, [1])
    y.backward()
    np.testing.assert_array_equal(x.grad, [1])
    del y  # the deletion must not recurse either


@pytest.mark.slow
def test_a_long_chain_of_double_backprop_and_unchaining():
    x = Variable(full(1, (1,), np.float64))
    y = x
    for _ in range(20_000):
        y = -y
    (g,) = mpchain.grad([y * y], [x], enable_double_backprop=True)
    np.testing.assert_array_equal(mpchain.grad([g], [x])[0].array, [2])
    del g
    y.unchain_backward()
    assert y.creator is None


def test_deep_graphs_do_not_need_a_deep_stack():
    limit = sys.getrecursionlimit()
    depth = len(list(itertools.takewhile(bool, _frames())))
    sys.setrecursionlimit(depth + 120)
    try:
        x = Variable(full(1, (1,), np.float64))
        y = x
        for _ in range(1000):
            y = y + x
        y.backward()
        y.unchain_backward()
    finally:
        sys.setrecursionlimit(limit)
    np.testing.assert_array_equal(x.grad, [1001])


def _frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


# Lifetimes.


@contextlib.contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _network(x):
    w, b = Parameter(np.ones((3, 2), np.float32)), Parameter(full(0, (3,)))
    h = F.sigmoid(F.linear(x, w, b))
    h = F.tanh(F.batch_normalization(h, full(1, (3,)), full(0, (3,))))
    parts = F.split_axis(F.softmax(h), 3, 1)
    return F.softmax_cross_entropy(F.concat(parts, 1), np.array([0, 2])), w


@pytest.mark.parametrize("backward", ["none", "first", "retain", "double", "grad"])
def test_no_cycle_keeps_a_graph_alive(backward):
    x = Variable(np.array([[0.5, 1.0], [2.0, -1.0]], np.float32))
    with no_collector():
        loss, w = _network(x)
        if backward == "first":
            loss.backward()
        elif backward == "retain":
            loss.backward(retain_grad=True)
        elif backward == "double":
            loss.backward(enable_double_backprop=True)
        elif backward == "grad":
            (g,) = mpchain.grad([loss], [w], enable_double_backprop=True)
            F.sum(g * g).backward()
            del g
        references = [weakref.ref(loss), weakref.ref(loss.node), weakref.ref(w)]
        stack = [loss.creator]
        while stack:
            function = stack.pop()
            references.append(weakref.ref(function))
            stack += [n.creator_node for n in function.inputs if n.creator_node is not None]
        del loss, w, function, stack
        x.cleargrad()
        assert [reference() for reference in references] == [None] * len(references)


def test_no_cycle_through_a_users_function():
    with no_collector():
        x = Variable(full(3))
        function, y = doubled(x)
        F.sum(y).backward()
        reference = weakref.ref(function)
        del function, y
        assert reference() is None


def test_intermediate_variables_and_their_arrays_can_go_before_backward():
    with no_collector():
        x = Variable(full(3))
        h = x + 1
        references = [weakref.ref(h), weakref.ref(h.array)]
        y = F.sum(h + 1)
        del h
        assert [reference() for reference in references] == [None, None]
    y.backward()
    np.testing.assert_array_equal(x.grad, full(1))


SLICES = np.s_[:, 1:], np.s_[0], np.s_[..., ::-2], np.s_[:, 1:], np.s_[...], np.s_[1, None, 2]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (4, 3, 1, 0, 5, 2), (3, 5, 0, 4, 2, 1)])
def test_gradients_of_slices_are_summed_in_one_array(order, calls_of):
    # If the gradient of each slice were an array as large as y, the time of a loop over slices
    # would grow with the square of their number.
    made = calls_of(indexing, "_scattered")
    x = Variable(np.arange(1.0, 13).reshape(3, 4))
    y = x * 1
    parts = [y if SLICES[i] is ... else y[SLICES[i]] for i in order]
    loss = sum(F.sum(part**2) for part in parts)
    right = np.zeros((3, 4))
    for slices in SLICES:
        right[slices] += 2 * x.array[slices]
    (gx,) = mpchain.grad([loss], [x])
    assert len(made) < 3
    np.testing.assert_array_equal(gx.array, right)
    for gradient in mpchain.grad([loss], [x, y], retain_grad=True):
        np.testing.assert_array_equal(gradient.array, right)
    (gx,) = mpchain.grad([loss], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([F.sum(gx)], [x])
    np.testing.assert_array_equal(gx.array, right)
    np.testing.assert_array_equal(ggx.array, right / x.array)
