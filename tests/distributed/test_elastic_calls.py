"""Tests that the MPI calls of elastic communicators raise errors if ranks are killed during the
calls."""

import ast
import pathlib

import pytest

import mpchain.distributed
from mpchain.distributed.communicators import Communicator
from tests.distributed import elastic, elastic_calls

COMMUNICATORS = {"mpi_comm", "host", "_host", "world", "base", "_messages", "library_comm", "ends"}
"""Names of attributes that are mpi4py's objects, whose methods have the same names as mpchain's."""

NO_DATA = {
    "Abort": "ends the job",
    "Free": "of communicators that were made before; nothing waits for it",
    "Get_failed": "local",
    "Get_group": "local",
    "Is_revoked": "local",
    "Ack_failed": "local",
    "Iprobe": "local",
    "Recv": "of a message that is here already, of the watchdog's thread",
    "Revoke": "not collective",
    "Shrink": "made to lose ranks; each of the calls is followed by one",
    "Agree": "made to lose ranks",
}
"""Maps methods that need no test here, such as those that transfer no values, to the reason."""


def _methods_used():
    mpi = pytest.importorskip("mpi4py.MPI")
    known = {name for name in dir(mpi.Comm) if callable(getattr(mpi.Comm, name))}
    found = {}
    for path in pathlib.Path(mpchain.distributed.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name, owner = node.func.attr, node.func.value
                owner = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                is_ours = hasattr(Communicator, name) and owner not in COMMUNICATORS
                if name in known and not is_ours:
                    found.setdefault(name, f"{path.name}:{node.lineno}")
    return found


def test_each_call_of_mpi_is_tried_or_a_known_defect(needs_mpirun):
    used = _methods_used()
    tried = {*elastic_calls.OF_MPI, *elastic_calls.TOGETHER}
    assert tried <= used.keys()
    assert {"Dup", "Split", "Split_type"} == used.keys() & elastic_calls.DEFECTS.keys(), used
    others = used.keys() - tried - elastic_calls.DEFECTS.keys() - NO_DATA.keys()
    assert not others, {name: used[name] for name in others}


@pytest.fixture(scope="module")
def _reason():
    return elastic.why_not()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long)
        for name in elastic_calls.OF_MPI + elastic_calls.OF_COMMUNICATORS
    ],
)
def test_a_call_raises_an_error_or_returns_what_it_should(name, needs_mpirun, _reason):
    if _reason:
        pytest.skip(_reason)
    assert elastic_calls.lose_ranks_in(name, 0) == ("", True)


@pytest.mark.nightly
@pytest.mark.parametrize("n", [1, 3000])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("name", elastic_calls.OF_MPI + elastic_calls.OF_COMMUNICATORS)
def test_calls_at_more_moments(name, seed, n, needs_mpirun, _reason):
    if _reason:
        pytest.skip(_reason)
    assert elastic_calls.lose_ranks_in(name, seed, n) == ("", True)
