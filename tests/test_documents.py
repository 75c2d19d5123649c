"""The examples of the documents that mpchain implements, with their printed values."""

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain import Parameter, Variable


def test_the_guides_first_derivatives():
    x_data = np.array([5], dtype=np.float32)
    x = Variable(x_data)
    y = x**2 - 2 * x + 1
    assert repr(y.array) == "array([16.], dtype=float32)"
    y.backward()
    assert repr(x.grad) == "array([8.], dtype=float32)"
    z = 2 * x
    y = x**2 - z + 1
    y.backward(retain_grad=True)
    assert repr(z.grad) == "array([-1.], dtype=float32)"
    x = Variable(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))
    y = x**2 - 2 * x + 1
    y.grad = np.ones((2, 3), dtype=np.float32)
    y.backward()
    expected = "array([[ 0.,  2.,  4.],\n       [ 6.,  8., 10.]], dtype=float32)"
    assert repr(x.grad) == expected


def test_the_guides_higher_order_derivatives():
    x = mpchain.Variable(np.array([[0, 2, 3], [4, 5, 6]], dtype=np.float32))
    y = x**3
    y.grad = np.ones((2, 3), dtype=np.float32)
    y.backward(enable_double_backprop=True)
    expected = "variable([[  0.,  12.,  27.],\n          [ 48.,  75., 108.]])"
    assert repr(x.grad_var) == expected
    assert x.grad_var.array is x.grad
    assert (x.grad == (3 * x**2).array).all()
    gx = x.grad_var
    x.cleargrad()
    gx.grad = np.ones((2, 3), dtype=np.float32)
    gx.backward()
    expected = "array([[ 0., 12., 18.],\n       [24., 30., 36.]], dtype=float32)"
    assert repr(x.grad) == expected
    assert (x.grad == (6 * x).array).all()


def test_the_release_notes_third_derivative():
    x = Variable(np.array([3.0], np.float32))
    y = x * x * x / 3
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([gx], [x], enable_double_backprop=True)
    np.testing.assert_allclose(gx.array, [9], rtol=1e-6)
    np.testing.assert_allclose(ggx.array, [6], rtol=1e-6)
    (gggx,) = mpchain.grad([ggx], [x], enable_double_backprop=True)
    assert str(gggx) == "variable([2.])"
    x.cleargrad()
    gx.backward()
    np.testing.assert_array_equal(x.grad_var.array, ggx.array)


def _penalty_setting():
    random = np.random.RandomState(0)
    W1, W2 = Parameter(random.randn(4, 3)), Parameter(random.randn(1, 4))
    x, x_tilde = random.randn(5, 3), Variable(random.randn(5, 3))
    u = random.uniform(size=(5, 1))

    def D(x):
        return F.linear(F.tanh(F.linear(x, W1)), W2)

    return D, (W1, W2), x, x_tilde, x + u * (x_tilde - x)


def _penalised_loss(D, x, x_tilde, gx_hat):
    penalty = F.sum((F.sqrt(F.sum(gx_hat * gx_hat, axis=1)) - 1) ** 2)
    return F.sum(D(x_tilde) - D(x)) + 10 * penalty


def test_the_release_notes_gradient_penalty_both_ways():
    D, (W1, W2), x, x_tilde, x_hat = _penalty_setting()
    y = D(x_hat)
    y.grad = np.ones(y.shape)
    x_hat.unchain()
    y.backward(enable_double_backprop=True)
    loss = _penalised_loss(D, x, x_tilde, x_hat.grad_var)
    W1.cleargrad()
    W2.cleargrad()
    loss.backward()
    by_backward = W1.grad, W2.grad

    W1.cleargrad()
    W2.cleargrad()
    (gx_hat,) = mpchain.grad([D(x_hat)], [x_hat], enable_double_backprop=True)
    _penalised_loss(D, x, x_tilde, gx_hat).backward()
    np.testing.assert_allclose(W1.grad, by_backward[0], rtol=1e-12)
    np.testing.assert_allclose(W2.grad, by_backward[1], rtol=1e-12)

    eps, step = 1e-6, np.random.RandomState(1).randn(4, 3)
    values = []
    for sign in (1, -1):
        W1.array = W1.array + sign * eps * step
        (gx_hat,) = mpchain.grad([D(x_hat)], [x_hat], enable_double_backprop=True)
        values.append(_penalised_loss(D, x, x_tilde, gx_hat).item())
        W1.array = W1.array - sign * eps * step
    numeric = (values[0] - values[1]) / (2 * eps)
    np.testing.assert_allclose((by_backward[0] * step).sum(), numeric, rtol=1e-6)


def test_the_double_backward_articles_first_two_snippets():
    random = np.random.RandomState(313)
    x = Variable(random.randn(2, 3))
    s = 1 / (1 + np.exp(-x.array))
    y = F.sigmoid(x)
    y.grad = np.ones((2, 3))
    y.backward()
    np.testing.assert_allclose(x.grad, s * (1 - s), rtol=1e-12)
    x.cleargrad()
    grads = mpchain.grad([F.sigmoid(x)], [x], set_grad=True, enable_double_backprop=True)
    assert x.grad_var is grads[0]
    np.testing.assert_allclose(x.grad, s * (1 - s), rtol=1e-12)


def test_the_double_backward_articles_third_snippet():
    random = np.random.RandomState(313)
    b, c, h, w = 16, 3, 32, 32
    x = Variable(random.randn(b, c, h, w))
    grads = mpchain.grad([F.sigmoid(x)], [x], enable_double_backprop=True)
    norms = [F.sum(g**2.0, (1, 2, 3)) ** 0.5 for g in grads]
    gp = sum(F.mean((norm - 1.0) ** 2.0) for norm in norms)
    gp.backward()
    s = 1 / (1 + np.exp(-x.array))
    g = s * (1 - s)
    norm = np.sqrt((g**2).sum(axis=(1, 2, 3), keepdims=True))
    expected = 2 * (norm - 1) / b * g / norm * g * (1 - 2 * s)
    np.testing.assert_allclose(x.grad, expected, rtol=1e-10)


def test_the_double_backward_articles_zero_centred_penalty():
    D, (W1, W2), x, _, _ = _penalty_setting()
    x_real = Variable(x)
    (g,) = mpchain.grad([D(x_real)], [x_real], enable_double_backprop=True)
    norms = F.sum(g**2.0, 1) ** 0.5
    (0.5 * 3.0 * F.mean(norms**2.0)).backward()
    # With D = w2 . tanh(W1 x): g = W1^T (w2 (1 - h^2)), and the penalty 1.5 mean |g|^2.
    hidden = np.tanh(x @ W1.array.T)
    a = W2.array * (1 - hidden**2)
    expected = (2 * 1.5 / len(x)) * ((a @ W1.array) @ W1.array.T * (1 - hidden**2)).sum(0)
    np.testing.assert_allclose(W2.grad[0], expected, rtol=1e-10)
