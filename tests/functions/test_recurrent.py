"""Tests recurrent cells and layers against PyTorch's cells, its RNN modules and plain formulas."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions import n_step, recurrent
from mpchain.utils.type_check import InvalidType
from tests.functions.harness import check_orders, weighted_sum
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow


def _cell(pairs, forgets, cs, o):
    c = sum(torch.tanh(a) * torch.sigmoid(i) for a, i in pairs)
    c = c + sum(torch.sigmoid(f) * m for f, m in zip(forgets, cs))
    return c, torch.sigmoid(o) * torch.tanh(c)


def _torch_lstm(c_prev, x):
    n = len(x)
    a, i, f, o = (x[:, k::4] for k in range(4))
    c, h = _cell([(a, i)], [f], [c_prev[:n]], o)
    return torch.cat([c, c_prev[n:]]), h


def _torch_slstm(c1, c2, x1, x2):
    a1, i1, f1, o1 = (x1[:, k::4] for k in range(4))
    a2, i2, f2, o2 = (x2[:, k::4] for k in range(4))
    return _cell([(a1, i1), (a2, i2)], [f1, f2], [c1, c2], o1 + o2)


def _torch_tree_lstm(*inputs):
    *cs, x = inputs
    a, i, o, *fs = x.chunk(3 + len(cs), 1)
    return _cell([(a, i)], fs, cs, o)


LENGTHS = (3, 2, 2, 1)
N, I = 2, 3
MODULES = {
    "lstm": (torch.nn.LSTM, 8, (0, 1, 2, 3)),
    "gru": (torch.nn.GRU, 6, (0, 1, 2)),
    "rnn": (torch.nn.RNN, 2, (0,)),
}


def _shapes(kind, n_layers, n_directions, lengths=LENGTHS):
    """Returns the shapes of the first states, weights, biases and inputs of a case."""
    n_weights = MODULES[kind][1]
    states = [(n_layers * n_directions, lengths[0], N)] * (1 + (kind == "lstm"))
    ws = []
    for k in range(n_layers * n_directions):
        columns = I if k < n_directions else N * n_directions
        ws += [(N, columns)] * (n_weights // 2) + [(N, N)] * (n_weights // 2)
    return [*states, *ws, *[(N,)] * len(ws), *[(n, I) for n in lengths]]


def _taken_apart(kind, n_layers, n_directions, arrays):
    n_weights = MODULES[kind][1]
    arrays = list(arrays)
    states = [arrays.pop(0) for _ in range(1 + (kind == "lstm"))]

    def lists():
        return [[arrays.pop(0) for _ in range(n_weights)] for _ in range(n_layers * n_directions)]

    return states, lists(), lists(), arrays


def _ours(kind, n_layers, n_directions, *arrays, **options):
    states, ws, bs, xs = _taken_apart(kind, n_layers, n_directions, arrays)
    function = getattr(F, f"n_step_{'bi' * (n_directions - 1)}{kind}")
    *finals, ys = function(n_layers, 0.0, *states, ws, bs, xs, **options)
    return *finals, *ys


def _torch(kind, n_layers, n_directions, *tensors, **options):
    """Computes a case with PyTorch's modules, from packed sequences."""
    states, ws, bs, xs = _taken_apart(kind, n_layers, n_directions, tensors)
    module_class, n_weights, order = MODULES[kind]
    half = n_weights // 2
    options = {"nonlinearity": options["activation"]} if options else {}
    module = module_class(I, N, n_layers, bidirectional=n_directions == 2, **options).double()
    parameters = {}
    for k, (layer_ws, layer_bs) in enumerate(zip(ws, bs)):
        suffix = f"_l{k // n_directions}" + "_reverse" * (k % n_directions)
        for name, parts in (("weight", layer_ws), ("bias", layer_bs)):
            for side, begin in (("ih", 0), ("hh", half)):
                joined = torch.cat([parts[begin + j] for j in order])
                parameters[f"{name}_{side}{suffix}"] = joined
    sizes = torch.tensor([len(x) for x in xs])
    packed = torch.nn.utils.rnn.PackedSequence(torch.cat(xs), sizes)
    first = tuple(states) if kind == "lstm" else states[0]
    y, final = torch.func.functional_call(module, parameters, (packed, first))
    finals = final if kind == "lstm" else (final,)
    return *finals, *torch.split(y.data, sizes.tolist())


def _n_step_row(kind, n_layers, n_directions, orders=3, lengths=LENGTHS, **options):
    arguments = (kind, n_layers, n_directions)
    return row(
        " ".join(map(str, ["n_step", *arguments, *options.values(), len(lengths)])),
        functools.partial(_ours, *arguments, **options),
        functools.partial(_torch, *arguments, **options),
        *_shapes(*arguments, lengths),
        low=-1.0,
        high=1.0,
        orders=orders,
        smooth=options.get("activation") != "relu",
        tolerance={np.float16: 4e-2, np.float32: 1e-4},
    )


TABLE = [
    row("lstm", F.lstm, _torch_lstm, (3, 2), (3, 8)),
    row("lstm of sequences that end", F.lstm, _torch_lstm, (4, 2), (2, 8)),
    row("lstm images", F.lstm, _torch_lstm, (2, 2, 3), (2, 8, 3)),
    row("slstm", F.slstm, _torch_slstm, (2, 3), (2, 3), (2, 12), (2, 12)),
    row("tree_lstm of one", F.tree_lstm, _torch_tree_lstm, (2, 3), (2, 12)),
    row("tree_lstm of three", F.tree_lstm, _torch_tree_lstm, (2, 2), (2, 2), (2, 2), (2, 12)),
    # The third order of two bidirectional layers is expensive, and uses the same cells.
    _n_step_row("lstm", 1, 1),
    _n_step_row("lstm", 2, 2, orders=2),
    _n_step_row("gru", 1, 1),
    _n_step_row("gru", 2, 2, orders=2),
    _n_step_row("rnn", 1, 1, activation="tanh"),
    _n_step_row("rnn", 2, 2, activation="tanh"),
    row(
        "n_step_rnn relu",
        lambda hx, x, W, R, b, c: F.n_step_rnn(
            1, 0.0, hx, [[W, R]], [[b, c]], [x], activation="relu"
        )[0],
        lambda hx, x, W, R, b, c: torch.relu(x @ W.T + b + hx @ R.T + c),
        (1, 2, 2),
        (2, 3),
        (2, 3),
        (2, 2),
        (2,),
        (2,),
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # Derivatives use the first two, and a layer on the host replaces gru; see the next test.
    assert uncovered(TABLE, "recurrent", "n_step") <= {"split_gates", "join_gates", "gru"}


@pytest.mark.parametrize("lengths", [LENGTHS, (2, 0), (3, 1)])
@pytest.mark.parametrize("n_directions", [1, 2])
@pytest.mark.parametrize("kind", [*MODULES, "rnn of relu"])
def test_a_layer_is_the_same_step_by_step(kind, n_directions, lengths, monkeypatch):
    kind, *others = kind.split(" of ")
    options = {"activation": "relu"} if others else {}
    arrays = _arrays(kind, 2, n_directions, lengths)

    def run():
        xs = [Variable(x) for x in arrays]
        ys = _ours(kind, 2, n_directions, *xs, **options)
        grads = mpchain.grad(ys[:2], xs, enable_double_backprop=True)
        F.add(*(F.sum(y * y) for y in (*ys, *grads) if y is not None)).backward()
        return [v.array for v in (*ys, *grads) if v is not None] + [x.grad for x in xs]

    at_once = run()
    monkeypatch.setattr(n_step, "_recurrent_layer", n_step._composed_layer)
    step_by_step = run()
    for x, y in zip(at_once, step_by_step, strict=True):
        np.testing.assert_allclose(x, y, 1e-11, 1e-12)


def test_no_step_is_a_node_on_the_host():
    ys = _ours("lstm", 1, 1, *map(Variable, _arrays("lstm", 1, 1)))
    labels = set()
    nodes = [y.creator_node for y in ys]
    while nodes:
        node = nodes.pop()
        labels.add(node.label)
        nodes += [x.creator_node for x in node.inputs if x.creator_node is not None]
    assert "recurrent_layer" in labels and "lstm" not in labels


def test_a_layer_leaves_its_inputs_as_they_are():
    arrays = [x.astype("f") for x in _arrays("gru", 1, 2)]
    kept = [x.copy() for x in arrays]
    xs = [Variable(x) for x in arrays]
    ys = _ours("gru", 1, 2, *xs)
    seeds = [np.ones_like(y.array) for y in ys]
    for y, seed in zip(ys, seeds):
        y.grad = seed
    mpchain.backward(ys)
    assert all((seed == 1).all() for seed in seeds)
    for x, y in zip(arrays, kept):
        np.testing.assert_array_equal(x, y)


def _arrays(kind, n_layers, n_directions, lengths=LENGTHS):
    random = np.random.RandomState(7)
    shapes = _shapes(kind, n_layers, n_directions, lengths)
    return [random.uniform(-1, 1, shape) for shape in shapes]


def _cases():
    yield "lstm", F.lstm, [(3, 2), (2, 8)]
    yield "slstm", F.slstm, [(2, 2), (2, 2), (2, 8), (2, 8)]
    yield "tree_lstm", F.tree_lstm, [(2, 2), (2, 2), (2, 10)]
    for kind in MODULES:
        for n in (1, 2):
            name = f"n_step_{'bi' * (n - 1)}{kind}"
            yield name, functools.partial(_ours, kind, 1, n), _shapes(kind, 1, n)


@pytest.mark.parametrize("function, shapes", [pytest.param(f, s, id=n) for n, f, s in _cases()])
def test_gradient_penalty(function, shapes, device):
    random = np.random.RandomState(4)
    arrays = [random.uniform(-1, 1, shape) for shape in shapes]
    critic = weighted_sum(function, arrays)

    def penalty(*xs):
        gxs = mpchain.grad([critic(*xs)], xs, enable_double_backprop=True)
        norm = F.sqrt(F.add(*(F.sum(g * g) for g in gxs)))
        return F.square(norm - 1)

    check_orders(penalty, arrays, 1, device)


@pytest.mark.parametrize("outputs", [[0], [1]], ids=["memory alone", "output alone"])
@pytest.mark.parametrize("function, shapes", [p[1:] for p in _cases()][:3])
def test_gradient_of_one_output(function, shapes, outputs):
    random = np.random.RandomState(4)
    arrays = [random.uniform(-1, 1, shape) for shape in shapes]
    one = weighted_sum(lambda *xs: tuple(function(*xs)[k] for k in outputs), arrays)
    check_orders(one, arrays, 2)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("n_directions", [1, 2])
@pytest.mark.parametrize("lengths", [(2, 2, 2), (1,), (3, 1), (2, 0)])
def test_sequences_of_other_lengths(kind, n_directions, lengths):
    arrays = _arrays(kind, 2, n_directions, lengths)
    ys = _ours(kind, 2, n_directions, *map(Variable, arrays))
    kept = [n for n in lengths if n]
    tensors = [torch.tensor(x) for x in arrays[: len(arrays) - len(lengths) + len(kept)]]
    expected = _torch(kind, 2, n_directions, *tensors)
    for y, e in zip(ys, expected):
        np.testing.assert_allclose(y.array, e, 1e-12, 1e-12)
    assert [len(y) for y in ys[-len(lengths) :]] == list(lengths)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("n_directions", [1, 2])
def test_sequences_without_any_element(kind, n_directions):
    arrays = _arrays(kind, 1, n_directions)
    short = [x[:2] if k >= len(arrays) - len(LENGTHS) else x for k, x in enumerate(arrays)]
    n_states = 1 + (kind == "lstm")
    ys = _ours(kind, 1, n_directions, *short)
    rest = [x[:, :2] for x in short[:n_states]] + short[n_states:]
    for y, z, first in zip(ys, _ours(kind, 1, n_directions, *rest), short[:n_states]):
        np.testing.assert_array_equal(y.array[:, :2], z.array)
        np.testing.assert_array_equal(y.array[:, 2:], first[:, 2:])


@pytest.mark.parametrize("kind", MODULES)
def test_an_empty_batch(kind):
    ys = _ours(kind, 1, 2, *map(Variable, _arrays(kind, 1, 2, (0, 0))))
    assert ys[0].shape == (2, 0, N) and ys[-1].shape == (0, 2 * N)
    c, h = F.lstm(np.zeros((0, 2)), np.zeros((0, 8)))
    assert c.shape == h.shape == (0, 2)


def test_dropout_between_layers():
    states, ws, bs, xs = _taken_apart("gru", 2, 1, _arrays("gru", 2, 1))

    def run(ratio):
        np.random.seed(1)
        return F.n_step_gru(2, ratio, *states, ws, bs, xs)[0].array

    hy = run(0.0)
    dropped = run(0.5)
    np.testing.assert_array_equal(dropped[0], hy[0])
    assert (dropped[1] != hy[1]).all()
    with mpchain.using_config("train", False):
        np.testing.assert_array_equal(run(0.5), hy)


def test_no_dropout_before_a_single_layer():
    states, ws, bs, xs = _taken_apart("gru", 1, 1, _arrays("gru", 1, 1))
    hy, _ = F.n_step_gru(1, 0.9, *states, ws, bs, xs)
    np.testing.assert_array_equal(hy.array, F.n_step_gru(1, 0.0, *states, ws, bs, xs)[0].array)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_extreme_gates(dtype):
    x = np.full((2, 8), 1e4, dtype) * np.array([[1], [-1]], dtype)
    c_prev = Variable(np.array([[0.5, -1e4]] * 2, dtype))
    x = Variable(x)
    c, h = F.lstm(c_prev, x)
    np.testing.assert_array_equal(c.array, [[1.5, dtype(1 - 1e4)], [0, 0]])
    np.testing.assert_allclose(h.array, [[np.tanh(1.5), -1], [0, 0]], 1e-3)
    F.sum(c + h).backward()
    assert np.isfinite(x.grad).all() and np.isfinite(c_prev.grad).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (1, 2), (0, 2), (3, 0), (2, 3, 4)])
def test_an_lstm_of_plain_arrays_has_the_bits_of_the_formulas(shape, is_interleaved, dtype):
    random = np.random.RandomState(0)
    c, gc, gh = (random.randn(*shape).astype(dtype) for _ in range(3))
    x = 3 * random.randn(shape[0], 4 * shape[1], *shape[2:]).astype(dtype)
    copies = [v.copy() for v in (c, x, gc, gh)]
    a, i, f, o = recurrent._split_gates.on(x, 4, is_interleaved)
    expected_ys = recurrent._cell([c], [(a, i)], [f], o)
    for y, right in zip(recurrent._lstm.on(c, x, is_interleaved), expected_ys, strict=True):
        assert y.dtype == dtype and y.flags.c_contiguous
        np.testing.assert_array_equal(y, right)
    for gys in ((gc, gh), (None, gh), (gc, None)):
        known = [np.zeros(shape, dtype) if g is None else g for g in gys]
        gcs, ((ga, gi),), (gf,), go = recurrent._cell_gradients(*known, [c], [(a, i)], [f], o)
        joined = recurrent._join_gates.on([ga, gi, gf, go], is_interleaved)
        found = recurrent._lstm_derivative(gys, c, x, is_interleaved)
        for gx, right in zip(found, (gcs[0], joined), strict=True):
            assert gx.dtype == dtype
            np.testing.assert_array_equal(gx, right)
    for v, copy in zip((c, x, gc, gh), copies):
        np.testing.assert_array_equal(v, copy)


@pytest.mark.parametrize("lengths", [(3, 3), (4, 2, 2, 1), (3, 0), (1,), (2, 2, 0)])
def test_steps_of_sequences_of_equal_and_other_lengths(lengths):
    random = np.random.RandomState(0)
    xs = [random.randn(n, 2) for n in lengths]
    steps = F.transpose_sequence(xs)
    assert len(steps) == lengths[0]
    for t, step in enumerate(steps):
        np.testing.assert_array_equal(step.array, [x[t] for x in xs if len(x) > t])
    for back, x in zip(F.transpose_sequence(steps), xs):
        np.testing.assert_array_equal(back.array, x)
    squares = lambda *xs: F.transpose_sequence([x * x for x in xs])
    given = [x for x in xs if len(x)]
    check_orders(weighted_sum(squares, given), given)


def test_what_is_kept():
    c_prev, x = Variable(np.ones((2, 1), "f")), Variable(np.ones((2, 4), "f"))
    _, h = F.lstm(c_prev, x)
    kept = [array for array in h.creator_node._kept if array is not None]
    assert len(kept) == 2 and kept[0] is c_prev.array and kept[1] is x.array


def f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def _gru(hx=None, ws=None, bs=None, xs=None, n_layers=1):
    weights = [f(2, 3)] * 3 + [f(2, 2)] * 3
    hx = f(1, 2, 2) if hx is None else hx
    ws, bs = ws or [weights], bs or [[f(2)] * 6]
    return n_layers, 0.0, hx, ws, bs, [f(2, 3), f(1, 3)] if xs is None else xs


WRONG = [
    ("lstm", (f(2, 3), f(2, 11)), "4 times as long as the second axis of c_prev", "(2, 11)"),
    ("lstm", (f(2, 3), f(3, 12)), "must not have more rows", "(3, 12)"),
    ("lstm", (f(2, 3), f(2, 12, 1)), "must be 4 times", "(2, 12, 1)"),
    ("lstm", (f(2, 3), f(2, 12, dtype=np.float64)), "the same floating-point dtype", "float64"),
    ("lstm", (f(2, 3, dtype=int), f(2, 12, dtype=int)), "the same floating-point dtype", "int64"),
    ("slstm", (f(2, 3), f(2, 3), f(2, 12), f(2, 8)), "must be 4 times", "(2, 8)"),
    ("slstm", (f(2, 3), f(1, 3), f(2, 12), f(1, 12)), "must have equal shapes", "(1, 3)"),
    ("slstm", (f(2, 3), f(2, 3), f(1, 12), f(2, 12)), "must have equal shapes", "(1, 12)"),
    ("tree_lstm", (f(2, 3),), "must be one or more memories, then x", "n_inputs: 1"),
    (
        "tree_lstm",
        (f(2, 3), f(2, 2), f(2, 15)),
        "5 times as long as the second axis of c_2",
        "(2, 15)",
    ),
    ("tree_lstm", (f(2, 3), f(1, 12)), "same number of rows", "(1, 12)"),
    ("n_step_gru", _gru(hx=f(2, 2, 2)), "hx must be floating point of shape (1, B, N)"),
    ("n_step_gru", _gru(n_layers=0), "n_layers must be positive", "n_layers: 0"),
    ("n_step_gru", _gru(ws=[[f(2, 3)] * 6]), "ws[0][3] must be of shape (2, 2)", "(2, 3)"),
    ("n_step_gru", _gru(ws=[[f(2, 3)] * 5]), "ws[0] and bs[0] must hold 6 arrays", "n_ws: 5"),
    ("n_step_gru", _gru(bs=[[f(3)] * 6]), "bs[0][0] must be of shape (2,)", "(3,)"),
    ("n_step_gru", _gru(bs=[[f(2)] * 6] * 2), "ws and bs must hold 1 lists", "bs: 2"),
    ("n_step_gru", _gru(xs=[f(1, 3), f(2, 3)]), "the longest sequence first", "rows: 1"),
    ("n_step_gru", _gru(xs=[f(2, 3), f(1, 2)]), "every x must be (B_t, I)", "(1, 2)"),
    ("n_step_gru", _gru(xs=[f(2, 3, dtype=np.float64)]), "dtype of hx", "float64"),
    ("n_step_gru", _gru(xs=[]), "an array per time step", "[]"),
    ("n_step_lstm", (1, 0.0, f(1, 2, 2), f(1, 1, 2), [], [], []), "cx must have the shape and"),
    ("n_step_bigru", _gru(), "hx must be floating point of shape (2, B, N)"),
]


@pytest.mark.parametrize(
    "name, arguments, shown",
    [(n, a, s) for n, a, *s in WRONG],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_input(name, arguments, shown):
    with pytest.raises(InvalidType) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message


@pytest.mark.parametrize("name", ["n_step_rnn", "n_step_birnn"])
def test_unknown_activation(name):
    with pytest.raises(ValueError, match=f"{name}: activation must be .* but is 'cubic'"):
        getattr(F, name)(*_gru(), activation="cubic")
