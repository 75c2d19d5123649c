"""Limits the threads of NumPy's BLAS, so that they do not compete with oneDNN's threads."""

import functools
import os
import threading
from collections.abc import Callable

import numpy as np

from mpchain.backends import linux
from mpchain.kernels.cpu import onednn
from mpchain.kernels.operation import SINGLE_OR_DOUBLE
from mpchain.kernels.reference import product


class _OneThread:
    """Context manager: OpenBLAS computes on one thread until the last Python thread has left the
    context."""

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


one_thread = _OneThread()


@functools.cache
def _openblas() -> tuple[Callable, Callable]:
    """Returns functions that get and set the number of threads of NumPy's OpenBLAS."""
    # the list of libraries is empty if NumPy uses another BLAS
    return next(iter(linux.openblas()), (lambda: 1, lambda n: None))


def _refuse(a, b, out=None):
    """Accepts stacks of matrices that are so large that NumPy's BLAS would use threads for each
    product."""
    if a.ndim == b.ndim == 2:
        return "two matrices"
    is_beside = onednn.has_threads_beside(a.shape[-2] * a.shape[-1] * b.shape[-1])
    return None if is_beside else "BLAS and oneDNN have no threads that would compete"


@product.kernel("blas", _refuse, SINGLE_OR_DOUBLE)
def _product(a, b, out=None):
    """Returns the product of ``a`` and ``b``, computed on one thread."""
    with one_thread:
        return np.matmul(a, b, out=out)
