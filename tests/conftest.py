"""Fixtures and settings for all tests: devices, fresh seeds, and a clock and a terminal under the
test's control."""

import compileall
import gc
import importlib.metadata
import io
import os
import pathlib
import select
import signal
import sys
import time

import numpy as np
import pytest
import tqdm
from _pytest.runner import runtestprotocol

from mpchain.annexes import ANNEXES
from mpchain.backends import cuda
from mpchain.kernels.cpu import compiler
from tests import skips

# The programs that tests start must find mpchain, whether it is installed or not.
_ROOT = str(pathlib.Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell starts background programs with Ctrl-C ignored, and child processes inherit an ignored
# signal, but not a handler. Tests interrupt such processes, so this process installs a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These folders contain programs, not tests.
collect_ignore = ["benchmarks", "tools", "compat/programs", "compat/chainermn_programs"]
collect_ignore += ["compat/dtypes", "gpu/doubles"]

# These tests make a thousand comparisons with Chainer, which needs a separate environment.
if not os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON"):
    collect_ignore.append("oracle")

LONGER_THAN_SLOW = ("long", "nightly")

# The thread of tqdm's monitor would run until the end of all tests, but during some tests no other
# thread may run.
tqdm.tqdm.monitor_interval = 0


def pytest_addoption(parser):
    parser.addoption(
        "--gpu",
        choices=["double"],
        help="runs the GPU variants on a double of CuPy on host memory, without a GPU",
    )
    parser.addoption(
        "--nccl",
        choices=["nccl4py", "cupy", "pynccl"],
        help="the binding by which the tests call NCCL; default: the one that programs use",
    )


def pytest_configure(config):
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        # Tests start hundreds of programs and ranks, and each of them would compile the modules.
        for folder in ("mpchain", "launch"):
            compileall.compile_dir(os.path.join(_ROOT, folder), quiet=2)
    if config.option.gpu == "double":
        folder = str(pathlib.Path(__file__).parent / "gpu" / "doubles")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
        import cupy

        assert cupy.__file__.startswith(folder), "another CuPy was imported before the double"
        assert cuda.available, cuda.unavailable_reason()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselects tests that need a GPU where there is none, tests of a deleted annex, and tests that
    take too long.

    ``-m gpu`` skips the tests that need a GPU, with a reason; ``-m long`` and ``-m nightly`` run
    the tests with these marks.
    """
    asked, out = config.option.markexpr, set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        too_long = marks.intersection(LONGER_THAN_SLOW)
        if too_long:
            item.add_marker("slow")
        on_gpu = not cuda.available and "gpu" in marks
        annexes = {name for mark in item.iter_markers("annex") for name in mark.args}
        if not annexes <= ANNEXES.keys():
            out.add(item)
        elif on_gpu and "gpu" in asked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {cuda.unavailable_reason()}"))
        elif on_gpu or not all(mark in asked for mark in too_long):
            out.add(item)
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Skips the search for examples in docstrings of tests, which have no examples."""
    found = yield
    return [each for each in found if type(each) is pytest.Module]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Sends fewer reports from a worker of xdist; each report takes about 0.7 ms of CPU time.

    Each test has three reports. Nothing shows those of a setup and a teardown that pass quickly.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("xmlpath", None):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= 0.005:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_collection():
    gc.disable()


def pytest_collection_finish():
    # Thousands of items live until the end, so garbage collections in tests need not visit them.
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
def device(request):
    """Returns the specifier of a device; the test runs once for each device."""
    return request.param


@pytest.fixture(params=["known at once", "known late"])
def when(request, monkeypatch):
    """Sets when the host learns the result of a step on a GPU: before the next step, or as late as
    possible."""
    if request.param == "known late":
        monkeypatch.setattr(cuda.cupy.cuda.Event, "done", False)


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)


class Clock:
    """Replaces sleep and the monotonic clocks: time passes in sleep, at each reading, and when a
    test sets it.

    Attributes:
        now: the time in seconds.
        step: the number of seconds that pass at each reading of the clock.
        naps: the seconds of each call of sleep.
        wake: a function that each call of sleep calls with its seconds.
    """

    def __init__(self):
        self.now, self.step, self.naps, self.wake = 0.0, 0.0, [], lambda seconds: None

    def look(self):
        self.now += self.step
        return self.now - self.step

    def sleep(self, seconds):
        self.now += seconds
        self.naps.append(seconds)
        self.wake(seconds)


@pytest.fixture
def clock(monkeypatch):
    """Returns the :class:`Clock` that replaces sleep and the monotonic clocks of this process."""
    clock = Clock()
    in_ns = lambda: round(1e9 * clock.look())
    looks = {"monotonic": clock.look, "perf_counter": clock.look, "perf_counter_ns": in_ns}
    for name, function in {"sleep": clock.sleep, **looks}.items():
        monkeypatch.setattr(time, name, function)
    return clock


class Terminal(io.StringIO):
    """Replaces a terminal, and stores the text that was written."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Returns a function that replaces standard error with a :class:`Terminal`, and returns the
    Terminal."""

    def open_terminal():
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        return terminal

    return open_terminal


@pytest.fixture
def command_line(monkeypatch):
    """Returns a function that sets the command line with which this process seems to have been
    started."""

    def command_line(*words, python="python3"):
        monkeypatch.setattr(sys, "argv", [*words])
        monkeypatch.setattr(sys, "orig_argv", [python, *words])

    return command_line


@pytest.fixture
def double(request):
    """Returns the ledger of the double; see Ledger in tests/gpu/doubles/cupy/_machine.py."""
    if request.config.option.gpu != "double":
        pytest.skip("needs the double of CuPy, which counts: --gpu=double")
    import cupy

    return cupy.double


@pytest.fixture
def calls_of(monkeypatch):
    """Returns a function that starts a list of the calls of a function, which still runs.

    Each call adds its positional arguments, or what ``note`` returns for them.
    """

    def calls_of(owner, name, note=lambda *args: args):
        calls, function = [], getattr(owner, name)

        def noted(*args, **kwargs):
            calls.append(note(*args))
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)
        return calls

    return calls_of


@pytest.fixture
def quick_processes(monkeypatch):
    """Lets processes that tests start skip the import of pytest, the main module."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@pytest.fixture
def has_ended():
    """Returns a function that waits for a process to end, and returns whether it has ended in
    time."""

    def has_ended(process):
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], 10)[0])
        finally:
            os.close(descriptor)

    return has_ended


@pytest.fixture
def pretend_installed(monkeypatch):
    """Returns a function that sets which requirements mpchain seems to have (None: mpchain is not
    installed) and which packages seem to be installed."""

    def pretend(requirements, is_installed):
        def requires(name):
            if requirements is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return requirements

        def version(name):
            if not is_installed(name):
                raise importlib.metadata.PackageNotFoundError(name)
            return "1"

        monkeypatch.setattr(importlib.metadata, "requires", requires)
        monkeypatch.setattr(importlib.metadata, "version", version)

    return pretend


@pytest.fixture
def pretend_cupy(monkeypatch):
    """Returns a function that replaces CuPy with an object, as if there were a GPU."""

    def pretend(cupy):
        monkeypatch.setattr(cuda, "cupy", cupy, raising=False)
        monkeypatch.setattr(cuda, "check_cuda_available", lambda: None)
        return cupy

    return pretend


@pytest.fixture
def without_numba(monkeypatch):
    """Makes numba appear not to be installed."""
    monkeypatch.setattr(compiler, "load_numba", lambda: None)


@pytest.fixture
def python_at(monkeypatch):
    """Returns a function that sets the path of the running Python."""
    return lambda path: monkeypatch.setattr(sys, "executable", str(path))


@pytest.fixture
def environment_at(monkeypatch):
    """Returns a function that sets the folder of the running Python's environment."""

    def environment_at(path):
        for name in ("prefix", "exec_prefix"):
            monkeypatch.setattr(sys, name, str(path))

    return environment_at


@pytest.fixture
def import_from(monkeypatch):
    """Returns a function that sets the only folders from which modules are imported."""
    return lambda *folders: monkeypatch.setattr(sys, "path", [str(path) for path in folders])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fails a test in which memory of the imitated GPU was used without a defined order of
    streams."""
    result = yield
    if item.config.option.gpu == "double":
        import cupy

        faults = [*cupy.double.faults]
        cupy.double.reset()
        assert not faults, "\n".join(faults)
    return result


def pytest_terminal_summary(terminalreporter):
    """Prints one line that says why tests were skipped."""
    places = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    line = skips.summary([place[2] for place in places if type(place) is tuple])
    if line:
        terminalreporter.write_line(line)
