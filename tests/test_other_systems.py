"""Tests that one process imports and trains mpchain without features that not every system has, or
without a library."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

# For each name, code that removes a feature before mpchain is imported.
TAKEN = {
    "fork": "del os.fork, os.register_at_fork",
    "affinity": "del os.sched_getaffinity, os.sched_setaffinity",
    "memfd": "del os.memfd_create, os.posix_fallocate",
    "pidfd": "del os.pidfd_open, signal.pidfd_send_signal",
    "fcntl": "sys.modules['fcntl'] = None",
    "resource": "sys.modules['resource'] = None",
    "posix": "del os.sysconf, os.geteuid, os.getuid, os.statvfs, os.link",
    "signals": "del signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN",
    "proc": """
def hide(module, name):
    original = getattr(module, name)
    def call(path, *args, **kwargs):
        if isinstance(path, str) and path.startswith("/proc"):
            raise FileNotFoundError(2, "there is no /proc", path)
        return original(path, *args, **kwargs)
    setattr(module, name, call)
for module, name in ((builtins, "open"), (os, "open"), (os, "listdir"), (os, "stat")):
    hide(module, name)
""",
    "libraries": """
import ctypes
def refuse(self, name, *args, **kwargs):
    raise OSError(f"{name}: there is no such library")
ctypes.CDLL.__init__ = refuse
""",
    "mpi": "sys.modules['mpi4py'] = None",
    "numba": "sys.modules['numba'] = None",
    "darwin": "import sysconfig; sysconfig.get_config_vars(); sys.platform = 'darwin'",
}
PROGRAM = """
import builtins, os, pathlib, signal, sys, tempfile
import numpy as np
{taken}
import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import iterators, optimizers, serializers, training
from mpchain.training import extensions

np.random.seed(0)
os.chdir(tempfile.mkdtemp())
comm = mpchain.create_communicator()
model = L.Classifier(mpchain.Sequential(
    L.Convolution2D(1, 4, 3), F.relu, L.BatchNormalization(4), L.Linear(None, 3)))
optimizer = optimizers.Adam()
optimizer = mpchain.create_multi_node_optimizer(optimizer, comm).setup(model)
data = [(np.full((1, 6, 6), k % 3, np.float32), np.int32(k % 3)) for k in range(24)]
trainer = training.Trainer(
    training.StandardUpdater(iterators.SerialIterator(data, 8), optimizer), (3, "epoch"), "out")
trainer.extend(extensions.Evaluator(iterators.SerialIterator(data, 8, repeat=False), model))
trainer.extend(extensions.LogReport())
trainer.extend(extensions.PrintReport(["epoch", "main/loss"], out=open(os.devnull, "w")))
trainer.extend(extensions.snapshot(), trigger=(1, "epoch"))
trainer.run()
serializers.save_npz("model.npz", model)
serializers.load_npz("model.npz", model)
with iterators.MultithreadIterator(data, 8, repeat=False, n_threads=2) as batches:
    n = sum(map(len, batches))
log = trainer.get_extension("LogReport").log
print(n, len(log), log[-1]["main/loss"] < log[0]["main/loss"], sorted(os.listdir("out"))[-1])
"""


@pytest.mark.parametrize("names", [*([name] for name in TAKEN), list(TAKEN)], ids="+".join)
def test_training_in_one_process_without(names):
    taken = "\n".join(TAKEN[name] for name in names)
    program = PROGRAM.replace("{taken}", taken)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "24 3 True snapshot_iter_9", done.stderr
