import math
from fractions import Fraction

import numpy as np
import pytest

from mpchain import Link, Parameter
from mpchain.optimizers import SGD
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training import Extension, IntervalTrigger, get_trigger, triggers, util
from mpchain.training.updaters import Updater


class FakeTrainer:
    """Imitates the attributes of a trainer that triggers read; the test sets the progress."""

    def __init__(self, n_samples=25, batch_size=10):
        self.updater = Updater()
        self.observation = {}
        self.elapsed_time = 0.0
        self.n_samples = n_samples
        self.batch_size = batch_size
        self.go_to(0)

    def go_to(self, iteration):
        done = iteration * self.batch_size
        self.updater.iteration = iteration
        self.updater.epoch = done // self.n_samples
        self.updater.epoch_detail = self.updater.epoch + done % self.n_samples / self.n_samples

    def epochs(self, iteration):
        return Fraction(iteration * self.batch_size, self.n_samples)


def fire(trigger, trainer, n_iterations, start=0):
    """Returns the iterations after ``start`` at which a trigger fires."""
    fired = []
    for iteration in range(start + 1, n_iterations + 1):
        trainer.go_to(iteration)
        if trigger(trainer):
            fired.append(iteration)
    return fired


def copy_state(source, target):
    serializer = DictionarySerializer()
    serializer.save(source)
    NpzDeserializer(serializer.target).load(target)
    return target


@pytest.mark.parametrize(("n_samples", "batch_size"), [(25, 10), (100, 10), (7, 3), (10, 25)])
@pytest.mark.parametrize("period", ["1", "2", "7", "0.1", "0.3", "0.5", "1.5"])
@pytest.mark.parametrize("unit", ["epoch", "iteration"])
def test_interval_fires_when_a_multiple_is_passed(n_samples, batch_size, period, unit):
    trainer = FakeTrainer(n_samples, batch_size)
    exact = trainer.epochs if unit == "epoch" else Fraction
    expected = [
        i for i in range(1, 61) if exact(i) // Fraction(period) > exact(i - 1) // Fraction(period)
    ]
    assert fire(IntervalTrigger(float(period), unit), trainer, 60) == expected


def test_interval_does_not_fire_before_training():
    for unit in ("epoch", "iteration"):
        trigger = IntervalTrigger(3, unit)
        assert not trigger(FakeTrainer())
        assert not trigger(FakeTrainer())


def test_interval_asked_now_and_then_misses_nothing():
    trainer = FakeTrainer(100, 10)
    trigger = IntervalTrigger(1, "epoch")
    fired = []
    for iteration in range(3, 40, 3):
        trainer.go_to(iteration)
        if trigger(trainer):
            fired.append(iteration)
    assert fired == [12, 21, 30]


def make_triggers():
    return [
        IntervalTrigger(1, "epoch"),
        IntervalTrigger(0.3, "epoch"),
        IntervalTrigger(4, "iteration"),
        triggers.ManualScheduleTrigger([2, 3.5, 5], "epoch"),
        triggers.ManualScheduleTrigger([1, 8, 17], "iteration"),
        triggers.OnceTrigger(),
    ]


@pytest.mark.parametrize("number", range(len(make_triggers())))
@pytest.mark.parametrize("pause", [1, 2, 3, 5, 8, 10])
def test_resume_changes_nothing(number, pause):
    expected = fire(make_triggers()[number], FakeTrainer(), 20)
    before, after = make_triggers()[number], make_triggers()[number]
    fired = fire(before, FakeTrainer(), pause)
    copy_state(before, after)
    assert fired + fire(after, FakeTrainer(), 20, start=pause) == expected
    assert expected


def test_resume_with_an_interval_of_another_unit():
    before = IntervalTrigger(1, "epoch")
    fire(before, FakeTrainer(), 9)
    after = copy_state(before, IntervalTrigger(4, "iteration"))
    assert fire(after, FakeTrainer(), 20, start=9) == [12, 16, 20]


def test_get_trigger():
    assert repr(get_trigger((2, "epoch"))) == "IntervalTrigger(2, 'epoch')"
    assert get_trigger((2, "epoch")).get_training_length() == (2, "epoch")
    assert get_trigger(print) is print
    assert get_trigger(None)(FakeTrainer()) is False
    assert util.get_trigger is get_trigger


@pytest.mark.parametrize(
    ("points", "unit", "expected"),
    [
        (3, "iteration", [3]),
        ([2, 5], "iteration", [2, 5]),
        ((1, 2), "epoch", [3, 5]),
        ([0.4, 0.5, 1.2], "epoch", [1, 2, 3]),
        ([0], "iteration", []),
    ],
)
def test_manual_schedule(points, unit, expected):
    assert fire(triggers.ManualScheduleTrigger(points, unit), FakeTrainer(), 9) == expected


def test_manual_schedule_has_an_end():
    trigger, ended = triggers.ManualScheduleTrigger([4, 2], "iteration"), []
    assert not trigger.finished
    for iteration in range(1, 7):
        fire(trigger, FakeTrainer(), iteration, start=iteration - 1)
        ended.append(trigger.finished)
    assert ended == [False, False, False, True, True, True]


def test_manual_schedule_unit():
    with pytest.raises(ValueError, match=r"ManualScheduleTrigger: unit must be .* not 'hour'"):
        triggers.ManualScheduleTrigger(1, "hour")


@pytest.mark.parametrize(("call_on_resume", "expected"), [(False, []), (True, [6])])
def test_once(call_on_resume, expected):
    trigger = triggers.OnceTrigger(call_on_resume)
    assert not trigger.finished
    assert fire(trigger, FakeTrainer(), 5) == [1]
    assert trigger.finished
    resumed = copy_state(trigger, triggers.OnceTrigger(call_on_resume))
    assert fire(resumed, FakeTrainer(), 9, start=5) == expected
    assert resumed.finished


def test_time():
    def times(trigger, clock):
        trainer = FakeTrainer()
        for trainer.elapsed_time in clock:
            if trigger(trainer):
                yield trainer.elapsed_time

    first = triggers.TimeTrigger(10)
    assert list(times(first, [1, 9, 10, 11, 19, 35, 36, 39])) == [10, 35]
    second = copy_state(first, triggers.TimeTrigger(10))
    assert list(times(second, [39.5, 40, 45])) == [40]


def test_time_period():
    with pytest.raises(ValueError, match=r"TimeTrigger: period must be greater than 0 .* not 0"):
        triggers.TimeTrigger(0)


LOSSES = [3.0, 5.0, 2.0, 4.0, 9.0, 1.0, math.nan, 1.0, 0.0, 0.0, 7.0, 9.0]


def fire_on(trigger, losses, start=0):
    """Returns the iterations at which a trigger fires when each observes the next loss."""
    trainer, fired = FakeTrainer(), []
    for iteration, loss in list(enumerate(losses, 1))[start:]:
        trainer.go_to(iteration)
        trainer.observation = {"other": 1.0} if loss is None else {"loss": loss}
        if trigger(trainer):
            fired.append(iteration)
    return fired


@pytest.mark.parametrize(
    ("trigger_class", "period", "expected"),
    [
        (triggers.MinValueTrigger, 1, [1, 3, 6, 9]),
        (triggers.MaxValueTrigger, 1, [1, 2, 5]),
        (triggers.MinValueTrigger, 2, [2, 4, 10]),  # the means are 4, 3, 5, nan, 0, 8
        (triggers.MaxValueTrigger, 2, [2, 6, 12]),
    ],
)
@pytest.mark.parametrize("pause", range(0, len(LOSSES)))
def test_best_value(trigger_class, period, expected, pause):
    make = lambda: trigger_class("loss", (period, "iteration"))
    before = make()
    fired = fire_on(before, LOSSES[:pause])
    after = copy_state(before, make())
    assert fired + fire_on(after, LOSSES, start=pause) == expected


def test_best_value_compares_the_best_with_the_new():
    seen = []

    def compare(best, new):
        seen.append((best, new))
        return new == 9.0

    trigger = triggers.BestValueTrigger("loss", compare, (1, "iteration"))
    assert fire_on(trigger, [3.0, 5.0, 9.0, 1.0]) == [1, 3]
    assert seen == [(3.0, 5.0), (3.0, 9.0), (9.0, 1.0)]
    assert trigger.best_value == 9.0


def test_best_value_is_not_reported():
    trigger = triggers.MinValueTrigger("loss", (2, "iteration"))
    with pytest.raises(
        KeyError,
        match="MinValueTrigger: 'loss' was not reported in the interval that ends at "
        "iteration 4; the values reported there are: 'other'",
    ):
        fire_on(trigger, [1.0, 2.0, None, None])


@pytest.mark.parametrize(
    ("mode", "monitor", "losses", "expected"),
    [
        ("auto", "loss", [5, 4, 4, 3, 3, 3, 3], 6),
        ("min", "loss", [5, 6, 7, 1], 3),
        ("max", "loss", [5, 6, 7, 7, 7, 7], 5),
        ("auto", "accuracy", [5, 6, 7, 7, 7, 7], 5),
        ("auto", "loss", [math.nan, 5, 4, math.nan, math.nan, 1], 5),
    ],
)
def test_early_stopping(mode, monitor, losses, expected):
    trigger = triggers.EarlyStoppingTrigger((1, "iteration"), monitor, patience=2, mode=mode)
    trainer = FakeTrainer()
    assert not trigger(trainer)
    for iteration, trainer.observation in enumerate([{monitor: loss} for loss in losses], 1):
        trainer.go_to(iteration)
        if trigger(trainer):
            break
    assert iteration == expected


def test_early_stopping_has_a_limit_and_a_default_patience():
    trigger = triggers.EarlyStoppingTrigger(monitor="loss", max_trigger=(7, "iteration"))
    assert trigger.get_training_length() == (7, "iteration")
    assert trigger.patience == 3
    assert fire_on(trigger, [1.0] * 6 + [0.5] * 2)[0] == 7
    assert triggers.EarlyStoppingTrigger(max_trigger=print).get_training_length() is None


@pytest.mark.parametrize("pause", range(8))
def test_early_stopping_resumes(pause):
    losses = [5.0, 5.0, 4.0, 5.0, 6.0, 5.0, 5.0, 5.0]

    def make():
        return triggers.EarlyStoppingTrigger((2, "iteration"), "loss", patience=2)

    before = make()  # the means are 5, 4.5, 5.5, 5
    fired = fire_on(before, losses[:pause])
    after = copy_state(before, make())
    assert fired + fire_on(after, losses, start=pause) == [8]


def test_early_stopping_says_why(capsys):
    trigger = triggers.EarlyStoppingTrigger((1, "iteration"), "loss", patience=1, verbose=True)
    fire_on(trigger, [2.0, 3.0])
    assert capsys.readouterr().out == (
        "training ends early, after 0 epochs: the best loss was 2, 1 checks ago\n"
    )


def test_early_stopping_leaves_checks_without_a_value_out():
    trigger = triggers.EarlyStoppingTrigger((1, "iteration"), "loss", patience=2)
    with pytest.warns(UserWarning, match="'loss' was not reported before the check at iteration"):
        assert fire_on(trigger, [2.0, None, 3.0, None, 3.0]) == [5]


class Model(Link):
    """A model whose parameter is the iteration, and that has a persistent None."""

    def __init__(self, make):
        super().__init__()
        with self.init_scope():
            self.W = Parameter(0.0, () if make else None)
        self.add_persistent("state", None)


@pytest.mark.parametrize("pause", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(("limit", "end", "best"), [(9, 5, 2), (4, 4, 2), (2, 2, 2), (1, 1, 1)])
def test_early_stopping_restores_the_best_models(make_trainer, limit, end, best, pause):
    losses = [3.0, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]

    def train(state=None):
        def observe(trainer):
            i = trainer.updater.iteration
            trainer.observation["loss"] = losses[i - 1]
            for model in models:
                if i == 1:
                    model.W.initialize(())
                model.W.array[...] = i

        def save(trainer):
            if trainer.updater.iteration == pause:
                DictionarySerializer(saved).save(trainer)
                saved.update({key: np.array(value) for key, value in saved.items()})

        class Holder(Extension):
            def serialize(self, serializer):
                for i, model in enumerate(models):
                    model.serialize(serializer[str(i)])

        models, saved = [Model(state is not None), Model(True)], {}
        names = {name: SGD().setup(model) for name, model in zip("ab", models, strict=True)}
        stop = triggers.EarlyStoppingTrigger(
            *((1, "iteration"), "loss"), max_trigger=(limit, "iteration"), restore_best=True
        )
        trainer = make_trainer(stop)
        trainer.updater.get_all_optimizers = lambda: names
        trainer.extend(observe, priority=300)
        trainer.extend(save, priority=-100)
        trainer.extend(Holder(), trigger=(1000, "iteration"))
        if state is not None:
            NpzDeserializer(state).load(trainer)
        trainer.run()
        assert trainer.updater.iteration == end
        assert [float(model.W.array) for model in models] == [best, best]
        return saved

    saved = train()
    if saved:
        assert any("/best_models/" in key for key in saved)
        train(saved)


def test_early_stopping_keeps_no_models_unless_asked(make_trainer):
    trainer = make_trainer(triggers.EarlyStoppingTrigger())
    DictionarySerializer(saved := {}).save(trainer)
    assert not any("best_models" in key for key in saved)


def test_early_stopping_mode():
    with pytest.raises(ValueError, match="mode must be 'auto', 'max' or 'min', not 'best'"):
        triggers.EarlyStoppingTrigger(mode="best")
