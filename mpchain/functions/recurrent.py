"""Recurrent cells."""

import functools

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.formulas.writer import fused
from mpchain.functions.activation import sigmoid
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.joining import stacked, with_zeros
from mpchain.kernels.logistic import logistic
from mpchain.typing import Input, Output
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable

# Gates are concatenated on the second axis. They are in blocks, one gate after another, or
# interleaved, with the gates of a unit next to each other.


def _split_derivative(gys, x_shape, n, is_interleaved):
    shape = (x_shape[0], x_shape[1] // n, *x_shape[2:])
    return (_join_gates.on(with_zeros(gys, [shape] * n), is_interleaved),)


@differentiable(joint=_split_derivative, n_arrays=1)
def _split_gates(x, n, is_interleaved) -> tuple[Output, ...]:
    size, rest = x.shape[1] // n, x.shape[2:]
    if is_interleaved:
        gates = x.reshape(x.shape[0], size, n, *rest)
        return tuple([gates[:, :, k] for k in range(n)])
    gates = x.reshape(x.shape[0], n, size, *rest)
    return tuple([gates[:, k] for k in range(n)])


@differentiable(
    joint=lambda g, xs_shape, is_interleaved: _split_gates.on(g, len(xs_shape), is_interleaved)
)
def _join_gates(xs, is_interleaved):
    first = xs[0]
    joined = stacked(xs, 2 if is_interleaved else 1)
    return joined.reshape(first.shape[0], first.shape[1] * len(xs), *first.shape[2:])


# The function below is the common part of LSTM, S-LSTM and tree LSTM: a memory cell with any number
# of terms that are written, tanh(a) sigmoid(i), and any number of previous memories that are kept,
# c sigmoid(f).


def _activated(cs, writes, forgets, o):
    writes = [(np.tanh(a), sigmoid.on(i)) for a, i in writes]
    forgets = [sigmoid.on(f) for f in forgets]
    terms = [a * i for a, i in writes] + [f * c for f, c in zip(forgets, cs)]
    return writes, forgets, sigmoid.on(o), functools.reduce(lambda x, y: x + y, terms)


@fused
def _cell(cs, writes, forgets, o):
    _, _, o, c = _activated(cs, writes, forgets, o)
    return c, o * np.tanh(c)


@fused
def _cell_gradients(gc, gh, cs, writes, forgets, o):
    writes, forgets, o, c = _activated(cs, writes, forgets, o)
    t = np.tanh(c)
    go = gh * t * (o - o * o)
    gc = gc + gh * o * (1 - t * t)
    gwrites = [(gc * i * (1 - a * a), gc * a * (i - i * i)) for a, i in writes]
    gforgets = [gc * c * (f - f * f) for c, f in zip(cs, forgets)]
    return tuple([gc * f for f in forgets]), gwrites, gforgets, go


# The functions below compute the same bits as the functions above for an LSTM's NumPy arrays, but
# first copy the gates into blocks, because functions of contiguous gates take half the time of
# functions of every fourth element.


def _are_plain(c_prev, x):
    """Returns whether arrays are plain NumPy arrays of single or double precision, and no sequence
    has ended."""
    return (
        type(x) is type(c_prev) is np.ndarray
        and x.dtype is c_prev.dtype
        and x.dtype.char in "fd"
        and len(x) == len(c_prev)
    )


def _laid_out(x, is_interleaved):
    """Returns the activated gates a, i, f, o in a new array, (4, N, H, ...)."""
    size = x.shape[1] // 4
    shape, axes = ((size, 4), (2, 0, 1)) if is_interleaved else ((4, size), (1, 0, 2))
    parts = x.reshape(x.shape[0], *shape, *x.shape[2:])
    gates = parts.transpose(*axes, *range(3, parts.ndim)).copy("C")
    np.tanh(gates[0], out=gates[0])
    logistic(gates[1:], out=gates[1:])
    return gates


def _lstm_of_plain(c_prev, x, is_interleaved):
    a, i, f, o = _laid_out(x, is_interleaved)
    c = np.multiply(a, i, out=a)
    c += np.multiply(f, c_prev, out=f)
    return c, np.multiply(o, np.tanh(c), out=o)


def _lstm_gradients_of_plain(gys, c_prev, x, is_interleaved):
    gates = _laid_out(x, is_interleaved)
    gc, gh = with_zeros(gys, (c_prev.shape, c_prev.shape))
    a, i, f, o = gates
    t = a * i
    t += f * c_prev
    np.tanh(t, out=t)
    ggates = np.empty_like(gates)
    slopes = gates * gates
    np.subtract(gates[1:], slopes[1:], out=slopes[1:])
    np.subtract(_ONES[x.dtype], slopes[0], out=slopes[0])
    np.multiply(gh, t, out=ggates[3])
    d = gh * o
    t *= t
    d *= np.subtract(_ONES[x.dtype], t, out=t)
    d += gc
    np.multiply(d, i, out=ggates[0])
    np.multiply(d, a, out=ggates[1])
    np.multiply(d, c_prev, out=ggates[2])
    ggates *= slopes
    d *= f
    axes = (1, 2, 0) if is_interleaved else (1, 0, 2)
    return d, ggates.transpose(*axes, *range(3, ggates.ndim)).reshape(x.shape)


# Up to this number of gate elements, _lstm_gradients_of_plain is faster than the general gradient.
_FEW = 1 << 15
_ONES = {np.dtype(char): np.ones((), char) for char in "fd"}


def _head(x, n):
    return x if x.shape[0] == n else x[:n]


def _lstm_derivative(gys, c_prev, x, is_interleaved):
    n = x.shape[0]
    are_plain = x.size <= _FEW and _are_plain(c_prev, x)
    if are_plain and all(g is None or type(g) is np.ndarray for g in gys):
        return _lstm_gradients_of_plain(gys, c_prev, x, is_interleaved)
    gc, gh = with_zeros(gys, (c_prev.shape, (n, *c_prev.shape[1:])))
    a, i, f, o = _split_gates.on(x, 4, is_interleaved)
    gcs, ((ga, gi),), (gf,), go = _cell_gradients(
        _head(gc, n), gh, [_head(c_prev, n)], [(a, i)], [f], o
    )
    if n < c_prev.shape[0]:
        gcs = [np.concatenate([*gcs, gc[n:]], axis=0)]
    return gcs[0], _join_gates.on([ga, gi, gf, go], is_interleaved)


@differentiable(joint=_lstm_derivative, n_arrays=2)
def _lstm(c_prev, x, is_interleaved) -> tuple[Output, ...]:
    n = x.shape[0]
    if _are_plain(c_prev, x):
        return _lstm_of_plain(c_prev, x, is_interleaved)
    a, i, f, o = _split_gates.on(x, 4, is_interleaved)
    c, h = _cell([_head(c_prev, n)], [(a, i)], [f], o)
    if n < c_prev.shape[0]:
        c = get_array_module(c).concatenate([c, c_prev[n:]])
    return c, h


def _check_cell(name, c, x, n_gates, argument="c_prev"):
    floating = is_floating(x.dtype) and c.dtype == x.dtype
    check(
        floating,
        name,
        "the memory and x must have the same floating-point dtype",
        **{argument: c},
        x=x,
    )
    alike = c.ndim == x.ndim > 1 and c.shape[2:] == x.shape[2:]
    fits = alike and x.shape[1] == n_gates * c.shape[1]
    if not fits:
        rule = (
            f"the second axis of x must be {n_gates} times as long as the second axis of "
            f"{argument}, and the axes after these must be equal"
        )
        fail(name, rule, **{argument: c}, x=x)


def lstm(c_prev: Input, x: Input) -> tuple[Variable, Variable]:
    """Cell of the long short-term memory: c = tanh(a) s(i) + c_prev s(f), h = tanh(c) s(o).

    Here s is the sigmoid, and a, i, f and o are ``x[:, 0::4]``, ``x[:, 1::4]``, ``x[:, 2::4]`` and
    ``x[:, 3::4]``. If ``x`` has fewer rows than ``c_prev``, because sequences have ended, the
    remaining rows of ``c_prev`` are copied to c.

    Args:
        c_prev: Variable or array (M, H, ...), floating point: the previous memory.
        x: Variable or array (N, 4 H, ...), of the same dtype; N is at most M.

    Returns:
        tuple: c (M, H, ...) and h (N, H, ...), Variables.

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> c, h = F.lstm(np.zeros((2, 3)), np.zeros((2, 12)))
        >>> c.shape, h.shape
        ((2, 3), (2, 3))

    See S. Hochreiter and J. Schmidhuber, Long short-term memory, 1997, with the forget gate of
    F. Gers et al., Learning to forget, 2000.
    """
    _check_cell("lstm", c_prev, x, 4)
    rows = c_prev.shape[0] >= x.shape[0]
    check(rows, "lstm", "x must not have more rows than c_prev", c_prev=c_prev, x=x)
    c, h = _lstm(c_prev, x, True)
    return c, h


def _slstm_derivative(gys, c_prev1, c_prev2, x1, x2):
    gc, gh = with_zeros(gys, (c_prev1.shape, c_prev1.shape))
    a1, i1, f1, o1 = _split_gates.on(x1, 4, True)
    a2, i2, f2, o2 = _split_gates.on(x2, 4, True)
    gcs, gwrites, gforgets, go = _cell_gradients(
        gc, gh, [c_prev1, c_prev2], [(a1, i1), (a2, i2)], [f1, f2], o1 + o2
    )
    return *gcs, *(_join_gates.on([*g, gf, go], True) for g, gf in zip(gwrites, gforgets))


@differentiable(joint=_slstm_derivative, n_arrays=4)
def _slstm(c_prev1, c_prev2, x1, x2) -> tuple[Output, ...]:
    a1, i1, f1, o1 = _split_gates.on(x1, 4, True)
    a2, i2, f2, o2 = _split_gates.on(x2, 4, True)
    return _cell([c_prev1, c_prev2], [(a1, i1), (a2, i2)], [f1, f2], o1 + o2)


def slstm(c_prev1: Input, c_prev2: Input, x1: Input, x2: Input) -> tuple[Variable, Variable]:
    """S-LSTM: long short-term memory with two predecessors, which share an output gate.

    c = tanh(a1) s(i1) + c_prev1 s(f1) + tanh(a2) s(i2) + c_prev2 s(f2), h = tanh(c) s(o1 + o2),
    with the layout of gates of :func:`lstm`.

    Args:
        c_prev1, c_prev2: Variables or arrays (N, H, ...), floating point: the previous memories.
        x1, x2: Variables or arrays (N, 4 H, ...), of the same dtype.

    Returns:
        tuple: c and h, Variables (N, H, ...).

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> c, x = np.zeros((2, 3)), np.zeros((2, 12))
        >>> c, h = F.slstm(c, c, x, x)
        >>> c.shape, h.shape
        ((2, 3), (2, 3))

    See X. Zhu et al., Long short-term memory over tree structures, ICML 2015.
    """
    for c, x in ((c_prev1, x1), (c_prev2, x2)):
        _check_cell("slstm", c, x, 4)
        rows = c.shape == c_prev1.shape and x.shape[0] == c.shape[0] and c.dtype == c_prev1.dtype
        check(
            rows,
            "slstm",
            "the memories must have equal shapes and dtypes, and as many rows as x1 and x2",
            c_prev1=c_prev1,
            c_prev2=c,
            x=x,
        )
    c, h = _slstm(c_prev1, c_prev2, x1, x2)
    return c, h


def _tree_lstm_derivative(gys, inputs):
    *cs, x = inputs
    gc, gh = with_zeros(gys, (cs[0].shape, cs[0].shape))
    a, i, o, *fs = _split_gates.on(x, 3 + len(cs), False)
    gcs, gwrites, gforgets, go = _cell_gradients(gc, gh, cs, [(a, i)], fs, o)
    return *gcs, _join_gates.on([*gwrites[0], go, *gforgets], False)


@differentiable(joint=_tree_lstm_derivative)
def _tree_lstm(inputs) -> tuple[Output, ...]:
    *cs, x = inputs
    a, i, o, *fs = _split_gates.on(x, 3 + len(cs), False)
    return _cell(cs, [(a, i)], fs, o)


def tree_lstm(*inputs: Input) -> tuple[Variable, Variable]:
    """Tree LSTM: long short-term memory with any number of children, each with a forget gate.

    c = tanh(a) s(i) + c_1 s(f_1) + ... + c_n s(f_n), h = tanh(c) s(o). Unlike in :func:`lstm`,
    the gates of x are in blocks: a, i, o, f_1, ..., f_n.

    Args:
        inputs: Variables or arrays c_1, ..., c_n (N, H, ...), the children's memories, and
            x (N, (3 + n) H, ...), all of the same floating-point dtype.

    Returns:
        tuple: c and h, Variables (N, H, ...).

    Raises:
        InvalidType: the shape or dtype of an argument does not match.

    Example:
        >>> c, h = F.tree_lstm(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 15)))
        >>> c.shape, h.shape
        ((2, 3), (2, 3))

    See K. Tai et al., Improved semantic representations from tree-structured long short-term
    memory networks, ACL 2015.
    """
    check(
        len(inputs) > 1,
        "tree_lstm",
        "inputs must be one or more memories, then x",
        n_inputs=len(inputs),
    )
    *cs, x = inputs
    for k, c in enumerate(cs, 1):
        _check_cell("tree_lstm", c, x, 3 + len(cs), f"c_{k}")
        fits = c.shape[0] == x.shape[0]
        check(
            fits,
            "tree_lstm",
            "all arguments must have the same number of rows",
            **{f"c_{k}": c},
            x=x,
        )
    c, h = _tree_lstm(inputs)
    return c, h


def _gru_gates(x, u):
    xr, xz, xn = _split_gates.on(x, 3, False)
    ur, uz, un = _split_gates.on(u, 3, False)
    r, z = sigmoid.on(xr + ur), sigmoid.on(xz + uz)
    return r, z, np.tanh(xn + r * un), un


def _gru_derivative(g, h, x, u):
    r, z, n, un = _gru_gates(x, u)
    gn = g * (1 - z) * (1 - n * n)
    gz = g * (h - n) * (z - z * z)
    gr = gn * un * (r - r * r)
    return g * z, _join_gates.on([gr, gz, gn], False), _join_gates.on([gr, gz, gn * r], False)


@differentiable(joint=_gru_derivative, n_arrays=3)
def _gru(h, x, u):
    """Computes a gated recurrent unit. ``x``, computed from the input, and ``u``, computed from
    ``h``, hold the gates r, z, n in blocks."""
    _, z, n, _ = _gru_gates(x, u)
    return n + z * (h - n)
