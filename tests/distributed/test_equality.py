"""Tests that training on several ranks gives the same results as on one, for some models of the
equality suite."""

import numpy as np
import pytest

from tests.tools import equality, example_equality


@pytest.mark.parametrize(
    ("n_ranks", "models"),
    [
        (3, ["CNN", "R1"]),
        pytest.param(3, [*equality.MODELS], marks=pytest.mark.long),
        *(pytest.param(n, [*equality.MODELS], marks=pytest.mark.nightly) for n in (2, 4)),
    ],
)
def test_models_and_options(n_ranks, models, needs_mpirun):
    """All difficult options are combined: accumulation, sharding, and uneven batches."""
    suite = equality.Suite(models, ["Adam"], [equality.OPTIONS], 6)
    differences = suite.compare([n_ranks], time_limit=240)
    assert {run: x for run, x in differences.items() if not x <= equality.LIMIT} == {}


@pytest.mark.long
def test_reproducible(needs_mpirun):
    models = ["CNN", "WGAN-GP", "LSTM LM"]
    suite = equality.Suite(models, ["Adam"], [("sharded",)], 5, reproducible=True)
    differences = suite.compare([1, 3], time_limit=240)
    assert set(differences.values()) == {0}


def test_the_difference_sees_all_arrays():
    result = {"losses": np.ones(2), "/W": np.full(3, 2.0)}
    other = {"losses": np.ones(2), "/W": np.array([2.0, 2.5, 2.0])}
    assert equality.difference(result, result) == 0
    assert equality.difference(other, result) == 0.25


@pytest.mark.long
def test_the_example_gives_the_same_on_several_ranks(needs_mpirun):
    options = {"model": "conv", "batchsize": 401, "epoch": 1}
    for n_ranks, of_losses, of_parameters in example_equality.compare(
        [3], time_limit=240, **options
    ):
        assert of_losses <= example_equality.LIMIT, n_ranks
        assert of_parameters <= example_equality.LIMIT, n_ranks
