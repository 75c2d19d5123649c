"""Tests the multi-node updater and evaluator: each rank reports what one process would report."""

import signal

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.configuration import using_config
from mpchain.dataset import Iterator, concat_examples
from mpchain.datasets import TupleDataset
from mpchain.distributed import (
    MultiNodeUpdater,
    create_joined_iterator,
    create_multi_node_evaluator,
    create_multi_node_optimizer,
    create_sharded_iterator,
)
from mpchain.iterators import SerialIterator
from mpchain.link import Chain
from mpchain.reporter import Reporter, report
from mpchain.training import StandardUpdater, Trainer
from mpchain.training.extensions import Evaluator, LogReport
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp
from tests.models import MLP

ON_GPUS = True


@pytest.fixture(autouse=True)
def _in_float64():
    with using_config("dtype", np.dtype("float64")):
        yield


class Regression(MLP):
    """A model that reports its loss, a value with its own weight, an array, and rarely a count."""

    def __init__(self):
        super().__init__(None, n_out=1)

    def forward(self, x, t):
        loss = F.mean_squared_error(super().forward(x), t)
        report({"loss": loss, "first": (x[0, 0], 1), "array": x}, self)
        if (x > 0.9).any():
            report({"rare": float((x > 0.9).sum())}, self)
        return loss


def dataset(n=11):
    random = np.random.RandomState(4)
    return TupleDataset(*on_device((random.uniform(-1, 1, (n, 3)), random.uniform(-1, 1, (n, 1)))))


def train(updater, n_iterations):
    """Returns the observations of some iterations, and the final parameters."""
    model = updater.get_optimizer("main").target
    reporter = Reporter()
    reporter.add_observer("main", model)
    observations = []
    for _ in range(n_iterations):
        with reporter.scope({}):
            updater.update()
            observations.append(dict(reporter.observation))
    return observations, {name: param.array.copy() for name, param in model.namedparams()}


def plain_run(batch_size, n_iterations):
    np.random.seed(6)
    optimizer = optimizers.Adam().setup(on_device(Regression()))
    iterator = SerialIterator(dataset(), batch_size)
    return train(StandardUpdater(iterator, optimizer), n_iterations)


def value(reported):
    reported = reported[0] if isinstance(reported, tuple) else reported
    return float(getattr(reported, "array", reported))


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
def test_n_ranks_are_one_process(comm, batch_size, accumulation):
    expected, expected_params = plain_run(batch_size, 12)
    np.random.seed(6)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(on_device(Regression()))
    iterator = create_sharded_iterator(SerialIterator(dataset(), batch_size), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm, accumulation=accumulation)
    observations, params = train(updater, 12)
    for actual, reference in zip(observations, expected, strict=True):
        assert value(actual["main/loss"]) == pytest.approx(value(reference["main/loss"]), rel=1e-12)
    for name, param in params.items():
        assert_allclose(param, expected_params[name], rtol=1e-12, atol=1e-14)
    assert (updater.iteration, updater.epoch) == (12, 12 * batch_size // 11)
    assert optimizer.epoch == updater.epoch
    reported = [{k: v for k, v in o.items() if k != "main/array"} for o in observations]
    assert all(other == reported for other in comm.allgather_obj(reported))


def test_reports_of_different_ranks(comm):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(Regression()))
    x = xp.full((3, 3), 0.1 * (comm.rank + 1))
    x[0, 0] = 10 * comm.rank  # Only rank 0 has no large value.
    iterator = [list(TupleDataset(x, x[:, :1]))]
    updater = MultiNodeUpdater(Batches(iterator), optimizer, comm, auto_new_epoch=False)
    (observation,), _ = train(updater, 1)
    # The value "first" has its own weight, one; only some ranks report "rare".
    expected = 10 * np.mean(range(comm.size)), comm.size
    assert observation["main/first"] == pytest.approx(expected)
    if comm.size > 1:
        assert observation["main/rare"] == pytest.approx(1)
    else:
        assert "main/rare" not in observation
    assert_array_equal(observation["main/array"], x)


class Batches(Iterator):
    """An iterator over given batches."""

    def __init__(self, batches):
        self._batches = iter(batches)

    def __next__(self):
        return next(self._batches)


class Words(Chain):
    """A model that reports a mean over the words of a batch, with their number."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(3, 1)

    def forward(self, x, t):
        n_words = int(np.sum(t > -0.3))
        report({"mean": (float(np.sum(x[t[:, 0] > -0.3])) / max(n_words, 1), n_words)}, self)
        return F.mean_squared_error(self.l(x), t)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_logs_weight_iterations_by_reported_weights(comm, batch_size, tmp_path):
    def logged(updater):
        trainer = Trainer(updater, (11, "iteration"), out=tmp_path)
        log = LogReport(trigger=(11, "iteration"), filename=None)
        trainer.extend(log)
        trainer.run()
        return log.log[0]["main/mean"]

    random = np.random.RandomState(4)
    data = TupleDataset(random.uniform(-1, 1, (11, 3)), random.uniform(-1, 1, (11, 1)))
    whole = SerialIterator(data, batch_size, shuffle=False)
    expected = logged(StandardUpdater(whole, optimizers.SGD().setup(Words())))
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(Words())
    iterator = SerialIterator(data, batch_size, shuffle=False)
    iterator = create_sharded_iterator(iterator, comm)
    actual = logged(MultiNodeUpdater(iterator, optimizer, comm))
    assert actual == pytest.approx(expected, rel=1e-12)


def test_without_a_reporter(comm):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(Regression()))
    iterator = create_sharded_iterator(SerialIterator(dataset(), 4), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    updater.update()
    assert optimizer.t == 1


def test_loss_func(comm):
    model = on_device(Regression())
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    iterator = create_sharded_iterator(SerialIterator(dataset(), 4), comm)
    shapes = []

    def loss_func(x, t):
        shapes.append(x.shape)
        return model(x, t)

    MultiNodeUpdater(iterator, optimizer, comm, loss_func=loss_func).update()
    # The loss is called once, even if it initializes the parameters, and not at all on a rank
    # without samples.
    n = len(range(comm.rank, 4, comm.size))
    assert shapes == [(n, 3)] * (n > 0)


def test_wrong_arguments(comm):
    model = on_device(Regression())
    iterator = SerialIterator(dataset(), 4)
    with pytest.raises(
        TypeError, match="optimizer must come from create_multi_node_optimizer, but is SGD"
    ):
        MultiNodeUpdater(iterator, optimizers.SGD().setup(model), comm)
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    with pytest.raises(
        ValueError, match="MultiNodeUpdater: accumulation must be at least 1, not 0"
    ):
        MultiNodeUpdater(iterator, optimizer, comm, accumulation=0)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 20])
def test_evaluator(comm, batch_size):
    np.random.seed(7)
    model = on_device(Regression())
    model(*[xp.ones((1, n)) for n in (3, 1)])
    expected = Evaluator(
        SerialIterator(dataset(), batch_size, repeat=False, shuffle=False), model
    )()
    iterator = SerialIterator(dataset(), batch_size, repeat=False, shuffle=False)
    evaluator = Evaluator(create_sharded_iterator(iterator, comm), model)
    assert create_multi_node_evaluator(evaluator, comm) is evaluator
    for _ in range(2):  # the iterator starts again each time
        result = evaluator()
        assert value(result["main/loss"]) == pytest.approx(value(expected["main/loss"]), rel=1e-13)
        assert all(other == result for other in comm.allgather_obj(result))


def test_evaluator_of_uneven_shares(comm):
    model = on_device(Regression())
    model(*[xp.ones((1, n)) for n in (3, 1)])
    comm.bcast_data(model)
    mine = dataset(5 * comm.size)[5 * comm.rank : 5 * comm.rank + 1 + comm.rank]
    everyone = [sample for share in comm.allgather_obj(mine) for sample in share]
    expected = Evaluator(SerialIterator(everyone, 100, repeat=False, shuffle=False), model)()
    evaluator = Evaluator(SerialIterator(mine, 2, repeat=False, shuffle=False), model)
    result = create_multi_node_evaluator(evaluator, comm)()
    assert result["main/loss"] == pytest.approx(value(expected["main/loss"]), rel=1e-13)


def test_evaluator_with_an_evaluate_of_its_own(comm):
    class Own(Evaluator):
        def evaluate(self):
            return {"rank": comm.rank, "text": "no number"}

    evaluator = create_multi_node_evaluator(Own({"main": None}, {"main": Regression()}), comm)
    assert evaluator.evaluate() == {"rank": pytest.approx(np.mean(range(comm.size)))}


def test_ranks_that_run_out_of_data(comm):
    """Up to three ranks have different numbers of samples; a batch has samples of the ranks that
    have some left."""
    data = [dataset(20)[4 * r * r : 4 * r * r + 2 + 4 * r] for r in range(min(comm.size, 3))]
    data += [dataset(3)[:]] * (comm.size - len(data))
    np.random.seed(6)
    expected = on_device(Regression())
    plain = optimizers.Adam().setup(expected)
    n_batches = max(-(-len(samples) // 3) for samples in data)
    for _ in range(2):
        for i in range(n_batches):
            batch = [sample for samples in data for sample in samples[3 * i : 3 * i + 3]]
            plain.update(expected, *concat_examples(batch))

    np.random.seed(6)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(on_device(Regression()))
    actual = SerialIterator(data[comm.rank], 3, repeat=False, shuffle=False)
    updater = MultiNodeUpdater(create_joined_iterator(actual, comm), optimizer, comm)
    train(updater, 2 * n_batches)
    assert updater.epoch == optimizer.epoch == 2
    reference = dict(expected.namedparams())
    for name, param in optimizer.target.namedparams():
        assert_allclose(param.array, reference[name].array, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rank", [0, -1])
@pytest.mark.parametrize("standard", [True, False])
def test_a_signal_on_one_rank_is_everybodys(comm, rank, standard):
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(Regression()))
    if standard:  # programs for ChainerMN do this
        updater = StandardUpdater(Batches([]), optimizer)
    else:
        updater = MultiNodeUpdater(Batches([]), optimizer, comm)
    mine = comm.rank == rank % comm.size
    assert updater.agree_on_signal(None) is None
    assert updater.agree_on_signal(signal.SIGINT if mine else None) == signal.SIGINT
    noted = signal.SIGTERM if mine else signal.SIGINT
    assert updater.agree_on_signal(noted) == signal.SIGTERM


def test_a_signal_does_not_stay(comm):
    """The signal that ended one training does not end the next training."""
    optimizer = create_multi_node_optimizer(optimizers.SGD(), comm).setup(on_device(Regression()))
    message = optimizer._reducer.message
    noted = signal.SIGTERM if comm.rank == comm.size - 1 else None
    ends = []
    for number in (None, noted, noted, None, None):
        message.begin()
        ends.append(optimizer.agree_on_signal(number))
    # Of several ranks, one notes the signal twice, because all ranks know it only the second time.
    given = [i for i, number in enumerate(ends) if number is not None]
    assert given == ([1, 2] if comm.size == 1 else [2])
