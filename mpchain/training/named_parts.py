"""Shared code of updaters and evaluators: parts known by name, and batches as arguments."""

from collections.abc import Iterable
from typing import Any

from mpchain.link import Link
from mpchain.reporter import Reporter


def name_parts(parts: object) -> dict[str, Any]:
    """Returns a copy of ``parts`` if it is a dict, otherwise ``{"main": parts}``.

    Example:
        >>> name_parts("an iterator")
        {'main': 'an iterator'}
    """
    return dict(parts) if isinstance(parts, dict) else {"main": parts}


def find_part(parts: dict[str, Any], name: str, caller: str, kind: str) -> Any:
    """Returns ``parts[name]``; raises KeyError with the known names if ``name`` is unknown."""
    if name not in parts:
        raise KeyError(f"{caller}: there is no {kind} named {name!r}; known: {listing(parts)}")
    return parts[name]


def reporter_of(models: dict[str, Link], prefix: str = "") -> Reporter:
    """Returns a reporter that knows models by their names, and their links by paths below these
    names.

    Example:
        >>> model = L.Linear(2, 1)
        >>> with reporter_of({"main": model}) as reporter:
        ...     mpchain.report({"loss": 2.0}, model)
        >>> reporter.observation
        {'main/loss': 2.0}
    """
    reporter = Reporter()
    for name, model in models.items():
        reporter.add_observer(prefix + name, model)
        reporter.add_observers(prefix + name, model.namedlinks(skipself=True))
    return reporter


def listing(names: Iterable[str]) -> str:
    """Returns quoted names for a message, or "none" if there are no names.

    Example:
        >>> listing(["main", "val"]), listing([])
        ("'main', 'val'", 'none')
    """
    return ", ".join(map(repr, names)) or "none"


def as_arguments(batch: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and the keyword arguments that a converted batch represents.

    Example:
        >>> as_arguments((1, 2)), as_arguments({"x": 1}), as_arguments(3)
        (((1, 2), {}), ((), {'x': 1}), ((3,), {}))
    """
    if isinstance(batch, tuple):
        return batch, {}
    if isinstance(batch, dict):
        return (), batch
    return (batch,), {}
