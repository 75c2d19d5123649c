"""Compares updates of two runs: equal bits, differences by rounding, or larger differences."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from mpchain.replays.pieces import Piece
from mpchain.replays.recording import Update

_EPSILONS = {"float16": 2**-10, "bfloat16": 2**-7, "float64": 2**-23}
"""Relative rounding errors of dtypes other than float32; records store float64 sums as float32."""

_USUAL = 4
"""Usual change of an element in a step, as a multiple of its rounding error."""

_FACTOR = 32
"""Allowed multiple of the measured effect of another summation order: up to this multiple, a
difference counts as rounding."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference between two updates in one number.

    Attributes:
        t: the number of the update.
        place: the name of the piece of the parameters, or of the loss.
        size: the size of the difference; NaN if only one of the two numbers is finite.
        scale: the norm of the piece, or the magnitude of the loss.
        epsilon: the relative rounding error of the number's dtype.
        values: the two values of a loss; None for a piece.
    """

    t: int
    place: str
    size: float
    scale: float
    epsilon: float = 2**-23
    values: tuple[float, float] | None = None

    def is_usual(self, n_steps: int) -> bool:
        """Returns whether rounding explains this difference after ``n_steps`` steps."""
        return self.size <= _USUAL * self.epsilon * (2 + n_steps) * self.scale

    def __str__(self):
        place = f"update {self.t} differs in {self.place}"
        if self.values is not None:
            return f"{place}: {self.values[0]!r} and {self.values[1]!r}"
        if math.isnan(self.size):
            return f"{place}: only one of the two values is finite"
        if self.size == 0:
            return f"{place}: only some bits differ"
        return f"{place}: the difference is {self.size:.1e}, and the norm {self.scale:.3g}"


def differences(
    a: Update, b: Update, pieces: Sequence[Piece], shape: Sequence[Sequence]
) -> Iterator[Difference]:
    """Yields the differences between two updates, for pieces with fingerprints in both updates.

    Args:
        a, b: the updates.
        pieces, shape: the pieces and shape of the model.
    """
    names = [name for name, *_ in shape]
    for i in common(a, b):
        x, y = a.prints[i - a.first], b.prints[i - b.first]
        if x.bits == y.bits:
            continue
        finite = [math.isfinite(p.sum) and math.isfinite(p.norm) for p in (x, y)]
        if not any(finite):
            continue
        size = max(abs(x.sum - y.sum), abs(x.norm - y.norm)) if all(finite) else math.nan
        epsilon = _EPSILONS.get(shape[pieces[i].first][2], 2**-23)
        yield Difference(a.t, pieces[i].name(names), size, max(x.norm, y.norm), epsilon)
    for name, x, y in losses(a, b):
        if x != y and (math.isfinite(x) or math.isfinite(y)):
            size = abs(x - y) if math.isfinite(x) and math.isfinite(y) else math.nan
            yield Difference(a.t, name, size, max(abs(x), abs(y)), 2**-21, values=(x, y))


def common(a: Update, b: Update) -> range:
    """Returns the indices of the pieces for which both updates have fingerprints."""
    begin = max(a.first, b.first)
    return range(begin, min(a.first + len(a.prints), b.first + len(b.prints)))


def losses(a: Update, b: Update) -> list[tuple[str, float, float]]:
    """Returns the names and values of the losses that both updates have."""
    found = [(name, a.values[name], b.values[name]) for name in a.values if name in b.values]
    if not found and a.own is not None and b.own is not None and a.n_ranks == b.n_ranks:
        found.append(("the loss of rank 0", a.own, b.own))
    return found


def beyond_rounding(
    found: Sequence[Difference], measured: Mapping[tuple[int, str], float], n_steps: int
) -> bool:
    """Returns whether the differences of one update are larger than rounding explains.

    Args:
        found: the differences that :func:`differences` yielded.
        measured: the effect of summing the same steps in another order, by update and place.
        n_steps: the number of steps computed since the two runs were equal.
    """
    return any(
        not d.is_usual(n_steps) and not d.size <= _FACTOR * measured.get((d.t, d.place), 0.0)
        for d in found
    )
