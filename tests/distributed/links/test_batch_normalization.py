"""Tests batch normalization over ranks against one process with all samples, to third order."""

import copy

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.configuration import using_config
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed import functions as D
from mpchain.distributed.links import MultiNodeBatchNormalization, create_mnbn_model
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, on_gpus, xp
from tests.distributed.functions.test_communication import _orders, _variables

ON_GPUS = True


def _bounds(comm, n, kind):
    """Returns this rank's range of n samples: ranges are nearly equal or differ, or the last rank
    has all samples."""
    if kind == "even":
        return n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size
    if kind == "uneven":
        ends = [n * r * (r + 1) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
        return ends[comm.rank], ends[comm.rank + 1]
    return (0, n) if comm.rank == comm.size - 1 else (0, 0)


def _links(comm, size, dtype=np.float64, **options):
    """Returns a link for one process and a link over all ranks, with the same parameters."""
    with using_config("dtype", dtype):
        single = L.BatchNormalization(size, **options)
        multi = MultiNodeBatchNormalization(size, comm, **options)
    random = np.random.RandomState(5)
    for param, other in zip(single.params(), multi.params(), strict=True):
        param.array[...] = other.array[...] = random.uniform(0.5, 1.5, param.shape)
    return on_device(single), on_device(multi)


@pytest.mark.parametrize("shape", [(7, 3), (8, 2, 3, 2)])
@pytest.mark.parametrize("kind", ["even", "uneven", "one rank has all"])
def test_values_and_gradients(comm, shape, kind):
    random = np.random.RandomState(6)
    x_array, weights = on_device((random.normal(3, 2, shape), random.uniform(0.5, 1.5, shape)))
    single, multi = _links(comm, shape[1])
    mine = slice(*_bounds(comm, shape[0], kind))
    x, whole = _variables([x_array[mine], x_array])
    actual, expected = multi(F.sin(x)), single(F.sin(whole))
    assert_allclose(actual.array, expected.array[mine], rtol=1e-12, atol=1e-13)
    ours = _orders(F.sum(actual**3 * weights[mine]), [x, multi.gamma, multi.beta], 1)
    theirs = _orders(F.sum(expected**3 * weights), [whole, single.gamma, single.beta], 1)
    gx, *gradients = next(ours)
    expected_gx, *expected_gradients = next(theirs)
    assert_allclose(gx, expected_gx[mine], rtol=1e-10, atol=1e-11)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        assert_allclose(comm.allreduce(gradient), other, rtol=1e-11)


@pytest.mark.parametrize("kind", ["even", "uneven", "one rank has all"])
def test_penalties_to_third_order(comm, kind):
    """Tests second and third derivatives, also by the parameters, of which each rank has a copy."""
    shape = (6, 2, 2)
    random = np.random.RandomState(7)
    x_array, weights = on_device((random.normal(1, 2, shape), random.uniform(0.5, 1.5, shape)))
    single, multi = _links(comm, shape[1])
    mine = slice(*_bounds(comm, shape[0], kind))
    x, whole = _variables([x_array[mine], x_array])

    def penalties(bn, x, weights, total):
        """Yields the gradients of each order; ``total`` adds up the gradients of copies."""
        xs = [x, bn.gamma, bn.beta]
        loss = F.sum(bn(x) ** 3 * weights)
        for _ in range(3):
            gx, *gradients = mpchain.grad([loss], xs, enable_double_backprop=True)
            totals = [total(g) for g in gradients]
            yield gx.array, [g.array for g in totals]
            # All ranks know this loss, and the sum of their shares is the loss.
            loss = F.sum(gx**2) + sum(F.sum(g**2) for g in totals) / total.count

    def over_ranks(g):
        return D.allreduce(comm, g)

    def alone(g):
        return g

    over_ranks.count, alone.count = comm.size, 1
    ours = penalties(multi, x, weights[mine], over_ranks)
    theirs = penalties(single, whole, weights, alone)
    for (gx, gradients), (expected_gx, expected) in zip(ours, theirs, strict=True):
        scale = xp.abs(expected_gx).max()
        assert_allclose(gx, expected_gx[mine], rtol=1e-9, atol=1e-11 * scale)
        for gradient, other in zip(gradients, expected, strict=True):
            assert_allclose(gradient, other, rtol=1e-9, atol=1e-11 * xp.abs(other).max())


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("kind", ["even", "uneven", "one rank has all"])
def test_running_statistics(comm, kind, finetune):
    random = np.random.RandomState(8)
    single, multi = _links(comm, 3)
    for link in (single, multi):
        link.start_finetuning()
    for n in (5, 1, 8):
        x = on_device(random.normal(5, 3, (n, 3, 2)))
        single(x, finetune=finetune)
        multi(x[slice(*_bounds(comm, n, kind))], finetune=finetune)
    assert multi.N == single.N == (3 if finetune else 0)
    for name in ("avg_mean", "avg_var"):
        assert_allclose(getattr(multi, name), getattr(single, name), rtol=1e-13)
        # The bits must be the same on all ranks, because later steps do not synchronize the values.
        held = comm.allgather_obj(getattr(multi, name).tobytes())
        assert held == held[:1] * comm.size
    with using_config("train", False):
        x = on_device(random.normal(size=(comm.rank, 3, 2)))  # evaluation needs no communication
        assert_allclose(multi(x).array, single(x).array, rtol=1e-12)


def test_without_any_sample(comm):
    _, multi = _links(comm, 3)
    before = multi.avg_mean.copy(), multi.avg_var.copy()
    x = mpchain.Variable(xp.zeros((0, 3)))
    F.sum(multi(x)).backward()
    assert x.grad.shape == (0, 3)
    assert_array_equal(multi.gamma.grad, xp.zeros(3))
    assert_array_equal((multi.avg_mean, multi.avg_var), before)


@pytest.mark.parametrize("options", [{"use_gamma": False}, {"use_beta": False}, {"eps": 0.5}])
def test_options(comm, options):
    x = on_device(np.random.RandomState(9).normal(size=(6, 3)))
    single, multi = _links(comm, 3, decay=0.5, **options)
    mine = slice(*_bounds(comm, 6, "uneven"))
    assert_allclose(multi(x[mine]).array, single(x).array[mine], rtol=1e-12, atol=1e-14)
    assert_allclose(multi.avg_var, single.avg_var)
    assert list(multi.printable_specs) == list(single.printable_specs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_dtypes(comm, dtype):
    random = np.random.RandomState(10)
    x = on_device(random.normal(10, 1, (12, 3)).astype(dtype))
    g = on_device(random.normal(size=(12, 3)).astype(dtype))
    single, multi = _links(comm, 3, np.float32)
    mine = slice(*_bounds(comm, 12, "even"))
    ours, theirs = _variables([x[mine], x])
    y, expected = multi(ours), single(theirs)
    y.grad, expected.grad = g[mine], g
    y.backward(), expected.backward()
    assert y.dtype == ours.grad.dtype == dtype and multi.gamma.grad.dtype == np.float32
    tolerance = 2e-2 if dtype == np.float16 else 2e-5
    for actual, other in [(y.array, expected.array), (ours.grad, theirs.grad)]:
        assert_allclose(actual, other[mine], rtol=tolerance, atol=tolerance)


def test_forgotten_and_computed_again(comm):
    """Recomputation in backward communicates with the other ranks again, and counts the batch
    once."""
    x_array = on_device(np.random.RandomState(11).normal(size=(6, 3)))
    single, multi = _links(comm, 3)
    mine = slice(*_bounds(comm, 6, "uneven"))
    x, whole = _variables([x_array[mine], x_array])

    def penalty(bn, x):
        loss = F.sum(F.forget(lambda x: F.tanh(bn(x)) ** 3, x))
        (gx,) = mpchain.grad([loss], [x], enable_double_backprop=True)
        return F.sum(gx**2)

    penalty(multi, x).backward()
    penalty(single, whole).backward()
    assert_allclose(x.grad, whole.grad[mine], rtol=1e-9, atol=1e-11)
    assert_allclose(multi.avg_mean, single.avg_mean)


def test_wrong_arguments(comm):
    with pytest.raises(TypeError, match="MultiNodeBatchNormalization: comm must be a Communicator"):
        MultiNodeBatchNormalization(3, 0.9)
    with pytest.raises(ValueError, match="must be one of auto, mpi, nccl, not 'gloo'"):
        create_mnbn_model(L.Linear(2), comm, "gloo")
    mine, other = ("nccl", "mpi") if on_gpus() else ("mpi", "nccl")
    if comm.size > 1:
        with pytest.raises(ValueError, match=f"is '{other}', but the communicator uses '{mine}'"):
            MultiNodeBatchNormalization(3, comm, communication_backend=other)
    MultiNodeBatchNormalization(3, comm, communication_backend=mine)


# create_mnbn_model


class Model(mpchain.Chain):
    """A model with BatchNormalization in every kind of container, and one link in two places."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(3, 4)
            self.bn = L.BatchNormalization(4)
            self.list = mpchain.ChainList(L.BatchNormalization(4, decay=0.5), L.Linear(4, 4))
            self.sequence = mpchain.Sequential(self.list[1], L.BatchNormalization(), F.tanh)
            self.other = L.BatchRenormalization(4)
        self.again = [self.bn]

    def forward(self, x):
        h = self.bn(self.first(x))
        return self.sequence(self.list[0](h) + self.again[0](h))


def test_create_mnbn_model(comm):
    model = on_device(Model())
    model.bn.gamma.array[...] = 2
    model.bn.avg_mean[...] = 3
    copied = create_mnbn_model(model, comm)
    kinds = {name: type(link) for name, link in copied.namedlinks()}
    changed = {name for name, kind in kinds.items() if kind is MultiNodeBatchNormalization}
    assert changed == {"/bn", "/list/0", "/sequence/1"}
    assert copied.again == [copied.bn]
    assert type(copied.other) is L.BatchRenormalization
    assert copied.list[0].decay == 0.5
    assert type(model.bn) is L.BatchNormalization and not hasattr(model.bn, "comm")
    assert_array_equal(copied.bn.gamma.array, 2.0)
    copied.bn.avg_mean += 1
    assert_array_equal(model.bn.avg_mean, 3.0)
    assert copied.bn.comm is comm
    # Copies of copies communicate with the same ranks.
    assert copy.deepcopy(copied).list[0].comm is comm
    assert copied.copy("share").bn.comm is comm


def test_create_mnbn_model_of_a_link_itself(comm):
    assert type(create_mnbn_model(L.BatchNormalization(3), comm)) is MultiNodeBatchNormalization
    assert type(create_mnbn_model(L.Linear(3, 2), comm)) is L.Linear


def test_the_model_computes_what_one_process_does(comm):
    with using_config("dtype", np.float64):
        model = on_device(Model())
        model(
            on_device(np.random.RandomState(0).normal(size=(4, 3)))
        )  # this call initializes parameters whose shape depends on the input
    comm.bcast_data(model)
    copied = create_mnbn_model(model, comm)
    x = on_device(np.random.RandomState(12).normal(size=(9, 3)))
    mine = slice(*_bounds(comm, 9, "uneven"))
    assert_allclose(copied(x[mine]).array, model(x).array[mine], rtol=1e-11)


def test_a_rank_without_samples_is_reported(comm):
    model = on_device(mpchain.Sequential(L.Linear(3, 2), MultiNodeBatchNormalization(2, comm)))
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    optimizer.n_samples = int(comm.rank == 0)
    if comm.size == 1:
        return
    rule = rf"/1 computes with all ranks together, but {comm.size - 1} of {comm.size} ranks have no"
    with pytest.raises(ValueError, match=rule):
        optimizer.update(lambda: F.sum(model(xp.ones((1, 3), np.float32))))


def test_ranks_with_different_numbers_of_parts_are_reported(comm):
    model = on_device(mpchain.Sequential(L.Linear(3, 2), MultiNodeBatchNormalization(2, comm)))
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    part = 1, lambda: F.sum(model(xp.ones((1, 3), np.float32)))
    # Each micro-batch is normalized by itself, as in one process.
    optimizer.update_in_parts([part, part])
    assert optimizer.t == 1
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"but the ranks have \[2, 1.*\] parts of the batch"):
            optimizer.update_in_parts([part] * (2 if comm.rank == 0 else 1))
