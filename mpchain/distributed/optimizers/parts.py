"""Divides a batch into parts, given the arguments of a loss function, and collects reported
values."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.distributed.communicators.arrays import partition
from mpchain.parameter_tree import is_array
from mpchain.reporter import DictSummary, OfWeighted, weighted_numbers
from mpchain.training.updaters.replica import collecting
from mpchain.variable import Parameter, Variable


class Observations:
    """Collects the values that each part of a batch reports.

    Args:
        parts: pairs of a number of samples, and a function without arguments.

    Attributes:
        parts: the given parts, with functions whose reports this object collects.
        is_kept: whether :meth:`collect` is called in each step, including replayed steps.

    Example:
        >>> report = lambda x: mpchain.report({"x": x})
        >>> parts = [(3, lambda: report(1.0)), (1, lambda: report(5.0))]
        >>> observations = Observations(parts)
        >>> with mpchain.Reporter():
        ...     for _, function in observations.parts:
        ...         function()
        >>> observations.sums(), observations.summary().compute_mean()
        ([{'x': (8.0, 4.0)}], {'x': 2.0})
    """

    is_kept = False

    def __init__(self, parts: Sequence[tuple[int, Callable[[], Any] | None]] = ()):
        self._kept, self.parts = [], []
        for n, function in parts:
            values = {}
            self._kept.append((n, values))
            self.parts.append((n, functools.partial(_observed, function, values)))

    def collect(self, n: int) -> contextlib.AbstractContextManager:
        """Discards all values; returns a context manager that collects the values for ``n``
        samples."""
        values = {}
        self._kept, self.is_kept = [(n, values)], True
        return collecting(values)

    def sums(self, *, by_part: bool = False) -> list[dict[str, tuple[Any, float]]]:
        """Returns dicts from name to (sum of values times weights, sum of weights): one dict for
        each part if ``by_part``, otherwise one dict for all parts. Weights are numbers of samples,
        unless they were reported."""
        sums = [{} for _ in self._kept] if by_part else [{}] * len(self._kept)
        for of_part, (n, values) in zip(sums, self._kept):
            for name, number, weight in weighted_numbers(values, n):
                if isinstance(values[name], tuple):
                    name = OfWeighted(name)
                if weight > 0:
                    x, total = of_part.get(name, (0.0, 0.0))
                    if type(number) is float:
                        of_part[name] = x + weight * number, total + weight
                        continue
                    with number.device:
                        of_part[name] = x + weight * number, total + weight
        return sums if by_part else sums[:1]

    def summary(self) -> DictSummary:
        """Returns a summary of the values of all parts."""
        summary = DictSummary()
        for n, values in self._kept:
            summary.add(values, default_weight=n)
        return summary

    def last(self) -> dict[str, Any]:
        """Returns the last value of each name; later parts replace values of earlier parts."""
        merged = {}
        for _, values in self._kept:
            merged.update(values)
        return merged


def _observed(function, observation):
    with collecting(observation):
        return function()


def cut(
    lossfun: Callable[..., Variable],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_samples: float | None,
    n_parts: int,
) -> list[tuple[int, Callable[[], Variable] | None]]:
    """Cuts the batch among the arguments of a loss function into parts.

    Every list, and every array and Variable that has axes, is a batch and is cut along its first
    axis, also within tuples and dicts. All other arguments, and Parameters, are passed to the
    function unchanged.

    Args:
        lossfun: the loss function.
        args, kwargs: its arguments.
        n_samples: the number of samples; None means the length of the batches.
        n_parts: the number of parts; the first parts may have one sample more than the last.

    Returns:
        Pairs of a number of samples, which may be 0, and a function without arguments.

    Raises:
        ValueError: there is no batch, lengths differ, or a Variable was computed outside the
            loss function.

    Example:
        >>> [(n, part()) for n, part in cut(sum, ([1, 2, 3],), {}, None, 2)]
        [(2, 3), (1, 3)]
    """
    if n_samples == 0:
        return [(0, None)] * n_parts
    named = {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    lengths = {
        f"{name}{place}": len(batch)
        for name, value in named.items()
        for place, batch in _batches(value)
    }
    held = ", ".join(f"{name}: {length}" for name, length in lengths.items())
    if len({n_samples, *lengths.values()} - {None}) != 1 or not lengths:
        known = "" if n_samples is None else f", for {n_samples} samples"
        raise ValueError(
            "MultiNodeOptimizer.update: the arrays, Variables and lists among the loss function's "
            "arguments are cut into micro-shards, so at least one must be passed, and "
            f"each must be as long as the batch; lengths are: {held or 'none'}{known}. "
            "Pass the batch as arguments, and bind values that must not be cut by functools.partial"
        )
    n_samples = next(iter(lengths.values()))
    bounds = [slice(*partition(n_samples, i, n_parts)) for i in range(n_parts)]
    return [
        (p.stop - p.start, functools.partial(lossfun, *_part_of(args, p), **_part_of(kwargs, p)))
        for p in bounds
    ]


def can_be_cut(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether :func:`cut` would find a batch among arguments.

    >>> can_be_cut((np.ones(3), "mean"), {}), can_be_cut((), {})
    (True, False)
    """
    return any(True for value in [*args, *kwargs.values()] for _ in _batches(value))


def _is_batch(value):
    if isinstance(value, Parameter):
        return False
    return isinstance(value, list) or (
        (is_array(value) or isinstance(value, Variable)) and value.ndim > 0
    )


def _batches(value):
    """Yields the path of each batch within an argument, and the batch."""
    if isinstance(value, (tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            for place, batch in _batches(item):
                yield f"[{key!r}]{place}", batch
    elif _is_batch(value):
        if isinstance(value, Variable) and value.creator_node is not None:
            raise ValueError(
                "MultiNodeOptimizer.update: with a reproducible communicator, the loss function "
                "cannot use a Variable that was computed outside it, from all of this rank's "
                "samples together: compute the Variable within the loss function"
            )
        yield "", value


def _part_of(value, part) -> Any:
    if isinstance(value, tuple):
        items = [_part_of(item, part) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: _part_of(item, part) for key, item in value.items()}
    return value[part] if _is_batch(value) else value
