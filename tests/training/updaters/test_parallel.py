"""Tests ParallelUpdater, mostly with the CPU as every device."""

import threading

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, training
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from tests.training.updaters.parallel_models import Regression, assert_close, iterator, parameters

THREE = {"main": -1, "second": "@numpy", "third": -1}


def make(model=None, devices=THREE, batch_size=8, updater=training.ParallelUpdater, **options):
    model = model or Regression()
    optimizer = optimizers.MomentumSGD(0.05).setup(model)
    batches = iterator(0, 30, batch_size, shuffle=False)
    if devices is not None:
        options["devices"] = devices
    return updater(batches, optimizer, **options)


def target(updater):
    return updater.get_optimizer("main").target


def one_device(**options):
    return make(devices=None, updater=training.StandardUpdater, **options)


@pytest.mark.parametrize("batch_size", [1, 2, 8, 9])
@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_as_one_device_with_the_whole_batch(n_devices, batch_size):
    devices = dict(list(THREE.items())[:n_devices])
    whole = one_device(batch_size=batch_size)
    updater = make(devices=devices, batch_size=batch_size)
    for _ in range(6):
        whole.update()
        updater.update()
        assert_close(parameters(target(updater)), parameters(target(whole)))
    assert updater.get_optimizer("main").n_samples == batch_size
    assert updater.get_optimizer("main").epoch == whole.get_optimizer("main").epoch
    updater.finalize()


@pytest.mark.parametrize("loss_scale", [None, 128.0])
def test_models_of_ones_own(loss_scale):
    models = {"main": Regression(), "other": Regression()}
    models["other"].first.W.array += 1  # the values of this model are replaced
    whole = one_device(loss_scale=loss_scale)
    updater = make(models["main"], None, models=models, loss_scale=loss_scale)
    for _ in range(3):
        whole.update()
        updater.update()
    assert_close(parameters(models["main"]), parameters(target(whole)))
    assert_close(parameters(models["other"]), parameters(models["main"]), rtol=0)
    updater.finalize()


def test_parameters_that_the_first_forward_pass_initializes():
    updater = make(Regression(None))
    np.random.seed(3)
    updater.update()
    whole = one_device(model=Regression(None))
    np.random.seed(3)
    whole.update()
    for _ in range(2):
        updater.update()
        whole.update()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-5)
    updater.finalize()


def test_observations_are_means_over_samples():
    expected, observed = {}, {}
    for updater, observation in ((one_device(), expected), (make(), observed)):
        trainer = training.Trainer(updater)
        with trainer.reporter.scope(observation):
            updater.update()
        updater.finalize()
    assert observed.keys() == expected.keys() == {"main/loss", "main/x", "main/array"}
    for name in ("main/loss", "main/x"):
        value = getattr(expected[name], "array", expected[name])
        np.testing.assert_allclose(observed[name], value, rtol=1e-12)


def test_without_a_reporter_nothing_is_reported():
    updater = make()
    updater.update()
    updater.finalize()


def test_the_loss_function_is_each_copys_own():
    model = Regression()
    whole = one_device()
    whole.loss_func = target(whole).weighted
    updater = make(model, loss_func=model.weighted)
    trainer = training.Trainer(updater)
    observation = {}
    with trainer.reporter.scope(observation):
        updater.update()
    assert observation["main/weighted"] == 1
    whole.update()
    assert_close(parameters(model), parameters(target(whole)))
    updater.finalize()


def test_a_link_as_loss_function():
    model = mpchain.Chain(part=Regression())
    updater = make(model, loss_func=model.part)
    whole = one_device()
    updater.update()
    whole.update()
    assert_close(parameters(model.part), parameters(target(whole)))
    updater.finalize()


def test_threads_have_the_callers_settings():
    threads, settings = set(), []

    class Model(L.Linear):
        def forward(self, x, t):
            threads.add(threading.current_thread())
            settings.append((mpchain.config.train, mpchain.config.user_setting))
            return F.sum(super().forward(x))

    model = Model(3, 1)
    updater = make(model, converter=lambda batch, device: (np.ones((1, 3), np.float32), None))
    with (
        mpchain.using_config("train", False),
        mpchain.using_config("user_setting", 5),
    ):
        updater.update()
    assert settings == [(False, 5)] * 3
    assert threading.current_thread() in threads
    updater.finalize()
    assert not any(thread.is_alive() for thread in threads - {threading.current_thread()})


@pytest.mark.parametrize("where", ["main", "another"])
def test_what_a_device_raises_is_raised(where):
    main = threading.current_thread()

    def convert(batch, device):
        if (threading.current_thread() is main) == (where == "main"):
            raise ValueError("bad batch")
        return mpchain.dataset.concat_examples(batch, device)

    updater = make(converter=convert)
    with pytest.raises(ValueError, match="bad batch"):
        updater.update()
    updater.finalize()


def test_a_loss_that_is_no_variable():
    model = Regression()
    model.forward = lambda x, t: 3.0
    updater = make(model, devices={"main": -1})
    with pytest.raises(TypeError, match="the loss function must return a Variable, not float"):
        updater.update()


def test_persistent_values_are_taken_over():
    class Model(mpchain.Chain):
        def forward(self, x, t):
            return F.sum(self.bn(x.astype(np.float32)))

    updater = make(Model(bn=L.BatchNormalization(3)))
    updater.update()
    for copy in updater._models.values():
        np.testing.assert_array_equal(copy.bn.avg_mean, target(updater).bn.avg_mean)
    assert target(updater).bn.avg_mean.any()
    updater.finalize()


def test_copies_take_over_what_is_loaded():
    trained, fresh = make(), make()
    trained.update()
    saved = DictionarySerializer()
    saved.save(trained)
    NpzDeserializer(saved.target).load(fresh)
    for model in fresh._models.values():
        assert_close(parameters(model), parameters(target(trained)), rtol=0)
    for updater in (trained, fresh):
        updater.update()
        updater.finalize()
    assert_close(parameters(target(fresh)), parameters(target(trained)), rtol=0)


@pytest.mark.multi_gpu
@pytest.mark.gpu
def test_two_gpus():
    whole, updater = one_device(), make(devices={"main": 0, "second": 1})
    for _ in range(3):
        whole.update()
        updater.update()
    target(updater).to_cpu()
    assert_close(parameters(target(updater)), parameters(target(whole)), rtol=1e-10)
    updater.finalize()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass models or devices"),
        ({"devices": {"a": -1}}, r"devices must have a 'main', not only \['a'\]"),
        ({"models": {"a": None}}, r"models must have a 'main', not only \['a'\]"),
        (
            {"models": {"main": Regression()}, "devices": THREE},
            r"models and devices must have the same names, not \['main'\] and .*'third'\]",
        ),
        (
            {"models": {"main": Regression()}},
            r"models\['main'\] must be the target of the main optimizer",
        ),
        ({"devices": THREE, "loss_func": lambda x: x}, "loss_func must be the model, one of its"),
    ],
)
def test_wrong_arguments(options, message):
    optimizer = optimizers.SGD().setup(Regression())
    with pytest.raises(ValueError, match=f"ParallelUpdater: {message}"):
        training.ParallelUpdater(iterator(0, 9, 3), optimizer, **options)
