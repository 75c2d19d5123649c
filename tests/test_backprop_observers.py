"""Tests callbacks for leaves, threads, error notes and debug mode in backpropagation."""

import sys
import threading

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Parameter, Variable
from tests.probes import Doubled, full

# Callbacks for leaves.


def leaf_log():
    """Returns a list, and a function that appends names and gradients of leaves to it."""
    log = []
    return log, lambda leaf: log.append((leaf.name, leaf.grad.copy()))


def layers(*names):
    return [Parameter(full(2), name=name) for name in names]


def test_leaves_are_announced_in_the_order_in_which_backward_finishes_them():
    x = Variable(full(1), requires_grad=False)
    parameters = layers("first", "second", "third")
    h = x
    for p in parameters:
        h = h * p
    log, note = leaf_log()
    F.sum(h).backward(on_leaf=note)
    assert [name for name, _ in log] == ["third", "second", "first"]
    for (_, gradient), p in zip(log, reversed(parameters), strict=True):
        np.testing.assert_array_equal(gradient, p.grad)


def test_a_shared_leaf_is_announced_once_and_last():
    first, shared, last = layers("first", "shared", "last")
    h = (first * shared) * shared
    y = F.sum(h * last * shared)
    log, note = leaf_log()
    y.backward(on_leaf=note)
    names = [name for name, _ in log]
    assert sorted(names) == ["first", "last", "shared"]
    assert names.index("last") < names.index("shared")
    np.testing.assert_array_equal(dict(log)["shared"], shared.grad)
    np.testing.assert_array_equal(shared.grad, full(3 * 2 * 2 * 2 * 2))


def test_announced_gradients_include_what_was_there():
    (p,) = layers("p")
    log, note = leaf_log()
    F.sum(p).backward(on_leaf=note)
    F.sum(p).backward(on_leaf=note)
    assert [g.tolist() for _, g in log] == [[1, 1], [2, 2]]


def test_joint_backward_announces_once():
    (p,) = layers("p")
    log, note = leaf_log()
    mpchain.backward([p * 2, p * 3], [full(1), full(1)], on_leaf=note)
    assert [(name, g.tolist()) for name, g in log] == [("p", [5, 5])]


def test_leaves_without_gradient_are_not_announced():
    p, unused = layers("p", "unused")
    log, note = leaf_log()
    F.sum(p * 2).backward(on_leaf=note)
    assert [name for name, _ in log] == ["p"] and unused.grad is None


class BackwardWithin(mpchain.Function):
    """The identity; its backward differentiates another graph."""

    def __init__(self, inner):
        self.inner = inner

    def forward(self, inputs):
        return inputs

    def backward(self, inputs, grad_outputs):
        with mpchain.force_backprop_mode():
            F.sum(self.inner * 2).backward()
        return grad_outputs


def test_a_backward_within_a_backward_announces_nothing():
    p, inner = layers("p", "inner")
    log, note = leaf_log()
    F.sum(BackwardWithin(inner)(p)).backward(on_leaf=note)
    assert [name for name, _ in log] == ["p"]
    np.testing.assert_array_equal(inner.grad, full(2))


# Threads.


def test_two_threads_at_once():
    def work(seed, results):
        random = np.random.RandomState(seed)
        w = Parameter(random.randn(4, 3))
        train = bool(seed % 2)
        with mpchain.using_config("train", train):
            barrier.wait()
            for _ in range(30):
                x = Variable(random.randn(5, 3))
                y = F.tanh(F.linear(x, w))
                (g,) = mpchain.grad([F.sum(y * y)], [x], enable_double_backprop=True)
                F.sum(g * g).backward()
            results[seed] = w.grad, mpchain.config.train is train

    def run(seeds):
        results = {}
        threads = [threading.Thread(target=work, args=(seed, results)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        barrier = threading.Barrier(2)
        together = run([1, 2])
    finally:
        sys.setswitchinterval(interval)
    barrier = threading.Barrier(1)
    for seed in (1, 2):
        alone = run([seed])[seed]
        np.testing.assert_array_equal(together[seed][0], alone[0])
        assert together[seed][1] and alone[1]


def test_two_threads_differentiate_one_graph():
    x = Variable(full(3, dtype=np.float64))
    y = F.sum(F.exp(F.tanh(x)) * x)
    results = []
    barrier = threading.Barrier(2)

    def run():
        barrier.wait()
        results.append(mpchain.grad([y], [x])[0].array)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results[0], results[1])


# Errors and debug mode.


class Failing(Doubled):
    def backward(self, target_input_indexes, grad_outputs):
        raise ZeroDivisionError("by intent")


@pytest.mark.parametrize("double", [False, True])
def test_an_error_in_backward_names_the_function(double):
    (y,) = Failing().apply((Variable(full(3)),))
    with pytest.raises(ZeroDivisionError) as caught:
        F.sum(y).backward(enable_double_backprop=double)
    assert caught.value.__notes__ == [
        "(in the backward of Failing; mpchain.set_debug(True) shows where it was called)"
    ]


def test_an_error_in_backward_names_the_forward_call_in_debug_mode():
    with mpchain.using_config("debug", True):
        (y,) = Failing().apply((Variable(full(3)),))  # the note names this line
        with pytest.raises(ZeroDivisionError) as caught:
            F.sum(y).backward()
    (note,) = caught.value.__notes__
    assert note.startswith("(in the backward of Failing, called at\n")
    assert "# the note names this line" in note


def test_nan_is_found_in_debug_mode():
    with mpchain.using_config("debug", True), np.errstate(invalid="ignore", divide="ignore"):
        with pytest.raises(RuntimeError, match=r"^NaN in the forward pass of log, called at\n"):
            F.log(Variable(full(-1)))
        x = Variable(full(0))
        with pytest.raises(RuntimeError, match=r"NaN in the backward pass of sqrt") as caught:
            F.sum(F.sqrt(F.sqrt(x)) * 0).backward()
        assert "test_nan_is_found_in_debug_mode" in str(caught.value)


def test_nan_passes_unless_in_debug_mode():
    with np.errstate(invalid="ignore"):
        assert np.isnan(F.log(Variable(full(-1))).array).all()


def test_nan_in_integers_is_not_looked_for():
    with mpchain.using_config("debug", True):
        assert (Variable(np.array([1, 2])) + 1).array.tolist() == [2, 3]
