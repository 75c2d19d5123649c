"""Lets ranks fail at random moments of a training, and checks how the job ends and resumes.

``python -m tests.tools.faults --times 20`` trains a small model in float64, with a sharded
optimizer and checkpoints, and lets one rank fail: it raises an exception (also in a thread), is
killed, stops, leaves, misses a collective, calls another collective than its peers, passes another
shape or dtype, or cannot write its part of a checkpoint. Each time, the job must end by itself, at
most 10 s after the time limit of collectives, with a message that says what happened. Then the
training is started again, with a random number of ranks: it must resume from one of the last
checkpoints and have the losses of an undisturbed training, to 1e-12.
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import signal
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
from mpchain.distributed.extensions import checkpoint
from tests.distributed import ranks

N_ITERATIONS, EVERY, MARGIN = 40, 3, 10.0

_MISMATCH = r"collective \d+ differs between ranks:\n"
_SITE = r", called at .*faults\.py:\d+ in \w+"
_CHECK = r"allreduce of \(3,\) float64" + _SITE
_ABSENT = r"rank \d of {n}: has waited \d+ s for .*{rank}.* in .*(.*\n)*  ranks? {rank}: "

FAULTS = {
    "raise": r"rank {rank} of {n}:\nTraceback(.*\n)*KeyError: 'a sample that is lost'",
    "raise in a thread": r"rank {rank} of {n}:\nexception in thread(.*\n)*ZeroDivisionError",
    "kill": "",
    "stop": _ABSENT + r".*is stopped by a signal",
    "leave": _ABSENT + r"its program ended",
    "do not come": _ABSENT + r".*now at .*faults\.py:\d+ in do_not_come",
    "other collective": rf"{_MISMATCH}(  .*\n)*  ranks? {{rank}}: gather_obj with root 0{_SITE}",
    "other shape": rf"{_MISMATCH}(  .*\n)*  ranks? {{rank}}: allreduce of \(4,\) float64{_SITE}",
    "other dtype": rf"{_MISMATCH}(  .*\n)*  ranks? {{rank}}: allreduce of \(3,\) float32{_SITE}",
    "no room on the disk": r"rank {rank} of {n}:\n(.*\n)*OSError: .*File too large"
    r"(.*\n)*raised while the checkpoint iteration_\d+ was written",
}
"""Maps what the failing rank does to the expected output, a regular expression; an empty one fits
any output."""


class Fault:
    """A fault of one rank at some iteration.

    Args:
        name (str): a key of :data:`FAULTS`.
        comm (Communicator): the ranks.
        folder: the folder of a file that records the time of the fault.
    """

    def __init__(self, name, comm, folder):
        self._name, self._comm, self._folder = name, comm, pathlib.Path(folder)

    def begin(self, delay):
        """Starts the fault, which happens at once, after the delay, or when the next file is
        written; :meth:`array` makes the faults of arrays."""
        if self._name in ("kill", "stop"):
            number = signal.SIGKILL if self._name == "kill" else signal.SIGSTOP
            threading.Timer(delay, self._send, [number]).start()
        elif self._name == "raise in a thread":
            threading.Timer(delay, self._fail_in_thread).start()
        elif self._name == "raise":
            self._note()
            raise KeyError("a sample that is lost")
        elif self._name == "leave":
            self._note()
            sys.exit(0)
        elif self._name == "do not come":
            self._note()
            do_not_come()
        elif self._name == "other collective":
            self._note()
            self._comm.gather_obj(None)
        elif self._name == "no room on the disk":
            self._note()
            # The limit is sufficient for printed text, which is also written to a file.
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

    def array(self, is_failing):
        """Returns the array that all ranks sum in each iteration."""
        if is_failing and self._name == "other shape":
            self._note()
            return np.ones(4)
        if is_failing and self._name == "other dtype":
            self._note()
            return np.ones(3, np.float32)
        return np.ones(3)

    def _note(self):
        (self._folder / "happened").write_text(repr(time.time()))

    def _send(self, number):
        self._note()
        os.kill(os.getpid(), number)

    def _fail_in_thread(self):
        self._note()
        return 1 / 0


def do_not_come():
    """Replaces a call, so that the other ranks wait for this rank in vain."""
    threading.Event().wait()


def train(folder, plan):
    """Trains on a rank, with a fault if there is a plan for one.

    Args:
        folder: the folder of checkpoints and results.
        plan (dict): the name of the ``fault``, its ``rank`` and ``iteration``, and its ``delay`` in
            seconds; empty for no fault.
    """
    mpchain.global_config.dtype = np.dtype(np.float64)
    np.random.seed(0)
    comm = create_communicator()
    drawn = np.random.RandomState(1)
    data = list(zip(drawn.randn(50, 5), drawn.randn(50, 2), strict=True))
    model = L.Classifier(
        mpchain.Sequential(L.Linear(5, 8), F.tanh, L.Linear(8, 2)), F.mean_squared_error
    )
    model.compute_accuracy = False
    optimizer = create_sharded_optimizer(optimizers.Adam(0.01), comm).setup(model)
    iterator = create_sharded_iterator(iterators.SerialIterator(data, 12), comm)
    updater = MultiNodeUpdater(iterator, optimizer, comm)
    trainer = training.Trainer(updater, (N_ITERATIONS, "iteration"), out=folder)
    losses = {}
    fault = Fault(plan.get("fault"), comm, folder)

    def step(trainer):
        iteration = updater.iteration
        losses[iteration] = float(trainer.observation["main/loss"])
        is_failing = plan.get("rank") == comm.rank and plan["iteration"] == iteration
        if is_failing:
            fault.begin(plan["delay"])
        comm.allreduce(fault.array(is_failing))

    trainer.extend(step, trigger=(1, "iteration"))
    trainer.extend(checkpoint(comm), trigger=(EVERY, "iteration"))
    trainer.run()
    if comm.rank == 0:
        print("losses", json.dumps(losses))


def run(n_ranks, folder, plan=None, collective_timeout=60, limit=90):
    """Runs the training; returns the results of :func:`ranks.run`."""
    command = ["-m", __spec__.name, "--train", str(folder), "--plan", json.dumps(plan or {})]
    environ = {"MPCHAIN_COLLECTIVE_TIMEOUT": str(collective_timeout)}
    return ranks.run(n_ranks, command, timeout=limit, environ=environ)


def losses_of(outcome):
    """Returns the losses by iteration of a training that has ended without error."""
    status, outputs, own_output = outcome
    line = re.search(r"^losses (.*)$", outputs[0], re.MULTILINE)
    if status != 0 or line is None:
        raise AssertionError(ranks.report(status, outputs, own_output))
    return {int(iteration): loss for iteration, loss in json.loads(line[1]).items()}


def check(name, n_ranks, n_ranks_after, timeout, expected, plan):
    """Lets a rank fail once, and resumes the training.

    Returns:
        The number of seconds from the fault to the end of the job, and the iteration from which
        training resumed.

    Raises:
        AssertionError: the job did not end, resume or train as expected.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = {"fault": name, **plan}
        # The other ranks may wait much longer for mpirun to start, and for all ranks to be ready.
        status, outputs, own_output = run(n_ranks, folder, plan, timeout, timeout + MARGIN + 30)
        happened = pathlib.Path(folder, "happened")
        report = ranks.report(status, outputs, own_output)
        assert happened.exists(), f"the fault did not happen\n{report}"
        seconds = time.time() - float(happened.read_text())
        assert status not in (0, None), report
        assert seconds < timeout + MARGIN, f"{seconds:.1f} s\n{report}"
        pattern = FAULTS[name].format(rank=plan["rank"], n=n_ranks)
        assert re.search(pattern, "\n".join(outputs)), f"{pattern}\n{outputs}\n{report}"
        outcome = run(n_ranks_after, folder)
        losses = losses_of(outcome)
        begun = min(losses)
        assert sorted(losses) == list(range(begun, N_ITERATIONS + 1)), losses.keys()
        last = (plan["iteration"] - 1) // EVERY * EVERY
        # The last checkpoint may have been incomplete.
        assert last - 2 * EVERY < begun <= plan["iteration"] + 2 * EVERY, (begun, plan)
        if begun > 1:
            assert "resuming from" in outcome[1][0], outcome
        for iteration, loss in losses.items():
            assert abs(loss / expected[iteration] - 1) < 1e-12, (iteration, loss, expected)
    return seconds, begun - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="how often each fault happens")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=4, help="limit of collectives, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.plan)
        return 0
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = losses_of(run(1, folder))
    n_failures = 0
    for name in arguments.faults:
        results = []
        for _ in range(arguments.times):
            plan = {
                "rank": draw.randrange(arguments.ranks),
                "iteration": draw.randint(2, N_ITERATIONS - 8),
                "delay": draw.uniform(0, 0.01),
            }
            n_after = draw.randint(1, arguments.ranks + 1)
            try:
                results.append(
                    check(name, arguments.ranks, n_after, arguments.timeout, expected, plan)
                )
            except AssertionError as error:
                n_failures += 1
                print(f"{name}: {plan}, then {n_after} ranks: {error}", flush=True)
        if results:
            longest = max(seconds for seconds, _ in results)
            begun = [iteration for _, iteration in results]
            print(
                f"{name}: {len(results)} of {arguments.times} runs passed; jobs ended at most "
                f"{longest:.1f} s after the fault, and resumed from iterations {min(begun)} to "
                f"{max(begun)}",
                flush=True,
            )
    return n_failures > 0


if __name__ == "__main__":
    sys.exit(main())
