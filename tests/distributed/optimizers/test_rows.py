"""Tests draws whose rows are not samples, and state of ranks without samples, against one
process."""

import functools
import inspect
import itertools
import re
import warnings

import numpy as np
import pytest

from mpchain import Parameter, distributions, link_hooks, optimizers, random
from mpchain import functions as F
from mpchain import links as L
from mpchain.configuration import using_config
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from mpchain.distributed.communicators import Communicator
from mpchain.link import Chain
from tests.distributed.devices import assert_allclose, on_device

N = 13
LENGTHS = np.random.RandomState(3).randint(1, 6, N)  # the lengths of sequences or molecules


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


class Model(Chain):
    """A linear layer, and log-scales of noise on its weights."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.W = Parameter(np.random.standard_normal((12, 4)))
            self.scale = Parameter(np.full((12, 4), -1.0))
            self.b = Parameter(np.zeros(12))


def divided(comm, n, step=0):
    """Returns this rank's samples; in odd steps, rank 0 has nearly all samples, and the last rank
    has none."""
    if step % 2 == 0 or comm.size == 1:
        return slice(*comm.share_of(n))
    ends = [0, *range(n - comm.size + 2, n + 1), n]
    return slice(*ends[comm.rank : comm.rank + 2])


def train(comm, loss, data, n_parts=1, make=Model):
    vars(comm).pop("n_draw_keys", None)  # each program starts with the first key
    np.random.seed(0)
    model = on_device(make())
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    for step in range(3):
        samples = on_device(data(step))
        n = len(samples)
        with comm.batch(n, mine=divided(comm, n, step)) as mine:
            own = samples[mine]
            if comm.micro_shards:
                optimizer.update(functools.partial(loss, model), own)
                continue
            ends = [len(own) * i // n_parts for i in range(n_parts + 1)]
            parts = [
                (e - b, functools.partial(loss, model, own[b:e]))
                for b, e in itertools.pairwise(ends)
            ]
            optimizer.update_in_parts(parts)
    return model


def assert_as_one_process(comm, loss, data, **options):
    model = train(comm, loss, data, **options)
    expected = train(Communicator(), loss, data, **options)
    tolerance = 1e-11 if comm.micro_shards else 1e-12  # micro-shards are summed in another order
    for name, param in model.namedparams():
        assert_allclose(param.array, dict(expected.namedparams())[name].array, tolerance, 1e-13)
    initial = dict(on_device(Model()).namedparams())
    assert not np.allclose(model.W.array, initial["/W"].array)


def rows(step):
    return np.random.RandomState(step).uniform(-1, 1, (N, 4))


def sequences(step):
    draws = np.random.RandomState(step)
    return [draws.uniform(-1, 1, (n, 4)) for n in np.roll(LENGTHS, step)]


def mean(y, n):
    return F.sum(F.tanh(y) ** 2) / n


def scalars(model, x):
    """Returns a loss with stochastic depth: a layer is omitted for the whole batch."""
    y = F.linear(x, model.W, model.b)
    for _ in range(4):
        y = F.tanh(y) if random.source(np).uniform() < 0.5 else y * 0.9
        y = y * float(distributions.Normal(1.0, 0.1).sample().array)
        y = y * float(random.source(np).standard_gamma(2.0))
    return mean(y, len(x))


def of_parameters(model, x):
    """Returns a loss with dropout of weights, and with drawn weights."""
    W = F.dropout(model.W, 0.3) + F.gaussian(model.W, model.scale) + F.rrelu(model.W)
    W = W + distributions.Normal(model.W, F.exp(model.scale)).sample()
    y = F.simplified_dropconnect(x, W, F.dropout(model.b), 0.4, use_batchwise_mask=False)
    return mean(y, len(x))


def shared(model, x):
    """Returns a loss with computed weights, and with one number for each of several layers."""
    with random.shared():
        W = F.dropout(model.W * 2, 0.4)
        keep = random.source(np).uniform(size=6) < 0.5
        gamma = random.source(np).standard_gamma(2.0, size=12)
    return mean(F.linear(x, W, model.b) * (1 + keep.sum()) * on_device(gamma), len(x))


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize("loss", [scalars, of_parameters, shared])
def test_what_belongs_to_no_sample_is_drawn_once(comm, loss, n_parts):
    assert_as_one_process(comm, loss, rows, n_parts=n_parts)


def atoms(model, xs):
    """Draws for the rows of ragged sequences, and for rows of samples beside them."""
    samples = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
    with random.rows_of(samples):
        h = F.dropout(F.linear(np.concatenate(xs), model.W, model.b), 0.3)
        a = F.exp(F.tanh(h))
        h = h * distributions.Gamma(a, a).sample(2)[1]
        h = F.dropout(h, 0.2)
    ends = np.cumsum([len(x) for x in xs])[:-1]
    pooled = F.stack([F.sum(part, axis=0) for part in F.split_axis(h, ends, 0)])
    return mean(F.dropout(pooled), len(xs))


def shuffled_atoms(model, xs):
    """Draws for atoms of which those of one sample are not adjacent: first atoms come first, then
    second atoms."""
    samples = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
    order = np.argsort([i for x in xs for i in range(len(x))], kind="stable")
    with random.rows_of(samples[order].tolist()):
        h = F.dropout(F.linear(np.concatenate(xs)[order], model.W, model.b), 0.3)
    return mean(h, len(xs))


def time_major(model, xs):
    """Uses arrays (time, samples, features); the time is a multiple of some ranks' numbers of
    samples."""
    x = np.zeros((12, len(xs), 4))
    for i, sequence in enumerate(xs):
        x[: len(sequence), i] = sequence
    with random.rows_of(axis=1):
        h = F.dropout(F.linear(x, model.W, model.b, n_batch_axes=2), 0.3)
        h = h + random.source(np).standard_gamma(2.0, size=h.shape)
    order = np.random.RandomState(len(xs)).permutation(len(xs))
    with random.rows_of(order, axis=1):
        h = F.dropout(h[:, order], 0.3)
    return mean(h, len(xs))


def sorted_by_length(model, xs):
    """Draws for samples that the loss function sorts itself."""
    order = np.argsort([-len(x) for x in xs], kind="stable")
    with random.rows_of(order):
        x = np.stack([xs[i].sum(0) for i in order])
        h = F.dropout(F.linear(x, model.W, model.b), 0.4)
    return mean(h, len(xs))


def recurrent(model, xs):
    """Draws for two sequences of each sample, in a function that sorts and joins them."""
    pairs = [half for x in xs for half in (x, x[:1])]
    lstm = model.lstm
    h, _, ys = lstm(None, None, pairs)
    with random.rows_of(np.repeat(np.arange(len(xs)), 2)):
        h2, _, _ = lstm(None, None, pairs[::1])
    return mean(h[-1], len(xs)) + mean(h2[-1], len(xs)) + mean(F.concat(ys, 0), len(xs))


class Recurrent(Model):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(3, 4, 5, 0.4)
            self.W = self.lstm[0].w0


@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize("loss", [atoms, shuffled_atoms, time_major, sorted_by_length])
def test_rows_get_the_draws_of_their_samples(comm, loss, n_parts):
    assert_as_one_process(comm, loss, sequences, n_parts=n_parts)


# Bits depend on the number of ranks here, but draws do not.
@pytest.mark.filterwarnings("ignore:.*bits depend on their number")
@pytest.mark.parametrize("loss", [scalars, of_parameters, atoms])
def test_reproducible_ranks_draw_the_same(comm, loss):
    data = sequences if loss is atoms else rows
    assert_as_one_process(create_communicator(reproducible=True), loss, data)


def test_several_sequences_of_each_sample(comm):
    model = train(comm, recurrent, sequences, make=Recurrent)
    expected = train(Communicator(), recurrent, sequences, make=Recurrent)
    for name, param in model.namedparams():
        if param.grad is not None:
            assert_allclose(param.array, dict(expected.namedparams())[name].array, 1e-12, 1e-13)


def test_recomputation_repeats_the_draws_of_rows(comm):
    def loss(model, xs):
        samples = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
        with random.rows_of(samples):
            layer = lambda x: F.dropout(F.linear(x, model.W, model.b))
            h = F.forget(layer, np.concatenate(xs))
        return mean(h, len(xs))

    assert_as_one_process(comm, loss, sequences)


# In these cases, the shape of the draws does not show which axis has the samples.


def warned(comm, draw, counts):
    """Returns rank 0's warnings in steps with these numbers of samples on the ranks, cyclically."""
    vars(comm).pop("_control", None)  # other tests have made this control warn
    np.random.seed(0)
    model = Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)

    def loss(n):
        draw(n)
        return F.sum(model.W)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for of_ranks in counts:
            numbers = [of_ranks[rank % 3] for rank in range(comm.size)]
            n, first = numbers[comm.rank], sum(numbers[: comm.rank])
            with comm.batch(sum(numbers), mine=slice(first, first + n)):
                optimizer.update(loss, n)
    assert comm.rank == 0 or not caught
    return comm.bcast_obj([str(w.message) for w in caught])


def dropped(*shape):
    return F.dropout(np.ones(shape))


UNCLEAR = {
    "atoms": (lambda n: dropped(3 * n + 1 if n > 1 else 3, 4), r"\(\d+, 4\).* the shape does not"),
    "time": (lambda n: dropped(7, n, 4), r"\(7, \d, 4\).* the shape does not show .*rows_of"),
    "time, a multiple": (lambda n: dropped(24, n, 4), r"may be time.*rows_of"),
    "layers": (lambda n: random.source(np).uniform(size=24), "does not grow with them.*shared"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_one_rank_warns_once_of_what_the_shape_does_not_tell(comm, name):
    draw, message = UNCLEAR[name]
    counts = [[4, 4, 4], [3, 4, 3], [4, 2, 2], [3, 3, 3]]
    found = warned(comm, draw, counts)
    if comm.size == 1:
        assert not found
        return
    assert len(found) == 1
    function = draw if name == "layers" else dropped
    line = inspect.getsourcelines(function)[1] + (name != "layers")
    assert re.search(rf"test_rows.py:{line} in .*: random numbers of shape .*{message}", found[0])


def test_no_false_alarms(comm):
    def draw(n):
        dropped(n, 4)
        dropped(n, n)  # there are as many features as samples
        dropped(n, n, 4)  # or as many steps as samples
        dropped(3 * n, 4)
        dropped(n, 7, 7)
        dropped(2 * n, 7, 7)
        dropped(n, 3, 5, 5)
        random.source(np).uniform()
        F.dropout(Parameter(np.ones((7, 5))))
        distributions.Normal(np.zeros((n, 5)), np.ones((n, 5))).sample(9)
        distributions.Normal(0.0, 1.0).sample()
        with random.rows_of(np.repeat(np.arange(n), np.arange(n) + 1)):
            dropped(n * (n + 1) // 2, 3)
        with random.rows_of(axis=1):
            dropped(24, n, 4)
        with random.shared():
            dropped(7, 4)

    assert not warned(comm, draw, [[4, 4, 4], [4, 3, 5], [2, 2, 2], [1, 1, 1], [6, 0, 2]])


def test_samples_that_nobody_knows_are_told(comm):
    vars(comm).pop("_control", None)
    model = Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.n_samples = 1 + comm.rank
            optimizer.update(
                lambda x: F.sum(F.dropout(F.linear(x, model.W))), np.ones((1 + comm.rank, 4))
            )
    found = [str(w.message) for w in caught]
    assert len(found) == (comm.size > 1 and comm.rank == 0)
    assert all("the samples of this rank are unknown: use comm.batch" in text for text in found)


@pytest.mark.parametrize(
    ("samples", "axis", "message"),
    [
        ([0, 5], 0, r"from 0 to 2, but is \[0, 5\]"),
        ([-1, 0], 0, "from 0 to 2"),
        ([0.5, 1], 0, "one integer for each row"),
        ([[0], [1]], 0, "one integer for each row"),
        (None, -1, "axis must not be negative, but is -1"),
    ],
)
def test_samples_of_rows_are_checked(comm, samples, axis, message):
    def loss(n):
        with random.rows_of(samples, axis):
            pass

    optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), comm).setup(Model())
    with comm.batch(3 * comm.size), pytest.raises(ValueError, match=f"rows_of: .*{message}"):
        optimizer.update(loss, 3)


# State that forward passes update


class Normalized(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(4, 6).add_hook(link_hooks.SpectralNormalization())
            self.bn = L.BatchNormalization(6)
            self.l2 = L.Linear(6, 1).add_hook(link_hooks.SpectralNormalization())
        self.add_persistent("n_calls", 0)

    def forward(self, x):
        self.n_calls += 1
        return F.mean(self.l2(F.tanh(self.l1(x))) ** 2)


@pytest.mark.parametrize("n_parts", [1, 3])
def test_ranks_without_samples_take_the_state_of_others(comm, n_parts):
    """Spectral normalization improves its vector in each forward pass; batches have 11 and 2
    samples."""
    trained = []
    for c in (comm, Communicator()):
        np.random.seed(0)
        model = Normalized()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.1), c).setup(model)
        model.bn.avg_mean[...] = c.rank
        for step in range(4):
            n = 2 if step % 2 else 11
            x = np.random.RandomState(step).uniform(-1, 1, (n, 4))
            with c.batch(n) as mine:
                own = x[mine]
                ends = [-(-len(own) * i // n_parts) for i in range(n_parts + 1)]
                parts = [own[b:e] for b, e in itertools.pairwise(ends)]
                optimizer.update_in_parts([(len(p), functools.partial(model, p)) for p in parts])
        trained.append(model)
    model, expected = trained
    assert len(set(comm.allgather_obj(model.n_calls))) == 1
    if n_parts > 1 and comm.size > 1:
        return  # with 2 samples, no rank has as many micro-batches as one process
    assert model.n_calls == expected.n_calls
    for name in ("l1", "l2"):
        assert_allclose(model[name].W.array, expected[name].W.array, 1e-12)
        assert_allclose(model[name].W_u, expected[name].W_u, 1e-12)
    assert (model.bn.avg_mean == comm.rank).all()  # each rank keeps its own value
