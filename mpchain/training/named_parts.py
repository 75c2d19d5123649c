"""What updaters and evaluators share: parts known by name, and batches as arguments."""


def name_parts(parts) -> dict:
    """Returns ``parts`` if it is a dict, else a dict that holds it under the name ``'main'``."""
    return dict(parts) if isinstance(parts, dict) else {"main": parts}


def find_part(parts: dict, name: str, caller: str, kind: str):
    """Returns ``parts[name]``; an unknown name raises KeyError with the names that there are."""
    if name not in parts:
        known = ", ".join(map(repr, parts)) or "none"
        raise KeyError(f"{caller}: there is no {kind} named {name!r}; known: {known}")
    return parts[name]


def as_arguments(batch) -> tuple:
    """Returns the positional and the keyword arguments that a converted batch stands for."""
    if isinstance(batch, tuple):
        return batch, {}
    if isinstance(batch, dict):
        return (), batch
    return (batch,), {}
