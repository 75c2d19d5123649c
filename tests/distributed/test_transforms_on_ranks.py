"""Tests that transformations within the update of a multi-node optimizer use the batch of all
ranks."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, transforms
from mpchain.distributed import functions as D
from mpchain.distributed.links import MultiNodeBatchNormalization

X = np.random.RandomState(0).normal(size=(7, 3))
T = np.arange(7) % 4
V = np.random.RandomState(1).normal(size=(7, 3))


def _model():
    model, random = mpchain.Chain(a=L.Linear(3, 5), b=L.Linear(5, 4)), np.random.RandomState(2)
    model.forward = lambda x: model.b(F.tanh(model.a(x)))
    for _, param in sorted(model.namedparams()):
        param.array = random.normal(size=param.shape)
    return model


def _derivatives(model, x, t, mean):
    """Returns the value, the gradient, and products with the Hessian and Gauss-Newton matrix, in a
    dict."""
    params = transforms.parameters(model)
    vs = {name: np.cos(np.arange(p.size)).reshape(p.shape) for name, p in params.items()}

    def predict(params):
        return mpchain.functional_call(model, params, x)

    def loss(params):
        y = predict(params)
        return F.softmax_cross_entropy(y, t) if mean is None else F.sqrt(mean(y**2))

    value, gradient = mpchain.value_and_grad(loss)(params)
    found = {"value": value, **{"g" + name: g for name, g in gradient.items()}}
    product = mpchain.hvp(loss, (params,), (vs,))
    found.update({"h" + name: h for name, h in product.items()})
    if mean is None:
        with mpchain.shared_counts():
            product = mpchain.ggn(
                predict, lambda y: F.softmax_cross_entropy(y, t), (params,), (vs,)
            )
        found.update({"n" + name: n for name, n in product.items()})
    return found


@pytest.mark.parametrize("of_batch", [False, True], ids=["mean over samples", "batch_mean"])
def test_products_are_those_of_the_whole_batch(comm, of_batch):
    mean = mpchain.batch_mean if of_batch else None
    model = _model()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    found = {}

    def step(x, t):
        with mpchain.shared_counts():
            results = _derivatives(model, x, t, mean)
        found.update({name: y.array for name, y in results.items()})
        return F.sum(results["h/a/W"] ** 2) + results["value"]

    optimizer.update(step, X[comm.rank :: comm.size], T[comm.rank :: comm.size])
    alone = _model()
    expected = _derivatives(alone, X, T, F.mean if of_batch else None)
    for name, y in expected.items():
        np.testing.assert_allclose(found[name], y.array, rtol=1e-12, atol=1e-13, err_msg=name)
    alone.cleargrads()
    (F.sum(expected["h/a/W"] ** 2) + expected["value"]).backward()
    for path, param in model.namedparams():
        other = dict(alone.namedparams())[path]
        np.testing.assert_allclose(param.array, other.array - 0.1 * other.grad, rtol=1e-10)


def test_a_tangent_in_the_loss(comm):
    model, alone = _model(), _model()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

    def loss(f, x, v):
        y, tangent = mpchain.jvp(f, (x,), (v,))
        return mpchain.batch_mean((y - tangent) ** 2)

    own = slice(comm.rank, None, comm.size)
    optimizer.update(lambda x, v: loss(model, x, v), X[own], V[own])
    optimizers.SGD(0.1).setup(alone).update(lambda: loss(alone, X, V))
    for path, param in model.namedparams():
        other = dict(alone.namedparams())[path]
        np.testing.assert_allclose(param.array, other.array, rtol=1e-11, atol=1e-14)


def test_through_a_collective(comm):
    x = np.arange(1.0, 3.0) + comm.rank

    def f(x):
        return mpchain.distributed.functions.allreduce(comm, x**2)

    _, tangent = mpchain.jvp(f, (x,), (np.ones(2),))
    expected = sum(2 * (np.arange(1.0, 3.0) + r) for r in range(comm.size))
    np.testing.assert_allclose(tangent.array, expected, rtol=1e-12)
    product = mpchain.hvp(lambda x: F.sum(f(x)), (x,), (np.ones(2),))
    np.testing.assert_allclose(product.array, np.full(2, 2.0 * comm.size), rtol=1e-12)


def test_vectors_of_parameters_are_refused_within_an_update(comm):
    model = _model()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    vector, unravel = transforms.ravel(model)

    def step(x):
        with pytest.raises(RuntimeError, match="unravel: within the update of a multi-node"):
            unravel(vector)
        return F.mean(model(x) ** 2)

    if comm.size > 1:
        optimizer.update(step, X)


def _normalized_tangents(model, x, v):
    params = transforms.parameters(model)
    vs = {name: np.cos(np.arange(p.size)).reshape(p.shape) for name, p in params.items()}

    def function(x, params):
        return F.tanh(mpchain.functional_call(model, params, x))

    y, tangent = mpchain.jvp(function, (x, params), (v, vs))
    with mpchain.no_backprop_mode():
        _, without_graph = mpchain.jvp(function, (x, params), (v, vs))
    np.testing.assert_allclose(without_graph.array, tangent.array, rtol=1e-12, atol=1e-14)
    return np.stack([y.array, tangent.array], axis=1)


def test_tangents_through_normalization_by_the_batch_of_all_ranks(comm):
    with mpchain.using_config("dtype", np.float64):
        model = MultiNodeBatchNormalization(3, comm)
        alone = L.BatchNormalization(3)
    bounds = np.linspace(0, len(X), comm.size + 1).astype(int)
    part = slice(*bounds[comm.rank : comm.rank + 2])
    found = comm.allgather_obj(_normalized_tangents(model, X[part], V[part]))
    expected = _normalized_tangents(alone, X, V)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-12, atol=1e-14)


def test_tangents_through_collectives(comm):
    def function(x):
        total = D.allreduce(comm, x**2)
        (first, *_) = D.allgather(comm, F.sin(x))
        return total * first

    x, v = X[0] + comm.rank, V[0] * (comm.rank + 1)
    xs, vs = comm.allgather_obj(x), comm.allgather_obj(v)
    y, tangent = mpchain.jvp(function, (x,), (v,))
    total, slope = sum(x**2 for x in xs), sum(2 * x * v for x, v in zip(xs, vs))
    np.testing.assert_allclose(y.array, total * np.sin(xs[0]), rtol=1e-12)
    expected = slope * np.sin(xs[0]) + total * np.cos(xs[0]) * vs[0]
    np.testing.assert_allclose(tangent.array, expected, rtol=1e-12)


def _lstm():
    lstm = L.NStepLSTM(1, 3, 4, 0.0)
    model = mpchain.Chain(lstm=lstm)
    model.forward = lambda x: F.stack([h[-1] for h in lstm(None, None, [*x])[2]])
    return model


LINKS = {
    "attention": (lambda: L.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (5, 4)),
    "convolution": (lambda: mpchain.Sequential(L.Convolution2D(2, 3, 3), F.tanh), (2, 6, 6)),
    "NStepLSTM": (_lstm, (5, 3)),
}


@pytest.mark.parametrize("name", LINKS)
def test_products_of_links_are_those_of_the_whole_batch(comm, name):
    make, shape = LINKS[name]
    x, found = np.random.RandomState(3).normal(size=(7, *shape)), {}

    def made():
        with mpchain.using_config("dtype", np.float64):
            model = make()
        random = np.random.RandomState(4)
        for _, param in sorted(model.namedparams()):
            param.array = random.normal(0, 0.5, param.shape)
        return model

    def products(model, x):
        params = transforms.parameters(model)
        vs = {key: np.cos(np.arange(p.size)).reshape(p.shape) for key, p in params.items()}

        def loss(params):
            return F.mean(mpchain.functional_call(model, params, x) ** 2)

        value, tangent = mpchain.jvp(loss, (params,), (vs,))
        hs = mpchain.hvp(loss, (params,), (vs,))
        return value, {"tangent": tangent, **hs}

    def step(x):
        value, results = products(model, x)
        found.update({key: y.array for key, y in results.items()})
        # The tangent is the mean over the rank's own samples.
        found["tangent"] = found["tangent"] * len(x) / 7
        return value

    model, own = made(), slice(*comm.share_of(7))
    optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    with comm.batch(7, mine=own):
        optimizer.update(step, x[own])
    found["tangent"] = sum(comm.allgather_obj(found["tangent"]))
    _, expected = products(made(), x)
    for key, y in expected.items():
        limits = {"rtol": 1e-12, "atol": 1e-12 * max(1e-2, abs(y.array).max())}
        np.testing.assert_allclose(found[key], y.array, **limits, err_msg=key)
