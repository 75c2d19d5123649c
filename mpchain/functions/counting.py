"""Divisors of means over a count, which take several ranks and micro-batches into account.

A loss that is a mean over the elements that count (such as labels that are not ignored) gets its
divisor from this module. In one process, the divisor is the loss's own count. Within the update of
a multi-node optimizer, the divisor is the count of the whole batch times this rank's share of the
samples. The mean of the losses of all ranks, weighted by the numbers of samples, is then the mean
over all elements that count.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.observers import Observer
from mpchain.typing import Arrays, DTypeLike, Input

if TYPE_CHECKING:
    from mpchain.variable import Variable

_NUMBERS = (int, float, np.number)
_MANY = 1 << 15  # divisors from this number on are checked against the range of narrow dtypes

BATCH, CALL = "batch", "call"
"""The scopes of means: :func:`shared_counts` sets the scope to the whole batch, and
:func:`own_counts` to a call."""


class _Current(threading.local):
    # These are the counts of the whole batch; None means that this process has the whole batch.
    counts: Any = None
    over: str | None = None
    notes: Any = None  # These record the counts of means while means of batches are combined.


current = _Current()


def is_asked() -> bool:
    """Returns whether code other than the function that divides by a count uses the count.

    Example:
        >>> is_asked()
        False
    """
    return current.counts is not None or current.notes is not None


def remembering(compute: Callable[..., Any], *arguments: Any) -> Any:
    """Returns ``compute(*arguments)``, a count.

    The module of :func:`mpchain.functions.forget`, which calls functions again in backward,
    replaces this function by one that then returns the first result again.

    Example:
        >>> remembering(lambda: 3)
        3
    """
    return compute(*arguments)


def denominator(count: object, elements: object, dtype: object) -> Any:
    """Returns the divisor of a mean over a count. In one process, the divisor is 1 if no element
    counts, so that the mean is zero.

    Args:
        count: the number of elements that count, an int or a scalar array.
        elements: the array of all elements, counted or not; its first axis is the loss's first
            axis.
        dtype: the dtype of the result.

    Raises:
        ValueError: the count exceeds the range of the dtype, such as float16, so the mean would be
            0.

    Example:
        >>> denominator(3, np.zeros(4), np.float64), denominator(0, np.zeros(4), np.float64)
        (np.float64(3.0), np.float64(1.0))
    """
    if current.notes is not None:
        current.notes.last = count
    own, counts = at_least_one(count), current.counts
    if counts is None:
        least = own
    elif current.over == CALL:
        least = remembering(lambda: own)
    else:
        least = remembering(counts.denominator, count, own, elements)
    return divisor(least, dtype)


def divisor(n: Any, dtype: DTypeLike) -> Any:
    """Returns ``n``, converted to a dtype, as a divisor.

    Raises:
        ValueError: see :func:`denominator`.

    Example:
        >>> divisor(3, np.dtype(np.float16))
        np.float16(3.0)
    """
    if not isinstance(n, _NUMBERS):
        return n.astype(dtype)
    if n < _MANY:
        return np.dtype(dtype).type(n)
    with np.errstate(over="ignore"):
        number = np.dtype(dtype).type(n)
    if number == math.inf:
        raise ValueError(
            f"a mean over {n:g} elements cannot be computed in {np.dtype(dtype)}, whose range is "
            "too small for this number: cast the input to float32, by F.cast"
        )
    return number


def at_least_one(count: object) -> Any:
    """Returns a count, or 1 if the count is 0. For numbers, NumPy's ``maximum`` would take ten
    times as long.

    Example:
        >>> at_least_one(3), at_least_one(np.int64(0)), at_least_one(np.array(2))
        (3, 1, np.int64(2))
    """
    if isinstance(count, _NUMBERS):
        return max(count, 1)
    return get_array_module(count).maximum(count, 1)


def weight_sum(total: object, elements: object) -> Any:
    """Returns the divisor of a weighted mean. If all weights are zero, the mean is 0 / 0.

    Args:
        total: the sum of the weights, an array or Variable.
        elements: see :func:`denominator`.

    Example:
        >>> weight_sum(np.array(1.5), np.zeros(4))
        array(1.5)
    """
    if current.notes is not None:
        current.notes.last = getattr(total, "array", total)
    if current.counts is None:
        return total
    asks = functools.partial(current.counts.weight_sum, total, elements)
    if getattr(total, "requires_grad", False):
        return asks() if current.over != CALL else total
    return remembering(asks if current.over != CALL else lambda: getattr(total, "array", total))


class Notes:
    """The counts of means, with which an evaluator weights the means.

    In a ``with`` block of this object, functions that divide by a count record the count of their
    result.

    Attributes:
        last: the last count by which a function divided.

    Example:
        >>> with Notes() as notes:
        ...     loss = F.softmax_cross_entropy(np.zeros((3, 2)), np.array([0, -1, 1]))
        >>> int(notes.weight(loss, 3)), notes.weight(F.sum(loss), 3)
        (2, 3)
    """

    def __init__(self) -> None:
        self.last, self._weights, self._plain = None, {}, {}

    def __enter__(self) -> "Notes":
        self._outer, current.notes = current.notes, self
        return self

    def __exit__(self, *exc_info: Any) -> None:
        current.notes = self._outer

    def add(self, mean: Any, count: Any) -> None:
        """Records the count of a mean, a Variable."""
        # A reference keeps the array alive, so that its id is not reused.
        self._weights[id(mean.array)] = mean.array, count

    def weight(self, value: object, default: object) -> Any:
        """Returns the count of a value if the value is a recorded mean, else the default."""
        return self._weights.get(id(getattr(value, "array", value)), (None, default))[1]

    def add_plain(self, mean: "Variable", size: int) -> None:
        """Records the number of elements of a plain mean, which evaluators do not weight by this
        number."""
        self._plain[id(mean.array)] = mean.array, size

    def plain_size(self, value: object) -> int | None:
        """Returns the number of elements of a plain mean; None if the value is not a plain mean."""
        return self._plain.get(id(getattr(value, "array", value)), (None, None))[1]

    def counts_among(self, arrays: Iterable[Any]) -> list[Any]:
        """Returns the counts of those arrays that are recorded means."""
        return [self._weights[id(x)][1] for x in arrays if id(x) in self._weights]


class Derived(Observer):
    """Tracks which values functions compute from recorded means.

    Args:
        notes: the object that records the means.

    Example:
        >>> with Notes() as notes, Derived(notes) as derived:
        ...     loss = F.softmax_cross_entropy(np.zeros((3, 2)), np.array([0, -1, 1])) + 1
        >>> [int(n) for n in derived.counts(loss)], derived.counts(loss + 1)
        ([2], [])
    """

    def __init__(self, notes: Notes) -> None:
        self._notes, self._derived, self._counts = notes, {}, []

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        numbers = [x for x in in_data if x is not None and x.shape == ()]
        self._counts = self._notes.counts_among(numbers)
        for x in numbers:
            self._counts += self._derived.get(id(x), (None, []))[1]

    def computed(self, function: object, outputs: Arrays) -> None:
        if self._counts:
            self._derived.update((id(y), (y, self._counts)) for y in outputs)

    def counts(self, value: object) -> list[Any]:
        """Returns the counts of the means from which a value was computed."""
        return self._derived.get(id(getattr(value, "array", value)), (None, []))[1]


def note(mean: Any, count: int) -> Any:
    """Records the number of elements of a mean, a Variable, as its count; returns the mean.

    Example:
        >>> with Notes() as notes:
        ...     mean = note(F.mean(np.ones((3, 2))), 6)
        >>> notes.weight(mean, 3)
        6
    """
    if current.notes is not None:
        current.notes.add(mean, count)
    return mean


def note_as(mean: "Variable", other: "Variable") -> "Variable":
    """Records the count of a mean, if it is known, as the count of another Variable; returns this
    Variable.

    Example:
        >>> with Notes() as notes:
        ...     mean = note(F.mean(np.ones((3, 2))), 6)
        ...     rounded = note_as(mean, F.cast(mean, np.float16))
        >>> notes.weight(rounded, 3)
        6
    """
    if current.notes is not None and (count := current.notes.weight(mean, None)) is not None:
        current.notes.add(other, count)
    return other


def note_plain(mean: "Variable", x: Input) -> "Variable":
    """Records the number of elements of a plain mean of an array; returns the mean.

    Example:
        >>> with Notes() as notes:
        ...     mean = F.mean(np.ones((3, 2)))
        >>> notes.plain_size(mean), notes.weight(mean, 3)
        (6, 3)
    """
    if current.notes is not None and mean.shape == ():
        current.notes.add_plain(mean, x.size)
    return mean


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: declares that the result of a function is a mean over the count that the function
    passes to :func:`denominator`.

    Example:
        >>> @noted
        ... def mean_of_positive(x):
        ...     positive = x.array > 0
        ...     count = denominator(positive.sum(), x.array, x.dtype)
        ...     return F.sum(x * positive) / count
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        notes = current.notes
        if notes is None:
            return function(*args, **kwargs)
        notes.last = None
        y = function(*args, **kwargs)
        if notes.last is not None and y.shape == ():
            notes.add(y, notes.last)
        return y

    return call


@contextlib.contextmanager
def using(counts: object, over: str | None = None) -> Iterator[None]:
    """Context manager: within the block, divisors come from ``counts``, which has the counts of the
    whole batch.

    Args:
        counts: an object with the methods of
            :class:`mpchain.distributed.optimizers.counts.Counts`; None means that this process has
            the whole batch.
        over: the scope of means for which the program declares no scope: :data:`CALL`, or None.

    Example:
        >>> with using(None):
        ...     denominator(3, np.zeros(4), np.float64)
        np.float64(3.0)
    """
    before = current.counts, current.over
    current.counts, current.over = counts, current.over or over
    try:
        yield
    finally:
        current.counts, current.over = before


@contextlib.contextmanager
def _over(what):
    before, current.over = current.over, what
    try:
        yield
    finally:
        current.over = before


def own_counts() -> contextlib.AbstractContextManager[None]:
    """Context manager: each loss within the block is the mean over its own elements, as in one
    process.

    Use the context manager in programs that call a loss function for one sample, or one group of
    samples, at a time and average the results; an example is a mean over the atoms of each
    molecule.

    Example:
        >>> x, t = np.zeros((5, 2)), np.zeros(5, int)
        >>> with mpchain.own_counts():
        ...     losses = [F.softmax_cross_entropy(x[i], t[i]) for i in (slice(2), slice(2, 5))]
        >>> F.average(F.stack(losses)).array.round(2)
        np.float64(0.69)
    """
    return _over(CALL)


def shared_counts() -> contextlib.AbstractContextManager[None]:
    """Context manager: each loss within the block is a mean over the whole batch of all ranks.

    Losses are means over the whole batch by default. Outside of this context manager, however,
    several calls at the same line of the program raise an error if each might be the loss of one
    sample.

    Example:
        >>> with mpchain.shared_counts():
        ...     loss = F.softmax_cross_entropy(np.zeros((3, 2)), np.zeros(3, int))
        >>> loss.array.round(2)
        np.float64(0.69)
    """
    return _over(BATCH)
