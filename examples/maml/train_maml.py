"""Trains initial parameters for fast adaptation to sine waves: model-agnostic meta-learning (MAML).

    python train_maml.py                        one process
    mpchain-launch -n 2 train_maml.py           two ranks, the same numbers

A task is a sine wave with its own height and phase. The network adapts to five of its points with
gradient steps. The initial parameters are trained to minimize the loss after these steps, which
needs the gradient of a function of gradients. Each rank computes its part of the tasks.

See C. Finn et al., Model-agnostic meta-learning for fast adaptation of deep networks, ICML 2017.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class Net(mpchain.ChainList):
    """A network that computes with given parameters, which may differ from its own."""

    def __init__(self, n_units: int):
        super().__init__(L.Linear(1, n_units), L.Linear(n_units, n_units), L.Linear(n_units, 1))

    def forward(self, x: Array, parameters: list[Variable]) -> Variable:
        """Returns predictions (N, 1) for x (N, 1) with weights and biases W1, b1, W2, b2, ..."""
        h = x
        for i in range(0, len(parameters), 2):
            h = F.linear(h if i == 0 else F.tanh(h), *parameters[i : i + 2])
        return h

    def parameters(self) -> list[Variable]:
        return [parameter for layer in self for parameter in (layer.W, layer.b)]


class Maml(mpchain.Chain):
    """Computes the loss after adaptation, and reports the losses before and after adaptation."""

    def __init__(self, net: Net, lr: float, n_steps: int, first_order: bool):
        super().__init__()
        self.lr, self.n_steps, self.first_order = lr, n_steps, first_order
        with self.init_scope():
            self.net = net

    def adapt(self, x: Array, y: Array, create_graph: bool) -> list[Variable]:
        """Returns parameters after steps of gradient descent on points x, y (N, 1)."""
        parameters = self.net.parameters()
        for _ in range(self.n_steps):
            loss = F.mean_squared_error(self.net(x, parameters), y)
            gradients = mpchain.grad([loss], parameters, enable_double_backprop=create_graph)
            parameters = [p - self.lr * g for p, g in zip(parameters, gradients)]
        return parameters

    def forward(self, x: Array, y: Array) -> Variable:
        """Returns the mean loss over tasks, x and y (tasks, 2, points, 1).

        The first set of a task's points is for adaptation, the second set for the loss.
        """
        before, after = 0, 0
        for (x_adapt, x_new), (y_adapt, y_new) in zip(x, y):
            parameters = self.adapt(x_adapt, y_adapt, create_graph=not self.first_order)
            after += F.mean_squared_error(self.net(x_new, parameters), y_new) / len(x)
            unadapted = self.net(x_new, self.net.parameters()).array
            before += float(((unadapted - y_new) ** 2).mean()) / len(x)
        mpchain.report({"before": before, "after": after}, self)
        return after


def draw_tasks(n: int, n_points: int, seed: int) -> list[tuple[Array, Array]]:
    """Returns tasks: pairs of arrays x and y (2, n_points, 1), float32."""
    random = np.random.RandomState(seed)
    height = random.uniform(0.5, 2, (n, 1, 1, 1))
    phase = random.uniform(0, np.pi, (n, 1, 1, 1))
    x = random.uniform(-3, 3, (n, 2, n_points, 1))
    y = height * np.sin(x + phase)
    return list(zip(x.astype(np.float32), y.astype(np.float32)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=10, help="passes over 1000 tasks")
    parser.add_argument("--batchsize", type=int, default=20, help="tasks in a global batch")
    parser.add_argument("--points", type=int, default=5, help="points for the adaptation")
    parser.add_argument("--steps", type=int, default=2, help="steps of the adaptation")
    parser.add_argument("--inner-lr", type=float, default=0.05, help="learning rate of adaptation")
    parser.add_argument("--first-order", action="store_true", help="omit second derivatives")
    parser.add_argument("--units", type=int, default=40, help="units of the hidden layers")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with few tasks")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 2, 4, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    tasks = draw_tasks(12 if args.test else 1000, args.points, seed=1)
    new_tasks = draw_tasks(8 if args.test else 100, args.points, seed=2)
    train_iter = iterators.SerialIterator(tasks, args.batchsize)
    test_iter = iterators.SerialIterator(new_tasks, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = Maml(Net(args.units), args.inner_lr, args.steps, args.first_order).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=2e-3), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    # Adaptation needs gradients in the evaluation, too.
    def evaluate(x: Array, y: Array) -> None:
        with mpchain.force_backprop_mode():
            model(x, y)

    evaluator = extensions.Evaluator(test_iter, model, device=device, eval_func=evaluate)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/before", "main/after"]
    columns += ["validation/main/before", "validation/main/after", "elapsed_time"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
