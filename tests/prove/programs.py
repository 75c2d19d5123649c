"""A small program in which faults are planted, and a function that runs ``mpchain-launch
prove``."""

import re
import subprocess
import sys

from tests.distributed import ranks

PROGRAM = """
import random
import numpy as np
import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import distributed, iterators, optimizers, training
from mpchain.training import extensions

np.random.seed(0)
random.seed(0)
comm = mpchain.create_communicator()
rng = np.random.RandomState(1)
X = rng.randn(64, 5).astype(np.float32)
T = rng.randint(0, 3, 64).astype(np.int32)
M = (rng.rand(64) < 0.4).astype(np.float32)
{data}

class Net(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(5, 8)
            self.l2 = L.Linear(8, 3)
            {links}

    def forward(self, x):
        h = F.tanh(self.l1(x))
        {hidden}
        {output}


def loss(x, t, m):
    y = net(x)
    l = F.softmax_cross_entropy(y, t, reduce="no")
    {losses}
    return F.mean(l)


net = Net()
actual = {optimizer}
optimizer = mpchain.create_multi_node_optimizer(actual, comm).setup(net)
{setup}
{loop}
"""

OWN_LOOP = """
for step in range(10):
    indices = rng.permutation(64)[:13]
    {indices}
    with comm.batch(len(indices)) as mine:
        mine = indices[mine]
        {before}
        optimizer.update(loss, X[mine], T[mine], M[mine])
    {after}
"""

UPDATER = """
data = list(zip(X, T, M))
batches = iterators.SerialIterator(data, 13)
batches = distributed.create_sharded_iterator(batches, comm)
updater = distributed.MultiNodeUpdater(batches, optimizer, comm, loss_func=loss)
trainer = training.Trainer(updater, (10, "iteration"), out={out!r})
{after}
trainer.run()
"""

SCATTERED = """
data = distributed.scatter_dataset(list(zip(X, T, M)), comm, shuffle=True, seed=2)
batches = iterators.SerialIterator(data, 6)
updater = training.StandardUpdater(batches, optimizer, loss_func=loss)
{before}
for step in range(10):
    updater.update()
    {after}
"""

BACKWARD = """
for step in range(10):
    indices = rng.permutation(64)[:12]
    with comm.batch(len(indices)) as mine:
        mine = indices[mine]
        net.cleargrads()
        l = loss(X[mine], T[mine], M[mine])
        l.backward()
        {before}
        optimizer.update()
    {after}
"""

GAN = """
class Critic(mpchain.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(3, 4)
            self.l2 = L.Linear(4, 1)

    def forward(self, x):
        return self.l2(F.tanh(self.l1(x)))


critic = Critic()
second = {second}.setup(critic)


def critic_loss(x, y):
    return F.mean(F.softplus(-critic(y))) + F.mean(F.softplus(critic(net(x))))


def generator_loss(x):
    {generator}
    return F.mean(F.softplus(-critic(net(x))))


Y = rng.randn(64, 3).astype(np.float32)
for step in range(10):
    with comm.batch(12) as mine:
        mine = rng.permutation(64)[:12][mine]
        second.update(critic_loss, X[mine], Y[mine])
        optimizer.update(generator_loss, X[mine])
"""

SLOTS = {
    "data": "",
    "links": "",
    "hidden": "",
    "output": "return self.l2(F.dropout(h))",
    "losses": "",
    "optimizer": "optimizers.Adam(0.01)",
    "setup": "",
    "indices": "",
    "before": "",
    "after": "",
    "second": "mpchain.create_multi_node_optimizer(optimizers.SGD(0.1), comm)",
    "generator": "",
    "between": "",
    "out": "result",
}


def program(loop=OWN_LOOP, **slots):
    """Returns the text of the program, with other lines in some of its slots."""
    text = PROGRAM.replace("{loop}", loop)
    for name, lines in (SLOTS | slots).items():
        pattern = re.compile(rf"^( *)(.*)\{{{name}(!r)?\}}(.*)$", re.MULTILINE)

        def put(match, lines=lines):
            indent, start, is_text, end = match.groups()
            text = repr(lines) if is_text else lines.strip("\n").replace("\n", "\n" + indent)
            return f"{indent}{start}{text}{end}".rstrip()

        text = pattern.sub(put, text)
    return text


def prove(path, n=2, *options, arguments=(), folder=None, timeout=400):
    """Runs ``mpchain-launch prove``; returns its exit code and its output."""
    command = [sys.executable, "-m", "launch", "prove", "-n", str(n), *options, str(path)]
    result = subprocess.run(
        [*command, *map(str, arguments)],
        env=ranks.environment(),
        cwd=folder or path.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr
