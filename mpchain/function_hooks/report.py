"""Tables of measured quantities by name, which profiling hooks print."""

from collections.abc import Iterable
from typing import IO, Any

TIME_UNITS = {"sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTE_UNITS = {"TB": 1024.0**4, "GB": 1024.0**3, "MB": 1024.0**2, "KB": 1024.0, "B": 1.0}


def summarize(
    history: Iterable[tuple[Any, ...]], quantities: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Sums measurements by name.

        >>> summarize([("f", 1.0), ("g", 2.0), ("f", 3.0)], ("seconds",))["f"]
        {'seconds': 4.0, 'occurrence': 2}

    Args:
        history: tuples (name, value of each quantity).
        quantities: the names of the quantities.

    Returns:
        dict by name, in order of first appearance, of dicts by quantity and ``'occurrence'``.
    """
    summary = {}
    for name, *values in history:
        row = summary.setdefault(name, {**dict.fromkeys(quantities, 0), "occurrence": 0})
        for quantity, value in zip(quantities, values):
            row[quantity] += value
        row["occurrence"] += 1
    return summary


def print_table(
    summary: dict[str, dict[str, float]],
    name_title: str,
    titles: dict[str, str],
    units: dict[str, float],
    unit: str,
    file: IO[str] | None,
) -> None:
    """Prints what :func:`summarize` returned as a right-aligned table, one line per name.

        >>> summary = {"f": {"s": 2.0, "occurrence": 3}}
        >>> print_table(summary, "Name", {"s": "Time"}, TIME_UNITS, "ms", None)
        Name       Time  Occurrence
           f  2000.00ms           3

    Args:
        summary: the result of :func:`summarize`.
        name_title: the title of the column of names.
        titles: the title of the column of each quantity.
        units: sizes of units by name, from large to small.
        unit: one of these; ``'auto'`` fits the largest value, ``'auto_foreach'`` each value.
        file: the output; None means the standard output.

    Raises:
        ValueError: the unit is unknown.
    """
    if unit not in (*units, "auto", "auto_foreach"):
        allowed = ", ".join([*units, "auto", "auto_foreach"])
        raise ValueError(f"print_report: unit must be one of {allowed}, not {unit!r}")
    values = [row[quantity] for row in summary.values() for quantity in titles]
    if unit == "auto":
        unit = _suitable(max(values, default=0), units)
    table = [(name_title, *titles.values(), "Occurrence")]
    for name, row in summary.items():
        cells = [_in_unit(row[quantity], units, unit) for quantity in titles]
        table.append((name, *cells, str(row["occurrence"])))
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), file=file)


def _suitable(value, units):
    """Returns the largest unit that does not exceed ``value``."""
    return next((name for name, size in units.items() if abs(value) >= size), list(units)[-1])


def _in_unit(value, units, unit):
    unit = _suitable(value, units) if unit == "auto_foreach" else unit
    return f"{value / units[unit]:.2f}{unit}"
