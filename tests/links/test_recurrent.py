"""Tests recurrent cells against PyTorch's cells and plain formulas: their state, and wrong
input."""

import numpy as np
import pytest

import mpchain
from mpchain import Variable
from mpchain import functions as F
from mpchain import links as L
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.serializers import load_npz, save_npz
from mpchain.utils.type_check import InvalidType
from tests.links.table import checks_of, row
from tests.reference import torch

pytestmark = pytest.mark.slow

X, S = (2, 3), (2, 4)
UPWARD = {"upward/W": (16, 3), "upward/b": (16,)}
LSTM = {**UPWARD, "lateral/W": (16, 4)}
GRU = {
    f"{m}{gate}/{p}": shape
    for m, columns in (("W", 3), ("U", 4))
    for gate in ("", "_r", "_z")
    for p, shape in (("W", (4, columns)), ("b", (4,)))
}
MGU = {f"{m}/{p}": s for m in ("W_f", "W_h") for p, s in (("W", (4, 7)), ("b", (4,)))}
PEEPHOLE = {**LSTM, "peep_i/W": (4, 4), "peep_f/W": (4, 4), "peep_o/W": (4, 4)}


def steps(link, *xs):
    """Returns the outputs of a stateful link for several steps, from the beginning."""
    link.reset_state()
    return [link(x) for x in xs]


def gates(w, h, x):
    """Returns the gates a, i, f, o, which are neighbors in the weights."""
    joined = x @ w["upward/W"].T + w["upward/b"] + h @ w["lateral/W"].T
    return (joined[:, k::4] for k in range(4))


def torch_lstm(w, c, h, x):
    """Computes a step by PyTorch's cell, whose gates are blocks i, f, a, o."""
    cell = torch.nn.LSTMCell(3, 4).double()
    blocks = {
        name: torch.cat([v[k::4] for k in (1, 2, 0, 3)])
        for name, v in (
            ("weight_ih", w["upward/W"]),
            ("weight_hh", w["lateral/W"]),
            ("bias_ih", w["upward/b"]),
        )
    }
    blocks["bias_hh"] = torch.zeros_like(blocks["bias_ih"])
    h, c = torch.func.functional_call(cell, blocks, (x, (h, c)))
    return c, h


def torch_gru(w, h, x):
    def affine(name, v):
        return v @ w[f"{name}/W"].T + w[f"{name}/b"]

    r = torch.sigmoid(affine("W_r", x) + affine("U_r", h))
    z = torch.sigmoid(affine("W_z", x) + affine("U_z", h))
    return (1 - z) * h + z * torch.tanh(affine("W", x) + affine("U", r * h))


def torch_gru_begun(w, *xs):
    """Computes two steps; the first has no state, so it omits the maps U and their biases."""
    first = {k: v * 0 if k.startswith("U") else v for k, v in w.items()}
    h = torch_gru(first, torch.zeros(S, dtype=torch.float64), xs[0])
    return h, torch_gru(w, h, xs[1])


def torch_mgu(w, h, x):
    f = torch.sigmoid(torch.cat([h, x], 1) @ w["W_f/W"].T + w["W_f/b"])
    a = torch.tanh(torch.cat([f * h, x], 1) @ w["W_h/W"].T + w["W_h/b"])
    return (1 - f) * h + f * a


def torch_peephole(w, c, h, x):
    a, i, f, o = gates(w, h, x)
    kept = c * torch.sigmoid(f + c @ w["peep_f/W"].T)
    c = torch.tanh(a) * torch.sigmoid(i + c @ w["peep_i/W"].T) + kept
    return c, torch.sigmoid(o + c @ w["peep_o/W"].T) * torch.tanh(c)


def unrolled(cell):
    """Returns a function that repeats a cell of memory and output, from zeros."""

    def run(w, *xs):
        c = h = torch.zeros(S, dtype=torch.float64)
        hs = []
        for x in xs:
            c, h = cell(w, c, h, x)
            hs.append(h)
        return hs

    return run


def torch_mgu_begun(w, *xs):
    h = torch_mgu(w, torch.zeros(S, dtype=torch.float64), xs[0])
    return h, torch_mgu(w, h, xs[1])


TABLE = [
    row(
        "LSTM",
        lambda: L.LSTM(3, 4),
        *[X] * 3,
        params=LSTM,
        lazy=lambda: L.LSTM(None, 4),
        call=steps,
        reference=unrolled(torch_lstm),
    ),
    row(
        "StatelessLSTM",
        lambda: L.StatelessLSTM(3, 4),
        S,
        S,
        X,
        params=LSTM,
        lazy=lambda: L.StatelessLSTM(4),
        reference=torch_lstm,
    ),
    row(
        "StatefulGRU",
        lambda: L.StatefulGRU(3, 4),
        X,
        X,
        params=GRU,
        lazy=lambda: L.StatefulGRU(None, 4),
        call=steps,
        reference=torch_gru_begun,
    ),
    row("GRU", lambda: L.GRU(3, 4), X, X, params=GRU, call=steps, reference=torch_gru_begun),
    row(
        "StatelessGRU",
        lambda: L.StatelessGRU(3, 4),
        S,
        X,
        params=GRU,
        lazy=lambda: L.StatelessGRU(None, 4),
        reference=torch_gru,
    ),
    row(
        "StatefulMGU",
        lambda: L.StatefulMGU(3, 4),
        X,
        X,
        params=MGU,
        lazy=lambda: L.StatefulMGU(None, 4),
        call=steps,
        reference=torch_mgu_begun,
    ),
    row(
        "StatelessMGU",
        lambda: L.StatelessMGU(3, 4),
        S,
        X,
        params=MGU,
        lazy=lambda: L.StatelessMGU(None, 4),
        reference=torch_mgu,
    ),
    row(
        "StatefulPeepholeLSTM",
        lambda: L.StatefulPeepholeLSTM(3, 4),
        X,
        X,
        params=PEEPHOLE,
        lazy=lambda: L.StatefulPeepholeLSTM(None, 4),
        call=steps,
        reference=unrolled(torch_peephole),
    ),
    row(
        "StatefulZoneoutLSTM",
        lambda: L.StatefulZoneoutLSTM(3, 4, c_ratio=0.2, h_ratio=0.3),
        X,
        X,
        params=LSTM,
        call=steps,
    ),
    row(
        "StatefulZoneoutLSTM in inference",
        lambda: L.StatefulZoneoutLSTM(3, 4, c_ratio=0.2, h_ratio=0.3),
        X,
        X,
        params=LSTM,
        lazy=lambda: L.StatefulZoneoutLSTM(None, 4, c_ratio=0.2, h_ratio=0.3),
        call=steps,
        config={"train": False},
        reference=unrolled(torch_lstm),
    ),
]
globals().update(checks_of(TABLE))

STATEFUL = [case for case in TABLE if case.call is steps and "inference" not in case.name]
each_stateful = pytest.mark.parametrize("case", STATEFUL, ids=lambda case: case.name)


def f(*shape):
    return np.random.randn(*shape).astype(np.float32)


def states_of(link):
    return {name: getattr(link, name) for name in ("c", "h") if hasattr(link, name)}


def test_initial_values_of_each_gate():
    link = L.LSTM(3, 2, bias_init=5, forget_bias_init=np.array([6, 7]), upward_init=_numbered())
    assert link.upward.b.array.tolist() == [5, 5, 6, 5, 5, 5, 7, 5]
    assert link.upward.W.array[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    link = L.StatelessLSTM(2, 2, lateral_init=mpchain.initializers.Orthogonal(1.0))
    assert link.upward.b.array.tolist() == [0, 0, 1, 0] * 2
    for W in np.split(link.lateral.W.array, 4):
        np.testing.assert_allclose(W @ W.T, np.eye(2), atol=1e-6)
    link = L.StatelessGRU(3, 2, 1, 2, 3)
    assert {p.array.ravel()[0].item() for p in (link.W.W, link.W_r.W, link.W_z.W)} == {1}
    assert {p.array.ravel()[0].item() for p in (link.U.W, link.U_r.W, link.U_z.W)} == {2}
    assert link.U_z.b.array.tolist() == link.W.b.array.tolist() == [3, 3]


# Chainer 7.8.1 draws these first columns of the weights after numpy.random.seed(0).
CHAINERS_LSTM = {
    "upward": "1.078235 -.087386 .256264 -.118448 1.310443 -.108071 -.200867 .694194",
    "lateral": "1.247373 .692072 .101854 .538135 -1.805236 .611249 .109564 -.627759",
}
CHAINERS_PEEPHOLE = {
    "upward": "1.018476 1.29378 .548534 .237059 .439385 .192647 .18075 .377367",
    "lateral": "1.604959 .032356 1.083839 .109564 -.627759 -.246011 .869947 -.273881",
}


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: L.LSTM(3, 2), CHAINERS_LSTM),
        (lambda: L.StatelessLSTM(3, 2), CHAINERS_LSTM),
        (lambda: L.LSTM(None, 2), CHAINERS_LSTM),
        (lambda: L.StatefulZoneoutLSTM(3, 2), CHAINERS_PEEPHOLE),
        (lambda: L.StatefulPeepholeLSTM(3, 2), CHAINERS_PEEPHOLE),
    ],
)
def test_initial_weights_are_those_that_chainer_draws(make, expected):
    np.random.seed(0)
    link = make()
    if not link.upward.W.is_initialized:
        assert not link.lateral.W.is_initialized
        link(np.ones((1, 3), np.float32))
    for name, column in expected.items():
        W = getattr(link, name).W.array
        np.testing.assert_allclose(W[:, 0], np.array(column.split(), float), atol=1e-6)
        assert W.dtype == np.float32


def test_weights_that_are_there_stay_when_others_are_drawn():
    link = L.LSTM(None, 2)
    link.lateral.W.initialize((8, 2))
    W = link.lateral.W.array.copy()
    link(np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(link.lateral.W.array, W)
    assert link.upward.W.shape == (8, 3)


def _numbered():
    """Returns an initializer that fills an array with the number of its call."""
    calls = []

    def fill(array):
        calls.append(None)
        array[...] = len(calls)

    return fill


@each_stateful
def test_state_is_kept_set_and_forgotten(case):
    link, x = case.make(), f(*X)
    assert set(states_of(link).values()) == {None}
    with mpchain.using_config("train", False):
        first, second = link(x).array, link(x).array
        assert not np.array_equal(first, second)
        kept = {name: state.array for name, state in states_of(link).items()}
        third = link(x).array
        link.set_state(**kept)
        np.testing.assert_array_equal(link(x).array, third)
        link.reset_state()
        assert set(states_of(link).values()) == {None}
        np.testing.assert_array_equal(link(x).array, first)


@each_stateful
def test_state_is_not_saved(case, tmp_path):
    link = case.make()
    link(f(*X))
    save_npz(tmp_path / "link.npz", link)
    with np.load(tmp_path / "link.npz") as file:
        assert set(file.files) == case.params.keys()
    other = case.make()
    load_npz(tmp_path / "link.npz", other)
    assert other.h is None
    assert {path for path, _ in link.namedparams()} == {f"/{path}" for path in case.params}


@each_stateful
def test_gradients_flow_through_the_set_state(case):
    link = case.make()
    states = {name: Variable(f(*S)) for name in states_of(link)}
    link.set_state(**states)
    F.sum(link(f(*X))).backward()
    assert all(np.abs(state.grad).max() > 0 for state in states.values())


class _Doubling(DeviceResidentsVisitor):
    """A visitor that doubles every array."""

    def visit_device_resident(self, device_resident):
        pass

    def visit_array(self, array):
        return array * 2

    def visit_variable(self, param):
        pass


@each_stateful
def test_visitors_see_the_state(case):
    link = case.make()
    link.device_resident_accept(_Doubling())
    assert link.h is None
    link(f(*X))
    before = {name: state.array for name, state in states_of(link).items()}
    link.device_resident_accept(_Doubling())
    for name, state in states_of(link).items():
        np.testing.assert_array_equal(state.array, before[name] * 2)
        assert state.creator is None


@each_stateful
def test_state_moves_with_the_link(case, device):
    link = case.make()
    link(f(*X))
    kept = link.h
    link.to_device(link.device)
    assert link.h is kept  # a state that is not replaced keeps its history
    link.to_device(device)
    assert {state.device for state in states_of(link).values()} == {mpchain.get_device(device)}
    link.set_state(**{name: f(*S) for name in states_of(link)})
    link(link.device.send(f(*X)))


@pytest.mark.parametrize("cls", [L.LSTM, L.StatelessLSTM])
def test_lstm_keeps_its_initializers(cls):
    link = cls(3, 4, lateral_init=0.5, forget_bias_init=2)
    assert (link.lateral_init, link.forget_bias_init) == (0.5, 2)
    assert link.upward_init is link.bias_init is None


def test_lstm_of_sequences_that_end():
    link, xs = L.LSTM(3, 4), [f(n, 3) for n in (3, 3, 2, 1, 1)]
    ys = [link(x) for x in xs]
    for sequence in range(3):
        other = link.copy()
        other.reset_state()
        for x, y in zip(xs, ys):
            if sequence < len(x):
                expected = other(x[sequence : sequence + 1])
                np.testing.assert_allclose(y.array[sequence], expected.array[0], 1e-5, 1e-6)
        np.testing.assert_allclose(link.c.array[sequence], other.c.array[0], 1e-5, 1e-6)
        np.testing.assert_allclose(link.h.array[sequence], other.h.array[0], 1e-5, 1e-6)


def test_truncated_backpropagation():
    link, x = L.LSTM(3, 4), f(*X)
    link(x)
    link.h.unchain_backward()
    link.c.unchain_backward()
    kept = link.h
    F.sum(link(x)).backward()
    assert kept.creator is None and link.lateral.W.grad is not None


def test_states_that_are_left_out():
    link, c, h, x = L.StatelessLSTM(3, 4), f(*S), f(*S), f(*X)
    zeros = np.zeros_like(c)
    for given, full in (((None, None), (zeros, zeros)), ((c, None), (c, zeros))):
        for y, z in zip(link(*given, x), link(*full, x)):
            np.testing.assert_allclose(y.array, z.array, 1e-6)
    for y, z in zip(link(None, h, x), link(zeros, h, x)):
        np.testing.assert_allclose(y.array, z.array, 1e-6)
    link = L.StatelessMGU(3, 4)
    np.testing.assert_array_equal(link(None, x).array, link(zeros, x).array)
    link = L.StatelessGRU(3, 4)
    np.testing.assert_allclose(link(None, x).array, link(zeros, x).array, 1e-6)


def test_the_first_step_makes_all_parameters():
    link = L.GRU(None, 4)
    link(f(*X))
    assert all(param.is_initialized for param in link.params())


def test_zoneout_keeps_what_it_says():
    link = L.StatefulZoneoutLSTM(3, 4, c_ratio=1, h_ratio=0)
    c, h, x = f(*S), f(*S), f(*X)
    link.set_state(c, h)
    link(x)
    np.testing.assert_array_equal(link.c.array, c)
    link = L.StatefulZoneoutLSTM(30, 500)
    h, x = f(2, 500), f(2, 30)
    link.set_state(h, h)
    kept = (link(x).array == h).mean()
    assert abs(kept - 0.5) < 0.07  # the bound is over 4 standard deviations of 1000 trials


@each_stateful
@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_of_another_size(case, n):
    link = case.make()
    link(f(*X))
    if n == 1 and type(link) is L.LSTM:
        assert link(f(n, 3)).shape == (1, 4)
        return
    name = type(link).__name__
    most = "at most " if type(link) is L.LSTM else ""
    with pytest.raises(InvalidType, match=f"{name}: x must have {most}2 rows, .*reset_state"):
        link(f(n, 3))


@pytest.mark.parametrize(
    "make, states",
    [
        (lambda: L.StatelessLSTM(3, 4), (f(2, 4), f(2, 5))),
        (lambda: L.StatelessLSTM(3, 4), (f(1, 4), f(2, 4))),
        (lambda: L.StatelessGRU(3, 4), (f(3, 4),)),
        (lambda: L.StatelessMGU(3, 4), (f(2, 5),)),
    ],
)
def test_states_that_do_not_fit(make, states):
    with pytest.raises(InvalidType):
        make()(*states, f(*X))
