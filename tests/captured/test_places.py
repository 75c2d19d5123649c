"""Tests values that a captured step reads in other ways than by the name of the object that has
them."""

import argparse
import functools
import types

import numpy as np
import pytest

import mpchain
import mpchain.functions as F


def scaled_by(task, x):
    return F.sum(mpchain.as_variable(x)) * task.scale


class Task:
    scale = 1.0

    def by_function(self, x):
        return scaled_by(self, x)

    def by_alias(self, x):
        me = self
        return F.sum(mpchain.as_variable(x)) * me.scale

    def by_other_name(this, x):
        return F.sum(mpchain.as_variable(x)) * this.scale

    def by_getattr(self, x):
        return F.sum(mpchain.as_variable(x)) * getattr(self, "scale", 0.0)

    def __call__(self, x):
        return self.by_function(x)


class Derived(Task):
    def by_super(self, x):
        return super().by_alias(x)


def of_a_task(name):
    task = Derived()
    task.own = 0
    return getattr(task, name), lambda: setattr(task, "scale", 3.0)


def of_a_namespace(make, read):
    options = make(scale=1.0, deep=make(scale=1.0))
    held = {"options": options, "more": [options]}

    def step(x):
        return F.sum(mpchain.as_variable(x)) * read(held)

    def change():
        options.scale = options.deep.scale = 3.0

    return step, change


def of_a_method():
    task = Task()

    def change():
        task.by_alias = lambda x: F.sum(mpchain.as_variable(x)) * 3

    return lambda x: task.by_alias(x), change


def of_a_class():
    class Local(Task):
        def value(self):
            return 1.0

    task = Local()
    return (
        lambda x: F.sum(mpchain.as_variable(x)) * task.value(),
        lambda: setattr(Local, "value", lambda self: 3.0),
    )


def of_a_set():
    frozen = {"a"}
    return (
        lambda x: F.sum(mpchain.as_variable(x)) * (1 if "a" in frozen else 3),
        lambda: (frozen.add("b"), frozen.remove("a")),
    )


def of_a_cache():
    table = {"scale": 1.0}

    @functools.cache
    def scale():
        return table["scale"]

    def change():
        table["scale"] = 3.0
        scale.cache_clear()

    return lambda x: F.sum(mpchain.as_variable(x)) * scale(), change


NAMESPACES = [types.SimpleNamespace, argparse.Namespace]
READ = {
    "in a dict": lambda held: held["options"].scale,
    "in a list": lambda held: held["more"][0].scale,
    "deep": lambda held: held["options"].deep.scale,
    "by vars": lambda held: vars(held["options"])["scale"],
}
CASES = {
    **{
        name: functools.partial(of_a_task, name)
        for name in "by_function by_alias by_other_name by_getattr by_super __call__".split()
    },
    **{
        f"{make.__name__} {where}": functools.partial(of_a_namespace, make, read)
        for make in NAMESPACES
        for where, read in READ.items()
    },
    "a method of an object": of_a_method,
    "a method of a class": of_a_class,
    "a set": of_a_set,
    "a cached function": of_a_cache,
}


@pytest.mark.parametrize("name", CASES)
def test_changes_are_seen(name):
    step, change = CASES[name]()
    captured = mpchain.capture(step)
    for i in range(12):
        x = np.full(3, i + 1.0)
        if i == 6:
            assert captured.reason is None
            change()
        assert captured(x).item() == step(x).item(), i
    assert captured.reason is None


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_objects_whose_getattr_raises():
    options = Attributes(scale=2.0)
    captured = mpchain.capture(lambda x: F.sum(mpchain.as_variable(x)) * options.scale)
    for i in range(8):
        options["scale"] = 2.0 if i < 5 else 5.0
        assert captured(np.ones(2)).item() == 2 * options["scale"]


@pytest.mark.parametrize("from_the_start", [False, True])
def test_arguments_that_share_memory(from_the_start):
    def step(x, y):
        y[...] = x * 2
        return F.sum(mpchain.as_variable(x) + y)

    def calls(function):
        for i in range(10):
            base = np.arange(4.0) + i
            apart = i < 5 and not from_the_start
            x, y = (base[:3].copy(), base[1:]) if apart else (base[:3], base[1:])
            yield function(x, y).item(), base.tolist()

    captured = mpchain.capture(step)
    with pytest.warns(UserWarning, match="is not replayed"):
        found = list(calls(captured))
    assert found == list(calls(step))


def test_windows_of_one_array_are_replayed():
    captured = mpchain.capture(lambda x, t: F.sum(mpchain.as_variable(x) * t))
    for i in range(8):
        tokens = np.arange(6.0) * i
        assert captured(tokens[:-1], tokens[1:]).item() == (tokens[:-1] * tokens[1:]).sum()
    assert captured.reason is None


def test_layouts_have_recordings_of_their_own():
    captured = mpchain.capture(lambda x: mpchain.as_variable(x.ravel("K") * np.arange(6.0)))
    for i in range(12):
        x = np.arange(6.0).reshape(2, 3) + i
        x = x if i < 6 else np.asfortranarray(x)
        assert captured(x).array.tolist() == (x.ravel("K") * np.arange(6.0)).tolist()
