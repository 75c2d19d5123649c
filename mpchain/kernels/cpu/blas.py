"""The threads of NumPy's BLAS, which stay out of the way of oneDNN's."""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from mpchain.kernels.cpu import onednn
from mpchain.kernels.cpu.onednn_matmul import matmul
from mpchain.typing import Array

_LEAST_SIZE = 8  # rows and columns of matrices in stacks that oneDNN multiplies


class _OneThread:
    """Context manager: OpenBLAS computes on one thread, until the last that entered has left."""

    def __init__(self):
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self):
        self.lock, self.depth, self.before = threading.Lock(), 0, 1

    def __enter__(self):
        get, set_ = _openblas()
        with self.lock:
            if not self.depth:
                self.before = get()
                set_(1)
            self.depth += 1

    def __exit__(self, *_):
        _, set_ = _openblas()
        with self.lock:
            self.depth -= 1
            if not self.depth:
                set_(self.before)


_one_thread = _OneThread()


@functools.cache
def _openblas() -> tuple[Callable, Callable]:
    """Returns functions that get and set the number of threads of NumPy's OpenBLAS."""
    with contextlib.suppress(OSError):
        for path in _loaded("openblas"):
            library = ctypes.CDLL(path)
            # NumPy's wheels rename its functions.
            for prefix, suffix in itertools.product(("scipy_", ""), ("64_", "")):
                with contextlib.suppress(AttributeError):
                    get = library[f"{prefix}openblas_get_num_threads{suffix}"]
                    return get, library[f"{prefix}openblas_set_num_threads{suffix}"]
    return (lambda: 1), (lambda n: None)  # another BLAS


def _loaded(name) -> Iterator[str]:
    """Paths of loaded libraries of a name, NumPy's first."""
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line}
    found = [path for path in paths if name in os.path.basename(path)]
    return iter(sorted(found, key=lambda path: ("numpy" not in path, path)))


def multiply_stacks(a: Array, b: Array, out: Array | None = None) -> Array:
    """Multiplies stacks of matrices as ``numpy.matmul``: by oneDNN, or beside it on one thread.

    Example:
        >>> multiply_stacks(np.ones((4, 2, 3)), np.ones((4, 3, 1))).shape
        (4, 2, 1)
    """
    if type(a) is not np.ndarray or not onednn.is_shared(math.prod(a.shape) * b.shape[-1]):
        return np.matmul(a, b, out=out)
    if _is_for_primitive(a, b, out):
        y = np.empty((*a.shape[:-1], b.shape[-1]), np.float32) if out is None else out
        matmul(a, b, y)
        return y
    if onednn.is_shared(a.shape[-2] * a.shape[-1] * b.shape[-1]):
        with _one_thread:
            return np.matmul(a, b, out=out)
    return np.matmul(a, b, out=out)


def _is_for_primitive(a, b, out):
    """Whether oneDNN multiplies the stacks on its threads: of single precision, without repeats."""
    return (
        a.dtype == b.dtype == np.float32
        and a.shape[:-2] == b.shape[:-2]
        and min(a.shape[-2:] + b.shape[-1:]) >= _LEAST_SIZE
        and (out is None or (out.dtype == np.float32 and out.flags.c_contiguous))
        and _has_lines(a)
        and _has_lines(b)
    )


def _has_lines(x):
    """Whether elements of rows or columns lie side by side, and nothing lies in two places."""
    *_, down, right = x.strides
    lines = (down >= 4 * x.shape[-1]) if right == 4 else (down == 4 and right >= 4 * x.shape[-2])
    return lines and all(step > 0 and step % 4 == 0 for step in x.strides)
