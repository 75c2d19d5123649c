"""Time steps of recurrent cells, in loops for numba, because NumPy would pass ten times through the
gates.

Each function of a step receives the rows of one time step: gates (n, gates * N) in blocks, and
states (n, N). The loops are short: each loop reads few arrays, so that numba can vectorize it. The
loops call functions of :mod:`mpchain.kernels.cpu.special_loops`.
"""

import functools
from collections.abc import Callable, Sequence

from mpchain.configuration import config
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import special_loops
from mpchain.kernels.cpu.compiler import compile_written_loop, load_numba
from mpchain.typing import Array

_LSTM = """
def step(gates, x_, u, c, t, h, y, h_before, c_before):
    n, size = c.shape
    for row in range(n):
        a, xs, us, cs, ts, hs = gates[row], x_[row], u[row], c[row], t[row], h[row]
        ys, hs_before, cs_before = y[row], h_before[row], c_before[row]
        for j in range(size):
            x = xs[j] + us[j]
            a[j] = tanh(x)
        others, x_others, u_others = a[size:], xs[size:], us[size:]
        for j in range(3 * size):
            x = x_others[j] + u_others[j]
            others[j] = logistic(x)
        for j in range(size):
            hs_before[j] = hs[j]
        for j in range(size):
            cs_before[j] = cs[j]
        f = others[size:]
        for j in range(size):
            cs[j] = cs[j] * f[j] + a[j] * others[j]
        for j in range(size):
            ts[j] = tanh(cs[j])
        for j in range(size):
            hs[j] = others[j + 2 * size] * ts[j]
        for j in range(size):
            ys[j] = hs[j]
"""

_LSTM_BACKWARD = """
def step(gates, t, c_before, g, gh, gc, ggates):
    n, size = t.shape
    for row in range(n):
        for j in range(size):
            gh[row, j] += g[row, j]
        for j in range(size):
            o, y = gates[row, j + 3 * size], t[row, j]
            gc[row, j] += gh[row, j] * o * (ONE - y * y)
        for j in range(size):
            a = gates[row, j]
            ggates[row, j] = gc[row, j] * gates[row, j + size] * (ONE - a * a)
        for j in range(size):
            i = gates[row, j + size]
            ggates[row, j + size] = gc[row, j] * gates[row, j] * (i * (ONE - i))
        for j in range(size):
            f = gates[row, j + 2 * size]
            ggates[row, j + 2 * size] = gc[row, j] * c_before[row, j] * (f * (ONE - f))
        for j in range(size):
            o = gates[row, j + 3 * size]
            ggates[row, j + 3 * size] = gh[row, j] * t[row, j] * (o * (ONE - o))
        for j in range(size):
            gc[row, j] *= gates[row, j + 2 * size]
"""

_GRU = """
def step(gates, x_, u, b, u_n, h, y):
    n, size = h.shape
    both = 2 * size
    bn, b_both = b[both:], b[:both]
    for row in range(n):
        first, xs, us = gates[row, :both], x_[row, :both], u[row, :both]
        for j in range(both):
            x = xs[j] + (us[j] + b_both[j])
            first[j] = logistic(x)
        r, z, new = gates[row, :size], gates[row, size:both], gates[row, both:]
        xn, un, uns, hs, ys = x_[row, both:], u[row, both:], u_n[row], h[row], y[row]
        for j in range(size):
            uns[j] = un[j] + bn[j]
        for j in range(size):
            x = xn[j] + r[j] * uns[j]
            new[j] = tanh(x)
        for j in range(size):
            hs[j] = new[j] + z[j] * (hs[j] - new[j])
        for j in range(size):
            ys[j] = hs[j]
"""

_GRU_BACKWARD = """
def step(gates, u_n, h_before, g, gh, gx, gu):
    n, size = gh.shape
    both = 2 * size
    for row in range(n):
        r, z, new = gates[row, :size], gates[row, size:both], gates[row, both:]
        gr, gz, gn = gx[row, :size], gx[row, size:both], gx[row, both:]
        first, gxs, gun = gu[row, :both], gx[row, :both], gu[row, both:]
        un, hs, gs, ghs = u_n[row], h_before[row], g[row], gh[row]
        for j in range(size):
            ghs[j] += gs[j]
        for j in range(size):
            gn[j] = ghs[j] * (ONE - z[j]) * (ONE - new[j] * new[j])
        for j in range(size):
            gr[j] = gn[j] * un[j] * (r[j] * (ONE - r[j]))
        for j in range(size):
            gz[j] = ghs[j] * (hs[j] - new[j]) * (z[j] * (ONE - z[j]))
        for j in range(both):
            first[j] = gxs[j]
        for j in range(size):
            gun[j] = gn[j] * r[j]
        for j in range(size):
            ghs[j] *= z[j]
"""
# The chain of states of connectionist temporal classification: mpchain/functions/sequence_loss.py.
_CHAIN = """
def step(emissions, first, skips, begins, continues, arrivals, sums):
    n_steps, n, size = emissions.shape
    before = np.empty(size + 2, emissions.dtype)
    for row in range(n):
        for j in range(size + 2):
            before[j] = NEVER
        before[2] = first[0, row, 0]
        skip = skips[0, row]
        for t in range(n_steps):
            arrival, total, emission = arrivals[t, row], sums[t, row], emissions[t, row]
            for j in range(size):
                a, b, c = before[j + 2], before[j + 1], before[j] + skip[j]
                top = a if a > b else b
                top = c if c > top else top
                rest = exp(a - top) + exp(b - top) + exp(c - top) - ONE
                arrival[j] = log1p(rest) + top
            if begins[t, 0, row, 0]:
                for j in range(size):
                    arrival[j] = first[0, row, j]
            if continues[t, 0, row, 0]:
                for j in range(size):
                    before[j + 2] = arrival[j] + emission[j]
            for j in range(size):
                total[j] = before[j + 2]
"""
_TEXTS = {
    "chain": _CHAIN,
    "lstm": _LSTM,
    "lstm backward": _LSTM_BACKWARD,
    "gru": _GRU,
    "gru backward": _GRU_BACKWARD,
}


@functools.cache
def _compiled(name, dtype):
    text = _TEXTS[name].strip()
    for word, number in {"ONE": 1.0, "NEVER": -1e30}.items():
        text = text.replace(word, f"np.{dtype.name}({number})")
    head, _, rest = text.partition("\n")
    text = f"{head}\n    # {special_loops.fingerprint(dtype)}\n{rest}\n"
    known = special_loops.functions(dtype, load_numba().njit)
    return compile_written_loop("a step of cells", text, known, is_wide=True, fastmath={"contract"})


def compiled_step(
    name: str, arrays: Sequence[Array], least: int | None = None
) -> Callable[..., None] | None:
    """Returns the compiled step of a cell; None if NumPy should compute the step.

    Args:
        name: ``'lstm'``, ``'gru'``, ``'lstm backward'`` or ``'gru backward'``; ``'chain'`` names
            all steps of connectionist temporal classification.
        arrays: the arrays of the layer; the first array holds the gates of all time steps.
        least: the least number of gates to compile for; None means
            ``thresholds.compiled_cells``.

    Example:
        >>> compiled_step("lstm", [np.ones((2, 4))]) is None  # too small
        True
    """
    dtype, least = arrays[0].dtype, thresholds.compiled_cells if least is None else least
    if arrays[0].size < least or dtype.name not in ("float32", "float64"):
        return None
    if config.kernels or config.autotune or any(x.dtype != dtype for x in arrays):
        return None
    return _compiled(name, dtype) if load_numba() is not None else None
