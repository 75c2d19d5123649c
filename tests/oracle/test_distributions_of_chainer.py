"""Compares distributions with Chainer 7.8.1, which runs in a separate environment.

The environment variable MPCHAIN_TEST_CHAINER_PYTHON names that environment's interpreter.
"""

import os
import subprocess

import numpy as np
import pytest

from tests.oracle import distributions

PYTHON = os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="MPCHAIN_TEST_CHAINER_PYTHON names no interpreter that has Chainer 7.8.1"
)


OTHERWISE = {"Dirichlet/float64/sample", "Poisson/float64/sample"}
"""Results that Chainer computes in single precision."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    file = tmp_path_factory.mktemp("oracle") / "distributions.npz"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [PYTHON, distributions.__file__, "chainer", str(file)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    with np.load(file) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def mpchain():
    return distributions.Framework("mpchain")


def test_constructors(mpchain, theirs):
    for name, signature in mpchain.signatures().items():
        assert signature == str(theirs[f"signature/{name}"]), name


def test_values(mpchain, theirs):
    ours = mpchain.results()
    expected = {n: a for n, a in theirs.items() if not n.startswith("signature/")}
    expected = {n: a for n, a in expected.items() if n not in OTHERWISE}
    assert set(expected) <= set(ours)
    failures = {}
    for name, array in expected.items():
        if array.dtype.kind == "U":
            if str(array) != ours[name]:
                failures[name] = ours[name], str(array)
            continue
        # The bound covers sums and differences of a few numbers near one, in different orders.
        tolerance = 5e-6 if array.dtype == np.float32 else 1e-13
        close = np.allclose(ours[name], array, tolerance, tolerance, equal_nan=True)
        if not close or ours[name].dtype != array.dtype or ours[name].shape != array.shape:
            failures[name] = ours[name], array
    assert failures == {}
    print(f"{len(expected)} results compared")
