"""Tests that large tables train on several ranks as on one if their gradients are rows."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.row_gradients import row_gradient_of

N, WIDTH = 5000, 16


def _model():
    model = mpchain.ChainList(L.EmbedID(N, WIDTH), L.Linear(WIDTH, 1))
    random = np.random.RandomState(0)
    for param in model.params():
        param.array = random.normal(size=param.shape)
    return model


def _loss(model, ids):
    return F.mean(F.tanh(model[1](model[0](ids))))


@pytest.mark.parametrize("rule", [optimizers.SGD, optimizers.AdaGrad])
def test_ranks_train_a_table_as_one_process_does(comm, rule):
    model, alone = _model(), _model()
    optimizer = mpchain.create_multi_node_optimizer(rule(0.1), comm).setup(model)
    single, random = rule(0.1).setup(alone), np.random.RandomState(1)
    for _ in range(3):
        ids = random.randint(0, N, (comm.size, 20))
        optimizer.update(_loss, model, ids[comm.rank])
        single.update(_loss, alone, ids.reshape(-1))
        assert row_gradient_of(alone[0].W) is not None
    np.testing.assert_allclose(model[0].W.array, alone[0].W.array, rtol=1e-9)
