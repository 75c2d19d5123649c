"""Combining the reports of the parts of a batch."""

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

    Example:
        >>> report = lambda x: mpchain.report({"x": x})
        >>> parts = [(3, lambda: report(1.0)), (1, lambda: report(5.0))]
        >>> observations = Observations(parts)
        >>> with mpchain.Reporter():
        ...     for _, function in observations.parts:
        ...         function()
        >>> observations.summarize()[0].compute_mean()
        {'x': 2.0}
    """

    def __init__(self, parts: Sequence[tuple[int, Callable[[], Any] | None]]):
        self._kept = [(n, {}) for n, _ in parts]
        self.parts = [
            (n, functools.partial(_observed, function, observation))
            for (n, function), (_, observation) in zip(parts, self._kept, strict=True)
        ]

    def summarize(self) -> tuple[DictSummary, dict[str, Any]]:
        """Returns a summary in which values are weighted by samples, and a dict of all values, in
        which later parts replace values of earlier ones."""
        summary, last = DictSummary(), {}
        for n, observation in self._kept:
            last |= observation
            summary.add({k: v if isinstance(v, tuple) else (v, n) for k, v in observation.items()})
        return summary, last


def _observed(function, observation):
    with collecting(observation):
        return function()
