"""Compares updates of two runs: equal to the bit, different by rounding, or more."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from mpchain.replays.pieces import Piece
from mpchain.replays.recording import Update

_EPSILONS = {"float16": 2**-10, "bfloat16": 2**-7, "float64": 2**-23}
"""Relative roundings of dtypes other than float32; sums of float64 are kept as float32."""

_USUAL = 4
"""Usual number of roundings of an element in a step."""

_FACTOR = 32
"""Multiple of the measured effect of another summation order that still counts as rounding."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A number that differs between two updates.

    Attributes:
        t: the number of the update.
        place: the parameter, or the name of a loss.
        size: the size of the difference; NaN if only one of the two numbers is finite.
        scale: the norm of the parameter, or the loss.
        epsilon: the relative rounding of the number's dtype.
        values: the two values of a loss.
    """

    t: int
    place: str
    size: float
    scale: float
    epsilon: float = 2**-23
    values: tuple[float, float] | None = None

    def is_usual(self, n_steps: int) -> bool:
        """Returns whether rounding explains this difference after these steps."""
        return self.size <= _USUAL * self.epsilon * (2 + n_steps) * self.scale

    def __str__(self):
        place = f"update {self.t} differs in {self.place}"
        if self.values is not None:
            return f"{place}: {self.values[0]!r} and {self.values[1]!r}"
        if math.isnan(self.size):
            return f"{place}: only one of both is finite"
        if self.size == 0:
            return f"{place}: in some bits"
        return f"{place}: by {self.size:.1e}, where its norm is {self.scale:.3g}"


def differences(
    a: Update, b: Update, pieces: Sequence[Piece], shape: Sequence[Sequence]
) -> Iterator[Difference]:
    """Yields the differences between two updates, for the pieces that both have fingerprints of.

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
    """Returns whether differences of one update are more than rounding.

    Args:
        found: the items of :func:`differences`.
        measured: the effect of summing the same steps in another order, by update and place.
        n_steps: the number of steps computed since the two runs were equal.
    """
    return any(
        not d.is_usual(n_steps) and not d.size <= _FACTOR * measured.get((d.t, d.place), 0.0)
        for d in found
    )
