"""Tests mpchain.run, which runs a function on several ranks."""

import importlib
import sys
import threading

import pytest

import mpchain
from mpchain.distributed import notebooks as ranks_module

from .distributed import ranks

cloudpickle = pytest.importorskip("cloudpickle")


@pytest.mark.slow
def test_results_arguments_and_output(tmp_path, monkeypatch, capsys):
    (tmp_path / "module_of_a_user.py").write_text("def answer(x):\n    return 10 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    module, offset = importlib.import_module("module_of_a_user"), 3

    def function(x):
        print("seen here")
        return module.answer(x) + offset

    assert mpchain.run(function, 4, n=1) == [43]
    assert "seen here\n" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_an_exception_comes_back_with_its_traceback():
    def fail():
        raise KeyError("boom")

    with pytest.raises(KeyError, match="boom") as caught:
        mpchain.run(fail, n=1)
    (note,) = caught.value.__notes__
    assert note.startswith("on rank 0:\nTraceback") and note.endswith("KeyError: 'boom'")
    assert "in fail" in note and "mpchain/distributed/notebooks.py" not in note


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_that_ends_by_itself():
    with pytest.raises(
        RuntimeError, match=r"^run: the ranks ended with exit code 3, .*rank 0 of 1"
    ):
        mpchain.run(sys.exit, 3, n=1)


def _sum_of_ranks(fails):
    comm = mpchain.create_communicator()
    if fails and comm.rank == 1:
        raise ValueError(f"boom on {comm.size}")
    return comm.rank, comm.allreduce_obj(comm.rank)


@pytest.mark.long
@pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not())
def test_two_ranks(capsys):
    assert mpchain.run(_sum_of_ranks, False, n=2) == [(0, 1), (1, 1)]
    with pytest.raises(ValueError, match="boom on 2") as caught:
        mpchain.run(_sum_of_ranks, True, n=2)
    assert caught.value.__notes__[0].startswith("on rank 1:\n")
    assert "Traceback" not in capsys.readouterr().out


class OwnError(Exception):
    """An exception that unpickling cannot create again, because it passes only one argument."""

    def __init__(self, first, second):
        super().__init__(first)


@pytest.mark.parametrize("error", [OwnError("one", 2), ValueError(threading.Lock())])
def test_an_exception_that_cannot_be_sent_comes_back_as_another(error):
    try:
        raise error
    except Exception as raised:
        answer = ranks_module._describe(raised, 1, cloudpickle)
    _, substitute, note = cloudpickle.loads(answer)
    assert type(substitute) is RuntimeError
    assert str(substitute) == f"{type(error).__name__}: {error}"
    assert note.startswith("on rank 1:\n") and type(error).__name__ in note


@pytest.mark.annex("launcher")
def test_without_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        RuntimeError, match=r"run: cloudpickle is missing: pip install 'mpchain\[mpi\]'"
    ):
        mpchain.run(print, n=1)
