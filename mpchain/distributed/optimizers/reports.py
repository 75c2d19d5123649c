"""What the parts of a batch report, put together."""

import functools

from mpchain.reporter import DictSummary
from mpchain.training.updaters.replica import collecting


class Observations:
    """What each part of a batch reports.

    Args:
        parts: list of pairs: a number of samples, and a function without arguments.

    Attributes:
        parts: as given, with functions whose reports are kept here.
    """

    def __init__(self, parts):
        self._kept = [(n, {}) for n, _ in parts]
        self.parts = [
            (n, functools.partial(_observed, function, observation))
            for (n, function), (_, observation) in zip(parts, self._kept, strict=True)
        ]

    def summarize(self):
        """Returns a :class:`~mpchain.reporter.DictSummary`, in which values count by samples, and a
        dict of all values, the later parts' where several have reported one."""
        summary, last = DictSummary(), {}
        for n, observation in self._kept:
            last |= observation
            summary.add({k: v if isinstance(v, tuple) else (v, n) for k, v in observation.items()})
        return summary, last


def _observed(function, observation):
    with collecting(observation):
        return function()
