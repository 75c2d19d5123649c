"""Tests how optimizer hooks change gradients."""

import numpy as np
import pytest

from mpchain import backend, optimizer_hooks, optimizers
from mpchain import functions as F
from mpchain.configuration import using_config
from mpchain.link import Link
from mpchain.variable import Parameter

P = np.array([[3.0, -4.0], [0.0, 1.0]])
G = np.array([[1.0, 2.0], [-3.0, 0.5]])


def apply(hook, dtype=np.float64, device="@numpy", p=P, g=G):
    """Returns the gradient after an update with the hook; checks the change of the parameter."""
    link = Link()
    with link.init_scope():
        link.W = Parameter(p.astype(dtype))
    link.to_device(device)
    optimizer = optimizers.SGD(1.0).setup(link)
    optimizer.add_hook(hook)
    link.W.grad = given = link.device.send(g.astype(dtype))
    optimizer.update()
    np.testing.assert_array_equal(backend.cuda.to_cpu(given), g.astype(dtype))
    assert link.W.grad.dtype == dtype
    after = backend.cuda.to_cpu(link.W.array)
    np.testing.assert_allclose(after, p - backend.cuda.to_cpu(link.W.grad), rtol=1e-2)
    return backend.cuda.to_cpu(link.W.grad)


norm = np.linalg.norm
CASES = {
    "WeightDecay": (optimizer_hooks.WeightDecay(0.1), G + 0.1 * P),
    "Lasso": (optimizer_hooks.Lasso(0.1), G + 0.1 * np.sign(P)),
    "GradientHardClipping": (optimizer_hooks.GradientHardClipping(-1, 0.75), np.clip(G, -1, 0.75)),
    "GradientClipping": (optimizer_hooks.GradientClipping(2), G * 2 / norm(G)),
    "GradientClipping of a short one": (optimizer_hooks.GradientClipping(100), G),
    "GradientLARS": (
        optimizer_hooks.GradientLARS(weight_decay=0.1),
        norm(P) / (norm(G) + 0.1 * norm(P)) * (G + 0.1 * P),
    ),
    "GradientLARS of small parameters": (
        optimizer_hooks.GradientLARS(threshold=10, weight_decay=0.1),
        G + 0.1 * P,
    ),
}


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "dtype, rtol", [(np.float64, 1e-8), (np.float32, 1e-6), (np.float16, 1e-2)]
)
def test_gradients(case, dtype, rtol, device):
    hook, expected = CASES[case]
    np.testing.assert_allclose(apply(hook, dtype, device), expected, rtol=rtol)


def test_attributes():
    for name, value in vars(optimizer_hooks).items():
        if name[0].isupper() and value.__module__ == optimizer_hooks.__name__:
            arguments = (0.5, 1) if name == "GradientHardClipping" else (0.5,)
            hook = getattr(optimizer_hooks, name)(*arguments)
            assert (hook.name, hook.timing) == (name, "pre")
            assert hook.call_for_each_param == (name != "GradientClipping")


def test_the_norm_is_that_of_all_gradients_together():
    link = Link()
    with link.init_scope():
        link.a, link.b = Parameter(np.zeros(2)), Parameter(np.zeros((), np.float32))
    optimizer = optimizers.SGD(1.0).setup(link)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.3))
    link.a.grad, link.b.grad = np.array([3.0, 4.0]), np.array(12, np.float32)
    optimizer.update()
    np.testing.assert_allclose(link.a.grad, [0.3, 0.4])
    np.testing.assert_allclose(link.b.grad, 1.2, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
def test_squares_of_float16_gradients_do_not_overflow():
    gradient = apply(optimizer_hooks.GradientClipping(1), np.float16, g=np.full((2, 2), 1000.0))
    np.testing.assert_allclose(gradient, 0.5, rtol=1e-3)


def test_gradients_that_share_memory():
    link = Link()
    with link.init_scope():
        link.a, link.b = Parameter(np.array([1.0])), Parameter(np.array([10.0]))
    optimizer = optimizers.SGD(1.0).setup(link)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.5))
    optimizer.add_hook(optimizer_hooks.GradientClipping(1e-3))
    optimizer.add_hook(optimizer_hooks.Lasso(0.125))
    optimizer.update(lambda: F.sum(link.a + link.b))
    clipped = np.array([1.5, 6.0]) * 1e-3 / norm([1.5, 6.0])
    np.testing.assert_allclose([link.a.grad[0], link.b.grad[0]], clipped + 0.125)


def test_noise():
    hook = optimizer_hooks.GradientNoise(0.5)
    link = Link()
    with link.init_scope():
        link.W = Parameter(np.zeros(20000))
    optimizer = optimizers.SGD(0.0).setup(link)
    optimizer.add_hook(hook)
    for t in range(3):
        link.W.grad = np.ones(20000)
        optimizer.update()
        noise = link.W.grad - 1
        assert noise.std() == pytest.approx(np.sqrt(0.5 / (1 + t) ** 0.55), rel=0.03)
        assert abs(noise.mean()) < 0.02


def test_noise_is_reproducible(device):
    def draw():
        with using_config("rng", np.random.default_rng(1)):
            return apply(optimizer_hooks.GradientNoise(0.5), np.float32, device)

    np.testing.assert_array_equal(draw(), draw())
    expected = np.random.default_rng(1).normal(0, np.sqrt(0.5), (2, 2)).astype(np.float32)
    np.testing.assert_allclose(draw(), (G + expected), rtol=1e-6)


def test_own_noise_function():
    seen = []

    def noise(xp, shape, dtype, hook, opt):
        seen.append((xp, shape, dtype, hook, opt.t))
        return xp.full(shape, 2, dtype)

    hook = optimizer_hooks.GradientNoise(0.5, noise)
    np.testing.assert_array_equal(apply(hook), G + 2)
    assert seen == [(np, (2, 2), np.float64, hook, 0)]


def test_a_hook_of_one_parameter():
    link = Link()
    with link.init_scope():
        link.a, link.b = Parameter(np.array([1.0])), Parameter(np.array([1.0]))
    optimizer = optimizers.SGD(1.0).setup(link)
    link.b.update_rule.add_hook(optimizer_hooks.WeightDecay(0.5))
    link.a.grad = link.b.grad = np.array([0.25])
    optimizer.update()
    assert (link.a.array[0], link.b.array[0]) == (0.75, 0.25)


def test_parameters_without_gradient_are_passed_over():
    param = Parameter(np.ones(2))
    optimizer_hooks.WeightDecay(0.1)(None, param)
    assert param.grad is None


@pytest.mark.parametrize(
    "message, call",
    [
        (
            "GradientClipping: threshold must be positive, not 0",
            lambda: optimizer_hooks.GradientClipping(0),
        ),
        (
            "GradientHardClipping: lower_bound must not exceed upper_bound, but 2 > 1",
            lambda: optimizer_hooks.GradientHardClipping(2, 1),
        ),
    ],
)
def test_errors(message, call):
    with pytest.raises(ValueError, match=message):
        call()
