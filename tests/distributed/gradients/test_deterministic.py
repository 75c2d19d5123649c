"""Tests that any number of ranks computes the same bits with a reproducible communicator."""

import hashlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers
from mpchain.distributed import (
    MultiNodeUpdater,
    create_communicator,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.distributed.links import MultiNodeBatchNormalization
from mpchain.iterators import SerialIterator
from mpchain.link import Chain, Sequential
from mpchain.link_hooks import SpectralNormalization
from mpchain.reporter import Reporter, report
from mpchain.variable import Variable
from tests.distributed import ranks


class Convolutional(Chain):
    """A model with layers whose rounding may depend on the batch; its first use initializes it."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 5, 3)
            self.norm = L.BatchNormalization(5)
            self.l1 = L.Linear(None, 30)
            self.renorm = L.BatchRenormalization(30)
            self.lazy_norm = L.BatchNormalization()
            self.l2 = L.Linear(None, 4).add_hook(SpectralNormalization())
        self.add_persistent("n_updates", 0)
        self.add_persistent("mean_label", np.float32(0))

    def forward(self, x, t):
        self.n_updates += 1
        self.mean_label = self.mean_label / 2 + np.float32(t.mean())
        h = F.relu(self.norm(self.conv(x)))
        h = F.dropout(F.tanh(self.lazy_norm(self.renorm(self.l1(h)), finetune=True)), 0.3)
        return F.softmax_cross_entropy(self.l2(h), t)


def data(n=50):
    random = np.random.RandomState(4)
    x = random.standard_normal((n, 2, 8, 8)).astype("float32")
    return list(zip(x, random.randint(0, 4, n).astype("int32")))


def state_of(model):
    """Returns the parameters and persistent values by name."""
    values = {path: persistent.value for path, persistent in named_persistents(model).items()}
    return {name: param.array for name, param in sorted(model.namedparams())} | values


def train(comm, batch_size, n_updates=4):
    """Returns the state of a trained model by name, and the next number of NumPy's generator."""
    np.random.seed(7 + comm.rank)
    model = Convolutional()
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1))
    iterator = create_sharded_iterator(SerialIterator(data(), batch_size), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    for _ in range(n_updates):
        updater.update()
    assert model.n_updates == model.lazy_norm.N == n_updates
    return state_of(model), np.random.uniform()


class Critic(Chain):
    """A critic with statistics; its losses also call a generator with statistics."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 8).add_hook(SpectralNormalization())
            self.norm = L.BatchNormalization(8)
            self.l2 = L.Linear(8, 1)

    def forward(self, x):
        return self.l2(F.tanh(self.norm(self.l1(x))))


def critic_loss(generator, critic, x, scale):
    z = np.random.standard_normal((len(x), 3)).astype("float32")
    wrong = critic(generator(z))
    return scale * F.mean(F.softplus(-critic(x)) + F.softplus(wrong))


def generator_loss(generator, critic, x):
    z = np.random.standard_normal((len(x), 3)).astype("float32")
    return F.mean(F.softplus(-critic(generator(z))))


def train_two(comm, batch_size, n_updates=3):
    """Trains like :func:`train`, with two optimizers in a loop of the program."""
    np.random.seed(7 + comm.rank)
    generator = Sequential(L.Linear(3, 6), L.BatchNormalization(6), F.relu, L.Linear(6, 128))
    critic = Critic()
    optimize_generator, optimize_critic = (
        create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)
        for model in (generator, critic)
    )
    x = np.stack([x.reshape(-1) for x, _ in data(batch_size * n_updates)])
    for batch in np.split(x, n_updates):
        with comm.batch(batch_size) as mine:
            optimize_critic.update(critic_loss, generator, critic, scale=2, x=batch[mine])
            optimize_generator.update(generator_loss, generator, critic, batch[mine])
    return state_of(Chain(generator=generator, critic=critic)), np.random.uniform()


class Recurrent(Chain):
    """Labels sequences of several lengths by their last states, with dropout between layers."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(2, 4, 5, 0.4)
            self.out = L.Linear(5, 4)

    def forward(self, sequences, labels):
        h, _, _ = self.lstm(None, None, sequences)
        return F.softmax_cross_entropy(self.out(F.dropout(h[-1], 0.3)), np.array(labels))


def train_recurrent(comm, batch_size, n_updates=3):
    """Trains like :func:`train_two`, with sequences."""
    np.random.seed(7 + comm.rank)
    model = Recurrent()
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)
    pairs = data(batch_size * n_updates)
    for i in range(0, len(pairs), batch_size):
        with comm.batch(batch_size) as mine:
            own = [*enumerate(pairs[i : i + batch_size])][mine]
            sequences = [x.reshape(-1, 4)[: 2 + j % 5] for j, (x, _) in own]
            optimizer.update(model, sequences, [t for _, (_, t) in own])
    return state_of(model), np.random.uniform()


def digest(comm):
    """Returns a text of all bits, for batches that are divided evenly and unevenly, and for a batch
    that leaves some micro-shards empty."""
    texts = []
    for function, batch_sizes in (
        (train, (24, 20, 7)),
        (train_two, (20, 7)),
        (train_recurrent, (24, 20, 7)),
    ):
        for batch_size in batch_sizes:
            state, number = function(comm, batch_size)
            parts = [np.asarray(value).tobytes() for value in state.values()]
            bits = hashlib.sha256(b"".join(parts)).hexdigest()
            assert len(set(comm.allgather_obj(bits))) == 1, "the ranks differ"
            texts.append(f"{batch_size}: {len(state)} values, {bits}, then {number}")
    return "\n".join(texts)


SCRIPT = """
from mpchain.distributed import create_communicator
from tests.distributed.gradients.test_deterministic import digest
comm = create_communicator(reproducible=True)
text = digest(comm)
if comm.rank == 0:
    print(text)
"""


@pytest.fixture(scope="module")
def text_of_one_process():
    alone = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=ranks.ROOT,
        env=ranks.environment(),
    ).stdout.strip()
    assert [line.split()[1] for line in alone.splitlines()] == ["24"] * 3 + ["19"] * 2 + ["34"] * 3
    assert len({line.split()[3] for line in alone.splitlines()}) == 8
    return alone


SIZES = [pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 5)]
SIZES += [pytest.param(n, marks=pytest.mark.nightly) for n in (4, 6, 7, 8, 11, 12)]


@pytest.mark.parametrize("n_ranks", SIZES)
def test_bits_do_not_depend_on_the_number_of_ranks(needs_mpirun, n_ranks, text_of_one_process):
    status, outputs, own_output = ranks.run(n_ranks, ["-c", SCRIPT], timeout=240)
    assert status == 0, ranks.report(status, outputs, own_output)
    assert outputs[0].strip() == text_of_one_process


def test_it_trains_like_an_ordinary_one(comm):
    """Without layers that use the batch or random numbers, results differ only by rounding."""

    def losses(made):
        np.random.seed(1)
        model = L.Classifier(L.Linear(128, 4))
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), made).setup(model)
        pairs = [(x.reshape(-1), t) for x, t in data()]
        iterator = create_sharded_iterator(SerialIterator(pairs, 20, shuffle=False), made)
        updater = MultiNodeUpdater(iterator, optimizer, made)
        for _ in range(5):
            updater.update()
        return model.predictor.W.array

    with create_communicator("naive", comm.mpi_comm, reproducible=True) as made:
        np.testing.assert_allclose(losses(made), losses(comm), rtol=1e-4, atol=1e-6)


@pytest.fixture
def reproducible(comm):
    with create_communicator(
        "naive", comm.mpi_comm, reproducible=True, micro_shards=2 * comm.size
    ) as made:
        yield made


def test_shares_are_whole_micro_shards(reproducible):
    size = reproducible.size
    for n in (0, 1, 2 * size, 2 * size + 1, 7 * size - 1):
        begin, end = reproducible.share_of(n)
        quotient, remainder = divmod(n, 2 * size)
        first = 2 * reproducible.rank
        assert begin == first * quotient + min(first, remainder)
        assert end == (first + 2) * quotient + min(first + 2, remainder)


def test_ranks_that_do_not_divide_the_micro_shards(comm):
    """The ranks get whole micro-shards, and one rank gets one fewer than the others."""
    n_shards = 2 * comm.size - 1
    with create_communicator(
        "naive", comm.mpi_comm, reproducible=True, micro_shards=n_shards
    ) as made:
        held = made.allgather_obj(made.own_shards)
        assert [i for own in held for i in own] == [*range(n_shards)]
        assert sorted(map(len, held)) == [1] + [2] * (comm.size - 1)
        for n in (0, 1, n_shards, 3 * n_shards + 2):
            bounds = [partition(n, i, n_shards) for i in made.own_shards]
            assert made.share_of(n) == (bounds[0][0], bounds[-1][1])


@pytest.mark.parametrize("n_more", [0, 1])
def test_batches_that_are_divided_otherwise(comm, n_more):
    """Batches of equal size on each rank have other micro-shards than the whole batch, so rank 0
    of several ranks warns."""
    model, x = L.Linear(2, 1), np.ones((5 * comm.size, 2), "float32")
    options = {"reproducible": True, "micro_shards": 2 * comm.size + n_more}
    with create_communicator("naive", comm.mpi_comm, **options) as made:
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), made).setup(model)

        def updates(batch):
            for _ in range(3):  # the warning comes with the message of the next step
                optimizer.update(lambda x: F.mean(model(x)), batch)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with made.batch(len(x)) as mine:
                updates(x[mine])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            updates(x[:5])
        texts = [str(w.message) for w in seen if "bits depend on their number" in str(w.message)]
        assert len(texts) == (made.size > 1 and made.rank == 0)
        assert all("divide the batch by comm.batch(n)" in text for text in texts)


@pytest.mark.parametrize("zero_fill", [False, True])
def test_gradients_that_are_none(reproducible, zero_fill):
    model = Chain(a=L.Linear(2, 1), b=L.Linear(2, 1), c=L.Linear(2, 1))
    optimizer = create_multi_node_optimizer(optimizers.SGD(1), reproducible, zero_fill=zero_fill)
    optimizer.setup(model)
    before = model.b.b.array.copy()
    x = np.ones((1, 2), "float32")

    def first():
        return F.sum(model.a(x))

    def both():
        return first() + F.sum(model.b(x))

    parts = [(1, both if reproducible.rank == 0 else first), (1, first)]
    if zero_fill:
        optimizer.update_in_parts(parts)
        expected = 1 / (2 * reproducible.size)
        np.testing.assert_allclose(before - model.b.b.array, expected, rtol=1e-6)
        assert optimizer.t == 1
    else:
        with pytest.raises(ValueError, match=r"in some micro-shards only.*: /b/W, /b/b$"):
            optimizer.update_in_parts(parts)


def test_no_samples_at_all(reproducible):
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(1), reproducible).setup(model)
    optimizer.update_in_parts([(0, None)] * 2)
    assert optimizer.t == 0


def test_statistics_of_all_ranks_depend_on_their_number(reproducible):
    model = MultiNodeBatchNormalization(3, reproducible)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible)
    with pytest.raises(ValueError, match="computes with all ranks together"):
        optimizer.setup(model)


class Counting(Chain):
    """Stores what it gets in persistent values of all kinds."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(2, 1)
        self.add_persistent("mean", np.full(2, 10.0))
        self.add_persistent("last", None)
        self.add_persistent("n_calls", np.zeros((), "int64"))
        self.add_persistent("text", "new")
        self.add_persistent("rate", 0.1)

    def loss(self, x):
        self.mean *= 0.5
        self.mean += 0.5 * x.mean(0)
        self.last = x.max(0)
        self.n_calls += 1
        self.text = "used"
        self.rate = 0.3
        return F.mean(self.l1(x.astype("float32")) ** 2)


@pytest.mark.parametrize("n_per_rank", [0, 1, 2, 5])
def test_persistent_values_follow_the_mean_of_the_micro_shards(reproducible, n_per_rank):
    """The results of micro-shards are weighted by numbers of samples; results that are equal are
    taken as they are."""
    n = n_per_rank * reproducible.size
    model = Counting()
    mean, n_calls = model.mean, model.n_calls
    optimizer = create_multi_node_optimizer(optimizers.SGD(1e-3), reproducible).setup(model)
    x = np.random.RandomState(0).standard_normal((n, 2))
    with reproducible.batch(n) as mine:
        optimizer.update(model.loss, x[mine])
    assert model.mean is mean
    assert model.n_calls is n_calls
    if n == 0:
        assert (model.mean.tolist(), model.last, model.n_calls) == ([10, 10], None, 0)
        return
    np.testing.assert_allclose(mean, 5 + 0.5 * x.mean(0), rtol=1e-14)
    bounds = [partition(n, i, 2 * reproducible.size) for i in range(2 * reproducible.size)]
    expected = sum(x[i:j].max(0) * (j - i) for i, j in bounds if i < j) / n
    np.testing.assert_allclose(model.last, expected, rtol=1e-14)
    assert (model.n_calls, model.text, model.rate) == (1, "used", 0.3)


def test_a_persistent_value_without_a_mean(reproducible):
    model = Counting()
    optimizer = create_multi_node_optimizer(optimizers.SGD(1e-3), reproducible).setup(model)

    def loss(x):
        model.n_calls += int(x[0, 0])
        return F.mean(model.l1(x))

    x = np.arange(4 * reproducible.size, dtype="float32").reshape(-1, 2)
    with reproducible.batch(len(x)) as mine:
        with pytest.raises(ValueError, match=r"persistent value /n_calls is not the same after ea"):
            optimizer.update(loss, x[mine])


def test_what_update_cuts(reproducible):
    """Batches are cut in the same way wherever they occur among the arguments; other arguments do
    not change."""
    size, seen = reproducible.size, []
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(model)
    x = np.arange(6.0 * size, dtype="float32").reshape(-1, 2)

    def loss(a, examples, *, pair, named, **others):
        assert len(a) == len(examples) == len(pair[0]) == len(named["t"])
        assert (pair[1], others) == ("text", {"link": model, "weight": model.W, "n": x[0, 0]})
        np.testing.assert_array_equal(a.array, np.stack(examples))
        np.testing.assert_array_equal(named["t"], pair[0])
        seen.extend(examples)
        return F.mean(model(a))

    with reproducible.batch(len(x)) as mine:
        own = x[mine]
        optimizer.update(
            loss,
            Variable(own),
            list(own),
            pair=(own, "text"),
            named={"t": own},
            link=model,
            weight=model.W,
            n=x[0, 0],
        )
    np.testing.assert_array_equal(seen, own)
    assert optimizer.t == 1
    assert optimizer.n_samples is None
    optimizer.n_samples = 0
    optimizer.update(loss)
    assert optimizer.t == 1


def test_reports_of_micro_shards_are_put_together(reproducible):
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(model)
    reporter = Reporter()
    x = np.random.RandomState(0).standard_normal((5 * reproducible.size, 2)).astype("float32")

    def loss(x):
        report({"mean": x.mean(), "text": "last"})
        return F.mean(model(x))

    with reporter.scope({}), reproducible.batch(len(x)) as mine:
        optimizer.update(loss, x[mine])
        np.testing.assert_allclose(reporter.observation["mean"], x[mine].mean(), rtol=1e-5)
        assert reporter.observation["text"] == "last"


def test_what_update_cannot_cut(reproducible):
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(model)
    x = np.ones((3, 2), "float32")
    loss = lambda *args, **kwargs: F.mean(model(x))
    with pytest.raises(
        ValueError, match=r"at least one must be passed, .* lengths are: none. Pass"
    ):
        optimizer.update(loss)
    with pytest.raises(
        ValueError, match=r"lengths are: argument 0: 3, pair\[0\]: 3, pair\[1\]: 2. Pass"
    ):
        optimizer.update(loss, x, pair=(x, x[:2]))
    with pytest.raises(ValueError, match="Variable that was computed outside it"):
        optimizer.update(loss, model(x))
    optimizer.n_samples = 2
    with pytest.raises(ValueError, match="lengths are: argument 0: 3, for 2 samples"):
        optimizer.update(loss, x)


def test_models_of_other_optimizers_must_be_initialized(reproducible):
    model, other = L.Linear(2, 1), L.Linear(None, 2)
    optimizer, _ = (
        create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(link)
        for link in (model, other)
    )
    with pytest.raises(RuntimeError, match="initialized parameters of another optimizer's mode"):
        optimizer.update(lambda x: F.sum(model(other(x))), np.ones((2, 3), "float32"))


def test_wrong_use(reproducible):
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(model)
    loss = lambda: F.sum(model(np.ones((1, 2), "float32")))
    with pytest.raises(
        RuntimeError,
        match=r"needs one part for each micro-shard, 2 on each rank, .*but got 1: let update",
    ):
        optimizer.update_in_parts([(1, loss)])
    with pytest.raises(RuntimeError, match="a reproducible communicator needs a loss function"):
        optimizer.update()
    with pytest.raises(
        RuntimeError,
        match=r"needs one part for each micro-shard, 2 on each rank, .*but got no_sync",
    ):
        with optimizer.no_sync():
            optimizer.update_in_parts([(1, loss), (1, loss)])
    for options in ({"double_buffering": True}, {"compression": lambda comm, bucket: None}):
        with pytest.raises(ValueError, match="double_buffering must be False and compression"):
            create_multi_node_optimizer(optimizers.SGD(), reproducible, **options)
    with pytest.raises(
        ValueError, match=r"accumulation must be 1 with a reproducible comm.* not 2"
    ):
        MultiNodeUpdater(SerialIterator([1], 1), optimizer, reproducible, accumulation=2)
