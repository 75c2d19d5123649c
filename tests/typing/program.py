"""A typed program: links, functions, training and extensions, on one process or several ranks.

basedpyright, which .ci/run calls, checks this file in strict mode. What it must refuse is in
``wrong_variants``: a comment that ignores an error is itself an error if there is none to ignore.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import contextlib
from types import TracebackType

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, training
from mpchain.distributed import create_multi_node_optimizer, scatter_dataset
from mpchain.serializer import AbstractSerializer
from mpchain.training import Trainer, extensions
from mpchain.typing import Array, Arrays, Input, Output


class Perceptron(mpchain.Chain):
    def __init__(self, n_hidden: int, n_out: int) -> None:
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(None, n_hidden)
            self.out = L.Linear(n_hidden, n_out)

    def forward(self, x: Input) -> Variable:
        return self.out(F.relu(self.hidden(x)))


class Scaled(mpchain.Link):
    """A link with its own parameter, and a value that is saved with it."""

    n_calls: int

    def __init__(self, size: int) -> None:
        super().__init__()
        with self.init_scope():
            self.scale = mpchain.Parameter(mpchain.initializers.One(), (size,))
        self.add_persistent("n_calls", 0)

    def forward(self, x: Input) -> Variable:
        self.n_calls += 1
        return F.broadcast_to(self.scale, x.shape) * x


def layers(n: int) -> mpchain.ChainList:
    return mpchain.ChainList(*[L.Linear(4, 4) for _ in range(n)])


def leaky_derivative(g: Variable, x: Variable, slope: float) -> Variable:
    return g * np.where(np.greater(x, 0), 1, slope)


@mpchain.elementwise(leaky_derivative)
def leaky(x: Input, slope: float = 0.5) -> Output:
    return np.where(np.greater(x, 0), x, x * slope)


def total_derivative(g: Variable, x_shape: tuple[int, ...]) -> Variable:
    return F.broadcast_to(g, x_shape)


@mpchain.differentiable(total_derivative)
def total(x: Input) -> Output:
    return np.sum(x)


def squared_difference(x: Input, y: Input) -> Variable:
    return F.sum((F.reshape(x, (-1,)) - F.reshape(y, (-1,))) ** 2)


class Cube(mpchain.FunctionNode):
    def forward(self, inputs: Arrays) -> Arrays:
        (x,) = inputs
        assert x is not None
        self.retain_inputs((0,))
        return (x**3,)

    def backward(
        self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Variable | None, ...]
    ) -> tuple[Variable | None, ...]:
        (x,) = self.get_retained_inputs()
        (g,) = grad_outputs
        return (None if g is None else g * 3 * x**2,)


def train_by_trainer(n_epochs: int) -> float:
    comm = mpchain.create_communicator()
    model = L.Classifier(Perceptron(10, 3))
    optimizer = create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm)
    optimizer.setup(model)
    x = np.zeros((12, 4), np.float32)
    dataset = scatter_dataset(datasets.TupleDataset(x, np.arange(12) % 3), comm)
    iterator = iterators.SerialIterator(dataset, 4)
    trainer = training.Trainer(
        training.updaters.StandardUpdater(iterator, optimizer), (n_epochs, "epoch"), out="result"
    )
    if comm.rank == 0:
        trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
        trainer.extend(extensions.snapshot(), trigger=(1, "epoch"))
    trainer.run()
    return float(comm.allreduce_obj(comm.rank))


class StopAtLoss(training.Extension):
    """An extension that stores a state and gets errors."""

    trigger = (1, "iteration")
    priority = training.PRIORITY_READER

    def __init__(self, limit: float) -> None:
        self.limit, self.n_low = limit, 0

    def initialize(self, trainer: Trainer) -> None:
        self.n_low = 0

    def __call__(self, trainer: Trainer) -> None:
        loss = float(trainer.observation["main/loss"])
        self.n_low += loss < self.limit

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        print(f"iteration {trainer.updater.iteration}: {exc}")

    def serialize(self, serializer: AbstractSerializer) -> None:
        self.n_low = serializer("n_low", self.n_low)


@training.make_extension(trigger=(1, "epoch"))
def show_epoch(trainer: Trainer) -> None:
    print(trainer.updater.epoch)


def extend(trainer: Trainer, model: mpchain.Link, test: iterators.SerialIterator) -> None:
    trainer.extend(StopAtLoss(0.1))
    trainer.extend(show_epoch)
    trainer.extend(lambda t: print(t.updater.iteration), trigger=(10, "iteration"), name="count")
    trainer.extend(extensions.Evaluator(test, model), trigger=(1, "epoch"))
    trainer.extend(extensions.PrintReport(["epoch", "main/loss"]))


def train_by_own_loop(n_steps: int) -> list[float]:
    model, losses = Perceptron(5, 1), list[float]()
    optimizer = optimizers.SGD(lr=0.1).setup(model)
    for _ in range(n_steps):
        loss = F.mean_squared_error(model(np.ones((2, 3), np.float32)), np.zeros((2, 1), "f"))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses


def cube(x: Input) -> Variable:
    return Cube().apply((x,))[0]


def second_derivative(x: Variable) -> Variable | None:
    (g,) = mpchain.grad([cube(x)], [x], enable_double_backprop=True)
    assert g is not None
    (h,) = mpchain.grad([g], [x])
    return h


def sum_over_ranks(comm: mpchain.CommunicatorBase, x: Array) -> Array:
    return comm.allreduce(x)


def exchange(comm: mpchain.CommunicatorBase, model: mpchain.Link, x: Array) -> list[Array]:
    comm.bcast_data(model)
    comm.multi_node_mean_grad(model, zero_fill=True)
    request = comm.iallreduce(x)
    while not request.Test():
        pass
    comm.barrier()
    neighbor = (comm.rank + 1) % comm.size
    received = comm.sendrecv(x, neighbor, neighbor)
    assert received is not None  # a rank is the source, so an array arrives
    return [*comm.allgather(received), comm.bcast(x if comm.rank == 0 else None)]


def update_own_part(
    comm: mpchain.CommunicatorBase, optimizer: mpchain.Optimizer, model: Perceptron, x: Array
) -> None:
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(comm.batch(len(x)))
        optimizer.update(lambda: squared_difference(model(x[mine]), x[mine]))


def wrong_variants(model: Perceptron, comm: mpchain.CommunicatorBase) -> None:
    F.no_such_function(1)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    L.Linear("3", 4)  # pyright: ignore[reportArgumentType]
    F.relu()  # pyright: ignore[reportCallIssue]
    optimizers.SGD().setup("model")  # pyright: ignore[reportArgumentType]
    iterators.SerialIterator([1], "4")  # pyright: ignore[reportArgumentType]
    training.Trainer(None, (1, "epoch"))  # pyright: ignore[reportArgumentType]
    comm.allreduce_obj()  # pyright: ignore[reportCallIssue]
    comm.send_obj(1)  # pyright: ignore[reportCallIssue]
    model.cleargrads(1)  # pyright: ignore[reportCallIssue]
    model.forward("x")  # pyright: ignore[reportArgumentType]
    leaky("x")  # pyright: ignore[reportArgumentType]
    leaky(np.ones(3)).no_such_attribute  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    comm.bcast_data("model")  # pyright: ignore[reportArgumentType]
    extensions.LogReport(trigger="epoch")  # pyright: ignore[reportArgumentType]
    n: int = F.sum(np.ones(3))  # pyright: ignore[reportAssignmentType]
    print(n)
