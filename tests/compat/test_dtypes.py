"""Tests the dtypes that arguments may have under compat, against answers of Chainer 7.8.1 that are
stored beside the programs."""

import pathlib
import runpy
import warnings

import pytest

PROGRAMS = pathlib.Path(__file__).parent / "dtypes"
DIFFERENT = {
    "GroupNormalization d": "Chainer computes it, but fails in backward; here it has a gradient",
    "bilinear e e e": "Chainer takes float32 alone",
    "bilinear d d d": "Chainer takes float32 alone",
}


@pytest.mark.parametrize("name", ["functions", "links"])
def test_dtypes_are_taken_as_in_chainer(name, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    found = capsys.readouterr().out.splitlines()
    expected = (PROGRAMS / f"{name}.txt").read_text("utf-8").splitlines()
    assert len(found) == len(expected) > 20
    unlike = [
        (a, b) for a, b in zip(found, expected) if a != b and not b.startswith(tuple(DIFFERENT))
    ]
    assert not unlike
