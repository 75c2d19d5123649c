"""A decorator that computes functions of float16 and bfloat16 arrays in float32."""

import functools
from collections.abc import Callable

import numpy as np

from mpchain.backends.dtypes import is_floating, is_half


def fp16_mixed_precision(function: Callable) -> Callable:
    """Decorator for functions of a tuple of arrays: computes float16 and bfloat16 in float32.

    Args:
        function: method ``(self, inputs)`` that returns a tuple of arrays (or None), such as
            ``forward`` of a :class:`mpchain.FunctionNode`.

    Returns:
        A method that passes float16 and bfloat16 inputs to ``function`` as float32, and casts the
        outputs to the dtype of the inputs if all floating-point inputs have the same dtype.

    Example:
        >>> class Square(mpchain.FunctionNode):
        ...     @fp16_mixed_precision
        ...     def forward(self, inputs):
        ...         return (inputs[0] ** 2,)
        >>> Square().apply((np.full(2, 3, np.float16),))[0].dtype
        dtype('float16')
    """

    @functools.wraps(function)
    def compute(self, inputs):
        narrow = {x.dtype for x in inputs if x is not None and is_half(x.dtype)}
        if not narrow:
            return function(self, inputs)
        wide = tuple([_as(np.float32, x) for x in inputs])
        floating = {x.dtype for x in inputs if x is not None and is_floating(x.dtype)}
        if len(floating) > 1:
            return function(self, wide)
        (dtype,) = narrow
        return tuple([_as(dtype, y) for y in function(self, wide)])

    def _as(dtype, x):
        if x is None or not (is_half(x.dtype) or x.dtype == np.float32):
            return x
        return x.astype(dtype, copy=False)

    return compute
