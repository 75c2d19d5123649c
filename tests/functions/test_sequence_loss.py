"""Tests losses of sequences: values against enumeration and PyTorch, derivatives, options and edge
cases."""

import itertools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.kernels import thresholds
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

ctc = F.connectionist_temporal_classification
_T = np.array([[1, 2], [1, 1], [3, 2]])
_INPUT_LENGTH, _LABEL_LENGTH = np.array([5, 4, 2]), np.array([2, 2, 1])
_Y = [np.array([0, 1, 2]), np.array([2, 1]), np.array([0, 0])]


def _ctc(*xs, lengths=True, blank=0, t=_T, **options):
    send = xs[0].device.send
    if lengths:
        options |= {"input_length": send(_INPUT_LENGTH), "label_length": send(_LABEL_LENGTH)}
    return ctc(list(xs), send(t), blank, **options)


def _torch_ctc(*xs, lengths=True, blank=0, t=_T):
    """Computes the loss as a sum over all sequences of symbols."""
    losses = []
    for n, labels in enumerate(t):
        length, end = (_INPUT_LENGTH[n], _LABEL_LENGTH[n]) if lengths else (len(xs), len(labels))
        log_p = torch.stack([torch.log_softmax(x[n], 0) for x in xs[:length]])
        scores = [
            sum(log_p[i, s] for i, s in enumerate(symbols))
            for symbols in itertools.product(range(xs[0].shape[1]), repeat=int(length))
            if [s for s, _ in itertools.groupby(symbols) if s != blank] == labels[:end].tolist()
        ]
        losses.append(-torch.logsumexp(torch.stack(scores), 0))
    return torch.stack(losses)


def _crf(cost, *xs, **options):
    return F.crf1d(cost, list(xs), [cost.device.send(y) for y in _Y], **options)


def _torch_scores(cost, xs, n):
    """Returns the scores of all label sequences for the n-th sequence of a batch."""
    xs = [x[n] for x in xs if n < len(x)]
    return {
        labels: sum(x[i] for x, i in zip(xs, labels))
        + sum(cost[i, j] for i, j in itertools.pairwise(labels))
        for labels in itertools.product(range(len(cost)), repeat=len(xs))
    }


def _torch_crf(cost, *xs):
    losses = []
    for n in range(len(xs[0])):
        scores = _torch_scores(cost, xs, n)
        labels = tuple(int(y[n]) for y in _Y if n < len(y))
        losses.append(torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[labels])
    return torch.stack(losses)


_CTC_SHAPES = [(3, 4)] * 5
_SHORT = np.array([[1], [2]])
TABLE = [
    row("ctc", _ctc, lambda *xs: _torch_ctc(*xs).mean(), *_CTC_SHAPES),
    row("ctc per sequence", lambda *xs: _ctc(*xs, reduce="no"), _torch_ctc, *_CTC_SHAPES),
    row(
        "ctc whole",
        lambda *xs: _ctc(*xs, lengths=False, blank=3, t=_T - 1, reduce="no"),
        lambda *xs: _torch_ctc(*xs, lengths=False, blank=3, t=_T - 1),
        *[(3, 4)] * 4,
    ),
    row(
        "ctc one label",
        lambda *xs: _ctc(*xs, lengths=False, t=_SHORT, reduce="no"),
        lambda *xs: _torch_ctc(*xs, lengths=False, t=_SHORT),
        *[(2, 3)] * 2,
    ),
    row("crf1d", _crf, lambda *xs: _torch_crf(*xs).mean(), (3, 3), (3, 3), (2, 3), (2, 3)),
    row(
        "crf1d per sequence",
        lambda *xs: _crf(*xs, reduce="no"),
        _torch_crf,
        (3, 3),
        (3, 3),
        (2, 3),
        (2, 3),
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    # A declaration's body calls this function on arrays.
    assert uncovered(TABLE, "sequence_loss") == {"log_add"}


# Connectionist temporal classification.


@pytest.fixture(params=[0, np.inf], ids=["compiled", "by NumPy"])
def either_walk(request):
    with thresholds.using(compiled=request.param):
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_sequences_as_torch_has_them(dtype, either_walk):
    random = np.random.RandomState(0)
    n_steps, n, v, n_labels = 40, 6, 9, 12
    x = (random.randn(n_steps, n, v) * 3).astype(dtype)
    t = random.randint(0, v - 1, (n, n_labels))
    lengths, ends = random.randint(25, n_steps + 1, n), random.randint(0, n_labels + 1, n)
    xs = [Variable(step) for step in x]
    loss = ctc(xs, t, v - 1, lengths, ends, reduce="no")
    tx = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        torch.log_softmax(tx, 2),
        torch.as_tensor(t),
        torch.as_tensor(lengths),
        torch.as_tensor(ends),
        v - 1,
        "none",
    )
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss.array, expected.detach(), tolerance)
    F.sum(loss).backward()
    expected.sum().backward()
    for step, gradient in zip(xs, tx.grad):
        np.testing.assert_allclose(step.grad, gradient, tolerance, tolerance)


def test_what_lies_beyond_the_lengths_does_not_count(either_walk):
    xs = [Variable(x) for x in np.random.randn(5, 3, 4)]
    loss = _ctc(*xs)
    loss.backward()
    padded = _T.copy()
    padded[2, 1] = -1
    again = [Variable(x.array.copy()) for x in xs]
    for t, x in enumerate(again):
        x.array[_INPUT_LENGTH <= t] = 1e4
    second = _ctc(*again, t=padded)
    second.backward()
    assert second.array == loss.array
    for t, (x, y) in enumerate(zip(xs, again)):
        np.testing.assert_array_equal(x.grad, y.grad)
        assert not x.grad[_INPUT_LENGTH <= t].any()


def test_labels_that_do_not_fit_have_an_infinite_loss_and_no_gradient(either_walk):
    xs = [Variable(x) for x in np.random.randn(3, 3, 4)]
    # Equal labels need a blank between them: 1 1 needs three time steps, 1 1 2 needs four.
    t, ends = np.array([[1, 1, 2], [1, 1, 2], [1, 3, 2]]), np.array([2, 3, 3])
    loss = ctc(xs, t, 0, None, ends, reduce="no")
    assert np.isfinite(loss.array).tolist() == [True, False, True]
    (g,) = mpchain.grad([F.sum(loss)], xs[1:2], enable_double_backprop=True)
    F.sum(loss).backward()
    np.testing.assert_allclose(g.array, xs[1].grad)
    for x in xs:
        assert np.isfinite(x.grad).all() and not x.grad[1].any() and x.grad[[0, 2]].all()
    (gg,) = mpchain.grad([F.sum(g * g)], xs[:1])
    assert np.isfinite(gg.array).all() and not gg.array[1].any()


def test_sequences_without_labels_or_without_times(either_walk):
    x = np.random.randn(2, 2, 3)
    log_p = torch.log_softmax(torch.tensor(x), 2)
    for t, ends in ((np.zeros((2, 0), int), None), (np.array([[1], [1]]), np.zeros(2, int))):
        loss = ctc(list(map(Variable, x)), t, 0, label_length=ends, reduce="no")
        np.testing.assert_allclose(loss.array, -log_p[:, :, 0].sum(0), 1e-12)
    options = {"input_length": np.zeros(2, int), "label_length": np.array([0, 1]), "reduce": "no"}
    loss = ctc(list(x), np.array([[1], [1]]), 0, **options)
    np.testing.assert_array_equal(loss.array, [0, np.inf])


@pytest.mark.parametrize("scale", [1e4, 1e-30])
def test_extreme_scores(scale, either_walk):
    random = np.random.RandomState(0)
    xs = [Variable((random.choice([-1, 0, 1], (3, 4)) * scale).astype("f")) for _ in range(5)]
    loss = ctc(xs, _T, 0)
    (g,) = mpchain.grad([loss], xs[:1], enable_double_backprop=True)
    loss.backward()
    (gg,) = mpchain.grad([F.sum(g * g)], xs[1:2])
    assert np.isfinite(loss.array) and np.isfinite(gg.array).all()
    np.testing.assert_allclose(g.array, xs[0].grad, 1e-4, 1e-6)


def test_scores_that_are_not_numbers_spoil_their_sequence_alone(either_walk):
    xs = np.random.RandomState(0).randn(5, 3, 4).astype("f")
    xs[2, 1, 0] = np.nan
    loss = ctc(list(xs), _T, 0, reduce="no").array
    assert np.isnan(loss).tolist() == [False, True, False]


def test_symbols_that_are_ruled_out(either_walk):
    x = np.zeros((2, 1, 3))
    x[:, :, 2] = -np.inf
    xs = [Variable(step) for step in x]
    loss = ctc(xs, np.array([[1]]), 0)
    np.testing.assert_allclose(loss.array, -np.log(3 / 4), 1e-12)
    loss.backward()
    assert all(np.isfinite(step.grad).all() for step in xs)


def test_empty_batches():
    x = Variable(np.zeros((0, 4), np.float32))
    loss = ctc([x, x], np.zeros((0, 2), int), 0)
    assert loss.array == 0
    loss.backward()
    assert x.grad.shape == (0, 4)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": np.ones((2, 2, 4))}, TypeError, r"x must be a list of arrays, .*numpy.ndarray"),
        ({"x": []}, TypeError, "x must be a list of arrays"),
        ({"x": [np.ones((2, 4)), np.ones((1, 4))]}, InvalidType, r"at every time.*\(1, 4\)"),
        ({"x": [np.ones((2, 4), int)]}, InvalidType, "x must be floating point"),
        ({"t": np.ones((2, 1))}, InvalidType, r"t must be integers \(N, L\)"),
        ({"t": np.ones((3, 1), int)}, InvalidType, r"t must be integers \(N, L\)"),
        ({"t": np.full((2, 1), 4)}, ValueError, "every element of t .* below 4, .* one is 4"),
        ({"blank_symbol": 4}, ValueError, "blank_symbol must be .* below 4, .* but is 4"),
        ({"blank_symbol": -1}, ValueError, "blank_symbol must be .* but is -1"),
        ({"input_length": np.array([1, 3])}, ValueError, r"input_length .* 0 to 2, .* \[1, 3\]"),
        ({"label_length": np.array([-1, 1])}, ValueError, r"label_length .* 0 to 1"),
        ({"label_length": np.ones(3, int)}, InvalidType, "an integer per sequence"),
        ({"reduce": "sum"}, ValueError, "reduce must be one of .* not 'sum'"),
    ],
)
def test_wrong_sequences(change, error, message):
    options = {"x": [np.ones((2, 4))] * 2, "t": np.ones((2, 1), int), "blank_symbol": 0}
    with pytest.raises(error, match=f"^connectionist_temporal_classification: .*{message}"):
        ctc(**options | change)


# Conditional random fields.


def test_the_best_sequences():
    random = np.random.RandomState(1)
    cost, xs = random.randn(3, 3), [random.randn(n, 3) for n in (4, 3, 3, 1)]
    score, labels = F.argmax_crf1d(cost, xs)
    assert [y.shape for y in labels] == [(4,), (3,), (3,), (1,)]
    assert {y.dtype for y in labels} == {np.dtype(np.int32)} and score.creator is None
    for n in range(4):
        scores = _torch_scores(torch.tensor(cost), [torch.tensor(x) for x in xs], n)
        best = max(scores, key=scores.get)
        assert tuple(int(y[n]) for y in labels if n < len(y)) == best
        np.testing.assert_allclose(score.array[n], scores[best], 1e-12)


def test_probabilities_of_all_label_sequences_sum_to_one():
    cost, x = np.random.randn(2, 2), np.random.randn(4, 3, 2)
    total = 0
    for labels in itertools.product(range(2), repeat=4):
        loss = F.crf1d(cost, list(x), [np.full(3, label) for label in labels], reduce="no")
        total = total + np.exp(-loss.array)
    np.testing.assert_allclose(total, 1, 1e-12)


@pytest.mark.parametrize("scale", [1e4, 1e-30])
def test_a_field_of_extreme_scores(scale):
    random = np.random.RandomState(0)
    cost, *xs = (
        Variable((random.choice([-1, 0, 1], (3, 3)) * scale).astype("f")) for _ in range(4)
    )
    loss = F.crf1d(cost, xs, [np.array([0, 1, 2])] * 3)
    (g,) = mpchain.grad([loss], [cost], enable_double_backprop=True)
    (gg,) = mpchain.grad([F.sum(g * g)], [cost])
    for array in (loss.array, g.array, gg.array):
        assert np.isfinite(array).all()


def test_a_field_of_no_sequences():
    cost, x = Variable(np.zeros((3, 3))), Variable(np.zeros((0, 3)))
    loss = F.crf1d(cost, [x, x], [np.zeros(0, int)] * 2)
    assert loss.array == 0
    loss.backward()
    assert x.grad.shape == (0, 3) and not cost.grad.any()
    score, labels = F.argmax_crf1d(cost, [x, x])
    assert score.shape == labels[0].shape == labels[1].shape == (0,)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"cost": np.ones((3, 2))}, InvalidType, r"cost must be a square matrix.*\(3, 2\)"),
        ({"xs": []}, ValueError, "xs must hold at least one array"),
        ({"xs": [np.ones((2, 4))] * 2}, InvalidType, r"every x must be .*\(2, 4\)"),
        (
            {"xs": [np.ones((1, 3)), np.ones((2, 3))]},
            InvalidType,
            "no array of xs may have",
        ),
        ({"ys": [np.ones(2, int)]}, InvalidType, "ys must hold as many arrays as xs: ys: 1, xs: 2"),
        ({"ys": [np.ones(2)] * 2}, InvalidType, "every y must hold an integer per row.*float64"),
        ({"ys": [np.full(2, 3)] * 2}, ValueError, "every element of ys .* one is 3"),
        ({"reduce": "sum"}, ValueError, "reduce must be one of .* not 'sum'"),
    ],
)
def test_wrong_fields(change, error, message):
    options = {"cost": np.ones((3, 3)), "xs": [np.ones((2, 3))] * 2, "ys": [np.ones(2, int)] * 2}
    with pytest.raises(error, match=f"^crf1d: {message}"):
        F.crf1d(**options | change)
    if change.keys() & {"cost", "xs"}:
        options = {"cost": options["cost"], "xs": options["xs"]} | change
        with pytest.raises(error, match=f"^argmax_crf1d: {message}"):
            F.argmax_crf1d(**options)
