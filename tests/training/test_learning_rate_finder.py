import copy
import math
import random
import types

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, training
from mpchain.serializers import DictionarySerializer

pytestmark = pytest.mark.slow


def make_updater(optimizer=None, n_in=2, last=()):
    np.random.seed(0)
    x = np.random.randn(60, 2).astype(np.float32)
    data = datasets.TupleDataset(x, (x.sum(axis=1) > 0).astype(np.int32))
    net = mpchain.Sequential(L.Linear(n_in, 8), *last, F.dropout, F.tanh, L.Linear(8, 2))
    optimizer = (optimizer or optimizers.SGD(0.1)).setup(L.Classifier(net))
    iterator = iterators.SerialIterator(data, 8)
    return training.StandardUpdater(iterator, optimizer)


def state_of(updater):
    serializer = DictionarySerializer()
    serializer.save(updater)
    return serializer.target, str(np.random.get_state()), random.getstate()


@pytest.mark.parametrize(
    ("make_optimizer", "attr"),
    [(lambda: optimizers.MomentumSGD(0.1), "lr"), (lambda: optimizers.Adam(0.1), "alpha")],
)
def test_everything_is_as_before(make_optimizer, attr):
    updater = make_updater(make_optimizer(), last=[L.BatchNormalization(8)])
    for _ in range(3):
        updater.update()
    before = copy.deepcopy(state_of(updater))
    test = training.find_learning_rate(updater, 1e-3, 1.0, 20)
    after = state_of(updater)
    assert getattr(updater.get_optimizer("main"), attr) == 0.1
    assert after[1:] == before[1:]
    assert after[0].keys() == before[0].keys()
    for key, value in before[0].items():
        np.testing.assert_array_equal(after[0][key], value, err_msg=key)
    assert test.rates == pytest.approx(list(1e-3 * 1000 ** (np.arange(20) / 19)))


def test_training_after_it_is_training_without_it():
    losses = []
    for is_tested in (False, True):
        updater = make_updater()
        if is_tested:
            training.find_learning_rate(updater, 1e-3, 1.0, 10)
        for _ in range(10):
            updater.update()
        losses.append(float(updater.get_optimizer("main").target.loss.array))
    assert losses[0] == losses[1]


def test_parameters_that_are_not_initialized_get_initial_values():
    updater = make_updater(optimizers.Adam(0.1), n_in=None, last=[L.BatchNormalization()])
    model = updater.get_optimizer("main").target
    drawn = []
    weights = model.predictor[0].W
    initializer = weights.initializer
    weights.initializer = lambda array: (initializer(array), drawn.append(array.copy()))
    training.find_learning_rate(updater, 1e-3, 1.0, 10)
    (first,) = drawn
    np.testing.assert_array_equal(weights.array, first)
    assert updater.iteration == 0 and updater.epoch_detail == 0
    assert weights.update_rule.state is None
    assert model.predictor[1].avg_mean is None
    updater.update()
    assert drawn[1:] == []


def test_the_first_losses_are_those_of_training_at_these_rates():
    updater, other = make_updater(), make_updater()
    np.random.seed(1)
    test = training.find_learning_rate(updater, 0.01, 0.04, 3)
    np.random.seed(1)
    mean, expected = 0.0, []
    for i, rate in enumerate([0.01, 0.02, 0.04]):
        other.get_optimizer("main").lr = rate
        other.update()
        mean = 0.9 * mean + 0.1 * float(other.get_optimizer("main").target.loss.array)
        expected.append(mean / (1 - 0.9 ** (i + 1)))
    assert test.losses == pytest.approx(expected, rel=1e-6)


class Falling(training.Updater):
    """An updater that reports a loss that depends on the rate."""

    iteration = 0

    def __init__(self, loss):
        self.optimizer = optimizers.SGD(0.5).setup(L.Linear(1, 1))
        self.loss = loss

    def get_optimizer(self, name):
        return self.optimizer

    def get_all_optimizers(self):
        return {"main": self.optimizer}

    def update(self):
        self.iteration += 1
        mpchain.report({"main/loss": self.loss(self.optimizer.lr)})

    def serialize(self, serializer):
        self.iteration = int(serializer("iteration", self.iteration))


def test_it_ends_where_training_diverges():
    test = training.find_learning_rate(Falling(lambda lr: 1e9 if lr > 0.1 else 1.0), 1e-3, 10.0, 41)
    assert test.rates[-1] == pytest.approx(0.1)
    assert test.losses == pytest.approx([1.0] * 21)
    assert math.isnan(test.suggestion)  # the loss never fell
    test = training.find_learning_rate(
        Falling(lambda lr: math.nan if lr > 0.1 else 1.0), 1e-3, 10.0
    )
    assert test.rates[-1] <= 0.1
    test = training.find_learning_rate(Falling(lambda lr: math.nan))
    assert test.rates == [] and math.isnan(test.suggestion)


def test_suggestion_is_where_the_loss_falls_fastest(tmp_path):
    def loss(lr):
        return 1 / (1 + math.exp(4 * math.log(lr / 0.01))) + (lr / 0.5) ** 2

    test = training.find_learning_rate(Falling(loss), 1e-5, 10.0, 200)
    assert 0.005 < test.suggestion < 0.03  # smoothing delays the suggestion
    pytest.importorskip("matplotlib")
    test.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_the_loss_is_the_mean_of_all_ranks():
    updater = Falling(lambda lr: 1.0)
    updater.optimizer.communicator = types.SimpleNamespace(allgather_obj=lambda loss: [loss, 3.0])
    assert training.find_learning_rate(updater, n_iterations=2).losses == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("options", [{"lowest": 2.0}, {"lowest": 0.0}, {"n_iterations": 1}])
def test_wrong_arguments(options):
    with pytest.raises(ValueError, match="0 < lowest < highest and at least 2 iter"):
        training.find_learning_rate(Falling(lambda lr: 1.0), **options)


def test_a_loss_that_is_not_reported():
    updater = Falling(lambda lr: 1.0)
    with pytest.raises(KeyError, match="'loss' is not reported; reported: 'main/loss'"):
        training.find_learning_rate(updater, key="loss")
    assert updater.optimizer.lr == 0.5
