"""The finding of a proof: a text that names the first difference."""

import dataclasses

import numpy as np

from mpchain.backends.dtypes import is_floating
from mpchain.prove.comparison import Gap, Suspect


@dataclasses.dataclass
class Finding:
    """The first difference between the ranks and one process.

    Attributes:
        step: the number of the update.
        what: the function, parameter or value, with the line of the user's program.
        values: a text with the values on the ranks and in one process, and their sample.
        cause: a sentence that states the likely cause.

    Example:
        >>> print(Finding(1, "the loss", "2 on the ranks, 3 in one process", "a wrong scale"))
        not the same: update 1, the loss
          2 on the ranks, 3 in one process
          likely cause: a wrong scale
    """

    step: int
    what: str
    values: str = ""
    cause: str = ""

    def __str__(self) -> str:
        lines = [f"not the same: update {self.step}, {self.what}", self.values]
        lines.append(f"likely cause: {self.cause}" if self.cause else "")
        return "\n  ".join(line for line in lines if line)


class DifferenceError(BaseException):
    """Ends the program in the single process, because the comparison found a difference."""

    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding


class RefusedError(BaseException):
    """Ends the program, because it cannot be proved; the message is one sentence."""


def number(x: float) -> str:
    """Formats a number with few digits.

    >>> number(np.float32(0.1)), number(3)
    ('0.1', '3')
    """
    dtype = np.asarray(x).dtype
    return f"{float(x):.7g}" if is_floating(dtype) else str(x)


def both(gap: Gap, ranks: str = "on the ranks") -> str:
    """Returns a text with the two values of a difference.

    >>> both(Gap(1.0, (0,), 2.0, 3.0, True))
    '2 on the ranks, 3 in one process, at [0]'
    """
    if np.isinf(gap.size) and isinstance(gap.a, tuple):
        return f"shape {gap.a} {ranks}, {gap.b} in one process"
    where = f", at [{', '.join(map(str, gap.index))}]" if gap.index else ""
    return f"{number(gap.a)} {ranks}, {number(gap.b)} in one process{where}"


def values_of(suspect: Suspect, owners: list[int]) -> str:
    """Returns a text with the values that a function computed for the sample that differs most.

    Args:
        suspect: the function.
        owners: for each pass of the ranks, the rank that made the pass.
    """
    ranks, gap = [owners[i] for i in suspect.passes], suspect.gap
    if suspect.kind == "other functions":
        called = ", ".join(map(str, sorted({*ranks})))
        who = f"it is called on rank {called}" if ranks else "it is called on no rank"
        return (
            f"{who}, and {'in' if suspect.one else 'not in'} one process, or the numbers of calls "
            "differ"
        )
    if gap is None or suspect.kind in ("mean", "sum", "maximum", "minimum", "alike"):
        if gap is not None and len(ranks) == 1:
            return both(gap, f"on rank {ranks[0]}")
        values = ", ".join(
            f"{_shown(a.outputs[0])} on rank {r}" for r, a in zip(ranks, suspect.ranks)
        )
        assert suspect.one is not None  # suspect.one is None only if other functions were called
        return f"{values}, {_shown(suspect.one.outputs[0])} in one process"
    axis = 0 if suspect.kind.startswith("rows") else int(suspect.kind.split()[1])
    row = gap.index[axis] if gap.index else 0
    begin, who = 0, ""
    for owner, application in zip(ranks, suspect.ranks):
        length = application.outputs[0].shape[axis] if application.outputs[0].ndim > axis else 0
        if begin <= row < begin + length:
            who = f" (row {row - begin} of rank {owner})"
        begin += length
    return f"sample {row}{who}: {both(gap)}"


def _shown(array):
    array = np.asarray(array)
    return number(array[()]) if array.ndim == 0 else f"an array of shape {array.shape}"
