import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, training
from mpchain.datasets import DictDataset, TupleDataset
from mpchain.iterators import SerialIterator
from mpchain.serializers import DictionarySerializer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))
T = RNG.normal(size=(7, 2))


def make_model():
    with mpchain.using_config("dtype", np.float64):
        return L.Linear(3, 2, initialW=np.ones((2, 3)), initial_bias=np.zeros(2))


def make_iterator(dataset=None, batch_size=3):
    dataset = TupleDataset(X, T) if dataset is None else dataset
    return SerialIterator(dataset, batch_size, shuffle=False)


def squared_error(model):
    return lambda x, t: F.sum((model(x) - t) ** 2)


def test_updates_are_those_of_a_plain_loop():
    model, lr = make_model(), 0.01
    updater = training.StandardUpdater(
        make_iterator(), optimizers.SGD(lr).setup(model), loss_func=squared_error(model)
    )
    W, b = np.ones((2, 3)), np.zeros(2)
    x, t = np.concatenate([X, X]), np.concatenate([T, T])
    for i in range(4):
        updater.update()
        xi, ti = x[3 * i : 3 * i + 3], t[3 * i : 3 * i + 3]
        gy = 2 * (xi @ W.T + b - ti)
        W, b = W - lr * gy.T @ xi, b - lr * gy.sum(axis=0)
    np.testing.assert_allclose(model.W.array, W, rtol=1e-12)
    np.testing.assert_allclose(model.b.array, b, rtol=1e-12)


def test_progress():
    model = make_model()
    updater = training.StandardUpdater(
        make_iterator(), optimizers.SGD().setup(model), loss_func=squared_error(model)
    )
    rows = []
    for _ in range(5):
        updater.update()
        rows.append(
            (
                updater.iteration,
                updater.epoch,
                round(updater.epoch_detail * 7),
                round(updater.previous_epoch_detail * 7),
                updater.is_new_epoch,
            )
        )
    assert rows == [
        (1, 0, 3, 0, False),
        (2, 0, 6, 3, False),
        (3, 1, 9, 6, True),
        (4, 1, 12, 9, False),
        (5, 2, 15, 12, True),
    ]


class Recorder(optimizers.SGD):
    """An optimizer that records the calls of updaters."""

    n_samples = None

    def __init__(self):
        super().__init__()
        self.events = []

    def update(self, lossfun=None, *args, **kwds):
        self.events.append(("update", self.n_samples))
        super().update(lossfun, *args, **kwds)

    def new_epoch(self, auto=False):
        self.events.append(("new_epoch", auto))
        super().new_epoch(auto)


@pytest.mark.parametrize("auto_new_epoch", [True, False])
def test_optimizer_is_told_samples_and_epochs(auto_new_epoch):
    model, optimizer = make_model(), Recorder()
    iterator = SerialIterator(TupleDataset(X, T), 3, repeat=False, shuffle=False)
    updater = training.StandardUpdater(
        iterator,
        optimizer.setup(model),
        loss_func=squared_error(model),
        auto_new_epoch=auto_new_epoch,
    )
    for _ in range(3):
        updater.update()
    epochs = [("new_epoch", True)] if auto_new_epoch else []
    assert optimizer.events == [("update", 3), ("update", 3), ("update", 1), *epochs]
    assert optimizer.epoch == len(epochs)


@pytest.mark.parametrize(
    ("dataset", "converter", "expected_args", "expected_kwargs"),
    [
        (TupleDataset(X, T), None, [X[:3], T[:3]], {}),
        (DictDataset(x=X, t=T), None, [], {"x": X[:3], "t": T[:3]}),
        (X, None, [X[:3]], {}),
        (X, lambda batch, device: (2 * np.stack(batch), T[:3]), [2 * X[:3], T[:3]], {}),
    ],
)
def test_batches_are_arguments_of_the_loss(dataset, converter, expected_args, expected_kwargs):
    model = make_model()
    calls = []

    def loss(*args, **kwargs):
        calls.append((args, kwargs))
        return F.sum(model.W)

    options = {} if converter is None else {"converter": converter}
    updater = training.StandardUpdater(
        make_iterator(dataset), optimizers.SGD().setup(model), loss_func=loss, **options
    )
    updater.update()
    ((args, kwargs),) = calls
    assert kwargs.keys() == expected_kwargs.keys()
    for got, expected in zip(
        [*args, *kwargs.values()], [*expected_args, *expected_kwargs.values()], strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_loss_is_the_target_by_default():
    model = L.Classifier(make_model(), F.mean_squared_error)
    model.compute_accuracy = False
    training.StandardUpdater(make_iterator(), optimizers.SGD(0.1).setup(model)).update()
    assert not np.allclose(model.predictor.W.array, 1)


def test_devices():
    model = make_model()
    seen = []

    def converter(batch, device):
        seen.append(device)
        return mpchain.dataset.concat_examples(batch, device)

    for options in ({}, {"device": -1}, {"device": "@numpy"}, {"input_device": "@numpy"}):
        updater = training.StandardUpdater(
            make_iterator(),
            optimizers.SGD().setup(model),
            converter,
            loss_func=squared_error(model),
            **options,
        )
        updater.update()
        seen.append(updater.device)
    cpu = mpchain.get_device("@numpy")
    assert seen == [None, None, cpu, cpu, cpu, cpu, cpu, None]


@pytest.mark.gpu
def test_model_and_batches_are_moved():
    model = make_model()
    updater = training.StandardUpdater(
        make_iterator(),
        optimizers.SGD().setup(model),
        device="@cupy:0",
        loss_func=squared_error(model),
    )
    updater.update()
    assert model.device == updater.device == updater.input_device
    assert model.W.device == updater.device


def test_loss_scale_does_not_change_the_update():
    weights = []
    for loss_scale in (None, 1024.0):
        model = make_model()
        training.StandardUpdater(
            make_iterator(),
            optimizers.SGD().setup(model),
            loss_func=squared_error(model),
            loss_scale=loss_scale,
        ).update()
        weights.append(model.W.array)
    np.testing.assert_allclose(*weights, rtol=1e-12)


def test_several_iterators_and_optimizers():
    first, second = make_model(), make_model()

    class Alternating(training.StandardUpdater):
        def update_core(self):
            for name, model in (("first", first), ("second", second)):
                x, t = self.converter(self.get_iterator("main").next(), self.device)
                self.get_optimizer(name).update(squared_error(model), x, t)

    named = {"first": optimizers.SGD(0.1).setup(first), "second": optimizers.SGD(0).setup(second)}
    iterators = {"main": make_iterator(), "other": make_iterator()}
    updater = Alternating(iterators, named)
    updater.update()
    assert updater.get_all_optimizers() == named
    assert updater.get_iterator("other") is iterators["other"]
    assert not np.allclose(first.W.array, 1)
    np.testing.assert_array_equal(second.W.array, 1)


def test_reports_have_the_names_of_links(tmp_path):
    class Model(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.layer = make_model()

        def forward(self, x, t):
            mpchain.report({"inner": 2.0}, self.layer)
            mpchain.report({"outer": 1.0}, self)
            mpchain.report({"alone": 3.0})
            return squared_error(self.layer)(x, t)

    updater = training.StandardUpdater(make_iterator(), optimizers.SGD().setup(Model()))
    trainer = training.Trainer(updater, (1, "iteration"), out=tmp_path)
    trainer.run()
    assert trainer.observation == {"main/layer/inner": 2.0, "main/outer": 1.0, "alone": 3.0}


def test_key_layout():
    model = make_model()
    updater = training.StandardUpdater(
        make_iterator(), optimizers.MomentumSGD().setup(model), loss_func=squared_error(model)
    )
    updater.update()
    serializer = DictionarySerializer()
    serializer.save(updater)
    assert {
        "iteration",
        "iterator:main/current_position",
        "iterator:main/epoch",
        "model:main/W",
        "model:main/b",
        "optimizer:main/t",
        "optimizer:main/epoch",
        "optimizer:main/W/t",
        "optimizer:main/W/v",
    } <= set(serializer.target)


def test_steps_can_be_overridden():
    class HalfBatches(training.StandardUpdater):
        def step(self, batch):
            super().step(batch[:2])
            super().step(batch[2:])

    model, optimizer = make_model(), Recorder()
    HalfBatches(make_iterator(), optimizer.setup(model), loss_func=squared_error(model)).update()
    assert optimizer.events == [("update", 2), ("update", 1)]


def test_finalize_ends_the_iterators():
    finalized = []

    class Iterator(SerialIterator):
        def finalize(self):
            finalized.append(self)

    iterator = Iterator(TupleDataset(X, T), 3)
    training.StandardUpdater(iterator, optimizers.SGD().setup(make_model())).finalize()
    assert finalized == [iterator]


def test_errors():
    optimizer = optimizers.SGD().setup(make_model())
    with pytest.raises(ValueError, match="iterators must have a 'main', not only 'train'"):
        training.StandardUpdater({"train": make_iterator()}, optimizer)
    with pytest.raises(ValueError, match=r"optimizer 'main' \(SGD\) has no model; call its setup"):
        training.StandardUpdater(make_iterator(), optimizers.SGD())
    with pytest.raises(TypeError, match=r"iterator 'main' must be an iterator .*, not list"):
        training.StandardUpdater([1, 2], optimizer)
    with pytest.raises(TypeError, match="'main' must be an Optimizer, not SerialIterator"):
        training.StandardUpdater(make_iterator(), make_iterator())
    updater = training.StandardUpdater(make_iterator(), optimizer)
    with pytest.raises(KeyError, match="get_optimizer: there is no optimizer named 'gen'; known: "):
        updater.get_optimizer("gen")
    with pytest.raises(KeyError, match="get_iterator: there is no iterator named 'x'; known: 'ma"):
        updater.get_iterator("x")


def test_an_iterator_that_ends():
    iterator = SerialIterator(X, 5, repeat=False)
    optimizer = optimizers.SGD().setup(make_model())
    updater = training.StandardUpdater(
        iterator, optimizer, loss_func=lambda x: F.sum(optimizer.target(x))
    )
    with pytest.raises(StopIteration, match=r"^StandardUpdater: iterator 'main' ended after \d"):
        for _ in range(len(X)):
            updater.update()


@pytest.mark.parametrize(
    ("method", "args"),
    [("update", ()), ("get_optimizer", ("main",)), ("get_all_optimizers", ()), ("serialize", (0,))],
)
def test_updater_is_an_interface(method, args):
    with pytest.raises(NotImplementedError, match=f"Updater does not implement {method}"):
        getattr(training.Updater(), method)(*args)
