"""Recurrent layers over sequences of different lengths."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpchain import backprop, random
from mpchain.backends.dtypes import is_floating
from mpchain.functions.activation import relu, tanh
from mpchain.functions.array import cast
from mpchain.functions.connection import linear
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.declaring.precision import check_widths
from mpchain.functions.joining import concat, separate, split_axis, stack, with_zeros
from mpchain.functions.noise import dropout
from mpchain.functions.recurrent import _gru, _lstm
from mpchain.kernels import recurrence
from mpchain.observers import one_call
from mpchain.typing import Input, Output
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable, as_variable

PerLayer: TypeAlias = Sequence[Sequence[Input]]
"""For each layer and direction, a list of weights or biases."""

Steps: TypeAlias = Sequence[Input]
"""For each time step, a Variable or array."""

# A layer multiplies the inputs of all time steps by its weights in one product, so that the loop
# over time only multiplies the state. On the host, the loop is one node of the graph, except in
# float16.


class _Cell(NamedTuple):
    """The functions of a type of recurrent cell.

    Attributes:
        joined: a function that takes the lists of weights and of biases of a layer, and returns the
            weight and the bias for the input, and a list of arguments for ``step``.
        step: a function that takes the list of arguments from ``joined``, the input's contribution
            to the gates, and the states, and returns the new states.
        on_arrays: the object that computes all steps on arrays; see
            :mod:`mpchain.kernels.recurrence`.
    """

    joined: Callable
    step: Callable
    on_arrays: object


def _join(parts, order):
    return concat([parts[k] for k in order], 0)


def _joined_lstm(ws, bs):
    """Joins the eight weights and the eight biases of an LSTM, whose gates are in the order i, f,
    a, o."""
    order, of_state = (2, 0, 1, 3), (6, 4, 5, 7)
    b = _join(bs, order) + _join(bs, of_state)
    return _join(ws, order), b, [_join(ws, of_state)]


def _lstm_step(matrices, p, state):
    (R,), (h, c) = matrices, state
    c, h = _lstm(c, p + linear(h, R), False)
    return h, c


def _joined_gru(ws, bs):
    """Joins the six weights and the six biases of a GRU, whose gates are in the order r, z, n."""
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
    return one_call(cell.on_arrays.backward, spans, gys, kept, *inputs[1:-n_states])


@differentiable(joint=_layer_derivative)
def _recurrent_layer(
    inputs, cell, lengths, n_states, is_backwards
) -> tuple[tuple[Output, ...], object]:
    """Computes all steps of a layer; returns outputs (rows, N) and final states (B, N)."""
    ends = itertools.accumulate(lengths)
    spans = [slice(end - n, end) for n, end in zip(lengths, ends)]
    spans = spans[::-1] if is_backwards else spans
    ys, kept = one_call(cell.on_arrays.forward, spans, *inputs)
    return ys, (spans, kept)


def _composed_layer(inputs, cell, lengths, n_states, is_backwards):
    """Computes the results of :func:`_recurrent_layer` by a call of ``cell.step`` for each time
    step."""
    p, matrices, state = inputs[0], inputs[1:-n_states], inputs[-n_states:]
    scan = _scan_backwards if is_backwards else _scan
    bounds = list(itertools.accumulate(lengths))[:-1]
    outputs, state = scan(functools.partial(cell.step, matrices), state, split_axis(p, bounds, 0))
    return concat(outputs, 0), *state


def _scan(step, state, inputs):
    """Runs ``step`` over the time steps; the inputs have fewer rows as sequences end.

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
    """Runs ``step`` from the last time step to the first; see :func:`_scan`. A sequence begins at
    its last element."""
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
    states = [as_variable(s) for s in states]
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
            with random.joined_steps(lengths):
                x = dropout(x, dropout_ratio)
        ys = []
        for is_backwards in (False, True)[:n_directions]:
            k = len(final)
            W, b, matrices = cell.joined(ws[k], bs[k])
            inputs = [linear(x, W, b), *(cast(m, x.dtype) for m in matrices), *starts[k]]
            y, *state = layer(inputs, cell, lengths, len(states), is_backwards)
            final.append(state)
            ys.append(y)
        x = concat(ys, 1) if n_directions > 1 else ys[0]
    return [stack(s, 0) for s in zip(*final)], split_axis(x, bounds, 0)


def _check_layers(name, n_layers, n_directions, states, ws, bs, xs):
    n = n_layers * n_directions
    hx = states[0]
    check(n_layers > 0, name, "n_layers must be positive", n_layers=n_layers)
    fits = hx.ndim == 3 and hx.shape[0] == n and is_floating(hx.dtype)
    check(fits, name, "hx must be floating point of shape ({n}, B, N)", hx=hx, n=n)
    for cx in states[1:]:
        fits = cx.shape == hx.shape and cx.dtype == hx.dtype
        check(fits, name, "cx must have the shape and dtype of hx", cx=cx, hx=hx)
    check(len(xs) > 0, name, "xs must hold an array per time step", xs=xs)
    rows = hx.shape[1]
    for x in xs:
        fits = x.ndim == 2 and x.shape[1] == xs[0].shape[1] and x.dtype == hx.dtype
        check(fits, name, "every x must be (B_t, I) and have the dtype of hx", x=x, hx=hx)
        check(
            x.shape[0] <= rows,
            name,
            "xs and hx must be sorted by length, the longest sequence first",
            x=x,
            rows=rows,
        )
        rows = x.shape[0]
    lengths = {"n": n, "n_ws": len(ws), "n_bs": len(bs)}
    check(len(ws) == len(bs) == n, name, "ws and bs must hold {n} lists", **lengths)
    _check_weights(name, n_directions, hx.shape[2], xs[0], ws, bs)


def _check_weights(name, n_directions, size, x, ws, bs):
    n_weights = {"lstm": 8, "gru": 6, "rnn": 2}[name.removeprefix("n_step_").removeprefix("bi")]
    for k, (layer_ws, layer_bs) in enumerate(zip(ws, bs)):
        counts = {"n_ws": len(layer_ws), "n_bs": len(layer_bs)}
        rule = "ws[{k}] and bs[{k}] must hold {n_weights} arrays each"
        fits = len(layer_ws) == len(layer_bs) == n_weights
        check(fits, name, rule, k=k, n_weights=n_weights, **counts)
        columns = x.shape[1] if k < n_directions else size * n_directions
        for j, (W, b) in enumerate(zip(layer_ws, layer_bs)):
            shape = (size, columns if j < n_weights // 2 else size)
            if W.shape != shape:
                fail(name, f"ws[{k}][{j}] must be of shape {shape}", W=W)
            if b.shape != (size,):
                fail(name, f"bs[{k}][{j}] must be of shape ({size},)", b=b)
            if W.dtype != x.dtype or b.dtype != x.dtype:
                check_widths(name, {"x": x}, {f"ws[{k}][{j}]": W, f"bs[{k}][{j}]": b})


def n_step_lstm(
    n_layers: int, dropout_ratio: float, hx: Input, cx: Input, ws: PerLayer, bs: PerLayer, xs: Steps
) -> tuple[Variable, Variable, tuple[Variable, ...]]:
    """Layers of LSTM over a batch of sequences.

    With s the sigmoid, for each layer and time step,
    i = s(W0 x + W4 h + b0 + b4), f = s(W1 x + W5 h + b1 + b5), a = tanh(W2 x + W6 h + b2 + b6),
    o = s(W3 x + W7 h + b3 + b7), c = f c + i a, h = o tanh(c).

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx, cx: Variables or arrays (n_layers, B, N): the initial states.
        ws: for each layer a list of 8 Variables or arrays: the first four are (N, I), or (N, N) in
            all layers but the first; the other four are (N, N).
        bs: for each layer a list of 8 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases: the
            sequences are sorted by their lengths, the longest first.

    Returns:
        tuple: the final hidden states and memories of each sequence, (n_layers, B, N), and a tuple
        of the last layer's hidden states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 4 + [np.zeros((3, 3))] * 4]
        >>> h, bs = np.zeros((1, 2, 3)), [[np.zeros(3)] * 8]
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_lstm(1, 0.5, h, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(1, 2, 3), (1, 2, 3)], [(2, 3), (1, 3)])
    """
    (hy, cy), ys = _n_step("n_step_lstm", _LSTM, n_layers, 1, dropout_ratio, (hx, cx), ws, bs, xs)
    return hy, cy, ys


def n_step_bilstm(
    n_layers: int, dropout_ratio: float, hx: Input, cx: Input, ws: PerLayer, bs: PerLayer, xs: Steps
) -> tuple[Variable, Variable, tuple[Variable, ...]]:
    """Layers of LSTM in both directions over a batch of sequences.

    The function differs from :func:`n_step_lstm` in two ways: each layer has two states, two lists
    of weights and two lists of biases, with the forward direction first; and the outputs of both
    directions are concatenated, as the input of the next layer and in the result.

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx, cx: Variables or arrays (2 n_layers, B, N): the initial states.
        ws: 2 n_layers lists of 8 weights: the first four of each list are (N, I), or (N, 2 N) in
            all layers but the first; the other four are (N, N).
        bs: 2 n_layers lists of 8 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the final hidden states and memories (2 n_layers, B, N), and a tuple of the last
        layer's outputs, for each time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 4 + [np.zeros((3, 3))] * 4] * 2
        >>> h, bs = np.zeros((2, 2, 3)), [[np.zeros(3)] * 8] * 2
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_bilstm(1, 0.5, h, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(2, 2, 3), (2, 2, 3)], [(2, 6), (1, 6)])
    """
    (hy, cy), ys = _n_step("n_step_bilstm", _LSTM, n_layers, 2, dropout_ratio, (hx, cx), ws, bs, xs)
    return hy, cy, ys


def n_step_gru(
    n_layers: int, dropout_ratio: float, hx: Input, ws: PerLayer, bs: PerLayer, xs: Steps
) -> tuple[Variable, tuple[Variable, ...]]:
    """Layers of gated recurrent units over a batch of sequences.

    With s the sigmoid, for each layer and time step,
    r = s(W0 x + W3 h + b0 + b3), z = s(W1 x + W4 h + b1 + b4),
    n = tanh(W2 x + b2 + r (W5 h + b5)), h = (1 - z) n + z h.

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx: Variable or array (n_layers, B, N): the initial states.
        ws: for each layer a list of 6 Variables or arrays: the first three are (N, I), or (N, N) in
            all layers but the first; the other three are (N, N).
        bs: for each layer a list of 6 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the final states of each sequence, (n_layers, B, N), and a tuple of the last layer's
        states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 3 + [np.zeros((3, 3))] * 3]
        >>> h, bs = np.zeros((1, 2, 3)), [[np.zeros(3)] * 6]
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_gru(1, 0.5, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(1, 2, 3)], [(2, 3), (1, 3)])

    See K. Cho et al., Learning phrase representations using RNN encoder-decoder for statistical
    machine translation, EMNLP 2014.
    """
    (hy,), ys = _n_step("n_step_gru", _GRU, n_layers, 1, dropout_ratio, (hx,), ws, bs, xs)
    return hy, ys


def n_step_bigru(
    n_layers: int, dropout_ratio: float, hx: Input, ws: PerLayer, bs: PerLayer, xs: Steps
) -> tuple[Variable, tuple[Variable, ...]]:
    """Layers of gated recurrent units in both directions over a batch of sequences.

    The function differs from :func:`n_step_gru` as :func:`n_step_bilstm` differs from
    :func:`n_step_lstm`.

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx: Variable or array (2 n_layers, B, N): the initial states.
        ws: 2 n_layers lists of 6 weights: the first three of each list are (N, I), or (N, 2 N) in
            all layers but the first; the other three are (N, N).
        bs: 2 n_layers lists of 6 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.

    Returns:
        tuple: the final states (2 n_layers, B, N), and a tuple of the last layer's outputs, for
        each time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 3 + [np.zeros((3, 3))] * 3] * 2
        >>> h, bs = np.zeros((2, 2, 3)), [[np.zeros(3)] * 6] * 2
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_bigru(1, 0.5, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(2, 2, 3)], [(2, 6), (1, 6)])
    """
    (hy,), ys = _n_step("n_step_bigru", _GRU, n_layers, 2, dropout_ratio, (hx,), ws, bs, xs)
    return hy, ys


def _known_cell(name, activation):
    if activation not in _SIMPLE:
        raise ValueError(f"{name}: activation must be 'tanh' or 'relu', but is {activation!r}")
    return _SIMPLE[activation]


def n_step_rnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Input,
    ws: PerLayer,
    bs: PerLayer,
    xs: Steps,
    activation: str = "tanh",
) -> tuple[Variable, tuple[Variable, ...]]:
    """Layers of simple recurrent units over a batch of sequences: h = f(W0 x + W1 h + b0 + b1).

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx: Variable or array (n_layers, B, N): the initial states.
        ws: for each layer a list of 2 Variables or arrays: the first is (N, I), or (N, N) in all
            layers but the first; the second is (N, N).
        bs: for each layer a list of 2 Variables or arrays (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.
        activation: f, ``'tanh'`` or ``'relu'``.

    Returns:
        tuple: the final states of each sequence, (n_layers, B, N), and a tuple of the last layer's
        states, for each time step (B_t, N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.
        ValueError: ``activation`` is unknown.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 1 + [np.zeros((3, 3))] * 1]
        >>> h, bs = np.zeros((1, 2, 3)), [[np.zeros(3)] * 2]
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_rnn(1, 0.5, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(1, 2, 3)], [(2, 3), (1, 3)])
    """
    cell = _known_cell("n_step_rnn", activation)
    (hy,), ys = _n_step("n_step_rnn", cell, n_layers, 1, dropout_ratio, (hx,), ws, bs, xs)
    return hy, ys


def n_step_birnn(
    n_layers: int,
    dropout_ratio: float,
    hx: Input,
    ws: PerLayer,
    bs: PerLayer,
    xs: Steps,
    activation: str = "tanh",
) -> tuple[Variable, tuple[Variable, ...]]:
    """Layers of simple recurrent units in both directions over a batch of sequences.

    The function differs from :func:`n_step_rnn` as :func:`n_step_bilstm` differs from
    :func:`n_step_lstm`.

    Args:
        n_layers: the number of layers.
        dropout_ratio: dropout ratio of the input of every layer but the first, in training.
        hx: Variable or array (2 n_layers, B, N): the initial states.
        ws: 2 n_layers lists of 2 weights: the first is (N, I), or (N, 2 N) in all layers but the
            first; the second is (N, N).
        bs: 2 n_layers lists of 2 biases (N,).
        xs: for each time step a Variable or array (B_t, I), where B_t never increases.
        activation: ``'tanh'`` or ``'relu'``.

    Returns:
        tuple: the final states (2 n_layers, B, N), and a tuple of the last layer's outputs, for
        each time step (B_t, 2 N).

    Raises:
        InvalidType: a shape, a dtype or the number of weights does not match, ``n_layers`` is not
            positive, or ``xs`` is empty.
        ValueError: ``activation`` is unknown.

    Example:
        >>> ws = [[np.zeros((3, 2))] * 1 + [np.zeros((3, 3))] * 1] * 2
        >>> h, bs = np.zeros((2, 2, 3)), [[np.zeros(3)] * 2] * 2
        >>> xs = [np.ones((2, 2)), np.ones((1, 2))]  # two sequences, of 2 and 1 steps
        >>> *states, ys = F.n_step_birnn(1, 0.5, h, ws, bs, xs)
        >>> [h.shape for h in states], [y.shape for y in ys]
        ([(2, 2, 3)], [(2, 6), (1, 6)])
    """
    cell = _known_cell("n_step_birnn", activation)
    (hy,), ys = _n_step("n_step_birnn", cell, n_layers, 2, dropout_ratio, (hx,), ws, bs, xs)
    return hy, ys
