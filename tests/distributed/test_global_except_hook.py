"""Tests the hook by which an exception on one rank ends all ranks."""

import sys
import threading
import types

import pytest

from mpchain.distributed import global_except_hook


class World:
    """Replaces MPI.COMM_WORLD."""

    def __init__(self, rank, size):
        self.rank, self.size, self.aborted = rank, size, []

    def Abort(self, code):
        self.aborted.append(code)


def raise_(error):
    raise error


@pytest.fixture
def handle_by(monkeypatch):
    """Returns a function that sets the handlers of exceptions in the main thread and in other
    threads."""

    def handle_by(hook, of_threads):
        monkeypatch.setattr(sys, "excepthook", hook)
        monkeypatch.setattr(threading, "excepthook", of_threads)

    return handle_by


@pytest.fixture
def hook(handle_by, monkeypatch):
    """Installs the hook; returns a function that lets it handle an exception in a given world."""
    handled = []
    handle_by(lambda *exc_info: handled.append(exc_info), handled.append)
    global_except_hook.add_hook()

    def handle(world, initialized=True, finalized=False, in_thread=None):
        mpi = types.SimpleNamespace(
            COMM_WORLD=world,
            Is_initialized=lambda: initialized,
            Is_finalized=lambda: finalized,
        )
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi if world else None)
        if in_thread is not None:
            thread = threading.Thread(target=raise_, args=[in_thread], name="helper")
            thread.start()
            thread.join()
            return len(handled)
        try:
            raise KeyError("lost")
        except KeyError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        return len(handled)

    return handle


def test_aborts_all_ranks_and_says_which_one_failed(hook, capsys):
    world = World(3, 8)
    assert hook(world) == 0
    assert world.aborted == [1]
    error = capsys.readouterr().err
    assert error.startswith("rank 3 of 8:\nTraceback")
    assert error.endswith("KeyError: 'lost'\n")


def test_aborts_all_ranks_for_an_exception_in_a_thread(hook, capsys):
    world = World(3, 8)
    assert hook(world, in_thread=KeyError("lost")) == 0
    assert world.aborted == [1]
    error = capsys.readouterr().err
    assert error.startswith("rank 3 of 8:\nexception in thread 'helper'\nTraceback")
    assert error.endswith("KeyError: 'lost'\n")


@pytest.mark.parametrize(
    ("world", "error"), [(None, KeyError("lost")), (World(0, 1), KeyError("lost"))]
)
def test_calls_the_former_hook_of_threads_where_there_are_no_other_ranks(hook, world, error):
    assert hook(world, in_thread=error) == 1
    assert world is None or world.aborted == []


def test_a_thread_may_end_by_sys_exit(hook):
    world = World(0, 2)
    hook(world, in_thread=SystemExit(3))
    assert world.aborted == []


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (None, {}),
        (World(0, 1), {}),
        (World(0, 2), {"initialized": False}),
        (World(0, 2), {"finalized": True}),
    ],
    ids=["no MPI", "one rank", "not initialized", "finalized"],
)
def test_calls_the_former_hook_where_there_are_no_other_ranks(hook, world, options):
    assert hook(world, **options) == 1
    assert world is None or world.aborted == []


def test_is_installed_once(hook):
    installed = sys.excepthook, threading.excepthook
    global_except_hook.add_hook()
    assert (sys.excepthook, threading.excepthook) == installed


@pytest.mark.parametrize("name", global_except_hook.ENVIRONMENT_VARIABLES)
@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_environment_variables(handle_by, name, value, expected):
    before = sys.__excepthook__
    handle_by(before, threading.__excepthook__)
    global_except_hook.add_hook_if_asked({name: value})
    assert (sys.excepthook is not before) is expected


def test_a_communicator_of_several_ranks_installs_it(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks, because one waits for no other")
    assert type(sys.excepthook).__name__ == "_AbortAllRanks"
