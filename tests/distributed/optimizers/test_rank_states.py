"""Tests state that belongs to a rank's samples, on any number of ranks."""

import numpy as np
import pytest

import mpchain
from mpchain import links as L
from mpchain import optimizers
from mpchain.backends.cuda import to_cpu
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.checkpoints.states import StateSerializer
from mpchain.distributed.communicators import Communicator
from mpchain.serializers import DictionarySerializer, NpzDeserializer


class RankOf(Communicator):
    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def _set_up(of_rank, device="@numpy"):
    model = L.LSTM(3, 2)
    model.to_device(device)
    states = create_multi_node_optimizer(optimizers.SGD(), Communicator()).setup(model)
    states.add_rank_state(model, "h", "c")
    states.current_step.rank_states._comm = of_rank
    return model, states.current_step.rank_states


def test_rows_are_divided_anew(device):
    whole = np.arange(10.0).reshape(5, 2)
    parts = {}
    for rank in range(2):
        comm = RankOf(rank, 2)
        model, states = _set_up(comm, device)
        states.n_samples = 5
        model.h = mpchain.Variable(model.device.send(whole[slice(*comm.share_of(5))]))
        serializer = StateSerializer()
        states.serialize(serializer)
        parts[rank] = serializer.target["h"]
        assert parts[rank].shape == (5, 2)
    np.testing.assert_array_equal(np.concatenate([p.array for p in parts.values()]), whole.ravel())
    assert [part.start for part in parts.values()] == [0, 6]
    for rank in range(3):
        comm = RankOf(rank, 3)
        model, states = _set_up(comm, device)
        states.serialize(NpzDeserializer({"h": whole, "c": serializer.target["c"].array}))
        np.testing.assert_array_equal(to_cpu(model.h.array), whole[slice(*comm.share_of(5))])
        assert model.c is None
        again = StateSerializer()
        states.serialize(again)  # the state is saved at once, before another batch
        assert again.target["h"].shape == (5, 2)


def test_files_of_one_process_and_files_without_the_state():
    model, states = _set_up(Communicator())
    model.h = mpchain.Variable(np.ones((4, 2), np.float32))
    serializer = DictionarySerializer()
    states.serialize(serializer)
    other, states = _set_up(Communicator())
    states.serialize(NpzDeserializer({}))
    assert other.h is None
    states.serialize(NpzDeserializer(serializer.target))
    np.testing.assert_array_equal(other.h.array, model.h.array)


def test_errors():
    model, states = _set_up(RankOf(0, 2))
    states.n_samples, model.h = 5, mpchain.Variable(np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match="h must have a row for each of this rank's 3 samples"):
        states.serialize(StateSerializer())
    optimizer = create_multi_node_optimizer(optimizers.SGD(), Communicator()).setup(model)
    with pytest.raises(ValueError, match="link must be in the optimizer's model, but this Linear"):
        optimizer.add_rank_state(L.Linear(2, 2), "h")
    with pytest.raises(AttributeError, match="nothing"):
        optimizer.add_rank_state(model, "nothing")
