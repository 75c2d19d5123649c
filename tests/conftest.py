"""What all tests share: the device that a test runs on, and fresh seeds."""

import gc
import os
import pathlib
import signal

import numpy as np
import pytest
import tqdm

from mpchain.backends import cuda

# The programs that tests start shall find mpchain too, installed or not.
_ROOT = str(pathlib.Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell starts what runs in the background with Ctrl-C ignored, which programs inherit that tests
# interrupt; a handler they do not inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Its thread would stay for the rest of the run; some tests need to be alone.
tqdm.tqdm.monitor_interval = 0


def pytest_collection_modifyitems(config, items):
    """Where there is no GPU, leaves out what needs one, or skips it if ``-m gpu`` asks for it."""
    on_gpu = [item for item in items if "gpu" in item.keywords]
    if not on_gpu or cuda.available:
        return
    if "gpu" in config.option.markexpr:
        reason = pytest.mark.skip(reason=f"needs a GPU: {cuda.unavailable_reason()}")
        for item in on_gpu:
            item.add_marker(reason)
    else:
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if "gpu" not in item.keywords]


def pytest_collection_finish():
    # Thousands of items live until the end: collections of garbage in tests need not visit them.
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
def device(request):
    """The specifier of a device: the test runs on each."""
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)
