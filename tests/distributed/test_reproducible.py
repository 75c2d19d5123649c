"""With a reproducible communicator any number of ranks computes the same bits."""

import hashlib
import subprocess
import sys

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
from mpchain.distributed.gradients.deterministic import Tree
from mpchain.distributed.links import MultiNodeBatchNormalization
from mpchain.iterators import SerialIterator
from mpchain.link import Chain

from . import ranks


class Convolutional(Chain):
    """A bit of everything whose rounding may depend on the batch; initialised by its first use."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, 5, 3)
            self.norm = L.BatchNormalization(5)
            self.l1 = L.Linear(None, 30)
            self.l2 = L.Linear(None, 4)

    def forward(self, x, t):
        h = F.relu(self.norm(self.conv(x)))
        h = F.dropout(F.tanh(self.l1(h)), 0.3)
        return F.softmax_cross_entropy(self.l2(h), t)


def data(n=50):
    random = np.random.RandomState(4)
    x = random.standard_normal((n, 2, 8, 8)).astype("float32")
    return list(zip(x, random.randint(0, 4, n).astype("int32")))


def train(comm, batch_size, n_updates=6):
    """Returns the parameters by name, and a number that NumPy's generator yields afterwards."""
    np.random.seed(7 + comm.rank)
    model = Convolutional()
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.01), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1))
    iterator = create_sharded_iterator(SerialIterator(data(), batch_size), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    for _ in range(n_updates):
        updater.update()
    return {n: p.array for n, p in sorted(model.namedparams())}, np.random.uniform()


def digest(comm):
    """Text that tells all bits, for batches that are divided evenly and unevenly, and for one that
    leaves some micro-shards empty."""
    texts = []
    for batch_size in (24, 20, 7):
        params, number = train(comm, batch_size)
        bits = hashlib.sha256(b"".join(x.tobytes() for x in params.values())).hexdigest()
        texts.append(f"{batch_size}: {len(params)} parameters, {bits}, then {number}")
    return "\n".join(texts)


SCRIPT = """
from mpchain.distributed import create_communicator
from tests.distributed.test_reproducible import digest
comm = create_communicator(reproducible=True)
text = digest(comm)
if comm.rank == 0:
    print(text)
"""


def test_bits_do_not_depend_on_the_number_of_ranks(needs_mpirun):
    alone = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=ranks.ROOT,
        env=ranks.environment(),
    ).stdout.strip()
    assert [line.split()[1] for line in alone.splitlines()] == ["8"] * 3
    assert len(set(alone.split())) > 9
    for n_ranks in (2, 3, 4, 6):
        status, outputs, own_output = ranks.run(n_ranks, ["-c", SCRIPT], timeout=60)
        assert status == 0, ranks.report(status, outputs, own_output)
        assert outputs[0].strip() == alone, n_ranks


def test_it_trains_like_an_ordinary_one(comm):
    """Without what works on batches or at random, the only difference is rounding."""

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
        if 12 % comm.size == 0:
            np.testing.assert_allclose(losses(made), losses(comm), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_terms", [1, 2, 3, 4, 6, 12])
def test_the_tree_is_fixed(comm, n_terms):
    n_terms *= comm.size
    terms = np.random.RandomState(0).uniform(-1, 1, (n_terms, 5)).astype("float32")

    def expected(begin, end):
        middle = (begin + end) // 2
        return terms[begin] if end - begin == 1 else expected(begin, middle) + expected(middle, end)

    tree = Tree(comm, n_terms, lambda: np.empty(5, "float32"))
    for _ in range(2):
        n_own = n_terms // comm.size
        for i in range(comm.rank * n_own, (comm.rank + 1) * n_own):
            term = tree.room()
            term[...] = terms[i]
            tree.add(i, term)
        np.testing.assert_array_equal(tree.sum(), expected(0, n_terms))


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


def test_wrong_use(reproducible):
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), reproducible).setup(model)
    loss = lambda: F.sum(model(np.ones((1, 2), "float32")))
    optimizer.n_samples = 1
    with pytest.raises(RuntimeError, match=r"wants each batch in 2 micro-shards.*but got 1$"):
        optimizer.update(loss)
    with pytest.raises(RuntimeError, match=r"wants each batch in 2 micro-shards.*but got 0$"):
        optimizer.update()
    with pytest.raises(RuntimeError, match=r"wants each batch in 2 micro-shards.*but got no_sync$"):
        with optimizer.no_sync():
            optimizer.update_in_parts([(1, loss), (1, loss)])
    for options in ({"double_buffering": True}, {"compression": lambda comm, bucket: None}):
        with pytest.raises(ValueError, match="double_buffering must be False and compression"):
            create_multi_node_optimizer(optimizers.SGD(), reproducible, **options)
    with pytest.raises(ValueError, match=r"accumulation must be 1 with a reproducible comm.* is 2"):
        MultiNodeUpdater(SerialIterator([1], 1), optimizer, reproducible, accumulation=2)
