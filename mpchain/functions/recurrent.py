"""Recurrent cells, and layers of them over sequences of different lengths."""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpchain import backprop
from mpchain.backends.cuda import get_array_module
from mpchain.functions.activation import relu, sigmoid, tanh
from mpchain.functions.array import cast
from mpchain.functions.connection import linear
from mpchain.functions.declaration import differentiable
from mpchain.functions.joining import concat, separate, split_axis, stack, with_zeros
from mpchain.functions.noise import dropout_of_steps
from mpchain.functions.precision import check_widths
from mpchain.kernels import recurrence
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable

# Gates lie side by side on the second axis: in blocks, one gate after another, or interleaved, all
# gates of one unit together.


def _split_derivative(gys, x_shape, n, is_interleaved):
    shape = (x_shape[0], x_shape[1] // n, *x_shape[2:])
    return (_join_gates.on(with_zeros(gys, [shape] * n), is_interleaved),)


@differentiable(joint=_split_derivative, n_arrays=1)
def _split_gates(x, n, is_interleaved):
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
    joined = get_array_module(first).stack(xs, 2 if is_interleaved else 1)
    return joined.reshape(first.shape[0], first.shape[1] * len(xs), *first.shape[2:])


# A memory cell with any number of things to write, tanh(a) sigmoid(i), and of earlier memories to
# keep, c sigmoid(f): what the LSTM, its shared and its tree form have in common.


def _activated(cs, writes, forgets, o):
    writes = [(np.tanh(a), sigmoid.on(i)) for a, i in writes]
    forgets = [sigmoid.on(f) for f in forgets]
    terms = [a * i for a, i in writes] + [f * c for f, c in zip(forgets, cs)]
    return writes, forgets, sigmoid.on(o), functools.reduce(lambda x, y: x + y, terms)


def _cell(cs, writes, forgets, o):
    _, _, o, c = _activated(cs, writes, forgets, o)
    return c, o * np.tanh(c)


def _cell_gradients(gc, gh, cs, writes, forgets, o):
    writes, forgets, o, c = _activated(cs, writes, forgets, o)
    t = np.tanh(c)
    go = gh * t * (o - o * o)
    gc = gc + gh * o * (1 - t * t)
    gwrites = [(gc * i * (1 - a * a), gc * a * (i - i * i)) for a, i in writes]
    gforgets = [gc * c * (f - f * f) for c, f in zip(cs, forgets)]
    return [gc * f for f in forgets], gwrites, gforgets, go


def _head(x, n):
    return x if x.shape[0] == n else x[:n]


def _lstm_derivative(gys, c_prev, x, is_interleaved):
    n = x.shape[0]
    gc, gh = with_zeros(gys, (c_prev.shape, (n, *c_prev.shape[1:])))
    a, i, f, o = _split_gates.on(x, 4, is_interleaved)
    gcs, ((ga, gi),), (gf,), go = _cell_gradients(
        _head(gc, n), gh, [_head(c_prev, n)], [(a, i)], [f], o
    )
    if n < c_prev.shape[0]:
        gcs.append(gc[n:])
        gcs = [np.concatenate(gcs, axis=0)]
    return gcs[0], _join_gates.on([ga, gi, gf, go], is_interleaved)


@differentiable(joint=_lstm_derivative, n_arrays=2)
def _lstm(c_prev, x, is_interleaved):
    n = x.shape[0]
    a, i, f, o = _split_gates.on(x, 4, is_interleaved)
    c, h = _cell([_head(c_prev, n)], [(a, i)], [f], o)
    if n < c_prev.shape[0]:
        c = get_array_module(c).concatenate([c, c_prev[n:]])
    return c, h


def _check_cell(name, c, x, n_gates, argument="c_prev"):
    floating = x.dtype.kind == "f" and c.dtype == x.dtype
    check(floating, name, f"{argument} and x must have one floating dtype", c=c, x=x)
    alike = c.ndim == x.ndim > 1 and c.shape[2:] == x.shape[2:]
    fits = alike and x.shape[1] == n_gates * c.shape[1]
    rule = f"the second axis of x must be {n_gates} times that of {argument}, and all others alike"
    check(fits, name, rule, **{argument: c}, x=x)


def lstm(c_prev, x):
    """Long short-term memory, the cell alone: c = tanh(a) s(i) + c_prev s(f), h = tanh(c) s(o).

    Here s is the sigmoid. The gates of one unit are neighbors: a, i, f and o are ``x[:, 0::4]``,
    ``x[:, 1::4]``, ``x[:, 2::4]`` and ``x[:, 3::4]``. Where ``x`` has fewer rows than ``c_prev``
    (sequences that have ended), the other rows of ``c_prev`` become those of c.

    Args:
        c_prev: Variable or array (M, H, ...), floating point: the previous memory.
        x: Variable or array (N, 4 H, ...), of the same dtype; N is at most M.

    Returns:
        tuple: c (M, H, ...) and h (N, H, ...), Variables.

    Raises:
        InvalidType: a shape or dtype does not fit.

    See S. Hochreiter and J. Schmidhuber, Long short-term memory, 1997, with the forget gate of
    F. Gers et al., Learning to forget, 2000.
    """
    _check_cell("lstm", c_prev, x, 4)
    rows = c_prev.shape[0] >= x.shape[0]
    check(rows, "lstm", "x must not have more rows than c_prev", c_prev=c_prev, x=x)
    return _lstm(c_prev, x, True)


def _slstm_derivative(gys, c_prev1, c_prev2, x1, x2):
    gc, gh = with_zeros(gys, (c_prev1.shape, c_prev1.shape))
    a1, i1, f1, o1 = _split_gates.on(x1, 4, True)
    a2, i2, f2, o2 = _split_gates.on(x2, 4, True)
    gcs, gwrites, gforgets, go = _cell_gradients(
        gc, gh, [c_prev1, c_prev2], [(a1, i1), (a2, i2)], [f1, f2], o1 + o2
    )
    return *gcs, *(_join_gates.on([*g, gf, go], True) for g, gf in zip(gwrites, gforgets))


@differentiable(joint=_slstm_derivative, n_arrays=4)
def _slstm(c_prev1, c_prev2, x1, x2):
    a1, i1, f1, o1 = _split_gates.on(x1, 4, True)
    a2, i2, f2, o2 = _split_gates.on(x2, 4, True)
    return _cell([c_prev1, c_prev2], [(a1, i1), (a2, i2)], [f1, f2], o1 + o2)


def slstm(c_prev1, c_prev2, x1, x2):
    """Long short-term memory of two predecessors, each with its gates, that share the output gate.

    c = tanh(a1) s(i1) + c_prev1 s(f1) + tanh(a2) s(i2) + c_prev2 s(f2), h = tanh(c) s(o1 + o2),
    with the gates laid out as in :func:`lstm`.

    Args:
        c_prev1, c_prev2: Variables or arrays (N, H, ...), floating point: the previous memories.
        x1, x2: Variables or arrays (N, 4 H, ...), of the same dtype.

    Returns:
        tuple: c and h, Variables (N, H, ...).

    Raises:
        InvalidType: a shape or dtype does not fit.

    See X. Zhu et al., Long short-term memory over tree structures, ICML 2015.
    """
    for c, x in ((c_prev1, x1), (c_prev2, x2)):
        _check_cell("slstm", c, x, 4)
        rows = c.shape == c_prev1.shape and x.shape[0] == c.shape[0] and c.dtype == c_prev1.dtype
        check(rows, "slstm", "both predecessors must be alike", c_prev1=c_prev1, c_prev2=c, x=x)
    return _slstm(c_prev1, c_prev2, x1, x2)


def _tree_lstm_derivative(gys, inputs):
    *cs, x = inputs
    gc, gh = with_zeros(gys, (cs[0].shape, cs[0].shape))
    a, i, o, *fs = _split_gates.on(x, 3 + len(cs), False)
    gcs, gwrites, gforgets, go = _cell_gradients(gc, gh, cs, [(a, i)], fs, o)
    return *gcs, _join_gates.on([*gwrites[0], go, *gforgets], False)


@differentiable(joint=_tree_lstm_derivative)
def _tree_lstm(inputs):
    *cs, x = inputs
    a, i, o, *fs = _split_gates.on(x, 3 + len(cs), False)
    return _cell(cs, [(a, i)], fs, o)


def tree_lstm(*inputs):
    """Long short-term memory of any number of children, each with a forget gate.

    c = tanh(a) s(i) + c_1 s(f_1) + ... + c_n s(f_n), h = tanh(c) s(o). Unlike in :func:`lstm`, x
    holds one gate after another: a, i, o, f_1, ..., f_n.

    Args:
        inputs: Variables or arrays c_1, ..., c_n (N, H, ...), the children's memories, and
            x (N, (3 + n) H, ...), all of one floating dtype.

    Returns:
        tuple: c and h, Variables (N, H, ...).

    Raises:
        InvalidType: a shape or dtype does not fit.

    See K. Tai et al., Improved semantic representations from tree-structured long short-term
    memory networks, ACL 2015.
    """
    check(len(inputs) > 1, "tree_lstm", "inputs must be memories and x", n_inputs=len(inputs))
    *cs, x = inputs
    for k, c in enumerate(cs, 1):
        _check_cell("tree_lstm", c, x, 3 + len(cs), f"c_{k}")
        check(
            c.shape[0] == x.shape[0], "tree_lstm", f"c_{k} and x must have as many rows", c=c, x=x
        )
    return _tree_lstm(inputs)


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
    """Gated recurrent unit: x from the input and u from h, each the gates r, z, n in blocks."""
    _, z, n, _ = _gru_gates(x, u)
    return n + z * (h - n)


# A layer multiplies the inputs of all time steps with its weights at once; what remains in the loop
# over time is a product with the state. On the host that loop is one node of the graph.


class _Cell(NamedTuple):
    """A kind of cell.

    Attributes:
        joined: takes the lists of weights and of biases of a layer, returns the weight and the bias
            of its input, and a list of what the step needs.
        step: takes that list, the input's contribution to the gates and the states; returns states.
        on_arrays: all steps on arrays; see :mod:`mpchain.kernels.recurrence`.
    """

    joined: Callable
    step: Callable
    on_arrays: object


def _join(parts, order):
    return concat([parts[k] for k in order], 0)


def _joined_lstm(ws, bs):
    """From the eight weights and biases i, f, a, o."""
    order, of_state = (2, 0, 1, 3), (6, 4, 5, 7)
    b = _join(bs, order) + _join(bs, of_state)
    return _join(ws, order), b, [_join(ws, of_state)]


def _lstm_step(matrices, p, state):
    (R,), (h, c) = matrices, state
    c, h = _lstm(c, p + linear(h, R), False)
    return h, c


def _joined_gru(ws, bs):
    """From the six weights and biases r, z, n."""
    order, of_state = (0, 1, 2), (3, 4, 5)
    return _join(ws, order), _join(bs, order), [_join(ws, of_state), _join(bs, of_state)]


def _gru_step(matrices, p, state):
    (h,) = state
    return (_gru(h, p, linear(h, *matrices)),)


def _joined_rnn(ws, bs):
    return ws[0], bs[0] + bs[1], [ws[1]]


def _simple_cell(activation):
    def step(matrices, p, state):
        return (activation(p + linear(state[0], *matrices)),)

    return _Cell(_joined_rnn, step, recurrence.Simple(activation is tanh))


_LSTM = _Cell(_joined_lstm, _lstm_step, recurrence.Lstm)
_GRU = _Cell(_joined_gru, _gru_step, recurrence.Gru)
_SIMPLE = {"tanh": _simple_cell(tanh), "relu": _simple_cell(relu)}


def _layer_derivative(gys, inputs, aux, cell, lengths, n_states, is_backwards):
    if isinstance(inputs[0], Variable):
        ys = _composed_layer(inputs, cell, lengths, n_states, is_backwards)
        ys, gys = zip(*[(y, g) for y, g in zip(ys, gys) if g is not None])
        return backprop.grad(ys, inputs, gys, enable_double_backprop=True)
    spans, kept = aux
    state = inputs[-1].shape
    gys = with_zeros(gys, [(inputs[0].shape[0], state[1]), *[state] * n_states])
    return cell.on_arrays.backward(spans, gys, kept, *inputs[1:-n_states])


@differentiable(joint=_layer_derivative)
def _recurrent_layer(inputs, cell, lengths, n_states, is_backwards):
    """All steps of a layer: outputs (rows, N) and final states (B, N)."""
    ends = itertools.accumulate(lengths)
    spans = [slice(end - n, end) for n, end in zip(lengths, ends)]
    spans = spans[::-1] if is_backwards else spans
    ys, kept = cell.on_arrays.forward(spans, *inputs)
    return ys, (spans, kept)


def _composed_layer(inputs, cell, lengths, n_states, is_backwards):
    """The same, step by step."""
    p, matrices, state = inputs[0], inputs[1:-n_states], inputs[-n_states:]
    scan = _scan_backwards if is_backwards else _scan
    bounds = list(itertools.accumulate(lengths))[:-1]
    outputs, state = scan(functools.partial(cell.step, matrices), state, split_axis(p, bounds, 0))
    return concat(outputs, 0), *state


def _scan(step, state, inputs):
    """Runs steps over inputs that have ever fewer rows: those of sequences that have ended.

    Returns:
        tuple: the list of outputs and the final state.
    """
    outputs, ended = [], []
    for p in inputs:
        n = p.shape[0]
        if n < state[0].shape[0]:
            state, rest = zip(*[split_axis(s, [n], 0) for s in state])
            ended.insert(0, rest)
        state = step(p, state)
        outputs.append(state[0])
    if ended:
        state = [concat(parts, 0) for parts in zip(state, *ended)]
    return outputs, state


def _scan_backwards(step, state, inputs):
    """The same from the last input to the first: sequences join in where they end."""
    sizes = [p.shape[0] for p in inputs]
    bounds = sorted({*sizes, state[0].shape[0]})
    waiting = list(zip(*[split_axis(s, bounds[:-1], 0) for s in state]))
    outputs, state = [], waiting.pop(0)
    for p in reversed(inputs):
        if p.shape[0] > state[0].shape[0]:
            state = [concat(parts, 0) for parts in zip(state, waiting.pop(0))]
        state = step(p, state)
        outputs.append(state[0])
    if waiting:
        state = [concat(parts, 0) for parts in zip(state, waiting.pop(0))]
    return outputs[::-1], state


def _n_step(name, cell, n_layers, n_directions, dropout_ratio, states, ws, bs, xs):
    _check_layers(name, n_layers, n_directions, states, ws, bs, xs)
    lengths = [x.shape[0] for x in xs]
    bounds = list(itertools.accumulate(lengths))[:-1]
    starts = list(zip(*[separate(s, 0) for s in states]))
    x = concat(xs, 0)
    on_host = x.xp is np and x.dtype != np.float16
    layer = _recurrent_layer if on_host else _composed_layer
    final = []
    for i in range(n_layers):
        if i > 0:
            x = dropout_of_steps(x, dropout_ratio, lengths)
        ys = []
        for is_backwards in (False, True)[:n_directions]:
            k = len(final)
            W, b, matrices = cell.joined(ws[k], bs[k])
            inputs = [linear(x, W, b), *(cast(m, x.dtype) for m in matrices), *starts[k]]
            y, *state = layer(inputs, cell, lengths, len(states), is_backwards)
            final.append(state)
            ys.append(y)
        x = concat(ys, 1) if n_directions > 1 else ys[0]
    return *(stack(s, 0) for s in zip(*final)), split_axis(x, bounds, 0)


def _check_layers(name, n_layers, n_directions, states, ws, bs, xs):
    n = n_layers * n_directions
    hx = states[0]
    check(n_layers > 0, name, "n_layers must be positive", n_layers=n_layers)
    fits = hx.ndim == 3 and hx.shape[0] == n and hx.dtype.kind == "f"
    check(fits, name, f"hx must be floating point of shape ({n}, B, N)", hx=hx)
    for cx in states[1:]:
        fits = cx.shape == hx.shape and cx.dtype == hx.dtype
        check(fits, name, "cx must have the shape and dtype of hx", cx=cx, hx=hx)
    check(len(xs) > 0, name, "xs must hold an array per time step", xs=xs)
    rows = hx.shape[1]
    for x in xs:
        fits = x.ndim == 2 and x.shape[1] == xs[0].shape[1] and x.dtype == hx.dtype
        check(fits, name, "every x must be (B_t, I), of the dtype of hx", x=x, hx=hx)
        check(x.shape[0] <= rows, name, "xs and hx must be sorted, longest first", x=x, rows=rows)
        rows = x.shape[0]
    check(len(ws) == len(bs) == n, name, f"ws and bs must hold {n} lists", ws=len(ws), bs=len(bs))
    _check_weights(name, n_directions, hx.shape[2], xs[0], ws, bs)


def _check_weights(name, n_directions, size, x, ws, bs):
    n_weights = {"lstm": 8, "gru": 6, "rnn": 2}[name.removeprefix("n_step_").removeprefix("bi")]
    for k, (layer_ws, layer_bs) in enumerate(zip(ws, bs)):
        rule = f"ws[{k}] and bs[{k}] must hold {n_weights} arrays each"
        counts = len(layer_ws), len(layer_bs)
        check(counts == (n_weights, n_weights), name, rule, n_ws=counts[0], n_bs=counts[1])
        columns = x.shape[1] if k < n_directions else size * n_directions
        for j, (W, b) in enumerate(zip(layer_ws, layer_bs)):
            shape = (size, columns if j < n_weights // 2 else size)
            check(W.shape == shape, name, f"ws[{k}][{j}] must be of shape {shape}", W=W)
            check(b.shape == (size,), name, f"bs[{k}][{j}] must be of shape ({size},)", b=b)
            check_widths(name, {"x": x}, {f"ws[{k}][{j}]": W, f"bs[{k}][{j}]": b})


def n_step_lstm(n_layers, dropout_ratio, hx, cx, ws, bs, xs):
    """Layers of LSTM over a batch of sequences.

    With s the sigmoid, for each layer and time step,
    i = s(W0 x + W4 h + b0 + b4), f = s(W1 x + W5 h + b1 + b5), a = tanh(W2 x + W6 h + b2 + b6),
    o = s(W3 x + W7 h + b3 + b7), c = f c + i a, h = o tanh(c).

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx, cx: Variables or arrays (n_layers, B, N): the first states.
        ws: for each layer a list of 8 Variables or arrays: the first four (N, I), or (N, N) beyond
            the first layer; the others (N, N).
        bs: for each layer a list of 8 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases: the
            sequences stand in the order of their lengths, the longest first.

    Returns:
        tuple: the last hidden states and memories of each sequence, (n_layers, B, N), and a tuple
        of the last layer's hidden states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.
    """
    states = as_variable(hx), as_variable(cx)
    return _n_step("n_step_lstm", _LSTM, n_layers, 1, dropout_ratio, states, ws, bs, xs)


def n_step_bilstm(n_layers, dropout_ratio, hx, cx, ws, bs, xs):
    """Layers of LSTM in both directions over a batch of sequences.

    As :func:`n_step_lstm`, but for each layer there are two states and lists of weights, of the
    forward and then of the backward direction, and the input of every layer but the first is both
    directions' output, side by side.

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx, cx: Variables or arrays (2 n_layers, B, N): the first states.
        ws: 2 n_layers lists of 8 weights: the first four of each list (N, I), or (N, 2 N) beyond
            the first layer; the others (N, N).
        bs: 2 n_layers lists of 8 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the last hidden states and memories (2 n_layers, B, N), and a tuple of the last
        layer's outputs, for each time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.
    """
    states = as_variable(hx), as_variable(cx)
    return _n_step("n_step_bilstm", _LSTM, n_layers, 2, dropout_ratio, states, ws, bs, xs)


def n_step_gru(n_layers, dropout_ratio, hx, ws, bs, xs):
    """Layers of gated recurrent units over a batch of sequences.

    With s the sigmoid, for each layer and time step,
    r = s(W0 x + W3 h + b0 + b3), z = s(W1 x + W4 h + b1 + b4),
    n = tanh(W2 x + b2 + r (W5 h + b5)), h = (1 - z) n + z h.

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx: Variable or array (n_layers, B, N): the first states.
        ws: for each layer a list of 6 Variables or arrays: the first three (N, I), or (N, N) beyond
            the first layer; the others (N, N).
        bs: for each layer a list of 6 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the last states of each sequence, (n_layers, B, N), and a tuple of the last layer's
        states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.

    See K. Cho et al., Learning phrase representations using RNN encoder-decoder for statistical
    machine translation, EMNLP 2014.
    """
    states = (as_variable(hx),)
    return _n_step("n_step_gru", _GRU, n_layers, 1, dropout_ratio, states, ws, bs, xs)


def n_step_bigru(n_layers, dropout_ratio, hx, ws, bs, xs):
    """Layers of gated recurrent units in both directions over a batch of sequences.

    To :func:`n_step_gru` as :func:`n_step_bilstm` is to :func:`n_step_lstm`.

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx: Variable or array (2 n_layers, B, N): the first states.
        ws: 2 n_layers lists of 6 weights: the first three of each list (N, I), or (N, 2 N) beyond
            the first layer; the others (N, N).
        bs: 2 n_layers lists of 6 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the last states (2 n_layers, B, N), and a tuple of the last layer's outputs, for each
        time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.
    """
    states = (as_variable(hx),)
    return _n_step("n_step_bigru", _GRU, n_layers, 2, dropout_ratio, states, ws, bs, xs)


def _known_cell(name, activation):
    if activation not in _SIMPLE:
        raise ValueError(f"{name}: activation must be 'tanh' or 'relu', but is {activation!r}")
    return _SIMPLE[activation]


def n_step_rnn(n_layers, dropout_ratio, hx, ws, bs, xs, activation="tanh"):
    """Layers of simple recurrent units over a batch of sequences: h = f(W0 x + W1 h + b0 + b1).

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx: Variable or array (n_layers, B, N): the first states.
        ws: for each layer a list of 2 Variables or arrays: (N, I), or (N, N) beyond the first
            layer; and (N, N).
        bs: for each layer a list of 2 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.
        activation (str): f, ``'tanh'`` or ``'relu'``.

    Returns:
        tuple: the last states of each sequence, (n_layers, B, N), and a tuple of the last layer's
        states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.
        ValueError: an unknown activation.
    """
    cell = _known_cell("n_step_rnn", activation)
    states = (as_variable(hx),)
    return _n_step("n_step_rnn", cell, n_layers, 1, dropout_ratio, states, ws, bs, xs)


def n_step_birnn(n_layers, dropout_ratio, hx, ws, bs, xs, activation="tanh"):
    """Layers of simple recurrent units in both directions over a batch of sequences.

    To :func:`n_step_rnn` as :func:`n_step_bilstm` is to :func:`n_step_lstm`.

    Args:
        n_layers (int): the number of layers.
        dropout_ratio (float): for the input of every layer but the first, in training.
        hx: Variable or array (2 n_layers, B, N): the first states.
        ws: 2 n_layers lists of 2 weights: (N, I), or (N, 2 N) beyond the first layer; and (N, N).
        bs: 2 n_layers lists of 2 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.
        activation (str): ``'tanh'`` or ``'relu'``.

    Returns:
        tuple: the last states (2 n_layers, B, N), and a tuple of the last layer's outputs, for each
        time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, dtype or number of weights does not fit.
        ValueError: an unknown activation.
    """
    cell = _known_cell("n_step_birnn", activation)
    states = (as_variable(hx),)
    return _n_step("n_step_birnn", cell, n_layers, 2, dropout_ratio, states, ws, bs, xs)
