"""Programs that tests record, and functions that launch them."""

import pathlib
import subprocess
import sys
import textwrap

from tests.distributed import ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 120

MLP = """
    import numpy as np
    import mpchain
    import mpchain.functions as F
    import mpchain.links as L
    from mpchain import iterators, optimizers, training
    from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
    from mpchain.distributed.extensions import checkpoint

    SEED, RETAINS, REPRODUCIBLE = 0, 0, False

    class MLP(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1 = L.Linear(20, 30)
                self.l2 = L.Linear(30, 3)

        def forward(self, x):
            return self.l2(F.dropout(F.relu(self.l1(x))))

    np.random.seed(SEED)
    comm = mpchain.create_communicator(reproducible=REPRODUCIBLE)
    rng = np.random.RandomState(1)
    data = [(rng.rand(20).astype("f"), np.int32(i % 3)) for i in range(96)]
    model = L.Classifier(MLP())
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    batches = create_sharded_iterator(iterators.SerialIterator(data, 12), comm)
    updater = MultiNodeUpdater(batches, optimizer, comm)
    trainer = training.Trainer(updater, (3, "epoch"), out="result")
    trainer.extend(checkpoint(comm, n_retains=RETAINS))
    trainer.run()
"""
"""A program with eight steps in an epoch, 24 steps in all, and a checkpoint after each epoch."""


def write(folder, text=MLP, name="train.py", **constants):
    """Writes a program, in which some names in the line of constants get other values."""
    text = textwrap.dedent(text)
    before = "SEED, RETAINS, REPRODUCIBLE = 0, 0, False"
    values = {"SEED": 0, "RETAINS": 0, "REPRODUCIBLE": False} | constants
    text = text.replace(before, "\n".join(f"{key} = {value!r}" for key, value in values.items()))
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def launch(folder, *arguments, code=0, typed="", **variables):
    """Runs mpchain-launch in a folder; returns its standard output and standard error.

    ``typed`` is the input of a debugger.
    """
    command = [sys.executable, "-m", "launch", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=ranks.environment() | variables,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def record(folder, *arguments, n=2, text=MLP, code=0, **constants):
    """Writes a program and records a run of it on ranks."""
    path = write(folder, text, **constants)
    return launch(folder, "-n", n, "--record", *arguments, path, code=code)


ELASTIC = """
    import os
    import signal
    import numpy as np
    import mpchain
    import mpchain.functions as F
    import mpchain.links as L
    from mpchain import iterators, optimizers, training
    from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator, run_elastic
    from mpchain.distributed.extensions import checkpoint

    class MLP(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1 = L.Linear(20, 30)
                self.l2 = L.Linear(30, 3)

        def forward(self, x, index):
            h = F.dropout(F.relu(self.l1(x)))
            if main.optimizer.t == 20:
                sign = np.where(index == 57, -1, 1).astype("f")
                h = h + F.sqrt(sign)[:, None]
            return self.l2(h)

    def lose(trainer):
        if (main.comm.size, main.rank, trainer.updater.iteration) in ((4, 3, 5), (3, 0, 11)):
            os.kill(os.getpid(), signal.SIGKILL)

    def main(comm):
        np.random.seed(0)
        main.comm, main.rank = comm, comm.rank
        rng = np.random.RandomState(1)
        # Sample 57 is in the batch of step 21.
        data = [(rng.rand(20).astype("f"), np.int32(i), np.int32(i % 3)) for i in range(96)]
        model = L.Classifier(MLP())
        main.optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm)
        main.optimizer.setup(model)
        batches = iterators.SerialIterator(data, 12, shuffle=False)
        batches = create_sharded_iterator(batches, comm)
        updater = MultiNodeUpdater(batches, main.optimizer, comm)
        trainer = training.Trainer(updater, (3, "epoch"), out="result")
        trainer.extend(checkpoint(comm, n_retains=0))
        trainer.extend(lose)
        trainer.run()

    run_elastic(main, elastic=None)
"""
"""A program in which rank 3 is lost at step 5, and rank 0 at step 11; in step 21 a sample becomes
NaN."""

LOOP = """
    import numpy as np
    import mpchain
    import mpchain.functions as F
    import mpchain.links as L
    from mpchain import optimizers
    from mpchain.distributed import load_checkpoint, save_checkpoint

    class Model(mpchain.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.layer = L.Linear(20, 3)

        def forward(self, x, t):
            return F.softmax_cross_entropy(F.dropout(self.layer(x)), t)

    class State:
        def serialize(self, serializer):
            for i, optimizer in enumerate(optimizers_of):
                optimizer.target.serialize(serializer[f"model{i}"])
                optimizer.serialize(serializer[f"optimizer{i}"])

    np.random.seed(0)
    comm = mpchain.create_communicator()
    x = np.random.RandomState(1).rand(96, 20).astype("f")
    t = (np.arange(96) % 3).astype("i")
    models = Model(), Model()
    optimizers_of = [
        mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
        for model in models
    ]
    state = State()
    for i in range(load_checkpoint("saved", state, comm) or 0, 24):
        batch = slice(i * 12 % 96, i * 12 % 96 + 12)
        with comm.batch(12) as mine:
            part = x[batch][mine], t[batch][mine]
            optimizers_of[0].update(models[0], *part)
            optimizers_of[1].update(lambda: models[1](*part))
        if i % 8 == 7:
            save_checkpoint("saved", state, comm, i + 1)
"""
"""A loop with two models and their optimizers; one optimizer gets its batch by a closure."""
