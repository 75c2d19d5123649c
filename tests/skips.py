"""Summarizes in one line why tests were skipped."""

import collections
import re

MOST = 4
"""Largest number of reasons that are named; tests with other, rarer reasons are counted
together."""


def summary(reasons: list[str]) -> str:
    """Returns how many tests were skipped for which reasons, the most frequent ones first."""
    counts = collections.Counter(map(_short, reasons)).most_common()
    parts = [f"{n} ({reason})" for reason, n in counts[:MOST]]
    if rest := sum(n for _, n in counts[MOST:]):
        parts.append(f"{rest} for other reasons (-rs lists them)")
    return f"skipped: {', '.join(parts)}" if parts else ""


def _short(reason):
    reason = reason.removeprefix("Skipped: ").partition("\n")[0]
    module = re.match(r"could not import '(\w+)", reason)
    return f"{module[1]} is not installed" if module else reason
