"""Tests saving and loading of float32 copies of slices of parameters."""

import io

import numpy as np
import pytest

from mpchain import optimizers, serializers
from mpchain.configuration import mixed_bf16, using_config
from mpchain.distributed import (
    create_multi_node_optimizer,
    create_sharded_optimizer,
    load_checkpoint,
    save_checkpoint,
)
from tests.distributed.devices import assert_array_equal
from tests.distributed.optimizers.test_sharded import assert_same, make, train


class Half:
    """Makes small steps of bfloat16 parameters, which only their float32 copies can add up."""

    def __init__(self, comm, create=create_sharded_optimizer, model=None):
        self.comm = comm
        with using_config("dtype", mixed_bf16.dtype):
            self.optimizer = make(create, optimizers.AdamW(1e-4), comm, mixed_bf16.dtype)
        self.optimizer.use_fp32_update()
        self.train(1)  # the first step initializes all copies
        if model is not None:
            self.optimizer.target.copyparams(model)

    def train(self, n, first=0):
        with using_config("dtype", mixed_bf16.dtype):
            train(self.optimizer, self.comm, n, first, mixed_bf16.dtype)
        return self.optimizer.target

    def serialize(self, serializer):
        self.optimizer.target.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])


def test_float32_copies_are_saved_in_checkpoints(comm, folder):
    uninterrupted = Half(comm)
    uninterrupted.train(9, first=1)
    save_checkpoint(folder, uninterrupted, comm, 10)
    uninterrupted.train(10, first=10)
    for create in (create_sharded_optimizer, create_multi_node_optimizer):
        resumed = Half(comm, create)
        assert load_checkpoint(folder, resumed, comm) == 10
        assert_same(resumed.train(10, first=10), uninterrupted.optimizer.target)


@pytest.mark.parametrize("create", [create_sharded_optimizer, create_multi_node_optimizer])
def test_float32_copies_are_saved_in_whole_files(comm, create):
    saved, uninterrupted = Half(comm, create), Half(comm, create_multi_node_optimizer)
    for half in (saved, uninterrupted):
        half.train(9, first=1)
    if create is create_sharded_optimizer:
        saved.optimizer.gather_state()
    file = io.BytesIO()
    if comm.rank == 0:
        serializers.save_npz(file, saved)
    file = io.BytesIO(comm.bcast_obj(file.getvalue()))
    again = io.BytesIO()
    resumed = Half(comm)
    serializers.load_npz(file, resumed)
    serializers.save_npz(again, resumed)  # the state is saved before the next step divides it again
    file.seek(0), again.seek(0)
    with np.load(file) as expected, np.load(again) as found:
        assert expected["optimizer/l1/W/fp32_param"].dtype == np.float32
        assert set(found) == set(expected)
        for key in set(expected) - {"optimizer/exchange/draws"}:
            assert_array_equal(found[key], expected[key], err_msg=key)
    for half in (resumed, uninterrupted):
        half.train(10, first=10)
    assert_same(resumed.optimizer.target, uninterrupted.optimizer.target)


def test_float32_copies_are_in_local_states(comm):
    one = Half(comm)
    one.train(9, first=1)
    other = Half(comm, model=one.optimizer.target)
    other.optimizer.set_local_state(one.optimizer.local_state())
    other.optimizer.actual_optimizer.t = one.optimizer.t
    for half in (one, other):
        half.train(10, first=10)
    assert_same(other.optimizer.target, one.optimizer.target)


def test_a_file_that_does_not_fit_changes_no_state(comm):
    one, other = Half(comm), Half(comm)
    one.optimizer.gather_state()
    file = io.BytesIO()
    if comm.rank == 0:
        serializers.save_npz(file, one)
    other_file = io.BytesIO()
    with np.load(io.BytesIO(comm.bcast_obj(file.getvalue()))) as arrays:
        np.savez(other_file, **(dict(arrays) | {"model/l2/b": np.zeros(7)}))
    other_file.seek(0)
    before = other.optimizer.local_state()
    with pytest.raises(serializers.SerializationError, match="'model/l2/b'"):
        serializers.load_npz(other_file, other)
    np.testing.assert_equal(other.optimizer.local_state(), before)
