"""Tests the results of captured steps, and what steps may do with the caller's arrays."""

import collections
import dataclasses
import json
import random
import warnings

import numpy as np
import pytest
import scipy.stats

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from tests.captured.helpers import arrays, check, same_first

Pair = collections.namedtuple("Pair", "loss norm")


@dataclasses.dataclass(frozen=True)
class Losses:
    loss: mpchain.Variable
    parts: dict


class Labeled(dict):
    """A subclass of dict."""


class Opaque:
    """Holds an array where a captured step does not look for arrays."""

    def __init__(self, array):
        self.array = array


def wrapped(kind):
    def make():
        model = L.Linear(5, 3)

        def step(x, t):
            y = model(x)
            loss, norm = F.softmax_cross_entropy(y, t), F.sum(y**2).array
            return kind(loss, norm)

        return step, model

    return make


CONTAINERS = {
    "namedtuple": Pair,
    "OrderedDict": lambda a, b: collections.OrderedDict(b=b, a=a),
    "defaultdict": lambda a, b: collections.defaultdict(list, a=a, b=[b]),
    "dict of a class": lambda a, b: Labeled(a=a, b=(b, {"a": a})),
    "dataclass": lambda a, b: Losses(a, {"norm": b, "n": 3}),
    "nested": lambda a, b: [Pair(a, [b]), ("text", None, 1.5)],
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("batches", [arrays, same_first])
def test_containers_are_opened(name, batches):
    check(wrapped(CONTAINERS[name]), [batches(i) for i in range(7)])


def test_classes_and_defaults_of_containers_are_kept():
    step = mpchain.capture(lambda x: collections.defaultdict(list, y=x * 2))
    for i in range(5):
        found = step(np.full(2, i))
    assert step.reason is None and found["other"] == []
    assert "other" not in step(np.ones(2))


@pytest.mark.parametrize(
    "kind", [lambda a, b: Opaque(a.array), lambda a, b: collections.deque([a])]
)
def test_containers_that_are_not_opened_are_refused(kind):
    function, _ = wrapped(kind)()
    step = mpchain.capture(function)
    with pytest.warns(UserWarning, match="it returns a (Opaque|deque)"):
        found = [step(*arrays(i)) for i in range(5)]
    values = [float(np.sum(getattr(x, "array", None) if hasattr(x, "array") else x[0].array))
              for x in found]  # fmt: skip
    assert len(set(values)) == 5


def test_results_that_hold_themselves_are_refused():
    def step(x):
        result = [x * 2]
        result.append(result)
        return result

    step = mpchain.capture(step)
    with pytest.warns(UserWarning, match="it returns a list"):
        found = [step(np.full(1, i))[0][0] for i in range(5)]
    assert found == [0, 2, 4, 6, 8]


def by_strides(x, t):
    windows = np.lib.stride_tricks.as_strided(x, (2, 2), x.strides)
    return np.float32(windows.sum())


def of_the_library(x, t):
    return np.array([float(v) for v in np.asarray(x).ravel()[:2]])


@pytest.mark.parametrize("batches", [arrays, same_first])
@pytest.mark.parametrize("function", [by_strides, of_the_library])
def test_results_by_means_that_are_not_recorded(function, batches):
    calls = [batches(i) for i in range(7)]
    check(lambda: (function,), calls, reason="it returns|means (that are )?not recorded")


def test_numbers_that_change_are_refused():
    def make():
        seen = []

        def step(x, t):
            seen.append(None)
            return x * 2, len(seen) // 4

        return (step,)

    calls = [arrays(i) for i in range(10)]
    check(make, calls, reason="the number of items of seen of a closure has changed in 8 calls")


def test_arguments_that_are_returned_are_copied():
    step = mpchain.capture(lambda x, t: (x, F.sum(x), x[1:, ::2], {"t": t}))
    found = [step(*arrays(i)) for i in range(7)]
    assert step.reason is None
    for i, (x, total, part, labels) in enumerate(found):
        np.testing.assert_array_equal(x, arrays(i)[0])
        np.testing.assert_array_equal(part, arrays(i)[0][1:, ::2])
        np.testing.assert_array_equal(labels["t"], arrays(i)[1])
        np.testing.assert_allclose(total.array, x.sum(), rtol=1e-5)


def test_dropout_that_returns_its_argument_when_testing():
    step = mpchain.capture(lambda x: F.dropout(x, 0.5))
    with mpchain.using_config("train", False):
        found = [step(arrays(i)[0]) for i in range(6)]
    assert step.reason is None
    for i, y in enumerate(found):
        np.testing.assert_array_equal(y.array, arrays(i)[0])


class TestArguments:
    def test_changes_of_arguments_are_repeated(self):
        def step(x, t):
            x *= 2
            t[0] = 7
            return x.sum()

        step, expected = mpchain.capture(step), step
        for i in range(6):
            pair, other = arrays(i), arrays(i)
            assert step(*pair) == pytest.approx(expected(*other), rel=1e-5)
            for x, y in zip(pair, other):
                np.testing.assert_array_equal(x, y)
        assert step.reason is None

    def test_read_only_arguments_are_not_changed(self):
        def step(x):
            x *= 2
            return x

        step = mpchain.capture(step)
        x = np.ones(3)
        x.flags.writeable = False
        for _ in range(4):
            with pytest.raises(ValueError, match="read-only"):
                step(x)
        assert x.sum() == 3

    def test_an_array_that_is_given_twice(self):
        def step(x, y):
            x *= 2
            return y.sum(), x is y

        step = mpchain.capture(step)
        for i in range(5):
            x, y = np.full(3, 1.0 + i), np.full(3, 1.0 + i)
            assert step(x, x) == (6 * (1 + i), True)
            assert step(x, y) == (3 * (1 + i), False)
        assert step.reason is None

    @pytest.mark.parametrize(
        ("a", "b"), [(0.0, -0.0), (1, True), (1, 1.0), ((1,), (1.0,)), ((1.0,), (True,))]
    )
    def test_equal_arguments_of_other_classes(self, a, b):
        def step(x, number):
            factor = number[0] if isinstance(number, tuple) else number
            return x * np.copysign(1, factor), type(factor).__name__

        captured = mpchain.capture(step)
        for i in range(10):
            number = b if i > 4 else a
            (x, name), (y, other) = captured(np.ones(2) * i, number), step(np.ones(2) * i, number)
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(np.signbit(x), np.signbit(y))
            assert name == other
        assert captured.reason is None

    def test_arrays_of_other_classes_run_as_always(self):
        step = mpchain.capture(lambda x: x.sum() * x)
        x = np.ma.array([1.0, 2, 3], mask=[False, True, False])
        for _ in range(5):
            assert step(x).mask.tolist() == [False, True, False]
        assert "MaskedArray" in step.reason
        step = mpchain.capture(lambda x: x.sum(axis=0))
        for _ in range(5):
            found = step(np.ones((2, 2)).view(np.matrix))
        assert "matrix" in step.reason and found.shape == (1, 2)
        step(np.array([1, None], object)[:1])
        assert "ndarray of object" in step.reason

    def test_variables_run_as_always(self):
        step = mpchain.capture(lambda x: F.sum(x * 2))
        x = mpchain.Variable(np.ones(2))
        for i in range(5):
            x.array = np.full(2, float(i))
            assert step(x).array == 4 * i
        assert "Variable" in step.reason


class TestHalfPrecision:
    @pytest.mark.parametrize("policy", [mpchain.mixed16, mpchain.mixed_bf16])
    def test_steps_are_replayed(self, policy):
        dtype = policy.dtype

        def make():
            with mpchain.using_config("dtype", policy):
                model = mpchain.Sequential(L.Linear(5, 7), F.relu, L.Linear(7, 3))
            optimizer = optimizers.SGD(0.1).setup(model)
            optimizer.use_fp32_update()
            optimizer.set_loss_scale(1.0)

            def step(x, t):
                loss = F.softmax_cross_entropy(model(x.astype(dtype)), t)
                model.cleargrads()
                loss.backward()
                optimizer.update()

            return step, model

        check(make, rtol=1e-2)


def test_what_the_machine_cannot_handle_is_a_reason(monkeypatch):
    def fails(self, result):
        raise RecursionError("too deep")

    monkeypatch.setattr("mpchain.captured.recorder.Recorder.describe", fails)
    step = mpchain.capture(lambda x: x * 2)
    with pytest.warns(UserWarning, match="RecursionError: too deep"):
        found = [step(np.full(1, i)).item() for i in range(4)]
    assert found == [0, 2, 4, 6]


def test_arrays_of_the_program_are_told_apart_as_always():
    tables = [np.arange(3.0), np.arange(3.0) + 1]
    same = tables[1]

    def step(x):
        (number,) = [i for i, table in enumerate(tables) if table is same]
        return x * number + {id(table): table for table in tables}[id(same)]

    step = mpchain.capture(step)
    for i in range(5):
        np.testing.assert_array_equal(step(np.full(3, i)), i + np.arange(3) + 1)
    assert step.reason is None


class TestUnseen:
    """Operations that no recorder sees are noticed by the state that they change."""

    def check(self, function, reason):
        step = mpchain.capture(function)
        with pytest.warns(UserWarning, match=reason):
            for i in range(4):
                step(np.full(3, i))
        return step

    def test_decisions_by_chance(self):
        def by_numpy(x):
            return x * 2 if np.random.rand() < 2 else x

        def by_python(x):
            return x * 2 if random.random() < 2 else x

        def after_dropout(x):
            y = F.dropout(x.astype("f"))
            return y * 2 if np.random.rand() < 2 else F.dropout(y)

        generator, old = np.random.default_rng(0), np.random.RandomState(0)
        for function in (
            *(by_numpy, by_python, after_dropout),
            lambda x: x * 2 if generator.random() < 2 else x,
            lambda x: x * 2 if old.rand() < 2 else x,
        ):
            self.check(function, "it draws random numbers by means that are not recorded")

    def test_writes_into_arrays_of_tuples(self):
        held = (np.zeros(3), [1])

        def step(x):
            held[0][...] = x

        self.check(step, r"it changes an array \(3,\) by means that are not recorded")
        np.testing.assert_array_equal(held[0], 3)

    def test_draws_beside_an_object_that_refers_to_the_generator_of_numpy(self):
        normal = scipy.stats.norm(0, 1)
        assert normal.dist.random_state is np.random.get_state.__self__
        step = mpchain.capture(lambda x: F.dropout(x) * normal.args[1])
        for _ in range(5):
            step(np.ones((3, 4), "f"))
        assert step.reason is None
        self.check(
            lambda x: x * 2 if normal.rvs() < 99 else x,
            "it draws random numbers by means that are not recorded",
        )

    def test_draws_that_are_recorded(self):
        step = mpchain.capture(lambda x: F.dropout(F.dropout(x)))
        for _ in range(5):
            step(np.ones((3, 4), "f"))
        assert step.reason is None


class TestNumbers:
    """NumPy's scalars become arrays while a step is recorded, and arrays support fewer
    operations."""

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x * {0.0: 2, 2.0: 3}.get(x[0], 1),
            lambda x: x * round(x[0], 1),
            lambda x: np.array([1] * np.int64(2) + [1] * x.argmax()),
            lambda x: x * x[0].is_integer(),
            lambda x: x * np.float64(x[0]).as_integer_ratio()[0],
            lambda x: x * float(json.dumps(x[0])),
        ],
    )
    def test_they_do_what_they_do_as_always(self, function):
        step = mpchain.capture(function)
        with pytest.warns(UserWarning, match="reads the values|cannot be recorded, TypeError"):
            for i in range(5):
                x = np.array([i, 1.0])
                np.testing.assert_array_equal(step(x), function(x))

    def test_errors_are_those_of_the_step(self):
        step = mpchain.capture(lambda x: json.dumps(x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(4):
                with pytest.raises(TypeError, match="ndarray is not JSON serializable"):
                    step(np.ones(2))


def test_gradients_that_the_call_before_has_left():
    """The step runs eagerly, so that gradients are added, and the reason names the gradients."""
    model = L.Linear(3, 2, nobias=True)
    step = mpchain.capture(lambda x: F.sum(model(x)).backward())
    reason = r"it reads the gradient of W from the call before, .*: call cleargrads\(\)"
    with pytest.warns(UserWarning, match=reason):
        for i in range(5):
            step(np.full((1, 3), i, "f"))
            np.testing.assert_array_equal(model.W.grad, np.full((2, 3), sum(range(i + 1))))


def test_arguments_that_are_memory_of_a_parameter():
    model = L.Linear(3, 2, initialW=np.zeros((2, 3), "f"))

    def step(w, x):
        w += 1
        return F.sum(model(x))

    step = mpchain.capture(step)
    with pytest.warns(UserWarning, match="an argument shares memory with parameter W: pass a copy"):
        found = [step(model.W.array[:1], np.ones((1, 3), "f")).array for _ in range(4)]
    np.testing.assert_array_equal(found, [3, 6, 9, 12])
