"""The names and parameters of CuPy, for the version that mpchain is tested with and for others.

The tests' double of CuPy has exactly these names, and ``mpchain-launch doctor --gpu`` compares the
installed CuPy with them. ``python -m mpchain.testing.cupy_contract`` writes the names of the
installed CuPy into the file, which allows tests with a newer CuPy; it needs SciPy but no GPU.
"""

import importlib
import inspect
import json
import pathlib
import re
import types

FILE = pathlib.Path(__file__).with_suffix(".json")

_MODULES = [
    "cupy",
    "cupy.cuda",
    "cupy.cuda.runtime",
    "cupy.fft",
    "cupy.linalg",
    "cupy.random",
    "cupyx",
    "cupyx.scipy.special",
]
_COMPARISONS = ["__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"]
_CLASSES = [
    "cupy.ndarray",
    "cupy.ufunc",
    "cupy.cuda.Device",
    "cupy.cuda.Event",
    "cupy.cuda.Graph",
    "cupy.cuda.MemoryHook",
    "cupy.cuda.MemoryPool",
    "cupy.cuda.MemoryPointer",
    "cupy.cuda.PinnedMemoryPointer",
    "cupy.cuda.Stream",
    "cupy.random.RandomState",
]


def _parameters(function):
    """Returns 'a, b, *c, **d', or '...' if neither signature nor docstring shows the parameters."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Cython writes the signature into the first line of the docstring.
        first = (function.__doc__ or "").strip().split("\n")[0]
        match = re.match(r"[\w.]+\((.*)\)( ->.*)?$", first)
        if match is None:
            return "..."
        return ", ".join(
            re.split("[=:]", word)[0].strip().split(" ")[-1] for word in match[1].split(", ")
        )
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return ", ".join(stars.get(parameter.kind, "") + parameter.name for parameter in found)


def _describe(value, ufunc):
    """Describes an object in one line."""
    if isinstance(value, ufunc):
        return "ufunc"
    if isinstance(value, type):
        return "type"
    return f"function({_parameters(value)})" if callable(value) else "value"


def read() -> dict:
    """Returns the contract of the installed CuPy.

    Example:
        >>> read()["cupy.ndarray"]["max"]  # doctest: +SKIP
        'function(self, axis, out, keepdims)'
    """
    cupy = importlib.import_module("cupy")
    contract = {"version": cupy.__version__}
    for name in _MODULES:
        contract[name] = _names_in(name, cupy.ufunc)
    for name in _CLASSES:
        module, _, key = name.rpartition(".")
        cls = getattr(importlib.import_module(module), key)
        names = [n for n in dir(cls) if n in _COMPARISONS or n not in dir(object)]
        contract[name] = {n: _describe(getattr(cls, n), cupy.ufunc) for n in names}
    return contract


def _names_in(name, ufunc):
    try:
        module = importlib.import_module(name)
    except ImportError:  # some functions need SciPy
        return {}
    return {
        key: _describe(value, ufunc)
        for key, value in vars(module).items()
        if not key.startswith("_") and not isinstance(value, types.ModuleType)
    }


def known() -> dict:
    """Returns the contract of the CuPy version that mpchain is tested with.

    Example:
        >>> known()["cupy"]["concatenate"]
        'function(tup, axis, out, dtype, casting)'
    """
    return json.loads(FILE.read_text("utf-8"))


def differences(found: dict, wanted: dict) -> list[str]:
    """Describes the differences of a contract from the wanted contract, except additional names.

    Example:
        >>> wanted = {"version": "14.2", "cupy": {"max": "function(a, axis)", "tril": "type"}}
        >>> differences({"version": "15.0", "cupy": {"max": "function(a)"}}, wanted)
        ['cupy.max: function(a), not function(a, axis)', 'cupy.tril: missing']
    """
    lines = []
    for owner, names in wanted.items():
        if owner == "version":
            continue
        if not found.get(owner):
            lines.append(f"{owner}: missing")
            continue
        for name, what in names.items():
            other = found[owner].get(name)
            if other is None:
                lines.append(f"{owner}.{name}: missing")
            elif other != what:
                lines.append(f"{owner}.{name}: {other}, not {what}")
    return lines


if __name__ == "__main__":
    FILE.write_text(json.dumps(read(), indent=0, sort_keys=True) + "\n")
