"""Tests F.forget, which recomputes in backward, for derivatives of any order."""

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Parameter, Variable
from mpchain.functions.recompute import forget, remembered
from tests.functions.harness import check_orders

pytestmark = pytest.mark.slow


def _plain(func, *xs):
    return func(*xs)


@pytest.fixture
def arrays():
    random = np.random.RandomState(0)
    return [random.uniform(-1, 1, shape) for shape in [(3, 4), (4, 4), (4, 4)]]


def _derivatives(function, arrays, directions):
    """Returns [f, D f, D D f, ...] with D f = <grad f, v>, with a direction v per input and
    order."""
    xs = [Variable(x) for x in arrays]
    values = [function(*xs)]
    for vs in directions:
        gradients = mpchain.grad([values[-1]], xs, enable_double_backprop=True)
        values.append(F.add(*(F.sum(g * v) for g, v in zip(gradients, vs) if g is not None)))
    return [float(value.array) for value in values]


def _mlp(call):
    """Returns a network of calls whose functions use parameters, and variables that were computed
    before."""

    def function(x, W1, W2):
        h = call(lambda x: F.tanh(F.matmul(x, W1)), x)
        h2 = call(lambda a: F.sigmoid(F.matmul(a, W2)) * h, h)
        return call(lambda a, b: F.sum(F.tanh(a * a + b)), h2, x)

    return function


def _shared_weight(call):
    """Returns a function whose first call has two arguments, one of which depends on the other and
    on the parameter of the call."""

    def function(x, W, V):
        h = F.tanh(F.matmul(x, W))
        a, b = call(lambda x, h: (F.matmul(h, W) * x, F.exp(h) + V[:3]), x, h)
        return call(lambda a, c, b: F.sum(a * F.sigmoid(c) * b + h * h), a, a, b)

    return function


def _nested(call):
    def function(x, W, V):
        def inner(h):
            return F.tanh(F.matmul(h, V))

        def outer(x):
            return F.sum(call(inner, F.sigmoid(F.matmul(x, W))) ** 2)

        return call(outer, x)

    return function


def _penalty(call):
    """Uses a function whose own computation differentiates a graph that it makes."""

    def function(x, W, V):
        def penalty(x):
            y = F.tanh(F.matmul(F.tanh(F.matmul(x, W)), V))
            (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
            return F.sum((F.sum(gx * gx, axis=1) - 1) ** 2)

        return call(penalty, x)

    return function


def _outer_derivative(call):
    """Uses a function that differentiates a graph that existed before."""

    def function(x, W, V):
        y = F.tanh(F.matmul(F.tanh(F.matmul(x, W)), V))

        def penalty(h):
            (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
            return F.sum(gx * gx * h)

        return call(penalty, F.exp(x))

    return function


class SinCos(mpchain.FunctionNode):
    def forward(self, inputs):
        self.retain_outputs((0, 1))
        return np.sin(inputs[0]), np.cos(inputs[0])

    def backward(self, target_input_indexes, grad_outputs):
        sin, cos = self.get_retained_outputs()
        gsin, gcos = (0 * sin if g is None else g for g in grad_outputs)
        return (cos * gsin - sin * gcos,)


def _remade_outputs(call):
    """Uses a function whose output variable is deleted; each derivative computes it again."""

    def function(x, W, V):
        sin = SinCos().apply((F.matmul(x, W),))[0]

        def penalty(h):
            options = {"enable_double_backprop": True}
            (gx1,), (gx2,) = (mpchain.grad([sin], [x], **options) for _ in range(2))
            return F.sum(gx1 * F.exp(gx2) * h)

        return call(penalty, F.matmul(F.exp(x), V))

    return function


GRAPHS = [_mlp, _shared_weight, _nested, _penalty, _outer_derivative, _remade_outputs]


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_order_is_what_it_is_without(graph, arrays):
    random = np.random.RandomState(1)
    directions = [[random.uniform(-1, 1, x.shape) for x in arrays] for _ in range(4)]
    expected = _derivatives(graph(_plain), arrays, directions)
    actual = _derivatives(graph(forget), arrays, directions)
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("graph", [_mlp, _shared_weight])
def test_orders_against_finite_differences(graph, arrays, device):
    check_orders(graph(forget), arrays, orders=3, device=device)


@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_in_the_leaves(graph, arrays):
    leaves = [[Parameter(x.copy()) for x in arrays] for _ in range(2)]
    for call, xs in zip((_plain, forget), leaves):
        graph(call)(*xs).backward()
    for x, y in zip(*leaves):
        np.testing.assert_allclose(y.grad, x.grad, rtol=1e-12)


def test_penalty_training_step(arrays):
    """As in a gradient penalty, backward differentiates a gradient."""
    gradients = []
    for call in (_plain, forget):
        x, W, V = (Variable(a) for a in arrays)
        y = _mlp(call)(x, W, V)
        (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
        F.sum(gx**2).backward()
        gradients.append([W.grad, V.grad, x.grad])
    for expected, actual in zip(*gradients):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_gradients_of_what_the_function_uses_are_partial(arrays):
    x = Variable(arrays[0])
    h = F.tanh(x)
    y = F.sum(forget(lambda x: x * h, x))
    gx, gh = mpchain.grad([y], [x, h])
    np.testing.assert_allclose(gh.array, x.array)
    np.testing.assert_allclose(gx.array, h.array + x.array * (1 - h.array**2))


def test_one_argument_twice():
    x = Variable(np.array([2.0, 3.0]))
    y = forget(lambda a, b: a * a * b, x, x)
    y.grad = np.ones(2)
    y.backward()
    np.testing.assert_allclose(x.grad, 3 * x.array**2)


def test_what_is_kept(arrays):
    inside = []

    def func(x):
        h = F.tanh(x)
        inside.append(weakref.ref(h.node))
        return F.sum(F.exp(h))

    gc.disable()
    try:
        x = Variable(arrays[0])
        y = forget(func, x)
        assert inside[0]() is None
        y.backward()
        (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
        assert len(inside) == 3 and [reference() for reference in inside] == [None] * 3
        node = weakref.ref(y.creator_node)
        del y, gx, x
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_memory(order):
    """There are 12 calls of 12 functions each, and the results of only one call exist at a time."""

    def block(x):
        for _ in range(12):
            x = F.tanh(x)
        return x

    def peak(call):
        x = y = Variable(np.ones(10_000))
        tracemalloc.start()
        for _ in range(12):
            y = call(block, y)
        for _ in range(order - 1):
            (y,) = mpchain.grad([F.sum(y)], [x], enable_double_backprop=True)
        F.sum(y).backward()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(_plain)  # the first call may import numba, whose memory is traced, too
    assert peak(forget) < 0.5 * peak(_plain)


def test_the_graph_is_one_node(arrays):
    x = Variable(arrays[0])
    y = forget(lambda x: F.tanh(F.tanh(x)), x)
    assert y.creator.label == "Forget" and [n.creator for n in y.creator.inputs] == [None]
    assert y.rank == 1


def test_forms_of_results(arrays):
    x = Variable(arrays[0])
    assert isinstance(forget(lambda x: x * 2, x), Variable)
    assert isinstance(forget(lambda x: (x * 2,), x), Variable)
    outputs = forget(lambda x: (x * 2, x, x + 1), x)
    assert type(outputs) is tuple and len(outputs) == 3
    F.sum(outputs[1] * outputs[2]).backward()
    np.testing.assert_allclose(x.grad, 2 * x.array + 1)


@pytest.mark.parametrize("mode", [mpchain.no_backprop_mode, mpchain.force_backprop_mode])
@pytest.mark.parametrize(
    "value, message",
    [
        (np.ones(2), "output 0 is a ndarray"),
        ([Variable(np.ones(2))], "output 0 is a list"),
        ((Variable(np.ones(2)), 3), "output 1 is a int"),
    ],
)
def test_wrong_results(value, message, mode):
    with (
        mode(),
        pytest.raises(
            TypeError,
            match=f"forget: func must return a Variable or a tuple of Variables, but its {message}",
        ),
    ):
        forget(lambda x: value, np.ones(2))


def test_without_graph_it_is_a_call(arrays):
    x = Variable(arrays[0])
    n_calls = []
    with mpchain.no_backprop_mode():
        y = forget(lambda x: n_calls.append(x) or x * 2, x)
    assert y.creator is None and len(n_calls) == 1
    y = forget(lambda x: x * 2, arrays[0])
    assert y.creator is None and not y.requires_grad


def test_parameters_alone_get_gradients(arrays):
    W = Parameter(arrays[1])
    F.sum(forget(lambda x: F.matmul(x, W), arrays[0])).backward()
    np.testing.assert_allclose(W.grad, np.repeat(arrays[0].sum(axis=0)[:, None], 4, axis=1))


def test_outputs_that_are_not_differentiable(arrays):
    x = Variable(arrays[0])
    constant = Variable(np.ones((3, 4)), requires_grad=False)
    a, b = forget(lambda x: (x * 2, constant * 3), x)
    F.sum(a + b).backward()
    np.testing.assert_array_equal(x.grad, np.full((3, 4), 2))
    assert mpchain.grad([F.sum(b)], [x]) == [None]
    assert mpchain.grad([F.sum(b)], [x], enable_double_backprop=True) == [None]


def test_in_recomputing_is_told():
    seen = []

    def func(x):
        seen.append(mpchain.config.in_recomputing)
        return x * x

    x = Variable(np.array([1.0]))
    y = forget(func, x)
    y.backward()
    mpchain.grad([y], [x], enable_double_backprop=True)
    assert seen == [False, True, True]
    assert mpchain.config.in_recomputing is False


def test_dropped_elements_are_the_same_again(device):
    x = Variable(mpchain.get_device(device).send(np.full((5, 6), 2.0)))
    y = forget(lambda x: F.dropout(F.dropout(x, 0.5), 0.3), x)
    dropped = mpchain.cuda.to_cpu(y.array)
    F.dropout(x)
    (gx,) = mpchain.grad([y * y], [x], enable_double_backprop=True)
    F.sum(gx).backward()
    assert 0 < (dropped == 0).sum() < dropped.size
    # y = m x, so the derivatives of y ** 2 are 2 m ** 2 x and 2 m ** 2.
    np.testing.assert_allclose(mpchain.cuda.to_cpu(gx.array), dropped**2)
    np.testing.assert_allclose(mpchain.cuda.to_cpu(x.grad), dropped**2 / 2)


@pytest.mark.parametrize("own_generator", [False, True])
def test_random_numbers_go_on_as_without(own_generator, arrays):
    def noisy(x):
        rng = mpchain.config.rng or np.random
        return F.tanh(F.dropout(x) + rng.normal(size=x.shape)) * x

    results = []
    for call in (_plain, forget):
        np.random.seed(0)
        with mpchain.using_config("rng", np.random.default_rng(0) if own_generator else None):
            x = Variable(arrays[0])
            y = F.sum(call(noisy, x) * call(noisy, x))
            (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
            F.sum(gx * gx).backward()
            rng = mpchain.config.rng or np.random
            results.append([y.array, gx.array, x.grad, rng.normal(), np.random.normal()])
    for expected, actual in zip(*results):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_a_batch_is_counted_once(arrays):
    results = []
    for call in (_plain, forget):
        layer, x = L.BatchNormalization(4, dtype=np.float64), Variable(arrays[0])
        y = F.sum(call(lambda x, f=layer: F.tanh(f(x)), x) * arrays[0])
        (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
        F.sum(gx * gx).backward()
        results.append([gx.array, x.grad, layer.gamma.grad, layer.avg_mean, layer.avg_var])
    for expected, actual in zip(*results):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_settings_are_those_of_the_first_call():
    seen = []

    def func(x):
        config = mpchain.config
        seen.append((config.train, config.dtype, config.rng))
        return x * 2

    rng = np.random.default_rng(0)
    with mpchain.using_config("train", False), mpchain.using_config("dtype", np.float64):
        with mpchain.using_config("rng", rng):
            y = forget(func, Variable(np.ones(())))
    y.backward()
    assert seen == [(False, np.float64, rng)] * 2
    assert mpchain.config.train is True and mpchain.config.rng is None


def test_remembered_values_come_again_in_order():
    state = iter(range(1, 100))

    def func(x):
        for _ in range(2):
            x = x * float(remembered(lambda: next(state)))
        return x

    def outer(x):
        return forget(func, x) + x * float(remembered(lambda: next(state)))

    x = Variable(np.array(1.0))
    y, z = forget(outer, x), forget(outer, x)
    assert (y.item(), z.item()) == (1 * 2 + 3, 4 * 5 + 6)
    assert func(x).item() == 7 * 8
    for v, slope in ((y, 5), (z, 26), (y, 5)):
        (gx,) = mpchain.grad([v], [x], enable_double_backprop=True)
        assert gx.item() == slope
    w = forget(lambda x: outer(x) ** 2, x)
    (gx,) = mpchain.grad([w], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([gx], [x])
    assert ggx.item() == 2 * (9 * 10 + 11) ** 2
    assert next(state) == 12


def test_remembered_values_of_a_recomputation_within_the_first_call():
    state = iter(range(1, 100))

    def scaled(x):
        return x * x * float(remembered(lambda: next(state)))

    x = Variable(np.array(3.0))
    y = forget(scaled, x)

    def outer(u):
        (gx,) = mpchain.grad([y], [x])  # this calls ``scaled`` again
        return u * u * gx.array * float(remembered(lambda: next(state)))

    u = Variable(np.array(1.0))
    z = forget(outer, u)
    assert z.item() == 6 * 2
    z.backward()
    assert u.grad == 2 * 6 * 2


def _changing(*values):
    """Returns a function of x that computes something else each time."""
    functions = iter(values)

    def function(x):
        return next(functions)(x)

    return function


@pytest.mark.parametrize(
    "second, reason",
    [
        (lambda x: x[:1], r"its outputs had shapes \[\(2,\)\] and have \[\(1,\)\]"),
        (lambda x: (x, x), r"its outputs had shapes \[\(2,\)\] and have \[\(2,\), \(2,\)\]"),
        (lambda x: x * Parameter(np.ones(2)), "it used other variables"),
        (
            lambda x: x * np.random.uniform(),
            r"it drew other random numbers \(if its first call initialized parameters, "
            r"initialize them before\)",
        ),
        (lambda x: x * remembered(lambda: 1.0), "it asked for more remembered values"),
    ],
)
@pytest.mark.parametrize("double", [False, True])
def test_a_function_that_changes_is_refused(second, reason, double):
    x = Variable(np.ones(2))
    y = F.sum(forget(_changing(lambda x: x * 2, second), x))
    with pytest.raises(RuntimeError, match=f"forget: func must compute the same .*, but {reason}"):
        y.backward(enable_double_backprop=double)


def test_random_numbers_of_other_threads_are_no_error():
    drawn, over = threading.Event(), threading.Event()

    def draw():
        np.random.uniform()
        drawn.set()
        over.wait()

    def func(x):
        if mpchain.config.in_recomputing:
            thread.start()
            drawn.wait()
        return x * 2

    thread = threading.Thread(target=draw)
    x = Variable(np.ones(()))
    forget(func, x).backward()
    over.set()
    thread.join()
    assert x.grad == 2


def test_threads_forget_at_once(arrays):
    def work(i):
        for _ in range(5):
            xs = [Variable(a) for a in arrays]
            _mlp(forget)(*xs).backward()
            results[i] = [x.grad for x in xs]

    results = [None] * 4
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs = [Variable(a) for a in arrays]
    _mlp(_plain)(*xs).backward()
    for gradients in results:
        for x, gx in zip(xs, gradients):
            np.testing.assert_allclose(gx, x.grad, rtol=1e-12)


def test_a_variable_that_is_no_longer_used_is_refused():
    W = Parameter(np.ones(2))
    y = F.sum(forget(_changing(lambda x: x * W, lambda x: x * 2), Variable(np.ones(2))))
    with pytest.raises(RuntimeError, match="it used other variables"):
        y.backward()


def test_errors_leave_nothing_behind():
    def failing(x):
        if mpchain.config.in_recomputing:
            raise ZeroDivisionError
        return F.tanh(x)

    x = Variable(np.ones(()))
    h = F.exp(x)
    y = forget(failing, h)
    state = np.random.get_state()[1].copy()
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert mpchain.config.in_recomputing is False and mpchain.config.function_hooks == {}
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert h.creator is not None
    assert remembered(lambda: 3) == 3


def test_leaves_are_ready_once(arrays):
    """A parameter that is used inside and outside is final when both uses have contributed."""
    x, W, V = (Parameter(a) for a in arrays)
    y = _shared_weight(forget)(x, W, V)
    ready = []
    y.backward(on_leaf=lambda leaf: ready.append((id(leaf), leaf.grad.copy())))
    assert sorted(key for key, _ in ready) == sorted(map(id, (x, W, V)))
    gradients = dict(ready)
    for leaf in (x, W, V):
        np.testing.assert_array_equal(gradients[id(leaf)], leaf.grad)
