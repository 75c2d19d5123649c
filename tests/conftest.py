"""What all tests share: the device of a test, fresh seeds, and a clock and a terminal to be set."""

import gc
import importlib.metadata
import io
import os
import pathlib
import signal
import sys
import time

import numpy as np
import pytest
import tqdm

from mpchain.annexes import ANNEXES
from mpchain.backends import cuda
from mpchain.kernels.cpu import numba_cpu
from tests import skips

# The programs that tests start shall find mpchain too, installed or not.
_ROOT = str(pathlib.Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell starts what runs in the background with Ctrl-C ignored, which programs inherit that tests
# interrupt; a handler they do not inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The following modules are programs.
collect_ignore = ["benchmarks", "tools", "compat/programs", "compat/chainermn_programs"]
collect_ignore += ["compat/dtypes", "gpu/doubles"]

# A thousand comparisons with Chainer, which has an environment of its own.
if not os.environ.get("MPCHAIN_TEST_CHAINER_PYTHON"):
    collect_ignore.append("oracle")

LONGER_THAN_SLOW = ("long", "nightly")

# The monitor's thread would stay for the rest of the run, and some tests need to be alone.
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
        help="by what the tests call NCCL; default: what programs use",
    )


def pytest_configure(config):
    if config.option.gpu == "double":
        folder = str(pathlib.Path(__file__).parent / "gpu" / "doubles")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
        import cupy

        assert cupy.__file__.startswith(folder), "another CuPy was imported before the double"
        assert cuda.available, cuda.unavailable_reason()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what needs a GPU where there is none, a deleted annex, and what takes too long.

    ``-m gpu`` skips with a reason instead, ``-m long`` and ``-m nightly`` run them.
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
    """Leaves out the search for examples in docstrings: tests have none."""
    found = yield
    return [each for each in found if type(each) is pytest.Module]


def pytest_collection():
    gc.disable()


def pytest_collection_finish():
    # Thousands of items live until the end: collections of garbage in tests need not visit them.
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
def device(request):
    """The specifier of a device: the test runs on each."""
    return request.param


@pytest.fixture(params=["known at once", "known late"])
def when(request, monkeypatch):
    """Whether the host learns of a step on a GPU before the next one, or as late as possible."""
    if request.param == "known late":
        monkeypatch.setattr(cuda.cupy.cuda.Event, "done", False)


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)


class Clock:
    """Takes the place of the system's clock: time passes in sleep and when a test says so.

    Attributes:
        now: seconds.
        step: seconds that pass with each look at the clock.
        naps: the seconds of each sleep.
        wake: a function that each sleep calls with its seconds.
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
    """The :class:`Clock` of the whole process."""
    clock = Clock()
    in_ns = lambda: round(1e9 * clock.look())
    looks = {"monotonic": clock.look, "perf_counter": clock.look, "perf_counter_ns": in_ns}
    for name, function in {"sleep": clock.sleep, **looks}.items():
        monkeypatch.setattr(time, name, function)
    return clock


class Terminal(io.StringIO):
    """What was written to a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Function that returns a :class:`Terminal`, which takes the place of standard error."""

    def open_terminal():
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        return terminal

    return open_terminal


@pytest.fixture
def command_line(monkeypatch):
    """Function that sets the words with which this process was started."""

    def command_line(*words, python="python3"):
        monkeypatch.setattr(sys, "argv", [*words])
        monkeypatch.setattr(sys, "orig_argv", [python, *words])

    return command_line


@pytest.fixture
def quick_processes(monkeypatch):
    """Processes that tests start need not import pytest, the main module."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@pytest.fixture
def pretend_installed(monkeypatch):
    """Function that says what mpchain requires, None if it is not installed, and what there is."""

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
    """Function that puts an object in the place of CuPy, as where there is a GPU."""

    def pretend(cupy):
        monkeypatch.setattr(cuda, "cupy", cupy, raising=False)
        monkeypatch.setattr(cuda, "check_cuda_available", lambda: None)
        return cupy

    return pretend


@pytest.fixture
def without_numba(monkeypatch):
    """As where numba is not installed."""
    monkeypatch.setattr(numba_cpu, "load_numba", lambda: None)


@pytest.fixture
def python_at(monkeypatch):
    """Function that says where the running Python is."""
    return lambda path: monkeypatch.setattr(sys, "executable", str(path))


@pytest.fixture
def environment_at(monkeypatch):
    """Function that says in which folder the environment of the running Python is."""

    def environment_at(path):
        for name in ("prefix", "exec_prefix"):
            monkeypatch.setattr(sys, name, str(path))

    return environment_at


@pytest.fixture
def import_from(monkeypatch):
    """Function that says from which folders alone modules are imported."""
    return lambda *folders: monkeypatch.setattr(sys, "path", [str(path) for path in folders])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fails a test in which memory was used without an order."""
    result = yield
    if item.config.option.gpu == "double":
        import cupy

        faults = [*cupy.double.faults]
        cupy.double.reset()
        assert not faults, "\n".join(faults)
    return result


def pytest_terminal_summary(terminalreporter):
    """Says in one line why tests were skipped."""
    places = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    line = skips.summary([place[2] for place in places if type(place) is tuple])
    if line:
        terminalreporter.write_line(line)
