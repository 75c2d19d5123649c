"""Sets operators and methods of Variable, whose module imports no functions, and lets functions of
NumPy accept Variables.

Through NumPy's dispatch protocols (NEP 13 and 18), ``np.exp(x)`` of a Variable is :func:`exp`, and
``np.sum(x, axis=0)`` is :func:`sum`, so the same formula runs on arrays and on Variables.
Comparisons such as ``np.greater`` return plain arrays of bool, which cannot be differentiated.
"""

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions import (
    activation,
    arithmetic,
    array,
    contraction,
    cumulative,
    indexing,
    joining,
    mathematics,
    rearrangement,
    reduction,
    trigonometric,
)
from mpchain.variable import Variable, as_array

_UFUNCS = {
    np.absolute: arithmetic.absolute,
    np.exp: mathematics.exp,
    np.log: mathematics.log,
    np.matmul: contraction.matmul,
    np.maximum: lambda x0, x1: _with_arrays(mathematics.maximum, x0, x1),
    np.minimum: lambda x0, x1: _with_arrays(mathematics.minimum, x0, x1),
    np.sqrt: mathematics.sqrt,
    np.square: mathematics.square,
    np.tanh: activation.tanh,
    np.add: lambda x0, x1: _operate("__add__", "__radd__", x0, x1),
    np.subtract: lambda x0, x1: _operate("__sub__", "__rsub__", x0, x1),
    np.multiply: lambda x0, x1: _operate("__mul__", "__rmul__", x0, x1),
    np.divide: lambda x0, x1: _operate("__truediv__", "__rtruediv__", x0, x1),
    np.floor_divide: lambda x0, x1: _operate("__floordiv__", "__rfloordiv__", x0, x1),
    np.power: lambda x0, x1: _operate("__pow__", "__rpow__", x0, x1),
    np.negative: lambda x: -x,
    np.positive: lambda x: x,
    **{getattr(np, name): getattr(mathematics, name) for name in "expm1 log1p log2 log10".split()},
    **{
        getattr(np, name): getattr(trigonometric, name)
        for name in "sin cos tan arcsin arccos arctan arctan2 sinh cosh arctanh".split()
    },
}
_NOT_DIFFERENTIABLE = {
    getattr(np, name)
    for name in (
        "greater greater_equal less less_equal equal not_equal "
        "logical_and logical_or logical_not isnan isinf isfinite sign ceil floor trunc"
    ).split()
}
_FUNCTIONS = {
    np.broadcast_to: array.broadcast_to,
    np.cumprod: cumulative.cumprod,
    np.cumsum: cumulative.cumsum,
    np.concatenate: lambda xs, axis=0: joining.concat(xs, axis),
    np.einsum: contraction.einsum,
    np.expand_dims: rearrangement.expand_dims,
    np.flip: rearrangement.flip,
    np.max: reduction.max,
    np.mean: lambda x, axis=None, keepdims=False: reduction.mean(x, axis, keepdims=keepdims),
    np.min: reduction.min,
    np.moveaxis: rearrangement.moveaxis,
    np.prod: reduction.prod,
    np.repeat: rearrangement.repeat,
    np.reshape: array.reshape,
    np.squeeze: rearrangement.squeeze,
    np.stack: joining.stack,
    np.sum: lambda x, axis=None, keepdims=False: reduction.sum(x, axis, keepdims),
    np.swapaxes: array.swapaxes,
    np.tensordot: contraction.tensordot,
    np.transpose: array.transpose,
    np.where: lambda condition, x, y: mathematics.where(as_array(condition), *_as_arrays(x, y)),
}


def _as_arrays(*values):
    """Converts the numbers in ``values`` to 0-d arrays, in the dtype of the Variable in ``values``;
    without a Variable, returns ``values``."""
    like = next((x for x in values if isinstance(x, Variable)), None)
    if like is None:
        return values
    asarray = get_array_module(like).asarray
    return [asarray(x, like.dtype) if isinstance(x, (bool, int, float)) else x for x in values]


def _with_arrays(function, x0, x1):
    return function(*_as_arrays(x0, x1))


def _operate(method, reflected, x0, x1):
    if isinstance(x0, Variable):
        return getattr(x0, method)(x1)
    return getattr(x1, reflected)(x0)


def _array_ufunc(self, ufunc, method, *inputs, **kwargs):
    if method != "__call__" or kwargs:
        return NotImplemented
    if ufunc in _NOT_DIFFERENTIABLE:
        return ufunc(*map(_plain, inputs))
    function = _UFUNCS.get(ufunc)
    return NotImplemented if function is None else function(*inputs)


def _array_function(self, function, types, args, kwargs):
    known = _FUNCTIONS.get(function)
    return NotImplemented if known is None else known(*args, **kwargs)


def _plain(x):
    return x.array if isinstance(x, Variable) else x


def _reshape(self, *shape):
    """Reshapes the variable; the shape is given as integers or as one tuple."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    return array.reshape(self, tuple(shape))


def _transpose(self, *axes):
    """Permutes the axes in the order that is given as integers or as one tuple; without arguments,
    reverses the axes."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]
    return array.transpose(self, tuple(axes) if axes else None)


_METHODS = arithmetic.OPERATORS | {
    "__array_ufunc__": _array_ufunc,
    "__array_function__": _array_function,
    "__matmul__": contraction.matmul,
    "__rmatmul__": lambda x, y: contraction.matmul(y, x),
    "__getitem__": indexing.get_item,
    "T": property(array.transpose, doc="The variable with its axes reversed."),
    "mean": reduction.mean,
    "reshape": _reshape,
    "transpose": _transpose,
}
for _name, _method in _METHODS.items():
    setattr(Variable, _name, _method)
