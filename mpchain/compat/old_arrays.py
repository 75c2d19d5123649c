"""Makes arrays as NumPy before 1.24 did, for programs written for those versions."""

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

MAKING = ("array", "asarray", "asanyarray")
"""The functions of NumPy that make arrays; ``numpy.random`` passes its arguments to them."""

_UP_TO_DATE = {"mpchain", "cupy", "h5py", "matplotlib", "onnx", "onnxruntime", "pandas"}
_UP_TO_DATE |= {"PIL", "safetensors", "scipy", "seaborn", "skimage", "sklearn", "torch"}
"""The packages that expect NumPy 2's errors, which the replaced functions raise for them."""

_RAGGED = "inhomogeneous shape"


def as_before(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of NumPy that also makes arrays that NumPy 2 refuses to make.

    Rows of unequal lengths become an array of objects, with a warning, and ``copy=False`` copies
    if necessary. If mpchain or a package made for NumPy 2 calls it, NumPy 2's errors are raised.
    """

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> np.ndarray:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            caller, level = _caller()
            dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
            is_ragged = _RAGGED in str(error) and dtype is None
            is_copied = "Unable to avoid copy" in str(error)
            if not (is_ragged or is_copied) or caller in _UP_TO_DATE:
                raise
        if kwargs.get("copy") is False:
            kwargs["copy"] = None
        if is_copied:
            return function(*args, **kwargs)
        result = function(*args[:1], **{**kwargs, "dtype": object})
        warnings.warn(
            f"mpchain.compat: rows of unequal lengths became an array of {len(result)} objects, "
            "as NumPy before 1.24 made it. NumPy 2 refuses them: write np.array(rows, "
            "dtype=object). MPCHAIN_COMPAT_NUMPY=0 refuses them here, too.",
            np.exceptions.VisibleDeprecationWarning,
            stacklevel=level,
        )
        return result

    return make


def sharing(function: Callable[..., bool]) -> Callable[..., bool]:
    """Returns a ``may_share_memory`` that returns False for rows of unequal lengths.

    ``numpy.random.permutation`` calls this function with the list that it permutes.
    """

    @functools.wraps(function)
    def may_share(*args: Any, **kwargs: Any) -> bool:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            if _RAGGED not in str(error) or _caller()[0] in _UP_TO_DATE:
                raise
        return False

    return may_share


def _caller():
    """Returns the package of the innermost caller outside of NumPy, and its stack level."""
    frame, level = sys._getframe(2), 2
    while True:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package != "numpy" or frame.f_back is None:
            return package, level
        frame, level = frame.f_back, level + 1
