"""Trains models with synchronized batch normalization, and prints how much N ranks differ from one.

``python -m tests.tools.critics`` trains a classifier, the two networks of WGAN-GP, a critic with an
R1 penalty, and a critic with a penalty on the gradient of that penalty, in float64: on 1, 2, 3 and
4 ranks with create_mnbn_model and create_multi_node_optimizer, and in one process without either.
The program fails if losses, parameters or running averages differ by more than 1e-12, relative to
the largest number of each array.

The four trainings need derivatives of first, second and third order, because training with a
penalty on a gradient needs derivatives of one order more.
"""

import argparse
import sys

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizers
from mpchain.configuration import using_config
from mpchain.distributed import create_communicator, create_multi_node_optimizer
from mpchain.distributed import functions as D
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.links import create_mnbn_model
from tests.distributed import ranks

LIMIT = 1e-12
N_SAMPLES = 10  # neither 3 nor 4 divides this number


class Critic(mpchain.Chain):
    """A critic with two convolutions. Biases before a normalization, and a critic's last bias, are
    omitted: no loss depends on the former, nor that of WGAN-GP on the latter, so their gradients
    would be rounding errors, which Adam turns into full steps."""

    def __init__(self, n_out=1):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(2, 4, 3, stride=2, pad=1, nobias=True)
            self.bn1 = L.BatchNormalization(4)
            self.conv2 = L.Convolution2D(4, 5, 3, nobias=True)
            self.bn2 = L.BatchNormalization(5)
            self.last = L.Linear(5, n_out, nobias=n_out == 1)

    def forward(self, x):
        h = F.leaky_relu(self.bn1(self.conv1(x)))
        return self.last(F.tanh(self.bn2(self.conv2(h))))


class Generator(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(3, 8, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.last = L.Linear(8, 2 * 6 * 6)

    def forward(self, z):
        return F.reshape(F.tanh(self.last(F.tanh(self.bn(self.first(z))))), (-1, 2, 6, 6))


class Training:
    """A training with the samples of all ranks, of which this rank has a part.

    Args:
        comm (Communicator): the ranks; None means one process without any classes for ranks.
    """

    def __init__(self, comm):
        self.comm = comm or Communicator()
        self.is_plain = comm is None
        self.losses = []
        self.models = []

    def set_up(self, model, **options):
        """Returns the model to train, and its optimizer."""
        optimizer = optimizers.Adam(1e-3, **options)
        if not self.is_plain:
            model = create_mnbn_model(model, self.comm)
            optimizer = create_multi_node_optimizer(optimizer, self.comm)
        self.models.append(model)
        return model, optimizer.setup(model)

    def part(self, *arrays):
        """Returns this rank's part of each array; on 3 and 4 ranks, the parts are uneven, and other
        ranks have the larger ones in the next step."""
        comm, n = self.comm, N_SAMPLES
        turn = (comm.rank + len(self.losses)) % comm.size
        begin, end = partition(n, turn, comm.size)
        self.share = (end - begin) / n
        return [x[begin:end] for x in arrays]

    def update(self, optimizer, loss, *arrays):
        def noted():
            value = loss(*arrays)
            self.losses.append(float(self.comm.allreduce(value.array * self.share)))
            return value

        if not self.is_plain:
            optimizer.n_samples = round(self.share * N_SAMPLES)
        optimizer.update(noted)

    def outcome(self):
        """Returns losses, parameters and running averages, in one dict of arrays."""
        arrays = {"losses": np.array(self.losses)}
        for i, model in enumerate(self.models):
            for name, param in model.namedparams():
                arrays[f"{i}{name}"] = param.array
            for name, link in model.namedlinks():
                if isinstance(link, L.BatchNormalization):
                    arrays |= {f"{i}{name}/mean": link.avg_mean, f"{i}{name}/var": link.avg_var}
        return arrays


def _samples(n_updates):
    random = np.random.RandomState(60)
    for _ in range(n_updates):
        yield (
            random.normal(0.5, 1, (N_SAMPLES, 2, 6, 6)),
            random.randint(0, 3, N_SAMPLES),
            random.normal(size=(N_SAMPLES, 3)),
            random.uniform(size=(N_SAMPLES, 1, 1, 1)),
        )


def classifier(training, n_updates):
    model, optimizer = training.set_up(Critic(3))

    def loss(x, t):
        return F.softmax_cross_entropy(model(x), t)

    for x, t, *_ in _samples(n_updates):
        training.update(optimizer, loss, *training.part(x, t))


def wgan_gp(training, n_updates):
    critic, critic_optimizer = training.set_up(Critic(), beta1=0, beta2=0.9)
    generator, generator_optimizer = training.set_up(Generator(), beta1=0, beta2=0.9)

    def critic_loss(x, z, u):
        with mpchain.no_backprop_mode():
            fake = generator(z).array
        between = mpchain.Variable(x + u * (fake - x))
        (gx,) = mpchain.grad([critic(between)], [between], enable_double_backprop=True)
        penalty = F.mean((F.sqrt(F.sum(gx**2, axis=(1, 2, 3))) - 1) ** 2)
        return F.mean(critic(fake)) - F.mean(critic(x)) + 10 * penalty

    def generator_loss(z):
        return -F.mean(critic(generator(z)))

    for x, _, z, u in _samples(n_updates):
        x, z, u = training.part(x, z, u)
        training.update(critic_optimizer, critic_loss, x, z, u)
        training.update(generator_optimizer, generator_loss, z)


def _r1(critic, x):
    """Returns the critic's output for real samples, and the mean of the squared norms of its
    gradient."""
    x = mpchain.Variable(x)
    y = critic(x)
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    return y, F.sum(gx**2) / len(x)


def r1(training, n_updates):
    critic, optimizer = training.set_up(Critic())

    def loss(x, fake):
        y, penalty = _r1(critic, x)
        return F.mean(F.softplus(critic(fake))) + F.mean(F.softplus(-y)) + 5 * penalty

    for x, *_, u in _samples(n_updates):
        training.update(optimizer, loss, *training.part(x, np.tanh(x) * u))


def penalized_penalty(training, n_updates):
    """Trains with a penalty on the squared norm of the gradient that the R1 penalty of all samples
    has in four of the parameters."""
    critic, optimizer = training.set_up(Critic())

    def loss(x):
        y, penalty = _r1(critic, x)
        params = [critic.conv1.W, critic.bn1.gamma, critic.conv2.W, critic.last.W]
        mine = mpchain.grad([penalty * training.share], params, enable_double_backprop=True)
        norm = sum(F.sum(D.allreduce(training.comm, g) ** 2) for g in mine)
        return F.mean(F.softplus(-y)) + penalty + 0.01 * norm

    for x, *_ in _samples(n_updates):
        training.update(optimizer, loss, *training.part(x))


PROGRAMS = {f.__name__: f for f in (classifier, wgan_gp, r1, penalized_penalty)}


def train(name, comm, n_updates=20):
    """Runs one of the programs; returns :meth:`Training.outcome`."""
    np.random.seed(61)
    with using_config("dtype", np.dtype("float64")):
        training = Training(comm)
        PROGRAMS[name](training, n_updates)
    return training.outcome()


def difference(outcome, reference):
    """Returns the largest difference of an element, relative to the largest element of its
    array."""
    assert outcome.keys() == reference.keys()
    return max(
        np.abs(outcome[name] - expected).max() / np.abs(expected).max()
        for name, expected in reference.items()
    )


def compare(comm, n_updates=20):
    """Yields each program's name, and how much the ranks differ from one process."""
    for name in PROGRAMS:
        reference = train(name, None, n_updates)
        yield name, max(comm.allgather_obj(difference(train(name, comm, n_updates), reference)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--compare", action="store_true", help="compare as one of the ranks")
    args = parser.parse_args()
    if args.compare:
        comm = create_communicator()
        for name, greatest in compare(comm, args.updates):
            if comm.rank == 0:
                print(f"{comm.size} rank(s)  {name:18} {greatest:.1e}", flush=True)
            if not greatest <= LIMIT:
                sys.exit(f"the greatest difference is above {LIMIT:.0e}")
        return
    for n_ranks in args.ranks:
        print(run(n_ranks, args.updates), end="")


def run(n_ranks, n_updates, timeout=600):
    """Runs the comparison on ``n_ranks`` ranks; returns its output, or exits with its error."""
    command = ["-m", "tests.tools.critics", "--compare", f"--updates={n_updates}"]
    status, outputs, own_output = ranks.run(n_ranks, command, timeout=timeout)
    if status != 0:
        sys.exit(ranks.report(status, outputs, own_output))
    return outputs[0]


if __name__ == "__main__":
    main()
