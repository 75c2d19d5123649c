"""Combining the reports of the parts of a batch."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.reporter import DictSummary, weighted_numbers
from mpchain.training.updaters.replica import collecting


class Observations:
    """Collects what each part of a batch reports.

    Args:
        parts: pairs of a number of samples, and a function without arguments.

    Attributes:
        parts: as given, with functions whose reports are collected here.
        is_kept: whether :meth:`collect` is called in each step, also in those that are replayed.

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
        """Forgets all values; returns a context manager in which those of ``n`` samples are
        collected."""
        values = {}
        self._kept, self.is_kept = [(n, values)], True
        return collecting(values)

    def sums(self, *, by_part: bool = False) -> list[dict[str, tuple[Any, float]]]:
        """Returns sums of values times weights, and of weights, by name: those of each part, or one
        dict for all. Weights are numbers of samples, unless they were reported."""
        sums = [{} for _ in self._kept] if by_part else [{}] * len(self._kept)
        for of_part, (n, values) in zip(sums, self._kept):
            for name, number, weight in weighted_numbers(values, n):
                if weight > 0:
                    x, total = of_part.get(name, (0.0, 0.0))
                    if type(number) is float:
                        of_part[name] = x + weight * number, total + weight
                        continue
                    with number.device:
                        of_part[name] = x + weight * number, total + weight
        return sums if by_part else sums[:1]

    def summary(self) -> DictSummary:
        """Returns the same of all parts as a summary."""
        summary = DictSummary()
        for n, values in self._kept:
            summary.add(values, default_weight=n)
        return summary

    def last(self) -> dict[str, Any]:
        """Returns all values, in which later parts replace values of earlier ones."""
        merged = {}
        for _, values in self._kept:
            merged.update(values)
        return merged


def _observed(function, observation):
    with collecting(observation):
        return function()
