"""Decorators that mark tests by their requirements, and skip those that cannot run.

Each decorator accepts a test function, a test class, or the classes that another decorator
generated. pytest selects tests by their marks; tests that cannot run are also skipped without
pytest.
"""

import os
import unittest
from collections.abc import Callable
from typing import Any

from mpchain.backends import cuda
from mpchain.testing.parameterized import Bundle


def mark(test: Callable, *names: str, skip_reason: str | None = None) -> Any:
    """Adds pytest marks to a test, and skips the test if ``skip_reason`` is given.

    Example:
        >>> @mark
        ... def test_anywhere(): ...
    """
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


def why_no_gpus(count: int) -> str | None:
    """Returns why a test that needs ``count`` GPUs cannot run; None if the test can run.

    Example:
        >>> why_no_gpus(0) is None or "GPUs required: 0" in why_no_gpus(0)
        True
    """
    limit = os.environ.get("CHAINER_TEST_GPU_LIMIT")
    if limit is not None and int(limit) < count:
        return f"GPUs required: {count}, and CHAINER_TEST_GPU_LIMIT is {limit}"
    if not cuda.available:
        return f"GPUs required: {count} ({cuda.unavailable_reason()})"
    available = cuda.cupy.cuda.runtime.getDeviceCount()
    return (
        f"GPUs required: {count}, but this process sees only {available}"
        if available < count
        else None
    )


def gpu(test: object) -> Any:
    """Marks a test that needs a GPU.

    Example:
        >>> @testing.attr.gpu
        ... def test_on_a_gpu():
        ...     assert mpchain.cuda.cupy.zeros(2).device.id == 0
    """
    return mark(test, "gpu", skip_reason=why_no_gpus(1))


def multi_gpu(gpu_num: int) -> Callable[[Any], Any]:
    """Returns a decorator that marks a test that needs ``gpu_num`` GPUs.

    Example:
        >>> @testing.attr.multi_gpu(2)
        ... def test_copy():
        ...     mpchain.cuda.to_gpu(mpchain.cuda.cupy.zeros(2), device=1)
    """
    return lambda test: mark(test, "gpu", "multi_gpu", skip_reason=why_no_gpus(gpu_num))


def cudnn(test: object) -> Any:
    """Marks a test that needs a GPU, and uses cuDNN if it is installed.

    Example:
        >>> @testing.attr.cudnn
        ... def test_with_cudnn(): ...
    """
    return mark(test, "cudnn", skip_reason=why_no_gpus(1))


def slow(test: object) -> Any:
    """Marks a test that takes a long time.

    Example:
        >>> @testing.attr.slow
        ... def test_of_minutes(): ...
    """
    return mark(test, "slow")


def ideep(test: object) -> Any:
    """Marks a test that names iDeep; it runs on the CPU.

    Example:
        >>> @testing.attr.ideep  # doctest: +SKIP
        ... def test_of_chainer(): ...
    """
    return mark(test, "ideep")


def chainerx(test: object) -> Any:
    """Marks a test that needs ChainerX, and skips it: mpchain has none.

    Example:
        >>> @testing.attr.chainerx  # doctest: +SKIP
        ... def test_of_chainer(): ...
    """
    return mark(test, "chainerx", skip_reason="mpchain has no ChainerX")
