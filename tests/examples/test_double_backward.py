"""Tests the output of the examples of double backward, and their own checks."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def _run(name, *options):
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "double_backward" / name), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", text)]


@pytest.mark.parametrize("name", ["forward_graph.py", "graph_expansion.py"])
def test_first_derivatives(name):
    out = _run(name, "--check")
    x = np.random.RandomState(313).randn(6)
    expected = 1 / (np.exp(x) + 2 + np.exp(-x))
    np.testing.assert_allclose(_numbers(out), expected, rtol=1e-6)
    assert out.endswith("finite differences agree\n")


def test_one_centered_penalty():
    out = _run("both_graphs.py", "--check")
    x = np.random.RandomState(313).randn(16, 3, 32, 32)
    y = 1 / (1 + np.exp(-x))
    gx = y * (1 - y)
    norm = np.sqrt((gx**2).sum(axis=(1, 2, 3), keepdims=True))
    expected = 2 * (norm - 1) / 16 * gx / norm * gx * (1 - 2 * y)
    printed = _numbers(out)
    np.testing.assert_allclose(printed[0], expected[0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(printed[-1], expected[-1, -1, -1, -1], rtol=1e-6)
    assert out.endswith("finite differences agree\n")


@pytest.mark.long
def test_r1_gan():
    small = ["--batchsize=200", "--latent=4", "--hidden=16", "--channels=2"]
    first, *lines = _run("r1_gan.py", "--epoch=2", "--check", *small).splitlines()
    assert first == "finite differences agree"
    epochs, pictures = lines[:2], lines[2:]
    for i, line in enumerate(epochs):
        assert line.startswith(f"epoch   {i + 1}  loss of the discriminator")
        assert np.isfinite(_numbers(line)).all() and len(_numbers(line)) == 3
    assert len(pictures) == 8 and all(len(row) == 6 * 8 * 2 for row in pictures)
