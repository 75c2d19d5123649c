"""Tests that captured steps on GPUs equal eager steps; most tests compare all bits."""

import functools
import gc
import sys
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers, serializers
from mpchain.backends import cuda
from mpchain.captured.graph_memory import GraphMemory
from mpchain.training.updaters import StandardUpdater
from tests.captured.test_captured import (
    BATCH,
    batch_of,
    classifier_step,
    convolutional,
    penalty_step,
    perceptron,
    values_of,
)
from tests.models import Recurrent

pytestmark = pytest.mark.gpu
GPU = "@cupy:0"


def send(batch):
    return [mpchain.get_device(GPU).send(x) for x in batch]


def on_host(values):
    return {name: getattr(x, "get", lambda x=x: x)() for name, x in values_of(values).items()}


def assert_same(model, other):
    others = on_host(other)
    for name, value in on_host(model).items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def run_both(make_model, make_optimizer, make_step, n_steps=7, shape=(5,), each=None):
    """Trains two equal models, one of them with captured steps; returns both models, results, and
    the captured step."""
    models, results = [], []
    for is_captured in (False, True):
        mpchain.cuda.cupy.random.seed(3)
        model = make_model()
        model.to_device(GPU)
        optimizer = make_optimizer().setup(model)
        step = make_step(model, optimizer)
        step = mpchain.capture(step) if is_captured else step
        found = []
        for i in range(n_steps):
            if each is not None:
                each(optimizer, i)
            found.append(step(*send(batch_of(i, shape=shape))))
        models.append(model)
        results.append(found)
    return models, results, step


def assert_replayed_with_the_same_bits(models, losses, step):
    assert step.reason is None
    for expected, found in zip(*losses):
        assert float(expected.array) == float(found.array)
    assert_same(*models)
    for p, q in zip(*[m.params() for m in models]):
        np.testing.assert_array_equal(p.grad.get(), q.grad.get())


@pytest.mark.parametrize(
    "make_optimizer", [optimizers.SGD, optimizers.MomentumSGD, optimizers.Adam]
)
def test_steps_are_replayed_with_the_same_bits(make_optimizer):
    models, losses, step = run_both(perceptron, make_optimizer, classifier_step)
    assert_replayed_with_the_same_bits(models, losses, step)
    assert {p.update_rule.t for model in models for p in model.params()} == {7}


def rates(optimizer, i):
    name = "alpha" if hasattr(optimizer, "alpha") else "lr"
    setattr(optimizer, name, 0.1 / (i + 1))


@pytest.mark.parametrize("make_optimizer", [optimizers.SGD, optimizers.AdamW, optimizers.RAdam])
def test_rates_of_a_schedule_reach_the_graph(make_optimizer):
    models, _, step = run_both(perceptron, make_optimizer, classifier_step, 10, each=rates)
    assert step.reason is None
    assert_same(*models)


def test_a_rate_that_changes_after_many_replays_reaches_the_graph():
    def each(optimizer, i):
        optimizer.lr = 0.1 if i < 6 else 0.01

    models, _, step = run_both(perceptron, optimizers.MomentumSGD, classifier_step, 8, each=each)
    assert step.reason is None
    assert_same(*models)


def test_hooks_act_in_the_graph():
    def make_step(model, optimizer):
        optimizer.add_hook(optimizer_hooks.GradientClipping(0.1))
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
        return classifier_step(model, optimizer)

    models, _, step = run_both(perceptron, optimizers.Adam, make_step, each=rates)
    assert step.reason is None
    assert_same(*models)


def test_attributes_of_hooks_that_change_lead_to_another_graph():
    hooks = {}

    def make_step(model, optimizer):
        hooks[optimizer] = hook = optimizer_hooks.WeightDecay(0.1)
        optimizer.add_hook(hook)
        return classifier_step(model, optimizer)

    def each(optimizer, i):
        hooks[optimizer].rate = 0.1 if i < 5 else 0.2

    models, _, step = run_both(perceptron, optimizers.SGD, make_step, 9, each=each)
    assert step.reason is None
    assert_same(*models)


def test_a_rate_of_one_parameter_leads_to_another_graph():
    def each(optimizer, i):
        if i == 5:
            next(optimizer.target.params()).update_rule.hyperparam.lr = 0.5

    models, _, step = run_both(perceptron, optimizers.SGD, classifier_step, 9, each=each)
    assert step.reason is None
    assert_same(*models)


def scaled_step(model, optimizer):
    optimizer.set_loss_scale(8.0)
    return classifier_step(model, optimizer)


def test_a_constant_loss_scale_acts_in_the_graph():
    def each(optimizer, i):
        if i == 5:
            optimizer.set_loss_scale(4.0)

    models, losses, step = run_both(perceptron, optimizers.Adam, scaled_step, 9, each=each)
    assert_replayed_with_the_same_bits(models, losses, step)


def trained_with_dynamic_scale(is_captured, n_steps=16, each=lambda i, optimizer: None):
    """Takes steps, some of which are skipped; returns the model, the optimizer's numbers with the
    warnings, and for each step the reason and the number of waits for the GPU."""
    model = perceptron()
    model.to_device(GPU)
    optimizer = optimizers.Adam().setup(model)
    optimizer.loss_scaling(interval=3)
    found = []

    def step(x, t):
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

    step = mpchain.capture(step) if is_captured else step
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(n_steps):
            x, t = batch_of(i, shape=(5,))
            x[0, 0] = np.inf if i in (4, 5, 9) else x[0, 0]
            x, t = send((x, t))
            mpchain.cuda.cupy.double.reset()
            step(x, t)
            found.append((getattr(step, "reason", None), mpchain.cuda.cupy.double.synchronizations))
            found[-1] = found[-1][0], found[-1][1].total()
            each(i, optimizer)
        scale = optimizer.loss_scale
    messages = [str(w.message) for w in caught]
    return model, (scale, optimizer.t, [p.update_rule.t for p in model.params()], messages), found


def test_a_dynamic_loss_scale_stays_on_the_gpu(when):
    model, expected, _ = trained_with_dynamic_scale(False)
    captured, actual, found = trained_with_dynamic_scale(True)
    assert actual == expected
    assert expected[2] == [13] * 4 and len(expected[3]) == 3
    assert_same(model, captured)
    assert [reason for reason, _ in found[3:]] == [None] * 13
    assert not sum(n_waits for _, n_waits in found[3:8])


def test_a_dynamic_loss_scale_that_is_read_leads_to_another_graph():
    def each(i, optimizer):
        if i == 7:
            optimizer._keep_on_host()  # saving the optimizer calls this method

    model, expected, _ = trained_with_dynamic_scale(False, each=each)
    captured, actual, found = trained_with_dynamic_scale(True, each=each)
    assert actual == expected
    assert_same(model, captured)
    reasons = [reason for reason, _ in found]
    assert reasons[7] is None and reasons[8:10] == ["it is being recorded"] * 2
    assert reasons[10:] == [None] * 6


def half_precision(dtype):
    with mpchain.using_config("dtype", dtype):
        return perceptron()


def half_step(model, optimizer):
    optimizer.use_fp32_update()
    inner = scaled_step(model, optimizer)
    return lambda x, t: inner(x.astype(model[0].W.dtype), t)


@pytest.mark.parametrize("dtype", [mpchain.mixed16, mpchain.mixed_bf16])
def test_float32_copies_of_parameters_stay_in_the_graph(dtype):
    def each(optimizer, i):
        if i == 5:  # a value that the program sets is used
            next(optimizer.target.params()).array[0] = 0.5

    make_model = functools.partial(half_precision, dtype)
    models, _, step = run_both(make_model, optimizers.MomentumSGD, half_step, 9, each=each)
    assert step.reason is None
    assert_same(*models)
    for p, q in zip(*[m.params() for m in models]):
        copies = [x.update_rule.kept()["fp32_param"] for x in (p, q)]
        assert p.dtype.itemsize == 2 and copies[0].dtype == np.float32
        np.testing.assert_array_equal(*[x.get() for x in copies])


def _recurrent(kind):
    np.random.seed(0)
    return Recurrent(kind, 5, 4, 3)


def recurrent_step(model, optimizer):
    inner = classifier_step(model, optimizer)

    def step(x, t):
        loss = inner(x, t)
        model.layer.h.unchain_backward()
        return loss

    return step


@pytest.mark.parametrize("kind", [L.LSTM, L.StatefulGRU])
def test_state_that_links_carry_goes_on_in_replays(kind):
    def each(optimizer, i):
        if i in (6, 8):
            optimizer.target.layer.reset_state()

    models, losses, step = run_both(
        lambda: _recurrent(kind), optimizers.Adam, recurrent_step, 12, each=each
    )
    assert step.reason is None
    for expected, found in zip(*losses):
        assert float(expected.array) == float(found.array)
    assert_same(*models)
    np.testing.assert_array_equal(*[model.layer.h.array.get() for model in models])


def test_state_of_links_is_not_overwritten_by_replays():
    model = _recurrent(L.LSTM)
    model.to_device(GPU)
    forward, held = mpchain.capture(lambda x: model(x).array), []
    for i in range(7):
        forward(send(batch_of(i, shape=(5,)))[0])
        held.append((model.layer.h.array, model.layer.h.array.get()))
    assert forward.reason is None
    for array, value in held:
        np.testing.assert_array_equal(array.get(), value)
    model.layer.reset_state()
    forward(send(batch_of(0, shape=(5,)))[0])
    assert forward.reason == "links have state of other shapes than when it was captured"


def test_gradients_of_gradients_are_replayed():
    models, results, step = run_both(perceptron, optimizers.Adam, penalty_step)
    assert step.reason is None
    for expected, found in zip(*results):
        assert float(found["loss"].array) == float(expected["loss"].array)
        assert float(found["norm"]) == float(expected["norm"])
    assert len({id(y["norm"]) for y in results[1]}) == len(results[1])
    assert_same(*models)


def critic_step(model, optimizer):
    def step(x, t):
        x = mpchain.Variable(x)
        (gx,) = mpchain.grad([F.sum(model(x))], [x], enable_double_backprop=True)
        penalty = F.mean((F.sqrt(F.sum(gx**2, axis=(1, 2, 3)) + 1e-12) - 1) ** 2)
        loss = F.mean(model(x)) + 10 * penalty
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    return step


def test_a_critic_of_convolutions_with_a_penalty_of_its_gradient():
    def make_model():
        np.random.seed(0)
        layers = L.Convolution2D(1, 4, 4, stride=2, pad=1), F.leaky_relu
        return mpchain.Sequential(*layers, L.Linear(64, 1))

    models, _, step = run_both(make_model, optimizers.Adam, critic_step, 6, (1, 8, 8))
    assert step.reason is None
    others = on_host(models[1])
    for name, value in on_host(models[0]).items():
        # In a captured step, products may be summed in another order.
        np.testing.assert_allclose(value, others[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_dropout_draws_and_running_statistics_move_in_replays():
    models, losses, step = run_both(convolutional, optimizers.SGD, classifier_step, 8, (1, 8, 8))
    assert step.reason is None
    assert len({float(y.array) for y in losses[1]}) == 8
    assert_same(*models)


def test_dropout_on_the_same_arguments_differs_in_each_replay():
    @mpchain.capture
    def step(x):
        return F.dropout(x, 0.5).array

    x = mpchain.get_device(GPU).send(np.ones(64, "f"))
    found = {step(x).get().tobytes() for _ in range(6)}
    assert step.reason is None
    assert len(found) == 6


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("make_model", [perceptron, lambda: half_precision(mpchain.mixed16)])
def test_kernels_are_compiled_before_the_capture(make_model, is_scaled, double):
    def make_step(model, optimizer):
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
        make = classifier_step if model[0].W.dtype == np.float32 else half_step
        step = make(model, optimizer)
        if is_scaled:
            optimizer.loss_scaling()
        return step

    double.forget_kernels()
    model = make_model()
    model.to_device(GPU)
    step = mpchain.capture(make_step(model, optimizers.Adam().setup(model)))
    for i in range(3):
        step(*send(batch_of(i)))
    assert step.reason is None
    assert double.late == []


def test_a_replay_launches_few_kernels(double):
    _, _, step = run_both(perceptron, optimizers.Adam, classifier_step)
    batch = send(batch_of(0))
    double.reset()
    step(*batch)
    names = [name for name, _ in double.launches.elements()]
    # There is one copy for the arguments, one for all state, one for the loss, and one kernel that
    # stores the optimizer's numbers.
    assert sorted(names) == ["copy", "copyto", "copyto", "graph", "mpchain_store_numbers"]
    assert not double.synchronizations


def test_a_graph_keeps_the_arrays_that_it_reads():
    xp = mpchain.cuda.cupy
    model = perceptron()
    model.to_device(GPU)
    holder = [xp.full(5, 2, "f"), *range(10_000)]  # changes inside so long a list are not detected
    step = mpchain.capture(lambda x: model(x * mpchain.Variable(holder[0])).array)
    x = send(batch_of(0))[0]
    for _ in range(4):
        step(x)
    holder[0] = None
    np.testing.assert_array_equal(step(x).get(), model(x * 2).array.get())
    assert step.reason is None


class TestFallback:
    """A step that is not replayed runs eagerly, and gives the reason."""

    def check(self, function, reason, n=5):
        step = mpchain.capture(function)
        with pytest.warns(UserWarning, match=reason):
            found = [step(*send(batch_of(i))) for i in range(n)]
        assert step.reason is not None
        return found

    @pytest.fixture
    def model(self):
        model = perceptron()
        model.to_device(GPU)
        return model

    def test_values_that_are_read(self, model):
        found = self.check(
            lambda x, t: float(F.sum(model(x)).array), r"reads the values .*test_cuda_graph\.py"
        )
        expected = [float(F.sum(model(send(batch_of(i))[0])).array) for i in range(5)]
        assert found == expected

    def test_waits_for_the_gpu(self, model):
        null = mpchain.cuda.cupy.cuda.Stream.null

        def step(x, t):
            mpchain.cuda.cupy.cuda.get_current_stream().synchronize()
            return model(x)

        self.check(step, "waits for the GPU")
        assert null.done

    def test_numbers_that_change(self, model):
        count = iter(range(100))
        self.check(lambda x, t: F.sum(model(x)) * next(count), "a replay computed other results")

    def test_arrays_from_the_host(self, model):
        self.check(
            lambda x, t: F.sum(model(x + mpchain.get_device(GPU).send(np.ones(5, "f")))),
            "it copies an array to a GPU",
        )

    def test_arguments_on_the_host(self, model):
        step = mpchain.capture(lambda n: F.sum(model[0].W) + len(n))
        with pytest.warns(UserWarning, match="an argument is on the host"):
            for _ in range(4):
                step(np.ones(2))

    def test_a_dynamic_loss_scale_on_the_host(self, model):
        optimizer = optimizers.LAMB().setup(model)
        optimizer.loss_scaling()
        self.check(
            lambda x, t: optimizer.update(lambda: F.sum(model(x))),
            "is dynamic, and kept on the host",
        )
        assert optimizer.t == 5

    def test_rules_that_update_by_other_code(self, model):
        optimizer = optimizers.LAMB().setup(model)
        self.check(
            lambda x, t: optimizer.update(lambda: F.sum(model(x))), "LAMBRule|reads the values"
        )
        assert optimizer.t == 5

    def test_an_update_of_several_ranks_without_a_loss_function(self, model):
        comm = mpchain.create_communicator("dummy")
        optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

        def step(x, t):
            model.cleargrads()
            F.softmax_cross_entropy(model(x), t).backward()
            optimizer.update()

        self.check(step, "updates without a loss function")
        assert optimizer.t == 5

    def test_gradients_of_several_ranks(self):
        models = []
        for is_captured in (False, True):
            models.append(perceptron())
            models[-1].to_device(GPU)
            comm = mpchain.create_communicator("dummy")
            optimizer = mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm)
            optimizer.setup(models[-1])

            def step(x, t, model=models[-1], optimizer=optimizer):
                optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))

            step = mpchain.capture(step) if is_captured else step
            for i in range(5):
                step(*send(batch_of(i)))
            assert optimizer.t == 5
        assert step.reason is None
        assert_same(*models)

    def test_an_error_is_the_users(self, model):
        step = mpchain.capture(lambda x: model(x))
        x = mpchain.get_device(GPU).send(np.ones((2, 4), "f"))
        for _ in range(2):
            with pytest.raises(mpchain.utils.type_check.InvalidType):
                step(x)


class TestChanges:
    """The values that these tests change may change between replays."""

    def test_each_shape_has_a_graph(self):
        models = [perceptron(), perceptron()]
        for model in models:
            model.to_device(GPU)
        steps = [classifier_step(m, optimizers.SGD(0.1).setup(m)) for m in models]
        steps[1] = mpchain.capture(steps[1])
        for i in range(10):
            for step in steps:
                step(*send(batch_of(i, 6 if i % 2 else 4)))
        assert steps[1].reason is None
        assert_same(*models)

    def test_values_that_are_loaded_count(self):
        model = perceptron()
        model.to_device(GPU)
        predict = mpchain.capture(lambda x: model(x).array)
        x = send(batch_of(0))[0]
        for _ in range(4):
            predict(x)
        model[0].W.array[...] = 2
        np.testing.assert_array_equal(predict(x).get(), model(x).array.get())
        assert predict.reason is None
        model[0].W.array = model[0].W.array * 2
        for reason in ("it is being recorded", None):
            np.testing.assert_array_equal(predict(x).get(), model(x).array.get())
            assert predict.reason == reason

    def test_a_snapshot_that_is_loaded_counts(self):
        models = []
        for is_captured in (False, True):
            model = perceptron()
            model.to_device(GPU)
            optimizer = optimizers.Adam().setup(model)
            step = classifier_step(model, optimizer)
            step = mpchain.capture(step) if is_captured else step
            saved = {}
            for i in range(9):
                if i == 2:
                    optimizer.serialize(serializers.DictionarySerializer(saved))
                    saved = {k: getattr(x, "get", lambda x=x: x)() for k, x in saved.items()}
                if i == 6:
                    optimizer.serialize(serializers.NpzDeserializer(saved))
                step(*send(batch_of(i)))
            models.append(model)
            assert optimizer.t == 5
        assert step.reason is None or "recorded" in step.reason
        assert_same(*models)


class TestUpdater:
    def train(self, graph, n=9):
        mpchain.cuda.cupy.random.seed(1)
        model = L.Classifier(convolutional())
        data = [*zip(*batch_of(0, 20, (1, 8, 8)))]
        batches = mpchain.iterators.SerialIterator(data, BATCH, shuffle=False)
        optimizer = optimizers.MomentumSGD(0.05).setup(model)
        updater = StandardUpdater(batches, optimizer, device=GPU, graph=graph)
        reporter = mpchain.Reporter()
        reporter.add_observer("main", model)
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
        assert_same(model, other)
        assert found == expected
        assert all(set(values) == {"main/loss", "main/accuracy"} for values in found)


class TestMemory:
    """A graph needs the memory of one step, and so does the eager step with which it is
    compared."""

    N = 1 << 15

    def _train(self, cupy, n_steps=4):
        np.random.seed(0)
        layers = [L.Linear(8, 8) for _ in range(6)]
        model = mpchain.Sequential(*(part for layer in layers for part in (layer, F.tanh)))
        model.to_device("@cupy:0")
        optimizer = optimizers.SGD(0.1).setup(model)
        x = cupy.asarray(np.random.randn(self.N, 8).astype(np.float32))

        def update(x):
            optimizer.update(lambda: F.mean(model(x) ** 2))

        return update, x, model

    def _peak(self, cupy):
        """Returns the largest number of bytes that eager steps need, and the parameters after
        them."""
        update, x, model = self._train(cupy)
        for _ in range(4):
            update(x)
        held = cupy.get_default_memory_pool().total_bytes()
        return held, [p.array.get() for p in model.params()]

    @pytest.fixture(autouse=True)
    def _free(self, cupy):
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()

    @pytest.fixture
    def cupy(self, request):
        if request.config.option.gpu != "double":
            pytest.skip("needs the double of CuPy, whose memory it sets: --gpu=double")
        return cuda.cupy

    @pytest.fixture
    def say_short(self, monkeypatch):
        """Returns a function that sets what a graph's memory says when asked if it is short."""
        return lambda say: monkeypatch.setattr(GraphMemory, "is_short", lambda self: say())

    def _limit(self, cupy, monkeypatch, n_bytes):
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        machine = sys.modules["cupy._machine"]
        monkeypatch.setattr(machine, "memory_size", machine._held(0) + n_bytes)

    def _check(self, model, right):
        for param, value in zip(model.params(), right, strict=True):
            np.testing.assert_allclose(param.array.get(), value, 1e-5, 1e-6)

    def _limited(self, cupy, monkeypatch, share, keep=lambda array: None):
        """Trains with memory of which a step needs the given share; returns the captured step."""
        peak, right = self._peak(cupy)
        # CuBLAS has a workspace of 32 MiB.
        self._limit(cupy, monkeypatch, int(peak / share) + (32 << 20))
        update, x, model = self._train(cupy)

        def function(x):
            update(x)
            keep(x[:1] * 2)

        step = mpchain.capture(function)
        for _ in range(4):
            step(x)
        self._check(model, right)
        return step

    @pytest.mark.parametrize("share", [0.6, 0.75])
    def test_a_step_that_does_not_fit_twice_is_captured(self, share, cupy, monkeypatch):
        assert self._limited(cupy, monkeypatch, share).reason is None

    def test_a_step_that_does_not_fit_beside_its_state_runs_eagerly(self, cupy, monkeypatch):
        with pytest.warns(UserWarning, match="memory does not suffice for a graph"):
            step = self._limited(cupy, monkeypatch, 0.999)
        assert "does not suffice" in step.reason

    def test_a_step_that_needs_more_than_was_foreseen_runs_eagerly(
        self, cupy, monkeypatch, say_short
    ):
        say_short(lambda: False)
        with pytest.warns(UserWarning, match="the GPU's memory does not suffice for its graph"):
            step = self._limited(cupy, monkeypatch, 0.6)
        assert "does not suffice" in step.reason

    def test_arrays_that_a_step_keeps_are_not_written_over(self, cupy, monkeypatch):
        kept = []
        with pytest.warns(UserWarning, match="keeps arrays that it computes, and the GPU's mem"):
            step = self._limited(cupy, monkeypatch, 0.6, kept.append)
        assert "it keeps arrays" in step.reason
        for found in kept[2:]:
            np.testing.assert_array_equal(found.get(), kept[0].get())

    @pytest.mark.parametrize(
        "test",
        [
            lambda: TestFallback().test_gradients_of_several_ranks(),
            lambda: TestUpdater().test_updates_and_reports_are_the_same(),
            lambda: test_state_of_links_is_not_overwritten_by_replays(),
            lambda: test_dropout_draws_and_running_statistics_move_in_replays(),
            lambda: test_a_dynamic_loss_scale_that_is_read_leads_to_another_graph(),
        ],
        ids=["ranks", "reports", "state of links", "draws", "loss scale"],
    )
    def test_steps_in_the_memory_of_their_graphs(self, test, cupy, say_short):
        asked = []
        say_short(lambda: asked.append(1) or True)
        test()
        assert asked

    def test_replays_keep_the_memory_of_one_step(self, cupy, monkeypatch):
        peak, right = self._peak(cupy)
        self._limit(cupy, monkeypatch, int(peak * 2.3) + (80 << 20))
        monkeypatch.delattr(GraphMemory, "lent")  # the step runs beside the graph
        update, x, model = self._train(cupy)
        step = mpchain.capture(update)
        for _ in range(4):
            step(x)
        assert step.reason is None
        assert cupy.get_default_memory_pool().total_bytes() < peak / 2
        self._check(model, right)
