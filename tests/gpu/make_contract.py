"""Reads the names and parameters of the installed CuPy, which needs no GPU, into contract.json.

    python tests/gpu/make_contract.py [FILE]

The double of CuPy has these names and takes these parameters, and no others. Run this with a Python
that has CuPy and SciPy whenever mpchain is to be used with a newer CuPy.
"""

import importlib
import inspect
import json
import pathlib
import re
import sys
import types

FILE = pathlib.Path(__file__).with_name("doubles") / "contract.json"
MODULES = [
    "cupy",
    "cupy.cuda",
    "cupy.cuda.runtime",
    "cupy.fft",
    "cupy.linalg",
    "cupy.random",
    "cupyx",
    "cupyx.scipy.special",
]
COMPARISONS = ["__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"]
CLASSES = [
    "cupy.ndarray",
    "cupy.ufunc",
    "cupy.cuda.Device",
    "cupy.cuda.Event",
    "cupy.cuda.MemoryHook",
    "cupy.cuda.MemoryPool",
    "cupy.cuda.MemoryPointer",
    "cupy.cuda.PinnedMemoryPointer",
    "cupy.cuda.Stream",
    "cupy.random.RandomState",
]


def parameters(function):
    """Returns 'a, b, *c, **d', or '...' where neither the signature nor the docstring says."""
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


def describe(value, ufunc):
    """Returns what a name is, in one line."""
    if isinstance(value, ufunc):
        return "ufunc"
    if isinstance(value, type):
        return "type"
    return f"function({parameters(value)})" if callable(value) else "value"


def make_contract():
    """Returns {module or class: {name: what it is}} of the CuPy that is imported."""
    cupy = importlib.import_module("cupy")
    contract = {"version": cupy.__version__}
    for name in MODULES:
        module = importlib.import_module(name)
        contract[name] = {
            key: describe(value, cupy.ufunc)
            for key, value in vars(module).items()
            if not key.startswith("_") and not isinstance(value, types.ModuleType)
        }
    for name in CLASSES:
        module, _, key = name.rpartition(".")
        cls = getattr(importlib.import_module(module), key)
        names = [n for n in dir(cls) if n in COMPARISONS or n not in dir(object)]
        contract[name] = {n: describe(getattr(cls, n), cupy.ufunc) for n in names}
    return contract


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1]) if sys.argv[1:] else FILE
    file.write_text(json.dumps(make_contract(), indent=0, sort_keys=True) + "\n")
