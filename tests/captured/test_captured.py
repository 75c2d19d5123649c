"""Tests that captured steps equal eager steps, and the reasons why some steps are not replayed."""

import itertools
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers, serializers
from mpchain.captured import comparison
from mpchain.function_hooks import TimerHook
from mpchain.training.updaters import StandardUpdater
from tests.models import LanguageModel

BATCH = 6


def batch_of(i, n=BATCH, shape=(5,)):
    random = np.random.RandomState(i)
    return random.randn(n, *shape).astype("f"), random.randint(0, 3, n).astype("i")


def perceptron():
    np.random.seed(0)
    return mpchain.Sequential(L.Linear(5, 7), F.relu, L.Linear(7, 3))


def convolutional():
    np.random.seed(0)
    return mpchain.Sequential(
        L.Convolution2D(1, 4, 3, pad=1, nobias=True),
        L.BatchNormalization(4),
        F.relu,
        lambda x: F.max_pooling_2d(x, 2),
        L.Linear(64, 8),
        F.tanh,
        lambda x: F.dropout(x, 0.4),
        L.Linear(8, 3),
    )


def values_of(model):
    saved = {}
    model.serialize(serializers.DictionarySerializer(saved))
    return {name: value.copy() for name, value in saved.items() if value is not None}


def assert_equal(model, other):
    others = values_of(other)
    for name, value in values_of(model).items():
        np.testing.assert_allclose(value, others[name], rtol=1e-5, atol=1e-6, err_msg=name)


def classifier_step(model, optimizer):
    def step(x, t):
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    return step


def penalty_step(model, optimizer):
    def step(x, t):
        x = mpchain.Variable(x)
        (gx,) = mpchain.grad([F.sum(F.tanh(model(x)))], [x], enable_double_backprop=True)
        loss = F.mean((F.sqrt(F.sum(gx**2, axis=1)) - 1) ** 2) + F.mean(model(x) ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return {"loss": loss, "norm": F.sum(gx).array}

    return step


def run_both(make_model, make_optimizer, make_step, shape=(5,), n_steps=7):
    """Trains two equal models, one of them with captured steps; returns both models, the results,
    and the captured step."""
    models, results, steps = [], [], []
    for is_captured in (False, True):
        model = make_model()
        step = make_step(model, make_optimizer().setup(model))
        step = mpchain.capture(step) if is_captured else step
        np.random.seed(1)
        results.append([step(*batch_of(i, shape=shape)) for i in range(n_steps)])
        models.append(model)
        steps.append(step)
    return models, results, steps[1]


@pytest.mark.parametrize(
    "make_optimizer", [optimizers.SGD, optimizers.MomentumSGD, optimizers.Adam]
)
def test_steps_are_replayed_with_the_same_numbers(make_optimizer):
    models, losses, step = run_both(perceptron, make_optimizer, classifier_step)
    assert step.reason is None
    np.testing.assert_allclose(*[[y.array for y in ys] for ys in losses], rtol=1e-5)
    assert_equal(*models)
    for p, q in zip(*[m.params() for m in models]):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-5, atol=1e-7)
        assert p.update_rule.t == q.update_rule.t == 7


def test_gradients_of_gradients_are_replayed():
    models, results, step = run_both(perceptron, optimizers.Adam, penalty_step)
    assert step.reason is None
    for expected, found in zip(*results):
        np.testing.assert_allclose(found["loss"].array, expected["loss"].array, rtol=1e-5)
        np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-5)
    assert_equal(*models)


def test_dropout_draws_and_running_statistics_move_in_replays():
    models, losses, step = run_both(convolutional, optimizers.SGD, classifier_step, (1, 8, 8))
    assert step.reason is None
    np.testing.assert_allclose(*[[y.array for y in ys] for ys in losses], rtol=1e-4)
    assert_equal(*models)


def test_what_is_returned_is_kept_by_later_replays():
    _, (expected, found), _ = run_both(perceptron, optimizers.SGD, penalty_step)
    np.testing.assert_allclose([y["norm"] for y in found], [y["norm"] for y in expected], rtol=1e-5)
    assert len({id(y["norm"]) for y in found}) == len(found)
    assert not any(y["loss"].requires_grad for y in found)


def test_results_that_are_no_longer_read_share_memory():
    _, _, step = run_both(perceptron, optimizers.SGD, penalty_step)
    (known,) = step._steps.values()
    sizes = [x.nbytes for call in known.plan._calls for x in call[2] if isinstance(x, np.ndarray)]
    assert known.plan.n_bytes < sum(sizes)


class TestOptimizers:
    def test_hooks_and_rates_act_in_replays(self):
        models = []
        for is_captured in (False, True):
            model = perceptron()
            optimizer = optimizers.Adam().setup(model)
            optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))
            optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
            step = classifier_step(model, optimizer)
            step = mpchain.capture(step) if is_captured else step
            for i in range(8):
                optimizer.alpha = 0.01 / (i + 1)
                step(*batch_of(i))
            models.append(model)
        assert step.reason is None
        assert_equal(*models)

    def test_gradients_wait_for_an_optimizer_that_is_called_outside(self):
        models = []
        for is_captured in (False, True):
            model = perceptron()
            optimizer = optimizers.MomentumSGD(0.1).setup(model)

            def gradients(x, t, model=model):
                model.cleargrads()
                F.softmax_cross_entropy(model(x), t).backward()

            step = mpchain.capture(gradients) if is_captured else gradients
            for i in range(6):
                step(*batch_of(i))
                optimizer.update()
            models.append(model)
        assert step.reason is None
        assert_equal(*models)

    def test_two_optimizers_update_in_turn(self):
        models = []
        for is_captured in (False, True):
            first, second = perceptron(), mpchain.Sequential(L.Linear(3, 3))
            second.copyparams(second)
            second[0].W.array[...] = np.eye(3)
            both = [optimizers.SGD(0.1).setup(m) for m in (first, second)]

            def step(x, t, first=first, second=second, both=both):
                y = first(x)
                for sign, optimizer in zip((1, -1), both):
                    loss = sign * F.softmax_cross_entropy(second(y), t)
                    first.cleargrads()
                    second.cleargrads()
                    loss.backward()
                    optimizer.update()

            step = mpchain.capture(step) if is_captured else step
            for i in range(7):
                step(*batch_of(i))
            models.append(mpchain.Sequential(first, second))
        assert step.reason is None
        assert_equal(*models)


class TestFallback:
    """A step that is not replayed runs eagerly, and gives the reason."""

    def check(self, function, reason, n=5):
        step = mpchain.capture(function)
        with pytest.warns(UserWarning, match=reason):
            found = [step(*batch_of(i)) for i in range(n)]
        assert step.reason is not None
        return found

    def test_values_that_are_read(self):
        model = perceptron()
        found = self.check(
            lambda x, t: float(F.sum(model(x)).array), "reads the values of an array"
        )
        expected = [float(F.sum(model(batch_of(i)[0])).array) for i in range(5)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_numbers_that_change(self):
        model, count = perceptron(), iter(range(100))
        self.check(lambda x, t: F.sum(model(x)) * next(count), "one step, .* in another")

    def test_draws_that_are_not_recorded(self):
        model = perceptron()
        self.check(
            lambda x, t: F.sum(model(x + np.random.randn(*x.shape).astype("f"))),
            "by means that are not recorded",
        )

    def test_other_functions_by_turns(self):
        model, count = perceptron(), iter(range(100))
        self.check(
            lambda x, t: (F.tanh if next(count) % 2 else F.exp)(model(x)), "it calls .* in another"
        )

    def test_memory_that_is_not_recorded(self):
        model = perceptron()

        def step(x, t):
            y = np.zeros((len(x), 5), "f")
            np.add(x, 1, out=y)
            return F.sum(model(y))

        self.check(step, "memory that is not recorded")

    def test_sorting_in_place(self):
        model = perceptron()

        def step(x, t):
            y = x + 0
            y.sort()
            return F.sum(model(y))

        self.check(step, "sort changes an array")

    def test_a_dynamic_loss_scale(self):
        model = perceptron()
        optimizer = optimizers.SGD().setup(model)
        optimizer.loss_scaling()
        self.check(lambda x, t: optimizer.update(lambda: F.sum(model(x))), "dynamic loss scale")

    def test_debug_mode_and_hooks_see_each_operation(self):
        _, _, step = run_both(perceptron, optimizers.SGD, classifier_step)
        with TimerHook() as timer:
            step(*batch_of(0))
        assert "hooks" in step.reason and timer.call_history
        with mpchain.using_config("debug", True):
            step(*batch_of(0))
        assert "debug" in step.reason
        step(*batch_of(0))
        assert step.reason is None

    def test_a_value_that_decides_is_compared_before_all_else(self):
        models, _, step = run_both(perceptron, optimizers.SGD, classifier_step)
        before = values_of(models[1])
        x, t = batch_of(0)
        with pytest.raises(ValueError, match="softmax_cross_entropy"):
            step(x, t + 3)
        for name, value in values_of(models[1]).items():
            np.testing.assert_array_equal(value, before[name])
        step(x, t)
        assert step.reason is None

    def test_arguments_that_are_not_hashable(self):
        step = mpchain.capture(lambda x, options: F.sum(x))
        step(np.ones(2), {})
        assert "hashable" in step.reason

    def test_an_error_leaves_parameters_as_they_were(self):
        model = perceptron()
        step = mpchain.capture(lambda x: model(x))
        for _ in range(2):
            with pytest.raises(mpchain.utils.type_check.InvalidType):
                step(np.ones((2, 4), "f"))
        assert all(type(p.array) is np.ndarray for p in model.params())


def test_constant_loss_scales():
    def make_step(model, optimizer):
        optimizer.set_loss_scale(4.0)

        return lambda x, t: optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

    models, _, step = run_both(perceptron, optimizers.SGD, make_step)
    assert step.reason is None
    assert_equal(*models)
    optimizer = next(iter(step._steps.values()))._state.scales[0][0]
    optimizer.set_loss_scale(16.0)
    reasons = []
    for i in range(3):
        step(*batch_of(i))
        reasons.append(step.reason)
    assert reasons == ["it is being recorded", "it is being recorded", None]


def test_arrays_that_are_changed_in_part():
    @mpchain.capture
    def step(x, t):
        y = x * 2
        np.negative(y, out=y, where=x > 0)
        y[0] = 5
        y[:, 1] += 1
        np.add.at(y, t, np.ones_like(y[0]))
        return y.T.copy(), np.concatenate([y, x]), y[t], np.where(x > 0, y, 0), y.sum(axis=(0, 1))

    for i in range(6):
        x, t = batch_of(i)
        found = step(x, t)
        y = x * np.where(x > 0, -2, 2).astype("f")
        y[0] = 5
        y[:, 1] += 1
        np.add.at(y, t, 1)
        expected = y.T, np.concatenate([y, x]), y[t], np.where(x > 0, y, 0), y.sum()
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert step.reason is None


class TestChanges:
    """The values that these tests change may change between replays."""

    def test_each_shape_is_recorded(self):
        models = [perceptron(), perceptron()]
        steps = [classifier_step(m, optimizers.SGD(0.1).setup(m)) for m in models]
        steps[1] = mpchain.capture(steps[1])
        for i in range(10):
            for step in steps:
                step(*batch_of(i, 6 if i % 2 else 4))
        assert steps[1].reason is None
        assert_equal(*models)

    def test_training_and_evaluation_are_recorded_apart(self):
        model = convolutional()
        predict = mpchain.capture(lambda x: model(x).array)
        x = batch_of(0, shape=(1, 8, 8))[0]
        for _ in range(4):
            predict(x)
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            found = [predict(x) for _ in range(5)]
            np.testing.assert_allclose(found[-1], model(x).array, rtol=1e-5)
        assert predict.reason is None

    def test_values_that_are_loaded_count(self):
        model = perceptron()
        predict = mpchain.capture(lambda x: model(x).array)
        x = batch_of(0)[0]
        for _ in range(4):
            predict(x)
        model[0].W.array[...] = 2
        np.testing.assert_allclose(predict(x), model(x).array, rtol=1e-5)
        assert predict.reason is None

    def test_arrays_that_replace_those_of_parameters_are_recorded_anew(self):
        model = perceptron()
        predict = mpchain.capture(lambda x: model(x).array)
        x = batch_of(0)[0]
        for _ in range(4):
            predict(x)
        model[0].W.array = model[0].W.array * 2
        for reason in ("it is being recorded", "it is being recorded", None):
            np.testing.assert_allclose(predict(x), model(x).array, rtol=1e-5, atol=1e-6)
            assert predict.reason == reason

    def test_variables_that_the_function_names(self):
        x = mpchain.Variable(np.ones(3, "f"))

        @mpchain.capture
        def step():
            x.cleargrad()
            loss = F.sum(x**3)
            loss.backward()
            return loss

        for i in range(6):
            x.array[...] = i
            assert step().array == 3 * i**3
            np.testing.assert_allclose(x.grad, [3 * i**2] * 3)
        assert step.reason is None

    def test_parameters_that_the_function_does_not_name(self):
        models = {"a": [perceptron()]}
        predict = mpchain.capture(lambda x: models["a"][0](x).array)
        x = batch_of(0)[0]
        for _ in range(5):
            predict(x)
        assert predict.reason is None
        W = models["a"][0][0].W
        W.array = W.array * 2
        np.testing.assert_allclose(predict(x), models["a"][0](x).array, rtol=1e-5)

    def test_computations_on_parameters_alone_are_replayed(self):
        model = perceptron()
        norm = mpchain.capture(lambda: F.sum(model[0].W ** 2).array)
        for _ in range(4):
            norm()
        model[0].W.array *= 2
        np.testing.assert_allclose(norm(), np.sum(model[0].W.array ** 2), rtol=1e-5)
        assert norm.reason is None


class TestUpdater:
    def train(self, graph, n=9):
        model = L.Classifier(convolutional())
        data = [*zip(*batch_of(0, 20, (1, 8, 8)))]
        batches = mpchain.iterators.SerialIterator(data, BATCH, shuffle=False)
        optimizer = optimizers.MomentumSGD(0.05).setup(model)
        updater = StandardUpdater(batches, optimizer, graph=graph)
        reporter = mpchain.Reporter()
        reporter.add_observer("main", model)
        np.random.seed(1)
        seen = []
        with reporter, warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(n):
                with mpchain.report_scope({}):
                    updater.update()
                    seen.append({k: float(v.array) for k, v in reporter.observation.items()})
        return model, seen, updater

    def test_updates_and_reports_are_the_same(self):
        (model, expected, _), (other, found, updater) = map(self.train, (False, True))
        assert updater.captured.reason is None
        assert_equal(model, other)
        assert all(set(values) == {"main/loss", "main/accuracy"} for values in found)
        for name in found[0]:
            np.testing.assert_allclose(
                *[[v[name] for v in s] for s in (found, expected)], rtol=1e-4
            )


def language_model():
    np.random.seed(0)
    return LanguageModel(9, 4, 5)


def truncated_step(model, optimizer, unchains=True):
    optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))

    def step(words):
        pairs = itertools.pairwise(words)
        loss = sum(F.softmax_cross_entropy(model(x), t) for x, t in pairs)
        model.cleargrads()
        loss.backward()
        if unchains:
            loss.unchain_backward()
        optimizer.update()
        return loss

    return step


def words_of(i, n=3):
    return np.random.RandomState(i).randint(0, 9, (5, n)).astype("i")


def test_state_that_links_keep_is_carried_from_replay_to_replay():
    models, losses, reasons = [], [], []
    for is_captured in (False, True):
        model = language_model()
        step = truncated_step(model, optimizers.SGD(1.0).setup(model))
        step = mpchain.capture(step) if is_captured else step
        for i in range(9):
            if i == 6:
                model.lstm.reset_state()
            losses.append(step(words_of(i)).array)
            reasons.append(getattr(step, "reason", None))
        models.append(model)
    np.testing.assert_allclose(losses[:9], losses[9:], rtol=1e-5)
    assert_equal(*models)
    for name in ("c", "h"):
        states = [getattr(model.lstm, name).array for model in models]
        np.testing.assert_allclose(*states, rtol=1e-5)
    assert reasons[-6:] == [
        *[None] * 3,
        "a link keeps no value from the step before, or a value of another shape",
        *[None] * 2,
    ]


def test_state_that_is_reset_while_steps_are_recorded_is_recorded_anew():
    model = language_model()
    step = mpchain.capture(truncated_step(model, optimizers.SGD(1.0).setup(model)))
    for i in range(6):
        if i == 2:
            model.lstm.reset_state()
        step(words_of(i))
    assert step.reason is None


def test_state_that_keeps_its_graph_is_a_reason():
    model = language_model()
    step = truncated_step(model, optimizers.SGD(1.0).setup(model), unchains=False)
    step = mpchain.capture(step)
    with pytest.warns(UserWarning, match="call the loss's method unchain_backward"):
        for i in range(4):
            step(words_of(i))
    assert "of a LSTM keeps the graph of the step before" in step.reason


def test_variables_that_links_keep_are_those_of_the_latest_replay():
    model = L.Classifier(perceptron())
    optimizer = optimizers.SGD().setup(model)
    step = mpchain.capture(lambda x, t: optimizer.update(model, x, t))
    for i in range(6):
        step(*batch_of(i))
        before = model.loss
    assert step.reason is None
    step(*batch_of(0))
    assert model.loss is not before and model.loss.array != before.array


class Counting(mpchain.Link):
    """A link that adds to its state in place."""

    def __init__(self):
        super().__init__()
        self.total = mpchain.Variable(np.zeros(2, "f"), requires_grad=False)

    def forward(self, x):
        self.total.array += x.array if isinstance(x, mpchain.Variable) else x
        return F.sum(x * self.total)


def test_variables_that_links_change_in_place_keep_their_values():
    link = Counting()
    step = mpchain.capture(lambda x: link(x))
    found = [float(step(np.ones(2, "f")).array) for _ in range(6)]
    assert step.reason is None
    assert found == [2, 4, 6, 8, 10, 12]


def test_functions_of_no_module():
    names = {"mpchain": mpchain, "model": perceptron()}
    exec("step = mpchain.capture(lambda x: model(x).array)", names)
    for i in range(4):
        names["step"](batch_of(i)[0])
    assert names["step"].reason is None


@pytest.mark.parametrize(
    ("n_mismatches", "reason"), [(1, None), (2, "a replay computed other gradients")]
)
def test_gradients_that_differ_once_are_recorded_again(monkeypatch, n_mismatches, reason):
    # Gradients differ if rounding turns a rectifier on or off; here the comparison is replaced.
    found = []

    def are_close(*arguments):
        found.append(arguments)
        return len(found) > n_mismatches

    monkeypatch.setattr(comparison, "_are_close", are_close)
    model = perceptron()
    optimizer = optimizers.SGD(0.1).setup(model)
    step = mpchain.capture(classifier_step(model, optimizer))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(7):
            step(*batch_of(i))
    assert step.reason == reason
    assert len(caught) == (reason is not None)
    assert len(found) > 1
