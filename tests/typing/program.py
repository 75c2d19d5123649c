"""A typed program: a link, a function and a trainer, on one process or several ranks.

basedpyright reads this in strict mode, as .ci/run does. What it must refuse is in
``wrong_variants``: there, a comment that ignores an error is an error itself if there is none.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, training
from mpchain.distributed import create_multi_node_optimizer, scatter_dataset
from mpchain.training import extensions
from mpchain.typing import Array, Arrays, Input


class Perceptron(mpchain.Chain):
    def __init__(self, n_hidden: int, n_out: int) -> None:
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(None, n_hidden)
            self.out = L.Linear(n_hidden, n_out)

    def forward(self, x: Input) -> Variable:
        return self.out(F.relu(self.hidden(x)))


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
    n: int = F.sum(np.ones(3))  # pyright: ignore[reportAssignmentType]
    print(n)
