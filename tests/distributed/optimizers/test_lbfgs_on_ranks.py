"""Tests that L-BFGS within a multi-node optimizer takes the same steps as in one process."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed.gradients.compression import float16
from tests.distributed import ranks

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
    with pytest.raises(ValueError, match="setup: LBFGS needs the exact gradients of each loss"):
        optimizer.setup(_model())


def test_parts_of_a_batch_are_refused(comm):
    model = _model()
    optimizer = mpchain.create_multi_node_optimizer(optimizers.LBFGS(), comm).setup(model)
    with pytest.raises(TypeError, match="LBFGS calls the loss function several times, which"):
        optimizer.update_in_parts([(len(X), lambda: _loss(model, X, T))])


def test_sharded_is_refused(comm):
    optimizer = mpchain.distributed.create_sharded_optimizer(optimizers.LBFGS(), comm)
    with pytest.raises(ValueError, match="setup: LBFGS cannot be sharded: its line search needs"):
        optimizer.setup(_model())


SCRIPT = """
import numpy as np, mpchain
from mpchain import optimizers
from tests.distributed.optimizers.test_lbfgs_on_ranks import T, X, _loss, _model
comm = mpchain.create_communicator(reproducible=True, micro_shards=12)
model = _model()
optimizer = mpchain.create_multi_node_optimizer(optimizers.LBFGS(), comm).setup(model)
x, t = np.concatenate([X, X[:1]]), np.concatenate([T, T[:1]])
for _ in range(4):
    with comm.batch(12) as mine, mpchain.shared_counts():
        optimizer.update(lambda x, t: _loss(model, x, t), x[mine], t[mine])
if comm.rank == 0:
    print("bits", *[value.hex() for value in model.W.array.ravel()])
"""


@pytest.mark.long
def test_reproducible_steps_have_the_same_bits(needs_mpirun):
    found = []
    for n_ranks in (1, 2, 3):
        status, outputs, text = ranks.run(n_ranks, ["-c", SCRIPT], timeout=120)
        assert status == 0, ranks.report(status, outputs, text)
        found.append([line for line in outputs[0].splitlines() if line.startswith("bits")])
    assert found[0] and found[0] == found[1] == found[2]
