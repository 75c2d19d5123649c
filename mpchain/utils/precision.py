"""Computes float16 arrays in float32."""

import functools
from collections.abc import Callable

import numpy as np


def fp16_mixed_precision(function: Callable) -> Callable:
    """Decorator for functions of a tuple of arrays: computes float16 inputs in float32.

    Args:
        function: method ``(self, inputs)`` that returns a tuple of arrays (or None), such as
            ``forward`` of a :class:`mpchain.FunctionNode`.

    Returns:
        A method whose float16 inputs are float32 in ``function``, and whose outputs are float16 if
        all floating-point inputs were.

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
        narrow = [x for x in inputs if x is not None and x.dtype == np.float16]
        if not narrow:
            return function(self, inputs)
        wide = tuple(_as(np.float32, x) for x in inputs)
        if any(x is not None and x.dtype.kind == "f" and x.dtype != np.float16 for x in inputs):
            return function(self, wide)
        return tuple(_as(np.float16, y) for y in function(self, wide))

    def _as(dtype, x):
        is_half_or_single = x is not None and x.dtype in (np.float16, np.float32)
        return x.astype(dtype, copy=False) if is_half_or_single else x

    return compute
