"""Tests captured rows of all tables of the suite, as steps of ranks with equal or different data.

``python -m tests.tools.captured_tables --ranks 2`` prints how many rows of each table are replayed.
"""

import random

import pytest

from tests.captured.ranks import judge_on_ranks
from tests.captured.tables import MAKERS, REFUSED, WRONG

EQUAL = pytest.mark.parametrize("has_equal_data", [False, True], ids=["new data", "equal data"])


def assert_sound(comm, cases, has_equal_data):
    """Checks that no case is wrong on any rank, and that refused cases give a reason."""
    for case, outcome in zip(cases, judge_on_ranks(cases, has_equal_data, comm), strict=True):
        assert outcome.kind != WRONG, f"{case.id}: {outcome.detail}"
        assert outcome.kind != REFUSED or outcome.detail


def sample(seed, n):
    rng = random.Random(seed)
    return [rng.choice(MAKERS[table]()) for table in rng.sample(sorted(MAKERS), n)]


@EQUAL
def test_sample_of_rows(comm, has_equal_data):
    assert_sound(comm, sample(5, 5), has_equal_data)


@pytest.mark.long
@EQUAL
def test_row_of_each_table(comm, has_equal_data):
    assert_sound(comm, sample(6, len(MAKERS)), has_equal_data)


@pytest.mark.nightly
@EQUAL
@pytest.mark.parametrize("table", MAKERS)
def test_table(comm, table, has_equal_data):
    assert_sound(comm, MAKERS[table](), has_equal_data)
