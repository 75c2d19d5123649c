"""Tests that a failing rank ends the job, so that the other ranks do not wait forever."""

import tempfile

import numpy as np
import pytest

from tests.distributed import ranks
from tests.tools import faults

pytestmark = pytest.mark.slow

BEGIN = """
import os, signal
import numpy as np
from mpchain.distributed import create_communicator

comm = create_communicator()
comm.allreduce(np.ones(3))
"""

WAITS = [
    pytest.param("comm.iallreduce(np.ones(10**6)).Wait()", id="sum pending"),
    pytest.param("comm.gather_obj(1)", id="object", marks=pytest.mark.long),
]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    "exception",
    ["KeyError('lost')", pytest.param("KeyboardInterrupt()", marks=pytest.mark.long)],
)
def test_a_rank_raises(exception, wait, needs_mpirun):
    script = f"{BEGIN}\nif comm.rank == 1:\n    raise {exception}\n{wait}\n"
    # Without mpi4py's runner, the communicator's own hook must end the ranks.
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    assert status not in (0, None), ranks.report(status, outputs, own_output)
    assert outputs[0] == ""
    assert outputs[1].startswith("rank 1 of 2:\nTraceback")
    assert "\n" + exception.split("(")[0] in outputs[1]


TRAIN = """
import mpchain
from mpchain import functions as F, links as L, optimizers, training
from mpchain.distributed import (
    MultiNodeUpdater, create_multi_node_optimizer, create_sharded_iterator
)
from mpchain.iterators import SerialIterator
from mpchain.training import extensions


class Data(mpchain.dataset.DatasetMixin):
    def __len__(self):
        return 40

    def get_example(self, i):
        if comm.rank == 1 and updater.iteration == 15:
            {failure}
        return np.full(3, i, np.float32), np.full(1, i % 2, np.float32)


model = L.Classifier(L.Linear(None, 1), F.mean_squared_error)
model.compute_accuracy = False
optimizer = create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
iterator = create_sharded_iterator(SerialIterator(Data(), 4), comm)
updater = MultiNodeUpdater(iterator, optimizer, comm)
trainer = training.Trainer(updater, (5, "epoch"), out=r"{folder}")
if comm.rank == 0:
    trainer.extend(extensions.snapshot(), trigger=(1, "epoch"))
trainer.run()
"""


@pytest.mark.long
@pytest.mark.parametrize("failure", ["raise KeyError(i)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_in_the_middle_of_an_epoch(failure, needs_mpirun, tmp_path):
    script = BEGIN + TRAIN.format(failure=failure, folder=tmp_path)
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    assert status not in (0, None), ranks.report(status, outputs, own_output)
    if failure.startswith("raise"):
        assert "rank 1 of 2:\nTraceback" in outputs[1]
        assert "KeyError" in outputs[1]
    # One epoch was completed and saved, and no incomplete file exists under any name.
    found = (path for path in tmp_path.iterdir() if path.suffix != ".lock")
    (file,) = (path for path in found if path.name != "flight_recorder.txt")
    assert file.name == "snapshot_iter_10"
    with np.load(file) as arrays:
        assert arrays["updater/iteration"] == 10


@pytest.mark.parametrize("wait", WAITS)
def test_a_rank_is_killed(wait, needs_mpirun):
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    script = f"{BEGIN}\nif comm.rank == 1:\n    {kill}\n{wait}\n"
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    assert status not in (0, None), ranks.report(status, outputs, own_output)


@pytest.mark.long
def test_the_time_limit_of_these_tests_ends_all_ranks(needs_mpirun, has_ended):
    wait = "if comm.rank == 0:\n    comm.barrier()\nelse:\n    signal.pause()\n"
    script = f"{BEGIN}\nprint(os.getpid(), flush=True)\n{wait}"
    for timeout in (6, 60):  # on a busy machine, it takes longer until both ranks have begun
        status, outputs, _ = ranks.run(2, ["-c", script], timeout=timeout)
        assert status is None
        if all(outputs):
            break
    assert all(has_ended(int(output)) for output in outputs)


@pytest.fixture(scope="module")
def expected():
    """Returns the losses of an undisturbed training."""
    if reason := ranks.why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        return faults.losses_of(faults.run(1, folder))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "n_after"),
    [
        ("raise in a thread", 2),
        ("stop", 3),
        ("do not come", 1),
        ("other shape", 1),
        ("no room on the disk", 1),
    ],
)
def test_training_goes_on_after(name, n_after, expected):
    """``python -m tests.tools.faults`` makes this check many times, at random moments."""
    plan = {"rank": 1, "iteration": 8, "delay": 0.001}
    faults.check(name, 2, n_after, 2, expected, plan)


@pytest.mark.long
def test_ranks_that_send_to_each_other_are_reported_at_once(needs_mpirun):
    script = (
        f"{BEGIN}\nimport mpchain\nfrom mpchain.distributed.functions import recv, send\n"
        "x, other = mpchain.Variable(np.ones(1)), 1 - comm.rank\n"
        "send(comm, x, other)\nrecv(comm, other)\n"
    )
    status, outputs, own_output = ranks.run(2, ["-c", script], timeout=120)
    assert status not in (0, None), ranks.report(status, outputs, own_output)
    assert "ranks 0-1 wait for each other, so that none of them can continue" in "".join(outputs)
    assert "waiting in send to rank 1" in "".join(outputs)
