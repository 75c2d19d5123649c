"""The threads of NumPy's BLAS, which stay out of the way of oneDNN's."""

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from mpchain.kernels.cpu import onednn
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.kernels.reference import product


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


def _refuse(a, b, out=None):
    """Takes stacks of matrices so large that NumPy's BLAS would use threads for each of them."""
    if a.ndim == b.ndim == 2:
        return "two matrices"
    is_beside = onednn.has_threads_beside(a.shape[-2] * a.shape[-1] * b.shape[-1])
    return None if is_beside else "no threads of oneDNN that it would be in the way of"


@product.kernel("blas", _refuse, SINGLE_OR_DOUBLE)
def _product(a, b, out=None):
    """a b, on one thread."""
    with _one_thread:
        return np.matmul(a, b, out=out)
