"""Compares what two updates left."""

import dataclasses
import math
from collections.abc import Sequence

from mpchain.replays.fingerprints import Fingerprint
from mpchain.replays.pieces import Piece
from mpchain.replays.recording import Update

EQUAL, ROUNDED, DIFFERENT = "equal", "rounded", "different"

_EPSILONS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}
_ROUNDINGS = 4
"""Roundings of each element in a step that count as usual."""


@dataclasses.dataclass
class Difference:
    """The greatest difference between two updates.

    Attributes:
        t: the number of the update.
        place: the parameter, or the name of a loss.
        text: both values.
    """

    t: int
    place: str
    text: str


def compare(
    a: Update,
    b: Update,
    pieces: Sequence[Piece],
    shape: Sequence,
    *,
    n_steps: int = 0,
    exact: bool = False,
) -> tuple[str, Difference | None]:
    """Compares two updates by the pieces of which both have fingerprints.

    Args:
        a, b: the updates.
        pieces, shape: of the model.
        n_steps: how many steps both have computed since they were equal.
        exact: whether all bits must be equal.

    Returns:
        :data:`EQUAL`, :data:`ROUNDED` or :data:`DIFFERENT`, and what differs in the latter case.
    """
    result = EQUAL
    for i in common(a, b):
        x, y = a.prints[i - a.first], b.prints[i - b.first]
        if x.bits == y.bits:
            continue
        name, _, dtype = shape[pieces[i].first]
        if exact or not _is_rounding(x, y, _EPSILONS.get(dtype, 2**-23), n_steps):
            place = pieces[i].name([each[0] for each in shape])
            return DIFFERENT, Difference(a.t, place, _text(x, y))
        result = ROUNDED
    for name, x, y in losses(a, b):
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        if exact or not abs(x - y) <= 1e-5 * (1 + n_steps) * max(abs(x), abs(y)):
            return DIFFERENT, Difference(a.t, name, f"{x!r} and {y!r}")
        result = ROUNDED
    return result, None


def common(a: Update, b: Update) -> range:
    """Returns the numbers of the pieces of which both have fingerprints."""
    begin = max(a.first, b.first)
    return range(begin, min(a.first + len(a.prints), b.first + len(b.prints)))


def losses(a: Update, b: Update) -> list[tuple[str, float, float]]:
    """Returns names and values of the losses that both know."""
    found = [(name, a.values[name], b.values[name]) for name in a.values if name in b.values]
    if not found and a.own is not None and b.own is not None and a.n_ranks == b.n_ranks:
        found.append(("the loss of rank 0", a.own, b.own))
    return found


def _is_rounding(x: Fingerprint, y: Fingerprint, epsilon, n_steps):
    if not (math.isfinite(x.sum) and math.isfinite(y.sum)):
        return math.isfinite(x.sum) == math.isfinite(y.sum)
    bound = _ROUNDINGS * epsilon * (2 + n_steps) * max(x.norm, y.norm)
    return max(abs(x.sum - y.sum), abs(x.norm - y.norm)) <= bound


def _text(x, y):
    if not (math.isfinite(x.sum) and math.isfinite(y.sum)):
        return f"sums with signs {x.sum:.9g} and {y.sum:.9g}"
    difference = max(abs(x.sum - y.sum), abs(x.norm - y.norm))
    return f"it differs by about {difference:.1e}, with a norm of {y.norm:.3g}"
