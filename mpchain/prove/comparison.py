"""Compares the results of ranks with those of one process."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends.dtypes import is_bfloat16, is_floating
from mpchain.prove.records import Application, Pass

FACTOR = 2000
"""Allowed difference of two numbers, as a multiple of the rounding error of an array's largest
number; numbers of 2 and 8 bytes have other factors. The factor is large because the numbers are
sums of many terms."""

_FACTORS = {2: 16, 4: FACTOR, 8: 100000}  # maps the bytes of a number to its factor


class Gap(NamedTuple):
    """The largest difference of two arrays.

    Attributes:
        size: the difference.
        index: the position of the difference.
        a, b: the numbers at that position.
        is_large: whether the difference is larger than rounding explains.
    """

    size: float
    index: tuple[int, ...]
    a: Any
    b: Any
    is_large: bool


def gap(a: object, b: object, scale: float | None = None, tolerance: float | None = None) -> Gap:
    """Returns the largest difference of two arrays; infinite if their shapes differ.

    Args:
        a, b: the arrays, or numbers.
        scale: the magnitude whose rounding error is allowed; None uses the largest number in the
            arrays.
        tolerance: the largest allowed difference; None computes the bound from ``scale``.

    Example:
        >>> gap(np.array([1.0, 2.0]), np.array([1.0, 3.0]))[:2]
        (1.0, (1,))
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return Gap(math.inf, (), a.shape, b.shape, True)
    if a.size == 0:
        return Gap(0.0, (), None, None, False)
    if not (is_number(a) and is_number(b)):
        differs = np.asarray(a != b)
        index = np.unravel_index(int(differs.argmax()), a.shape)
        return Gap(float(differs.max()), tuple(map(int, index)), a[index], b[index], differs.any())
    index, size = _farthest(a, b)
    if tolerance is None:
        tolerance = bound(a, b, scale) if size > 0 else 0.0
    return Gap(size, tuple(map(int, index)), a[index], b[index], size > tolerance)


def _farthest(a, b):
    """Returns the position where two arrays differ most, and the difference."""
    if a.dtype == b.dtype and a.dtype.char in "fd":
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(np.subtract(a, b))
        index = np.unravel_index(int(distance.argmax()), a.shape)  # argmax finds a NaN first
        if np.isfinite(distance[index]):
            return index, abs(float(a[index]) - float(b[index]))
    x, y = _wide(a), _wide(b)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0, abs(x - y))
    distance = np.where(np.isnan(distance), np.inf, distance)
    index = np.unravel_index(int(distance.argmax()), a.shape)
    return index, float(distance[index])


def bound(a: np.ndarray, b: np.ndarray, scale: float | None = None) -> float:
    """Returns the largest difference that rounding explains.

    >>> bound(np.ones(2), np.zeros(2), scale=0.0)
    0.0
    """
    if not (is_inexact(a.dtype) and is_inexact(b.dtype)):
        return 0.0
    if scale is None:
        scale = max(largest(a), largest(b))
    n_bytes = min(a.dtype.itemsize, b.dtype.itemsize) // (2 if a.dtype.kind == "c" else 1)
    epsilon = {2: 2.0**-7 if is_bfloat16(a.dtype) else 2.0**-10, 4: 2.0**-23}.get(n_bytes, 2.0**-52)
    return _FACTORS.get(n_bytes, FACTOR) * epsilon * scale


def largest(a: np.ndarray) -> float:
    """Returns the largest finite magnitude in an array.

    >>> largest(np.array([-3.0, np.inf]))
    3.0
    """
    a = np.asarray(a)
    if a.dtype.char in "fd" and a.size:
        size = float(np.abs(a).max())
        if math.isfinite(size):
            return size
    sizes = abs(_wide(a))
    return float(np.max(sizes, initial=0, where=np.isfinite(sizes)))


def is_inexact(dtype: np.dtype) -> bool:
    """Returns whether arithmetic in a dtype rounds.

    >>> is_inexact(np.dtype(complex)), is_inexact(np.dtype(int))
    (True, False)
    """
    return is_floating(dtype) or dtype.kind == "c"


def is_number(value: object) -> bool:
    """Returns whether a value is a number, or an array of numbers.

    >>> is_number(1.5), is_number("a"), is_number(None)
    (True, False, False)
    """
    dtype = np.asarray(value).dtype
    return dtype.kind in "biu" or is_inexact(dtype)


def _wide(a):
    return a if a.dtype.kind == "c" else a.astype(np.float64)


Column = Sequence[tuple[float | None, Any]]  # (number of samples, value) for each micro-batch


def wholes(parts: Column) -> Iterator[tuple[str, Any]]:
    """Yields pairs (kind, value): the ways to combine the values of micro-batches into a value for
    the whole batch.

    Example:
        >>> [kind for kind, _ in wholes([(2, np.ones((2, 3))), (1, np.ones((1, 3)))])]
        ['rows']
    """
    arrays = [np.asarray(value) for _, value in parts]
    sizes = [n for n, _ in parts]
    first = arrays[0]
    if all(array.shape == first.shape for array in arrays):
        if all(not gap(first, array).is_large for array in arrays[1:]):
            yield "alike", first
        if first.dtype.kind in "biu" or is_floating(first.dtype):
            weights = [1 if n is None else n for n in sizes]
            total = math.fsum(weights) or 1
            wide = [array.astype(np.float64) for array in arrays]
            kept = first.dtype if is_floating(first.dtype) else np.float64
            mean: Any = sum(w / total * x for w, x in zip(weights, wide))
            summed: Any = sum(wide)
            yield "mean", mean.astype(kept)
            yield "sum", summed.astype(kept)
            yield "maximum", np.max(wide, 0).astype(kept)
            yield "minimum", np.min(wide, 0).astype(kept)
    if any(array.ndim != first.ndim or array.dtype != first.dtype for array in arrays):
        return
    for axis in range(first.ndim):
        others = {array.shape[:axis] + array.shape[axis + 1 :] for array in arrays}
        lengths = [array.shape[axis] for array in arrays]
        if len(others) > 1:
            continue
        are_multiples = None not in sizes and _are_multiples(lengths, sizes)
        kind = "rows" if axis == 0 else f"axis {axis}"
        if are_multiples or len({*lengths}) == 1 or len(sizes) == 1 or axis == 0:
            yield kind, np.concatenate(arrays, axis)
        if are_multiples and lengths != list(sizes):
            yield f"{kind} of steps", _by_step(arrays, lengths, sizes, axis)


def _are_multiples(lengths, sizes):
    pairs = list(zip(lengths, sizes))
    return all(n and k and k % n == 0 and k // n == lengths[0] // sizes[0] for k, n in pairs)


def _by_step(arrays, lengths, sizes, axis):
    """Joins arrays along an axis on which each time step holds all samples."""
    k = int(lengths[0] // sizes[0])
    split = [
        a.reshape(*a.shape[:axis], k, int(n), *a.shape[axis + 1 :]) for a, n in zip(arrays, sizes)
    ]
    joined = np.concatenate(split, axis + 1)
    return joined.reshape(*joined.shape[:axis], -1, *joined.shape[axis + 2 :])


def best(ranks: Column, one: Column) -> tuple[str, Gap | None]:
    """Returns the way to compare values of ranks with those of one process, and their difference.

    Returns:
        The first kind of comparison whose difference is not large, or else the kind that differs
        least, and the difference; None if there is no kind.

    Example:
        >>> kind, found = best([(1, np.zeros(1)), (1, np.ones(1))], [(2, np.array([0.0, 1.0]))])
        >>> kind, found.is_large
        ('rows', False)
    """
    found = dict(wholes(one))
    if len(one) == 1:
        whole = one[0][1]
        found = {**dict.fromkeys(dict(wholes(ranks)), whole), **found}
    result = "", None
    for kind, value in wholes(ranks):
        if kind in found and np.shape(found[kind]) == np.shape(value):
            difference = gap(value, found[kind])
            if result[1] is None or difference.size < result[1].size:
                result = kind, difference
            if not difference.is_large:
                return kind, difference
    padded = _padded(ranks, one)
    return result if padded is None else ("rows", padded)


def _padded(ranks, one):
    """Returns the difference of arrays whose samples are padded to the longest sample of each rank;
    None if samples differ in more than padding, or the arrays are not padded samples."""
    sizes = [n for n, _ in ranks]
    if len(one) > 1 or None in sizes or not all(sizes):
        return None
    for arrange in (_by_sample, _by_sample_and_step, _by_step_and_sample, _by_step_of_sample):
        arrays = [arrange(np.asarray(x), int(n)) for n, x in ranks]
        whole = arrange(np.asarray(one[0][1]), int(sum(sizes)))
        if whole is None or any(x is None or x.ndim != whole.ndim for x in arrays):
            continue
        begin, gaps = 0, []
        for x in arrays:
            assert x is not None  # the caller has checked this
            part = whole[begin : begin + len(x)][(slice(None), *map(slice, x.shape[1:]))]
            begin += len(x)
            gaps.append(gap(x, part, largest(whole) if is_number(whole) else None))
        if not any(each.is_large for each in gaps):
            return max(gaps, key=lambda each: each.size)
    return None


def _by_sample(x, n):
    return x if x.ndim > 1 and len(x) == n else None


def _by_sample_and_step(x, n):
    return x.reshape(n, -1, *x.shape[1:]) if x.ndim and len(x) and len(x) % n == 0 else None


def _by_step_and_sample(x, n):
    return np.moveaxis(x, 1, 0) if x.ndim > 1 and x.shape[1] == n else None


def _by_step_of_sample(x, n):
    if not (x.ndim and len(x) and len(x) % n == 0):
        return None
    return np.moveaxis(x.reshape(-1, n, *x.shape[1:]), 1, 0)


class Suspect(NamedTuple):
    """A function application with different results on the ranks and in one process.

    Attributes:
        kind: the kind of comparison; "other functions" if different functions were called.
        gap: the difference; None if the values cannot be compared.
        one: the application of one process; None if there is none.
        ranks: the applications in the ranks' passes.
        passes: the indices of these passes.
    """

    kind: str
    gap: Gap | None
    one: Application | None
    ranks: list[Application]
    passes: list[int]

    @property
    def first(self) -> Application:
        """The application of one process, or of a rank."""
        return self.one or self.ranks[0]


def suspects(ranks: Sequence[Pass], one: Sequence[Pass]) -> list[Suspect]:
    """Returns the applications that differ, in order.

    Applications of one function at one line are compared with each other. In a loop over time
    steps, calls of the same step are compared; in a loop over samples, the calls of all ranks
    together are compared with those of one process.

    Args:
        ranks: the passes of all ranks, in the order of samples.
        one: the passes of one process.
    """
    calls, found = {}, []
    for side, passes in enumerate((ranks, one)):
        for i, p in enumerate(passes):
            for a in p.applications:
                if not a.exchanges:  # a single process needs no messages between ranks
                    key = a.name, a.link, a.place
                    both = calls.setdefault(key, ([[] for _ in ranks], [[] for _ in one]))
                    both[side][i].append(a)
    for of_ranks, of_one in calls.values():
        found += _suspects_of_line(ranks, one, of_ranks, of_one)
    return sorted(found, key=lambda suspect: suspect.first.number)


def _suspects_of_line(ranks, one, of_ranks, of_one):
    counts, own_counts = list(map(len, of_ranks)), list(map(len, of_one))
    if sum(counts) == sum(own_counts) != max(counts):  # this is a loop over samples
        places = [(i, a) for i, applications in enumerate(of_ranks) for a in applications]
        for (i, a), b in zip(places, (b for applications in of_one for b in applications)):
            yield from _suspect([ranks[i]], [one[0]], [a], [b], [i])
    elif max(counts) == max(own_counts):  # in a loop over steps, some ranks may make fewer calls
        passes = list(range(len(ranks)))
        for k in range(min(counts + own_counts)):
            own = [applications[k] for applications in of_one]
            yield from _suspect(ranks, one, [each[k] for each in of_ranks], own, passes)
        if min(counts) == 0 < max(counts):
            yield _other(of_ranks, of_one)
    else:
        yield _other(of_ranks, of_one)


def _other(of_ranks, of_one):
    called = [(i, applications[0]) for i, applications in enumerate(of_ranks) if applications]
    own = next((applications[0] for applications in of_one if applications), None)
    return Suspect("other functions", None, own, [a for _, a in called], [i for i, _ in called])


def _suspect(ranks, one, of_ranks, of_one, passes):
    for i in range(min(len(a.outputs) for a in [*of_ranks, *of_one])):
        columns = [
            [(p.n, a.outputs[i]) for p, a in zip(side, applications)]
            for side, applications in ((ranks, of_ranks), (one, of_one))
        ]
        kind, difference = best(*columns)
        if difference is None or difference.is_large:
            yield Suspect(kind, difference, of_one[0], of_ranks, passes)
            return


def rearranged(suspect: Suspect, ranks: Sequence[Pass], one: Sequence[Pass]) -> int | None:
    """Returns the number of rows that a line gets in one process but on no rank; None if the
    functions at that line can be compared.

    A program that computes a batch in several micro-batches divides the batch differently on
    several ranks, so that the functions get other samples than in one process.

    Args:
        suspect: an application of the line.
        ranks, one: the passes of the ranks and of one process.
    """
    if suspect.one is None or len(calls_of(one, suspect.one)) < 2:
        return None
    ours, theirs = (_rows(passes, suspect.one) for passes in (ranks, one))
    return len(theirs - ours) if ours and ours <= theirs else None


def calls_of(passes: Sequence[Pass], like: Application) -> list[Application]:
    """Returns the applications of one function at one line.

    >>> calls_of([], None)
    []
    """
    key = like and (like.name, like.link, like.place)
    return [a for p in passes for a in p.applications if (a.name, a.link, a.place) == key]


def _rows(passes, application):
    """Returns the rows of the input arrays of all calls of a function, as bytes."""
    leaves = [leaf for a in calls_of(passes, application) for leaf in a.leaves]
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.ndim > 1]
    return {row.tobytes() for array in arrays for row in array}


def before(
    found: Sequence[Suspect], ranks: Sequence[Pass], p: Pass, last: int | None
) -> list[Suspect]:
    """Returns the suspects that come first in the chains of suspects that lead to a value.

    An earlier difference has no influence where a later array is equal again, unless the later
    array is a mean that hides the difference.

    Args:
        found: suspects, in order.
        ranks: the passes of the ranks.
        p: the pass of one process.
        last: the number of the application that computed the value; None if none is known.
    """
    by_number = {suspect.one.number: suspect for suspect in found if suspect.one is not None}
    if last is None:
        return list(found)
    seen, waiting = set(), [last]
    while waiting:
        number = waiting.pop()
        is_mean = all(np.size(y) == 1 for y in p.applications[number].outputs)
        if (number in by_number or is_mean) and number not in seen:
            seen.add(number)
            waiting += p.applications[number].parents
    seen.intersection_update(by_number)
    absent = [suspect for suspect in found if _is_absent(suspect, ranks, p, last)]
    own = [by_number[n] for n in seen if not any(by_number[n] is each for each in absent)]
    chain = sorted(absent + own, key=lambda each: each.first.number)
    return [s for s in chain if s.one is None or not seen.intersection(s.one.parents)]


def _is_absent(suspect, ranks, one, last):
    """Returns whether the loss needs the suspect, and some rank or one process does not call it."""
    if suspect.kind != "other functions":
        return False
    if suspect.one is not None:
        return suspect.one.number in _needed(one, last)
    passes = [ranks[i] for i in suspect.passes]
    return any(a.number in _needed(p, p.last) for a, p in zip(suspect.ranks, passes))


def _needed(p, last):
    """Returns the indices of the applications that a value is computed from."""
    seen, waiting = set(), [last]
    while waiting:
        number = waiting.pop()
        if number is not None and number not in seen:
            seen.add(number)
            waiting += p.applications[number].parents
    return seen
