"""Old keywords, and attributes of Chainer's classes that programs read."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets
from mpchain.training import extensions, triggers


def test_keywords_of_before():
    assert extensions.LogReport(log_name="a")._filename == "a"
    assert extensions.dump_graph("main/loss", out_name="b.dot")._filename == "b.dot"
    assert triggers.EarlyStoppingTrigger(patients=7).patience == 7


def test_private_attributes():
    norm = L.BatchNormalization(2)
    assert set(norm._persistent) == {"avg_mean", "avg_var", "N"}
    assert norm._device_id is None
    layers = mpchain.ChainList(L.Linear(2, 2), L.Linear(2, 3))
    layers._children[1] = replaced = L.Linear(2, 4)
    assert layers[1] is replaced
    half = datasets.SubDataset(range(6), 2, 5)
    assert (half._order, half._size) == (None, 3)
    images = datasets.LabeledImageDataset([("a.png", 3)], root="pictures")
    assert (images._pairs, images._root) == ([("a.png", 3)], "pictures")
    x = mpchain.Variable(np.ones(2, "f"), requires_grad=False)
    assert x.node._requires_grad is False and x._data[0] is x.array


X = np.ones((2, 3), "f")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: L.BatchNormalization(3)(X, test=True),
            r"BatchNormalization.*test .*'train', False",
        ),
        (lambda: F.dropout(X, train=False), r"dropout.*train .*using_config"),
        (lambda: mpchain.Variable(X, volatile=True), r"Variable.*volatile .*no_backprop_mode"),
        (lambda: F.relu(X, use_cudnn=False), r"relu.*use_cudnn .*using_config"),
        (lambda: L.Convolution2D(3, 4, 3, wscale=1), r"Convolution2D.*wscale .*initializer"),
        (lambda: L.Convolution2D(3, 4, 3, deterministic=True), r"deterministic.*cudnn_determin"),
    ],
)
def test_arguments_of_chainer_1(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_containers_of_chainer_1():
    import chainer

    with pytest.raises(NotImplementedError, match=r"derive from chainer.Chain"):
        chainer.FunctionSet(l=L.Linear(2, 3))


def test_a_chain_gives_its_attributes_by_name():
    model = mpchain.Chain(l=L.Linear(2, 3))
    model.pool = F.relu
    assert model["pool"] is F.relu and model["l"] is model.l
