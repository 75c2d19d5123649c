"""Computes a layer of recurrent cells over all time steps, on arrays: the outputs and the first
derivative.

The method ``forward`` of a cell gets the input's contribution to the gates at all times, (rows,
gates * N), the matrix that multiplies the state, and the initial states (B, N). ``spans`` are the
slices of the rows of each time step, in the order of computation. A step changes only the first
rows of the states, which belong to sequences that have not ended (in the backward direction, to
sequences that have begun). ``forward`` returns the outputs (rows, N), the final states, and the
values that ``backward`` needs besides the gradients of the outputs and final states.

In ``backward``, NumPy computes all values that do not depend on the gradient at once for all times
(a compiled step computes them itself), and the gradient of each matrix is a single product, so that
little work remains in the loop.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from mpchain.kernels.cpu.numba_cells import compiled_step
from mpchain.kernels.cpu.onednn import repeated_product
from mpchain.kernels.logistic import logistic
from mpchain.kernels.reference import product
from mpchain.typing import Array

Spans: TypeAlias = list[slice]

_REPEATED = 3  # a matrix is rearranged once for all steps if there are at least this many steps


def _sigmoid_slope(y):
    return y - y * y


def _tanh_slope(y):
    return 1 - y * y


def _spread(g, factors):
    """Multiplies the factors of each gate, (n, gates * N), by the gradient (n, N), in place."""
    n, size = g.shape
    # This reshape is a view, because it only splits an axis.
    gates = factors.reshape(n, factors.shape[1] // size, size)
    gates *= g[:, None]


def _multiplier(spans: Spans, matrix: Array) -> Callable[[Array, Array], object]:
    """Returns a function that multiplies the rows of a time step by a matrix and writes the product
    to another array."""
    steps = Counter(rows.stop - rows.start for rows in spans)
    repeated = {n: repeated_product(matrix, n) for n in steps if steps[n] >= _REPEATED}

    def multiply(x, out):
        known = repeated.get(len(x))
        return product(x, matrix, out) if known is None else known(x, out)

    return multiply


class Lstm:
    """The LSTM, whose gates are in blocks a, i, f, o: c = tanh(a) s(i) + c s(f), h = tanh(c) s(o).

    Example:
        >>> x, R, h = np.zeros((2, 4 * 3)), np.zeros((4 * 3, 3)), np.zeros((1, 3))
        >>> (y, h, c), kept = Lstm.forward([slice(0, 1), slice(1, 2)], x, R, h, h)
        >>> y.shape, h.shape
        ((2, 3), (1, 3))
    """

    @staticmethod
    def forward(spans: Spans, x: Array, R: Array, h: Array, c: Array) -> tuple[tuple, tuple]:
        step = compiled_step("lstm", (x, R, h, c)) or _lstm_step
        h, c, size, x = h.copy("C"), c.copy("C"), h.shape[1], np.ascontiguousarray(x)
        gates = np.empty(x.shape, x.dtype)
        y, tanh_c, h_before, c_before = np.empty((4, len(x), size), x.dtype)
        work = np.empty((len(h), 4 * size), x.dtype)
        multiply = _multiplier(spans, R.T)
        for rows in spans:
            n = rows.stop - rows.start
            hn, cn, u = h[:n], c[:n], work[:n]
            multiply(hn, u)
            before = h_before[rows], c_before[rows]
            step(gates[rows], x[rows], u, cn, tanh_c[rows], hn, y[rows], *before)
        return (y, h, c), (gates, tanh_c, h_before, c_before)

    @staticmethod
    def backward(spans: Spans, gys: Sequence[Array], kept: tuple, R: Array) -> tuple:
        gates, tanh_c, h_before, c_before = kept
        gy, gh, gc = (g.copy("C") for g in gys)
        step = compiled_step("lstm backward", (gates, *kept, gy, gh, gc))
        if step is None:
            factors, of_c = _lstm_factors(gates, tanh_c, c_before)
        else:
            factors = np.empty_like(gates)
        multiply, size = _multiplier(spans, R), gh.shape[1]
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn, gcn, ggates = gy[rows], gh[:n], gc[:n], factors[rows]
            if step is None:
                g += ghn
                of_c[rows] *= g
                gcn += of_c[rows]
                _spread(gcn, ggates[:, : 3 * size])
                ggates[:, 3 * size :] *= g
                gcn *= gates[rows, 2 * size : 3 * size]
            else:
                step(gates[rows], tanh_c[rows], c_before[rows], g, ghn, gcn, ggates)
            multiply(ggates, ghn)
        return factors, product(factors.T, h_before), gh, gc


def _lstm_step(g, x, u, c, t, h, y, h_before, c_before):
    """Computes the gates of a time step, and updates the states, in place."""
    size = c.shape[1]
    h_before[...], c_before[...] = h, c
    np.add(x, u, out=g)
    np.tanh(g[:, :size], out=g[:, :size])
    logistic(g[:, size:], out=g[:, size:])
    a, i, f, o = (g[:, k * size : (k + 1) * size] for k in range(4))
    c *= f
    c += np.multiply(a, i, out=t)
    np.tanh(c, out=t)
    np.multiply(o, t, out=h)
    y[...] = h


def _lstm_factors(gates, tanh_c, c_before):
    """Returns the factors of the gradients of the gates and of the memory."""
    size = tanh_c.shape[1]
    a, i, f, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    factors = [
        i * _tanh_slope(a),
        a * _sigmoid_slope(i),
        c_before * _sigmoid_slope(f),
        tanh_c * _sigmoid_slope(o),
    ]
    return np.concatenate(factors, axis=1), o * _tanh_slope(tanh_c)


class Gru:
    """The GRU, whose gates are in blocks r, z, n: n = tanh(x_n + s(r) u_n), h = n + s(z) (h - n), u
    = R h + b.

    Example:
        >>> x, R, b, h = np.zeros((2, 9)), np.zeros((9, 3)), np.zeros(9), np.zeros((1, 3))
        >>> (y, h), kept = Gru.forward([slice(0, 1), slice(1, 2)], x, R, b, h)
        >>> y.shape, h.shape
        ((2, 3), (1, 3))
    """

    @staticmethod
    def forward(spans: Spans, x: Array, R: Array, b: Array, h: Array) -> tuple[tuple, tuple]:
        step = compiled_step("gru", (x, R, b, h)) or _gru_step
        h, size, x, b = h.copy("C"), h.shape[1], np.ascontiguousarray(x), np.ascontiguousarray(b)
        gates = np.empty(x.shape, x.dtype)
        y, u_n, h_before = np.empty((3, len(x), size), x.dtype)
        work = np.empty((len(h), 3 * size), x.dtype)
        multiply = _multiplier(spans, R.T)
        for rows in spans:
            n = rows.stop - rows.start
            hn, u = h[:n], work[:n]
            h_before[rows] = hn
            multiply(hn, u)
            step(gates[rows], x[rows], u, b, u_n[rows], hn, y[rows])
        return (y, h), (gates, u_n, h_before)

    @staticmethod
    def backward(spans: Spans, gys: Sequence[Array], kept: tuple, R: Array, b: Array) -> tuple:
        gates, u_n, h_before = kept
        gy, gh = (g.copy("C") for g in gys)
        size = gh.shape[1]
        step = compiled_step("gru backward", (gates, *kept, gy, gh))
        multiply = _multiplier(spans, R)
        if step is None:
            gu, of_n = _gru_factors(*kept)
        else:
            gx, gu = np.empty_like(gates), np.empty_like(gates)
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn, gun = gy[rows], gh[:n], gu[rows]
            if step is None:
                g += ghn
                _spread(g, gun)
                gzn = g * gates[rows, size : 2 * size]
            else:
                step(gates[rows], u_n[rows], h_before[rows], g, ghn, gx[rows], gun)
                gzn = ghn.copy()
            multiply(gun, ghn)
            ghn += gzn
        if step is None:
            gx = gu.copy()
            np.multiply(gy, of_n, out=gx[:, 2 * size :])
        return gx, product(gu.T, h_before), gu.sum(axis=0), gh


def _gru_step(g, x, u, b, u_n, h, y):
    """Computes the gates of a time step, and updates the state, in place."""
    size = h.shape[1]
    u += b
    u_n[...] = u[:, 2 * size :]
    np.add(x[:, : 2 * size], u[:, : 2 * size], out=g[:, : 2 * size])
    logistic(g[:, : 2 * size], out=g[:, : 2 * size])
    r, z, new = (g[:, k * size : (k + 1) * size] for k in range(3))
    np.multiply(r, u_n, out=new)
    new += x[:, 2 * size :]
    np.tanh(new, out=new)
    h -= new
    h *= z
    h += new
    y[...] = h


def _gru_factors(gates, u_n, h_before):
    """Returns the factors of gradients for the state's contribution to the gates, and for n."""
    size = u_n.shape[1]
    r, z, new = (gates[:, k * size : (k + 1) * size] for k in range(3))
    of_n = (1 - z) * _tanh_slope(new)
    factors = [of_n * u_n * _sigmoid_slope(r), (h_before - new) * _sigmoid_slope(z), of_n * r]
    return np.concatenate(factors, axis=1), of_n


class Simple:
    """The simple recurrent unit: h = f(x + R h), where f is tanh or relu.

    Example:
        >>> x, R, h = np.ones((1, 2)), np.eye(2), np.ones((1, 2))
        >>> (y, h), kept = Simple(is_tanh=False).forward([slice(0, 1)], x, R, h)
        >>> y
        array([[2., 2.]])
    """

    def __init__(self, is_tanh: bool):
        self.is_tanh = is_tanh

    def forward(self, spans: Spans, x: Array, R: Array, h: Array) -> tuple[tuple, tuple]:
        h, y = h.copy(), np.empty_like(x)
        h_before = np.empty_like(x)
        multiply = _multiplier(spans, R.T)
        for rows in spans:
            n = rows.stop - rows.start
            g, hn = y[rows], h[:n]
            h_before[rows] = hn
            multiply(hn, g)
            g += x[rows]
            if self.is_tanh:
                np.tanh(g, out=g)
            else:
                np.maximum(g, 0, out=g)
            hn[...] = g
        return (y, h), (y, h_before)

    def backward(self, spans: Spans, gys: Sequence[Array], kept: tuple, R: Array) -> tuple:
        y, h_before = kept
        gy, gh = (g.copy() for g in gys)
        slope = _tanh_slope(y) if self.is_tanh else (y > 0).astype(y.dtype)
        multiply = _multiplier(spans, R)
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn = gy[rows], gh[:n]
            g += ghn
            g *= slope[rows]
            multiply(g, ghn)
        return gy, product(gy.T, h_before), gh
