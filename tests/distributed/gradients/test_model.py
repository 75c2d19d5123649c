"""Tests the methods of communicators that take models."""

import gc
import weakref

import numpy as np
import pytest

from mpchain import links as L
from tests.distributed.devices import assert_array_equal, on_device, xp
from tests.models import MLP

ON_GPUS = True


def test_multi_node_mean_grad_again(comm, note_calls):
    """The buffers are kept for the next call, and released with the model."""
    made, n_made = note_calls(comm, "make_buffers"), []
    model = on_device(MLP())
    for step in range(5):
        for param in model.params():
            param.grad = xp.full(param.shape, step + comm.rank, "f")
        comm.multi_node_mean_grad(model)
        mean = step + np.mean(range(comm.size))
        assert_array_equal(model.l1.W.grad, xp.full((4, 3), mean, "f"))
        n_made.append(len(made))
    assert n_made[0] == n_made[-1] > 0
    with model.init_scope():  # the new parameter needs other buffers
        model.l3 = on_device(L.Linear(2, 2))
    for param in model.params():
        param.grad = xp.full(param.shape, comm.rank, "f")
    comm.multi_node_mean_grad(model)
    assert_array_equal(model.l3.b.grad, xp.full(2, np.mean(range(comm.size))))
    assert len(made) == 2 * n_made[0]
    gone = weakref.ref(model)
    del model, param
    gc.collect()
    assert gone() is None
    assert len(vars(comm)["_reducers"]) == 0


def test_multi_node_mean_grad_after_an_error(comm):
    model = on_device(MLP())
    for is_missing in (comm.size > 1, False):
        for param in model.params():
            param.grad = xp.ones(param.shape, "f")
        if is_missing:
            if comm.rank == 0:
                model.l1.b.grad = None
            with pytest.raises(ValueError, match=r"None on some ranks only"):
                comm.multi_node_mean_grad(model)
    comm.multi_node_mean_grad(model)
    assert model.l1.b.grad.tolist() == [1.0] * 4
