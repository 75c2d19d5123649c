"""Tests double buffering, in which each update uses the gradients of the previous step."""

import copy

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.gradients import compression
from mpchain.link import Chain
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from tests.distributed.devices import assert_allclose, on_device

ON_GPUS = True

N_STEPS = 6


class Two(Chain):
    """A model whose second layer is initialized by its first use if ``n_hidden`` is None."""

    def __init__(self, n_hidden=4):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(3, 4)
            self.l2 = L.Linear(n_hidden, 2)

    def loss(self, x):
        return F.sum(self.l2(F.tanh(self.l1(x))) ** 2) / len(x)


def batch(step, n=12):
    return on_device(np.random.RandomState(step).standard_normal((n, 3)).astype("float32"))


def make(comm, n_hidden=4, **options):
    np.random.seed(3)
    model = on_device(Two(n_hidden))
    optimizer = create_multi_node_optimizer(
        optimizers.MomentumSGD(0.05), comm, double_buffering=True, **options
    )
    return model, optimizer.setup(model)


def update(comm, model, optimizer, step):
    begin, end = comm.share_of(12)
    optimizer.n_samples = end - begin
    optimizer.update(model.loss, batch(step)[begin:end])


def expected(n_steps):
    """Computes the updates of double buffering in one process, with whole batches."""
    np.random.seed(3)
    model = on_device(Two())
    plain = optimizers.MomentumSGD(0.05).setup(model)
    waiting = None
    for step in range(n_steps):
        model.cleargrads()
        model.loss(batch(step)).backward()
        grads = {name: param.grad for name, param in model.namedparams()}
        if waiting is not None:
            for name, param in model.namedparams():
                param.grad = waiting[name]
            plain.update()
        waiting = grads
    return model


def assert_close(model, reference):
    for (name, param), (_, other) in zip(
        sorted(model.namedparams()), sorted(reference.namedparams())
    ):
        assert_allclose(param.array, other.array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_step_begins_one_message_besides_buckets(comm, note_calls):
    model, optimizer = make(comm)
    begun = note_calls(comm, "iallreduce")
    for step in range(N_STEPS):
        begun.clear()
        with comm.batch(12) as mine:
            optimizer.update(model.loss, batch(step)[mine])
    buckets = [np.float32] if comm.size > 1 else []
    assert [x.dtype for x, *_ in begun] == [*buckets, np.float64]


@pytest.mark.parametrize("n_hidden", [4, None], ids=["initialized", "lazy"])
def test_gradients_are_those_of_the_step_before(comm, n_hidden):
    model, optimizer = make(comm, n_hidden)
    for step in range(N_STEPS):
        update(comm, model, optimizer, step)
        assert optimizer.t == step
    assert_close(model, expected(N_STEPS))


def test_sums_are_pending_between_updates(comm):
    if comm.size == 1:
        pytest.skip("needs ranks that send messages")
    model, optimizer = make(comm)
    begun = []

    def compression(comm, bucket):
        begun.append(comm.iallreduce(bucket.values))
        return begun[-1]

    model, optimizer = make(comm, compression=compression)
    update(comm, model, optimizer, 0)
    assert len(begun) == 1
    update(comm, model, optimizer, 1)
    assert begun[0].is_complete


@pytest.mark.parametrize(
    "compress", [None, compression.TopK(0.2), compression.PowerSGD(1)], ids=type
)
def test_what_waits_is_in_the_snapshot(comm, compress):
    model, optimizer = make(comm, compression=copy.deepcopy(compress))
    for step in range(3):
        update(comm, model, optimizer, step)
    saved = DictionarySerializer()
    saved["model"].save(model)
    if comm.rank % 2 == 0:  # this call does not wait for the other ranks
        saved["optimizer"].save(optimizer)
    comm.barrier()
    if comm.rank % 2:
        saved["optimizer"].save(optimizer)
    other_model, other = make(comm, compression=compress)
    loaded = NpzDeserializer(saved.target)
    loaded["model"].load(other_model)
    loaded["optimizer"].load(other)
    for step in range(3, N_STEPS):
        update(comm, model, optimizer, step)
        update(comm, other_model, other, step)
    assert_close(other_model, model)
    assert other.t == optimizer.t == N_STEPS - 1


def test_an_older_file_has_nothing_that_waits(comm):
    plain_model = on_device(Two())
    plain = optimizers.MomentumSGD(0.05).setup(plain_model)
    plain.update(plain_model.loss, batch(0))
    saved = DictionarySerializer()
    saved.save(plain)
    model, optimizer = make(comm)
    NpzDeserializer(saved.target).load(optimizer)
    assert optimizer.t == 1
    update(comm, model, optimizer, 0)
    assert optimizer.t == 1
    update(comm, model, optimizer, 1)
    assert optimizer.t == 2


def test_with_a_loss_scale(comm):
    model, optimizer = make(comm)
    optimizer.loss_scaling(scale=64.0)
    for step in range(N_STEPS):
        update(comm, model, optimizer, step)
    assert_close(model, expected(N_STEPS))
    optimizer.loss_scaling()
    with pytest.raises(RuntimeError, match=r"double_buffering .* use a constant loss scale"):
        update(comm, model, optimizer, 0)


def test_links_that_are_added_later(comm):
    """Gradients that waited for their step when the parameters changed are still applied."""
    model, optimizer = make(comm)
    update(comm, model, optimizer, 0)
    before = model.l1.W.array.copy()
    np.random.seed(0)
    with model.init_scope():
        model.l3 = on_device(L.Linear(2, 2))
    optimizer.actual_optimizer.setup(model)
    optimizer.setup(model)
    update(comm, model, optimizer, 1)
    assert (model.l1.W.array != before).any()
    assert optimizer.t == 1
