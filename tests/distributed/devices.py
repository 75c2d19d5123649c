"""Devices of the tests' variants, and helper functions for both variants.

A file whose tests also run on GPUs has ``ON_GPUS = True``: each test that uses the fixture ``comm``
then has a variant with NCCL's communicator, where every rank has its own GPU.
"""

import contextlib

import numpy as np

import mpchain
from mpchain.backends import cuda

_current = [mpchain.get_device("@numpy")]


@contextlib.contextmanager
def using(device):
    """Context manager in which a device is the current device and the tests' device."""
    _current.append(device)
    try:
        with device.create_context():
            yield
    finally:
        _current.pop()


class _ArrayModule:
    """The array module of the variant: NumPy or CuPy."""

    def __getattr__(self, name):
        return getattr(_current[-1].xp, name)


xp = _ArrayModule()


def on_gpus():
    """Returns whether the current variant is the one on GPUs."""
    return _current[-1].xp is not np


def on_device(x):
    """Moves arrays, also in tuples and lists, or a link to the device of the variant."""
    if isinstance(x, mpchain.Link):
        x.to_device(_current[-1])
        return x
    return _current[-1].send(x)


def host(x):
    """Moves an array, or arrays in tuples and lists, to the host."""
    if isinstance(x, (tuple, list)):
        return [host(item) for item in x]
    return cuda.to_cpu(x) if cuda.is_gpu_array(x) else x


def assert_allclose(actual, expected, *tolerances, **options):
    """Calls NumPy's function of this name for arrays on any device."""
    options = {name: host(option) for name, option in options.items()}
    np.testing.assert_allclose(host(actual), host(expected), *tolerances, **options)


def assert_array_equal(actual, expected, **options):
    """Calls NumPy's function of this name for arrays on any device."""
    np.testing.assert_array_equal(host(actual), host(expected), **options)


def address(array):
    """Returns the address of an array."""
    return array.data.ptr if cuda.is_gpu_array(array) else array.ctypes.data
