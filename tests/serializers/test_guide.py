"""Runs the guide "Serializers - saving and loading" with each format."""

import os

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain import iterators, optimizers, serializers, training
from mpchain.datasets import TupleDataset


class Classifier(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(4, 5)
            self.l2 = L.Linear(5, 2)
        self.add_persistent("n_calls", 0)
        self.not_saved = "initial"

    def forward(self, x, t):
        self.n_calls += 1
        loss = mpchain.functions.softmax_cross_entropy(
            self.l2(mpchain.functions.tanh(self.l1(x))), t
        )
        mpchain.report({"loss": loss}, self)
        return loss


def make_trainer(n_epochs):
    random = np.random.RandomState(0)
    dataset = TupleDataset(
        random.rand(20, 4).astype(np.float32), random.randint(0, 2, 20).astype(np.int32)
    )
    iterator = iterators.SerialIterator(dataset, 4, shuffle=False)
    model = Classifier()
    optimizer = optimizers.MomentumSGD().setup(model)
    updater = training.updaters.StandardUpdater(iterator, optimizer)
    return training.Trainer(updater, (n_epochs, "epoch"), out="result"), model, optimizer


FORMATS = [
    (serializers.save_npz, serializers.load_npz),
    (serializers.save_hdf5, serializers.load_hdf5),
    (serializers.save_safetensors, serializers.load_safetensors),
]


@pytest.fixture(params=FORMATS, ids=["npz", "hdf5", "safetensors"])
def save_and_load(request, tmp_path, monkeypatch):
    if request.param == FORMATS[1]:
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    return request.param


def parameters(model):
    return [param.array.copy() for param in model.params()]


def test_a_model_and_its_optimizer(save_and_load):
    save, load = save_and_load
    trainer, model, optimizer = make_trainer(2)
    model.not_saved = "changed"
    trainer.run()
    save("my.model", model)
    save("my.state", optimizer)
    _, new_model, new_optimizer = make_trainer(2)
    load("my.model", new_model)
    for new, old in zip(parameters(new_model), parameters(model), strict=True):
        np.testing.assert_array_equal(new, old)
    assert (new_model.n_calls, new_model.not_saved) == (10, "initial")
    load("my.state", new_optimizer)
    assert new_optimizer.t == 10
    np.testing.assert_array_equal(
        new_model.l1.W.update_rule.state["v"], model.l1.W.update_rule.state["v"]
    )
    assert sorted(os.listdir(".")) == ["my.model", "my.state", "result"]


def test_an_optimizers_file_has_no_parameters(save_and_load):
    save, load = save_and_load
    trainer, _, optimizer = make_trainer(1)
    trainer.run()
    save("my.state", optimizer)
    _, model, new_optimizer = make_trainer(1)
    before = parameters(model)
    load("my.state", new_optimizer)
    for now, then in zip(parameters(model), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_trainer_resumes(save_and_load):
    save, load = save_and_load
    np.random.seed(0)
    trainer, _, _ = make_trainer(2)
    trainer.run()
    save("my.state", trainer)
    resumed, resumed_model, _ = make_trainer(4)
    load("my.state", resumed)
    resumed.run()
    np.random.seed(0)
    straight, straight_model, _ = make_trainer(4)
    straight.run()
    assert resumed.updater.iteration == straight.updater.iteration == 20
    for new, old in zip(parameters(resumed_model), parameters(straight_model), strict=True):
        np.testing.assert_array_equal(new, old)
