"""Steps whose loss contains derivatives, with the same formulas in mpchain, PyTorch and jitted JAX.

A loss is a function of an interface to the library (``ops``), parameters and data. Parameters are
those of linear maps, [W1, b1, W2, b2, ...], and stochastic gradient descent updates them.
"""

import itertools

import numpy as np
from common import captured, compiled, fill

RATE = np.float32(1e-4)


def _parameters(*sizes):
    arrays = []
    for n, m in itertools.pairwise(sizes):
        arrays += [np.zeros((m, n), "f"), np.zeros(m, "f")]
    fill(arrays)
    return arrays


def _random(*shapes):
    random = np.random.RandomState(1)
    return [random.normal(size=shape).astype("f") for shape in shapes]


def _network(ops, params, x):
    for i in range(0, len(params), 2):
        x = ops.linear(x, params[i], params[i + 1])
        x = ops.tanh(x) if i + 2 < len(params) else x
    return x


def force(ops, params, x, energies, forces):
    """Returns the loss of a force field: the error of the energy, and of forces, which are its
    negative derivatives."""
    predicted, slope = ops.value_and_grad(lambda x: ops.sum(_network(ops, params, x)), x)
    return ops.mean((slope + forces) ** 2) + (predicted - energies) ** 2 * 1e-6


def pinn(ops, params, t, x):
    """Returns the mean squared residual of Burgers' equation, with second derivatives."""
    join = ops.join

    def u(t, x):
        return ops.sum(_network(ops, params, join(t, x)))

    value = _network(ops, params, join(t, x))
    u_t = ops.value_and_grad(lambda t: u(t, x), t)[1]
    slope = lambda x: ops.value_and_grad(lambda x: u(t, x), x)[1]
    u_x = slope(x)
    u_xx = ops.value_and_grad(lambda x: ops.sum(slope(x)), x)[1]
    return ops.mean((u_t + value * u_x - 0.03 * u_xx) ** 2)


def maml(ops, params, x, t, x_test, t_test):
    """Returns the sum of the losses of four tasks, each after a step of gradient descent."""
    total = 0
    for k in range(4):
        error = lambda p, x=x[k], t=t[k]: ops.mean((_network(ops, p, x) - t) ** 2)
        slopes = ops.gradients(error, params)
        moved = [p - 0.01 * g for p, g in zip(params, slopes)]
        total = total + ops.mean((_network(ops, moved, x_test[k]) - t_test[k]) ** 2)
    return total


def wgan_gp(ops, params, real, fake, mixed):
    """Returns the critic's loss with a penalty on the norm of its gradient."""
    _, slope = ops.value_and_grad(lambda x: ops.sum(_network(ops, params, x)), mixed)
    norm = ops.sqrt(ops.sum_rows(slope**2) + 1e-12)
    gap = ops.mean(_network(ops, params, fake)) - ops.mean(_network(ops, params, real))
    return gap + 10 * ops.mean((norm - 1) ** 2)


def mean_flow(ops, params, z, v, t, r):
    """Returns the loss of a mean velocity between two times; the target contains the derivative of
    the velocity along the flow."""
    f = lambda z, t: _network(ops, params, ops.join(z, t, r))
    u, slope = ops.jvp(f, (z, t), (v, t * 0 + 1))
    return ops.mean((u - ops.constant(v - (t - r) * slope)) ** 2)


WORKLOADS = {
    "force": (force, (30, 128, 128, 1), [(256, 30), (), (256, 30)]),
    "pinn": (pinn, (2, 64, 64, 64, 1), [(1000, 1), (1000, 1)]),
    "maml": (maml, (8, 40, 40, 1), [(4, 20, 8), (4, 20, 1), (4, 20, 8), (4, 20, 1)]),
    "wgan_gp": (wgan_gp, (784, 256, 256, 1), [(64, 784)] * 3),
    "mean_flow": (mean_flow, (66, 256, 256, 64), [(256, 64), (256, 64), (256, 1), (256, 1)]),
}
HVP = (784, 1000, 1000, 10), [(100, 784)]
NAMES = [*WORKLOADS, "hvp"]


def _error(ops, params, x, t):
    return ops.cross_entropy(_network(ops, params, x), t)


class Ours:
    def __init__(self, lib):
        F = self.F = lib.functions
        self.lib, self.linear, self.tanh, self.sqrt = lib, F.linear, F.tanh, F.sqrt
        self.mean, self.sum, self.cross_entropy = F.mean, F.sum, F.softmax_cross_entropy
        self.jvp = lib.jvp

    def sum_rows(self, x):
        return self.F.sum(x, axis=1)

    def join(self, *xs):
        return self.F.concat(xs, axis=1)

    def constant(self, x):
        return x.array

    def value_and_grad(self, f, x):
        x = x if isinstance(x, self.lib.Variable) else self.lib.Variable(x)
        y = f(x)
        return y, self.lib.grad([y], [x], enable_double_backprop=True)[0]

    def gradients(self, f, params):
        return self.lib.grad([f(params)], params, enable_double_backprop=True)

    def step(self, name):
        lib = self.lib
        if name == "hvp":
            return self._hvp()
        loss_of, sizes, shapes = WORKLOADS[name]
        params, data = [lib.Parameter(p) for p in _parameters(*sizes)], _random(*shapes)
        link = lib.Link()
        with link.init_scope():
            for i, p in enumerate(params):
                setattr(link, f"p{i}", p)
        optimizer = lib.optimizers.SGD(RATE).setup(link)

        def train(*data):
            loss = loss_of(self, params, *data)
            link.cleargrads()
            loss.backward()
            optimizer.update()
            return loss

        train = captured(train)
        return lambda: float(train(*data).array)

    def _hvp(self):
        sizes, shapes = HVP
        params, (x,) = _parameters(*sizes), _random(*shapes)
        vs, t = _random(*(p.shape for p in params)), (np.arange(len(x)) % 10).astype("i")

        def product(x, t):
            with self.lib.no_backprop_mode():
                loss = lambda params: _error(self, params, x, t)
                return [g.array for g in self.lib.hvp(loss, (params,), (vs,))]

        product = captured(product)
        return lambda: float(product(x, t)[0].sum())


class PyTorch:
    def __init__(self, torch):
        self.torch, F = torch, torch.nn.functional
        self.linear, self.tanh, self.sqrt = F.linear, torch.tanh, torch.sqrt
        self.mean, self.sum, self.cross_entropy = torch.mean, torch.sum, F.cross_entropy
        self.jvp = torch.func.jvp

    def sum_rows(self, x):
        return x.sum(1)

    def join(self, *xs):
        return self.torch.cat(xs, 1)

    def constant(self, x):
        return x.detach()

    def value_and_grad(self, f, x):
        x = x if x.requires_grad else x.detach().requires_grad_()
        y = f(x)
        return y, self.torch.autograd.grad(y, x, create_graph=True)[0]

    def gradients(self, f, params):
        return self.torch.autograd.grad(f(params), params, create_graph=True)

    def step(self, name):
        torch = self.torch
        if name == "hvp":
            return self._hvp()
        loss_of, sizes, shapes = WORKLOADS[name]
        params = [torch.nn.Parameter(torch.from_numpy(p)) for p in _parameters(*sizes)]
        data = [torch.from_numpy(np.asarray(x)) for x in _random(*shapes)]
        optimizer = torch.optim.SGD(params, float(RATE), fused=True)
        loss_of_data = compiled(lambda *data: loss_of(self, params, *data))

        def step():
            loss = loss_of_data(*data)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def _hvp(self):
        torch, (sizes, shapes) = self.torch, HVP
        arrays, (x,) = _parameters(*sizes), _random(*shapes)
        vs = tuple(torch.from_numpy(v) for v in _random(*(p.shape for p in arrays)))
        params = tuple(map(torch.from_numpy, arrays))
        x, t = torch.from_numpy(x), torch.arange(len(x)) % 10
        gradient = torch.func.grad(lambda params: _error(self, params, x, t))
        product = compiled(lambda params, vs: torch.func.jvp(gradient, (params,), (vs,))[1])
        return lambda: product(params, vs)[0].sum().item()


class Jax:
    def __init__(self, jax):
        jnp = jax.numpy
        self.jax, self.tanh, self.sqrt, self.mean, self.sum = (
            jax, jnp.tanh, jnp.sqrt, jnp.mean, jnp.sum,
        )  # fmt: skip
        self.constant, self.jvp = jax.lax.stop_gradient, jax.jvp

    def linear(self, x, W, b):
        return x @ W.T + b

    def sum_rows(self, x):
        return x.sum(1)

    def join(self, *xs):
        return self.jax.numpy.concatenate(xs, 1)

    def cross_entropy(self, y, t):
        log_p = self.jax.nn.log_softmax(y)
        return -self.jax.numpy.take_along_axis(log_p, t[:, None], 1).mean()

    def value_and_grad(self, f, x):
        return self.jax.value_and_grad(f)(x)

    def gradients(self, f, params):
        return self.jax.grad(f)(params)

    def step(self, name):
        jax = self.jax
        if name == "hvp":
            return self._hvp()
        loss_of, sizes, shapes = WORKLOADS[name]
        params, data = jax.device_put((_parameters(*sizes), _random(*shapes)))

        def train(params, *data):
            loss, slopes = jax.value_and_grad(lambda p: loss_of(self, p, *data))(params)
            return loss, [p - RATE * g for p, g in zip(params, slopes)]

        train = jax.jit(train, donate_argnums=0)

        def step():
            nonlocal params
            loss, params = jax.block_until_ready(train(params, *data))
            return float(loss)

        return step

    def _hvp(self):
        jax, (sizes, shapes) = self.jax, HVP
        arrays, (x,) = _parameters(*sizes), _random(*shapes)
        params, vs, x = jax.device_put((arrays, _random(*(p.shape for p in arrays)), x))
        t = jax.numpy.arange(len(x)) % 10

        @jax.jit
        def product(params, vs, x):
            gradient = jax.grad(lambda params: _error(self, params, x, t))
            return jax.jvp(gradient, (params,), (vs,))[1]

        return lambda: float(jax.block_until_ready(product(params, vs, x))[0].sum())


LIBRARIES = {"mpchain": Ours, "torch": PyTorch, "jax": Jax}
