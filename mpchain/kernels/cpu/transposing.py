"""Copies arrays between the plain layout and channels last, block by block."""

import functools

import numpy as np

from mpchain.kernels import thresholds
from mpchain.kernels.cpu.compiler import Switch, compile_loop, load_numba
from mpchain.kernels.cpu.numba_threads import run_rows
from mpchain.kernels.cpu.threads import n_parts

_BLOCK, _LEAST = 16, 64
_MANY = 1 << 15  # the least number of elements of an array


class Transposition:
    """A function that writes ``x`` (N, A, B) to ``y`` (N, B, A), both C-contiguous.

    A compiled loop moves blocks of 16 by 16 elements, for which NumPy would read or write a line of
    the cache for each element.

    Attributes:
        switch: decides when the loop moves elements instead of NumPy.

    Example:
        >>> x, y = np.arange(6.0).reshape(1, 2, 3), np.empty((1, 3, 2))
        >>> Transposition()(x, y)
        >>> y[0]
        array([[0., 3.],
               [1., 4.],
               [2., 5.]])
    """

    def __init__(self):
        self.switch = Switch()

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        if not self._pays(x):
            y[...] = x.transpose(0, 2, 1)
            return
        n_blocks = y.shape[1] // _BLOCK
        weight = x.size // thresholds.light_loop
        run_rows(_compiled(), len(x) * n_blocks, weight, x, y, n_blocks)

    def _pays(self, x):
        n, *sizes = x.shape
        if x.size < _MANY or x.dtype != np.float32 or any(size % _BLOCK for size in sizes):
            return False
        if min(sizes) < _LEAST and n_parts(n * sizes[1], x.size // thresholds.light_loop) == 1:
            return False
        return self.switch.is_due(x.size, _compiled) and load_numba() is not None


@functools.cache
def _compiled():
    return compile_loop(_move)


def _move(begin, end, x, y, n_blocks):
    for row in range(begin, end):
        part, first = y[row // n_blocks], row % n_blocks * 16
        source = x[row // n_blocks]
        for place in range(0, x.shape[1], 16):
            for i in range(16):
                for j in range(16):
                    part[first + i, place + j] = source[place + j, first + i]
