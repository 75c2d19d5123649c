"""Divisors of means over a count, which account for several ranks and for parts of a batch.

A loss that is a mean over elements that count (labels that are not ignored, weights) gets its
divisor from this module. In one process, the divisor is the loss's own count. Within the update of
a multi-node optimizer, it is the count of the whole batch times this rank's share of the samples:
then the mean of the losses of all ranks, weighted by their samples, is the mean over all elements
that count.
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
_MANY = 1 << 15  # larger sums may not fit a narrow dtype

BATCH, CALL = "batch", "call"
"""The scopes of means that :func:`shared_counts` and :func:`own_counts` set."""


class _Current(threading.local):
    counts: Any = None  # the counts of the whole batch; None if this process has the whole batch
    over: str | None = None
    notes: Any = None  # counts of means, recorded while means of batches are combined


current = _Current()


def is_asked() -> bool:
    """Returns whether other code uses counts besides the function that divides by them.

    Example:
        >>> is_asked()
        False
    """
    return current.counts is not None or current.notes is not None


def remembering(compute: Callable[..., Any], *arguments: Any) -> Any:
    """Returns ``compute(*arguments)``, which asks for a count.

    :func:`mpchain.functions.forget`, which calls functions again in backward, replaces this
    function by one that returns the first result again.

    Example:
        >>> remembering(lambda: 3)
        3
    """
    return compute(*arguments)


def denominator(count: object, elements: object, dtype: object) -> Any:
    """Returns the divisor of a mean over a count; a mean over nothing is a sum of zeros over 1.

    Args:
        count: the number of elements that count, an int or a scalar array.
        elements: the array of all elements; its first axis is the loss's first axis.
        dtype: the dtype of the result.

    Raises:
        ValueError: the count exceeds the dtype's range, such as float16's: the mean would be 0.

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
            f"a mean over {n:g} elements cannot be computed in {np.dtype(dtype)}, which does not "
            "hold so large a number: cast the input to float32, by F.cast"
        )
    return number


def at_least_one(count: object) -> Any:
    """Returns a count, or 1 if it is 0; NumPy's ``maximum`` takes ten times as long for numbers.

    Example:
        >>> at_least_one(3), at_least_one(np.int64(0)), at_least_one(np.array(2))
        (3, 1, np.int64(2))
    """
    if isinstance(count, _NUMBERS):
        return max(count, 1)
    return get_array_module(count).maximum(count, 1)


def weight_sum(total: object, elements: object) -> Any:
    """Returns the divisor of a weighted mean; a mean without weights is 0 / 0.

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

    In a ``with`` block of this object, functions that divide by a count note the count for their
    result.

    Attributes:
        last: the latest count that a function divided by.

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
        """Notes the count of a mean, a Variable."""
        # The array is kept alive, so that its id is not reused.
        self._weights[id(mean.array)] = mean.array, count

    def weight(self, value: object, default: object) -> Any:
        """Returns the count of a value if the value is a noted mean, else the default."""
        return self._weights.get(id(getattr(value, "array", value)), (None, default))[1]

    def add_plain(self, mean: "Variable", size: int) -> None:
        """Notes the number of elements of a mean that is not weighted by this number."""
        self._plain[id(mean.array)] = mean.array, size

    def plain_size(self, value: object) -> int | None:
        """Returns the number of elements of a plain mean; None if the value is not a plain mean."""
        return self._plain.get(id(getattr(value, "array", value)), (None, None))[1]

    def counts_among(self, arrays: Iterable[Any]) -> list[Any]:
        """Returns the counts of the arrays that are noted means."""
        return [self._weights[id(x)][1] for x in arrays if id(x) in self._weights]


class Derived(Observer):
    """Tracks which numbers functions compute from noted means.

    Args:
        notes: the notes of the means.

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
        """Returns the counts of the means that a value was computed from."""
        return self._derived.get(id(getattr(value, "array", value)), (None, []))[1]


def note(mean: Any, count: int) -> Any:
    """Notes how many elements a mean is over; returns the mean, a Variable.

    Example:
        >>> with Notes() as notes:
        ...     mean = note(F.mean(np.ones((3, 2))), 6)
        >>> notes.weight(mean, 3)
        6
    """
    if current.notes is not None:
        current.notes.add(mean, count)
    return mean


def note_plain(mean: "Variable", x: Input) -> "Variable":
    """Notes the number of elements of a plain mean of an array; returns the mean.

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
    """Decorator: declares that the result is a mean over the count that the function asks for.

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
    """Context manager: ``counts`` knows the counts of the whole batch.

    Args:
        over: the scope of means if the program does not declare it: :data:`CALL`, or None.
        counts: an object with the methods of
            :class:`mpchain.distributed.optimizers.counts.Counts`; None means that this process has
            the whole batch.

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
    """Context manager: each loss within it is the mean over its own elements, as in one process.

    Use it in programs that call a loss function for one sample, or one group of samples, at a time,
    and average the results, such as a mean over the atoms of each molecule.

    Example:
        >>> x, t = np.zeros((5, 2)), np.zeros(5, int)
        >>> with mpchain.own_counts():
        ...     losses = [F.softmax_cross_entropy(x[i], t[i]) for i in (slice(2), slice(2, 5))]
        >>> F.average(F.stack(losses)).array.round(2)
        np.float64(0.69)
    """
    return _over(CALL)


def shared_counts() -> contextlib.AbstractContextManager[None]:
    """Context manager: each loss within it is a mean over the whole batch of all ranks.

    Losses are such means anyway, but outside of this context manager they raise an error if several
    calls at one place might also be losses of one sample each.

    Example:
        >>> with mpchain.shared_counts():
        ...     loss = F.softmax_cross_entropy(np.zeros((3, 2)), np.zeros(3, int))
        >>> loss.array.round(2)
        np.float64(0.69)
    """
    return _over(BATCH)
