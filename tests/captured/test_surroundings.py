"""Tests the objects that a captured function refers to: guards, and replaced or changed arrays and
links."""

import dataclasses
import functools
import types

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers
from tests.captured.helpers import arrays, check

FACTOR = 2.0
SETTINGS = {"scale": 1.0, "nested": [1, {"shift": 0.0}]}
TABLE = np.arange(3, dtype=np.float32)


class Scaled(mpchain.Chain):
    kind_scale = 1.0

    def __init__(self):
        super().__init__(inner=L.Linear(5, 3))
        self.ratio = 1.0
        self.shape = (1.0, [2.0])
        self.activation = F.relu

    def forward(self, x):
        return self.activation(self.inner(x)) * self.ratio * self.shape[1][0] * self.kind_scale


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    unused: int = 0


class Trainer:
    """Uses some of its attributes in a step, and other attributes outside of the step."""

    def __init__(self):
        self.model, self.config, self.iteration = Scaled(), Config(), 0
        self.optimizer = optimizers.SGD(0.1).setup(self.model)

    def loss(self, x, t):
        return F.softmax_cross_entropy(self.model(x) * self.config.scale, t)

    def step(self, x, t):
        loss = self.loss(x, t)
        self.model.cleargrads()
        loss.backward()
        self.optimizer.update()
        return loss

    def update(self, step, x, t):
        self.iteration += 1
        self.config.unused += 1
        return step(x, t)


def of_link(name, values):
    def make():
        model = Scaled()
        return (lambda x, t: F.sum(model(x))), model

    def between(i, model):
        if i in values:
            setattr(model, name, values[i])

    return make, between


def of_closure():
    ratio = [1.0]

    def make():
        ratio[0] = 1.0
        return (lambda x, t: x * ratio[0],)

    return make, lambda i, _: ratio.__setitem__(0, 3.0 if i > 4 else 1.0)


def of_global(name, value, other):
    def make():
        globals()[name] = value
        return (lambda x, t: x * globals_of_this()[name],)

    def globals_of_this():
        return {"FACTOR": FACTOR}

    return make, lambda i, _: globals().__setitem__(name, other if i > 4 else value)


def of_settings():
    def make():
        return (lambda x, t: x * SETTINGS["scale"] + SETTINGS["nested"][1]["shift"],)

    def between(i, _):
        SETTINGS["scale"] = 2.0 if 4 <= i < 8 else 1.0
        SETTINGS["nested"][1]["shift"] = 1.0 if i > 11 else 0.0

    return make, between


def of_defaults():
    def scaled(x, t, *, options={"scale": 1.0}):  # noqa: B006
        return x * options["scale"]

    def between(i, _):
        scaled.__kwdefaults__["options"]["scale"] = 2.0 if i > 4 else 1.0

    return lambda: (scaled,), between


def of_object():
    config = types.SimpleNamespace(scale=1.0)
    return lambda: (lambda x, t: x * config.scale,), lambda i, _: setattr(
        config, "scale", 2.0 if i > 4 else 1.0
    )


def of_partial():
    options = {"scale": 1.0}

    def scaled(x, t, options):
        return x * options["scale"]

    return lambda: (functools.partial(scaled, options=options),), lambda i, _: options.update(
        scale=2.0 if i > 4 else 1.0
    )


def of_rate():
    """Returns a function that makes a step that reads an optimizer's rate, and a function that
    changes the rate."""

    def make():
        model = L.Linear(5, 3)
        optimizer = optimizers.SGD(0.1).setup(model)
        model.optimizer_of_test = None
        made.append(optimizer)
        return (lambda x, t: F.sum(model(x)) * optimizer.lr), model

    made = []
    return make, lambda i, _: setattr(made[-1], "lr", 0.2 if i > 4 else 0.1)


def of_configuration():
    return lambda: (lambda x, t: x * mpchain.config.user_scale,), lambda i, _: setattr(
        mpchain.global_config, "user_scale", 2.0 if i > 4 else 1.0
    )


def of_class():
    def between(i, _):
        Scaled.kind_scale = 2.0 if 4 < i < 9 else 1.0

    return of_link("ratio", {})[0], between


CHANGES = {
    "attribute of a link": of_link("ratio", {5: 3.0}),
    "tuple of a link": of_link("shape", {5: (2.0, [3.0])}),
    "function of a link": of_link("activation", {5: F.tanh}),
    "new attribute": of_link("other", {5: 3.0}),
    "attribute of a class": of_class(),
    "closure": of_closure(),
    "global": of_global("FACTOR", 2.0, 3.0),
    "dict": of_settings(),
    "defaults": of_defaults(),
    "object": of_object(),
    "partial": of_partial(),
    "rate": of_rate(),
    "configuration": of_configuration(),
}


@pytest.fixture(autouse=True)
def _as_before():
    yield
    SETTINGS.update(scale=1.0, nested=[1, {"shift": 0.0}])
    Scaled.kind_scale = 1.0
    if hasattr(mpchain.global_config, "user_scale"):
        del mpchain.global_config.user_scale


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_recorded_anew(name):
    make, between = CHANGES[name]
    reasons = check(make, [arrays(i) for i in range(16)], between)
    assert None in reasons[:5]


def test_equal_values_are_no_change():
    model = Scaled()
    step = mpchain.capture(lambda x: F.sum(model(x)))
    for i in range(6):
        model.ratio = float("1.5")
        model.shape = (float("1.5"), model.shape[1])
        step(arrays(i)[0])
    assert step.reason is None


def test_an_entry_of_the_key_none_may_change():
    settings = {None: 1.0}
    step = mpchain.capture(lambda x: F.sum(x * settings[None]))
    found = []
    for i in range(10):
        settings[None] = 2.0 if i > 4 else 1.0
        found.append(step(np.ones(1)).item())
    assert found == [1.0] * 5 + [2.0] * 5
    assert step.reason is None


class TestCounters:
    """A value that differs in each call ends recording, and the reason contains the value's
    name."""

    def check(self, function, reason, between=lambda: None):
        step = mpchain.capture(function)
        with pytest.warns(UserWarning, match=reason):
            found = [(between(), step(np.ones(1)).item())[1] for _ in range(12)]
        return found

    def test_of_the_step(self):
        class Counter(mpchain.Link):
            n = 0

            def forward(self, x):
                self.n += 1
                return x * self.n

        link = Counter()
        link.n = 0
        found = self.check(lambda x: link(x), "n of a Counter has changed in 8 calls")
        assert found == [*range(1, 13)]

    def test_of_a_closure(self):
        n = 0

        def step(x):
            nonlocal n
            n += 1
            return x * n

        assert self.check(step, "n of a closure has changed in 8 calls") == [*range(1, 13)]

    def test_of_the_program(self):
        link = Scaled()

        def between():
            link.ratio += 1

        found = self.check(lambda x: x * link.ratio, "ratio of a Scaled has changed", between)
        assert found == [*range(2, 14)]

    def test_lists_that_grow(self):
        losses = []

        def step(x):
            losses.append(x)
            return x * 1

        self.check(step, "the number of items of losses of a closure has changed in 8 calls")
        assert len(losses) == 12


def test_attributes_that_the_step_does_not_read():
    trainer = Trainer()
    step = mpchain.capture(trainer.step)
    for i in range(12):
        trainer.update(step, *arrays(i))
    assert step.reason is None
    trainer.config.scale = 2.0
    trainer.update(step, *arrays(0))
    assert step.reason == "it is being recorded"


def test_rates_that_the_step_sets():
    def make():
        model = L.Linear(5, 3)
        optimizer = optimizers.MomentumSGD(0.1).setup(model)

        def step(x, t):
            optimizer.lr *= 0.8
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

        return step, model

    calls = [arrays(i) for i in range(10)]
    check(make, calls, reason="it sets lr of a MomentumSGD")


def test_gradients_that_hooks_change_now_and_then():
    def make():
        model = L.Linear(5, 3)
        optimizer = optimizers.SGD(0.1).setup(model)
        optimizer.add_hook(optimizer_hooks.GradientClipping(4.0))

        def step(x, t):
            loss = F.sum(F.tanh(model(x)) * x[:, :3])
            model.cleargrads()
            loss.backward()
            optimizer.update()

        return step, model

    for n in range(4, 9):
        check(make, [arrays(i) for i in range(n)])


class TestObjects:
    """Tests objects that the program replaces between calls."""

    def test_links_and_parameters(self):
        def make():
            model = Scaled()
            return (lambda x, t: F.sum(model(x))), model

        def between(i, model):
            if i == 5:
                del model.inner
                with model.init_scope():
                    model.inner = L.Linear(5, 3, initialW=0.5)
            if i == 10:
                del model.inner.W
                with model.inner.init_scope():
                    model.inner.W = mpchain.Parameter(np.full((3, 5), 2, "f"))

        check(make, [arrays(i) for i in range(15)], between)

    def test_links_of_lists(self):
        layers = [L.Linear(5, 5, initialW=1.0)]
        step = mpchain.capture(lambda x: functools.reduce(lambda y, f: f(y), layers, x))
        for i in range(5):
            step(arrays(i)[0])
        layers[0] = L.Linear(5, 5, initialW=2.0)
        x = arrays(0)[0]
        for _ in range(4):
            np.testing.assert_allclose(step(x).array, layers[0](x).array, rtol=1e-5)
        assert step.reason is None

    def test_arrays_that_the_program_replaces_are_read_anew(self):
        model = Scaled()
        step = mpchain.capture(lambda x: x * model.mask)
        reasons = []
        for i in range(9):
            model.mask = np.full(5, float(i), "f")
            np.testing.assert_array_equal(step(arrays(i)[0]), arrays(i)[0] * i)
            reasons.append(step.reason)
        assert reasons[-4:] == [None] * 4

    def test_arrays_that_the_program_changes_are_read_anew(self):
        weights = np.ones(5, "f")
        step = mpchain.capture(lambda x: np.take(weights * 2, x.argmax(axis=1)) + weights[0])
        for i in range(8):
            weights[:] = np.arange(5) * (1 if i < 5 else i)
            x = arrays(i)[0]
            expected = (weights * 2)[x.argmax(axis=1)] + weights[0]
            np.testing.assert_array_equal(step(x), expected)
        assert step.reason is None


class TestWrites:
    """A replay also writes into the program's arrays that the step writes into."""

    def check(self, make):
        """Compares a step with its captured form; ``make`` gets ``capture``, and returns the step
        and an array that the step changes."""
        seen = []
        for capture in (lambda function: function, mpchain.capture):
            step, array = make(capture)
            seen.append([])
            for i in range(7):
                step(arrays(i)[0], np.arange(6) + i % 3)
                seen[-1].append(array.copy())
        np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5)
        assert step.reason is None

    def test_into_a_buffer(self):
        def make(capture):
            buffer, model = np.zeros((6, 3), "f"), L.Linear(5, 3, initialW=1.0)

            def step(x, places):
                buffer[...] = model(x).array

            return capture(step), buffer

        self.check(make)

    @pytest.mark.parametrize("kind", ["closure", "list", "link", "object"])
    def test_by_index(self, kind):
        def make(capture):
            losses = np.zeros(3, "f")
            link, thing = mpchain.Link(), types.SimpleNamespace(losses=losses)
            link.losses, held = losses, [losses]

            def step(x, places):
                if kind == "closure":
                    losses[1] = x.sum()
                elif kind == "list":
                    held[0][1] += x.sum()
                elif kind == "link":
                    np.add(link.losses, x.sum(), out=link.losses)
                else:
                    np.maximum.at(thing.losses, [0, 2], x.sum())

            return capture(step), losses

        self.check(make)

    def test_memory_banks(self):
        def make(capture):
            bank = np.zeros((8, 5), "f")

            def step(x, places):
                bank[places] = x
                return (bank @ x.T).sum()

            return capture(step), bank

        self.check(make)

    def test_by_out(self):
        def make(capture):
            model, found = L.Linear(5, 3, initialW=1.0), np.zeros((3, 5), "f")
            optimizer = optimizers.SGD(0.1).setup(model)

            def step(x, places):
                optimizer.update(lambda: F.mean(model(x)))
                # A WGAN clips weights in this way.
                np.clip(model.W.array, -0.9, 0.9, out=model.W.array)
                x[:3].clip(0, 1, out=found)
                return np.sum(model.W.array[None], axis=0, out=np.empty_like(x[:3]))

            return capture(step), found

        self.check(make)


class TestLeft:
    """Arrays that a step replaces are carried from call to call."""

    def test_spectral_normalization(self):
        def make():
            from mpchain.link_hooks import SpectralNormalization

            model = L.Linear(5, 3)
            model.add_hook(SpectralNormalization())
            optimizer = optimizers.SGD(0.1).setup(model)

            def step(x, t):
                loss = F.softmax_cross_entropy(model(x), t)
                model.cleargrads()
                loss.backward()
                optimizer.update()
                return loss

            return step, model

        check(make, [arrays(i) for i in range(10)])

    @pytest.mark.parametrize("with_update", [False, True])
    @pytest.mark.parametrize("is_persistent", [False, True])
    def test_averages_of_ones_own(self, with_update, is_persistent):
        def make():
            model = L.Linear(5, 3)
            model.ema = np.zeros(5, "f")
            if is_persistent:
                model.register_persistent("ema")
            optimizer = optimizers.SGD(0.1).setup(model)

            def step(x, t):
                model.ema = 0.9 * model.ema + 0.1 * x.mean(axis=0)
                loss = F.softmax_cross_entropy(model(x - model.ema), t)
                model.cleargrads()
                loss.backward()
                if with_update:
                    optimizer.update()
                return loss, model.ema

            return step, model

        check(make, [arrays(i) for i in range(9)])

    def test_in_closures_and_dicts(self):
        def make():
            total, held = np.zeros(5, "f"), {"max": np.zeros(5, "f")}

            def step(x, t):
                nonlocal total
                total = total + x.sum(axis=0)
                held["max"] = np.maximum(held["max"], x.max(axis=0))
                return total * held["max"]

            return (step,)

        check(make, [arrays(i) for i in range(9)])

    def test_variables_in_closures(self):
        def make():
            cell, h = L.Linear(5, 5, initialW=0.1), mpchain.Variable(np.zeros((6, 5), "f"))

            def step(x, t):
                nonlocal h
                h = mpchain.Variable(F.tanh(cell(x) + h).array)
                return F.sum(h)

            return step, cell

        check(make, [arrays(i) for i in range(9)])

    def test_what_is_carried_is_not_overwritten(self):
        model = L.Linear(5, 3)
        model.mean = np.zeros(5, "f")

        @mpchain.capture
        def step(x):
            model.mean = 0.5 * model.mean + x.mean(axis=0)

        kept = []
        for i in range(8):
            step(arrays(i)[0])
            kept.append((model.mean, model.mean.copy()))
        assert step.reason is None
        for array, value in kept:
            np.testing.assert_array_equal(array, value)

    def test_containers_of_arrays_are_refused(self):
        model = L.Linear(5, 3)
        model.cache = None

        def step(x):
            model.cache = (x.sum(), [x * 2])

        step = mpchain.capture(step)
        with pytest.warns(UserWarning, match="cache of a Linear has changed in 8 calls"):
            for i in range(12):
                step(arrays(i)[0])
        np.testing.assert_array_equal(model.cache[1][0], arrays(11)[0] * 2)


def test_changes_that_come_rarely():
    settings = {"scale": 1.0}
    step = mpchain.capture(lambda x: x * settings["scale"])
    for epoch in range(12):
        settings["scale"] = 1.0 + epoch
        for i in range(40):
            assert step(np.full(2, float(i)))[0] == i * settings["scale"]
    assert step.reason is None


def test_helpers_of_an_installed_package():
    settings = {"scale": 1.0}
    names = {"settings": settings, "__name__": "zoo.layers"}
    code = "def scale(): return settings['scale']\ndef step(x): return x * scale()"
    exec(compile(code, "site-packages/zoo/layers.py", "exec"), names)
    step = mpchain.capture(names["step"])
    for i in range(8):
        settings["scale"] = 1.0 if i < 5 else 2.0
        assert step(np.full(2, float(i)))[0] == i * settings["scale"]
