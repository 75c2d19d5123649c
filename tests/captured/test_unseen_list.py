"""What captured steps cannot see: each row of the guide's list is tried."""

import itertools
import os
import pathlib

import numpy as np
import pytest

import mpchain

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/performance.md"


class Settings:
    def __init__(self):
        self.scale = 1.0


def computed_names():
    settings, name = Settings(), ["sca", "le"]
    return lambda x: x * getattr(settings, "".join(name)), lambda: vars(settings).update(scale=2.0)


def other_objects():
    numbers = itertools.count()

    def step(x):
        next(numbers)
        return x * 1

    return step, lambda: None, lambda: next(numbers) == 8


def memory():
    return lambda x: x * (2 if memoryview(x)[0] > 4 else 1), lambda: None


def long_lists():
    numbers = [1.0] * 1001
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 2.0)


def the_world():
    def set_environment():
        os.environ["MPCHAIN_TEST_SCALE"] = "2"

    return lambda x: x * float(os.environ.get("MPCHAIN_TEST_SCALE", "1")), set_environment


LIST = {
    "names that are computed": computed_names,
    "what objects of other libraries hold": other_objects,
    "the memory of an array, read without NumPy": memory,
    "items of lists and dicts of more than 1,000": long_lists,
    "the world outside of arrays": the_world,
}


def rows():
    text = GUIDE.read_text("utf-8").split("| what cannot be seen |")[1].split("\n\n")[0]
    return [line.split("|")[1].strip() for line in text.splitlines()[2:]]


def test_the_list_is_that_of_the_guide():
    found = rows()
    assert len(found) == len(LIST)
    for row, name in zip(found, LIST):
        assert row.startswith(name)


@pytest.mark.parametrize("name", LIST)
def test_it_cannot_be_seen(name, monkeypatch):
    monkeypatch.delenv("MPCHAIN_TEST_SCALE", raising=False)
    function, change, *is_right = LIST[name]()
    step = mpchain.capture(function)
    for i in range(4):
        step(np.full(2, float(i)))
    change()
    found = [step(np.full(2, float(i))) for i in range(4, 8)]
    assert step.reason is None
    if is_right:
        assert not is_right[0]()
    else:
        expected = function(np.full(2, 7.0))
        assert not np.array_equal(found[-1], expected)
    monkeypatch.delenv("MPCHAIN_TEST_SCALE", raising=False)
