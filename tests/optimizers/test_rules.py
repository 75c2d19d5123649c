"""Tests the rules of optimizers against plain formulas, and some of them against PyTorch."""

import inspect

import numpy as np
import pytest

from mpchain import backend, optimizers
from mpchain.link import Link
from mpchain.variable import Parameter
from tests.optimizers import names

pytestmark = pytest.mark.slow

N_STEPS = 50


def sgd(p, gs, lr=0.01):
    for g in gs:
        p = p - lr * g
    return p


def momentum_sgd(p, gs, lr=0.01, momentum=0.9):
    v = 0
    for g in gs:
        v = momentum * v - lr * g
        p = p + v
    return p


def nesterov(p, gs, lr=0.01, momentum=0.9):
    v = 0
    for g in gs:
        v = momentum * v - lr * g
        p = p + momentum**2 * v - (1 + momentum) * lr * g
    return p


def adagrad(p, gs, lr=0.001, eps=1e-8):
    h = 0
    for g in gs:
        h = h + g**2
        p = p - lr * g / (np.sqrt(h) + eps)
    return p


def adadelta(p, gs, rho=0.95, eps=1e-6):
    mean_g2 = mean_dx2 = 0
    for g in gs:
        mean_g2 = rho * mean_g2 + (1 - rho) * g**2
        dx = -np.sqrt(mean_dx2 + eps) / np.sqrt(mean_g2 + eps) * g
        mean_dx2 = rho * mean_dx2 + (1 - rho) * dx**2
        p = p + dx
    return p


def rmsprop(p, gs, lr=0.01, alpha=0.99, eps=1e-8, eps_inside_sqrt=False):
    ms = 0
    for g in gs:
        ms = alpha * ms + (1 - alpha) * g**2
        p = p - lr * g / ((ms + eps) ** 0.5 if eps_inside_sqrt else ms**0.5 + eps)
    return p


def rmsprop_graves(p, gs, lr=1e-4, alpha=0.95, momentum=0.9, eps=1e-4):
    n = mean = delta = 0
    for g in gs:
        n = alpha * n + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        delta = momentum * delta - lr * g / np.sqrt(n - mean**2 + eps)
        p = p + delta
    return p


def smorms3(p, gs, lr=0.001, eps=1e-16):
    mem, mean, mean2 = 1, 0, 0
    for g in gs:
        r = 1 / (mem + 1)
        mean = (1 - r) * mean + r * g
        mean2 = (1 - r) * mean2 + r * g**2
        signal = mean**2 / (mean2 + eps)
        p = p - np.minimum(lr, signal) / (np.sqrt(mean2) + eps) * g
        mem = 1 + mem * (1 - signal)
    return p


def msvag(p, gs, lr=0.1, beta=0.9, eta=1.0, weight_decay_rate=0):
    # This is M-SVAG of the paper: gamma is the estimate of 1 / (1 + variance of m / m**2).
    m = v = 0
    for t, g in enumerate(gs, 1):
        m = beta * m + (1 - beta) * g
        v = beta * v + (1 - beta) * g**2
        m_hat, v_hat = m / (1 - beta**t), v / (1 - beta**t)
        gamma = 1
        if t > 1:
            rho = (1 - beta) * (1 + beta**t) / ((1 + beta) * (1 - beta**t))
            s = (v_hat - m_hat**2) / (1 - rho)
            gamma = m_hat**2 / (m_hat**2 + rho * s)
        p = p - eta * (lr * gamma * m_hat + weight_decay_rate * p)
    return p


def adam(
    p,
    gs,
    alpha=0.001,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    eta=1.0,
    weight_decay_rate=0,
    amsgrad=False,
    adabound=False,
    final_lr=0.1,
    gamma=1e-3,
):
    m = v = v_max = 0
    for t, g in enumerate(gs, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        v_max = np.maximum(v_max, v)
        rate = alpha * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        rate = rate / (np.sqrt(v_max if amsgrad else v) + eps)
        if adabound:
            lower = final_lr * (1 - 1 / (gamma * t + 1))
            upper = final_lr * (1 + 1 / (gamma * t))
            rate = np.clip(rate, lower, upper)
        p = p - eta * (rate * m + weight_decay_rate * p)
    return p


def sgdw(p, gs, lr=0.01, momentum=0.9, eta=1.0, weight_decay_rate=0):
    # This is algorithm 1 of the paper.
    m = 0
    for g in gs:
        m = momentum * m + eta * lr * g
        p = p - m - eta * weight_decay_rate * p
    return p


def lion(p, gs, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay_rate=0):
    m = 0
    for g in gs:
        c = beta1 * m + (1 - beta1) * g
        p = p - lr * (np.sign(c) + weight_decay_rate * p)
        m = beta2 * m + (1 - beta2) * g
    return p


def radam(p, gs, alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-8, eta=1.0, weight_decay_rate=0):
    m = v = 0
    rho_inf = 2 / (1 - beta2) - 1
    for t, g in enumerate(gs, 1):
        v = beta2 * v + (1 - beta2) * g**2
        m = beta1 * m + (1 - beta1) * g
        step = alpha * m / (1 - beta1**t)
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho > 5:
            adaptive = np.sqrt(1 - beta2**t) / (np.sqrt(v) + eps)
            r = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
            step = step * np.sqrt(r) * adaptive
        p = p - eta * (step + weight_decay_rate * p)
    return p


def lamb(p, gs, alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay_rate=0):
    m = v = 0
    for t, g in enumerate(gs, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
        r = r + weight_decay_rate * p
        p_norm, r_norm = np.sqrt((p**2).sum()), np.sqrt((r**2).sum())
        p = p - alpha * (p_norm / r_norm if p_norm * r_norm > 0 else 1) * r
    return p


def adafactor(p, gs, lr=0.01, decay=0.8, eps1=1e-30, eps2=1e-3, threshold=1, weight_decay_rate=0):
    # These are algorithms 4 (matrices) and 5 (vectors) of the paper, with relative step sizes.
    if p.size == 0:
        return p
    R = C = V = 0
    for t, g in enumerate(gs, 1):
        rate = max(eps2, np.sqrt(np.mean(p**2))) * min(lr, 1 / np.sqrt(t))
        beta2 = 1 - t**-decay
        square = g**2 + eps1
        if g.ndim < 2:
            V = beta2 * V + (1 - beta2) * square
        else:
            square = square.reshape(len(square), -1)
            R = beta2 * R + (1 - beta2) * square.sum(axis=1)
            C = beta2 * C + (1 - beta2) * square.sum(axis=0)
            V = (np.outer(R, C) / R.sum()).reshape(g.shape)
        u = g / np.sqrt(V)
        u = u / max(1, np.sqrt(np.mean(u**2)) / threshold)
        p = p - lr * weight_decay_rate * p - rate * u
    return p


# Each case has the optimizer, its arguments, the formula, and perhaps further arguments of the
# formula.
CASES = {
    "SGD": ("SGD", {}, sgd),
    "SGD with lr": ("SGD", {"lr": 0.1}, sgd),
    "MomentumSGD": ("MomentumSGD", {}, momentum_sgd),
    "MomentumSGD with arguments": ("MomentumSGD", {"lr": 0.1, "momentum": 0.5}, momentum_sgd),
    "CorrectedMomentumSGD": ("CorrectedMomentumSGD", {}, momentum_sgd),
    "NesterovAG": ("NesterovAG", {}, nesterov),
    "AdaGrad": ("AdaGrad", {}, adagrad),
    "AdaDelta": ("AdaDelta", {}, adadelta),
    "RMSprop": ("RMSprop", {}, rmsprop),
    "RMSprop with eps inside": ("RMSprop", {"eps": 0.1, "eps_inside_sqrt": True}, rmsprop),
    "RMSpropGraves": ("RMSpropGraves", {}, rmsprop_graves),
    "SMORMS3": ("SMORMS3", {}, smorms3),
    "MSVAG": ("MSVAG", {}, msvag),
    "MSVAG with decay": ("MSVAG", {"eta": 0.5, "weight_decay_rate": 0.01}, msvag),
    "Adam": ("Adam", {}, adam),
    "Adam with arguments": ("Adam", {"alpha": 0.1, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3}, adam),
    "AdamW": ("AdamW", {"eta": 0.5, "alpha": 0.01, "weight_decay_rate": 0.01}, adam),
    "AMSGrad": ("AMSGrad", {"beta2": 0.5}, adam, {"amsgrad": True}),
    "AdaBound": ("AdaBound", {"gamma": 0.1}, adam, {"adabound": True}),
    "AMSBound": ("AMSBound", {"beta2": 0.5}, adam, {"adabound": True, "amsgrad": True}),
    "SGDW": ("SGDW", {}, sgdw),
    "SGDW with arguments": ("SGDW", {"lr": 0.1, "eta": 0.5, "weight_decay_rate": 0.01}, sgdw),
    "Lion": ("Lion", {}, lion),
    "Lion with arguments": ("Lion", {"beta1": 0.5, "weight_decay_rate": 0.1, "lr": 0.01}, lion),
    "RAdam": ("RAdam", {}, radam),
    "RAdam with decay": ("RAdam", {"eta": 0.5, "weight_decay_rate": 0.01, "beta2": 0.9}, radam),
    "LAMB": ("LAMB", {}, lamb),
    "LAMB with decay": ("LAMB", {"alpha": 0.1, "weight_decay_rate": 0.01}, lamb),
    "Adafactor": ("Adafactor", {}, adafactor),
    "Adafactor with arguments": (
        "Adafactor",
        {"lr": 0.1, "decay": 0.6, "threshold": 0.5, "weight_decay_rate": 0.01},
        adafactor,
    ),
}
# In the first step, rounding errors of the variance, 0 / 0, are magnified 10,000 times.
TOLERANCE = {"MSVAG": 1e-9, "MSVAG with decay": 1e-9}


def test_every_optimizer_is_in_the_tables():
    missing = {*names.OF_RULES} - {name for name, *_ in CASES.values()}
    assert not missing, f"add a formula to CASES for {sorted(missing)}"
    missing = {*names.ALL} - {signature.partition("(")[0] for signature in SIGNATURES}
    assert not missing, f"add a line to SIGNATURES for {sorted(missing)}"


def problem(shape=(7, 5), dtype=np.float64):
    p = np.asarray(np.random.normal(size=shape), dtype)
    # The means have several sizes, because some rules depend on the noise of gradients.
    means = np.resize([3.0, -0.3, 0.0], shape)
    return p, [np.asarray(np.random.normal(means), dtype) for _ in range(N_STEPS)]


def run(name, arguments, p, gs, device="@numpy"):
    link = Link()
    with link.init_scope():
        link.W = Parameter(p.copy(order="K"))
    link.to_device(device)
    optimizer = getattr(optimizers, name)(**arguments).setup(link)
    for g in gs:
        link.W.grad = link.device.send(g)
        optimizer.update()
    return link.W


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(7, 5), (), (1,), (0, 3), (2, 3, 2, 4), (20001,)])
def test_formula(case, shape):
    name, arguments, formula, *more = CASES[case]
    p, gs = problem(shape)
    expected = formula(p, gs, **arguments, **dict(*more))
    tolerance = {"rtol": TOLERANCE.get(case, 1e-12), "atol": TOLERANCE.get(case, 1e-13)}
    np.testing.assert_allclose(run(name, arguments, p, gs).array, expected, **tolerance)


@pytest.mark.filterwarnings("ignore:.*parameters are float16")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 3e-4), (np.float16, 0.06)])
def test_dtypes(case, dtype, tolerance):
    name, arguments, formula, *more = CASES[case]
    p, gs = problem(dtype=dtype)
    wide = p.astype(np.float64), [g.astype(np.float64) for g in gs]
    param = run(name, arguments, p, gs)
    assert param.dtype == dtype
    # The bound covers 50 rounding errors of values up to 16, which MSVAG's first step magnifies.
    expected = formula(*wide, **arguments, **dict(*more))
    limits = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(param.array.astype(np.float64), expected, **limits)
    states = (param.update_rule.state or {}).values()
    assert all(state.dtype == np.promote_types(dtype, np.float32) for state in states)


@pytest.mark.parametrize("case", CASES)
def test_memory_layout_does_not_matter(case):
    name, arguments, *_ = CASES[case]
    p, gs = problem((150, 120))
    expected = run(name, arguments, p, gs[:3]).array
    transposed = [np.asfortranarray(g) for g in gs[:3]]
    np.testing.assert_allclose(
        run(name, arguments, p, transposed).array, expected, rtol=1e-13, atol=1e-15
    )
    param = run(name, arguments, np.asfortranarray(p), gs[:3])
    np.testing.assert_allclose(param.array, expected, rtol=1e-13, atol=1e-15)
    assert param.array.flags.f_contiguous
    constant = [np.broadcast_to(np.float64(2), p.shape)] * 2
    np.testing.assert_allclose(
        run(name, arguments, p, constant).array,
        run(name, arguments, p, [g.copy() for g in constant]).array,
    )


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_not_changed(case):
    name, arguments, *_ = CASES[case]
    for shape in ((7, 5), (20001,)):
        p, gs = problem(shape)
        kept = gs[0].copy()
        run(name, arguments, p, gs[:1])
        np.testing.assert_array_equal(gs[0], kept)


@pytest.mark.parametrize("case", CASES)
def test_zero_gradients(case):
    name, arguments, *_ = CASES[case]
    p = np.ones(3)
    assert np.isfinite(run(name, arguments, p, [np.zeros(3)] * 3).array).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case):
    name, arguments, *_ = CASES[case]
    p, gs = problem((150, 120))
    on_gpu = run(name, arguments, p, gs[:5], "@cupy:0").array
    expected = run(name, arguments, p, gs[:5]).array
    np.testing.assert_allclose(backend.cuda.to_cpu(on_gpu), expected, rtol=1e-9, atol=1e-12)


TORCH = {
    "SGD": ({"lr": 0.1}, "SGD", {"lr": 0.1}),
    "MomentumSGD": ({}, "SGD", {"lr": 0.01, "momentum": 0.9}),
    "CorrectedMomentumSGD": ({}, "SGD", {"lr": 0.01, "momentum": 0.9}),
    "AdaGrad": ({}, "Adagrad", {"lr": 0.001, "eps": 1e-8}),
    "AdaDelta": ({}, "Adadelta", {"lr": 1.0, "rho": 0.95, "eps": 1e-6}),
    "RMSprop": ({}, "RMSprop", {"lr": 0.01, "alpha": 0.99, "eps": 1e-8}),
    # Where PyTorch adds eps at another place, the case sets eps to zero.
    "Adam": ({"eps": 0}, "Adam", {"eps": 0}),
    "AMSGrad": ({"eps": 0, "beta2": 0.5}, "Adam", {"eps": 0, "betas": (0.9, 0.5), "amsgrad": True}),
    "AdamW": (
        {"eps": 0, "alpha": 0.1, "weight_decay_rate": 0.1 * 0.2},
        "AdamW",
        {"eps": 0, "lr": 0.1, "weight_decay": 0.2},
    ),
    "RMSpropGraves": (
        {"eps": 0},
        "RMSprop",
        {"eps": 0, "lr": 1e-4, "alpha": 0.95, "momentum": 0.9, "centered": True},
    ),
    "RAdam": (
        {"alpha": 0.1, "weight_decay_rate": 0.1 * 0.2},
        "RAdam",
        {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True},
    ),
    "Adafactor": (
        {"lr": 0.1, "threshold": 1.5, "weight_decay_rate": 0.2},
        "Adafactor",
        {"lr": 0.1, "d": 1.5, "weight_decay": 0.2},
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_against_pytorch(name):
    torch = pytest.importorskip("torch", reason="needs PyTorch as the reference")
    arguments, torch_name, torch_arguments = TORCH[name]
    p, gs = problem()
    tensor = torch.tensor(p, requires_grad=True)
    reference = getattr(torch.optim, torch_name)([tensor], **torch_arguments)
    for g in gs:
        tensor.grad = torch.tensor(g)
        reference.step()
    actual = run(name, arguments, p, gs).array
    np.testing.assert_allclose(actual, tensor.detach().numpy(), rtol=1e-11, atol=1e-12)


SIGNATURES = """
LBFGS(memory=10, max_iter=1)
SGD(lr=0.01)
MomentumSGD(lr=0.01, momentum=0.9)
CorrectedMomentumSGD(lr=0.01, momentum=0.9)
NesterovAG(lr=0.01, momentum=0.9)
AdaDelta(rho=0.95, eps=1e-06)
AdaGrad(lr=0.001, eps=1e-08)
SMORMS3(lr=0.001, eps=1e-16)
MSVAG(lr=0.1, beta=0.9, eta=1.0, weight_decay_rate=0)
RMSprop(lr=0.01, alpha=0.99, eps=1e-08, eps_inside_sqrt=False)
RMSpropGraves(lr=0.0001, alpha=0.95, momentum=0.9, eps=0.0001)
Adam(alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-08, eta=1.0, weight_decay_rate=0, \
amsgrad=False, adabound=False, final_lr=0.1, gamma=0.001, decay_times_alpha=False)
AdamW(alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-08, eta=1.0, weight_decay_rate=0, \
decay_times_alpha=False)
AMSGrad(alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-08, eta=1.0)
AdaBound(alpha=0.001, beta1=0.9, beta2=0.999, final_lr=0.1, gamma=0.001, eps=1e-08, eta=1.0)
AMSBound(alpha=0.001, beta1=0.9, beta2=0.999, final_lr=0.1, gamma=0.001, eps=1e-08, eta=1.0)
SGDW(lr=0.01, momentum=0.9, eta=1.0, weight_decay_rate=0)
Lion(lr=0.0001, beta1=0.9, beta2=0.99, weight_decay_rate=0)
RAdam(alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-08, eta=1.0, weight_decay_rate=0)
LAMB(alpha=0.001, beta1=0.9, beta2=0.999, eps=1e-06, weight_decay_rate=0)
Adafactor(lr=0.01, decay=0.8, eps1=1e-30, eps2=0.001, threshold=1.0, weight_decay_rate=0)
""".split("\n")[1:-1]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_signature(signature):
    name = signature.partition("(")[0]
    cls = getattr(optimizers, name)
    parameters = inspect.signature(cls).parameters.values()
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    assert name + str(inspect.Signature(plain)) == signature
    optimizer = cls()
    defaults = inspect.signature(cls).parameters
    assert {n: getattr(optimizer, n) for n in defaults} == {
        n: parameter.default for n, parameter in defaults.items()
    }


def test_arguments_by_position_and_those_that_do_not_exist():
    optimizer = optimizers.MomentumSGD(0.5, momentum=0.25)
    assert (optimizer.lr, optimizer.momentum) == (0.5, 0.25)
    with pytest.raises(TypeError, match=r"SGD: .*'rate'; the arguments are \(lr=0.01\)"):
        optimizers.SGD(rate=1)
    with pytest.raises(TypeError, match="AdamRule has no hyperparameter 'lr'"):
        optimizers.AdamRule(lr=1)


def test_a_rule_alone_has_the_defaults():
    rule = optimizers.MomentumSGDRule(momentum=0.5, lr=None)
    assert rule.hyperparam.get_dict() == {"lr": 0.01, "momentum": 0.5}
    param = Parameter(np.ones(2))
    param.update_rule = rule
    param.grad = np.ones(2)
    param.update()
    np.testing.assert_allclose(param.array, 0.99)


def test_learning_rate_of_adam():
    for optimizer in (optimizers.Adam(alpha=0.1), optimizers.AMSBound(alpha=0.1)):
        with pytest.raises(
            RuntimeError, match="lr: the learning rate is undefined before the first"
        ):
            optimizer.lr
        link = Link(W=2)
        optimizer.setup(link)
        for t in (1, 2, 3):
            link.W.grad = np.ones(2, np.float32)
            optimizer.update()
            expected = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            assert optimizer.lr == link.W.update_rule.lr == pytest.approx(expected)


def test_learning_rate_of_radam():
    link = Link(W=1)
    optimizer = optimizers.RAdam(alpha=0.1).setup(link)
    with pytest.raises(RuntimeError, match=r"RAdamRule\.lr: the learning rate is undefined before"):
        optimizer.lr
    rates = []
    for _ in range(7):
        link.W.grad = np.ones(1, np.float32)
        optimizer.update()
        rates.append(optimizer.lr)
        assert optimizer.lr == link.W.update_rule.lr
    np.testing.assert_allclose(rates[:5], 0.1 / (1 - 0.9 ** np.arange(1.0, 6)))
    assert rates[5] < 0.01 * rates[4] and rates[6] > rates[5]


@pytest.mark.parametrize("name, n_state", [("Adafactor", 12), ("Lion", 35), ("Adam", 70)])
def test_size_of_the_state(name, n_state):
    p, gs = problem((7, 5))
    state = run(name, {}, p, gs[:1]).update_rule.state
    assert sum(array.size for array in state.values()) == n_state


def test_which_steps_are_elementwise():
    rules = [n for n in vars(optimizers) if n.endswith("Rule")]
    whole = {name for name in rules if not getattr(optimizers, name)().is_elementwise}
    assert whole == {"LAMBRule", "AdafactorRule"}


def test_bounds_of_adabound_scale_with_alpha():
    link = Link()
    with link.init_scope():
        link.W = Parameter(np.zeros(1))
    optimizer = optimizers.AdaBound(alpha=1.0, gamma=1e9).setup(link)  # the bounds equal final_lr
    steps = []
    for alpha in (1.0, 0.5):
        optimizer.alpha = alpha
        before = link.W.array[0]
        link.W.grad = np.ones(1)
        optimizer.update()
        steps.append(before - link.W.array[0])
    # m is 0.1, then 0.19.
    assert steps == pytest.approx([0.1 * 0.1, 0.5 * 0.1 * 0.19], rel=1e-6)


def test_numpy_scalars_as_hyperparameters_leave_the_dtype():
    link = Link(W=3)
    optimizer = optimizers.MomentumSGD(np.float64(0.1), np.float64(0.9)).setup(link)
    link.W.grad = np.ones(3, np.float32)
    optimizer.update()
    assert link.W.dtype == link.W.update_rule.state["v"].dtype == np.float32
