"""Tests a model whose links are on different ranks against one process, to second order."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.configuration import using_config
from mpchain.distributed.functions import pseudo_connect
from mpchain.distributed.links import MultiNodeChainList
from tests.distributed.devices import assert_allclose, assert_array_equal, xp

ON_GPUS = True


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


class Stage(mpchain.Chain):
    """One layer; layer ``i`` is the same in every process."""

    def __init__(self, i, n_in=4, n_out=4):
        super().__init__()
        random = np.random.RandomState(20 + i)
        with self.init_scope():
            self.layer = L.Linear(n_in, n_out, initialW=random.normal(0, 0.5, (n_out, n_in)))

    def forward(self, x):
        return F.tanh(self.layer(x))


def _pipeline(comm, n_stages, n_micro_batches):
    """Returns a pipeline: stage i is on rank i modulo the number of ranks; the last stage computes
    the output."""
    model = MultiNodeChainList(comm, n_micro_batches)
    for i in range(comm.rank, n_stages, comm.size):
        model.add_link(
            Stage(i),
            None if i == 0 else (i - 1) % comm.size,
            None if i == n_stages - 1 else (i + 1) % comm.size,
        )
    return model


def _whole(n_stages):
    return mpchain.Sequential(*map(Stage, range(n_stages)))


def _my_params(comm, n_stages, whole):
    return [p for i in range(comm.rank, n_stages, comm.size) for p in whole[i].params()]


DATA = np.random.RandomState(13).normal(size=(10, 4))


@pytest.mark.parametrize("n_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("n_stages", [1, 3, 7])
def test_pipeline_to_second_order(comm, n_stages, n_micro_batches):
    model, whole = _pipeline(comm, n_stages, n_micro_batches), _whole(n_stages)
    has_output = comm.rank == (n_stages - 1) % comm.size
    start = mpchain.Variable(xp.zeros(0, np.float32))
    y = model(*[DATA] if comm.rank == 0 else [], delegate_variable=start)
    expected = whole(DATA)
    params, expected_params = list(model.params()), _my_params(comm, n_stages, whole)
    if has_output:
        assert_allclose(y.array, expected.array, rtol=1e-13)
    else:
        assert y.shape == (0,)
    loss, expected_loss = F.sum(y**3), F.sum(expected**3)
    for _ in range(2):
        # On a rank without parameters, the gradient of the delegate variable is the only result.
        *gradients, token = mpchain.grad([loss], [*params, start], enable_double_backprop=True)
        theirs = mpchain.grad([expected_loss], list(whole.params()), enable_double_backprop=True)
        by_id = dict(zip(map(id, whole.params()), theirs))
        for gradient, param in zip(gradients, expected_params, strict=True):
            assert_allclose(gradient.array, by_id[id(param)].array, rtol=1e-10, atol=1e-12)
        loss = sum((F.sum(g**2) for g in gradients), F.sum(y[:0]))
        if token is not None:
            loss = pseudo_connect(token, loss)
        expected_loss = sum(F.sum(g**2) for g in theirs)


@pytest.mark.parametrize("n_micro_batches", [1, 4])
def test_training(comm, n_micro_batches):
    model, whole = _pipeline(comm, 3, n_micro_batches), _whole(3)
    plain = optimizers.Adam().setup(whole)
    optimizer = optimizers.Adam().setup(model)
    for _ in range(5):
        plain.update(lambda: F.mean(whole(DATA) ** 2))
        y = model(*[DATA] if comm.rank == 0 else [])
        model.cleargrads()
        (y if y.shape == (0,) else F.mean(y**2)).backward()
        optimizer.update()
    for param, other in zip(model.params(), _my_params(comm, 3, whole), strict=True):
        assert_allclose(param.array, other.array, rtol=1e-11)


class Fork(mpchain.Link):
    def forward(self, x):
        return 2 * x, x**2


class Join(mpchain.Link):
    def forward(self, *xs):
        return sum((i + 1) * x for i, x in enumerate(xs)), xs[0]


@pytest.mark.parametrize("n_micro_batches", [1, 3])
def test_several_arguments_results_and_ranks(comm, n_micro_batches):
    """Rank 0 sends arrays to all ranks, including itself, and joins all results."""
    everyone = list(range(comm.size))
    model = MultiNodeChainList(comm, n_micro_batches)
    if comm.rank == 0:
        model.add_link(Fork(), None, everyone)
    model.add_link(Join(), 0, 0)
    if comm.rank == 0:
        model.add_link(Join(), everyone, None)
    x, expected_x = mpchain.Variable(DATA), mpchain.Variable(DATA)
    y = model(*[x] if comm.rank == 0 else [])
    if comm.rank > 0:
        assert y.shape == (0,)
        y.backward()
        return
    joined = Join()(*Fork()(expected_x))
    expected = Join()(*joined * comm.size)
    for actual, other in zip(y, expected, strict=True):
        assert_allclose(actual.array, other.array, rtol=1e-13)
    F.sum(y[0] ** 2 + y[1]).backward()
    F.sum(expected[0] ** 2 + expected[1]).backward()
    assert_allclose(x.grad, expected_x.grad, rtol=1e-12)


def test_without_graph(comm):
    model = _pipeline(comm, 3, 2)
    with mpchain.no_backprop_mode():
        y = model(*[DATA] if comm.rank == 0 else [])
    assert y.creator is None


def test_a_rank_without_parts(comm):
    y = MultiNodeChainList(comm)()
    assert y.shape == (0,)
    y.backward()


def test_arguments_that_are_no_arrays_are_not_divided(comm):
    class Scaled(mpchain.Link):
        def forward(self, x, factor, other=None):
            return x * factor

    model = MultiNodeChainList(comm, 2)
    model.add_link(Scaled())
    assert_array_equal(model(DATA, 2.0, None).array, 2 * DATA)


def test_errors(comm):
    with pytest.raises(ValueError, match="n_micro_batches must be at least 1, not 0"):
        MultiNodeChainList(comm, 0)
    model = MultiNodeChainList(comm, 4)
    model.add_link(L.Linear(4, 4))
    with pytest.raises(ValueError, match="add_link: rank_out=None may be passed for only one part"):
        model.add_link(L.Linear(4, 4), 0)
    for ranks in (comm.size, -1, [], [0, comm.size]):
        with pytest.raises(ValueError, match=f"rank_in must be a rank from 0 to {comm.size - 1}"):
            model.add_link(L.Linear(4, 4), ranks, 0)
        with pytest.raises(ValueError, match="rank_out must be a rank from"):
            model.add_link(L.Linear(4, 4), 0, ranks)
    with pytest.raises(ValueError, match=r"shape \(3, 4\) cannot be divided into 4 micro-batches"):
        model(DATA[:3])
    with pytest.raises(ValueError, match="the results of micro-batches must have an axis"):
        model[0] = Scalar()
        model(DATA)
    model.append(L.Linear(4, 4))
    with pytest.raises(RuntimeError, match="links must be added by add_link"):
        model(DATA)
    model = MultiNodeChainList(comm)
    model.add_link(Scalar(), comm.rank)
    with pytest.raises(RuntimeError, match="on the same rank, but no part before it sends"):
        model(DATA)


class Scalar(mpchain.Link):
    def forward(self, x):
        return F.sum(x)
