"""Some dense, convolutional, recurrent and adversarial workloads in jitted JAX.

The steps are functions of the parameters and of the optimizer's state, and return both; JAX may
reuse their memory.
"""

import numpy as np
from common import digits, fill
from sequences import words


def _filled(*shapes):
    arrays = [np.zeros(shape, "f") for shape in shapes]
    fill(arrays)
    return arrays


def _sgd(rate):
    def update(params, grads, state):
        return [p - rate * g for p, g in zip(params, grads)], state

    return lambda params: None, update


def _momentum_sgd(rate):
    def update(params, grads, vs):
        vs = [0.9 * v - rate * g for v, g in zip(vs, grads)]
        return [p + v for p, v in zip(params, vs)], vs

    return lambda params: [np.zeros_like(p) for p in params], update


def _adam(jax, rate, beta1=0.9, beta2=0.999):
    def update(params, grads, state):
        t, ms, vs = state
        ms = [beta1 * m + (1 - beta1) * g for m, g in zip(ms, grads)]
        vs = [beta2 * v + (1 - beta2) * g * g for v, g in zip(vs, grads)]
        t = t + 1
        size = rate * jax.numpy.sqrt(1 - beta2**t) / (1 - beta1**t)
        moved = [p - size * m / (jax.numpy.sqrt(v) + 1e-8) for p, m, v in zip(params, ms, vs)]
        return moved, (t, ms, vs)

    return (
        lambda params: (np.float32(0), *([np.zeros_like(p) for p in params] for _ in range(2))),
        update,
    )


def _step(jax, loss_of, params, optimizer, *data):
    """Returns a step that keeps parameters and the optimizer's state."""
    make_state, update = optimizer

    def train(params, state, *data):
        loss, grads = jax.value_and_grad(loss_of)(params, *data)
        return loss, *update(params, grads, state)

    train = jax.jit(train, donate_argnums=(0, 1))
    params, state = jax.device_put((params, make_state(params)))
    data = jax.device_put(data)

    def step():
        nonlocal params, state
        loss, params, state = jax.block_until_ready(train(params, state, *data))
        return float(loss)

    return step


def _cross_entropy(jax, y, t):
    log_p = jax.nn.log_softmax(y)
    return -jax.numpy.take_along_axis(log_p, t[..., None], -1).mean()


def _dense(jax, params, x, activation):
    for i in range(0, len(params), 2):
        x = x @ params[i].T + params[i + 1]
        x = activation(x) if i + 2 < len(params) else x
    return x


def _convolution(jax, x, W, stride=1, pad=0):
    return jax.lax.conv_general_dilated(x, W, (stride, stride), [(pad, pad)] * 2)


def _pool(jax, x, size, stride, pads=(0, 0)):
    window, strides = (1, 1, size, size), (1, 1, stride, stride)
    return jax.lax.reduce_window(
        x, -np.inf, jax.lax.max, window, strides, [(0, 0), (0, 0), pads, pads]
    )


def _classifier(jax, forward, params, optimizer, x, t):
    def loss_of(params, x, t):
        return _cross_entropy(jax, forward(params, x), t)

    return _step(jax, loss_of, params, optimizer, x, t)


def _mlp(jax, n, batch, optimizer):
    params = _filled((n, 784), (n,), (n, n), (n,), (10, n), (10,))

    def forward(params, x):
        return _dense(jax, params, x, jax.nn.relu)

    return _classifier(jax, forward, params, optimizer, *digits(batch, 784))


def mlp(jax):
    return _mlp(jax, 1000, 100, _adam(jax, 0.001))


def mlp_of_100_units(jax):
    return _mlp(jax, 100, 32, _sgd(0.01))


def lenet(jax):
    shapes = (20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,)

    def forward(params, x):
        for W, b in (params[:2], params[2:4]):
            x = _pool(jax, _convolution(jax, x, W) + b[:, None, None], 2, 2)
        return _dense(jax, params[4:], x.reshape(len(x), -1), jax.nn.relu)

    return _classifier(jax, forward, _filled(*shapes), _momentum_sgd(0.01), *digits(64, 1, 28, 28))


def resnet18(jax):
    """Returns a step of a ResNet-18, whose units have filters, gamma and beta."""
    relu = jax.nn.relu
    units, blocks, channels = [(3, 64, 7, 2)], [], 64
    for i in range(4):
        for j in range(2):
            width, stride = 64 << i, 2 if i and not j else 1
            has_side = stride > 1
            units += [(channels, width, 3, stride), (width, width, 3, 1)]
            units += [(channels, width, 1, stride)] * has_side
            blocks.append(has_side)
            channels = width
    shapes = [s for i, o, k, _ in units for s in ((o, i, k, k), (o,), (o,))]
    params = _filled(*shapes, (1000, 512), (1000,))

    def forward(params, x):
        remaining = iter(zip(units, params[0::3], params[1::3], params[2::3]))

        def unit(x):
            (_, _, k, stride), W, gamma, beta = next(remaining)
            y = _convolution(jax, x, W, stride, k // 2)
            mean = y.mean((0, 2, 3), keepdims=True)
            y = (y - mean) * jax.lax.rsqrt(y.var((0, 2, 3), keepdims=True) + 1e-5)
            return y * gamma[:, None, None] + beta[:, None, None]

        x = _pool(jax, relu(unit(x)), 3, 2, (1, 2))  # this window covers the whole image
        for has_side in blocks:
            y = unit(relu(unit(x)))
            x = relu(y + (unit(x) if has_side else x))
        return x.mean((2, 3)) @ params[-2].T + params[-1]

    return _classifier(jax, forward, params, _momentum_sgd(0.001), *digits(8, 3, 112, 112))


def language_model(jax):
    """Returns a step of a language model by a scan over the steps; the output layer gets all steps
    at once."""
    np_ = jax.numpy
    gates = [(650, 650), (650, 650), (650,), (650,)]  # each of the four gates has the same values
    params = _filled((10000, 650), *gates, *gates, (10000, 650), (10000,))
    params[1:9] = [np.concatenate([x] * 4) for x in params[1:9]]
    text = words(10000, 36, 20)

    def cell(W, U, b, c, state, x):
        h, s = state
        i, f, a, o = np_.split(x @ W.T + h @ U.T + b + c, 4, axis=1)
        s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * np_.tanh(a)
        return jax.nn.sigmoid(o) * np_.tanh(s), s

    def loss_of(params, states, text):
        def one(states, x):
            first = cell(*params[1:5], states[0], x)
            second = cell(*params[5:9], states[1], first[0])
            return (first, second), second[0]

        states, ys = jax.lax.scan(one, states, params[0][text[:-1]])
        y = ys @ params[9].T + params[10]
        return _cross_entropy(jax, y, text[1:]) * len(ys), states

    def train(params, states, text):
        (loss, states), grads = jax.value_and_grad(loss_of, has_aux=True)(params, states, text)
        norm = np_.sqrt(sum((g * g).sum() for g in grads))
        rate = np_.minimum(1, 5 / norm)
        return loss, [p - rate * g for p, g in zip(params, grads)], states

    train = jax.jit(train, donate_argnums=(0, 1))
    zeros = [np.zeros((20, 650), "f") for _ in range(4)]
    params, states, text = jax.device_put((params, (tuple(zeros[:2]), tuple(zeros[2:])), text))

    def step():
        nonlocal params, states
        loss, params, states = jax.block_until_ready(train(params, states, text))
        return float(loss)

    return step


def _wgan_gp(jax, critic, params, shape):
    real, made = np.random.RandomState(0).rand(2, 64, *shape).astype("f")

    def loss_of(params, real, made):
        gx = jax.grad(lambda x: critic(params, x).sum())((real + made) / 2)
        norms = jax.numpy.sqrt((gx.reshape(64, -1) ** 2).sum(1))
        penalty = 10 * ((norms - 1) ** 2).mean()
        return critic(params, made).mean() - critic(params, real).mean() + penalty

    return _step(jax, loss_of, params, _adam(jax, 1e-4, 0.5), real, made)


def _leaky_relu(jax):
    return lambda x: jax.nn.leaky_relu(x, 0.2)


def wgan_gp_mlp(jax):
    params = _filled((512, 784), (512,), (512, 512), (512,), (1, 512), (1,))
    return _wgan_gp(jax, lambda p, x: _dense(jax, p, x, _leaky_relu(jax)), params, (784,))


def wgan_gp_convolutions(jax):
    params = _filled((32, 1, 4, 4), (32,), (64, 32, 4, 4), (64,), (1, 64 * 49), (1,))

    def critic(params, x):
        for W, b in (params[:2], params[2:4]):
            x = _leaky_relu(jax)(_convolution(jax, x, W, 2, 1) + b[:, None, None])
        return x.reshape(len(x), -1) @ params[4].T + params[5]

    return _wgan_gp(jax, critic, params, (1, 28, 28))
