"""Trains a model on a rank for the tests of lost ranks, and loses the rank at a given moment.

``python -m tests.distributed.elastic_models MODEL FOLDER [--nccl=BINDING] [FAULT ...]``, where a
fault is ``kind:rank:moment:count``: the rank, as numbered at the start, kills or stops itself when
it comes to the moment for the ``count``-th time, or waits for a file ``continue``. If the moment is
``outside``, the process that started the ranks ends the rank. The current rank 0 writes losses,
parameters and running averages into the folder. Without faults, each rank writes how often it comes
to each moment. With a binding of NCCL, each rank uses a GPU.
"""

import collections
import functools
import itertools
import json
import os
import signal
import sys
import tempfile
import time

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers, training
from mpchain.backends import nccl_bindings
from mpchain.backends.cuda import to_cpu
from mpchain.distributed import (
    InMemoryCheckpoint,
    create_communicator,
    create_multi_node_evaluator,
    create_multi_node_optimizer,
    create_sharded_iterator,
    create_sharded_optimizer,
    extensions,
    run_elastic,
    scatter_dataset,
)
from mpchain.distributed.checkpoints import writing
from mpchain.distributed.communicators import NcclCommunicator, mpi
from mpchain.distributed.communicators.elastic import Elasticity
from mpchain.distributed.gradients import buckets
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.gradients.deterministic import DeterministicReducer
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.distributed.links import MultiNodeBatchNormalization, create_mnbn_model
from mpchain.distributed.optimizers.counts import Counts
from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer
from mpchain.distributed.recovery.copies import Copy
from mpchain.distributed.recovery.spares import Spares
from mpchain.distributed.updaters import MultiNodeUpdater
from mpchain.iterators import SerialIterator
from tests.models import MLP, Recurrent

N_ITERATIONS = 14
BATCH = 12
N_RANKS = 4
_N_SAMPLES = 60
_RATE = 0.8  # the factor of learning rates from step to step
_TIMEOUT = 5.0  # the number of seconds until a stopped rank counts as lost
OUTSIDE = "outside"
FAULT = "fault on the doubles of CuPy and NCCL:"
_uses_gpus = [False]


def _mlp(normalization=None):
    return MLP(None, 0.3, 16, 3, F.relu, normalization)


class ConvNet(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(1, 4, 3, nobias=True)
            self.bn = L.BatchNormalization(4)
            self.last = L.Linear(None, 3)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(F.reshape(x, (-1, 1, 4, 4)))))
        return self.last(F.dropout(h, 0.3))


class Critics(MultiNodeUpdater):
    """A WGAN-GP, with two updates of the critic and one of the generator in a step."""

    def update_core(self):
        generator, critic = self.get_optimizer("generator"), self.get_optimizer("main")
        for _ in range(2):
            batch = self.next_batch()
            x, _ = self.converter(batch, self.device)
            for optimizer in (critic, generator):
                optimizer.n_samples = len(x)
            with self._division(len(x)):
                critic.update(self._critic_loss, x, generator.target, critic.target)
        with self._division(len(x)):
            generator.update(self._generator_loss, x, generator.target, critic.target)

    def _noise(self, x):
        xp = mpchain.backend.get_array_module(x)
        return mpchain.random.source(xp).standard_normal((len(x), 4)).astype(x.dtype)

    def _critic_loss(self, x, generator, critic):
        fake = generator(self._noise(x)).array
        xp = mpchain.backend.get_array_module(x)
        u = mpchain.random.source(xp).uniform(size=(len(x), 1)).astype(x.dtype)
        between = mpchain.Variable(x + u * (fake - x))
        (gx,) = mpchain.grad([critic(between)], [between], enable_double_backprop=True)
        penalty = F.mean((F.sqrt(F.sum(gx**2, axis=1)) - 1) ** 2)
        loss = F.mean(critic(fake)) - F.mean(critic(x)) + 10 * penalty
        return loss

    def _generator_loss(self, x, generator, critic):
        return -F.mean(critic(generator(self._noise(x))))


def _network(*sizes):
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (L.Linear(a, b), F.tanh)]
    return mpchain.Sequential(*layers[:-1])


def _wgan(comm, batches):
    made = {}
    for name, model in {"main": _network(16, 8, 1), "generator": _network(4, 8, 16)}.items():
        model.to_device(_device(comm))
        made[name] = create_multi_node_optimizer(optimizers.Adam(1e-3), comm).setup(model)
    return Critics(batches, made, comm, device=_device(comm))


def _classifier(model, make_optimizer=create_multi_node_optimizer):
    def make(comm, batches):
        accuracy = functools.partial(F.accuracy, ignore_label=-1)
        model_of = create_mnbn_model(model(), comm) if model is ConvNet else model()
        made = L.Classifier(model_of, accfun=accuracy)
        made.to_device(_device(comm))
        optimizer = make_optimizer(optimizers.Adam(), comm).setup(made)
        if make_optimizer is create_sharded_optimizer:
            optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(0.1))
        if isinstance(made.predictor, Recurrent):
            optimizer.add_rank_state(made.predictor.layer, "h", "c")
        return MultiNodeUpdater(batches, optimizer, comm, device=_device(comm))

    return make


def _device(comm):
    return f"@cupy:{comm.intra_rank}" if _uses_gpus[0] else "@numpy"


MODELS = {
    "mlp": _classifier(_mlp),
    "convnet": _classifier(ConvNet),
    "lstm": _classifier(lambda: Recurrent(L.LSTM, 16, 6, 3, unchains=True)),
    "wgan": _wgan,
    "sharded": _classifier(_mlp, create_sharded_optimizer),
    "reproducible": _classifier(lambda: _mlp(L.BatchNormalization(16))),
    "counted": _classifier(_mlp),  # this loss is a mean over the labels that are not ignored
}

MOMENTS = {
    "setup": (MultiNodeOptimizer, "setup"),
    "keep": (Copy, "_mirror"),
    "forward": (MultiNodeOptimizer, "update_in_parts"),
    "backward": (MultiNodeOptimizer, "_backward"),
    "ready": (GradientReducer, "ready"),
    "end_part": (DeterministicReducer, "end_part"),
    "sum": (mpi.SharedBuffer, "sum"),
    "normalization": (MultiNodeBatchNormalization, "_normalize"),
    "count": (Counts, "_round"),
    "control": (MultiNodeOptimizer, "agree_on_signal"),
    "step": (MultiNodeOptimizer, "_step"),
    "evaluator": (mpchain.training.extensions.Evaluator, "summarize"),
    "checkpoint": (writing.Saving, "_write"),
    "checkpoint_end": (writing.Saving, "_complete"),
    "recovery": (Copy, "values_for"),
    "connect": (nccl_bindings.Connection, "__init__"),
    "run": (nccl_bindings.Connection, "run"),
    "begun": (NcclCommunicator, "_wait_for"),
    "shrink": (nccl_bindings.Connection, "shrink"),
    "spare": (Spares, "_wait"),
    "renewed": (mpi.MpiCommunicator, "renewed"),
}
"""Maps moments to functions, at whose beginning a rank may be lost."""


def _note(folder, event, rank=None):
    """Writes an empty file, whose name contains the event, the time and, if given, the rank."""
    name = f"{event}_{time.time():.6f}" + ("" if rank is None else f"_{rank}")
    with open(os.path.join(folder, name), "w"):
        pass


def _lose(kind, rank, folder):
    if kind == "wait":
        print("waits", flush=True)
        while not os.path.exists(os.path.join(folder, "continue")):
            time.sleep(0.01)  # no event exists to wait for, so poll
        return
    _note(folder, "lost", rank)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def _call_at(moment, function):
    owner, name = MOMENTS[moment]
    method = getattr(owner, name)

    def call(*args, **kwargs):
        function()
        return method(*args, **kwargs)

    setattr(owner, name, call)


def _set_fault(fault, folder, is_here=True):
    """Prepares a fault. On other ranks it has no effect, but all ranks have the same call stack, by
    which calls in losses are matched between ranks."""
    kind, rank, moment, count = fault.split(":")
    if moment == OUTSIDE:
        return
    left = [int(count) if is_here else 0]

    def count_down():
        left[0] -= 1
        if left[0] == 0:
            _lose(kind, rank, folder)

    _call_at(moment, count_down)


def _loop(comm, data):
    """Trains in a loop without a trainer; returns the result."""
    model, device = L.Classifier(_mlp()), _device(comm)  # each rank has its own device
    model.to_device(device)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    batches = create_sharded_iterator(SerialIterator(data, BATCH), comm)
    losses = Losses()
    objects = {"model": model, "optimizer": optimizer, "batches": batches, "losses": losses}
    state = InMemoryCheckpoint(comm, objects)
    while state.is_before(N_ITERATIONS):
        with state.step():
            optimizer.alpha = _RATE**state.iteration * 1e-3
            x, t = mpchain.dataset.concat_examples(next(batches), device)
            with comm.batch(mine=batches.mine):
                optimizer.update(model, x, t)
            mean = comm.allreduce(model.loss.array * len(x)) / BATCH
            losses.values[state.iteration] = float(mean)
    arrays = {path: to_cpu(param.array) for path, param in model.namedparams()}
    return arrays | {"losses": losses.values}


class Losses:
    def __init__(self):
        self.values = np.zeros(N_ITERATIONS)

    def serialize(self, serializer):
        self.values = np.array(serializer("values", self.values))


def _train(name, folder, comm):
    mpchain.get_device(_device(comm)).use()
    np.random.seed(comm.rank and 100 + comm.rank)
    random = np.random.RandomState(3)
    data = [(random.rand(16), np.int32(random.randint(3))) for _ in range(_N_SAMPLES)]
    if name == "counted":  # the numbers of counted labels differ between the ranks
        data = [(x, t if i % 5 else np.int32(-1)) for i, (x, t) in enumerate(data)]
    if name == "loop":
        outcome = _loop(comm, data)
        if comm.rank == 0:
            np.savez(os.path.join(folder, "outcome.npz"), **outcome)
        return
    if name == "scattered":
        _train_on_scattered_data(comm, data, folder)
        return
    shuffles = name != "lstm"
    batches = create_sharded_iterator(SerialIterator(data, BATCH, shuffle=shuffles), comm)
    updater = MODELS[name](comm, batches)
    trainer = training.Trainer(updater, (N_ITERATIONS, "iteration"), out=folder)
    trainer.extend(training.extensions.LogReport(trigger=(1, "iteration")))
    for optimizer in updater.get_all_optimizers().values():
        shift = training.extensions.ExponentialShift("alpha", _RATE, optimizer=optimizer)
        trainer.extend(shift, trigger=(1, "iteration"))
    trainer.extend(extensions.checkpoint(comm), trigger=(4, "iteration"))
    if name != "wgan":
        target = updater.get_optimizer("main").target
        tests = SerialIterator(data, BATCH, repeat=False, shuffle=False)
        tests = create_sharded_iterator(tests, comm)
        evaluator = training.extensions.Evaluator(tests, target, device=_device(comm))
        if name != "lstm":
            evaluator = create_multi_node_evaluator(evaluator, comm)
            trainer.extend(evaluator, trigger=(5, "iteration"))
    trainer.run()
    if comm.rank == 0:
        np.savez(os.path.join(folder, "outcome.npz"), **_outcome(trainer, updater))


def _train_on_scattered_data(comm, data, folder):
    """Trains with sums over some of the ranks, so that the result depends on the number of
    ranks."""
    np.random.seed(0)
    some = comm.split(comm.rank % 2, comm.rank)
    optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(L.Classifier(_mlp()))
    mine = scatter_dataset(data, comm, shuffle=True, seed=1)
    updater = training.StandardUpdater(SerialIterator(mine, BATCH // N_RANKS), optimizer)
    trainer = training.Trainer(updater, (N_ITERATIONS, "iteration"), out=folder)

    def add(trainer):
        trainer.observation["some/loss"] = some.allreduce_obj(float(optimizer.target.loss.array))

    trainer.extend(add, trigger=(1, "iteration"), priority=training.PRIORITY_WRITER)
    shift = training.extensions.ExponentialShift("alpha", _RATE)
    trainer.extend(shift, trigger=(1, "iteration"))
    trainer.extend(training.extensions.LogReport(trigger=(1, "iteration")))
    trainer.run()
    if comm.rank == 0:
        np.savez(os.path.join(folder, "outcome.npz"), **_outcome(trainer, updater))


def in_one_process(name):
    """Returns the result of one process without ranks."""
    with tempfile.TemporaryDirectory() as folder, mpchain.using_config("dtype", np.float64):
        _train(name, folder, create_communicator(**_options(name)))
        with np.load(os.path.join(folder, "outcome.npz")) as file:
            return dict(file)


def _options(name):
    return {"reproducible": True} if name == "reproducible" else {}


def _outcome(trainer, updater):
    log = trainer.get_extension("LogReport").log
    # The keys that are left out contain times.
    keys = {key for entry in log for key in entry if not key.startswith("ranks/")}
    keys = sorted(keys - {"elapsed_time"})
    arrays = {f"log/{key}": np.array([entry.get(key, np.nan) for entry in log]) for key in keys}
    for name, optimizer in updater.get_all_optimizers().items():
        arrays |= {f"{name}{path}": to_cpu(p.array) for path, p in optimizer.target.namedparams()}
        for path, each in named_persistents(optimizer.target).items():
            arrays[f"{name}{path}"] = np.asarray(to_cpu(each.value))
    return arrays


def main(name, folder, *faults):
    os.makedirs(folder, exist_ok=True)
    mpchain.config.dtype = np.float64
    # There are several buckets, so that gradients are reduced while backward continues.
    buckets.BUCKET_BYTES = buckets.GPU_BUCKET_BYTES = buckets.FIRST_GPU_BUCKET_BYTES = 64
    faults, options = list(faults), {"communicator_name": "naive"}
    if faults and faults[0].startswith("--nccl="):
        binding = faults.pop(0).removeprefix("--nccl=")
        _uses_gpus[0], options["communicator_name"] = True, "pure_nccl"
        for other in set(nccl_bindings.BINDINGS) - {binding}:
            del nccl_bindings.BINDINGS[other]
    shrink = Elasticity.shrink_own

    def noted(*args):
        _note(folder, "noticed")
        return shrink(*args)

    Elasticity.shrink_own = noted
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    for fault in faults:
        if fault.split(":")[1:3] == [rank, "spare"]:
            _set_fault(fault, folder)
    stops = any(fault.startswith("stop") for fault in faults)
    options |= {"timeout": _TIMEOUT if stops else None}
    counts = None if faults else collections.Counter()

    def train(comm):
        while faults:
            fault = faults.pop()  # the first communicator has the ranks of the start
            is_here = int(fault.split(":")[1]) == comm.rank and not comm.lost_ranks
            _set_fault(fault, folder, is_here)
        if counts == {}:
            for moment in MOMENTS:
                _call_at(moment, functools.partial(counts.update, [moment]))
        if not comm.lost_ranks:
            _note(folder, "trains", f"{comm.rank}_{os.getpid()}")
        _train(name, folder, comm)

    _note(folder, "begun")
    run_elastic(train, **options, **_options(name))
    _note(folder, "done")
    if counts is not None:
        with open(os.path.join(folder, f"counts_{rank}.json"), "w") as file:
            json.dump(counts, file)
    if _uses_gpus[0]:
        for fault in sys.modules["cupy"].double.faults:
            print(FAULT, fault)


if __name__ == "__main__":
    main(*sys.argv[1:])
