"""Tests losses that are means over counts: N ranks, and micro-batches, compute what one process
does.

The reference is an ordinary optimizer with the whole batch, which every rank has.
"""

import contextlib
import functools

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.datasets import TupleDataset
from mpchain.distributed import (
    CollectiveMismatchError,
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
    create_sharded_optimizer,
)
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.iterators import SerialIterator
from mpchain.reporter import Reporter, report
from tests.distributed import ranks
from tests.models import MLP

N, D, C = 12, 5, 4
N_STEPS = 3
LONG = pytest.mark.long
LIMIT = 1e-12  # the rounding errors of sums in another order, in three steps


@pytest.fixture(autouse=True)
def float64():
    with mpchain.using_config("dtype", np.dtype("f8")):
        yield


class Data:
    """A batch of arrays whose first axis is the samples. Many labels are -1, and their number
    differs between samples."""

    def __init__(self, n=N):
        random = np.random.RandomState(3)
        self.x = random.normal(size=(n, D))
        self.t = random.randint(C, size=n).astype(np.int32)
        self.t[2 : n // 2] = -1
        self.seq = random.normal(size=(n, 3, D))
        self.labels = random.randint(C, size=(n, 3)).astype(np.int32)
        self.labels[np.arange(n) % 5 < 2, 1:] = -1
        self.labels[n // 2 :, 2] = -1
        self.bits = random.randint(-1, 2, size=(n, C)).astype(np.int32)
        self.bits[n // 3 : n // 2] = -1
        self.soft = random.dirichlet(np.ones(C), size=(n, 3)).swapaxes(1, 2).copy()
        self.weights = random.uniform(0, 2, size=n) * (np.arange(n) % 4 > 0)
        self.y = random.normal(size=(n, 1))
        self.sizes = 1 + np.arange(n) * 7 % 5  # the number of atoms in each molecule
        self.atoms = [random.normal(size=(k, D)) for k in self.sizes]

    def part(self, mine):
        part = object.__new__(Data)
        vars(part).update({name: value[mine] for name, value in vars(self).items()})
        part.first = part.x[: 1 if mine.start == 0 else 0]
        return part


class Model(MLP):
    def __init__(self):
        super().__init__(D, n_units=6, n_out=C)
        random = np.random.RandomState(5)
        for layer in (self.l1, self.l2):
            layer.W.array[...] = random.normal(size=layer.W.shape) * 0.5

    def steps(self, seq):
        """Returns the scores of all time steps, of shape (N, C, T)."""
        y = self(seq.reshape(-1, D))
        return F.swapaxes(F.reshape(y, (len(seq), -1, C)), 1, 2)


class_weight = np.array([0.5, 1.0, 2.0, 4.0])


def share(data):
    """Returns this rank's share of the samples, which is 1 in one process."""
    return len(data.x) / mpchain.batch_count(len(data.x))


def penalized(loss_of):
    """Adds the squared norm of the derivative of the whole loss by the samples."""

    def loss(model, data):
        x = mpchain.Variable(data.x)
        y = loss_of(model(x), data)
        (gx,) = mpchain.grad([y * share(data)], [x], enable_double_backprop=True)
        return y + 100 * F.sum(gx**2) / share(data)

    return loss


def unrolled(model, data):
    y = model.steps(data.seq)
    return sum((1 + k) * F.softmax_cross_entropy(y[:, :, k], data.labels[:, k]) for k in range(3))


def dice(model, data):
    p, t = F.sigmoid(model(data.x)[:, 0]), (data.t >= 0).astype(float)
    both = mpchain.batch_sum(p * t)
    return 1 - 2 * both / (mpchain.batch_sum(p) + mpchain.batch_sum(t))


def decov(model, data):
    h = F.tanh(model.l1(data.x))
    h = h - mpchain.batch_sum(h, axis=0) / mpchain.batch_count(len(data.x))
    covariance = mpchain.batch_sum(F.matmul(h, h, transa=True), axis=())
    return F.sum((covariance / mpchain.batch_count(len(data.x))) ** 2)


def by_atom(model, data):
    return F.concat([model(x)[:, 0] ** 2 for x in data.atoms], axis=0)


def sum_by_positives(model, data):
    y = model(data.x)
    n = mpchain.batch_count(int((data.t > 0).sum()))
    return F.sum(F.softmax_cross_entropy(y, data.t, reduce="no")) / (n * share(data))


def rows_of_words(model, data):
    keep = data.labels.reshape(-1) % 3 != 1
    y = model(data.seq.reshape(-1, D)[keep])
    return F.softmax_cross_entropy(y, data.labels.reshape(-1)[keep])


MEANS = {
    "softmax": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t),
    "class weights": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, class_weight=class_weight),
    "smoothing": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, label_smoothing=0.1),
    "segmentation": lambda m, d: F.softmax_cross_entropy(m.steps(d.seq), d.labels),
    "soft targets": lambda m, d: F.softmax_cross_entropy(m.steps(d.seq), d.soft),
    "sigmoid": lambda m, d: F.sigmoid_cross_entropy(m(d.x), d.bits),
    "focal": lambda m, d: F.focal_loss(m(d.x), d.bits),
    "weights": lambda m, d: F.average(m(d.x)[:, 0] ** 2, weights=d.weights),
    "weights kept": lambda m, d: F.sum(
        F.average(m(d.x)[:, 0] ** 2, weights=d.weights, keepdims=True)
    ),
    "two": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t) + F.focal_loss(m(d.x), d.bits),
    "unrolled": unrolled,
    "words": rows_of_words,
    "denominator": sum_by_positives,
    "penalty": penalized(lambda y, d: F.softmax_cross_entropy(y, d.t)),
    # For these losses, the numbers of samples are the right weights.
    "normalize=False": lambda m, d: F.softmax_cross_entropy(m(d.x), d.t, normalize=False),
    "class weights alone": lambda m, d: F.softmax_cross_entropy(
        m(d.x), abs(d.t), class_weight=class_weight
    ),
    "hinge": lambda m, d: F.hinge(m(d.x), abs(d.t)),
    "huber": lambda m, d: F.mean(F.huber_loss(m(d.x)[:, :1], d.y, 1.0)),
    "soft targets of samples": lambda m, d: F.softmax_cross_entropy(m(d.x), d.soft[:, :, 0]),
}
WHOLE = {
    "masked mean": lambda m, d: mpchain.batch_mean(m(d.x)[:, 0] ** 2, weights=d.t >= 0.0),
    "atoms": lambda m, d: mpchain.batch_mean(by_atom(m, d)),
    "root": lambda m, d: F.sqrt(mpchain.batch_mean((m(d.x)[:, :1] - d.y) ** 2)),
    "dice": dice,
    "decov": decov,
    "learned weights": lambda m, d: mpchain.batch_mean(
        m(d.x)[:, 0] ** 2, weights=F.softplus(m(d.x)[:, 1])
    ),
    "learned weights of average": lambda m, d: F.average(
        m(d.x)[:, 0] ** 2, weights=F.softplus(m(d.x)[:, 1])
    ),
    "penalty of root": penalized(lambda y, d: F.sqrt(mpchain.batch_mean((y[:, :1] - d.y) ** 2))),
}


@functools.cache
def expected(name):
    loss, model, data = {**MEANS, **WHOLE}[name], Model(), Data()
    optimizer, losses = optimizers.SGD(0.3).setup(model), []

    def compute():
        losses.append(loss(model, data))
        return losses[-1]

    for _ in range(N_STEPS):
        optimizer.update(compute)
    return params_of(model), np.array([loss.item() for loss in losses])


def divisions(size, n=N):
    """Yields the ends of the ranks' parts: equal parts, and on several ranks also most samples on
    the first rank, none on the last, or none on the first."""
    yield np.arange(size + 1) * n // size
    if size > 1:
        yield np.r_[0, n - 2 * (size - 1) + np.arange(size - 1) * 2, n]
        yield np.r_[np.arange(size) * n // (size - 1), n]
        yield np.r_[0, np.arange(size) * n // (size - 1)]


def close(found, wanted):
    return np.abs(found - wanted).max() <= LIMIT * np.abs(wanted).max()


def train(comm, loss, mine, steps=N_STEPS):
    """Returns the parameters after some steps with a part of the data, and the weighted losses."""
    data, model, losses = Data().part(mine), Model(), []
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)

    def compute():
        losses.append(loss(model, data))
        return losses[-1]

    for i in range(steps):
        with comm.batch(N if i == 1 else None, mine=mine):
            optimizer.update(compute)
    own = [x.item() * len(data.x) / N for x in losses] or [0.0] * steps
    return params_of(model), comm.allreduce(np.array(own))


def params_of(model):
    return np.concatenate([param.array.ravel() for param in model.params()])


@pytest.mark.parametrize("name", [*MEANS, *WHOLE])
def test_ranks_compute_the_means_of_one_process(comm, name):
    # If all ranks have 3 samples, 3 time steps must be distinguished from them.
    scope = mpchain.shared_counts if comm.size > 3 else contextlib.nullcontext
    for ends in divisions(comm.size):
        mine = slice(*map(int, ends[comm.rank : comm.rank + 2]))
        with scope():
            params, losses = train(comm, {**MEANS, **WHOLE}[name], mine)
        assert close(params, expected(name)[0]), name
        assert close(losses, expected(name)[1]), name


def sizes_of_parts(n, n_parts):
    return [n * (i + 1) // n_parts - n * i // n_parts for i in range(n_parts)]


@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize("name", MEANS)
def test_parts_of_a_batch_give_its_means(comm, name, n_parts):
    """The ranks may have different numbers of micro-batches."""

    def loss(model, data):
        # Micro-batches may have as many samples as there are time steps.
        with mpchain.shared_counts():
            return MEANS[name](model, data)

    for ends in divisions(comm.size):
        begin, end = map(int, ends[comm.rank : comm.rank + 2])
        model = Model()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
        parts, place = [], begin
        for size in sizes_of_parts(end - begin, n_parts + comm.rank):
            data = Data().part(slice(place, place + size))
            parts.append((size, functools.partial(loss, model, data)))
            place += size
        for _ in range(N_STEPS):
            optimizer.update_in_parts(parts)
        assert close(params_of(model), expected(name)[0]), name


def train_in_micro_shards(comm, name, n_shards, n=N):
    """Returns the parameters after training with a reproducible communicator."""
    comm.micro_shards = n_shards
    model, data, parts = Model(), Data(n), []
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    for i in comm.own_shards:
        mine = slice(*partition(n, i, n_shards))
        loss = functools.partial(MEANS[name], model, data.part(mine))
        parts.append((mine.stop - mine.start, loss))
    for _ in range(N_STEPS):
        optimizer.update_in_parts(parts)
    return params_of(model)


@pytest.mark.parametrize("name", MEANS)
def test_micro_shards_give_the_means_of_the_batch(comm, name):
    shards = Communicator() if comm.size == 1 else comm.renewed()
    n_shards = 6 if 6 % comm.size == 0 else 2 * comm.size
    assert close(train_in_micro_shards(shards, name, n_shards), expected(name)[0])


SCRIPT = """
import numpy as np, mpchain
from tests.distributed.optimizers.test_counts import MEANS, train_in_micro_shards
comm = mpchain.create_communicator(reproducible=True, micro_shards=12)
# A part of one sample does not tell steps in time from samples.
with mpchain.using_config("dtype", np.dtype("f8")), mpchain.shared_counts():
    for name in MEANS:
        for n in (12, 5):
            found = train_in_micro_shards(comm, name, 12, n)
            if comm.rank == 0:
                print(name, n, found.sum().hex(), abs(found).sum().hex())
"""


@pytest.fixture(scope="module")
def text_of_one_process():
    status, outputs, text = ranks.run(1, ["-c", SCRIPT], timeout=120)
    assert status == 0, ranks.report(status, outputs, text)
    return numbers_in(outputs[0])


def numbers_in(output):
    """Returns the lines that the script printed, without other lines, such as one about a slow
    rank."""
    return [line for line in output.splitlines() if " 0x" in line or " -0x" in line]


@pytest.mark.long
@pytest.mark.parametrize("n_ranks", [2, 3, 5, 6])
def test_micro_shards_have_the_same_bits(needs_mpirun, n_ranks, text_of_one_process):
    status, outputs, text = ranks.run(n_ranks, ["-c", SCRIPT], timeout=240)
    assert status == 0, ranks.report(status, outputs, text)
    assert numbers_in(outputs[0]) == text_of_one_process


# Calls that cannot be matched


def updated(comm, loss, n=None):
    """Makes an update with an equal part of the batch; returns the parameters."""
    with comm.batch(N if n is None else n) as mine:
        data, model = Data().part(mine), Model()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
        optimizer.update(lambda: loss(model, data))
    return params_of(model)


def in_one_process(loss, n=N):
    model, data = Model(), Data().part(slice(0, n))
    optimizers.SGD(0.3).setup(model).update(lambda: loss(model, data))
    return params_of(model)


def by_molecule(model, data):
    """Returns the mean over the molecules of the mean over the atoms that count."""
    losses = []
    for atoms in data.atoms:
        labels = np.arange(len(atoms)) % 3 - (len(atoms) % 3 == 0)
        losses.append(F.softmax_cross_entropy(model(atoms), labels))
    return sum(losses) / len(losses)


def by_padded_sample(model, data):
    """Returns the mean over sequences of one length of the mean over the steps that count."""
    y = model.steps(data.seq)
    each = [F.softmax_cross_entropy(y[i].T, data.labels[i]) for i in range(len(data.x))]
    return sum(each) / len(each)


@pytest.mark.parametrize("loss", [by_molecule, by_padded_sample])
@pytest.mark.parametrize("n", [N, 2, 3])
def test_losses_of_single_samples(comm, loss, n):
    """Also tests batches in which no rank has more than one sample."""

    def own(model, data):
        with mpchain.own_counts():
            return loss(model, data)

    assert close(updated(comm, own, n), in_one_process(loss, n))
    if comm.size == 1:
        assert close(updated(comm, loss, n), in_one_process(loss, n))


def test_steps_in_time_are_told_from_samples_once_they_were(comm):
    """A step with as many time steps as samples follows other steps."""
    model, labels = Model(), Data().labels
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    of_one = Model()
    alone = optimizers.SGD(0.3).setup(of_one)

    def loss(model, x, n_steps):
        return sum(
            F.softmax_cross_entropy(model(x), labels[: len(x), k % 3]) for k in range(n_steps)
        )

    for n_steps in (5, 2, 4):
        n = 4 * comm.size
        x = np.tile(Data().x[:4], (comm.size, 1))
        with comm.batch(n) as mine:
            optimizer.update(loss, model, x[mine], n_steps)
        alone.update(loss, of_one, x[:4], n_steps)
        assert close(params_of(model), params_of(of_one))


def two_or_three(model, data, n):
    y = model(data.x)
    loss = F.softmax_cross_entropy(y, data.t)
    if n > 1:
        loss += F.focal_loss(y, data.bits)
    return loss


# Each row names what differs between ranks, and has the number of ranks, the number of samples, the
# loss, and parts of the error.
REFUSED = {
    "samples": (2, N, "by_molecule", ["this rank makes 6 calls", "mpchain.own_counts()"]),
    "padded samples": (2, N, "by_padded_sample", ["this rank makes 6 calls, of 3, 3, 3, 3, ..."]),
    "one sample each": (2, 2, "by_molecule", ["this rank makes 1 call, of 3 rows, for 1"]),
    "more calls": (2, N, "more_on_rank_0", ["differs between ranks", "in two_or_three"]),
    "more calls, and ranks without samples": (
        *(3, 2, "more_on_rank_0"),
        ["in two_or_three", "rank 1: the end of its step", "must call the same losses"],
    ),
    "other calls": (2, N, "another_on_rank_0", ["in another_on_rank_0", "rank 1: /"]),
    "other shapes": (2, N, "another_shape_on_rank_0", ["(an array (0,) of float64)", "(1,)"]),
}


def more_on_rank_0(model, data):
    return two_or_three(model, data, 1 + (len(data.first) > 0))


def another_on_rank_0(model, data):
    if len(data.first):
        return F.softmax_cross_entropy(model(data.x), data.t)
    return F.focal_loss(model(data.x), data.bits)


def another_shape_on_rank_0(model, data):
    return F.sum(mpchain.batch_sum(model(data.x)[0, : 1 - len(data.first)], axis=()))


def refuse(name):
    """Raises the error on each rank of a separate job."""
    comm, (_, n, loss, _) = mpchain.create_communicator(), REFUSED[name]
    with mpchain.using_config("dtype", np.dtype("f8")):
        updated(comm, globals()[loss], n)


@pytest.mark.parametrize(
    "name",
    [
        *("samples", "one sample each", "more calls"),
        *(pytest.param(n, marks=LONG) for n in [*REFUSED][3:]),
        pytest.param("padded samples", marks=LONG),
    ],
)
def test_what_cannot_be_matched_is_refused(needs_mpirun, name):
    """The error names both places, and comes at once on ranks that would otherwise compute wrong
    results or hang."""
    n_ranks, _, _, texts = REFUSED[name]
    code = f"from tests.distributed.optimizers.test_counts import refuse; refuse({name!r})"
    status, outputs, text = ranks.run(n_ranks, ["-m", "mpi4py", "-c", code], timeout=100)
    found = "".join([*outputs, text])
    assert status != 0
    for part in texts:
        assert part in found, found


def test_parts_that_call_differently(comm):
    model = Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    parts = [
        (4, functools.partial(two_or_three, model, Data().part(slice(0, 4)), n)) for n in (1, 2)
    ]
    with pytest.raises(CollectiveMismatchError, match="part 2 makes 2 calls"):
        optimizer.update_in_parts(parts)


def test_counts_that_change_from_pass_to_pass(comm):
    model, data, labels = Model(), Data().part(slice(0, 4)), Data().t[:4].copy()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)

    def loss():
        labels[:] -= 1
        return F.softmax_cross_entropy(model(data.x), np.maximum(labels, -1))

    with pytest.raises(CollectiveMismatchError, match="and 2 before"):
        optimizer.update_in_parts([(4, loss), (4, loss)])


def test_sums_of_many_shapes_are_forgotten(comm, set_limits):
    set_limits(sites=4)
    model = L.Linear(2, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    for n in range(1, 20):
        optimizer.update(lambda n=n: F.sum(mpchain.batch_sum(model(np.ones((n, 2), "f")), axis=())))
        assert len(optimizer.current_step.counts._sites) <= 4


def test_sums_over_the_batch_are_refused_in_parts(comm):
    model, data = Model(), Data().part(slice(0, 4))
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    part = 4, lambda: WHOLE["root"](model, data)
    with pytest.raises(RuntimeError, match=r"batch_sum: .*accumulation=1"):
        optimizer.update_in_parts([part, part])
    with optimizer.no_sync(), pytest.raises(RuntimeError, match=r"batch_sum: .* update_in_parts"):
        optimizer.update(part[1])


def test_sums_are_not_differentiated_after_the_update(comm):
    model, data, kept = Model(), Data(), []
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)

    def loss():
        kept.append(mpchain.batch_mean(model(data.x)[:, 0] ** 2))
        return kept[-1] * 1

    optimizer.update(loss)
    if comm.size == 1:
        kept[0].backward()
        return
    with pytest.raises(RuntimeError, match="differentiated within the update"):
        kept[0].backward()


def test_slopes_of_a_value_of_the_whole_batch(comm):
    """Within the loss function, mpchain.grad sums the outputs of all ranks."""

    def loss(model, data):
        x = mpchain.Variable(data.x)
        output = F.exp(mpchain.batch_mean(model(x)[:, 0] ** 2))
        (g,) = mpchain.grad([output / n], [x], enable_double_backprop=True)
        return mpchain.batch_sum(g**2)

    n = 1
    expected = train(Communicator(), loss, slice(0, N))[0]
    n = comm.size
    assert close(train(comm, loss, slice(*comm.share_of(N)))[0], expected)


def test_accumulation_without_exchange(comm):
    """Losses whose counts are in proportion to the samples are exact; others are refused."""

    def train(labels):
        data, model = Data(), Model()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
        with comm.batch(8) as mine, optimizer.no_sync():
            optimizer.update(
                lambda: F.softmax_cross_entropy(model.steps(data.seq[:8][mine]), labels[:8][mine])
            )
        with comm.batch(4) as mine:
            optimizer.update(
                lambda: F.softmax_cross_entropy(model.steps(data.seq[8:][mine]), labels[8:][mine])
            )
        return params_of(model)

    labels = abs(Data().labels)
    of_one = in_one_process(lambda m, d: F.softmax_cross_entropy(m.steps(d.seq), labels))
    assert close(train(labels), of_one)
    labels[9] = -1
    with pytest.raises(RuntimeError, match=r"no_sync: a loss is a mean over a count"):
        train(labels)


# Weights of whole losses


def masked_mean(model, x, t):
    """Returns a mean over this rank's labels that count, by plain functions."""
    losses = F.softmax_cross_entropy(model(x), t, reduce="no")
    loss = F.sum(losses) / (t >= 0).sum()
    report({"loss": loss}, model)
    return loss


def n_labels(x, t):
    return (t >= 0).sum()


@functools.cache
def expected_of_masked_mean():
    return in_one_process(lambda m, d: masked_mean(m, d.x, d.t))


@pytest.mark.parametrize("form", ["array", "own array", "number"])
def test_weights_of_batches(comm, form):
    data, model = Data(), Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    weights, mine = (data.t >= 0) * 1, slice(*comm.share_of(N))
    options = {
        "array": {"weight": weights},
        "own array": {"weight": weights[mine], "mine": mine},
        "number": {"weight": weights[mine].sum(), "mine": mine},
    }[form]
    with comm.batch(N, **options) as mine:
        optimizer.update(masked_mean, model, data.x[mine], data.t[mine])
    assert close(params_of(model), expected_of_masked_mean())


def test_weights_that_accumulate(comm):
    data, model = Data(), Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    weights = (data.t >= 0) * 0.5
    with comm.batch(8, weight=weights[:8]) as mine, optimizer.no_sync():
        optimizer.update(masked_mean, model, data.x[:8][mine], data.t[:8][mine])
    with comm.batch(4, weight=weights[8:]) as mine:
        optimizer.update(masked_mean, model, data.x[8:][mine], data.t[8:][mine])
    assert close(params_of(model), expected_of_masked_mean())


@pytest.mark.parametrize("accumulation", [1, 3, None])
@pytest.mark.parametrize("n", [N, 2])
def test_weights_of_updaters(comm, accumulation, n):
    """An accumulation of None stands for micro-shards."""
    if accumulation is None:
        comm = Communicator() if comm.size == 1 else comm.renewed()
        comm.micro_shards, accumulation = 2 * comm.size, 1
    data, model = Data(), Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    iterator = SerialIterator(TupleDataset(data.x[:n], data.t[:n]), n, shuffle=False)
    updater = MultiNodeUpdater(
        *(create_sharded_iterator(iterator, comm), optimizer, comm),
        loss_func=functools.partial(masked_mean, model),
        accumulation=accumulation,
        weight=n_labels,
    )
    reporter, observation = Reporter(), {}
    reporter.add_observer("main", model)
    with reporter.scope(observation):
        updater.update()
    of_one = in_one_process(lambda m, d: masked_mean(m, d.x, d.t), n)
    assert close(params_of(model), of_one)
    with mpchain.no_backprop_mode():
        loss = masked_mean(Model(), data.x[:n], data.t[:n]).item()
    assert np.isclose(observation["main/loss"], loss, rtol=LIMIT)


@pytest.mark.parametrize(
    ("weight", "rule"),
    [
        (-1, "at least 0, not -1"),
        (np.nan, "at least 0, not nan"),
        (np.ones(N + 1), r"for each of 12 samples.* shape \(13,\)"),
        (-np.ones(N), r"at least 0, not -1.0"),
    ],
)
def test_weights_that_cannot_be(comm, weight, rule):
    with pytest.raises(ValueError, match=f"Communicator.batch: weight must be .*{rule}"):
        comm.batch(N, weight=weight)


def test_weights_of_nothing_at_all(comm):
    data, model = Data(), Model()
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
    with (
        comm.batch(N, weight=0) as mine,
        pytest.raises(ValueError, match="weight must not be 0 on all"),
    ):
        optimizer.update(masked_mean, model, data.x[mine], data.t[mine])
    with comm.batch(N, weight=1), pytest.raises(ValueError, match="one for each of the 2 parts"):
        optimizer.update_in_parts([(1, None), (2, None)])
    shards = Communicator() if comm.size == 1 else comm.renewed()
    shards.micro_shards = shards.size
    with pytest.raises(ValueError, match="of each micro-shard"):
        shards.batch(N, weight=1)


def test_a_weight_of_zero_on_one_rank(comm):
    """All ranks but rank 0 have weight 0; they compute no loss, but join in its collectives."""

    def train(comm, mine):
        data, model = Data(), Model()
        weight = 0 if comm.rank else 1
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)
        with comm.batch(mine=mine, weight=weight):
            optimizer.update(lambda: F.softmax_cross_entropy(model(data.x[mine]), data.t[mine]))
        return params_of(model)

    of_rank_0 = slice(*partition(N, 0, comm.size))
    assert close(train(comm, slice(*comm.share_of(N))), train(Communicator(), of_rank_0))


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize("scope", [mpchain.own_counts, mpchain.shared_counts])
def test_losses_that_are_computed_again(comm, scope, n_parts):
    """F.forget calls the loss in backward, outside of the scope and of the first pass."""

    def train(forgets):
        data, model = Data().part(slice(*comm.share_of(N))), Model()
        optimizer = create_multi_node_optimizer(optimizers.SGD(0.3), comm).setup(model)

        def loss(part):
            def compute(x):
                return F.softmax_cross_entropy(model(x), data.t[part])

            x = mpchain.Variable(data.x[part])
            with scope():
                return F.forget(compute, x) if forgets else compute(x)

        n = len(data.x)
        parts = [slice(*partition(n, i, n_parts)) for i in range(n_parts)]
        with comm.batch(N):
            optimizer.update_in_parts(
                [(part.stop - part.start, functools.partial(loss, part)) for part in parts]
            )
        return params_of(model)

    assert close(train(True), train(False))


def test_means_of_many_elements_in_half_precision(comm):
    """The number of elements cannot be represented in half precision."""
    model, x = L.Linear(1, 1), np.full((40000, 2), 0.01, np.float16)
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.0), comm).setup(model)
    found = []

    def loss():
        found.append(mpchain.batch_mean(x).item())
        return F.sum(model.W)

    optimizer.update(loss)
    assert found == [x[0, 0].item()]


def test_a_loss_that_fails_leaves_no_weight(comm):
    model = L.Linear(1, 1)
    optimizer = create_multi_node_optimizer(optimizers.SGD(0.0), comm).setup(model)

    def fail():
        raise FloatingPointError

    with pytest.raises(FloatingPointError), comm.batch(N):
        optimizer.update(fail)
    assert optimizer.n_samples is None


@pytest.mark.parametrize("create", [create_multi_node_optimizer, create_sharded_optimizer])
def test_means_of_the_means_of_ranks(comm, create):
    """ChainerMN computes this mean; mpchain has an option for it."""
    data, model = Data(), Model()
    optimizer = create(optimizers.SGD(0.3), comm, batch_counts=False)
    optimizer.setup(model)
    with comm.batch(N) as mine:
        optimizer.update(lambda: F.softmax_cross_entropy(model(data.x[mine]), data.t[mine]))
    parts = [slice(*partition(N, rank, comm.size)) for rank in range(comm.size)]

    def loss(model, data):
        own = [data.part(part) for part in parts]
        means = [F.softmax_cross_entropy(model(d.x), d.t) * (len(d.x) / N) for d in own]
        return sum(means)

    assert close(params_of(model), in_one_process(loss))
