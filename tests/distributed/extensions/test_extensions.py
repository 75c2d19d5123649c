"""Tests extensions for several ranks."""

import io
import json
import os
import signal

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, report, serializers
from mpchain.datasets import TupleDataset
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
    create_sharded_optimizer,
)
from mpchain.distributed.extensions import (
    GatherState,
    MultiNodeEarlyStoppingTrigger,
    MultiNodeProgressBar,
    ObservationAggregator,
    checkpoint,
    only_on_rank_0,
)
from mpchain.iterators import SerialIterator
from mpchain.link import Chain
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training import Trainer, Updater, extensions, find_learning_rate
from mpchain.variable import Variable


class Counting(Updater):
    """An updater that only counts; three iterations are an epoch."""

    iteration = 0
    epoch = property(lambda self: self.iteration // 3)
    epoch_detail = property(lambda self: self.iteration / 3)
    previous_epoch_detail = property(lambda self: (self.iteration - 1) / 3)
    is_new_epoch = property(lambda self: self.iteration % 3 == 0)

    def get_all_optimizers(self):
        return {}

    def update(self):
        self.iteration += 1


def mock_trainer(stop=(6, "iteration"), report=None):
    """Returns a trainer whose iterations call ``report``; three iterations are an epoch."""
    trainer = Trainer(Counting(), stop)

    def reporting(trainer):
        trainer.observation.update(report(trainer.updater.iteration))

    trainer.extend(reporting, name="report", trigger=(1, "iteration"), priority=1000)
    return trainer


def collect(trainer, keys):
    seen = []
    trainer.extend(
        lambda trainer: seen.append({k: trainer.observation.get(k) for k in keys}),
        name="collect",
        trigger=(1, "iteration"),
    )
    return seen


@pytest.mark.parametrize("kind", ["number", "variable", "pair"])
def test_observation_aggregator(comm, kind, tmp_path):
    def report(i):
        value = float(i + comm.rank)
        if kind == "variable":
            value = Variable(np.array(value, np.float32))
        return {"x": (value, 1 + comm.rank) if kind == "pair" else value}

    trainer = mock_trainer((4, "iteration"), report)
    trainer.out = str(tmp_path)
    trainer.extend(ObservationAggregator(comm, "x", "mean"))
    trainer.extend(ObservationAggregator(comm, "x", "two", comm_trigger=(2, "iteration")))
    seen = collect(trainer, ["mean", "two"])
    trainer.run()
    weights = np.arange(1, comm.size + 1) if kind == "pair" else np.ones(comm.size)
    offset = np.average(range(comm.size), weights=weights)
    assert [row["mean"] for row in seen] == pytest.approx([i + offset for i in range(1, 5)])
    twos = [row["two"] for row in seen]
    assert twos[0] is None and twos[2] is None
    assert twos[1::2] == pytest.approx([1.5 + offset, 3.5 + offset])
    assert len(set(comm.allgather_obj(str(seen)))) == 1


def test_an_aggregator_of_ones_own(comm, tmp_path):
    def aggregator(lists):
        assert comm.rank == 0
        return lists

    trainer = mock_trainer(
        (2, "iteration"), lambda i: {"x": i} if i == 2 and comm.rank == 0 else {}
    )
    trainer.out = str(tmp_path)
    trainer.extend(ObservationAggregator(comm, "x", aggregator=aggregator))
    seen = collect(trainer, ["x"])
    trainer.run()
    assert seen == [{"x": None}, {"x": [[2]] + [[]] * (comm.size - 1)}]


def test_an_aggregator_is_restored_in_mid_interval(comm):
    def aggregator():
        return ObservationAggregator(comm, "x", comm_trigger=(3, "iteration"))

    class Moment:
        def __init__(self, iteration):
            self.updater = self
            self.iteration, self.epoch_detail = iteration, iteration / 10
            self.observation = {"x": float(iteration)}

    first, second = aggregator(), aggregator()
    first(Moment(1)), first(Moment(2))
    state = DictionarySerializer()
    first.serialize(state)
    second.serialize(NpzDeserializer(state.target))
    moment = Moment(3)
    second(moment)
    assert moment.observation["x"] == pytest.approx(2)


def test_early_stopping(comm, tmp_path, capsys):
    """The mean over the ranks decides; the value of rank 0 alone would improve forever."""
    values = [5, 3, 4, 4, 4, 4, 4, 4]

    def report(i):
        mean = values[(i - 1) // 3]
        return {"main/loss": mean + (-i if comm.rank == 0 else i / max(comm.size - 1, 1))}

    if comm.size == 1:
        report = lambda i: {"main/loss": values[(i - 1) // 3]}
    trigger = MultiNodeEarlyStoppingTrigger(
        comm, patience=2, verbose=True, max_trigger=(8, "epoch")
    )
    assert trigger.get_training_length() == (8, "epoch")
    trainer = mock_trainer(trigger, report)
    trainer.out = str(tmp_path)
    trainer.run()
    assert comm.allgather_obj(trainer.updater.iteration) == [12] * comm.size
    assert trainer.observation["main/loss_aggregated"] == pytest.approx(4)
    assert ("training ends early" in capsys.readouterr().out) == (comm.rank == 0)
    state = DictionarySerializer()
    trigger.serialize(state)
    other = MultiNodeEarlyStoppingTrigger(comm)
    other.serialize(NpzDeserializer(state.target))
    again = DictionarySerializer()
    other.serialize(again)
    assert again.target == state.target
    values = {key.rpartition("/")[2]: value for key, value in again.target.items()}
    assert values["count"] == 2 and values["best"] == pytest.approx(3)


def test_only_on_rank_0(comm, tmp_path):
    calls = []

    def note(trainer):
        calls.append(trainer.updater.iteration)

    trainer = mock_trainer((3, "iteration"), lambda i: {})
    trainer.out = str(tmp_path / str(comm.rank))
    log = extensions.LogReport(trigger=(1, "iteration"))
    trainer.extend(only_on_rank_0(log, comm))
    trainer.extend(only_on_rank_0(note, comm))
    trainer.run()
    assert trainer.get_extension("note") is not None
    assert (trainer.get_extension("LogReport") is log) == (comm.rank == 0)
    assert calls == ([1, 2, 3] if comm.rank == 0 else [])
    assert (tmp_path / str(comm.rank) / "log").exists() == (comm.rank == 0)


class Model(Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(2, 1)

    def forward(self, x):
        loss = F.mean(self.l(x) ** 2)
        report({"loss": loss}, self)
        return loss


def make_trainer(comm, out, create=create_multi_node_optimizer, stop=(4, "iteration")):
    np.random.seed(0)
    optimizer = create(optimizers.Adam(), comm).setup(Model())
    data = TupleDataset(np.random.normal(size=(10, 2)).astype(np.float32))
    iterator = create_sharded_iterator(SerialIterator(data, 5), comm)
    return Trainer(MultiNodeUpdater(iterator, optimizer, comm), stop, out=str(out))


def test_progress_bar(comm, tmp_path, clock):
    clock.step = 1.0
    out = io.StringIO()
    trainer = make_trainer(comm, tmp_path)
    trainer.extend(MultiNodeProgressBar(comm, update_interval=2, out=out), trigger=(1, "iteration"))
    trainer.run()
    if comm.rank == 0:
        assert "samples/s on" in out.getvalue() and f"on {comm.size} ranks" in out.getvalue()
    else:
        assert out.getvalue() == ""


def test_ranks_may_write_the_same_files(comm, folder, capsys):
    """All ranks write the log; the last rank writes snapshots, and deletes old ones."""
    writer = comm.size - 1
    for stop in (3, 4):
        trainer = make_trainer(comm, folder, stop=(stop, "iteration"))
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        snapshot = extensions.snapshot(n_retains=1, condition=lambda: comm.rank == writer)
        trainer.extend(snapshot, trigger=(1, "iteration"))
        trainer.run()
        comm.barrier()
    names = sorted(name for name in os.listdir(folder) if name[0] != ".")
    assert names == ["log", "log.old1", "snapshot_iter_3.old1", "snapshot_iter_4"]
    assert len(json.loads((folder / "log").read_text())) == 4
    assert len(json.loads((folder / "log.old1").read_text())) == 3
    comm.barrier()
    resumed = make_trainer(comm, folder, stop=(4, "iteration"))
    serializers.load_npz(folder / "snapshot_iter_4", resumed)
    capsys.readouterr()
    resumed.run()
    line = "4 of 4 iterations are done: there is nothing left to train\n"
    assert capsys.readouterr().out == (line if comm.rank == 0 else "")


def test_gather_state(comm, tmp_path):
    trainer = make_trainer(comm, tmp_path, create_sharded_optimizer)
    trainer.extend(GatherState(), trigger=(2, "iteration"))
    if comm.rank == 0:
        trainer.extend(extensions.snapshot(), trigger=(2, "iteration"))
    trainer.run()
    comm.barrier()
    folder = comm.bcast_obj(str(tmp_path))
    resumed = make_trainer(comm, tmp_path, stop=(6, "iteration"))
    serializers.load_npz(f"{folder}/snapshot_iter_2", resumed)
    assert resumed.updater.get_optimizer("main").t == 2
    resumed.run()
    longer = make_trainer(comm, tmp_path, stop=(6, "iteration"))
    longer.run()
    for trainers in (resumed, longer):
        assert trainers.updater.iteration == 6
    for a, b in zip(*(t.updater.get_optimizer("main").target.params() for t in (resumed, longer))):
        np.testing.assert_array_equal(a.array, b.array)


def test_gather_state_when_a_signal_ends_training(comm, tmp_path):
    trainer = make_trainer(comm, tmp_path, create_sharded_optimizer, (10, "iteration"))
    trainer.extend(GatherState(), trigger=(100, "iteration"))
    if comm.rank == 0:
        trainer.extend(extensions.snapshot(on_interrupt=True), trigger=(100, "iteration"))
    noted = []
    agree = trainer.updater.agree_on_signal

    def agree_on_signal(number):
        mine = trainer.updater.iteration == 3 and comm.rank == comm.size - 1
        noted.append(agree(signal.SIGTERM if mine else number))
        return noted[-1]

    trainer.updater.agree_on_signal = agree_on_signal
    with pytest.raises(SystemExit):
        trainer.run()
    last = 3 if comm.size == 1 else 4  # the signal reaches the other ranks in the next iteration
    assert comm.allgather_obj(trainer.updater.iteration) == [last] * comm.size
    if comm.rank == 0:
        with np.load(tmp_path / f"snapshot_iter_{last}") as saved:
            assert saved["updater/optimizer:main/l/W/m"].shape == (1, 2)
            assert json.loads(str(saved["_observation"])) is not None


def test_rank_0_reports_without_a_guard(comm, folder, capsys):
    trainer = make_trainer(comm, folder)
    extensions.standard_reports(trainer, trigger=(2, "iteration"), snapshots=(1, "epoch"))
    trainer.run()
    comm.barrier()
    out = capsys.readouterr().out
    assert out.count("results are in") == (comm.rank == 0)
    assert bool(out) == (comm.rank == 0)
    assert sorted(path.name for path in folder.glob("[!.]*")) == [
        "log",
        "snapshot_iter_2",
        "snapshot_iter_4",
    ]
    losses = [entry["main/loss"] for entry in trainer.get_extension("LogReport").log]
    assert comm.allgather_obj(losses) == [losses] * comm.size


def test_a_test_run_leaves_nothing(comm, folder):
    np.random.seed(0)
    trainer = make_trainer(comm, folder / "out", stop=(100, "epoch"))
    trainer.is_test = True
    trainer.extend(checkpoint(comm))
    extensions.standard_reports(trainer, snapshots=(1, "epoch"))
    trainer.run()
    comm.barrier()
    assert trainer.updater.iteration == 2
    assert os.listdir(folder) == []


def test_the_range_test_of_learning_rates_is_the_same_on_all_ranks(comm):
    np.random.seed(comm.rank)  # initial values and draws differ
    x = np.random.RandomState(0).normal(size=(12, 3)).astype(np.float32)
    data = TupleDataset(x, (x[:, 0] > 0).astype(np.int32))
    model = L.Classifier(L.Linear(None, 2))
    optimizer = create_multi_node_optimizer(optimizers.Adam(0.125), comm).setup(model)
    iterator = create_sharded_iterator(SerialIterator(data, 6), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    test = find_learning_rate(updater, 1e-3, 1.0, 8)
    assert len(test.losses) >= 2
    assert (updater.iteration, optimizer.alpha, optimizer.t) == (0, 0.125, 0)
    found = test.rates, test.losses, model.predictor.W.array.tolist()
    assert comm.allgather_obj(found) == [found] * comm.size
    updater.update()
    assert (
        comm.allgather_obj(model.predictor.W.array.tolist())
        == [model.predictor.W.array.tolist()] * comm.size
    )
