"""Tests that steps by blocks, on gathered arrays and by compiled loops have the same bits."""

import sys
import threading
import types

import numpy as np
import pytest

from mpchain import backend, optimizers
from mpchain.kernels import steps, thresholds
from mpchain.kernels.cpu.compiler import load_numba
from mpchain.kernels.steps import square_sum, take_step

pytestmark = pytest.mark.slow

ARGUMENTS = [
    ("SGDRule", {}),
    ("SGDWRule", {"weight_decay_rate": 0.1}),
    ("MomentumSGDRule", {}),
    ("CorrectedMomentumSGDRule", {}),
    ("NesterovAGRule", {}),
    ("LionRule", {"weight_decay_rate": 0.1}),
    ("AdaGradRule", {}),
    ("AdaDeltaRule", {}),
    ("RMSpropRule", {}),
    ("RMSpropRule", {"eps_inside_sqrt": True}),
    ("RMSpropGravesRule", {}),
    ("SMORMS3Rule", {}),
    ("MSVAGRule", {"weight_decay_rate": 0.1}),
    ("AdamRule", {}),
    ("AdamRule", {"amsgrad": True, "adabound": True, "weight_decay_rate": 0.1, "eta": 0.5}),
    ("RAdamRule", {}),
]


def test_every_elementwise_rule_is_in_the_table():
    rules = {name: rule for name, rule in vars(optimizers).items() if name.endswith("Rule")}
    elementwise = {name for name, rule in rules.items() if rule.step is not None}
    missing = elementwise - {name for name, _ in ARGUMENTS}
    assert not missing, f"add a row to ARGUMENTS for {sorted(missing)}"


def descend(p, g, lr):
    p -= lr * g
    return (p,)


@pytest.fixture
def compiling(calls_of):
    """Compiles every step at once; returns a list of the texts of the compiled steps."""
    pytest.importorskip("numba", reason="needs numba, which compiles the steps")
    texts = calls_of(steps, "_compiled", lambda text: text)
    with thresholds.using(compiled_step=0):
        yield texts


def whole(step, written, grad, scalars):
    """Applies the step to the whole arrays, with half-precision gradients cast to float32: the
    specification."""
    if grad.dtype == np.float16:
        grad = grad.astype(np.float32)
    results = step(written[0].copy(), grad, *(x.copy() for x in written[1:]), **scalars)
    return [np.asarray(result, array.dtype) for result, array in zip(results, written, strict=True)]


def three_steps(name, arguments, dtype, size):
    """Returns the arrays after three steps, and the expected arrays."""
    rule = getattr(optimizers, name)(**arguments)
    written = [np.random.normal(size=size).astype(dtype)]
    written += [np.zeros(size, dtype) for _ in rule.states]
    expected = [array.copy() for array in written]
    for rule.t in (1, 2, 7):
        g = np.random.normal(size=size).astype(dtype)
        expected = whole(rule.step, expected, g, rule.scalars())
        take_step(rule.step, written[0], g, written[1:], rule.scalars)
    return written, expected


@pytest.mark.parametrize("name, arguments", ARGUMENTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_blocks(name, arguments, dtype):
    with thresholds.using(step_block=64, small=0):
        found = three_steps(name, arguments, dtype, 77)
    for actual, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name, arguments", ARGUMENTS)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
def test_compiled_loops(name, arguments, dtype, compiling):
    for actual, expected in zip(*three_steps(name, arguments, dtype, 40001), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert len(compiling) == 3
    if name != "RAdamRule":  # the first steps of RAdam differ
        assert len(set(compiling)) == 1  # steps with other numbers use the same loop


def test_what_is_compiled(compiling):
    p, g = np.ones(40000, np.float32), np.full(40000, 2, np.float32)
    take_step(descend, p, g, [], lambda: {"lr": 0.5})
    assert (p == 0).all()
    assert compiling[0].splitlines()[-4:] == [
        "        x_a0 = a0[i]",
        "        t0 = c0 * x_g",
        "        t1 = x_a0 - t0",
        "        a0[i] = t1",
    ]


def test_other_numbers_are_not_traced_again(compiling, calls_of):
    def descend(p, g, lr):  # no other test uses this function
        p -= lr * g
        return (p,)

    traced = calls_of(steps, "trace_step")
    p, g = np.zeros(40000, np.float32), np.ones(40000, np.float32)
    for rate in (0.5, 0.25, 0.125, 1):
        take_step(descend, p, g, [], lambda rate=rate: {"lr": rate})
    assert (p == -1.875).all() and len(set(compiling)) == len(traced) == 1


def test_a_number_that_decides_what_a_step_does(compiling):
    def step(p, g, *, rate, power):
        if rate:
            p -= rate * g
        return (p + (1 - rate) ** power * g,)

    p, g = np.random.normal(size=(2, 40000)).astype(np.float32)
    expected = [p.copy()]
    for rate, power in ((0.1, 3), (0.0, 3), (0.3, 0.5), (0.2, 0.5)):
        scalars = {"rate": rate, "power": power}
        expected = whole(step, expected, g, scalars)
        take_step(step, p, g, [], lambda scalars=scalars: scalars)
    np.testing.assert_array_equal(p, expected[0])
    assert len(compiling) == 4


def every_operation(p, g, a):
    b = -np.abs(g) / 3 + np.negative(p) * a - 2
    c = np.maximum(np.minimum(b, a), 1 / (1 + np.sqrt(np.absolute(p))))
    return np.sign(g) * c - 2.5 + np.add(p, 1), np.subtract(np.divide(c, 3), np.multiply(p, 2.0))


def test_every_operation(compiling):
    p, g, a = np.random.normal(size=(3, 40000)).astype(np.float32)
    p[:3], g[2:6] = [np.nan, np.inf, 0], [0, np.nan, -np.inf, 0]
    with np.errstate(invalid="ignore"):
        expected = whole(every_operation, [p, a], g, {})
    take_step(every_operation, p, g, [a], lambda: {})
    np.testing.assert_array_equal([p, a], expected)
    assert len(compiling) == 1


def choose(p, g, a):
    smaller = np.where(np.logical_and(g > 0, np.logical_not(p <= a)), p - g, p * 2)
    return np.square(smaller) * (g < 0), np.greater_equal(p, a)


def test_comparisons_and_choices(compiling):
    p, g, a = np.random.normal(size=(3, 40000)).astype(np.float32)
    p[:3], g[2:6] = [np.nan, -0.0, 0], [0, np.nan, -np.inf, 0]
    with np.errstate(invalid="ignore"):
        expected = whole(choose, [p, a], g, {})
    take_step(choose, p, g, [a], dict)
    np.testing.assert_array_equal([p, a], expected)
    assert len(compiling) == 1


def test_extremes_of_zeros_have_the_sign_of_numpys(compiling):
    def extremes(p, g, a):
        return np.maximum(p, g), np.minimum(a, g)

    p, a = np.tile(np.float32([0.0, -0.0]), (2, 20000))
    g = np.tile(np.float32([0.0, 0.0, -0.0, -0.0]), 10000)
    expected = whole(extremes, [p, a], g, {})
    take_step(extremes, p, g, [a], dict)
    np.testing.assert_array_equal(np.signbit([p, a]), np.signbit(expected))
    assert len(compiling) == 1


def branch(p, g):
    return (p - g if g.sum() else p,)


def write_into(p, g):
    return (np.subtract(p, g, out=p),)


def overwrite(p, g):
    p[...] = p - g
    return (p,)


def forget(p, g):
    return (0.0,)


def unusual(p, g):
    return (p - np.logaddexp(g, g),)


def reduce(p, g):
    return (p - np.add.reduce(g[:0]) * g,)


BEYOND = [branch, write_into, overwrite, forget, unusual, reduce]


@pytest.mark.parametrize("step", BEYOND)
def test_steps_that_cannot_be_written_down(step, compiling):
    p, g = np.random.normal(size=(2, 40000)).astype(np.float32)
    expected = whole(step, [p], g, {})
    take_step(step, p, g, [], lambda: {})
    np.testing.assert_array_equal(p, np.broadcast_to(expected[0], p.shape))
    assert compiling == []


def test_errors_of_a_step_are_its_own(compiling):
    def wrong(p, g):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        take_step(wrong, np.ones(40000, np.float32), np.ones(40000, np.float32), [], lambda: {})


@pytest.mark.parametrize(
    "p, g",
    [
        (np.ones(40000, np.float16), np.ones(40000, np.float16)),
        (np.ones(40000, np.float32), np.ones(40000, np.float64)),
        (np.ones(80000, np.float32)[::2], np.ones(40000, np.float32)),
        (np.ones(100, np.float32), np.ones(100, np.float32)),
    ],
)
def test_what_is_not_compiled(p, g, compiling):
    take_step(descend, p, g, [], lambda: {"lr": 0.5})
    assert (p == 0.5).all() and compiling == []


def test_parameters_of_an_update_share_a_loop_and_its_constants(compiling):
    params = [np.ones(n, np.float32) for n in (2000, 40000, 3000)]
    grads = [np.ones_like(p) for p in params]
    for rate in (0.5, 0.25):
        steps.take_steps(descend, [params], grads, lambda rate=rate: {"lr": rate})
    assert all((p == 0.25).all() for p in params) and len(compiling) == 2
    steps.take_steps(descend, [[p.astype(float) for p in params]], grads, lambda: {"lr": 0.5})
    take_step(descend, params[0], grads[0], [], lambda: {"lr": 0.25})
    assert (params[0] == 0).all()


def test_gradients_of_any_layout(compiling):
    p = np.zeros((200, 201), np.float32)
    g = np.random.normal(size=(201, 200)).astype(np.float32).T
    take_step(descend, p, g, [], lambda: {"lr": 1.0})
    np.testing.assert_array_equal(p, -g)
    take_step(descend, p, np.broadcast_to(np.float32(1), p.shape), [], lambda: {"lr": 1.0})
    np.testing.assert_array_equal(p, -g - 1)
    assert len(compiling) == 2


def test_compiling_waits_until_it_is_worth_it(compiling):
    # This step is a new function, for which nothing is compiled yet.
    anew = lambda p, g, lr: descend(p, g, lr)
    p, g = np.ones((2, 40000), np.float32)
    counts = []
    with thresholds.using(compiled_step=100_000, loaded=1):
        for _ in range(4):
            take_step(anew, p, g, [], lambda: {"lr": 0.25})
            counts.append(len(compiling))
    assert counts == [0, 0, 1, 2] and (p == 0).all()


@pytest.mark.parametrize(
    "numba", [None, types.SimpleNamespace(config=types.SimpleNamespace(DISABLE_JIT=1))]
)
def test_without_numba_and_where_it_must_not_compile(numba, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", numba)
    load_numba.cache_clear()
    try:
        p, g = np.ones((2, 40000), np.float32)
        with thresholds.using(compiled_step=0):
            take_step(descend, p, g, [], lambda: {"lr": 0.5})
        assert (p == 0.5).all() and load_numba() is None
    finally:
        load_numba.cache_clear()


def test_square_sum(device):
    send = backend.get_device(device).send
    assert square_sum(send(np.full((3, 4), 200, np.float16))) == 480000
    assert square_sum(send(np.ones((0, 2), np.float32))) == 0


def test_gathered_memory_is_shared_by_no_two_threads_and_by_few_shapes():
    rooms = steps._rooms
    shapes, dtypes = ((2, 3), (), (0, 4), (5,)), (np.dtype("f"), np.dtype("d"))
    flat, views = rooms.of(shapes, dtypes)
    assert [x.dtype for x in flat] == list(dtypes) and [x.size for x in flat] == [12, 12]
    assert [v.shape for v in views[1]] == list(shapes)
    assert all(np.shares_memory(v, flat[0]) for v in views[0] if v.size)
    found = []
    thread = threading.Thread(target=lambda: found.append(rooms.of(shapes, dtypes)[0][0]))
    thread.start()
    thread.join()
    assert not np.shares_memory(found[0], rooms.of(shapes, dtypes)[0][0])
    for n in range(20):
        rooms.of(((n,),), dtypes)
    assert rooms.of.cache_info().currsize <= 8


def test_gathered_steps_of_all_layouts_leave_no_trace_of_others():
    """Two optimizers with the same shapes alternate; arrays have any memory order, and some are
    empty."""

    def made(seed):
        random = np.random.RandomState(seed)
        arrays = [
            np.asarray(random.randn(*shape)) for shape in [(3, 4), (), (0, 2), (5,), (2, 3)] * 5
        ]
        arrays[0] = np.asfortranarray(arrays[0])
        arrays[4] = random.randn(2, 6)[:, ::2]
        return arrays

    def step(p, g, m, lr):
        m = 0.5 * m + g
        return p - lr * m, m

    for _ in range(2):
        for seed in (1, 2):
            p, m, g = made(seed), made(seed + 10), made(seed + 20)
            g[3][0], g[8][1] = np.nan, np.inf
            expected = [step(a, b, c, 0.1) for a, b, c in zip(p, g, m)]
            steps.take_steps(step, [p, m], g, lambda: {"lr": 0.1})
            for a, b, (new_p, new_m) in zip(p, m, expected):
                np.testing.assert_array_equal(a, new_p)
                np.testing.assert_array_equal(b, new_m)


@pytest.mark.parametrize("size", [3, 5_000])
def test_a_rule_may_return_the_same_dict_with_other_numbers(compiling, size):
    numbers, p = {"lr": 0.0}, np.zeros(size)
    for lr in (1.0, 2.0):
        numbers["lr"] = lr
        take_step(descend, p, np.ones(size), [], lambda: numbers)
        steps.take_steps(descend, [[p]], [np.ones(size)], lambda: numbers)
    assert (p == -6).all()
