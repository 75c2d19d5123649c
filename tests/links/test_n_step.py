"""Tests layers over sequences against PyTorch's modules on each sequence, and wrong input."""

import functools

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import links as L
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

pytestmark = pytest.mark.slow

LENGTHS = (2, 4, 1)
# For each kind: PyTorch's module, the number of gates, and further options.
MODULES = {
    "LSTM": (torch.nn.LSTM, 4, {}),
    "GRU": (torch.nn.GRU, 3, {}),
    "RNNTanh": (torch.nn.RNN, 1, {"nonlinearity": "tanh"}),
    "RNNReLU": (torch.nn.RNN, 1, {"nonlinearity": "relu"}),
}


def params_of(kind, n_layers, n_directions):
    n = MODULES[kind][1]
    shapes = {}
    for k in range(n_layers * n_directions):
        columns = 3 if k < n_directions else 4 * n_directions
        for j in range(2 * n):
            shapes |= {f"{k}/w{j}": (4, columns if j < n else 4), f"{k}/b{j}": (4,)}
    return shapes


def reference(kind, n_layers, n_directions, w, *arrays):
    """Runs PyTorch's module on each sequence separately."""
    module_class, n, options = MODULES[kind]
    module = module_class(3, 4, n_layers, bidirectional=n_directions == 2, **options).double()
    parameters = {}
    for k in range(n_layers * n_directions):
        suffix = f"_l{k // n_directions}" + "_reverse" * (k % n_directions)
        for name, letter in (("weight", "w"), ("bias", "b")):
            parts = [w[f"{k}/{letter}{j}"] for j in range(2 * n)]
            parameters[f"{name}_ih{suffix}"] = torch.cat(parts[:n])
            parameters[f"{name}_hh{suffix}"] = torch.cat(parts[n:])
    n_states = 2 if kind == "LSTM" else 1
    states, xs = arrays[:n_states], arrays[n_states:]
    ys, finals = [], []
    for i, x in enumerate(xs):
        first = tuple(s[:, i] for s in states)
        call = functools.partial(torch.func.functional_call, module, parameters)
        y, final = call((x, first if n_states == 2 else first[0]))
        ys.append(y)
        finals.append(final if n_states == 2 else (final,))
    return [*(torch.stack(f, 1) for f in zip(*finals)), *ys]


def call(link, *xs):
    return link(*xs[: link.n_cells], list(xs[link.n_cells :]))


def n_step_row(kind, n_layers, n_directions):
    name = f"NStep{'Bi' if n_directions == 2 else ''}{kind}"
    make = functools.partial(getattr(L, name), n_layers, out_size=4, dropout=0.0)
    n_states = 2 if kind == "LSTM" else 1
    return row(
        f"{name} of {n_layers}",
        functools.partial(make, in_size=3),
        *[(n_layers * n_directions, 3, 4)] * n_states,
        *[(n, 3) for n in LENGTHS],
        params=params_of(kind, n_layers, n_directions),
        lazy=functools.partial(make, in_size=None),
        call=call,
        reference=functools.partial(reference, kind, n_layers, n_directions),
        orders=2 if n_layers == 1 else 1,
    )


TABLE = [
    n_step_row(kind, n, directions)
    for kind in MODULES
    for n, directions in ((1, 1), (2, 1), (1, 2), (2, 2))
]
globals().update(checks_of(TABLE))

KINDS = [f"NStep{bi}{kind}" for kind in MODULES for bi in ("", "Bi")]


def f(*shape):
    return np.random.randn(*shape).astype(np.float32)


@pytest.mark.parametrize("name", KINDS)
def test_attributes(name):
    link = getattr(L, name)(2, 3, 4, 0.5)
    n_weights = {"LSTM": 8, "GRU": 6}.get(name.removeprefix("NStep").removeprefix("Bi"), 2)
    assert (link.n_layers, link.out_size, link.dropout) == (2, 4, 0.5)
    assert link.n_cells == (2 if "LSTM" in name else 1)
    assert link.use_bi_direction == ("Bi" in name)
    assert link.direction == 1 + link.use_bi_direction and len(link) == 2 * link.direction
    assert link.n_weights == n_weights
    assert [len(ws) for ws in link.ws] == [n_weights] * len(link)
    assert link.ws[1][0] is link[1].w0 and link.bs[0][1] is link[0].b1
    copied = link.copy()
    assert copied.ws[0][0] is copied[0].w0 is not link[0].w0


@pytest.mark.parametrize("name", KINDS)
def test_first_states_are_zero_and_any_order_will_do(name):
    link = getattr(L, name)(2, 3, 4, 0.0)
    xs = [f(n, 3) for n in (2, 5, 0, 3, 2)]
    zeros = link.init_hx(xs)
    assert zeros.shape == (2 * link.direction, 5, 4) and not zeros.array.any()
    none = [None] * link.n_cells
    *finals, ys = link(*none, xs)
    *same_finals, same_ys = link(*[zeros] * link.n_cells, xs)
    for y, z in zip([*finals, *ys], [*same_finals, *same_ys]):
        np.testing.assert_array_equal(y.array, z.array)
    assert isinstance(ys, list) and [len(y) for y in ys] == [2, 5, 0, 3, 2]
    for i, x in enumerate(xs):
        *alone, (y,) = link(*none, (x,))
        np.testing.assert_allclose(ys[i].array, y.array, 1e-5, 1e-6)
        for final, other in zip(finals, alone):
            np.testing.assert_allclose(final.array[:, i], other.array[:, 0], 1e-5, 1e-6)


def test_dropout_is_between_layers():
    link, xs = L.NStepGRU(2, 3, 4, 0.5), [f(3, 3)]

    def run():
        np.random.seed(2)
        return link(None, xs)[0].array

    dropped = run()
    link.dropout = 0.0
    kept = run()
    np.testing.assert_array_equal(dropped[0], kept[0])
    assert (dropped[1] != kept[1]).any()
    link.dropout = 0.5
    with mpchain.using_config("train", False):
        np.testing.assert_array_equal(run(), kept)


def test_initial_values():
    link = L.NStepLSTM(1, 4, 4, 0.0, initialW=np.arange(16.0).reshape(4, 4), initial_bias=2)
    assert all(w.array[1, 2] == 6 for w in link.ws[0])
    assert all((b.array == 2).all() for b in link.bs[0])
    link = L.NStepGRU(1, 300, 200, 0.0)
    for w, fan_in in zip(link.ws[0], (300, 300, 300, 200, 200, 200)):
        assert abs(w.array.std() * np.sqrt(fan_in) - 1) < 0.02
    assert not np.array_equal(link[0].w0.array, link[0].w1.array)
    assert not any(b.array.any() for b in link.bs[0])


def test_rnn_is_the_function():
    link, xs = L.NStepRNNReLU(1, 3, 4, 0.0), [f(2, 3), f(1, 3)]
    hy, _ = link.rnn(1, 0.0, link.init_hx(xs), link.ws, link.bs, F.transpose_sequence(xs))
    np.testing.assert_array_equal(hy.array, link(None, xs)[0].array)
    with pytest.raises(NotImplementedError, match="does not implement rnn"):
        super(L.NStepRNNReLU, link).rnn()


@pytest.mark.parametrize(
    "xs, hx, error, message",
    [
        ([], None, TypeError, "NStepGRU: xs must be a non-empty list of sequences"),
        (f(2, 2, 3), None, TypeError, "xs must be a non-empty list of sequences, but is a ndarray"),
        ([f(2, 3), f(2, 4)], None, InvalidType, "every sequence must be"),
        ([f(2, 3), f(2, 3).astype("d")], None, InvalidType, "every sequence must be"),
        ([f(3)], None, InvalidType, "every sequence must be"),
        ([f(2, 4)], None, InvalidType, r"n_step_gru: ws\[0\]\[0\]"),
        ([f(2, 3)], f(1, 2, 4), InvalidType, r"NStepGRU: initial states must be \(layers, 1,"),
        ([f(2, 3)], f(1, 1, 5), InvalidType, "n_step_gru"),
        ([f(2, 3)], f(2, 1, 4), InvalidType, r"n_step_gru: hx must be .* \(1, B, N\)"),
    ],
)
def test_wrong_input(xs, hx, error, message):
    with pytest.raises(error, match=message):
        L.NStepGRU(1, 3, 4, 0.0)(hx, xs)
