"""Random numbers from NumPy: each device has a generator, which differs from NumPy's own."""

import functools
import os

import numpy as np

from cupy import _machine
from cupy._array import refuse_host_arrays, run
from cupy._contract import check_name, check_parameters
from cupy._graphs import refuse_library
from cupy._machine import check_dtype

_states = {}


class RandomState:
    """A generator; like CuPy's, it cannot return its state."""

    def __init__(self, seed=None, method=None):
        self.seed(seed)

    def seed(self, seed=None):
        # CuPy's own kernels get this number, which the host counts.
        self._rk_seed = int.from_bytes(os.urandom(8)) if seed is None else int(seed)
        # The same seed must not draw the same numbers as NumPy's generator.
        seed = None if seed is None else [int(seed) % 2**32, 0x6770]
        self._generator = np.random.RandomState(seed)

    def _get_seed(self, size):
        seed, self._rk_seed = self._rk_seed, (self._rk_seed + size) % (2**64 - 1)
        return seed

    def __getattr__(self, name):
        check_name("cupy.random.RandomState", name)
        return functools.partial(self._draw, "cupy.random.RandomState", name)

    def _draw(self, module, name, *args, dtype=None, **kwargs):
        refuse_library("cuRAND")
        given = kwargs if dtype is None else {**kwargs, "dtype": dtype}
        check_parameters(module, name, args, given)
        refuse_host_arrays(name, [*args, *kwargs.values()])
        if dtype is not None:
            check_dtype(dtype)
        function = getattr(self._generator, name)

        def draw(*args, **kwargs):
            result = function(*args, **kwargs)
            return result if dtype is None else np.asarray(result, dtype)

        writes = args[:1] if name == "shuffle" else ()
        return run(name, draw, args, kwargs, writes=writes)


def get_random_state():
    """Returns the generator of the current device."""
    return _states.setdefault(_machine.here.device, RandomState(_machine.here.device))


def set_random_state(rs):
    """Sets the generator of the current device."""
    if not isinstance(rs, RandomState):
        raise TypeError(f"Random state must be an instance of RandomState. Actual: {type(rs)}")
    _states[_machine.here.device] = rs


def seed(seed=None):
    """Seeds the generator of the current device."""
    get_random_state().seed(seed)


def __getattr__(name):
    check_name("cupy.random", name)
    return lambda *args, **kwargs: get_random_state()._draw("cupy.random", name, *args, **kwargs)
