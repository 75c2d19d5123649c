"""Trains with many extensions, in Chainer or in mpchain: ``trainer.py LIBRARY OUT [FILE]``.

The training continues from the snapshot FILE, if it is given; either library may have written it.
The program prints the log without times.
"""

import importlib
import json
import sys
import warnings

import numpy as np

N_ITERATIONS = 9


def make_trainer(library, out):
    lib = importlib.import_module(library)
    training, datasets, iterators, optimizers = (
        importlib.import_module(f"{library}.{name}")
        for name in ("training", "datasets", "iterators", "optimizers")
    )
    extensions, triggers = training.extensions, training.triggers

    class MLP(lib.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1 = lib.links.Linear(None, 4)
                self.l2 = lib.links.Linear(4, 3)

        def forward(self, x):
            return self.l2(lib.functions.relu(self.l1(x)))

    x = np.random.RandomState(0).rand(20, 5).astype("f")
    data = datasets.TupleDataset(x, (x.sum(1) > 2.5).astype("i"))
    model = lib.links.Classifier(MLP())
    optimizer = optimizers.Adam().setup(model)
    iterator = iterators.SerialIterator(data, 6, shuffle=False)
    trainer = training.Trainer(
        training.StandardUpdater(iterator, optimizer),
        triggers.EarlyStoppingTrigger(max_trigger=(N_ITERATIONS, "iteration")),
        out=out,
    )
    test_iterator = iterators.SerialIterator(data, 6, False, False)
    trainer.extend(extensions.Evaluator(test_iterator, model))
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(extensions.PlotReport(["main/loss"], trigger=(3, "iteration"), filename="a.png"))
    trainer.extend(extensions.ParameterStatistics(model, trigger=(2, "iteration")))
    trainer.extend(extensions.MicroAverage("lr", "lr", "one", (2, "iteration")))
    trainer.extend(extensions.VariableStatisticsPlot(model.predictor.l2.W))
    trainer.extend(extensions.DumpGraph("main/loss"))
    trainer.extend(extensions.unchain_variables())
    trainer.extend(extensions.ExponentialShift("alpha", 0.9))
    trainer.extend(extensions.PrintReport(["epoch", "main/loss"]))
    trainer.extend(extensions.observe_lr(), trigger=(1, "iteration"))
    trainer.extend(extensions.FailOnNonNumber())
    best = triggers.MinValueTrigger("main/loss", (2, "iteration"))
    trainer.extend(extensions.snapshot_object(model, "best"), trigger=best)
    trainer.extend(extensions.snapshot(), trigger=(1, "iteration"))
    return trainer


def main(library, out, file=None):
    warnings.simplefilter("ignore")
    np.random.seed(0 if file is None else 1)
    trainer = make_trainer(library, out)
    if file is not None:
        importlib.import_module(f"{library}.serializers").load_npz(file, trainer)
    trainer.run()
    log = trainer.get_extension("LogReport").log
    volatile = ("elapsed_time",)
    print(json.dumps([{k: v for k, v in e.items() if k not in volatile} for e in log]))


if __name__ == "__main__":
    main(*sys.argv[1:])
