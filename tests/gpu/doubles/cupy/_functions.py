"""CuPy's functions, which are NumPy's functions with the names and parameters of the contract."""

import functools

import numpy as np

from cupy._array import SCALARS, ndarray, refuse_host_arrays, run, to_host
from cupy._contract import CONTRACT, check_name, check_parameters
from cupy._graphs import refuse_copy, refuse_library
from cupy._machine import check_dtype

FROM_HOST = set("array asarray asanyarray ascontiguousarray asfortranarray".split())
"""Functions that copy host arrays to the device."""
ON_HOST = set(
    "broadcast_shapes can_cast common_type finfo iinfo iscomplexobj isrealobj isscalar issubdtype"
    " may_share_memory min_scalar_type ndim promote_types result_type shape size".split()
)
"""Functions that read no values, and whose results are no arrays."""
WRITE = set("copyto fill_diagonal place put put_along_axis putmask".split())
"""Functions that write into their first argument."""


class ufunc:
    """An elementwise function of arrays and scalars, with only the options out, dtype and
    casting."""

    def __init__(self, function):
        self._function = function
        self.__name__ = function.__name__
        self.name = f"cupy_{function.__name__}"
        self.nin, self.nout, self.nargs = function.nin, function.nout, function.nargs

    def __call__(self, *args, out=None, **kwargs):
        for key in kwargs:
            if key not in ("dtype", "casting"):
                raise TypeError(f"Wrong arguments {kwargs}: cupy.{self.__name__} takes no {key}")
        outs = [out] if out is not None else list(args[self.nin :])
        for x in args[: self.nin]:
            if not isinstance(x, (*SCALARS, ndarray)):
                raise TypeError(f"Unsupported type {type(x)} (cupy.{self.__name__})")
        if not all(isinstance(x, ndarray) for x in outs):
            raise TypeError(f"return arrays must be of ArrayType (cupy.{self.__name__})")
        if kwargs.get("dtype") is not None:
            # CuPy casts arguments of any kind to a given dtype.
            kwargs.setdefault("casting", "unsafe")
        if outs:
            kwargs["out"] = outs[0] if self.nout == 1 else tuple(outs)
        return run(self.__name__, self._function, args[: self.nin], kwargs, writes=outs)

    def at(self, a, indices, b=None):
        refuse_host_arrays(f"{self.__name__}.at", [a, b])
        others = (indices,) if b is None else (indices, b)
        run(f"{self.__name__}.at", self._function.at, (a, *others), {}, writes=(a,))

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        return self._method("reduce", array, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def accumulate(self, array, axis=0, dtype=None, out=None):
        return self._method("accumulate", array, axis=axis, dtype=dtype, out=out)

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        return self._method("reduceat", array, indices, axis=axis, dtype=dtype, out=out)

    def outer(self, A, B, **kwargs):
        return self._method("outer", A, B, **kwargs)

    def _method(self, method, *args, **kwargs):
        name = f"{self.__name__}.{method}"
        refuse_host_arrays(name, args)
        return run(name, getattr(self._function, method), args, kwargs)


def call(module, name, function, *args, **kwargs):
    """Calls NumPy's function of the same name if CuPy accepts the arguments."""
    check_parameters(module, name, args, kwargs)
    kwargs.pop("blocking", None)
    if module == "cupy.linalg":
        refuse_library("cuSOLVER")
    if name in ON_HOST:
        return function(*to_host(args, []), **to_host(kwargs, []))
    if kwargs.get("dtype") is not None:
        check_dtype(kwargs["dtype"])
    if name not in FROM_HOST:
        refuse_host_arrays(name, [*args, *kwargs.values()])
        first = CONTRACT[module][name].removeprefix("function(").split(",")[0]
        if args and first in ("a", "x", "m", "v", "ary") and isinstance(args[0], (list, tuple)):
            if not any(isinstance(x, (ndarray, list, tuple)) for x in args[0]):
                raise TypeError(f"{module}.{name}: expected cupy.ndarray, not {type(args[0])}")
    elif args and not isinstance(args[0], ndarray):
        if kwargs.get("copy", True) is False:
            kwargs["copy"] = None  # CuPy's copy=False allows the copy to the device
        if np.ndim(args[0]):
            refuse_copy()
        function = functools.partial(_copied, function)
    return run(name, function, args, kwargs, writes=args[:1] if name in WRITE else ())


def _copied(function, *args, **kwargs):
    return np.array(function(*args, **kwargs))


def finder(module, source):
    """Returns a ``__getattr__`` for the module, which finds names of the contract in ``source``."""

    @functools.cache
    def find(name):
        check_name(module, name)
        if not hasattr(source, name):
            raise AttributeError(f"the double of CuPy has no {module}.{name} yet")
        value = getattr(source, name)
        if isinstance(value, np.ufunc):
            return ufunc(value)
        if isinstance(value, type) or not callable(value):
            return value
        return functools.partial(call, module, name, value)

    return find


def copyto(dst, src, casting="same_kind", where=None):
    """Copies values into an array, from an array of any device or a scalar."""
    if not isinstance(src, (*SCALARS, ndarray)):
        raise TypeError(f"Unsupported type {type(src)} (cupy.copyto)")
    if isinstance(src, ndarray) and src.device != dst.device:
        with dst.device:
            return copyto(dst, src.copy(), casting, where)
    where = True if where is None else where
    run("copyto", np.copyto, (dst, src, casting, where), {}, writes=(dst,))


def where(condition, x=None, y=None):
    """Selects elements; with one argument, finds the nonzero elements, which waits for the
    device."""
    if x is None and y is None:
        return condition.nonzero()
    if not hasattr(condition, "astype"):
        raise AttributeError(f"{type(condition).__name__!r} object has no attribute 'astype'")
    refuse_host_arrays("where", [condition, x, y])
    return run("where", np.where, (condition, x, y), {})


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    """Copies an array to the host."""
    if isinstance(a, ndarray):
        return a.get(stream, order, out, blocking)
    return np.asarray(a, order=order)
