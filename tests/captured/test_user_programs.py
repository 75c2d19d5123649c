"""Tests that steps as users write them compute the same as eager steps, or give a reason."""

import numpy as np
import pytest

from tests.captured import user_programs, user_programs_of_objects, user_programs_of_python
from tests.captured.tables import WRONG, Case, judge

PROGRAMS = {
    **user_programs.PROGRAMS,
    **user_programs_of_python.PROGRAMS,
    **user_programs_of_objects.PROGRAMS,
}

# A captured step cannot notice these: an object that only counts, and the memory of an array.
UNSEEN = ["iterator_that_only_counts", "memory_view"]


def programs():
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.xfail(strict=True) if name in UNSEEN else ())
            for name in PROGRAMS
        ],
    )


def draw(seed):
    """Returns the data of a call; later calls have more positive numbers."""
    random = np.random.RandomState(seed)
    return [random.randn(6, 5) + 0.2 * seed, random.randint(0, 3, 6)]


def draw_sorted(seed):
    """Returns the data of a call; its labels are equal: 0 in the first calls, then 1, then 2."""
    random = np.random.RandomState(seed)
    return [random.randn(6, 5), np.full(6, min(seed // 3, 2))]


def assert_sound(name, draw, has_equal_data=False):
    outcome = judge(Case("programs of users", name, PROGRAMS[name], draw), has_equal_data)
    assert outcome.kind != WRONG, outcome.detail


@pytest.mark.slow
@programs()
def test_new_data_in_each_call(name):
    assert_sound(name, draw)


@pytest.mark.long
@programs()
def test_equal_data_at_first(name):
    assert_sound(name, draw, has_equal_data=True)


@pytest.mark.long
@programs()
def test_sorted_labels(name):
    assert_sound(name, draw_sorted)
