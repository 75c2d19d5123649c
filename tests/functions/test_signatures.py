"""Tests that every function that Chainer documents exists, with the same parameters and
defaults."""

import inspect
import pathlib

import pytest

import mpchain.functions as F

_LINES = (pathlib.Path(__file__).parent / "signatures.txt").read_text().splitlines()
SIGNATURES = [line for line in _LINES if line and not line.startswith("#")]


def test_there_are_216():
    assert len({line.partition("(")[0] for line in SIGNATURES}) == 216


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.partition("(")[0])
def test_signature(line):
    name, _, _ = line.partition("(")
    namespace = {}
    exec(f"def {line}: pass", namespace)
    documented = inspect.signature(namespace[name]).parameters
    ours = inspect.signature(getattr(F, name)).parameters
    # Parameters that only mpchain has come last, or are keywords.
    shared = [p for p in ours.values() if p.name in documented]
    assert [(p.name, p.default) for p in shared] == [
        (p.name, p.default) for p in documented.values()
    ]
    assert [p.name for p in ours.values()][: len(shared)] == [p.name for p in shared]
    for parameter in shared:
        if documented[parameter.name].kind is parameter.POSITIONAL_OR_KEYWORD:
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    assert all(p.default is not p.empty for p in ours.values() if p.name not in documented)
