"""Tests that links accept the parameters that Chainer documents, in the same order."""

import inspect
import pathlib

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L

_LINES = (pathlib.Path(__file__).parent / "signatures.txt").read_text().splitlines()
SIGNATURES = [line for line in _LINES if line and not line.startswith("#")]


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.partition("(")[0])
def test_signature(line):
    name, _, _ = line.partition("(")
    namespace = {"F": F, "np": np}
    exec(f"def {line}: pass", namespace)
    documented = inspect.signature(namespace[name]).parameters
    ours = inspect.signature(getattr(L, name)).parameters
    for parameter in documented.values():
        mine = ours[parameter.name]
        # An argument that is optional in mpchain may be required in Chainer.
        assert mine.default == parameter.default or parameter.default is parameter.empty
        assert mine.kind in (parameter.kind, parameter.POSITIONAL_OR_KEYWORD)
    places = [n for n, p in documented.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(places)] == places
    assert all(p.default is not p.empty for n, p in ours.items() if n not in documented)
