"""What all tests share: the device that a test runs on, and fresh seeds."""

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


def pytest_collection_modifyitems(items):
    if any("gpu" in item.keywords for item in items) and not cuda.available:
        reason = pytest.mark.skip(reason=f"needs a GPU: {cuda.unavailable_reason()}")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(reason)


@pytest.fixture(params=["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
def device(request):
    """The specifier of a device: the test runs on each."""
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    np.random.seed(0)
