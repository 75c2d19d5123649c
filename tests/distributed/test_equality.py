"""The example, with one, two and three ranks: the same numbers."""

import pytest

from . import equality


@pytest.mark.parametrize(("model", "batchsize"), [("mlp", 301), ("conv", 600)])
def test_the_example_gives_the_same_on_any_number_of_ranks(model, batchsize, needs_mpirun):
    options = {"model": model, "batchsize": batchsize, "epoch": 1}
    for n_ranks, of_losses, of_parameters in equality.compare([2, 3], time_limit=80, **options):
        assert of_losses <= equality.LIMIT, n_ranks
        assert of_parameters <= equality.LIMIT, n_ranks
