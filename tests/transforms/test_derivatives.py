"""Tests the errors, the graphs and the captured replays of transformations."""

import re
import typing

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, transforms

X = np.array([0.5, 2.0])


def _model():
    model = mpchain.Chain(a=L.Linear(3, 4), b=L.Linear(4, 1))
    model.forward = lambda x: model.b(F.tanh(model.a(x)))
    return model


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: mpchain.jvp(F.exp, (X,), (np.ones(3),)),
            ValueError,
            "jvp: tangents[0] must have the shape of primals[0]: (2,), not (3,)",
        ),
        (
            lambda: mpchain.hvp(lambda x: F.sum(x**2), (X,), (np.ones(2, "f"),)),
            TypeError,
            "hvp: tangents[0] must have the dtype of primals[0]: float64, not float32",
        ),
        (
            lambda: mpchain.jvp(F.exp, ({"a": X},), ({"b": X},)),
            ValueError,
            "jvp: tangents must have the structure of primals: leaves [\"[0]['a']\"], not",
        ),
        (
            lambda: mpchain.vjp(F.exp, np.array([1, 2])),
            TypeError,
            "vjp: primals[0] must be floating point to have a derivative, but its dtype is int64",
        ),
        (
            lambda: mpchain.vjp(F.exp, 1.0),
            TypeError,
            "vjp: primals[0] must be a Variable or array, not float",
        ),
        (
            lambda: mpchain.vjp(F.exp, X)[1](np.ones(3)),
            ValueError,
            "vjp: cotangents must have the shape of the result: (2,), not (3,)",
        ),
        (lambda: mpchain.vjp(lambda: 0), ValueError, "vjp: primals must not be empty"),
        (
            lambda: mpchain.jvp(F.exp, X, X),
            TypeError,
            "jvp: primals must be a tuple with an element for each argument of the function, not "
            "ndarray",
        ),
        (
            lambda: mpchain.value_and_grad(lambda x: x * 2)(X),
            ValueError,
            "value_and_grad: the function must return a Variable of shape (), not (2,)",
        ),
        (
            lambda: mpchain.jvp(lambda x: x.array, (X,), (X,)),
            TypeError,
            "jvp: the function must return Variables, or trees of them, but result is a ndarray",
        ),
        (
            lambda: mpchain.jvp(lambda x: F.exp(x.array), (X,), (X,)),
            ValueError,
            "jvp: result of the function does not depend on the arguments by any graph: the",
        ),
        (
            lambda: mpchain.vjp(lambda x: (F.exp(x), F.exp(x.array)), X),
            ValueError,
            "vjp: result[1] of the function does not depend on the arguments by any graph",
        ),
        (
            lambda: mpchain.jacobian(F.exp, mode="both"),
            ValueError,
            "jacobian: mode must be 'reverse', 'forward' or None, not 'both'",
        ),
        (
            lambda: mpchain.jacobian(F.exp, argnums=1)(X),
            ValueError,
            "jacobian: argnums must be positions of the 1 arguments, but contain 1",
        ),
        (
            lambda: mpchain.functional_call(L.Linear(3, 2), {"/V": X}, X),
            KeyError,
            "functional_call: Linear has no parameter '/V'; it has /W, /b",
        ),
        (
            lambda: mpchain.functional_call(F.exp, {}, X),
            TypeError,
            "functional_call: the function must be a Link or a method of a Link, not function",
        ),
        (
            lambda: transforms.parameters(L.Linear(2)),
            ValueError,
            "parameters: /W is not initialized",
        ),
        (
            lambda: transforms.ravel([X, X.astype("f")]),
            TypeError,
            "ravel: the leaves must have one dtype, not float32, float64",
        ),
        (
            lambda: transforms.ravel([X])[1](np.ones(3)),
            ValueError,
            "unravel: the vector must be of shape (2,), not (3,)",
        ),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize("replaces", [False, True])
def test_a_function_that_changes_parameters(replaces):
    class Changing(L.Linear):
        def forward(self, x):
            y = super().forward(x)
            if replaces:
                self.W.array = self.W.array + 1
            else:
                self.W.array[...] += 1
            return y

    model = Changing(3, 2)
    params = {name: p.array.copy() for name, p in model.namedparams()}
    before = params["/W"].copy()
    x = np.ones((1, 3), np.float32)
    with pytest.raises(RuntimeError, match="Changing changes its parameter /W when it is called"):
        mpchain.functional_call(model, params, x)
    np.testing.assert_array_equal(params["/W"], before)
    np.testing.assert_array_equal(model.W.array, before)


def test_graphs_are_kept_or_dropped():
    x = mpchain.Variable(X)
    _, tangent = mpchain.jvp(lambda x: x**3, (x,), (np.ones(2),))
    F.sum(tangent).backward()
    np.testing.assert_allclose(x.grad, 6 * X)
    with mpchain.no_backprop_mode():
        y, tangent = mpchain.jvp(lambda x: x**3, (x,), (np.ones(2),))
        product = mpchain.hvp(lambda x: F.sum(x**3), (X,), (np.ones(2),))
    assert y.creator is None and tangent.creator is None and product.creator is None
    np.testing.assert_allclose(product.array, 6 * X)


def test_a_closed_over_parameter_gets_the_gradient_of_a_tangent():
    w = mpchain.Parameter(np.array([2.0, 3.0]))
    _, tangent = mpchain.jvp(lambda x: w**2 * x, (X,), (np.ones(2),))
    F.sum(tangent).backward()
    np.testing.assert_allclose(w.grad, 2 * w.array)


def test_derivatives_that_vanish_are_zeros():
    np.testing.assert_array_equal(mpchain.hvp(lambda x: F.sum(3 * x), (X,), (X,)).array, [0, 0])
    np.testing.assert_array_equal(
        mpchain.hessian(lambda x: F.sum(3 * x))(X).array, np.zeros((2, 2))
    )
    gx, gy = mpchain.vjp(lambda x, y: 2 * x, X, X)[1](X)
    np.testing.assert_array_equal([gx.array, gy.array], [2 * X, 0 * X])
    hessian = mpchain.hessian(lambda x, y: F.sum(x * y), argnums=(0, 1))(X, X)
    np.testing.assert_array_equal(hessian[0][1].array, np.eye(2))
    np.testing.assert_array_equal(hessian[0][0].array, np.zeros((2, 2)))


def test_trees_come_back_in_their_structure():
    jacobian = mpchain.jacobian(lambda p: [p["a"] ** 2, p["b"][0] * 3])({"a": X, "b": (X,)})
    np.testing.assert_array_equal(jacobian[0]["a"].array, np.diag(2 * X))
    np.testing.assert_array_equal(jacobian[1]["b"][0].array, 3 * np.eye(2))
    np.testing.assert_array_equal(jacobian[1]["a"].array, np.zeros((2, 2)))


def test_named_tuples_keep_their_type():
    class State(typing.NamedTuple):
        place: object
        speeds: object

    state = State(X, [2 * X])
    y, tangent = mpchain.jvp(lambda s: State(s.place**2, [s.speeds[0]]), (state,), (state,))
    assert type(y) is type(tangent) is State
    np.testing.assert_array_equal(tangent.place.array, 2 * X * X)
    np.testing.assert_array_equal(tangent.speeds[0].array, 2 * X)


@pytest.mark.annex("captured")
def test_captured_products_equal_eager_ones():
    np.random.seed(0)
    model = _model()
    params = transforms.parameters(model)
    vs = {name: np.ones_like(p.array) for name, p in params.items()}

    def product(x):
        def loss(params):
            return F.sum(mpchain.functional_call(model, params, x) ** 2)

        return mpchain.hvp(loss, (params,), (vs,))["/a/W"].array

    captured, random = mpchain.capture(product), np.random.RandomState(1)
    for _ in range(6):
        x = random.normal(size=(5, 3)).astype("f")
        np.testing.assert_allclose(captured(x), product(x), rtol=1e-6)
    assert captured.reason is None


def _weights_of_tangent_training(wrap):
    np.random.seed(0)
    model = _model()
    for param in model.params():
        param.array[...] = np.random.normal(size=param.shape)
    optimizer = optimizers.SGD(0.01).setup(model)

    def loss(x, v):
        y, tangent = mpchain.jvp(model, (x,), (v,))
        return F.mean(y**2) + F.mean(tangent**2)

    step, random = wrap(lambda x, v: optimizer.update(loss, x, v)), np.random.RandomState(1)
    for _ in range(6):
        step(*random.normal(size=(2, 5, 3)).astype("f"))
    assert getattr(step, "reason", None) is None
    return model.a.W.array


@pytest.mark.annex("captured")
def test_a_captured_update_with_a_tangent_equals_the_eager_one():
    captured, eager = map(_weights_of_tangent_training, (mpchain.capture, lambda step: step))
    np.testing.assert_allclose(captured, eager, rtol=1e-6)


class _Counting(mpchain.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(3, 3))
        self.add_persistent("n", np.zeros(3, np.float32))

    def forward(self, x):
        self.n += 1
        return self.a(x) * self.n


@pytest.mark.annex("captured")
@pytest.mark.parametrize(
    "make", [lambda: L.BatchRenormalization(3, 3, 5), lambda: L.BatchNormalization(3), _Counting]
)
def test_captured_products_follow_the_state_of_links(make):
    model = mpchain.Sequential(L.Linear(3, 3), make())
    params = transforms.parameters(model)
    vs = {name: np.ones_like(p.array) for name, p in params.items()}

    def product(x):
        def loss(params):
            return F.sum(F.tanh(mpchain.functional_call(model, params, x)) ** 2)

        return mpchain.hvp(loss, (params,), (vs,))["/0/W"].array

    captured, random = mpchain.capture(product), np.random.RandomState(1)
    arrays = {"avg_mean": 0.3, "avg_var": 1, "n": 1}
    for i in range(7):
        x = random.normal(size=(5, 3)).astype("f")
        for link in model.links():
            for name, value in arrays.items():
                if hasattr(link, name):
                    getattr(link, name)[...] = value * (i + 1)
        expected = product(x)
        np.testing.assert_allclose(captured(x), expected, rtol=1e-4, atol=1e-5)


class _Writing(L.Linear):
    """A link that writes into its weights in each call from the third on, in one of several
    ways."""

    def __init__(self, write):
        super().__init__(200, 200)
        self.write = write

    def forward(self, x):
        y = super().forward(x)
        self.calls.append(1)
        if len(self.calls) >= 3:
            self.write(self)
        return y


def _update(link):
    for _ in range(3):
        link.W.grad = np.ones_like(link.W.array)
        link.b.grad = np.ones_like(link.b.array)
        link.optimizer.update()


@pytest.mark.parametrize(
    "write",
    [
        lambda link: np.multiply(link.W.array, 0.5, out=link.W.array),
        lambda link: link.W.array.T.fill(0),
        lambda link: link.copyparams(L.Linear(200, 200)),
        _update,
    ],
)
def test_a_parameter_that_changes_in_a_later_call(write):
    model = _Writing(write)
    model.calls, model.optimizer = [], optimizers.Adam().setup(model)
    before, x = [p.array.copy() for p in model.params()], np.ones((1, 200), np.float32)
    params = transforms.parameters(model)
    for _ in range(2):
        mpchain.functional_call(model, params, x)
    with pytest.raises(RuntimeError, match="_Writing changes its parameter /"):
        mpchain.functional_call(model, params, x)
    for param, array in zip(model.params(), before, strict=True):
        np.testing.assert_array_equal(param.array, array)
    model.W.array[...] = 1  # the array may be written again


def test_an_error_about_another_read_only_array_is_told():
    model, other = L.Linear(3, 2), np.broadcast_to(np.zeros(1), 3)
    model.forward = lambda x: other.fill(1)
    with pytest.raises(ValueError, match="read-only"):
        mpchain.functional_call(model, {}, X)


@pytest.mark.parametrize("share", [lambda W: W.T, lambda W: W[:]])
def test_parameters_that_share_memory_can_be_written_afterwards(share):
    model = mpchain.Chain(a=L.Linear(3, 3), b=L.Linear(3, 3))
    model.b.W.array = share(model.a.W.array)
    model.forward = lambda x: model.b(model.a(x))
    mpchain.functional_call(model, transforms.parameters(model), np.ones((1, 3), np.float32))
    model.a.W.array[...] = 0
    model.b.W.array[...] = 0
