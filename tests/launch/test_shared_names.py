"""Tests that names and values that the launcher and mpchain both define are the same in both."""

import ast
import pathlib
import re

import pytest

from launch import lost_ranks, rank, standstill, start_program
from mpchain.distributed.watch import notes, watchdog
from tests.tools.syntax import trees

ROOT = pathlib.Path(__file__).parents[2]
OF_ONE = {
    "launch": {"MPCHAIN_BIND", "MPCHAIN_LAUNCH", "MPCHAIN_LAUNCH_LOSSES", "MPCHAIN_RESUME"},
    "mpchain": {"MPCHAIN_COMPAT_NUMPY", "MPCHAIN_DATASET_ROOT"},
}
"""Environment variables that only the launcher, or only mpchain, uses."""


def variables(folder):
    nodes = (node for tree in trees(ROOT, folder).values() for node in ast.walk(tree))
    found = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return {x for x in found if isinstance(x, str) and re.fullmatch("MPCHAIN_[A-Z_]*[A-Z]", x)}


def test_variables_that_one_sets_the_other_reads():
    found = {folder: variables(folder) for folder in OF_ONE}
    assert {folder: names & OF_ONE[folder] for folder, names in found.items()} == OF_ONE
    assert found["launch"] - OF_ONE["launch"] == found["mpchain"] - OF_ONE["mpchain"]


@pytest.mark.parametrize(
    ("of_launcher", "of_mpchain"),
    [
        (lost_ranks.RESTART, notes.RESTART),
        (standstill.DEFAULT_TIMEOUT, watchdog.DEFAULT_TIMEOUT),
        (standstill.TIMEOUT_VARIABLE, watchdog.TIMEOUT_VARIABLE),
        (start_program.NOTES, notes.VARIABLE),
        (rank.NOTES, notes.VARIABLE),
        (rank.LOSSES, start_program.LOSSES),
    ],
)
def test_values(of_launcher, of_mpchain):
    assert of_launcher == of_mpchain
