"""Restores names that NumPy 1.24 to 2.4 and Python 3.10 removed, for older programs."""

import ast
import collections
import collections.abc
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpchain.compat import old_arrays

VARIABLE = "MPCHAIN_COMPAT_NUMPY"


def _kinds() -> dict[str, list[type]]:
    return {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
        "float": [np.float16, np.float32, np.float64, np.longdouble],
        "complex": [np.complex64, np.complex128, np.clongdouble],
        "others": [bool, object, bytes, str, np.void],
    }


def _asfarray(a: Any, dtype: Any = np.float64) -> np.ndarray:
    return np.asarray(a, dtype if np.issubdtype(dtype, np.inexact) else np.float64)


def _in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> np.ndarray:
    return np.isin(np.asarray(ar1).ravel(), ar2, assume_unique=assume_unique, invert=invert)


def _find_common_type(array_types: Any, scalar_types: Any) -> np.dtype:
    return np.result_type(*array_types, *scalar_types)


def _unchanged(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    return args[0] if args and callable(args[0]) else lambda function: function


_NAMES: dict[str, Any] = {
    # NumPy once had aliases for these types of Python.
    **{
        "int": int,
        "float": float,
        "complex": complex,
        "object": object,
        "str": str,
        "unicode": str,
    },
    **{"bool8": np.bool_, "float_": np.float64, "complex_": np.complex128, "cfloat": np.complex128},
    **{"singlecomplex": np.complex64, "longfloat": np.longdouble, "clongfloat": np.clongdouble},
    **{"longcomplex": np.clongdouble, "int0": np.intp, "uint0": np.uintp, "object0": np.object_},
    **{"str0": np.str_, "string_": np.bytes_, "unicode_": np.str_, "bytes0": np.bytes_},
    **{"void0": np.void, "sctypes": _kinds()},
    **{"Inf": np.inf, "Infinity": np.inf, "infty": np.inf, "PINF": np.inf, "NINF": -np.inf},
    **{"NaN": np.nan, "NAN": np.nan, "PZERO": 0.0, "NZERO": -0.0},
    "alen": lambda a: len(np.atleast_1d(a)),
    "alltrue": np.all,
    "asfarray": _asfarray,
    "asscalar": lambda a: np.asarray(a).item(),
    "cumproduct": np.cumprod,
    "deprecate": _unchanged,
    "find_common_type": _find_common_type,
    "in1d": _in1d,
    "issctype": lambda rep: isinstance(rep, type) and issubclass(rep, np.generic),
    "issubclass_": lambda a, b: isinstance(a, type) and issubclass(a, b),
    "issubsctype": lambda a, b: issubclass(np.dtype(a).type, np.dtype(b).type),
    "mat": np.asmatrix,
    "msort": lambda a: np.sort(a, axis=0),
    "obj2sctype": lambda rep, default=None: np.dtype(rep).type,
    "product": np.prod,
    "round_": np.round,
    "row_stack": np.vstack,
    "safe_eval": ast.literal_eval,
    "sctype2char": lambda sctype: np.dtype(sctype).char,
    "sometrue": np.any,
    "trapz": np.trapezoid,
    "byte_bounds": np.lib.array_utils.byte_bounds,
    "AxisError": np.exceptions.AxisError,
    "ComplexWarning": np.exceptions.ComplexWarning,
    "ModuleDeprecationWarning": DeprecationWarning,
    "RankWarning": np.exceptions.RankWarning,
    "TooHardError": np.exceptions.TooHardError,
    "VisibleDeprecationWarning": np.exceptions.VisibleDeprecationWarning,
    **{"os": os, "sys": sys, "warnings": warnings},
}

_STACKING = ("column_stack", "dstack", "hstack", "stack", "vstack")
"""Functions that took generators until NumPy 1.24."""


def _taking_generators(function):
    @functools.wraps(function)
    def stack(arrays, *args, **kwargs):
        if isinstance(arrays, Iterator):
            arrays = list(arrays)
        return function(arrays, *args, **kwargs)

    return stack


_REPLACING: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_STACKING, _taking_generators),
    **dict.fromkeys(old_arrays.MAKING, old_arrays.as_before),
    "may_share_memory": old_arrays.sharing,
}
"""Maps the name of a NumPy function to a function that returns its replacement."""

_added: list[tuple[Any, str]] = []
_replaced: dict[str, Any] = {}


def install() -> None:
    """Adds the names that NumPy and Python's ``collections`` have removed, and prints a message.

    Names that NumPy still has are left unchanged, except that functions such as ``hstack`` accept
    generators again, and functions such as ``array`` accept rows of unequal lengths
    (:mod:`mpchain.compat.old_arrays`). ``MPCHAIN_COMPAT_NUMPY=0`` in the environment prevents all
    of this.
    """
    if _replaced or os.environ.get(VARIABLE, "1") == "0":
        return
    _add(np, _NAMES)
    _add(collections, {name: getattr(collections.abc, name) for name in collections.abc.__all__})
    for name, replace in _REPLACING.items():
        _replaced[name] = getattr(np, name)
        setattr(np, name, replace(_replaced[name]))
    print(
        f"mpchain.compat: NumPy has old names again (np.int, np.product, ...); {VARIABLE}=0 turns "
        "that off",
        file=sys.stderr,
    )
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        print(
            "mpchain.compat: NumPy 2.4 raises TypeError for float(array of one element), which old "
            "programs call: pip install 'mpchain[compat]' installs a NumPy that accepts it",
            file=sys.stderr,
        )


def _add(module, names):
    for name, value in names.items():
        if name not in vars(module):
            setattr(module, name, value)
            _added.append((module, name))


def uninstall() -> None:
    """Undoes :func:`install`."""
    while _added:
        delattr(*_added.pop())
    while _replaced:
        setattr(np, *_replaced.popitem())


def added() -> list[str]:
    """Returns the names that were added to NumPy."""
    return sorted(name for module, name in _added if module is np)
