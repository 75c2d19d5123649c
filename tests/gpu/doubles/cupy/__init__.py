"""A strict double of CuPy on host memory, which refuses what CuPy refuses, and faults that CuPy
cannot see.

It computes with NumPy, and accepts only names and parameters that the real CuPy has
(``mpchain.testing.cupy_contract``). In addition to NumPy, it has devices, streams and events, so
that accesses to memory without an order are errors. ``cupy.double`` records what happened. The
environment variable CUPY_DOUBLE_DEVICES sets the number of devices, which is 2 by default.
"""

import sys

import numpy as _np

from cupy import _machine
from cupy._contract import CONTRACT as _CONTRACT
from cupy._machine import ledger as double

from cupy._array import OutOfBoundsError, ndarray  # isort: skip
from cupy import _functions, cuda, fft, linalg, random, testing  # isort: skip
from cupy._functions import asnumpy, copyto, ufunc, where
from cupy._kernels import ElementwiseKernel, RawKernel, RawModule, ReductionKernel
from cupy.cuda import get_default_memory_pool, get_default_pinned_memory_pool

__version__ = _CONTRACT["version"]

__getattr__ = _functions.finder("cupy", _np)


def get_array_module(*args):
    """Returns this module if an argument is one of its arrays, otherwise NumPy."""
    return sys.modules[__name__] if any(isinstance(x, ndarray) for x in args) else _np


def fuse(*args, **kwargs):
    """Returns the function unchanged, because the double fuses nothing."""
    return args[0] if args and callable(args[0]) else lambda function: function


def is_available():
    """Returns True."""
    return True
