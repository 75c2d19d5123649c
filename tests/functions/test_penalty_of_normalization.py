"""Tests a gradient penalty through a critic with each normalization, against finite differences."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable

_FAR, _SMALL = np.full(4, 100.0), np.full(4, 1e-4)
_WHITENING = np.random.RandomState(9).randn(2, 2, 2)

# Each entry is a function of images (N, 4, H, W), a scale and a shift of the channels.
NORMALIZATIONS = {
    "batch": F.batch_normalization,
    "batch by pixel": lambda x, g, b: F.batch_normalization(
        x, F.broadcast_to(F.reshape(g, (4, 1, 1)), (4, 3, 3)), np.zeros((4, 3, 3)), axis=0
    ),
    "fixed batch": lambda x, g, b: F.fixed_batch_normalization(x, g, b, _FAR / 100, _SMALL + 1),
    # The running statistics are so far away that the correction is constant at its limits.
    "batch renormalization": lambda x, g, b: F.batch_renormalization(
        x, g, b, 2, 3, running_mean=_FAR, running_var=_SMALL
    ),
    "fixed batch renormalization": lambda x, g, b: F.fixed_batch_renormalization(
        x, g, b, _FAR / 100, _SMALL + 1
    ),
    "decorrelated": lambda x, g, b: F.decorrelated_batch_normalization(x, groups=2, eps=1e-3),
    "fixed decorrelated": lambda x, g, b: F.fixed_decorrelated_batch_normalization(
        x, _FAR[:4].reshape(2, 2) / 100, _WHITENING, groups=2
    ),
    "group": lambda x, g, b: F.group_normalization(x, 2, g, b),
    "instance": F.instance_normalization,
    "layer": lambda x, g, b: F.reshape(
        F.layer_normalization(
            F.reshape(x, (-1, 36)),
            F.reshape(F.broadcast_to(F.reshape(g, (4, 1)), (4, 9)), (36,)),
            F.reshape(F.broadcast_to(F.reshape(b, (4, 1)), (4, 9)), (36,)),
        ),
        x.shape,
    ),
    "rms": lambda x, g, b: F.transpose(
        F.rms_normalization(F.transpose(x, (0, 2, 3, 1)), g), (0, 3, 1, 2)
    ),
    "local response": lambda x, g, b: F.local_response_normalization(x, 3, 1, 0.1),
    "normalize": lambda x, g, b: F.normalize(x, axis=(1, 2, 3)),
}


def _penalty(normalization, x, W1, gamma, beta, W2):
    h = F.convolution_2d(x, W1, stride=2, pad=1)
    h = F.tanh(normalization(h, gamma, beta))
    y = F.linear(h, W2)
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    return F.mean((F.sqrt(F.sum(gx * gx, axis=(1, 2, 3))) - 1) ** 2)


def _difference(function, arrays, i, place, eps=1e-5):
    ends = []
    for step in (eps, -eps):
        moved = [x.copy() for x in arrays]
        moved[i].flat[place] += step
        ends.append(float(function(*map(Variable, moved)).array))
    return (ends[0] - ends[1]) / (2 * eps)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_gradient_of_the_penalty(name):
    random = np.random.RandomState(0)
    shapes = [(3, 2, 6, 6), (4, 2, 3, 3), (4,), (4,), (1, 36)]
    arrays = [random.randn(*shape) for shape in shapes]

    def penalty(*xs):
        return _penalty(NORMALIZATIONS[name], *xs)

    xs = list(map(Variable, arrays))
    penalty(*xs).backward()
    for i, x in enumerate(xs):
        places = random.choice(x.size, min(x.size, 6), replace=False)
        numeric = [_difference(penalty, arrays, i, place) for place in places]
        exact = np.zeros(len(places)) if x.grad is None else x.grad.flat[places]
        np.testing.assert_allclose(exact, numeric, 1e-5, 1e-6 * max(1, abs(exact).max()))


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_every_parameter_that_counts_has_a_gradient(name):
    random = np.random.RandomState(0)
    shapes = [(3, 2, 6, 6), (4, 2, 3, 3), (4,), (4,), (1, 36)]
    x, W1, gamma, _, W2 = xs = [Variable(random.randn(*shape)) for shape in shapes]
    _penalty(NORMALIZATIONS[name], *xs).backward()
    counted = [x, W1, W2]
    uses_scale = ("batch", "fixed batch", "group", "instance", "layer", "rms")
    counted += [gamma] if name.startswith(uses_scale) else []
    assert all(np.any(v.grad) for v in counted)
