"""Tests the values of schedules, with and without a trainer."""

import math

import numpy as np
import pytest

from mpchain import iterators, optimizers, training
from mpchain import links as L
from mpchain.serializers import DictionarySerializer, NpzDeserializer, load_npz, save_npz
from mpchain.training import extensions

N = 9

# By schedule: arguments, options, and what Chainer 7.8.1 produced with an SGD whose lr is 1.5: the
# first value and the values after each of eight calls, rounded to six digits.
OF_CHAINER = {
    "ExponentialShift": [
        (("lr", 0.5), {}, "1.5 .75 .375 .1875 .09375 .046875 .0234375 .0117188 .00585938"),
        (("lr", 0.5, 2.0, 0.3), {}, "2 1 .5 .3 .3 .3 .3 .3 .3"),
        (("lr", 2), {"init": 1.0, "target": 5}, "1 2 4 5 5 5 5 5 5"),
        (("lr", 2), {"init": -1.0, "target": -5}, "-1 -2 -4 -5 -5 -5 -5 -5 -5"),
    ],
    "InverseShift": [
        (
            ("lr", 0.1, 0.75),
            {},
            "1.5 1.39652 1.30829 1.23207 1.16545 1.10668 1.05439 1.00752 .965243",
        ),
        (("lr", 0.1, 0.75, 2.0, 1.8), {}, "2 1.86202 1.8 1.8 1.8 1.8 1.8 1.8 1.8"),
        (("lr", 0.1, -0.75, 2.0, 2.4), {}, "2 2.1482 2.29306 2.4 2.4 2.4 2.4 2.4 2.4"),
    ],
    "LinearShift": [(("lr", (1.0, 0.0), (2, 6)), {}, "1 1 1 .75 .5 .25 0 0 0")],
    "MultistepShift": [
        (("lr", 0.1, [2, 4, 5], 1.0), {}, "1 1 .1 .1 .01 .001 .001 .001 .001"),
    ],
    "PolynomialShift": [
        (("lr", 0.5, 5), {}, "1.5 1.34164 1.1619 .948683 .67082 0 0 0 0"),
    ],
    "StepShift": [
        (("lr", 0.1, 3), {}, "1.5 1.5 1.5 .15 .15 .15 .015 .015 .015"),
        (("lr", 0.1, 2, 2.0, 0.05), {}, "2 2 .2 .2 .05 .05 .05 .05 .05"),
        (("lr", 10, 2, 2.0, 30), {}, "2 2 20 20 30 30 30 30 30"),
    ],
    "WarmupShift": [(("lr", 0.1, 4, 1.0), {}, ".1 .325 .55 .775 1 1 1 1 1")],
}
CASES = [(name, *case) for name, cases in OF_CHAINER.items() for case in cases]
CASES += [
    ("CosineShift", ("lr", 4), {}, "1.5 1.28033 .75 .21967 0 0 0 0 0"),
    ("CosineShift", ("lr", 6, 1.0, 0.5, 2), {}, "0 .5 1 .926777 .75 .573223 .5 .5 .5"),
    ("OneCycleShift", ("lr", 5.0, 8, 0.5), {}, ".2 .902944 2.6 4.29706 5 4.26777 2.50001 .732244"),
]
MINIMAL = [(name, args) for name, args, options, _ in CASES if not options]


class Step:
    """The attributes of a trainer that a schedule reads."""

    def __init__(self, optimizer):
        self.updater = self
        self.optimizer = optimizer

    def get_optimizer(self, name):
        assert name == "main"
        return self.optimizer


def values_of(schedule, n=N, attr="lr", trainer=None):
    trainer = trainer or Step(optimizers.SGD(1.5))
    schedule.initialize(trainer)
    values = [getattr(trainer.optimizer, attr)]
    for _ in range(n - 1):
        schedule(trainer)
        values.append(getattr(trainer.optimizer, attr))
    return values


@pytest.mark.parametrize("name, args, options, expected", CASES)
def test_values(name, args, options, expected):
    schedule = getattr(extensions, name)(*args, **options)
    expected = [float(x) for x in expected.split()]
    values = values_of(schedule, len(expected))
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-9)
    assert [schedule.value(t) for t in range(len(expected))] == values
    assert schedule.default_name == name and schedule.trigger == (1, "iteration")


def test_cosine_against_pytorch():
    torch = pytest.importorskip("torch", reason="needs PyTorch as the reference")
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.5)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 20, eta_min=0.25)
    expected = []
    for _ in range(20):
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        reference.step()
    actual = values_of(extensions.CosineShift("lr", 20, target=0.25), 20)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_one_cycle_against_pytorch():
    torch = pytest.importorskip("torch", reason="needs PyTorch as the reference")
    n, rise = 20, 0.25
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.5)
    # PyTorch counts values, not steps between them.
    reference = torch.optim.lr_scheduler.OneCycleLR(
        sgd, 3.0, total_steps=n + 1, pct_start=(rise * n + 1) / (n + 1)
    )
    expected = []
    for i in range(n + 1):
        expected.append([sgd.param_groups[0][key] for key in ("lr", "momentum")])
        sgd.step()
        if i < n:
            reference.step()
    momentum = extensions.OneCycleShift("momentum", 0.85, n, rise, init=0.95, target=0.95)
    trainer = Step(optimizers.MomentumSGD())
    actual = [
        values_of(extensions.OneCycleShift("lr", 3.0, n, rise), n + 1, trainer=trainer),
        values_of(momentum, n + 1, "momentum", trainer),
    ]
    np.testing.assert_allclose(np.transpose(actual), expected, rtol=1e-9)


def test_an_optimizer_that_is_given():
    adam = optimizers.Adam(0.5)
    schedule = extensions.ExponentialShift("alpha", 0.5, optimizer=adam)
    schedule.initialize(None)
    schedule(None)
    assert adam.alpha == 0.25


def test_a_loop_without_a_trainer():
    optimizer = optimizers.SGD().setup(L.Linear(1, 1))
    schedule = extensions.CosineShift("lr", 4, init=1.0)
    rates = []
    for t in range(4):
        optimizer.lr = schedule.value(t)
        rates.append(optimizer.target.W.update_rule.hyperparam.lr)
    np.testing.assert_allclose(rates, [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)])


def test_a_formula_of_ones_own():
    class Wobble(extensions.Schedule):
        def formula(self, t, init):
            return init + (-1) ** t

    assert values_of(Wobble("lr"), 4) == [2.5, 0.5, 2.5, 0.5]
    assert values_of(Wobble("lr", target=1.0), 4) == [1.5, 1.0, 1.5, 1.0]


def test_warm_up_leaves_the_value_to_others_afterwards():
    trainer = Step(optimizers.SGD(1.5))
    shift, warmup = extensions.StepShift("lr", 0.5, 3), extensions.WarmupShift("lr", 0.5, 2, 1.5)
    values = []
    for schedule in (shift, warmup):
        schedule.initialize(trainer)
    for _ in range(4):
        values.append(trainer.optimizer.lr)
        for schedule in (shift, warmup):
            schedule(trainer)
    assert values == [0.5, 1.0, 1.5, 0.75]


# Saving


@pytest.mark.parametrize("name, args", MINIMAL)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_resuming(name, args, n):
    whole, part, rest = (getattr(extensions, name)(*args) for _ in range(3))
    expected = values_of(whole, n + 5)
    values_of(part, n + 1)
    saved = DictionarySerializer()
    saved.save(part)
    more = "_current_step" if name == "MultistepShift" else "_last_value"
    assert set(saved.target) == {"_t", more}  # Chainer saves at least this
    NpzDeserializer(saved.target).load(rest)
    assert values_of(rest, 5) == expected[n:]


def test_keys_and_values_of_chainer():
    shift = extensions.MultistepShift("lr", 0.1, [2, 4, 5], 1.0)
    values_of(shift, 5)
    saved = DictionarySerializer()
    saved.save(shift)
    assert {k: v.item() for k, v in saved.target.items()} == {"_t": 4, "_current_step": 2}
    fresh = extensions.ExponentialShift("lr", 0.5)
    saved = DictionarySerializer()
    saved.save(fresh)
    assert set(saved.target) == {"_t"}
    theirs = {"_t": np.array(3), "_last_value": np.array(0.1875)}
    NpzDeserializer(theirs).load(fresh)
    assert values_of(fresh, 2) == [0.1875, 0.09375]


def make_trainer(out, n, **snapshot):
    model = L.Linear(1, 1)
    optimizer = optimizers.SGD(1.0).setup(model)
    iterator = iterators.SerialIterator([np.ones(1, np.float32)] * 2, 1)
    updater = training.updaters.StandardUpdater(
        iterator, optimizer, loss_func=lambda x: model(x)[0, 0] * 1
    )
    trainer = training.Trainer(updater, (n, "iteration"), out=out)
    trainer.extend(extensions.ExponentialShift("lr", 0.5))
    trainer.extend(extensions.snapshot(filename="snapshot", **snapshot), trigger=(1, "iteration"))
    return trainer


def test_a_trainer(tmp_path):
    trainer = make_trainer(tmp_path, 3)
    trainer.run()
    assert trainer.updater.get_optimizer("main").lr == 0.125
    resumed = make_trainer(tmp_path, 5)
    load_npz(tmp_path / "snapshot", resumed)
    resumed.run()
    assert resumed.updater.get_optimizer("main").lr == 2.0**-5


def test_a_snapshot_that_is_loaded_when_training_starts(tmp_path):
    make_trainer(tmp_path, 3).run()
    seen = []
    resumed = make_trainer(tmp_path, 4, autoload=True)
    optimizer = resumed.updater.get_optimizer("main")
    optimizer.add_hook(lambda opt: seen.append(opt.lr), "look")
    resumed.run()
    assert seen == [0.125] and optimizer.lr == 0.0625


def test_a_schedule_that_has_not_begun(tmp_path):
    save_npz(tmp_path / "s.npz", extensions.ExponentialShift("lr", 0.5, init=2.0))
    shift = extensions.ExponentialShift("lr", 0.5)
    load_npz(tmp_path / "s.npz", shift)
    assert values_of(shift, 2) == [1.5, 0.75]


@pytest.mark.parametrize(
    "message, call",
    [
        (
            "ExponentialShift: rate must not be negative, not -1",
            lambda: extensions.ExponentialShift("lr", -1),
        ),
        (
            "InverseShift: gamma must not be negative, not -0.5",
            lambda: extensions.InverseShift("lr", -0.5, 1),
        ),
        (
            r"LinearShift: time_range must be ascending, not \(3, 3\)",
            lambda: extensions.LinearShift("lr", (0, 1), (3, 3)),
        ),
        (
            r"MultistepShift: step_value must be ascending, not \[4, 2\]",
            lambda: extensions.MultistepShift("lr", 0.1, [4, 2], 1.0),
        ),
        (
            "PolynomialShift: rate must not be negative, not -1",
            lambda: extensions.PolynomialShift("lr", -1, 4),
        ),
        (
            "PolynomialShift: max_count must be positive, not 0",
            lambda: extensions.PolynomialShift("lr", 1, 0),
        ),
        ("StepShift: step must be positive, not 0", lambda: extensions.StepShift("lr", 0.1, 0)),
        (
            "WarmupShift: warmup_iter must be positive, not 0",
            lambda: extensions.WarmupShift("lr", 0.1, 0, 1.0),
        ),
        (
            "CosineShift: warmup must be at least 0, below 4, not 4",
            lambda: extensions.CosineShift("lr", 4, warmup=4),
        ),
        (
            "OneCycleShift: rise must lie between 0 and 1, not 1",
            lambda: extensions.OneCycleShift("lr", 1.0, 4, 1),
        ),
        (
            "OneCycleShift: max_count must be positive, not 0",
            lambda: extensions.OneCycleShift("lr", 1.0, 0),
        ),
        (
            "StepShift.value: init must be passed, because the value of 'lr' is unknown before",
            lambda: extensions.StepShift("lr", 0.1, 2).value(1),
        ),
        (
            "StepShift: attr must name an attribute of the optimizer, but Adam has no 'rate'",
            lambda: extensions.StepShift("rate", 0.1, 2).initialize(Step(optimizers.Adam())),
        ),
        (
            "Schedule does not implement formula",
            lambda: extensions.Schedule("lr", 1.0).value(1),
        ),
    ],
)
def test_errors(message, call):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        call()
