"""Checks names and parameters against those of the real CuPy."""

import functools
import json
import pathlib

_ROOT = pathlib.Path(__file__).parents[4]
CONTRACT = json.loads((_ROOT / "mpchain" / "testing" / "cupy_contract.json").read_text())


@functools.cache
def parameters_of(module, name):
    """Returns the names of the parameters; None if CuPy does not show them, or accepts any."""
    entry = CONTRACT[module][name]
    names = entry.removeprefix("function(").removesuffix(")")
    if not entry.startswith("function") or "..." in names or "*" in names:
        return None
    return [name for name in names.split(", ") if name not in ("", "self", "/")]


def check_parameters(module, name, args, kwargs):
    """Raises TypeError for arguments that the real function does not accept."""
    names = parameters_of(module, name)
    if names is None:
        return
    for key in kwargs:
        if key not in names:
            raise TypeError(f"{module}.{name}() got an unexpected keyword argument {key!r}")
    if len(args) > len(names):
        raise TypeError(
            f"{module}.{name}() takes {len(names)} positional arguments but {len(args)} were given"
        )


def check_name(module, name):
    """Raises AttributeError for names that the real module or class does not have."""
    if name not in CONTRACT[module]:
        raise AttributeError(f"{module!r} has no attribute {name!r}")
