"""Combining the reports of the parts of a batch."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.reporter import DictSummary
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
        >>> observations.summaries()[0].compute_mean()
        {'x': 2.0}
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

    def summaries(self, *, by_part: bool = False) -> list[DictSummary]:
        """Returns summaries in which values are weighted by samples: one for each part, or one."""
        summary = DictSummary()
        summaries = [DictSummary() if by_part else summary for _ in self._kept]
        for summary, (n, values) in zip(summaries, self._kept, strict=True):
            summary.add(values, default_weight=n)
        return summaries if by_part else summaries[:1]

    def last(self) -> dict[str, Any]:
        """Returns all values, in which later parts replace values of earlier ones."""
        return {name: value for _, values in self._kept for name, value in values.items()}


def _observed(function, observation):
    with collecting(observation):
        return function()
