"""Tests the number of MPI calls in an iteration of a trainer."""

import collections
import itertools
import threading

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import optimizer_hooks, optimizers, reporter
from mpchain.distributed import (
    MultiNodeUpdater,
    create_multi_node_optimizer,
    create_sharded_iterator,
    create_sharded_optimizer,
)
from mpchain.distributed.communicators import MpiCommunicator
from mpchain.iterators import SerialIterator
from mpchain.training import Trainer
from tests.distributed.communicators.test_hosts import HOSTS
from tests.models import MLP

N_FIRST, N_COUNTED = 3, 5
N_UNITS = 5000
LOCAL = {"Is_inter", "Is_intra", "Get_rank", "Get_size", "Get_group", "Free", "py2f", "Clone"}


def counting_class(calls):
    """Returns a class of MPI communicators that counts the main thread's calls of its methods by
    name, and the bytes of Isend."""
    from mpi4py import MPI

    def counted(name):
        def call(self, *args, **kwargs):
            if threading.current_thread() is threading.main_thread():
                calls[name] += 1
                calls["bytes"] += args[0].nbytes if name == "Isend" else 0
            return getattr(MPI.Intracomm, name)(self, *args, **kwargs)

        return call

    names = {
        name
        for name in dir(MPI.Intracomm)
        if not name.startswith("_") and callable(getattr(MPI.Intracomm, name)) and name not in LOCAL
    }
    return type("Counting", (MPI.Intracomm,), {name: counted(name) for name in names})


@pytest.fixture(params=["one host", "a host each", "pairs"])
def counted(request, comm, split_hosts):
    """Returns a communicator on the given imitated hosts, and a counter of its MPI calls."""
    if comm.mpi_comm is None:
        pytest.skip("needs MPI")
    calls = collections.Counter()
    mpi_comm = counting_class(calls)(comm.mpi_comm)
    split_hosts(HOSTS[request.param])
    with MpiCommunicator(mpi_comm) as made:
        yield made, calls


def train(comm, calls, folder, create=create_multi_node_optimizer, n_values=2, n_units=4):
    """Returns the calls in each iteration after the first iterations."""
    model = MLP(n_units=n_units)

    def loss(x):
        loss = F.mean(model(x) ** 2)
        reporter.report({f"value_{i}": loss * i for i in range(n_values)}, model)
        return loss

    optimizer = create(optimizers.SGD(), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    data = list(np.random.RandomState(0).standard_normal((1200, 3)).astype("f"))
    batches = create_sharded_iterator(SerialIterator(data, 12), comm)
    updater = MultiNodeUpdater(batches, optimizer, comm, loss_func=loss)
    trainer = Trainer(updater, (N_FIRST + N_COUNTED, "iteration"), folder)
    of_iterations = []

    @trainer.extend
    def note(trainer):
        of_iterations.append(collections.Counter(calls))

    trainer.run()
    assert f"main/value_{n_values - 1}" in trainer.observation
    counted = of_iterations[N_FIRST:]
    return [after - before for before, after in itertools.pairwise(counted)]


def test_calls_of_a_trainer(counted, folder):
    """On one host there are no calls; between hosts there is one sum of the bucket, and one sum of
    all other data."""
    comm, calls = counted
    n_hosts = comm.inter_size
    n_messages = 2 * 2 * (n_hosts - 1)
    for of_iteration in train(comm, calls, folder):
        of_iteration = +of_iteration
        assert set(of_iteration) <= {"Isend", "Irecv", "bytes"}
        assert of_iteration["Isend"] == of_iteration["Irecv"]
        assert of_iteration["Isend"] in (n_messages, 0)
        assert n_hosts == 1 or comm.intra_size > 1 or of_iteration["Isend"] > 0


def test_calls_of_a_sharded_optimizer(counted, folder):
    """On one host there are no calls. Between hosts, pieces of the bucket and of the parameters are
    sent, which are as many messages as the sum of the bucket; one more sum contains all other data
    and the norm for clipping."""
    comm, calls = counted
    n_hosts = comm.inter_size
    for of_iteration in train(comm, calls, folder, create_sharded_optimizer):
        assert set(+of_iteration) <= {"Isend", "Irecv", "bytes"}
        n_all = sum(comm.allgather_obj(of_iteration["Isend"]))
        assert n_all <= 2 * 2 * (n_hosts - 1) * max(map(len, comm.hosts)) * n_hosts
        assert n_hosts > 1 or n_all == 0


@pytest.mark.parametrize("create", [create_multi_node_optimizer, create_sharded_optimizer])
def test_bytes_between_hosts(counted, folder, create):
    """Both optimizers send equally many bytes between hosts: a sharded one sends gradients and new
    parameters, the other one gradients and their sums."""
    comm, calls = counted
    n_bytes = 4 * sum(param.size for param in MLP(n_units=N_UNITS).params())
    small = 10_000  # the size of the other messages and the norm for clipping
    for of_iteration in train(comm, calls, folder, create, n_units=N_UNITS):
        n_all = sum(comm.allgather_obj(of_iteration["bytes"]))
        assert n_all <= 2 * n_bytes * (comm.inter_size - 1) + small
        assert n_all >= 2 * n_bytes * (comm.inter_size - 1)
