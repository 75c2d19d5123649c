"""Floating-point dtypes: NumPy's, and bfloat16, which the library ml_dtypes adds to NumPy.

NumPy itself does not know bfloat16: the kind of this dtype is ``V``, like the kind of raw bytes,
and ``np.issubdtype`` does not count it as floating point. mpchain therefore uses the functions
below.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpchain.typing import DTypeLike

_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)


def is_floating(*dtypes: np.dtype) -> bool:
    """Returns whether all dtypes are real floating-point dtypes (NumPy's or bfloat16).

    Example:
        >>> is_floating(as_dtype("bfloat16")), is_floating(np.dtype("f"), np.dtype("i"))
        (True, False)
    """
    for dtype in dtypes:
        if dtype.kind != "f" and not is_bfloat16(dtype):
            return False
    return True


def is_bfloat16(dtype: np.dtype) -> bool:
    """Returns whether a dtype is bfloat16.

    Example:
        >>> is_bfloat16(np.dtype(np.float16))
        False
    """
    return dtype.kind == "V" and dtype.name == "bfloat16"


def is_half(dtype: np.dtype) -> bool:
    """Returns whether a dtype is float16 or bfloat16.

    Example:
        >>> is_half(np.dtype(np.float16)), is_half(np.dtype(np.float32))
        (True, False)
    """
    return dtype == _FLOAT16 or is_bfloat16(dtype)


def widened(array: Any) -> Any:
    """Returns a bfloat16 array in float32, and any other value unchanged.

    Example:
        >>> widened(np.ones(2, mpchain.mixed_bf16)).dtype
        dtype('float32')
    """
    dtype = getattr(array, "dtype", None)
    return array.astype(_FLOAT32) if dtype is not None and is_bfloat16(dtype) else array


def promoted(*dtypes: np.dtype) -> np.dtype:
    """Returns the dtype to which dtypes promote.

    NumPy's rules apply, but together with other dtypes bfloat16 counts as float32: NumPy has no
    common dtype for bfloat16 and, for example, float16 or int64.

    Example:
        >>> promoted(as_dtype("bfloat16"), np.dtype(np.float16))
        dtype('float32')
    """
    if len(set(dtypes)) > 1:
        dtypes = tuple(_FLOAT32 if is_bfloat16(dtype) else dtype for dtype in dtypes)
    return np.result_type(*dtypes)


def as_dtype(spec: "DTypeLike") -> np.dtype:
    """Returns ``np.dtype(spec)``; accepts ``"bfloat16"`` even before ml_dtypes is imported.

    Args:
        spec: argument of :class:`numpy.dtype`, or ``"bfloat16"``.

    Raises:
        ImportError: ``spec`` is ``"bfloat16"``, and ml_dtypes is not installed.

    Example:
        >>> as_dtype("bfloat16").itemsize
        2
    """
    if isinstance(spec, str) and spec == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(
                'bfloat16 arrays need the library ml_dtypes: pip install "mpchain[bfloat16]"'
            ) from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(spec)


def smallest(dtype: np.dtype) -> float:
    """Returns the most negative finite number of a floating-point dtype.

    Example:
        >>> smallest(np.dtype(np.float16))
        -65504.0
    """
    if is_bfloat16(dtype):
        return float(np.array([0xFF7F], np.uint16).view(dtype)[0])
    return float(np.finfo(dtype).min)
