"""Marks of tests by what they need; what is not there is skipped, with the reason.

Each decorates a test function, a test class, or the classes that another decorator generated.
Without pytest, which selects tests by their marks, tests are skipped just the same.
"""

import os
import unittest

from mpchain.backends import cuda
from mpchain.testing.parameterized import Bundle


def mark(test, *names, skip_reason=None):
    """Returns a test with pytest marks, and skipped if there is a reason."""
    if isinstance(test, Bundle):
        test.classes = [mark(cls, *names, skip_reason=skip_reason) for cls in test.classes]
        return test
    try:
        import pytest
    except ImportError:
        pass
    else:
        for name in names:
            test = getattr(pytest.mark, name)(test)
        if skip_reason:
            test = pytest.mark.skip(reason=skip_reason)(test)
    return unittest.skip(skip_reason)(test) if skip_reason else test


def _why_no_gpus(count):
    limit = os.environ.get("CHAINER_TEST_GPU_LIMIT")
    if limit is not None and int(limit) < count:
        return f"{count} GPUs required, and CHAINER_TEST_GPU_LIMIT is {limit}"
    if not cuda.available:
        return f"{count} GPUs required: {cuda.unavailable_reason()}"
    available = cuda.cupy.cuda.runtime.getDeviceCount()
    return f"{count} GPUs required, but there are {available}" if available < count else None


def gpu(test):
    """Marks a test that needs a GPU."""
    return mark(test, "gpu", skip_reason=_why_no_gpus(1))


def multi_gpu(gpu_num):
    """Returns a decorator that marks a test that needs ``gpu_num`` GPUs."""
    return lambda test: mark(test, "gpu", "multi_gpu", skip_reason=_why_no_gpus(gpu_num))


def cudnn(test):
    """Marks a test that needs a GPU and uses cuDNN, if there is cuDNN."""
    return mark(test, "cudnn", skip_reason=_why_no_gpus(1))


def slow(test):
    """Marks a test that takes long."""
    return mark(test, "slow")


def ideep(test):
    """Marks a test that names iDeep; it runs on the CPU."""
    return mark(test, "ideep")


def chainerx(test):
    """Marks a test that needs ChainerX, and skips it: mpchain has none."""
    return mark(test, "chainerx", skip_reason="mpchain has no ChainerX")
