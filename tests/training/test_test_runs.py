"""Tests test runs of a trainer: two iterations, after which every extension is called."""

import pathlib

import pytest

from mpchain import Link, report
from mpchain.iterators import SerialIterator
from mpchain.training import extensions, triggers


def observe(trainer):
    trainer.observation["loss"] = 1.0


observe.priority = 300


@pytest.mark.parametrize("stop", [(100, "epoch"), (1, "iteration"), None])
def test_two_iterations_then_every_extension(make_trainer, tmp_path, stop):
    calls = []
    trainer = make_trainer(stop, test=True)
    trainer.extend(observe)
    intervals = [(9, "epoch"), (1, "iteration"), triggers.ManualScheduleTrigger(9, "epoch")]
    intervals += [lambda trainer: False, triggers.MinValueTrigger("loss", (5, "epoch"))]
    for number, trigger in enumerate(intervals):
        note = lambda t, n=number: calls.append((n, t.updater.iteration))
        trainer.extend(note, str(number), trigger)
    trainer.run()
    assert trainer.updater.iteration == 2
    assert calls == [(1, 1), *((n, 2) for n in range(len(intervals)))]
    assert trainer.out == tmp_path / "result"


def test_nothing_is_kept(make_trainer, tmp_path, capsys):
    seen = []
    trainer = make_trainer((100, "epoch"), test=True)
    trainer.extend(observe)
    extensions.standard_reports(trainer, ["loss"], snapshots=(1, "epoch"), arguments={"lr": 1})
    look = lambda t: seen.append({path.name for path in pathlib.Path(t.out).glob("[!.]*")})
    trainer.extend(look, "look", (1, "epoch"), -300)
    trainer.run()
    assert seen == [{"log", "hyperparameters.json", "snapshot_iter_2"}]
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.splitlines() == [
        "loss",
        "1",
        "0.8 epochs (2 iterations) in 0:00:00: loss 1",
        "test run finished; nothing was saved",
    ]


def test_results_of_earlier_runs_are_left_alone(make_trainer):
    def make(**options):
        trainer = make_trainer((3, "iteration"), **options)
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
        trainer.extend(extensions.snapshot(autoload=True), trigger=(1, "iteration"))
        return trainer

    make().run()
    folder = make().out
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    trainer = make(test=True)
    trainer.run()
    assert trainer.updater.iteration == 2 and not trainer.is_resumed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_nothing_is_kept_after_a_failure(make_trainer, tmp_path):
    def fail(updater):
        raise OSError

    trainer = make_trainer((9, "iteration"), fail, test=True)
    with pytest.raises(OSError):
        trainer.run(show_loop_exception_msg=False)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_training_can_be_tested(make_trainer, tmp_path):
    trainer = make_trainer((2, "iteration"), test=True)
    trainer.updater.iteration = 2
    trainer.run()
    assert trainer.updater.iteration == 4


def test_evaluators_use_two_batches(make_trainer):
    class Model(Link):
        def forward(self, x):
            report({"value": float(x.sum())}, self)

    def evaluate(trainer):
        iterator = SerialIterator([1, 2, 3, 4, 5, 6], 2, repeat=False, shuffle=False)
        return extensions.Evaluator(iterator, Model())(trainer)["main/value"]

    assert evaluate(make_trainer(test=True)) == (3 + 7) / 2
    assert evaluate(make_trainer()) == evaluate(None) == (3 + 7 + 11) / 3


def test_ranks_wait_for_each_other_before_the_folder_is_removed(make_trainer):
    trainer = make_trainer(test=True, rank=1)
    asked = []

    def agree(number):
        asked.append(pathlib.Path(trainer.out).exists())

    trainer.updater.agree_on_signal = agree
    trainer.run()
    # The trainer calls this before each iteration, after the last one, and at the end.
    assert asked == [True] * 4
