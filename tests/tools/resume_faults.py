"""Kills trainings and lets them fail to read their checkpoints, and checks how they resume.

``python -m tests.tools.resume_faults --kills 200 --io-errors 20`` trains a small network and saves
a checkpoint after each iteration, on 1, 2, and changing numbers of ranks.

- Ranks are killed (SIGKILL; all of them, or one) at random moments, and the training is started
  again until it is done.
- When a training is started again, opening a file of a checkpoint fails on some rank: with EIO,
  ESTALE or EMFILE, after which the job must end with a message that names rank and file, or with
  ENOENT for a second, which a job may survive. Then the training is started again.

In the end, each training must have the same bits as an undisturbed training, must have resumed from
the latest checkpoint each time, and no checkpoint may be lost or renamed.
"""

import argparse
import builtins
import collections
import errno
import hashlib
import io
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import iterators, optimizers, training
from mpchain.distributed import (
    MultiNodeUpdater,
    create_communicator,
    create_sharded_iterator,
    create_sharded_optimizer,
)
from mpchain.distributed.checkpoints import layout
from mpchain.distributed.extensions import checkpoint
from mpchain.distributed.links import MultiNodeBatchNormalization
from tests.distributed import ranks
from tests.models import MLP

N_ITERATIONS = 30
SIZES = {"1 rank": [1], "2 ranks": [2], "1 to 3 ranks": [1, 2, 3]}
ERRORS = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOENT]

# The following functions run on each rank.


class Network(MLP):
    """A network with dropout and, if one is given, a kind of normalization."""

    def __init__(self, comm, normalization=None):
        link = None
        if normalization == "batch":
            link = L.BatchNormalization(8)
        elif normalization == "multi-node":
            link = MultiNodeBatchNormalization(8, comm)
        super().__init__(5, 0.3, 8, normalization=link)

    def forward(self, x, t):
        loss = F.mean_squared_error(super().forward(x), t)
        mpchain.report({"loss": loss}, self)
        return loss

    def digest(self):
        """Returns a text that is equal only if all parameters and persistent values have the same
        bits."""
        values = mpchain.serializers.DictionarySerializer()
        values.save(self)
        content = b"".join(name.encode() + x.tobytes() for name, x in sorted(values.target.items()))
        return hashlib.sha256(content).hexdigest()


def train(folder, plan):
    """Trains on a rank, from the latest checkpoint if there is one.

    Args:
        folder: the folder of checkpoints and results.
        plan (dict): ``kill``, the number of seconds before a kill, and the rank (None means all
            ranks); ``error``, the arguments of :class:`FailingFiles`; ``until``, the number of
            iterations; ``reproducible``; the ``normalization`` of the network. Empty for no fault.
    """
    begun = time.monotonic()
    comm = create_communicator(reproducible=plan.get("reproducible", True))
    if "kill" in plan:
        delay, rank = plan["kill"]
        if rank in (None, comm.rank):
            threading.Timer(delay, os.kill, [os.getpid(), signal.SIGKILL]).start()
    if "error" in plan:
        FailingFiles(comm, folder, **plan["error"]).install()
    mpchain.global_config.dtype = np.dtype(np.float64)
    np.random.seed(0)
    drawn = np.random.RandomState(1)
    data = list(zip(drawn.randn(50, 5), drawn.randn(50, 2), strict=True))
    model = Network(comm, plan.get("normalization"))
    optimizer = create_sharded_optimizer(optimizers.MomentumSGD(0.05), comm).setup(model)
    iterator = create_sharded_iterator(iterators.SerialIterator(data, 12), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    trainer = training.Trainer(updater, (plan.get("until", N_ITERATIONS), "iteration"), out=folder)
    losses = {}

    @training.make_extension(trigger=(1, "iteration"))
    def note(trainer):
        losses[updater.iteration] = float(trainer.observation["main/loss"])

    trainer.extend(note)
    trainer.extend(checkpoint(comm, n_retains=2), trigger=(1, "iteration"))
    trainer.run(show_loop_exception_msg=False)
    if comm.rank == 0:
        seconds = time.monotonic() - begun
        result = {"digest": model.digest(), "losses": losses, "seconds": seconds}
        print("result", json.dumps(result))


class FailingFiles:
    """Makes a rank fail to open a file, or to list a folder, of checkpoints.

    Args:
        comm (Communicator): the ranks.
        folder: the folder of the training; its file ``failed`` names the file that was not opened.
        rank (int): the rank that fails.
        number (int): the number of the error; ENOENT ends after ``seconds``.
        nth (int): the number of files that are opened before the failure.
    """

    def __init__(self, comm, folder, rank, number, nth, seconds=1.0):
        self._is_here, self._number, self._nth = comm.rank == rank, number, nth
        self._checkpoints = os.path.join(folder, "checkpoints")
        self._note = pathlib.Path(folder, "failed")
        self._seconds, self._begun, self._path = seconds, None, None

    def install(self):
        """Replaces the functions that open files or list folders."""
        if self._is_here:
            opening = self._checking(builtins.open)
            builtins.open = io.open = opening
            os.open = self._checking(os.open)
            os.scandir = self._checking(os.scandir)

    def _checking(self, function):
        def call(path=".", *args, **options):
            if isinstance(path, (str, os.PathLike)):
                self._check(os.fspath(path))
            return function(path, *args, **options)

        return call

    def _check(self, path):
        is_read = path == self._checkpoints or f"{self._checkpoints}/iteration_" in path
        if not is_read or path != (self._path or path):
            return
        if self._nth > 0:
            self._nth -= 1
            return
        if self._path is None:
            self._path, self._begun = path, time.monotonic()
            self._note.write_text(path)
        if self._number != errno.ENOENT or time.monotonic() < self._begun + self._seconds:
            raise OSError(self._number, os.strerror(self._number), path)


# The following functions check the result.


def run(n_ranks, folder, plan=None, limit=120):
    """Runs the training on a number of ranks; returns exit status and output."""
    command = ["-m", __spec__.name, "--train", str(folder), "--plan", json.dumps(plan or {})]
    if n_ranks == 1:  # a start without mpirun is faster
        done = subprocess.run(
            [sys.executable, *command],
            env=ranks.environment(),
            cwd=ranks.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
        return done.returncode, done.stdout
    # No process removes the shared memory of killed ranks; here it is in the folder.
    shared = pathlib.Path(folder, "shared")
    shared.mkdir(exist_ok=True, parents=True)
    environ = {"OMPI_MCA_btl_sm_backing_directory": str(shared), "MPCHAIN_COLLECTIVE_TIMEOUT": "60"}
    status, outputs, own_output = ranks.run(n_ranks, command, timeout=limit, environ=environ)
    return status, "\n".join([*outputs, own_output])


def result_of(outcome):
    """Returns the result that a training printed that ended without error.

    Returns:
        dict: ``digest``; ``losses`` by iteration; ``seconds``.
    """
    status, output = outcome
    line = re.search(r"^result (.*)$", output, re.MULTILINE)
    assert status == 0, f"exit status {status}\n{output}"
    assert line is not None, output
    result = json.loads(line[1])
    return result | {"losses": {int(i): loss for i, loss in result["losses"].items()}}


def saved_in(folder):
    """Returns the saved iterations; raises AssertionError if a checkpoint was set aside."""
    checkpoints = pathlib.Path(folder, "checkpoints")
    names = os.listdir(checkpoints) if checkpoints.exists() else []
    assert not [name for name in names if "damaged" in name], names
    return [int(name.rpartition("_")[2]) for name in layout.find(checkpoints)]


def check_begun(output, saved):
    """Checks from which checkpoint a training resumed, if it came so far."""
    begun = re.search(r"resuming from .*/iteration_(\d+)", output)
    assert begun is None or [int(begun[1])] == saved[-1:], (saved, output)


class Chain:
    """A training that is started, killed, and started again until it is complete.

    Args:
        sizes (list): the numbers of ranks to draw from.
        draw (random.Random): the generator of numbers of ranks and of times of kills.
        expected (dict): the result of an undisturbed training.
    """

    def __init__(self, sizes, draw, expected):
        self._sizes, self._draw, self._expected = sizes, draw, expected
        self.n_kills = 0

    def run(self, n_kills):
        """Runs the training with at most ``n_kills`` kills; raises AssertionError at any fault."""
        with tempfile.TemporaryDirectory() as folder:
            while self.n_kills < n_kills and self._is_killed(folder):
                self.n_kills += 1
            saved = saved_in(folder)
            outcome = run(self._draw.choice(self._sizes), folder)
            check_begun(outcome[1], saved)
            result = result_of(outcome)
            rest = list(range((saved or [0])[-1] + 1, N_ITERATIONS + 1))
            assert sorted(result["losses"]) == rest, result
            assert result["digest"] == self._expected["digest"], result

    def _is_killed(self, folder):
        saved = saved_in(folder)
        n = self._draw.choice(self._sizes)
        rank = self._draw.choice([None, None, self._draw.randrange(n)])
        plan = {"kill": [self._draw.uniform(0, 0.6 * self._expected["seconds"]), rank]}
        status, output = run(n, folder, plan)
        check_begun(output, saved)
        assert "Error" not in output or rank is not None, output
        now = saved_in(folder)
        assert now[-1:] >= saved[-1:], f"lost: {saved} were saved before, and now {now}"
        return status != 0


def kill(n_kills, sizes, draw, expected):
    """Kills trainings; returns the numbers of kills and of trainings."""
    killed = n_chains = 0
    while killed < n_kills:
        chain = Chain(sizes, draw, expected)
        chain.run(min(12, n_kills - killed))
        killed += chain.n_kills
        n_chains += 1
    return killed, n_chains


def fail_to_read(number, n_ranks, draw, expected):
    """Makes the reading of one file of a checkpoint fail once.

    Returns:
        The name of the file or folder, or None if the rank opened too few of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        until = draw.randint(2, N_ITERATIONS - 2)
        result_of(run(n_ranks, folder, {"until": until}))
        saved = saved_in(folder)
        rank = draw.randrange(n_ranks)
        # Rank 0 also lists the folder twice, and reads the manifest.
        error = {"rank": rank, "number": number, "nth": draw.randrange(5 if rank == 0 else 2)}
        status, output = run(n_ranks, folder, {"error": error})
        failed = pathlib.Path(folder, "failed")
        file = failed.read_text() if failed.exists() else None
        if file is None or (number == errno.ENOENT and status == 0):
            outcome = status, output
        else:
            assert status not in (0, None), output
            message = rf"{os.strerror(number)} on rank {rank}\b.*{re.escape(file)}"
            assert re.search(message, output), (message, output)
            assert saved_in(folder) == saved
            outcome = run(n_ranks, folder)
        assert f"resuming from {folder}/checkpoints/iteration_{until}" in outcome[1]
        assert result_of(outcome)["digest"] == expected["digest"]
        return file and os.path.basename(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0, help="how many times to kill, in all")
    parser.add_argument("--io-errors", type=int, default=0, help="how many files cannot be read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.plan)
        return 0
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = result_of(run(1, folder))
    n_failures = 0
    begun = time.monotonic()
    for i, (name, sizes) in enumerate(SIZES.items()):
        n = arguments.kills // len(SIZES) + (i < arguments.kills % len(SIZES))
        try:
            if n > 0:
                killed, n_chains = kill(n, sizes, draw, expected)
                print(f"{name}: {killed} kills in {n_chains} trainings, all with the same bits")
        except AssertionError as error:
            n_failures += 1
            print(f"{name}: {error}")
        sys.stdout.flush()
    if arguments.kills:
        print(f"{(time.monotonic() - begun) / arguments.kills:.1f} s for each kill")
    failed = collections.Counter()
    while arguments.io_errors > failed.total() + n_failures:
        number = ERRORS[failed.total() % len(ERRORS)]
        try:
            file = fail_to_read(number, draw.randint(1, 3), draw, expected)
        except AssertionError as error:
            n_failures += 1
            print(f"{errno.errorcode[number]}: {error}", flush=True)
        else:
            failed[number] += file is not None
    for number, n in failed.items():
        print(f"{errno.errorcode[number]}: {n} times, then the same bits")
    return n_failures > 0


if __name__ == "__main__":
    sys.exit(main())
