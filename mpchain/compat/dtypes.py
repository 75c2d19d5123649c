"""Combinations of dtypes that Chainer 7.8.1 accepts, by function; all were tried on Chainer."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mpchain.backends.dtypes import is_floating, promoted
from mpchain.functions import cast
from mpchain.utils.type_check import check

_BIASED = ("x", "W", "b"), ("x", "b")
_NORMALIZED = ("x", "gamma", "beta"), ("gamma", "beta")
_BILINEAR = ("e1", "e2", "W", "V1", "V2", "b")
_RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": _BIASED,
    "convolution_2d": _BIASED,
    "deconvolution_2d": _BIASED,
    "depthwise_convolution_2d": _BIASED,
    "dilated_convolution_2d": _BIASED,
    "local_convolution_2d": _BIASED,
    "simplified_dropconnect": _BIASED,
    "convolution_nd": (("x", "W", "b"), ()),
    "convolution_1d": (("x", "W", "b"), ()),
    "convolution_3d": (("x", "W", "b"), ()),
    "deconvolution_nd": (("x", "W", "b"), ()),
    "deconvolution_1d": (("x", "W", "b"), ()),
    "deconvolution_3d": (("x", "W", "b"), ()),
    "batch_normalization": _NORMALIZED,
    "fixed_batch_normalization": (("x", "gamma", "beta", "mean", "var"), _NORMALIZED[1]),
    "group_normalization": _NORMALIZED,
    "layer_normalization": (_NORMALIZED[0], _NORMALIZED[0]),
    "prelu": (("x", "W"), ("x", "W")),
    "scale": (("x", "y"), ("x", "y")),
    "bias": (("x", "y"), ("x", "y")),
    "bilinear": (_BILINEAR, _BILINEAR),
}
"""Maps a function to two tuples of arguments: the first tuple is cast to the widest of its dtypes;
the second tuple must have one dtype. The result has the dtype of the first argument."""


def as_chainer(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that accepts the same dtypes as Chainer's function of that name.

    Example:
        >>> import numpy as np
        >>> linear = as_chainer("linear", F.linear)
        >>> linear(np.ones((1, 2)), np.ones((3, 2), np.float32)).dtype
        dtype('float64')
    """
    if name not in _RULES:
        return function
    computed, alike = _RULES[name]
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        dtypes = {x.dtype for x in (*args, *kwargs.values()) if hasattr(x, "dtype")}
        if len(dtypes) < 2:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        found: dict[str, Any] = {k: bound.arguments.get(k) for k in computed}
        given = {k: x for k, x in found.items() if hasattr(x, "dtype") and is_floating(x.dtype)}
        if len({x.dtype for x in given.values()}) < 2 or computed[0] not in given:
            return function(*args, **kwargs)
        held = {k: x for k, x in given.items() if k in alike}
        is_taken = len({x.dtype for x in held.values()}) < 2
        check(is_taken, name, f"{', '.join(held)} must have one dtype", **held)
        wide = promoted(*[x.dtype for x in given.values()])
        bound.arguments.update({k: cast(x, wide) for k, x in given.items()})
        return cast(function(*bound.args, **bound.kwargs), given[computed[0]].dtype)

    return call
