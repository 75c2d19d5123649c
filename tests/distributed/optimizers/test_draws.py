"""Tests that N ranks draw the same random numbers in updates as one rank."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

from mpchain import distributions, optimizers
from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import using_config
from mpchain.distributed import (
    MultiNodeUpdater,
    create_communicator,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed.communicators import Communicator
from mpchain.iterators import SerialIterator
from mpchain.link import Chain
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp

ON_GPUS = True

N = 13


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


class Noisy(Chain):
    """A model with dropout, latent variables and dropped connections."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(4, 6)
            self.l2 = L.SimplifiedDropconnect(6, 6)
            self.l3 = L.Linear(6, 1)

    def forward(self, x, t):
        h = F.dropout(F.tanh(self.l1(x)), 0.3)
        h = F.zoneout(h, F.sigmoid(self.l2(h)))
        h = distributions.Normal(h, F.exp(h)).sample() + F.gaussian(h, h)
        h = h * distributions.Gamma(F.exp(h), F.exp(h)).sample(3)[1]
        return F.mean_squared_error(F.dropout(self.l3(F.rrelu(h)), 0.2), t)


class Recurrent(Chain):
    """A model with dropout between layers, over sequences of different lengths."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(3, 4, 5, 0.4)

    def forward(self, xs):
        h, _, _ = self.lstm(None, None, xs)
        return F.mean(F.sum(h[-1] ** 2, axis=1))


def batch(step, n=N):
    random = np.random.RandomState(step)
    return on_device((random.uniform(-1, 1, (n, 4)), random.uniform(-1, 1, (n, 1))))


def sequences(step):
    random = np.random.RandomState(step)
    return on_device([random.uniform(-1, 1, (n, 4)) for n in random.randint(1, 6, N)])


def make(comm, make_model=Noisy):
    vars(comm).pop("n_draw_keys", None)  # each program starts with the first key
    np.random.seed(0)
    model = on_device(make_model())
    return model, create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)


def values(model):
    return {name: param.array for name, param in model.namedparams()}


def assert_same(model, other, tolerance=1e-12):
    for name, value in values(model).items():
        assert_allclose(value, values(other)[name], tolerance, tolerance, err_msg=name)


def train(comm, steps, make_model=Noisy, model_and_optimizer=None):
    """Trains with whole batches that the ranks divide."""
    model, optimizer = model_and_optimizer or make(comm, make_model)
    for step in steps:
        with comm.batch(N) as mine:
            if make_model is Noisy:
                optimizer.update(model, *(x[mine] for x in batch(step)))
            else:
                optimizer.update(model, sequences(step)[mine])
    return model, optimizer


@pytest.mark.parametrize("make_model", [Noisy, Recurrent])
def test_ranks_draw_what_one_rank_draws(comm, make_model):
    # All ranks have the same state of NumPy's generator, but their masks must differ.
    model, _ = train(comm, range(4), make_model)
    expected, _ = train(Communicator(), range(4), make_model)
    assert_same(model, expected)


def test_masks_of_samples_are_not_those_of_another_rank(comm):
    masks = []

    def loss(x, W):
        masks.append(F.dropout(x, 0.5).array)
        return F.sum(W)

    model = L.Linear(1, 1)
    np.random.seed(0)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    for _ in range(2):
        optimizer.update(loss, xp.ones((2, 64)), model.W)
    rows = xp.concatenate(comm.allgather(xp.concatenate(masks)))
    assert len(np.unique(rows, axis=0)) == len(rows) == 4 * comm.size


def test_accumulated_parts_draw_what_the_batch_draws(comm):
    model, optimizer = make(comm)
    for step in range(3):
        x, t = batch(step)
        with comm.batch(N) as mine:
            x, t = x[mine], t[mine]
            bounds = [(0, 1), (1, 3), (3, N)]
            parts = [(x[b:e], t[b:e]) for b, e in bounds if b < len(x)]
            optimizer.update_in_parts([(len(p[0]), functools.partial(model, *p)) for p in parts])
    expected, _ = train(Communicator(), range(3))
    assert_same(model, expected)


@pytest.mark.parametrize("repeat", [True, False])
def test_the_updater_numbers_the_samples_of_a_sharded_iterator(comm, repeat):
    trained = []
    for c in (comm, Communicator()):
        model, optimizer = make(c)
        data = list(zip(*batch(0, 31)))
        iterator = create_sharded_iterator(SerialIterator(data, 7, repeat, False), c)
        updater = MultiNodeUpdater(iterator, optimizer, c)
        for _ in range(5):
            updater.update()
        trained.append(model)
    assert_same(*trained)


def test_equal_batches_without_a_word_about_their_division(comm):
    """Ranks with batches of equal size draw what one rank draws for all samples in rank order."""
    x, t = batch(0, 3 * comm.size)
    trained = []
    for c in (comm, Communicator()):
        model, optimizer = make(c)
        mine = slice(3 * comm.rank, 3 * comm.rank + 3) if c is comm else slice(None)
        for _ in range(3):
            optimizer.update(model, x[mine], t[mine])
        trained.append(model)
    assert_same(*trained)


@pytest.mark.filterwarnings("ignore:.*the samples of this rank are unknown")
def test_unequal_batches_without_a_word_are_independent(comm):
    drawn = []

    def loss(x, W):
        drawn.append(F.dropout(x, 0.5).array)
        return F.sum(W)

    model = L.Linear(1, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    for _ in range(3):
        optimizer.n_samples = 1 + comm.rank
        optimizer.update(loss, xp.ones((1 + comm.rank, 64)), model.W)
    # The first step only assumes how the batch is divided; later steps know it.
    rows = [row.tobytes() for x in comm.allgather_obj(drawn[1:]) for y in x for row in y]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("known", [{}, {"n": N}], ids=str)
def test_ranks_that_divide_a_batch_in_their_own_way(comm, known):
    ends = np.cumsum(xp.arange(1, comm.size + 1)) * N // (comm.size * (comm.size + 1) // 2)
    mine = slice(int(ends[comm.rank - 1]) if comm.rank else 0, int(ends[comm.rank]))
    model, optimizer = make(comm)
    for step in range(3):
        with comm.batch(**known, mine=mine):
            optimizer.update(model, *(x[mine] for x in batch(step)))
    expected, _ = train(Communicator(), range(3))
    assert_same(model, expected)


def test_parts_must_cover_the_batch(comm):
    model, optimizer = make(comm)
    n = N * comm.size
    with comm.batch(n + 1, mine=slice(comm.rank * N, (comm.rank + 1) * N)):
        with pytest.raises(ValueError, match=rf"has {n + 1} samples.* have {n} together"):
            optimizer.update(model, *batch(0))


def test_batches_that_are_accumulated(comm):
    """The numbers of samples of all accumulated batches are known."""
    model = on_device(L.Linear(1, 1, nobias=True, initialW=np.zeros((1, 1))))
    optimizer = create_multi_node_optimizer(optimizers.SGD(1), comm).setup(model)
    x = xp.arange(float(N)).reshape(N, 1)
    # All ranks take part in the first update.
    optimizer.update(lambda x: F.mean(model(x)), xp.zeros((1, 1)))
    for numbers in ((3, 7, N), (5, N)):
        model.W.array[...] = 0
        for begin, end in itertools.pairwise((0, *numbers)):
            accumulates = end < N
            with optimizer.no_sync() if accumulates else contextlib.nullcontext():
                with comm.batch(end - begin) as mine:
                    optimizer.update(lambda x: F.mean(model(x)), x[begin:end][mine])
        assert_allclose(model.W.array, [[-float(x.mean())]], 1e-12)


@pytest.mark.parametrize("n", [None, -1, 2.5, "3"])
def test_the_size_of_a_batch_is_checked(comm, n):
    with pytest.raises(ValueError, match=r"Communicator.batch: n must be an integer of at least 0"):
        with comm.batch(n):
            pass


def test_within_a_batch_ranks_weigh_by_samples(comm):
    model = on_device(L.Linear(1, 1, nobias=True, initialW=np.zeros((1, 1))))
    optimizer = create_multi_node_optimizer(optimizers.SGD(1), comm).setup(model)
    x = xp.arange(float(N)).reshape(N, 1)
    with comm.batch(N) as mine:
        optimizer.update(lambda x: F.mean(model(x)), x[mine])
    assert_allclose(model.W.array, [[-float(x.mean())]], 1e-12)
    assert optimizer.n_samples is None


def test_batches_smaller_than_the_number_of_ranks(comm):
    model, optimizer = make(comm)
    expected, other = make(Communicator())
    for c, m, o in ((comm, model, optimizer), (Communicator(), expected, other)):
        for step in range(2):
            x, t = batch(step, 1)
            with c.batch(1) as mine:
                o.update(m, x[mine], t[mine])
    assert_same(model, expected)


def test_a_restored_optimizer_goes_on_with_its_draws(comm):
    model, optimizer = train(comm, range(3))
    saved = DictionarySerializer()
    saved["model"].save(model)
    saved["optimizer"].save(optimizer)
    np.random.seed(99)  # the resumed program has another seed
    restored = on_device(Noisy())
    other = create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(restored)
    loaded = NpzDeserializer(saved.target)
    loaded["model"].load(restored)
    loaded["optimizer"].load(other)
    train(comm, range(3, 6), model_and_optimizer=(model, optimizer))
    train(comm, range(3, 6), model_and_optimizer=(restored, other))
    assert_same(restored, model, 0)


def test_optimizers_draw_independently(comm):
    drawn = []

    def loss(x, W):
        drawn.append(F.dropout(x, 0.5).array)
        return F.sum(W)

    model = L.Linear(1, 1)
    for _ in range(2):  # NumPy's state is the same at both setups
        np.random.seed(0)
        optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
        optimizer.update(loss, xp.ones((2, 64)), model.W)
    assert (drawn[0] != drawn[1]).any()


def test_nothing_is_drawn_from_numpy(comm):
    np.random.seed(3)
    expected = np.random.random_sample(5)
    model, optimizer = make(comm)
    with comm.batch(N) as mine:
        optimizer.update(model, *(x[mine] for x in batch(0)))
    np.random.seed(3)
    state = np.random.get_state()
    with comm.batch(N) as mine:
        optimizer.update(model, *(x[mine] for x in batch(1)))
    assert_array_equal(np.random.get_state()[1], state[1])
    assert_array_equal(np.random.random_sample(5), expected)


def test_reproducible_ranks_draw_by_sample(comm):
    if 12 % comm.size:
        pytest.skip("needs a number of ranks that divides 12 micro-shards")
    trained = []
    for c in (create_communicator(reproducible=True), Communicator()):
        model, optimizer = make(c)
        iterator = create_sharded_iterator(SerialIterator(list(zip(*batch(0, 36))), 24), c)
        updater = MultiNodeUpdater(iterator, optimizer, c)
        for _ in range(3):
            updater.update()
        trained.append(model)
    assert_same(*trained, 1e-11)  # micro-shards are summed in another order than a batch
