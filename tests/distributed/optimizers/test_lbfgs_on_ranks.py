"""L-BFGS within a multi-node optimizer takes the steps of one process."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed.gradients.compression import float16

X = np.random.RandomState(0).normal(size=(11, 3))
T = np.random.RandomState(1).randint(2, size=11)


def _model():
    model = L.Linear(3, 2)
    model.W.array = np.random.RandomState(2).normal(size=(2, 3))
    model.b.array = np.zeros(2)
    return model


def _loss(model, x, t):
    return F.softmax_cross_entropy(model(x), t)


def test_five_updates_equal_those_of_one_process(comm):
    model, alone = _model(), _model()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.LBFGS(), comm).setup(model)
    single, own = optimizers.LBFGS().setup(alone), slice(comm.rank, None, comm.size)
    before = float(_loss(alone, X, T).array)
    for _ in range(5):
        with mpchain.shared_counts():
            optimizer.update(lambda x, t: _loss(model, x, t), X[own], T[own])
        single.update(_loss, alone, X, T)
    np.testing.assert_allclose(model.W.array, alone.W.array, rtol=1e-9)
    np.testing.assert_allclose(model.b.array, alone.b.array, rtol=1e-9)
    assert float(_loss(model, X, T).array) < before / 2
    assert optimizer.t == single.t == 5


@pytest.mark.parametrize("options", [{"double_buffering": True}, {"compression": float16}])
def test_gradients_that_are_changed_are_refused(comm, options):
    optimizer = mpchain.create_multi_node_optimizer(optimizers.LBFGS(), comm, **options)
    with pytest.raises(ValueError, match="setup: LBFGS needs the gradients of each loss"):
        optimizer.setup(_model())


def test_sharded_is_refused(comm):
    optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.LBFGS(), comm)
    with pytest.raises(ValueError, match="setup: LBFGS cannot be sharded: its line search needs"):
        optimizer.setup(_model())
