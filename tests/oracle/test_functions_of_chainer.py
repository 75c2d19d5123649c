"""Compares every function with Chainer 7.8.1, which runs in a separate environment.

The environment variable MPCHAIN_TEST_CHAINER_PYTHON names that environment's interpreter.
"""

import os

import numpy as np
import pytest

from tests.oracle import functions
from tests.oracle.function_cases import CASES

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get(functions.VARIABLE),
        reason=f"{functions.VARIABLE} names no interpreter that has Chainer 7.8.1",
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # extreme inputs overflow on purpose
]


@pytest.fixture(scope="module")
def oracle():
    """Yields Chainer's results; at the end, prints the number of comparisons of each kind."""
    with np.errstate(all="ignore"):
        oracle = functions.Oracle()
        yield oracle
    oracle.print_counts()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_function(oracle, case):
    if not oracle.ours.has(case):
        oracle.counts["missing"] += 1
        pytest.skip(f"mpchain.functions has no {case.function} yet")
    differences = [line for dtype in case.dtypes for line in oracle.differences(case, dtype)]
    assert not differences, "\n".join(differences)


def test_chainer_runs_the_cases(oracle):
    assert not oracle.unexpected_refusals()


def test_every_function_of_chainer_has_a_case(oracle):
    assert len(oracle.functions_of_chainer) == 216
    assert set(oracle.functions_of_chainer) == {case.function for case in CASES}
