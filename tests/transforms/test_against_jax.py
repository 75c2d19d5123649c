"""Tests transformations of 41 functions against JAX in float64, and of links against JAX and finite
differences."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import transforms
from mpchain.transforms import trees

UNARY = """
    exp log sqrt sin cos tan tanh arcsin arccos arctan sinh cosh sigmoid softplus relu elu gelu
    square expm1 log1p erf erfc silu reciprocal rsqrt log_softmax softmax cumsum
""".split()
X = np.array([[0.31, 0.62, 0.17], [0.45, 0.83, 0.54]])
V = np.array([[0.7, -1.2, 0.4], [0.9, 0.3, -0.8]])
W = np.array([[0.2, -0.5], [0.7, 0.1], [-0.3, 0.6]])


def _unary(name):
    ours = {"log_softmax": lambda x: F.log_softmax(x, axis=1)}
    ours["softmax"] = lambda x: F.softmax(x, axis=1)
    ours["cumsum"] = lambda x: F.cumsum(x, axis=1)
    ours["softplus"], ours["silu"] = F.softplus, lambda x: x * F.sigmoid(x)
    ours["gelu"] = lambda x: 0.5 * x * (1 + F.erf(x / np.sqrt(2.0)))
    ours["reciprocal"] = lambda x: 1 / x

    def theirs(jax, x):
        jnp, nn = jax.numpy, jax.nn
        if name == "reciprocal":
            return 1 / x
        if name in ("log_softmax", "softmax"):
            return getattr(nn, name)(x, axis=1)
        if name == "cumsum":
            return jnp.cumsum(x, axis=1)
        if name == "gelu":
            return nn.gelu(x, approximate=False)
        for place in (nn, jnp, jax.scipy.special, jax.lax):
            if hasattr(place, name):
                return getattr(place, name)(x)
        raise AssertionError(name)

    return ours.get(name) or getattr(F, name), theirs


def _gradient(grad, f, total):
    return grad(lambda x: total(f(x)))


COMPOSITIONS = {
    "matmul": (lambda x: F.matmul(x, W), lambda jax, x: x @ W),
    "mlp": (
        lambda x: F.matmul(F.tanh(F.matmul(x, W)), W.T),
        lambda jax, x: jax.numpy.tanh(x @ W) @ W.T,
    ),
    "norm": (
        lambda x: F.sqrt(F.sum(x**2, axis=1)),
        lambda jax, x: jax.numpy.sqrt((x**2).sum(axis=1)),
    ),
    "logsumexp": (
        lambda x: F.logsumexp(x, axis=1),
        lambda jax, x: jax.scipy.special.logsumexp(x, axis=1),
    ),
    "transpose": (lambda x: F.exp(x.T) * 2, lambda jax, x: jax.numpy.exp(x.T) * 2),
    "index": (lambda x: x[:, 1:] ** 3, lambda jax, x: x[:, 1:] ** 3),
    "power": (lambda x: x ** (x + 1), lambda jax, x: x ** (x + 1)),
    "inverse": (
        lambda x: F.inv(F.matmul(x, x.T) + np.eye(2)),
        lambda jax, x: jax.numpy.linalg.inv(x @ x.T + np.eye(2)),
    ),
    "grad(jvp)": (
        lambda x: transforms.grad(
            lambda x: F.sum(mpchain.jvp(lambda x: F.exp(x) * F.sin(x), (x,), (V,))[1])
        )(x),
        lambda jax, x: jax.grad(
            lambda x: jax.jvp(
                lambda x: jax.numpy.exp(x) * jax.numpy.sin(x), (x,), (jax.numpy.asarray(V),)
            )[1].sum()
        )(x),
    ),
    "jvp(grad)": (
        lambda x: mpchain.jvp(transforms.grad(lambda x: F.sum(x**4)), (x,), (V,))[1],
        lambda jax, x: jax.jvp(jax.grad(lambda x: (x**4).sum()), (x,), (jax.numpy.asarray(V),))[1],
    ),
    "hvp of hvp": (
        lambda x: mpchain.hvp(
            lambda x: F.sum(mpchain.hvp(lambda x: F.sum(F.exp(x * x)), (x,), (V,))), (x,), (V,)
        ),
        lambda jax, x: _jax_hvp(
            jax, lambda x: _jax_hvp(jax, lambda x: jax.numpy.exp(x * x).sum(), x).sum(), x
        ),
    ),
    "jacobian(jvp)": (
        lambda x: mpchain.jacobian(lambda x: mpchain.jvp(F.tanh, (x,), (V,))[1])(x),
        lambda jax, x: jax.jacobian(
            lambda x: jax.jvp(jax.numpy.tanh, (x,), (jax.numpy.asarray(V),))[1]
        )(x),
    ),
    "perturbation confusion": (
        lambda x: mpchain.jvp(
            lambda x: x * mpchain.jvp(lambda y: x * y, (x,), (V,))[1], (x,), (V,)
        )[1],
        lambda jax, x: jax.jvp(
            lambda x: x * jax.jvp(lambda y: x * y, (x,), (jax.numpy.asarray(V),))[1],
            (x,),
            (jax.numpy.asarray(V),),
        )[1],
    ),
}


def _jax_hvp(jax, f, x):
    return jax.jvp(jax.grad(f), (x,), (jax.numpy.asarray(V),))[1]


FUNCTIONS = {**{name: _unary(name) for name in UNARY}, **COMPOSITIONS}


@pytest.fixture(scope="module")
def jax():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def _close(ours, theirs):
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(
        ours.array, theirs, rtol=1e-10, atol=1e-10 * max(abs(theirs).max(), 1e-3)
    )


def test_there_are_40_functions():
    assert len(FUNCTIONS) >= 40


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_jax(jax, name):
    ours, function = FUNCTIONS[name]

    def theirs(x):
        return function(jax, x)

    x, v = jax.numpy.asarray(X), jax.numpy.asarray(V)
    y, pull = mpchain.vjp(ours, X)
    their_y, their_pull = jax.vjp(theirs, x)
    _close(y, their_y)
    weights = np.cos(np.arange(y.size, dtype=float)).reshape(y.shape)
    _close(pull(weights)[0], their_pull(jax.numpy.asarray(weights))[0])
    _close(mpchain.jvp(ours, (X,), (V,))[1], jax.jvp(theirs, (x,), (v,))[1])
    _close(mpchain.linearize(ours, X)[1](V), jax.jvp(theirs, (x,), (v,))[1])
    expected = jax.jacobian(theirs)(x)
    _close(mpchain.jacobian(ours, mode="reverse")(X), expected)
    _close(mpchain.jacobian(ours, mode="forward")(X), expected)

    def ours_of_x(x):
        return F.sum(ours(x) * weights)

    def theirs_of_x(x):
        return (theirs(x) * weights).sum()

    _close(mpchain.value_and_grad(ours_of_x)(X)[1], jax.grad(theirs_of_x)(x))
    _close(mpchain.hvp(ours_of_x, (X,), (V,)), _jax_hvp(jax, theirs_of_x, x))
    _close(mpchain.hessian(ours_of_x)(X), jax.hessian(theirs_of_x)(x))


def test_ggn_equals_jax(jax):
    jnp = jax.numpy
    t = np.array([1, 0])

    def loss(y):
        return F.softmax_cross_entropy(y, t)

    def their_loss(y):
        return -jax.nn.log_softmax(y)[jnp.arange(2), t].mean()

    ours = mpchain.ggn(lambda x: F.matmul(F.tanh(x), W), loss, (X,), (V,))
    x, v = jnp.asarray(X), jnp.asarray(V)
    y, ty = jax.jvp(lambda x: jnp.tanh(x) @ W, (x,), (v,))
    hty = jax.jvp(jax.grad(their_loss), (y,), (ty,))[1]
    _close(ours, jax.vjp(lambda x: jnp.tanh(x) @ W, x)[1](hty)[0])


class Attention(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.q, self.k, self.v = L.Linear(4, 4), L.Linear(4, 4), L.Linear(4, 4)

    def forward(self, x):
        q, k, v = (F.reshape(f(F.reshape(x, (6, 4))), (2, 3, 4)) for f in (self.q, self.k, self.v))
        return F.matmul(F.softmax(F.matmul(q, k, transb=True), axis=2), v)


class Recurrent(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(1, 4, 3, 0.0)

    def forward(self, x):
        return F.concat(self.lstm(None, None, [x[0], x[1]])[2], axis=0)


LINKS = {
    "BatchNormalization": lambda: mpchain.Sequential(L.BatchNormalization(4, axis=(0, 1)), F.tanh),
    "attention": Attention,
    "convolution": lambda: mpchain.Sequential(
        lambda x: F.reshape(x, (2, 1, 3, 4)), L.Convolution2D(1, 2, 2), F.sigmoid
    ),
    "NStepLSTM": Recurrent,
}


def _link(name):
    mpchain.config.rng = None
    np.random.seed(3)
    with mpchain.using_config("dtype", np.float64):
        model = LINKS[name]()
    random = np.random.RandomState(0)
    for param in model.params():
        param.array = random.normal(size=param.shape) * 0.5
    x = random.normal(size=(2, 3, 4))

    def loss(params):
        y = mpchain.functional_call(model, params, x)
        return F.sum(y**2 * np.cos(np.arange(y.size)).reshape(y.shape))

    arrays = {name: param.array for name, param in transforms.parameters(model).items()}
    return model, loss, arrays, {n: random.normal(size=a.shape) for n, a in arrays.items()}


def _moved(arrays, tangents, h):
    return {name: arrays[name] + h * tangents[name] for name in arrays}


def _dot(a, b):
    return sum(float((getattr(a[n], "array", a[n]) * b[n]).sum()) for n in a)


@pytest.mark.parametrize("name", LINKS)
def test_links_agree_with_central_differences_and_stay_unchanged(name):
    model, loss, arrays, v = _link(name)
    before = {path: p.array.copy() for path, p in model.namedparams()}
    means = [b.avg_mean.copy() for b in model.links() if isinstance(b, L.BatchNormalization)]
    value_and_grad = mpchain.value_and_grad(loss)
    _, gradient = value_and_grad(arrays)
    _, tangent = mpchain.jvp(loss, (arrays,), (v,))
    product = mpchain.hvp(loss, (arrays,), (v,))
    h = 1e-4
    (f2, g2), (f1, g1) = (value_and_grad(_moved(arrays, v, e)) for e in (h, -h))
    slope = float(f2.array - f1.array) / (2 * h)
    assert _dot(gradient, v) == pytest.approx(slope, rel=1e-5)
    assert float(tangent.array) == pytest.approx(_dot(gradient, v), rel=1e-10)
    for path in arrays:
        curve = (g2[path].array - g1[path].array) / (2 * h)
        scale = max(abs(curve).max(), 1e-3)
        np.testing.assert_allclose(product[path].array, curve, rtol=1e-5, atol=1e-5 * scale)
    for path, param in model.namedparams():
        np.testing.assert_array_equal(param.array, before[path])
        assert param.grad is None and param.creator is None
    after = [b.avg_mean for b in model.links() if isinstance(b, L.BatchNormalization)]
    np.testing.assert_array_equal(after, means)


@pytest.mark.parametrize("name", LINKS)
def test_the_vector_of_a_links_parameters(name):
    _, loss, arrays, v = _link(name)
    vector, unravel = transforms.ravel(arrays)
    direction, _ = transforms.ravel(v)
    product = mpchain.hvp(lambda w: loss(unravel(w)), (vector,), (direction,))
    expected, _ = transforms.ravel(mpchain.hvp(loss, (arrays,), (v,)))
    np.testing.assert_allclose(product.array, expected.array, rtol=1e-12, atol=1e-12)
    assert [place for place, _ in trees.leaves(unravel(vector))] == [f"[{n!r}]" for n in arrays]


def _lstm_in_jax(jax, p, xs):
    """Computes one layer; the weights are of the gates i, f, a and o, for inputs, then for
    states."""
    nn, jnp = jax.nn, jax.numpy
    outputs = []
    for sequence in xs:
        h = c = jnp.zeros(3)
        for x in sequence:
            i, f, a, o = (
                p[f"/lstm/0/w{k}"] @ x + p[f"/lstm/0/b{k}"]
                + p[f"/lstm/0/w{k + 4}"] @ h + p[f"/lstm/0/b{k + 4}"]
                for k in range(4)
            )  # fmt: skip
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(a)
            h = nn.sigmoid(o) * jnp.tanh(c)
            outputs.append(h)
    return jnp.stack(outputs)


def _attention_in_jax(jax, p, x):
    q, k, v = (x @ p[f"/{name}/W"].T + p[f"/{name}/b"] for name in "qkv")
    return jax.nn.softmax(q @ k.transpose(0, 2, 1), axis=2) @ v


def _convolution_in_jax(jax, p, x):
    y = jax.lax.conv(x.reshape(2, 1, 3, 4), p["/0/W"], (1, 1), "VALID")
    return jax.nn.sigmoid(y + p["/0/b"][:, None, None])


def _normalization_in_jax(jax, p, x):
    y = (x - x.mean((0, 1))) / jax.numpy.sqrt(x.var((0, 1)) + 2e-5)
    return jax.numpy.tanh(y * p["/0/gamma"] + p["/0/beta"])


LINKS_IN_JAX = {
    "BatchNormalization": _normalization_in_jax,
    "attention": _attention_in_jax,
    "convolution": _convolution_in_jax,
    "NStepLSTM": _lstm_in_jax,
}


@pytest.mark.parametrize("name", LINKS)
def test_links_equal_jax(jax, name):
    model, loss, arrays, v = _link(name)
    x, jnp = np.random.RandomState(0), jax.numpy
    for param in model.params():  # the inputs are drawn after the parameters
        x.normal(size=param.shape)
    x = x.normal(size=(2, 3, 4))

    def theirs(params):
        y = LINKS_IN_JAX[name](jax, params, jnp.asarray(x))
        return (y**2 * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()

    value, gradient = mpchain.value_and_grad(loss)(arrays)
    their_value, their_gradient = jax.value_and_grad(theirs)(arrays)
    _close(value, their_value)
    _close(mpchain.jvp(loss, (arrays,), (v,))[1], jax.jvp(theirs, (arrays,), (v,))[1])
    product = mpchain.hvp(loss, (arrays,), (v,))
    their_product = jax.jvp(jax.grad(theirs), (arrays,), (v,))[1]
    for path in arrays:
        _close(gradient[path], their_gradient[path])
        _close(product[path], their_product[path])


@pytest.mark.annex("captured")
@pytest.mark.parametrize("name", LINKS)
def test_captured_products_of_links_equal_eager_ones(name):
    _, loss, arrays, v = _link(name)

    def products(scale):
        moved = {path: array * scale for path, array in arrays.items()}
        slope = mpchain.jvp(loss, (moved,), (v,))[1]
        product = mpchain.hvp(loss, (moved,), (v,))
        return [slope.array, *(product[path].array for path in arrays)]

    captured = mpchain.capture(products)
    for k in range(5):
        scale = np.array(1 + 0.1 * k)
        for found, expected in zip(captured(scale), products(scale), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    assert captured.reason is None
