"""Writes files of models, optimizers, trainers and checkpoints, and the values that later versions
must load from them.

``mpirun -n 2 python -m mpi4py make.py FOLDER`` writes them with the imported mpchain; commit
05c24bd wrote the files beside this one, before modules were rearranged.
"""

import os
import pathlib
import sys

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import iterators, optimizer_hooks, optimizers, serializers, training
from mpchain import links as L
from mpchain.training import extensions

N_EXAMPLES, BATCH_SIZE, STEPS = 24, 4, 7
OPTIMIZERS = {
    "adam": lambda: optimizers.Adam(0.01),
    "momentum": lambda: optimizers.MomentumSGD(0.05),
    "rmsprop": lambda: optimizers.RMSprop(0.01),
}
ALONE = ("model.npz", "model.h5", "model.safetensors")
ALONE += tuple(f"{name}.npz" for name in OPTIMIZERS)
TRAINERS = {"trainer.npz": "momentum", "trainer_adam.npz": "adam"}
OF_RANKS = ("checkpoint", "sharded", "checkpointer")


def array(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


class Network(mpchain.Chain):
    """A model of links with parameters, persistent values and children in a list."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        with self.init_scope():
            self.l1 = L.Linear(5, 6, initialW=array(rng, 6, 5))
            self.bn = L.BatchNormalization(6)
            self.l2 = mpchain.ChainList(L.Linear(6, 3, initialW=array(rng, 3, 6)))

    def forward(self, x):
        return self.l2[0](F.tanh(self.bn(self.l1(x))))


def data_set():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, N_EXAMPLES, np.int32)
    return mpchain.datasets.TupleDataset(array(rng, N_EXAMPLES, 5), labels)


def trained(name):
    """Returns a model and its optimizer after some steps in one process."""
    model = L.Classifier(Network())
    optimizer = OPTIMIZERS[name]().setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(0.01))
    examples = data_set()
    for i in range(STEPS):
        x, t = map(np.asarray, zip(*examples[i : i + BATCH_SIZE]))
        optimizer.update(model, x, t)
    return model, optimizer


def make_trainer(out, name="momentum", comm=None, create=None, end=STEPS):
    """Returns a trainer with a log, a schedule and a shuffled iterator; with ``comm``, for several
    ranks."""
    model = L.Classifier(Network())
    optimizer = OPTIMIZERS[name]()
    if comm is not None:
        optimizer = create(optimizer, comm)
    optimizer.setup(model)
    sampler = iterators.ShuffleOrderSampler(np.random.RandomState(2))
    iterator = iterators.SerialIterator(data_set(), BATCH_SIZE, order_sampler=sampler)
    if comm is None:
        updater = training.updaters.StandardUpdater(iterator, optimizer)
    else:
        iterator = mpchain.distributed.create_sharded_iterator(iterator, comm)
        updater = mpchain.distributed.MultiNodeUpdater(iterator, optimizer, comm)
    trainer = training.Trainer(updater, (end, "iteration"), out=str(out))
    trainer.extend(extensions.LogReport(trigger=(3, "iteration")))
    rate = "alpha" if name == "adam" else "lr"
    shift = extensions.ExponentialShift(rate, 0.9, optimizer=optimizer)
    trainer.extend(shift, trigger=(2, "iteration"))
    return trainer


def checkpoints(comm):
    """Returns, for each folder of checkpoints, the optimizer's wrapper and the extension."""
    from mpchain.distributed.extensions import checkpoint, create_multi_node_checkpointer

    return {
        "checkpoint": (mpchain.create_multi_node_optimizer, checkpoint),
        "sharded": (mpchain.distributed.create_sharded_optimizer, checkpoint),
        "checkpointer": (
            mpchain.create_multi_node_optimizer,
            lambda comm, folder: create_multi_node_checkpointer("run", comm, path=folder),
        ),
    }


def train_on_ranks(folder, kind, comm, end=STEPS):
    """Trains, with a checkpoint at the last step; resumes if the folder has one."""
    create, extension = checkpoints(comm)[kind]
    trainer = make_trainer(folder / f"{kind}_result", "adam", comm, create, end)
    made = extension(comm, str(folder / kind))
    if kind != "checkpointer":
        trainer.extend(made, trigger=(STEPS, "iteration"))
    elif os.path.exists(folder / kind):
        made.maybe_load(trainer, trainer.updater.get_optimizer("main"))
    trainer.run()
    if kind == "checkpointer":  # this extension deletes its files at the end
        made.save(trainer, STEPS)
    return trainer


def state_of(target):
    """Returns every array that a target saves, by its path."""
    serializer = serializers.DictionarySerializer()
    serializer.save(target)
    return {name: np.asarray(value) for name, value in serializer.target.items()}


def write(folder):
    """Writes all files and ``expected.npz`` to a folder; two ranks must call it."""
    folder = pathlib.Path(folder)
    comm = mpchain.create_communicator("naive")
    expected = {}
    if comm.rank == 0:
        for name in OPTIMIZERS:
            model, optimizer = trained(name)
            serializers.save_npz(folder / f"{name}.npz", optimizer)
            expected |= {f"{name}/{k}": v for k, v in state_of(optimizer).items()}
        serializers.save_npz(folder / "model.npz", model)
        serializers.save_hdf5(folder / "model.h5", model)
        serializers.save_safetensors(folder / "model.safetensors", model)
        expected |= {f"model/{k}": v for k, v in state_of(model).items()}
        for file, name in TRAINERS.items():
            trainer = make_trainer(folder / "result", name)
            trainer.run()
            serializers.save_npz(folder / file, trainer)
            for part in ("model", "optimizer"):
                expected |= part_of(trainer, file, part)
    comm.barrier()
    for kind in OF_RANKS:
        trainer = train_on_ranks(folder, kind, comm)
        # Each rank has its own statistics of batch normalization.
        for of_rank in comm.allgather_obj(part_of(trainer, f"{kind}/{comm.rank}", "model")):
            expected |= of_rank
    if comm.rank == 0:
        np.savez_compressed(folder / "expected.npz", **expected)


def part_of(trainer, file, part):
    optimizer = trainer.updater.get_optimizer("main")
    target = optimizer.target if part == "model" else optimizer
    return {f"{file}/{part}/{k}": v for k, v in state_of(target).items()}


if __name__ == "__main__":
    write(sys.argv[1])
