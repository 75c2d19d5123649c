"""A layer of recurrent cells over all time steps, on arrays: forward and first derivative.

A cell's ``forward`` takes what the input contributes to the gates at all times, (rows, gates * N),
the matrices of the state, and the first states (B, N). ``spans`` are the slices of the rows of
each time step, in the order in which the steps are taken: a step concerns the first rows of the
states, those of sequences that are not over (or, backwards, have begun). It returns the outputs
(rows, N) and the final states, and what its ``backward`` needs, beside the gradients of these.

In backward, all that does not depend on the gradient is computed at once for all times, and the
gradients of matrices are one product each: what remains in the loop is little.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from mpchain.kernels.logistic import logistic
from mpchain.kernels.reference import product
from mpchain.typing import Array

Spans: TypeAlias = list[slice]


def _sigmoid_slope(y):
    return y - y * y


def _tanh_slope(y):
    return 1 - y * y


def _spread(g, factors):
    """Multiplies each gate's factors (n, gates * N) by the gradient (n, N), in place."""
    n, size = g.shape
    gates = factors.reshape(n, factors.shape[1] // size, size)  # a view, as only an axis is split
    gates *= g[:, None]


class Lstm:
    """Gates in blocks a, i, f, o: c = tanh(a) s(i) + c s(f), h = tanh(c) s(o).

    Example:
        >>> x, R, h = np.zeros((2, 4 * 3)), np.zeros((4 * 3, 3)), np.zeros((1, 3))
        >>> (y, h, c), kept = Lstm.forward([slice(0, 1), slice(1, 2)], x, R, h, h)
        >>> y.shape, h.shape
        ((2, 3), (1, 3))
    """

    @staticmethod
    def forward(spans: Spans, gates: Array, R: Array, h: Array, c: Array) -> tuple[tuple, tuple]:
        gates, h, c = gates.copy(), h.copy(), c.copy()
        size = h.shape[1]
        y, tanh_c, h_before, c_before = np.empty((4, len(gates), size), gates.dtype)
        work = np.empty((len(h), 4 * size), gates.dtype)
        for rows in spans:
            n = rows.stop - rows.start
            g, hn, cn, t = gates[rows], h[:n], c[:n], tanh_c[rows]
            h_before[rows], c_before[rows] = hn, cn
            g += product(hn, R.T, work[:n])
            np.tanh(g[:, :size], out=g[:, :size])
            logistic(g[:, size:], out=g[:, size:])
            a, i, f, o = (g[:, k * size : (k + 1) * size] for k in range(4))
            cn *= f
            cn += np.multiply(a, i, out=t)
            np.tanh(cn, out=t)
            np.multiply(o, t, out=hn)
            y[rows] = hn
        return (y, h, c), (gates, tanh_c, h_before, c_before)

    @staticmethod
    def backward(spans: Spans, gys: Sequence[Array], kept: tuple, R: Array) -> tuple:
        gates, tanh_c, h_before, c_before = kept
        gy, gh, gc = (g.copy() for g in gys)
        size = gh.shape[1]
        a, i, f, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
        factors = np.concatenate(
            [
                i * _tanh_slope(a),
                a * _sigmoid_slope(i),
                c_before * _sigmoid_slope(f),
                tanh_c * _sigmoid_slope(o),
            ],
            axis=1,
        )
        of_c = o * _tanh_slope(tanh_c)
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn, gcn, ggates = gy[rows], gh[:n], gc[:n], factors[rows]
            g += ghn
            of_c[rows] *= g
            gcn += of_c[rows]
            _spread(gcn, ggates[:, : 3 * size])
            ggates[:, 3 * size :] *= g
            gcn *= f[rows]
            product(ggates, R, ghn)
        return factors, product(factors.T, h_before), gh, gc


class Gru:
    """Gates in blocks r, z, n: n = tanh(x_n + s(r) u_n), h = n + s(z) (h - n), u = R h + b.

    Example:
        >>> x, R, b, h = np.zeros((2, 9)), np.zeros((9, 3)), np.zeros(9), np.zeros((1, 3))
        >>> (y, h), kept = Gru.forward([slice(0, 1), slice(1, 2)], x, R, b, h)
        >>> y.shape, h.shape
        ((2, 3), (1, 3))
    """

    @staticmethod
    def forward(spans: Spans, x: Array, R: Array, b: Array, h: Array) -> tuple[tuple, tuple]:
        h, size = h.copy(), h.shape[1]
        gates = np.empty_like(x)
        y, u_n, h_before = np.empty((3, len(x), size), x.dtype)
        work = np.empty((len(h), 3 * size), x.dtype)
        for rows in spans:
            n = rows.stop - rows.start
            g, hn, u = gates[rows], h[:n], work[:n]
            h_before[rows] = hn
            product(hn, R.T, u)
            u += b
            u_n[rows] = u[:, 2 * size :]
            np.add(x[rows, : 2 * size], u[:, : 2 * size], out=g[:, : 2 * size])
            logistic(g[:, : 2 * size], out=g[:, : 2 * size])
            r, z, new = (g[:, k * size : (k + 1) * size] for k in range(3))
            np.multiply(r, u_n[rows], out=new)
            new += x[rows, 2 * size :]
            np.tanh(new, out=new)
            hn -= new
            hn *= z
            hn += new
            y[rows] = hn
        return (y, h), (gates, u_n, h_before)

    @staticmethod
    def backward(spans: Spans, gys: Sequence[Array], kept: tuple, R: Array, b: Array) -> tuple:
        gates, u_n, h_before = kept
        gy, gh = (g.copy() for g in gys)
        size = gh.shape[1]
        r, z, new = (gates[:, k * size : (k + 1) * size] for k in range(3))
        of_n = (1 - z) * _tanh_slope(new)
        factors = np.concatenate(
            [of_n * u_n * _sigmoid_slope(r), (h_before - new) * _sigmoid_slope(z), of_n * r],
            axis=1,
        )
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn, gu = gy[rows], gh[:n], factors[rows]
            g += ghn
            _spread(g, gu)
            product(gu, R, ghn)
            ghn += g * z[rows]
        gx = factors.copy()
        np.multiply(gy, of_n, out=gx[:, 2 * size :])
        return gx, product(factors.T, h_before), factors.sum(axis=0), gh


class Simple:
    """One gate: h = f(x + R h), f being tanh or relu.

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
        for rows in spans:
            n = rows.stop - rows.start
            g, hn = y[rows], h[:n]
            h_before[rows] = hn
            product(hn, R.T, g)
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
        for rows in reversed(spans):
            n = rows.stop - rows.start
            g, ghn = gy[rows], gh[:n]
            g += ghn
            g *= slope[rows]
            product(g, R, ghn)
        return gy, product(gy.T, h_before), gh
