"""Tests the gradient of WGAN-GP's critic loss, which is a second derivative, and higher
derivatives."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from tests.functions.harness import check_orders

pytestmark = pytest.mark.slow

_SHAPES = [(4, 2, 3, 3), (4,), (4,), (4,), (3, 4, 2, 2), (3,), (1, 27), (1,)]


def _critic(x, W1, b1, gamma, beta, W2, b2, W3, b3):
    h = F.leaky_relu(F.convolution_2d(x, W1, b1, stride=2, pad=1))
    h = F.batch_normalization(h, gamma, beta)
    h = F.leaky_relu(F.convolution_2d(h, W2, b2))
    return F.linear(h, W3, b3)


def _critic_loss(x_real, x_fake, u, *parameters):
    """Computes the loss of Chainer v3's release note: the penalty is on the gradient at points
    between real and fake samples."""
    x_hat = x_real + u * (x_fake - x_real)
    (gx,) = mpchain.grad([_critic(x_hat, *parameters)], [x_hat], enable_double_backprop=True)
    norm = F.sqrt(F.sum(gx * gx, axis=(1, 2, 3)))
    penalty = F.mean((norm - 1) ** 2)
    real, fake = _critic(x_real, *parameters), _critic(x_fake, *parameters)
    return F.mean(fake) - F.mean(real) + 10 * penalty


@pytest.fixture
def arrays():
    random = np.random.RandomState(0)
    x_real, x_fake = random.randn(2, 3, 2, 8, 8)
    u = random.uniform(size=(3, 1, 1, 1))
    return [x_real, x_fake, u, *(random.randn(*shape) * 0.5 for shape in _SHAPES)]


def test_loss_to_third_order(arrays, device):
    # The first derivative of the loss is a second derivative of the critic, and so on.
    check_orders(_critic_loss, arrays, orders=3, device=device, eps=2e-5, tolerance=1e-6)


def test_backward_gives_what_grad_gives(arrays):
    xs = [mpchain.Variable(x) for x in arrays]
    loss = _critic_loss(*xs)
    gradients = mpchain.grad([loss], xs)
    loss.backward()
    for x, gradient in zip(xs, gradients, strict=True):
        np.testing.assert_allclose(x.grad, gradient.array, 1e-12, 1e-12)


def test_every_parameter_against_finite_differences(arrays):
    xs = [mpchain.Variable(x) for x in arrays]
    gradients = mpchain.grad([_critic_loss(*xs)], xs)
    eps = 1e-6
    for i, gradient in enumerate(gradients):
        for place in np.random.choice(arrays[i].size, min(arrays[i].size, 5), replace=False):
            ends = []
            for step in (eps, -eps):
                moved = [x.copy() for x in arrays]
                moved[i].flat[place] += step
                ends.append(_critic_loss(*map(mpchain.Variable, moved)).item())
            numeric = (ends[0] - ends[1]) / (2 * eps)
            exact = gradient.array.flat[place]
            assert abs(numeric - exact) < 1e-6 * max(1, abs(exact)), (i, place)
