"""Tests models whose halves are on two ranks, on several pairs of ranks, with lazy parameters.

Each rank has two communicators: one for the model, and one for the gradients of its half.
"""

import warnings

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.configuration import using_config
from mpchain.distributed import create_multi_node_optimizer
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.links import MultiNodeChainList
from mpchain.link import Chain, Sequential
from tests.distributed import ranks
from tests.distributed.devices import assert_allclose

SIZES = {"both": (None, None), "first": (None, 4), "second": (3, None)}


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


def _halves(n_in, n_hidden):
    return Sequential(L.Linear(n_in, 4), F.tanh), Sequential(L.Linear(n_hidden, 2))


def _data(step):
    random = np.random.RandomState(30 + step)
    return random.normal(size=(8, 3)), random.normal(size=(8, 2))


class Half(Chain):
    """This rank's half of the model; its loss is the model's loss, or a delegate variable."""

    def __init__(self, comm, sizes):
        super().__init__()
        with self.init_scope():
            self.parts = MultiNodeChainList(comm)
        self.is_last = comm.rank == 1
        route = {"rank_in": 0} if self.is_last else {"rank_out": 1}
        self.parts.add_link(_halves(*sizes)[comm.rank], **route)

    def forward(self, x, t):
        y = self.parts(x)
        return F.mean_squared_error(y, t) if self.is_last else y


def _split(comm):
    if comm.size % 2:
        pytest.skip("needs pairs of ranks")
    return comm.split(comm.rank // 2, comm.rank), comm.split(comm.rank % 2, comm.rank)


def _train(of_gradients, model, steps):
    """Updates with this pair's part of each batch; returns the optimizer, and warnings."""
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), of_gradients).setup(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in steps:
            begin, end = partition(8, of_gradients.rank, of_gradients.size)
            optimizer.update(model, *(array[begin:end] for array in _data(step)))
    return optimizer, [str(warning.message) for warning in caught]


def _train_whole(halves, steps):
    whole = Sequential(*halves)
    optimizer = optimizers.Adam(0.01).setup(whole)
    for step in steps:
        x, t = _data(step)
        optimizer.update(lambda: F.mean_squared_error(whole(x), t))  # noqa: B023, called at once


def _assert_alike(model, expected):
    pairs = zip(model.params(), expected.params(), strict=True)
    for param, reference in pairs:
        assert_allclose(param.array, reference.array, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lazy", SIZES)
def test_no_step_is_lost(comm, lazy):
    """All updates, also the first, equal those of one process, although the ranks have different
    seeds."""
    of_model, of_gradients = _split(comm)
    np.random.seed(comm.rank)
    model = Half(of_model, SIZES[lazy])
    optimizer, messages = _train(of_gradients, model, range(3))
    assert (optimizer.t, messages) == (3, [])

    halves = []  # each half has the values that its first rank draws
    for rank in (0, 1):
        np.random.seed(rank)
        half = _halves(*SIZES[lazy])[rank]
        half(np.zeros((1, (3, 4)[rank])))
        halves.append(half)
    _train_whole(halves, range(3))
    _assert_alike(model, halves[of_model.rank])


@pytest.mark.parametrize("lazy", SIZES)
def test_a_step_with_unlike_values_is_skipped(comm, lazy):
    """Lazy halves that draw from the ranks' own generators skip one step with a warning, if there
    are several pairs of ranks."""
    of_model, of_gradients = _split(comm)
    np.random.seed(5)
    model = Half(of_model, SIZES[lazy])
    with using_config("rng", np.random.RandomState(comm.rank)):
        optimizer, messages = _train(of_gradients, model, [0])
    is_lazy = lazy in ("both", ("first", "second")[of_model.rank])
    skips = is_lazy and of_gradients.size > 1
    assert optimizer.t == 1 - skips
    assert len(messages) == (skips and of_gradients.rank == 0)
    for message in messages:
        assert "this step is skipped" in message
        assert "initializers draw from NumPy's global generator, in the same order" in message
    values = [param.array for param in model.params()]
    for value in values:
        assert len({x.tobytes() for x in of_gradients.allgather(value)}) == 1
    # If both halves skip the first step, the later steps equal those of one process.
    if lazy == "both" and skips:
        halves = _halves(3, 4)
        for rank, half in enumerate(halves):
            theirs = of_model.bcast_obj(values, root=rank)
            for param, value in zip(half.params(), theirs, strict=True):
                param.array[...] = value
        for step in (1, 2):
            begin, end = partition(8, of_gradients.rank, of_gradients.size)
            optimizer.update(model, *(array[begin:end] for array in _data(step)))
        _train_whole(halves, (1, 2))
        _assert_alike(model, halves[of_model.rank])


@pytest.mark.long
def test_on_four_ranks(needs_mpirun):
    """test_under_mpirun.py runs this folder on fewer ranks."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "tests/distributed/optimizers"]
    command = ["-m", "mpi4py", "-m", "pytest", *options, "-k", "test_split_models"]
    status, outputs, own_output = ranks.run(4, command, timeout=120)
    assert status == 0, ranks.report(status, outputs, own_output)
