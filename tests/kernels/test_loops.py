"""Tests that formulas in one compiled loop have the values of NumPy's operations."""

import operator

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions.declaring.declaration import registry
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loops
from mpchain.kernels.cpu.channels_last import as_last, is_only_last
from mpchain.kernels.cpu.compiler import Switch, compile_written_loop
from tests.kernels.needs import needs_numba

pytestmark = [
    pytest.mark.slow,
    needs_numba,
]
UNUSUAL = [0.0, -0.0, 1.0, -1.5, 3e38, -3e38, 1e-40, 0.2, -0.2, np.inf, -np.inf, np.nan, 2.0]
FORMULAS = {
    "ReLU": (lambda x: np.maximum(x, 0), ()),
    "the gradient of ReLU": (lambda x, y: x * np.greater(y, 0), ()),
    "leaky ReLU": (lambda x, slope: np.maximum(x, 0) + np.minimum(x, 0) * slope, (0.2,)),
    "constants": (lambda x, y, a, b: x * (1 - a) + y * a - (a <= b) * -b, (0.3, 2)),
    "quotients": (lambda x, y, a: (x / 3 + y) / (a - 1), (3,)),
    "signs": (lambda x, y: np.sign(x) * np.absolute(y) - np.square(x), ()),
    "choices": (lambda x, y: np.where(np.less(x, y), x - 1, 2 * y) + 1, ()),
    "logic": (
        lambda x, y: y * np.logical_and(np.greater_equal(x, 0), np.logical_not(np.less(y, x))),
        (),
    ),
    "either": (
        lambda x, y: x * np.logical_or(np.less_equal(x, -1), np.greater(y, 1)) * 0.5,
        (),
    ),
}

FUNCTIONS = "clipped_relu hard_sigmoid leaky_relu maximum minimum relu".split()


@pytest.fixture
def at_once():
    """Compiles formulas when they are first called."""
    with thresholds.using(compiled_loop=-1):
        yield


def loop_of(formula):
    names = formula.__code__.co_varnames[: formula.__code__.co_argcount]
    n_arrays = sum(name in ("x", "y") for name in names)
    return loops.loop_of(formula, names, n_arrays), n_arrays


def arrays(n, dtype, shape=(3, thresholds.loop // 2)):
    random = np.random.RandomState(0)
    return [random.choice(np.array(UNUSUAL, dtype), shape) for _ in range(n)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_same_values_as_numpy(name, dtype, at_once):
    formula, constants = FORMULAS[name]
    loop, n = loop_of(formula)
    inputs = arrays(n, dtype)
    with np.errstate(all="ignore"):
        expected = formula(*inputs, *constants)
    y = loop(*inputs, *constants)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("size", [0, 1, 5, 15, 16, 40, 100])
def test_results_that_begin_anywhere_in_memory(size, at_once):
    with thresholds.using(loop=0):
        loop, _ = loop_of(FORMULAS["choices"][0])
        for begin in range(17):
            x, y, out = (np.resize(v, 200) for v in (*arrays(2, np.float32), np.zeros(1, "f")))
            part = slice(begin, begin + size)
            with np.errstate(all="ignore"):
                out[part] = FORMULAS["choices"][0](x[part], y[part])
            result = np.zeros(200, np.float32)
            loop.compute(x[part], y[part], out=result[part])
            np.testing.assert_array_equal(result, out)


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: np.sqrt(x),  # NumPy warns of negative numbers
        lambda x: 3 / x + 1,  # NumPy warns about divisions by zero
        lambda x: np.greater(x, 0),
        lambda x: x,
        lambda x, a: a * 2 + 1,
        lambda x: np.sum(x) + x,
        lambda x: np.multiply(np.greater(x, 0), np.less(x, 1)),
    ],
)
def test_formulas_without_a_loop(formula):
    assert loop_of(formula)[0] is None


@pytest.mark.parametrize(
    "formula", [lambda x: x + 1, lambda x: -x, lambda x, y: x * y, lambda x, y: x - y]
)
def test_threads_share_single_operations(formula, monkeypatch):
    (loop, _), n = loop_of(formula), formula.__code__.co_argcount
    arrays = np.random.RandomState(0).randn(n, 1 << 19).astype("f")
    monkeypatch.setattr(loops, "n_parts", lambda n, n_elements: 1 + (n_elements >= 1 << 16))
    with thresholds.using(compiled_loop=-1):
        np.testing.assert_array_equal(loop(*arrays), formula(*arrays))
        assert loop(*arrays[:, : 1 << 17]) is None  # one thread is as fast as NumPy


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y, a: (x[:, 1:], y[:, 1:], a),  # the arrays have gaps
        lambda x, y, a: (x, y[:1, :9], a),  # the shapes do not broadcast
        lambda x, y, a: (x.reshape(-1, 8), y.reshape(-1, 8)[:1], a),  # the rows are short
        lambda x, y, a: (x, y.T, a),
        lambda x, y, a: (x, y.astype(np.float64), a),
        lambda x, y, a: (x.astype(">f4"), y.astype(">f4"), a),
        lambda x, y, a: (np.ones(x.shape, np.float16), np.ones(x.shape, np.float16), a),
        lambda x, y, a: (np.ones(x.shape, np.int32), np.ones(x.shape, np.int32), a),
        lambda x, y, a: (x[0, :9], y[0, :9], a),
        lambda x, y, a: (x, y, np.float64(0.5)),  # NumPy's numbers widen float32
        lambda x, y, a: (x, 0.5, a),
    ],
)
def test_arguments_that_a_loop_does_not_take(change, at_once):
    loop, _ = loop_of(lambda x, y, a: x * y + a)
    assert loop(*arrays(2, np.float32), 0.5) is not None
    assert loop(*change(*arrays(2, np.float32), 0.5)) is None


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("is_last", [False, True])
def test_arrays_that_repeat_one_number_are_taken(places, is_last, at_once):
    """Sums and means have gradients of this form."""
    loop, _ = loop_of(lambda x, y, a: x * (y - a))
    inputs = arrays(2, np.float32, (4, 8, 64, 64))
    if is_last:
        inputs = [x.transpose(0, 3, 1, 2) for x in inputs]
    for i in places:
        inputs[i] = np.broadcast_to(np.float32(i + 1.5), inputs[i].shape)
    y = loop(*inputs, 0.5)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, inputs[0] * (inputs[1] - np.float32(0.5)))


ROWS = {
    "row": ((300, 256), (256,)),
    "column": ((300, 256), (300, 1)),
    "row and matrix": ((256,), (300, 256)),
    "row and column": ((300, 1), (256,)),
    "channels": ((4, 8, 64, 32), (8, 1, 1)),
    "samples": ((4, 8, 64, 32), (4, 1, 64, 32)),
    "one number": ((300, 256), (1, 1)),
    "middle": ((20, 5, 800), (20, 1, 800)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("is_special", [False, True])
def test_arrays_that_broadcast(shapes, dtype, is_special, at_once):
    def formula(x, y, a):
        return x * F.erf.declaration.body(y) * a if is_special else (x - y) * a + np.maximum(x, y)

    loop, _ = loop_of(formula)
    inputs = [arrays(1, dtype, shape)[0] for shape in shapes]
    with np.errstate(all="ignore"):
        expected = formula(*inputs, dtype(0.3))
    y = loop(*inputs, 0.3)
    assert (y.dtype, y.shape) == (dtype, expected.shape)
    np.testing.assert_allclose(y, expected, 8 * np.finfo(dtype).eps * is_special)
    old = np.full_like(expected, np.nan)
    assert loop.compute(*inputs, 0.3, out=old) is old
    np.testing.assert_array_equal(old, y)


@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS)
def test_views_that_repeat_rows(shapes, at_once):
    loop, _ = loop_of(lambda x, y: x * y)  # NumPy computes the product unless an array repeats
    inputs = [
        np.broadcast_to(arrays(1, np.float32, s)[0], np.broadcast_shapes(*shapes)) for s in shapes
    ]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(loop(*inputs), inputs[0] * inputs[1])
    assert loop(*map(np.ascontiguousarray, inputs)) is None


@pytest.mark.parametrize("shape", [(64, 1, 1), (4, 64, 1, 1), (64, 32), (1, 1, 64, 32)])
def test_channels_last_and_arrays_that_broadcast(shape, at_once):
    loop, _ = loop_of(lambda x, y: x * y + 1)
    x = as_last(arrays(1, np.float32, (4, 64, 64, 32))[0])
    y = arrays(1, np.float32, shape)[0]
    found = loop(x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x * y + 1)
    assert is_only_last(found)
    repeated = np.broadcast_to(as_last(x[:1]), x.shape)  # the array repeats over samples
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(loop(x, repeated), x * repeated + 1)


@pytest.mark.parametrize("shapes", ROWS.values(), ids=ROWS)
def test_quotients(shapes, at_once):
    """NumPy divides by zeros, because it warns, and by arrays above 1 / 16 of the result's size."""
    loop, _ = loop_of(lambda x, y: x / y)
    x, y = (arrays(1, np.float32, shape)[0] for shape in shapes)
    y.reshape(-1)[0] = 0
    is_small = 16 * y.size <= np.broadcast(x, y).size
    with np.errstate(all="ignore"):
        assert loop(x, y) is None
        y[y == 0] = 3
        found = loop(x, y)
        assert (found is not None) == is_small
        if is_small:
            np.testing.assert_array_equal(found, x / y)
            np.testing.assert_array_equal(loop(x, y), found)
            y.reshape(-1)[-1] = 0  # the loop looks for zeros again
            assert loop(x, y) is None


def test_operators_of_rows_and_their_derivatives(at_once):
    """The third derivatives also equal those of NumPy's operations."""
    g, x, y = (a / 4 for a in np.random.RandomState(0).rand(3, 300, 256).astype(np.float32))

    def results():
        a, b = Variable(x), Variable(y[0])
        grads = [a, b]
        z = a * b * a * b + F.maximum(a, b)
        for _ in range(3):
            grads = mpchain.grad([F.sum(z * g)], [a, b], enable_double_backprop=True)
            z = grads[0] * grads[0] + grads[1]
        return [v.array for v in (z, *grads)]

    found = results()
    with mpchain.using_config("kernels", ("reference",)):
        for a, b in zip(found, results(), strict=True):
            np.testing.assert_allclose(a, b, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reduce", ["mean", "no"])
def test_losses_of_binary_labels_and_their_derivatives(reduce, dtype):
    """Loops compute the same as NumPy's operations, to the third order; some labels are ignored."""
    random = np.random.RandomState(0)
    x = random.uniform(-4, 4, (300, 300)).astype(dtype)
    x[0, :6] = 3e4, -3e4, 120, -120, 1e-30, 0
    t = random.randint(-1, 2, x.shape)

    def results():
        v = Variable(x)
        y = F.sigmoid_cross_entropy(v, t, reduce=reduce)
        found = [y, y * y]
        for _ in range(3):
            found += mpchain.grad([F.sum(found[-1] * x)], [v], enable_double_backprop=True)
        return [y.array for y in found]

    found = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    v = Variable(x)
    F.sum(F.sigmoid_cross_entropy(v, t, reduce=reduce)).backward()  # this call makes no graph
    found.append(v.grad)
    with mpchain.using_config("kernels", ("reference",)):
        v.cleargrad()
        F.sum(F.sigmoid_cross_entropy(v, t, reduce=reduce)).backward()
    others.append(v.grad)
    eps = np.finfo(dtype).eps
    for y, expected in zip(found, others, strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(y, expected, 20 * eps, 20 * eps * np.abs(expected).max())


def test_kernels_that_the_user_prefers(at_once):
    loop, _ = loop_of(lambda x, y: x * y + 1)
    with mpchain.using_config("kernels", ("reference",)):
        assert loop(*arrays(2, np.float32)) is None


def test_nothing_is_compiled_before_it_pays(monkeypatch):
    loop, _ = loop_of(lambda x, y: x * y + 2)
    x, y = arrays(2, np.float32)
    calls = []
    monkeypatch.setattr(loops, "_compiled", lambda text: lambda *args: calls.append(text))
    with thresholds.using(compiled_loop=3 * x.size):
        assert [loop(x, y) is None for _ in range(5)] == [True, True, True, False, False]
    assert len(calls) == 2


def test_loops_in_the_cache_replace_numpy_early():
    text = "def run(x):\n    for i in range(x.size):\n        x[i] += "
    stored, other = (compile_written_loop("a test", text + number) for number in "12")
    stored(np.ones(3, np.float32))  # compiles the loop, unless the cache has it already
    with thresholds.using(compiled_loop=6400, loaded=64):
        switches = [(loop, Switch()) for loop in (stored, other)]
        found = [[s.is_due(n, lambda x=x: x) for n in (100, 1, 6299, 1)] for x, s in switches]
    assert found == [[False, True, True, True], [False, False, False, True]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_derivatives(name, at_once, computed):
    declaration = registry[name]
    function, n = getattr(F, name), len(declaration.array_names)
    g, *inputs = arrays(1 + n, np.float32)

    def results():
        variables = [Variable(x.copy()) for x in inputs]
        with np.errstate(all="ignore"):
            y = function(*variables)
            y.grad = g
            y.backward()
        return [y.array, *[x.grad for x in variables]]

    with_loops = results()
    assert len(computed) == 1 + n
    with mpchain.using_config("kernels", ("reference",)):
        for x, y in zip(with_loops, results(), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("function", [F.relu, F.leaky_relu], ids=operator.attrgetter("__name__"))
def test_captured_steps_compute_by_loops(function, computed):
    weight = mpchain.Parameter(np.linspace(-1, 2, thresholds.loop, dtype=np.float32))

    def step(x):
        weight.cleargrad()
        F.sum(F.square(function(weight * x))).backward()
        return weight.grad_var

    captured = mpchain.capture(step)
    for i in range(5):
        x = np.full(thresholds.loop, i - 2, np.float32)
        expected = step(x).array.copy()
        computed.clear()
        np.testing.assert_array_equal(captured(x).array, expected)
    assert captured.reason is None
    assert len(computed) == 3  # the loops are forward, backward, and the gradient of the square
