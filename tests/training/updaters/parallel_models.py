"""Models and datasets that the processes of tests of parallel updaters can import."""

import os
import signal
import sys

import numpy as np

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain.dataset import concat_examples
from mpchain.datasets import TupleDataset
from mpchain.initializers import LeCunNormal
from mpchain.iterators import SerialIterator

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
T = RNG.normal(size=(60, 2))


class Regression(mpchain.Chain):
    """A model of two layers in float64, whose loss is the mean over the samples. It also reports
    the mean of the inputs, and an array."""

    def __init__(self, n_in=3):
        super().__init__()
        with mpchain.using_config("dtype", np.float64), self.init_scope():
            # The dtype is explicit, because without n_in the weights are made later, under
            # another configuration.
            self.first = L.Linear(n_in, 5, initialW=LeCunNormal(dtype=np.float64))
            self.second = L.Linear(5, 2)
            self.unused = L.Linear(2, 2)
            for link in self.children():
                if link.W.is_initialized:
                    initialize(link)

    def forward(self, x, t):
        error = self.second(F.tanh(self.first(x))) - t
        loss = F.sum(error**2) / len(x)
        mpchain.report({"loss": loss, "x": x.mean(), "array": np.zeros(2)}, self)
        return loss

    def weighted(self, x, t):
        mpchain.report({"weighted": (1.0, len(x))}, self)
        return 2 * self.forward(x, t)


def initialize(link):
    random = np.random.RandomState(link.W.shape[0])
    link.W.array[...] = random.normal(size=link.W.shape)
    link.b.array[...] = random.normal(size=link.b.shape)


def parameters(model):
    return {
        name: param.array.copy() for name, param in model.namedparams() if param.array is not None
    }


def assert_close(actual, expected, rtol=1e-12):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=1e-15, err_msg=name)


def iterator(begin, end, batch_size, **options):
    return SerialIterator(TupleDataset(X[begin:end], T[begin:end]), batch_size, **options)


class Fails:
    """A converter that fails in another process, at the batch with the given number."""

    def __init__(self, how, at=2):
        self.how, self.at, self.n = how, at, 0
        self.process = os.getpid()

    def __call__(self, batch, device):
        self.n += os.getpid() != self.process
        if self.n == self.at:
            if self.how == "raise":
                raise ValueError("bad batch")
            if self.how == "exit":
                sys.exit(7)
            os.kill(os.getpid(), signal.SIGKILL)
        return concat_examples(batch, device)


class FailsToArrive(SerialIterator):
    """An object that another process cannot create."""

    def __setstate__(self, state):
        raise ValueError("does not arrive")


class Noting:
    """A converter that makes a file whose name is the ID of the process."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self, batch, device):
        open(os.path.join(self.folder, str(os.getpid())), "w").close()
        return concat_examples(batch, device)


class Unsummable(Regression):
    """A model whose unused layer has a gradient in the processes whose first input is negative."""

    def forward(self, x, t):
        loss = super().forward(x, t)
        if x[0, 0] < 0:
            loss += F.sum(self.unused(t)) / len(x)
        return loss
