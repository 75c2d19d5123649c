"""Trains a small model with mpchain or Chainer, saves it half way, and continues.

``python make.py write chainer FOLDER``, run by an interpreter that has Chainer 7.8.1, made the
files beside this one. ``python make.py continue chainer FOLDER`` continues from the files in a
folder and writes what they lead to. The continuation stays within an epoch: Chainer does not save
the state from which later orders of the examples are drawn.
"""

import importlib
import pathlib
import sys
import tempfile
import warnings

import numpy as np

OPTIMIZERS = {
    "Adam": ("Adam", {"alpha": 0.01}, "alpha"),
    "MomentumSGD": ("MomentumSGD", {"lr": 0.05}, "lr"),
}
N_EXAMPLES, BATCH_SIZE = 40, 4
HALF_WAY, END = 13, 19


def make_trainer(framework, name, out, end):
    """Returns a trainer of a small network with linear layers and batch normalization.

    Args:
        framework (str): ``mpchain`` or ``chainer``.
        name (str): a key of :data:`OPTIMIZERS`.
        out: the folder for the log.
        end (int): the number of iterations.

    Returns:
        tuple: the trainer, and the list to which it appends the loss of each iteration.
    """
    F, L, links, optimizers, hooks, datasets, iterators, training, extensions = (
        importlib.import_module(f"{framework}.{module}")
        for module in (
            "functions links link optimizers optimizer_hooks datasets iterators training "
            "training.extensions"
        ).split()
    )
    rng = np.random.RandomState(0)

    def array(*shape):
        return rng.randn(*shape).astype(np.float32)

    class Network(links.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1 = L.Linear(5, 8, initialW=array(8, 5))
                self.bn = L.BatchNormalization(8)
                self.l2 = links.ChainList(L.Linear(8, 3, initialW=array(3, 8)))

        def forward(self, x):
            return self.l2[0](F.tanh(self.bn(self.l1(x))))

    model = L.Classifier(Network())
    kind, arguments, rate = OPTIMIZERS[name]
    optimizer = getattr(optimizers, kind)(**arguments).setup(model)
    optimizer.add_hook(hooks.WeightDecay(0.01))
    dataset = datasets.TupleDataset(
        array(N_EXAMPLES, 5), rng.randint(3, size=N_EXAMPLES).astype(np.int32)
    )
    np.random.seed(1)
    iterator = iterators.SerialIterator(dataset, BATCH_SIZE)
    updater = training.updaters.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (end, "iteration"), out=out)
    trainer.extend(extensions.LogReport(trigger=(5, "iteration")))
    trainer.extend(extensions.ExponentialShift(rate, 0.9), trigger=(2, "iteration"))
    losses = []
    trainer.extend(
        lambda trainer: losses.append(float(trainer.observation["main/loss"].array)),
        name="losses",
        priority=50,
        trigger=(1, "iteration"),
    )
    return trainer, losses


def write(framework, folder):
    """Saves the model and trainer of each optimizer half way, and the result of the uninterrupted
    training."""
    serializers = importlib.import_module(f"{framework}.serializers")
    found = {}
    for name in OPTIMIZERS:
        with tempfile.TemporaryDirectory() as out:
            trainer, _ = make_trainer(framework, name, out, HALF_WAY)
            trainer.run()
            serializers.save_npz(str(folder / f"{name}_snapshot.npz"), trainer)
            model = trainer.updater.get_optimizer("main").target
            serializers.save_npz(str(folder / f"{name}_model.npz"), model)
            found[f"{name}_model"] = loss_of_model(framework, model, trainer)
            trainer, losses = make_trainer(framework, name, out, END)
            trainer.run()
            found[f"{name}_losses"] = losses[HALF_WAY:]
            found[f"{name}_log"] = logged(trainer)
    np.savez(str(folder / "expected.npz"), **found)


def go_on(framework, folder):
    """Loads the files that :func:`write` saved in a folder, continues, and returns the result."""
    serializers = importlib.import_module(f"{framework}.serializers")
    found = {}
    for name in OPTIMIZERS:
        with tempfile.TemporaryDirectory() as out:
            trainer, _ = make_trainer(framework, name, out, 1)
            model = trainer.updater.get_optimizer("main").target
            serializers.load_npz(str(folder / f"{name}_model.npz"), model)
            found[f"{name}_model"] = loss_of_model(framework, model, trainer)
            trainer, losses = make_trainer(framework, name, out, END)
            serializers.load_npz(str(folder / f"{name}_snapshot.npz"), trainer)
            trainer.run()
            found[f"{name}_losses"] = losses
            found[f"{name}_log"] = logged(trainer)
    return found


def loss_of_model(framework, model, trainer):
    """Returns the loss over all examples of the trainer, in evaluation mode."""
    configuration = importlib.import_module(f"{framework}.configuration")
    examples = trainer.updater.get_iterator("main").dataset[:]
    x, t = (np.stack([example[i] for example in examples]) for i in (0, 1))
    with configuration.using_config("train", False):
        return [float(model(x, t).array)]


def logged(trainer):
    """Returns losses, accuracies and iterations of the log."""
    keys = ("main/loss", "main/accuracy", "iteration")
    return [[entry[key] for key in keys] for entry in trainer.get_extension("LogReport").log]


def main(task, framework, folder):
    """Runs the task of the command line."""
    warnings.simplefilter("ignore", DeprecationWarning)
    folder = pathlib.Path(folder)
    if task == "write":
        write(framework, folder)
    else:
        np.savez(str(folder / "continued.npz"), **go_on(framework, folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
