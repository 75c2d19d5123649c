"""Tests backpropagation that computes several contributions to one leaf together."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Parameter
from mpchain.functions.declaring.declaration import differentiable, sums_over_rows

N_STEPS = 5


@pytest.fixture
def product():
    """Returns a product x W^T; its derivative by W records the number of rows that it gets."""
    rows = []

    @sums_over_rows
    def derivative(g, x):
        rows.append(x.shape[0])
        return np.matmul(np.transpose(g), x)

    @differentiable(lambda g, W: np.matmul(g, W), derivative)
    def product(x, W):
        return x @ W.T

    product.rows = rows
    return product


def _random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _unrolled(product, W, n_rows=2, change=lambda k, h: h):
    """Returns the loss of a recurrent network, and the sum of the contributions to the gradient of
    W."""
    xs = [Parameter(_random(n_rows, len(W))) for _ in range(N_STEPS)]
    h, inputs, outputs = xs[0], [], []
    for k, x in enumerate(xs):
        h = change(k, h)
        inputs.append(h)
        h = product(h, W) + x
        outputs.append(h)
    loss = F.sum(h * h)
    gs = mpchain.grad([loss], outputs)
    return loss, sum(g.array.T @ x.array for g, x in zip(gs, inputs))


def _check(W, expected):
    np.testing.assert_allclose(W.grad, expected, 1e-5, 1e-5 * np.abs(expected).max())


def test_uses_of_a_leaf_are_one_product(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W)
    finished = []
    loss.backward(on_leaf=lambda leaf: finished.append((leaf, leaf.grad.copy())))
    assert product.rows == [2 * N_STEPS]
    _check(W, expected)
    (seen,) = [grad for leaf, grad in finished if leaf is W]
    np.testing.assert_array_equal(seen, W.grad)


def test_what_is_collected_is_at_most_a_few_times_as_large_as_the_gradient(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W, n_rows=4)
    loss.backward()
    assert product.rows == [12, 8]
    _check(W, expected)


def test_large_products_are_not_collected(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W, n_rows=5)
    loss.backward()
    assert product.rows == [5] * N_STEPS
    _check(W, expected)


def test_a_single_use_is_not_collected(product):
    W = Parameter(_random(8, 8))
    F.sum(product(_random(2, 8), W)).backward()
    assert product.rows == [2]


def test_gradients_with_graphs_are_not_collected(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W)
    (gW,) = mpchain.grad([loss], [W], enable_double_backprop=True)
    assert product.rows == [2] * N_STEPS
    W.grad_var = gW
    _check(W, expected)


def test_grad_of_some_variables_collects_too(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W)
    (W.grad_var,) = mpchain.grad([loss], [W])
    assert product.rows == [2 * N_STEPS]
    _check(W, expected)


def test_other_contributions_are_added(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W)
    (loss + F.sum(W * 3) + F.sum(F.linear(_random(1, 8), W) * 0)).backward()
    _check(W, expected + 3)


@pytest.mark.parametrize("first", [True, False])
def test_the_last_contribution_may_be_another(product, first):
    W = Parameter(_random(8, 8) / 4)
    x = _random(2, 8)
    h = product(x, W * 2) if first else x
    h = product(product(h, W), W)
    F.sum(h if first else product(h, W * 2)).backward()
    U = W.array
    terms = [(2, 1, 1) if first else (1, 1, 2)]
    g, expected = np.ones((2, 8), np.float32), 0
    inputs = [x]
    for factor in terms[0][:-1]:
        inputs.append(inputs[-1] @ U.T * factor)
    for x, factor in zip(reversed(inputs), reversed(terms[0])):
        expected = expected + g.T @ x * factor
        g = g @ U * factor
    _check(W, expected)


def test_inputs_of_several_dtypes_and_shapes():
    W = Parameter(_random(6, 3))
    ids = [np.array(2), np.array([1, 2]), np.array([[0, 1], [2, 3]]), np.array([5]), np.array([])]
    loss = sum(F.sum(F.embed_id(i.astype("i"), W) * (k + 1.0)) for k, i in enumerate(ids))
    loss.backward()
    expected = np.zeros((6, 3))
    for k, i in enumerate(ids):
        np.add.at(expected, i.astype("i"), k + 1)
    np.testing.assert_array_equal(W.grad, expected)


def test_gradients_add_to_those_before(product):
    W = Parameter(_random(8, 8) / 4)
    loss, expected = _unrolled(product, W)
    loss.backward()
    loss, _ = _unrolled(product, W)
    loss.backward()
    _check(W, 2 * expected)


def test_hooks_see_each_function_and_change_no_bits(product):
    gradients = []
    for hooks in ([], [mpchain.function_hooks.TimerHook()]):
        W = Parameter(_random(8, 8) / 4)
        loss, _ = _unrolled(product, W)
        for hook in hooks:
            with hook:
                loss.backward()
            calls = [name for name, _ in hook.call_history]
            assert calls.count("product") == N_STEPS
        if not hooks:
            loss.backward()
        gradients.append(W.grad)
    np.testing.assert_array_equal(*gradients)
    assert product.rows == [2 * N_STEPS] * 2
