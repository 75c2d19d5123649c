"""Sequence losses: connectionist temporal classification and conditional random fields."""

from collections.abc import Sequence

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.backends.dtypes import is_floating
from mpchain.functions.activation import log_softmax
from mpchain.functions.array import cast, reshape, widened
from mpchain.functions.declaring.declaration import differentiable, elementwise
from mpchain.functions.declaring.precision import check_widths
from mpchain.functions.indexing import check_labels, get_item, select_item
from mpchain.functions.joining import concat, split_axis
from mpchain.functions.loss import check_option, reduced
from mpchain.functions.reduction import logsumexp
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.numba_cells import compiled_step
from mpchain.observers import one_call
from mpchain.typing import Array, Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_array, as_variable

# Connectionist temporal classification. The label sequence with blanks around each label is a chain
# of S = 2 L + 1 states; a path steps to the same state, to the next state, or, between different
# labels, over one state. Probabilities are logarithms; their shape at each time is (1, N, S).

_LOG_ZERO = -1e30
"""The value used for log(0), because differences of infinities are NaN."""


@elementwise(
    lambda g, a, y: g * np.exp(a - y),
    lambda g, b, y: g * np.exp(b - y),
    lambda g, c, y: g * np.exp(c - y),
)
def _log_add(a, b, c):
    """Returns log(exp(a) + exp(b) + exp(c))."""
    top = np.maximum(np.maximum(a, b), c)
    return np.log(np.exp(a - top) + np.exp(b - top) + np.exp(c - top)) + top


class _Chain:
    """The constants of a batch of chains.

    Attributes:
        first: the logarithm of the initial probability of each state, (1, N, S).
        skips: the logarithm, (1, N, S), of 1 for states that can be reached from the state two
            positions earlier, and of 0 for other states.
        begins, continues: arrays (T, 1, N, 1) or (T, 1, 1, 1) that say whether a sequence begins at
            a time, and whether it has not ended.
    """

    def __init__(self, first, skips, begins, continues):
        self.first, self.skips, self.begins, self.continues = first, skips, begins, continues

    def walk(self, emissions):
        """Sums the probabilities of all paths up to each time, without and with the emission at
        this time.

        Args:
            emissions: array or Variable (T, N, S).

        Returns:
            two arrays or Variables (T, N, S).
        """
        rest = self.first, self.skips, self.begins, self.continues
        if isinstance(emissions, Variable):
            return _steps(split_axis(emissions, len(emissions), 0), *rest)
        return one_call(_walk, emissions, *rest)


def _walk(emissions, first, skips, begins, continues):
    """Computes the sums of :meth:`_Chain.walk` for arrays, by a compiled loop if numba can compile
    it."""
    arrays = emissions, first, skips
    if get_array_module(emissions) is np:
        if loop := compiled_step("chain", arrays, thresholds.compiled):
            arrivals, sums = np.empty((2, *emissions.shape), emissions.dtype)
            each = [np.broadcast_to(x, (len(x), *first.shape[:2], 1)) for x in (begins, continues)]
            loop(*map(np.ascontiguousarray, (*arrays, *each)), arrivals, sums)
            return arrivals, sums
    return _steps(
        [emissions[t : t + 1] for t in range(len(emissions))], *arrays[1:], begins, continues
    )


def _steps(emissions, first, skips, begins, continues):
    """Computes the sums of :meth:`_Chain.walk` from a sequence of T arrays or Variables (1, N,
    S)."""
    edge = get_array_module(first).full((*first.shape[:2], 2), _LOG_ZERO, first.dtype)
    arrivals, sums = [], []
    state = first.copy()
    state[..., 1:] = _LOG_ZERO  # there is no label before the first time
    for emission, begins_now, continues_now in zip(emissions, begins, continues):
        before = np.concatenate([edge, state], axis=2)
        stepped = _log_add.on(state, before[..., 1:-1], before[..., :-2] + skips)
        arrivals.append(np.where(begins_now, first, stepped))
        state = np.where(continues_now, arrivals[-1] + emission, state)
        sums.append(state)
    return np.concatenate(arrivals, axis=0), np.concatenate(sums, axis=0)


def _alignment_derivative(g, emissions, y, aux, forward, backward):
    """Returns minus the posterior probability of each state at each time, times the gradient of the
    loss."""
    sums = forward.walk(emissions)[1] if isinstance(emissions, Variable) else aux
    after = backward.walk(emissions[::-1, :, ::-1])[0][::-1, :, ::-1]
    log_p = sums + after + np.reshape(y, (-1, 1))
    counts = forward.continues[:, 0] & np.isfinite(y)[:, None]
    return -np.exp(np.where(counts, log_p, _LOG_ZERO)) * np.reshape(g, (-1, 1))


@differentiable(_alignment_derivative)
def _alignment_loss(emissions, forward, backward):
    """Returns minus the logarithm of the total probability, (N,), of the paths that end in a final
    state."""
    sums = forward.walk(emissions)[1]
    log_p = logsumexp(sums[-1] + backward.first[0, :, ::-1], axis=1).array
    impossible = log_p < _LOG_ZERO / 2
    return np.where(impossible, np.inf, -log_p).astype(emissions.dtype, copy=False), sums


def _chains(path, ends, lengths, n_steps, blank, dtype):
    """Returns the chains of states, forward and backward.

    Args:
        path: array (N, S): the label of each state.
        ends: array (N,): the number of labels.
        lengths: array (N,): the number of time steps.
    """
    xp = get_array_module(path)
    states, times = xp.arange(path.shape[1]), xp.arange(n_steps).reshape(-1, 1, 1, 1)
    lengths, ends = lengths.reshape(1, 1, -1, 1), ends[:, None]

    def chain(path, first, begins, continues):
        skips = one_call(_skips, path, blank)
        zero, log_zero = (xp.asarray(v, dtype) for v in (0, _LOG_ZERO))
        log_first, log_skips = (xp.where(x, zero, log_zero)[None] for x in (first, skips))
        return _Chain(log_first, log_skips, begins, continues)

    first, last = states <= xp.minimum(ends, 1), (states == 2 * ends) | (states == 2 * ends - 1)
    forward = chain(path, first, times == 0, times < lengths)
    backward = (times == lengths - 1)[::-1], (times < lengths)[::-1]
    return forward, chain(path[:, ::-1], last[:, ::-1], *backward)


def _skips(path, blank):
    """Returns an array that is True for states that can be reached from the state two positions
    earlier. These states are the labels that differ from the previous label."""
    skips = get_array_module(path).zeros(path.shape, bool)
    skips[:, 2:] = (path[:, 2:] != path[:, :-2]) & (path[:, 2:] != blank)
    return skips


def _with_blanks(t, blank):
    """Returns the labels (N, L) with a blank before each label and at the end, an array (N, 2 L +
    1)."""
    path = get_array_module(t).full((len(t), 2 * t.shape[1] + 1), blank)
    path[:, 1::2] = t
    return path


def connectionist_temporal_classification(
    x: Sequence[Input],
    t: Input,
    blank_symbol: int,
    input_length: Input | None = None,
    label_length: Input | None = None,
    reduce: str = "mean",
) -> Variable:
    """Connectionist temporal classification: loss of label sequences of unknown alignment.

    The likelihood is the sum of the probabilities of all sequences of symbols, one per time, that
    give the labels if first repetitions are merged and then blanks are removed.

    Args:
        x: list of T Variables or arrays (N, V), floating point: unnormalized log-probabilities of
            the symbols at each time.
        t: array of integers (N, L): labels.
        blank_symbol: the symbol that stands for no label.
        input_length: array of integers (N,): number of time steps of each sequence; None means T.
        label_length: array of integers (N,): number of labels of each sequence; None means L.
        reduce: 'mean' over the sequences, or 'no' for one loss per sequence.

    Returns:
        Variable: a scalar, or (N,) with reduce='no'. If a sequence has too few time steps for its
        labels, its loss is infinite and has no gradient.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        TypeError: ``x`` is not a list or tuple, or is empty.
        ValueError: a label (on a GPU, only in debug mode), a length or the blank symbol is out of
            range, or ``reduce`` is unknown.

    Example:
        >>> x, t = [np.zeros((1, 3))] * 4, np.array([[1, 2]])
        >>> F.connectionist_temporal_classification(x, t, blank_symbol=0).array.round(2).item()
        1.69

    See A. Graves et al., Connectionist temporal classification: labelling unsegmented sequence data
    with recurrent neural networks, ICML 2006.
    """
    name = "connectionist_temporal_classification"
    check_option(name, "reduce", reduce, ("mean", "no"))
    t = as_array(t)
    _check_sequences(name, x, t)
    n_steps, (n, n_symbols), n_labels = len(x), x[0].shape, t.shape[1]
    if not 0 <= blank_symbol < n_symbols:
        symbols = f"at least 0 and below {n_symbols}, the number of symbols"
        raise ValueError(f"{name}: blank_symbol must be {symbols}, but is {blank_symbol}")
    lengths = _lengths(name, "input_length", input_length, n_steps, t)
    ends = _lengths(name, "label_length", label_length, n_labels, t)
    xp = get_array_module(t)
    t = xp.where(xp.arange(n_labels) < ends[:, None], t, blank_symbol)
    check_labels(name, t, n_symbols)

    path = one_call(_with_blanks, t, blank_symbol)
    scores = reshape(concat(x, axis=0), (n_steps, n, n_symbols))
    log_p = log_softmax(widened(scores), axis=2)
    where = (slice(None), xp.arange(n)[:, None], path)
    emissions = np.maximum(get_item(log_p, where), _LOG_ZERO)
    chains = _chains(path, ends, lengths, n_steps, blank_symbol, emissions.dtype)
    loss = cast(_alignment_loss(emissions, *chains), scores.dtype)
    return reduced(name, loss, reduce, ("mean", "no"))


def _check_sequences(name, x, t):
    if not isinstance(x, (list, tuple)) or not x:
        raise TypeError(
            f"{name}: x must be a list of arrays, one for each time, and must not be empty; "
            f"its type is {type(x)}"
        )
    for step in x:
        fits = step.ndim == 2 and is_floating(step.dtype) and step.shape == x[0].shape
        check(fits, name, "x must be floating point (N, V) at every time", x=step, first=x[0])
    fits = t.dtype.kind in "iu" and t.ndim == 2 and len(t) == len(x[0])
    check(fits, name, "t must be integers (N, L)", t=t, x=x[0])


def _lengths(name, argument, given, largest, t):
    """Returns the lengths (N,) as an array; None means the largest possible length."""
    if given is None:
        return get_array_module(t).full(len(t), largest)
    given = as_array(given)
    fits = given.dtype.kind in "iu" and given.shape == (len(t),)
    check(fits, name, "lengths must hold an integer per sequence", t=t, **{argument: given})
    if ((given < 0) | (given > largest)).any():
        raise ValueError(f"{name}: {argument} must be from 0 to {largest}, but is {given.tolist()}")
    return given


# The functions below compute conditional random fields.


def _check_field(name, cost, xs, ys=None):
    k = len(cost)
    fits = cost.shape == (k, k) and is_floating(cost.dtype)
    check(fits, name, "cost must be a square matrix, floating point", cost=cost)
    if not xs:
        raise ValueError(f"{name}: xs must hold at least one array, but is empty")
    before = xs[0]
    for x in xs:
        fits = x.ndim == 2 and is_floating(x.dtype) and x.shape[1] == k
        rule = "every x must be floating point (B, K), where K is the size of cost"
        check(fits, name, rule, x=x, cost=cost)
        check_widths(name, {"x": x}, {"cost": cost})
        rule = "no array of xs may have more rows than the previous array"
        check(len(x) <= len(before), name, rule, x=x, before=before)
        before = x
    if ys is None:
        return []
    check(len(ys) == len(xs), name, "ys must hold as many arrays as xs", ys=len(ys), xs=len(xs))
    ys = [as_array(y) for y in ys]
    for x, y in zip(xs, ys):
        fits = y.dtype.kind in "iu" and y.shape == x.shape[:1]
        check(fits, name, "every y must hold an integer per row of x", y=y, x=x)
        check_labels(name, y, k, argument="ys")
    return ys


def crf1d(cost: Input, xs: Sequence[Input], ys: Sequence[Input], reduce: str = "mean") -> Variable:
    """Negative log-likelihood of label sequences in a linear-chain conditional random field.

    A sequence's score is the sum of xs[t][y[t]] over the times and of cost[y[t - 1], y[t]] over the
    transitions; its likelihood is the softmax over all label sequences of its length.

    Args:
        cost: Variable or array (K, K), floating point: the score of each transition.
        xs: list of Variables or arrays (B_t, K), one for each time: the scores of the labels.
            Because sequences are sorted by decreasing length, B_t does not increase.
        ys: list of arrays of integers (B_t,), one for each time: labels.
        reduce: 'mean' over the sequences, or 'no' for one loss per sequence.

    Returns:
        Variable: a scalar, or (B_0,) with reduce='no'.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: a label is out of range (on a GPU, only in debug mode), ``xs`` is empty, or
            ``reduce`` is unknown.

    Example:
        >>> cost, xs = np.zeros((2, 2)), [np.zeros((1, 2)), np.zeros((1, 2))]
        >>> F.crf1d(cost, xs, [np.array([0]), np.array([1])]).array.round(2).item()
        1.39

    See J. Lafferty et al., Conditional random fields: probabilistic models for segmenting and
    labeling sequence data, ICML 2001.
    """
    name = "crf1d"
    check_option(name, "reduce", reduce, ("mean", "no"))
    ys = _check_field(name, cost, xs, ys)
    total, score = as_variable(xs[0]), select_item(xs[0], ys[0])
    losses = []
    for x, y, before in zip(xs[1:], ys[1:], ys):
        n = len(x)
        if n < len(total):
            total, ended = split_axis(total, [n], 0)
            score, its_score = split_axis(score, [n], 0)
            losses.append(logsumexp(ended, axis=1) - its_score)
        total = logsumexp(reshape(total, (*total.shape, 1)) + cost, axis=1) + x
        score = score + get_item(cost, (before[:n], y)) + select_item(x, y)
    losses.append(logsumexp(total, axis=1) - score)
    loss = concat(losses[::-1], axis=0)
    return reduced(name, loss, reduce, ("mean", "no"))


def argmax_crf1d(cost: Input, xs: Sequence[Input]) -> tuple[Variable, list[Array]]:
    """Returns the most probable label sequences of a linear-chain conditional random field.

    Args:
        cost: Variable or array (K, K), floating point: the score of each transition.
        xs: list of Variables or arrays (B_t, K), as in :func:`crf1d`.

    Returns:
        tuple: the scores of the sequences, a Variable (B_0,) without a gradient; and a list of
        arrays of int32 (B_t,), the labels at each time.

    Raises:
        InvalidType: the shapes or dtypes of the arguments do not match.
        ValueError: ``xs`` is empty.

    Example:
        >>> cost, xs = np.zeros((2, 2)), [np.array([[0.0, 3.0]]), np.array([[2.0, 1.0]])]
        >>> score, labels = F.argmax_crf1d(cost, xs)
        >>> score.array, [label.item() for label in labels]
        (array([5.]), [1, 0])
    """
    _check_field("argmax_crf1d", cost, xs)
    cost, first, *others = map(as_array, [cost, *xs])
    xp = get_array_module(cost)
    total, ended, sources = first, [], []
    for x in others:
        ended.append(total[len(x) :])
        scores = total[: len(x), :, None] + cost
        sources.append(scores.argmax(axis=1))
        total = scores.max(axis=1) + x
    ended.append(total)
    # Backtracking follows each sequence from its end: sources[t] holds the best label at time t for
    # each label at time t + 1.
    labels, best = [], xp.zeros(0, np.int64)
    for t in reversed(range(len(xs))):
        if t + 1 < len(xs):
            best = sources[t][xp.arange(len(best)), best]
        best = xp.concatenate([best, ended[t].argmax(axis=1)])
        labels.append(best.astype(np.int32))
    score = xp.concatenate([e.max(axis=1) for e in ended[::-1]])
    return as_variable(score), labels[::-1]
