"""Compares two records."""

from mpchain.replays import comparison
from mpchain.replays.history import History
from mpchain.replays.records import RecordError


def diff(a: History, b: History) -> int:
    """Prints the first step and parameter in which two records differ.

    Returns:
        int: 1 if the runs began with different parameters or differ by more than rounding,
        otherwise 0.

    Raises:
        RecordError: the records have different parameters, or no step in common.
    """
    model, other = a.main, b.main
    if model.shape != other.shape:
        changed = [x[0] for x, y in zip(model.shape, other.shape, strict=False) if x != y]
        name = changed[0] if changed else f"the number ({len(model.shape)}, {len(other.shape)})"
        raise RecordError(
            f"{a.folder} and {b.folder} record different parameters: {name} differs; compare "
            "records of the same model"
        )
    shared = sorted(model.updates.keys() & other.updates.keys())
    if not shared:
        raise RecordError(f"{a.folder} and {b.folder} have no step in common")
    first, start = None, _first_of(model.starts.get(0), other.starts.get(0), model)
    if start is not None:
        print(f"mpchain: the runs began with different parameters: {start[0]}")
        return 1
    for t in shared:
        found = _first_of(model.updates[t], other.updates[t], model)
        if found is None:
            continue
        first = first or found[0]
        if comparison.beyond_rounding(found, {}, t - first.t):
            print(f"mpchain: {first}")
            if found[0] != first:
                print(f"mpchain: {found[0]}; rounding may explain the differences before this one")
            return 1
    n = len(shared)
    if first is None:
        print(f"mpchain: {n} steps are equal bit for bit")
    else:
        print(f"mpchain: {n} steps are equal up to rounding; the first difference: {first}")
    return 0


def _first_of(x, y, model):
    """Returns the differences between two updates; None if there are none."""
    if x is None or y is None:
        return None
    return [*comparison.differences(x, y, model.pieces(), model.shape)] or None
