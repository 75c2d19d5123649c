"""Tests checkpoints of state on any device: training continues with the same bits."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import optimizers
from mpchain.distributed import (
    create_multi_node_optimizer,
    create_sharded_optimizer,
    load_checkpoint,
    save_checkpoint,
)
from mpchain.distributed.gradients import compression
from tests.distributed.devices import assert_array_equal, on_device, on_gpus

ON_GPUS = True

KINDS = {
    "plain": create_multi_node_optimizer,
    "double buffering": functools.partial(create_multi_node_optimizer, double_buffering=True),
    "TopK": lambda *args: create_multi_node_optimizer(*args, compression=compression.TopK(0.3)),
    "PowerSGD": lambda *args: create_multi_node_optimizer(
        *args, compression=compression.PowerSGD(1)
    ),
    "sharded": create_sharded_optimizer,
}


class State:
    """A model and its optimizer, which are saved together."""

    def __init__(self, create, comm):
        np.random.seed(3)
        self.comm = comm
        self.model = on_device(
            mpchain.Sequential(L.Linear(4, 8), L.BatchNormalization(8), F.tanh, L.Linear(8, 2))
        )
        self.optimizer = create(optimizers.Adam(0.01), comm).setup(self.model)

    def serialize(self, serializer):
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])

    def train(self, steps):
        for step in steps:
            random = np.random.RandomState([step, self.comm.rank])
            x = on_device(random.standard_normal((4, 4)).astype("float32"))
            self.optimizer.update(lambda x: F.mean(self.model(x) ** 2), x)


@pytest.mark.filterwarnings("ignore:.*batch_normalization takes the statistics")
@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_with_the_same_bits(comm, folder, kind):
    undisturbed, saved, resumed = (State(KINDS[kind], comm) for _ in range(3))
    undisturbed.train(range(6))
    saved.train(range(3))
    save_checkpoint(folder, saved, comm, iteration=3)
    assert load_checkpoint(folder, resumed, comm) == 3
    resumed.train(range(3, 6))
    expected = dict(undisturbed.model.namedparams())
    for name, param in resumed.model.namedparams():
        assert_array_equal(param.array, expected[name].array, err_msg=name)
        assert (param.xp is np) != on_gpus()
    assert_array_equal(resumed.model[1].avg_mean, undisturbed.model[1].avg_mean)
