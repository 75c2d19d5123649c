"""Tests that programs that use no GPU do not load CuPy, even if it is installed."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

DOUBLES = pathlib.Path(__file__).parent / "doubles"
PROGRAM = """
import sys

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain.training import extensions

def check(when):
    assert not {"cupy", "cupyx"} & sys.modules.keys(), f"CuPy is loaded {when}"

check("by import mpchain")
model = L.Classifier(mpchain.Sequential(L.Linear(2), F.relu, F.dropout, L.Linear(2)))
model.to_device("@numpy")
optimizer = mpchain.create_multi_node_optimizer(
    mpchain.optimizers.Adam(), mpchain.create_communicator()
).setup(model)
data = [(np.ones(2, np.float32), np.int32(1))] * 4
iterators = [mpchain.iterators.SerialIterator(data, 2, repeat=r) for r in (True, False)]
updater = mpchain.training.StandardUpdater(iterators[0], optimizer, device="@numpy")
trainer = mpchain.training.Trainer(updater, (2, "epoch"), out=sys.argv[1])
trainer.extend(extensions.Evaluator(iterators[1], model, device="@numpy"))
trainer.extend(extensions.snapshot())
trainer.run()
check("by a training on the host")
import cupy
"""


def test_neither_import_nor_training_on_the_host_loads_cupy(tmp_path):
    paths = [str(DOUBLES), os.environ["PYTHONPATH"]]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        timeout=120,
    )
