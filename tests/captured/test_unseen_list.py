"""Tests each row of the list, in ``docs/guides/performance.md``, of operations that captured steps
cannot see."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest

import mpchain

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/performance.md"


def other_objects():
    numbers = itertools.count()

    def step(x):
        next(numbers)
        return x * 1

    return step, lambda: None, lambda: next(numbers) == 8


def memory():
    return lambda x: x * (2 if memoryview(x)[0] > 4 else 1), lambda: None


def long_lists():
    numbers = [1.0] * 10_001
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 2.0)


def installed_functions():
    # The path of its file makes the function one of an installed package.
    settings = {"scale": 1.0}
    code = "def scale(): return settings['scale']"
    exec(compile(code, "site-packages/settings.py", "exec"), {"settings": settings}, found := {})
    return lambda x: x * found["scale"](), lambda: settings.update(scale=2.0)


@dataclasses.dataclass
class Setting:
    scale: float = 1.0


def generated_methods():
    one, other = Setting(), Setting()
    return lambda x: x * (2 if one == other else 1), lambda: vars(one).update(scale=2.0)


def the_world(path):
    path.write_text("1")
    return lambda x: x * float(path.read_text()), lambda: path.write_text("2")


LIST = {
    "what objects count": other_objects,
    "the memory of an array, read without NumPy": memory,
    "items of lists and dicts of more than 10,000": long_lists,
    "what functions of other installed packages": installed_functions,
    "what the methods of a dataclass read": generated_methods,
    "the world outside of Python": the_world,
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
def test_it_cannot_be_seen(name, tmp_path):
    function, change, *is_right = (
        LIST[name](tmp_path / "scale") if name.startswith("the world") else LIST[name]()
    )
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
