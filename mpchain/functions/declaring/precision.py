"""The rule for functions whose inputs and parameters have different dtypes; see
``mpchain.mixed16``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends.dtypes import is_floating, promoted
from mpchain.functions.array import cast
from mpchain.typing import Array
from mpchain.utils.type_check import check, fail
from mpchain.variable import Variable


def differ(x: Variable | Array, *parameters: Any) -> bool:
    """Returns whether a parameter that is not None has another dtype than ``x``.

    Example:
        >>> differ(np.zeros(2, np.float16), np.zeros(2, np.float32), None)
        True
    """
    dtype = x.dtype
    for p in parameters:
        if p is not None and p.dtype != dtype:
            return True
    return False


def fits_plainly(x: object, W: object, b: object) -> bool:
    """Returns whether a linear map needs no more checks, because x (N, I), W (O, I) and b (O,), or
    None, are NumPy arrays of one floating-point dtype or Variables that hold such arrays.

    Example:
        >>> fits_plainly(np.ones((5, 3)), np.ones((2, 3)), Variable(np.ones(2)))
        True
    """
    x, W, b = getattr(x, "_array", x), getattr(W, "_array", W), getattr(b, "_array", b)
    if type(x) is not np.ndarray or type(W) is not np.ndarray:
        return False
    dtype, shape = x.dtype, W.shape
    if x.ndim != 2 or len(shape) != 2 or x.shape[1] != shape[1]:
        return False
    if W.dtype != dtype or not (dtype.char in "fd" or is_floating(dtype)):
        return False
    return b is None or (type(b) is np.ndarray and b.dtype == dtype and b.shape == shape[:1])


def check_widths(name: str, inputs: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Raises InvalidType if an input has a wider dtype than a parameter.

    Without the error, the result and all values that are computed from it would silently have the
    wider dtype.

    Args:
        name: the function that the message names.
        inputs, parameters: floating-point Variables or arrays, by argument name; a parameter may be
            None.

    Example:
        >>> check_widths("linear", {"x": np.zeros(2, np.float16)}, {"W": np.zeros(2, np.float32)})
    """
    for p_name, p in parameters.items():
        for x_name, x in inputs.items():
            if p is None or p.dtype == x.dtype:
                continue
            check(is_floating(x.dtype), name, f"{x_name} must be floating point", **{x_name: x})
            check(is_floating(p.dtype), name, f"{p_name} must be floating point", **{p_name: p})
            if promoted(x.dtype, p.dtype) != p.dtype:
                to_cast = (
                    "functions.cast({}, {!r})" if isinstance(x, Variable) else "{}.astype({!r})"
                )
                to_cast = to_cast.format(x_name, p.dtype.name)
                rule = f"{x_name} must not have a wider dtype than {p_name} (cast it by {to_cast})"
                fail(name, rule, **{x_name: x, p_name: p})


def mixed(
    name: str,
    function: Callable[..., Variable],
    inputs: dict[str, Any],
    parameters: dict[str, Any],
    **options: Any,
) -> Variable:
    """Computes a function of inputs and wider parameters in the widest of their dtypes.

    Args:
        name: the function that messages name.
        function: the function; it receives ``options`` and the inputs and parameters that are not
            None as keyword arguments, and returns a Variable.
        inputs, parameters: as for :func:`check_widths`.

    Returns:
        Variable of the widest dtype of the inputs.

    Example:
        >>> x, W = np.ones((1, 2), np.float16), np.ones((1, 2), np.float32)
        >>> mixed("linear", F.linear, {"x": x}, {"W": W}).dtype
        dtype('float16')
    """
    check_widths(name, inputs, parameters)
    given = {k: v for k, v in (inputs | parameters).items() if v is not None}
    wide = promoted(*[v.dtype for v in given.values()])
    y = function(**{k: cast(v, wide) for k, v in given.items()}, **options)
    return cast(y, promoted(*[x.dtype for x in inputs.values()]))
