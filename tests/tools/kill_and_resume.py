"""Kills a training while it writes a snapshot, resumes it, and compares the losses.

    python -m tests.tools.kill_and_resume --kills 20

It trains a small network with dropout on shuffled digits: once without interruption, then once more
for each kill. The process to be killed stops by itself after some of the bytes of a snapshot and
says so; then it gets SIGKILL. All moments are drawn at random from the first half of the training.
"""

import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np

import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, training
from mpchain.serializers import save_npz
from mpchain.training import extensions
from tests.models import MLP

N_EPOCHS = 4
PERIOD = 3
"""Number of iterations between two snapshots."""


class StoppingFile:
    """A file that stops the program after a given number of bytes."""

    def __init__(self, file, n_bytes):
        self._file = file
        self._n_left = n_bytes

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        data = memoryview(data).cast("B")
        if len(data) > self._n_left:
            self._file.write(data[: self._n_left])
            self._file.flush()
            print("inside", flush=True)
            sys.stdin.read()  # no one closes the other end, so this waits for the kill
        self._n_left -= len(data)
        return self._file.write(data)


def train(args):
    np.random.seed(args.seed)
    train_set, test_set = datasets.get_digits(ndim=1)
    model = L.Classifier(MLP(None, 0.4, 100, 10, F.relu))
    optimizer = optimizers.Adam().setup(model)
    iterator = iterators.SerialIterator(train_set, 64)
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (N_EPOCHS, "epoch"), out=args.out)

    def savefun(path, target):
        with open(path, "wb") as file:
            is_last = updater.iteration == args.stop_at
            save_npz(StoppingFile(file, args.bytes) if is_last else file, target)

    test_iterator = iterators.SerialIterator(test_set, 64, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator(test_iterator, model))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    snapshot = extensions.snapshot(savefun, autoload=True, n_retains=args.n_retains)
    trainer.extend(snapshot, trigger=(PERIOD, "iteration"))
    trainer.run()
    digest = hashlib.sha256()
    for _, param in sorted(model.namedparams()):
        digest.update(param.array.tobytes())
    (pathlib.Path(args.out) / "parameters").write_text(digest.hexdigest())


def start(out, seed, **options):
    command = [sys.executable, __file__, "--out", str(out), "--seed", str(seed)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out


def outcome(out):
    """Returns the log of the training without times, and a digest of its parameters."""
    log = json.loads((out / "log").read_text())
    return [
        {key: value for key, value in entry.items() if key != "elapsed_time"} for entry in log
    ], (out / "parameters").read_text()


def kill_once(folder, reference, rng):
    expected = outcome(reference)
    n_iterations = expected[0][-1]["iteration"]
    stop_at = PERIOD * rng.randrange(2, n_iterations // (2 * PERIOD) + 1)
    size = (reference / f"snapshot_iter_{stop_at}").stat().st_size
    n_bytes = rng.randrange(1, size)
    process = start(folder, 0, stop_at=stop_at, bytes=n_bytes)
    with process:
        assert process.stdout.readline() == "inside\n"
        process.kill()
    assert process.returncode == -9
    names = sorted(path.name for path in folder.iterdir() if "snapshot" in path.name)
    (half,) = (name for name in names if name.endswith(f".tmp.snapshot_iter_{stop_at}"))
    assert f"snapshot_iter_{stop_at}" not in names
    assert 0 < (folder / half).stat().st_size <= n_bytes  # zip archives rewrite some bytes
    finish(start(folder, 1))  # another seed, as all random state must come from the snapshot
    assert outcome(folder) == expected
    assert not any(path.name.endswith(f".tmp.snapshot_iter_{stop_at}") for path in folder.iterdir())
    print(
        f"killed at iteration {stop_at:2} after {n_bytes:6} of {size} bytes; same losses",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-retains", type=int, default=2)
    parser.add_argument("--out", help="train in this folder, and do nothing else")
    parser.add_argument("--stop-at", type=int, help="iteration of the snapshot to stop in")
    parser.add_argument("--bytes", type=int, help="number of bytes of this snapshot to write")
    args = parser.parse_args()
    if args.out is not None:
        train(args)
        return
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        reference = pathlib.Path(folder, "reference")
        finish(start(reference, 0, n_retains=0))
        for i in range(args.kills):
            kill_once(pathlib.Path(folder, str(i)), reference, rng)
        expected = outcome(reference)
    losses = [entry["main/loss"] for entry in expected[0]]
    print(f"{args.kills} kills, {len(losses)} losses each: {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
