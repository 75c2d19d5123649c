import types

import pytest

from mpchain import Link, training
from mpchain.iterators import SerialIterator


class CountingUpdater(training.Updater):
    """An updater that draws batches and calls a function, without a model."""

    def __init__(self, on_update, n_samples, batch_size, rank=None):
        self.on_update = on_update
        self.iterator = SerialIterator(list(range(n_samples)), batch_size, shuffle=False)
        self.iteration = 0
        self.is_finalized = False
        self.optimizers = {}
        if rank is not None:
            comm = types.SimpleNamespace(rank=rank, size=4, is_elastic=False)
            self.optimizers["main"] = types.SimpleNamespace(communicator=comm, target=Link())

    @property
    def epoch(self):
        return self.iterator.epoch

    @property
    def epoch_detail(self):
        return self.iterator.epoch_detail

    def get_all_optimizers(self):
        return self.optimizers

    def update(self):
        self.iterator.next()
        self.on_update(self)
        self.iteration += 1

    def finalize(self):
        self.is_finalized = True

    def serialize(self, serializer):
        self.iterator.serialize(serializer["iterator"])
        self.iteration = serializer("iteration", self.iteration)


@pytest.fixture
def make_trainer(tmp_path):
    """Returns a function that makes a trainer without a model; by default, an epoch has 2.5
    batches.

    With ``rank``, the trainer has an optimizer whose communicator returns this rank.
    """

    def make(
        stop_trigger=(4, "iteration"),
        on_update=lambda updater: None,
        n_samples=25,
        batch_size=10,
        rank=None,
        **options,
    ):
        updater = CountingUpdater(on_update, n_samples, batch_size, rank)
        options.setdefault("out", tmp_path / "result")
        return training.Trainer(updater, stop_trigger, **options)

    return make


@pytest.fixture
def run_with_values(make_trainer):
    """Returns a function that runs a trainer whose iterations report given values as ``loss``; None
    reports nothing."""

    def run(values, extensions, **options):
        def observe(trainer):
            value = values[trainer.updater.iteration - 1]
            if value is not None:
                trainer.observation["loss"] = value

        trainer = make_trainer((len(values), "iteration"), **options)
        trainer.extend(observe, priority=training.PRIORITY_WRITER)
        for extension in extensions:
            trainer.extend(extension)
        trainer.run()
        return trainer

    return run
