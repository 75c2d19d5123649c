"""Tests that the README's examples run, and that its commands are sufficient for a new user."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from .distributed import ranks

pytestmark = pytest.mark.whole

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SINE, FLAT, OWN_FUNCTION = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHOWN = re.findall(r"^(?:\[0-1\] )?([\d.]+ [\d.]+)$", README, re.MULTILINE)


def output_of(*command, **options):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not())
def test_the_example_prints_the_same_on_one_and_two_ranks(tmp_path):
    path = tmp_path / "sine.py"
    path.write_text(SINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment}
    alone = output_of(path, **options)
    together = output_of("-m", "launch", "-n", 2, path, **options)
    lines = re.findall(r"^\[(?:0|1|0-1)\] (.*\n)", together, re.MULTILINE)
    # The line appears once or twice, because ranks print at the same time.
    assert set(lines) == {alone} and len(SHOWN) == 3
    for text in (alone, *SHOWN):
        numbers = list(map(float, text.split()))
        np.testing.assert_allclose(numbers, np.sin([0.5, 1]), atol=0.02)
        np.testing.assert_allclose(numbers, list(map(float, SHOWN[0].split())), atol=2e-4)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not())
def test_products_with_hessians_are_the_same_on_one_and_two_ranks(tmp_path):
    path = tmp_path / "sine.py"
    path.write_text(SINE + FLAT)
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    outputs = output_of(path, **options), output_of("-m", "launch", "-n", 2, path, **options)
    shown = re.findall(r"^\[0-1\] curvature ([\d.]+)$", README, re.MULTILINE)
    for text in outputs:
        found = dict.fromkeys(re.findall(r"curvature ([\d.]+)$", text, re.MULTILINE))
        np.testing.assert_allclose(list(map(float, found)), list(map(float, shown)), rtol=2e-3)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.annex("prove")
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not())
def test_the_example_is_proved(tmp_path):
    path = tmp_path / "sine.py"
    path.write_text(SINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = re.search(r"^proved: .*(?=, greatest)", README, re.MULTILINE)[0]
    options = {"cwd": tmp_path, "env": environment}
    assert output_of("-m", "launch", "prove", "-n", 2, path, **options).startswith(shown)


def test_a_function_of_the_user_has_derivatives_of_every_order():
    numbers = list(map(float, re.findall(r"[-.\de]+", output_of("-c", OWN_FUNCTION))))
    assert numbers == [1 / 4, -1 / 4, 3 / 8, -3 / 4]
    assert "# 1/4, -1/4, 3/8, -3/4\n" in OWN_FUNCTION


def test_the_commands_install_the_extras_that_they_need():
    run, test = re.findall(r"<!-- (?:run|test) -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert "[mpi,plot]" in run and "-n 2 examples/mnist/train_mnist.py" in run
    assert "[test]" in test and test.rstrip().endswith("-m pytest -n 2")


def test_links_and_paths_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", README)
    paths = re.findall(r"`((?:mpchain|launch|examples|docs|tests)/[\w/.]*)`", README)
    assert len(links) > 10 and len(paths) > 5
    for path in [*links, *paths]:
        assert (ROOT / path).exists(), path


def test_it_installs_nothing_from_an_index_that_does_not_have_it():
    assert not re.search(r"pip install '?mpchain", README)
    assert "rooms" not in README
