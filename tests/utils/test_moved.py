"""Tests old import paths of public modules."""

import importlib
import sys
import warnings

import pytest

import mpchain
from mpchain.utils.moved import MOVED, NICKNAMES

ANNEX = {"exporters": "interop", "kernels": "gpu_kernels", "profiling": "profiling"}


def of_annexes(names):
    """Returns names as parameters, with marks of the annexes to which they belong today."""
    annexes = {old: ANNEX.get(new.split(".")[1]) for old, new in names.items()}
    return [
        pytest.param(old, marks=pytest.mark.annex(annex)) if annex else old
        for old, annex in annexes.items()
    ]


@pytest.mark.parametrize("old", of_annexes(MOVED))
def test_old_paths_warn_and_give_the_module_of_today(old):
    sys.modules.pop(old, None)
    with pytest.warns(FutureWarning, match=f"{old} is {MOVED[old]} now") as caught:
        exec(f"import {old}")
    module = sys.modules[old]
    assert module is importlib.import_module(MOVED[old])
    assert module.__spec__.name == MOVED[old]
    assert [w.filename for w in caught] == ["<string>"]


def test_old_attributes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert mpchain.ranks is importlib.import_module("mpchain.distributed.notebooks")


@pytest.mark.parametrize("nickname", of_annexes(NICKNAMES))
def test_nicknames_warn_of_nothing(nickname):
    assert importlib.import_module(nickname) is importlib.import_module(NICKNAMES[nickname])


def test_no_other_names_are_found():
    with pytest.raises(ModuleNotFoundError, match=r"mpchain\.nonsense"):
        importlib.import_module("mpchain.nonsense")
