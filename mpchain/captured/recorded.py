"""Recorded arrays, which are NumPy arrays that report calls, and records of these calls.

A recorded array reports each computation in which it is an argument. Arrays are identified by the
memory that they occupy, so that views need no record.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mpchain.observers import current
from mpchain.variable import Variable

_ALLOCATING = "sum prod max min mean var std any all argmax argmin dot astype copy take clip repeat"
_ALLOCATING += " reshape ravel flatten round cumsum nonzero argsort searchsorted trace choose"
_ALLOCATING += " argpartition compress conj conjugate cumprod"
_READING = "item tolist tobytes __float__ __int__ __index__ __complex__ __str__ __repr__ __format__"
_READING += " __contains__ __reduce__ __reduce_ex__ dump dumps tofile __dlpack__"
_CHANGING = "sort partition put resize byteswap setfield itemset"
_FIXED = """
amax amin max min sum prod mean var std average median any all argmax argmin argsort argpartition
sort partition cumsum cumprod cumulative_sum cumulative_prod nancumsum nancumprod nansum nanmean
nanmax nanmin nanstd nanvar nanprod nanmedian round around clip copy concatenate concat stack hstack
vstack dstack column_stack block append dot vdot inner outer matmul matvec vecmat vecdot tensordot
einsum kron cross trace diagonal diag diagflat tril triu take take_along_axis choose select
searchsorted digitize isin isclose interp diff ediff1d gradient flip fliplr flipud rot90 moveaxis
rollaxis swapaxes transpose permute_dims matrix_transpose squeeze expand_dims atleast_1d atleast_2d
atleast_3d broadcast_to broadcast_arrays reshape ravel zeros_like ones_like empty_like full_like
nan_to_num real imag angle convolve correlate ptp quantile percentile nanquantile nanpercentile
vander sinc i0 unwrap trapezoid polyval polyfit meshgrid lexsort apply_along_axis apply_over_axes
sliding_window_view split array_split hsplit vsplit dsplit unstack astype flatten fix
sort_complex conj conjugate
"""
_FIXED_BY_FIRST = "roll pad tile repeat where delete insert resize"
_OF_SHAPES = {
    *(np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.iscomplexobj, np.isrealobj),
    *(np.may_share_memory, np.shares_memory, np.common_type),
}


_FIXED = frozenset(_FIXED.split())
_FIXED_BY_FIRST = frozenset(_FIXED_BY_FIRST.split())
# The shapes or dtypes of the results of these functions of numpy.linalg depend on data.
_ODD = {"eig", "eigvals", "lstsq"}


def depends_on_data(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Returns whether the shapes or dtypes of results may depend on values, not only on the shapes
    and dtypes of the arguments.

    Example:
        >>> from mpchain.captured.recorded import depends_on_data
        >>> depends_on_data(np.sum, (np.ones(3),), {}), depends_on_data(np.unique, ([1],), {})
        (False, True)
    """
    name = getattr(function, "__name__", "")
    if isinstance(function, np.ufunc) or isinstance(getattr(function, "__self__", None), np.ufunc):
        return False
    if name in ("__getitem__", "getitem"):
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(x.dtype == bool for x in arrays_in(*keys))
    if name == "where":
        return len(args) + len(kwargs) < 3
    if name in _FIXED_BY_FIRST:
        return any(True for _ in arrays_in(args[1:], kwargs))
    if (module := getattr(function, "__module__", None)) in ("numpy.linalg", "numpy.fft"):
        return name in _ODD
    if getattr(function, "__objclass__", None) is np.ndarray or module == "numpy":
        return name not in _FIXED
    return False  # the shapes of a kernel's results follow from the shapes of its arguments


class Call(NamedTuple):
    """A recorded call.

    Attributes:
        function: the function that was called.
        args, kwargs: the arguments of the call, with plain arrays in place of recorded arrays.
        results: the arrays that the call wrote, which may be arguments.
        kind: ``'call'``; ``'guard'`` if ``args`` holds an array that was read as a bool, and the
            bool; ``'again'`` if replays repeat the call itself, ``'update'`` if the call is an
            optimizer's, ``'send'`` if other ranks see the call; ``'number'`` if it returns a number
            that ``results`` holds; ``'draw'`` if it draws random values; ``'exchange'`` if it sends
            its argument to other ranks and its result depends on the arguments of other ranks;
            ``'shape'`` if the shapes of its results depend on data.
        grads: before an update or a message, pairs of a parameter and its gradient.

    Example:
        >>> from mpchain.captured.recorded import Call
        >>> Call(np.add, (1, 2)).kind
        'call'
    """

    function: Callable
    args: tuple = ()
    kwargs: dict = {}
    results: tuple = ()
    kind: str = "call"
    grads: tuple = ()


def owner_of(array: np.ndarray) -> np.ndarray:
    """Returns the array that owns the memory of a view.

    Example:
        >>> from mpchain.captured.recorded import owner_of
        >>> x = np.zeros((2, 3))
        >>> owner_of(x.T[1:]) is x
        True
    """
    base = array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            array = base
        # NumPy's as_strided makes bases that are not arrays.
        elif not isinstance(getattr(base, "base", None), np.ndarray):
            break
        base = base.base
    return array


def plain(value: Any) -> Any:
    """Returns an array, or a sequence of arrays, as plain NumPy arrays of the same memory; other
    values are returned unchanged.

    Example:
        >>> from mpchain.captured.recorded import plain
        >>> plain((1, [np.zeros(1)]))
        (1, [array([0.])])
    """
    if isinstance(value, RecordedArray):
        return value.view(np.ndarray)
    if value.__class__ in (tuple, list):
        return value.__class__([plain(v) for v in value])
    if value.__class__ is collections.deque:
        return [plain(v) for v in value]
    return value


def arrays_in(*values: Any) -> Iterator[np.ndarray]:
    """Yields the arrays in arguments, including arrays in tuples, lists and dicts.

    Example:
        >>> from mpchain.captured.recorded import arrays_in
        >>> [x.size for x in arrays_in((1, np.zeros(2)), {"out": np.zeros(3)})]
        [2, 3]
    """
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from arrays_in(*value)
        elif isinstance(value, dict):
            yield from arrays_in(*value.values())


class RecordedArray(np.ndarray):
    """An array that reports computations on it to the thread's recorder.

    Example:
        >>> from mpchain.captured.recorded import RecordedArray
        >>> type(np.zeros(2).view(RecordedArray) + 1)  # no recorder is active
        <class 'numpy.ndarray'>
    """

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: Any,
        out: tuple[np.ndarray, ...] | None = None,
        **kwargs: Any,
    ) -> Any:
        if any(isinstance(x, Variable) for x in inputs):
            return NotImplemented  # Python then calls the operator of the Variable
        inputs, function = plain(inputs), getattr(ufunc, method)
        kwargs = {name: plain(value) for name, value in kwargs.items()}
        if method == "__call__":
            function = ufunc
        recorder = current.recorder
        if out is None and method != "at":
            result = function(*inputs, **kwargs)
            return result if recorder is None else recorder.made(function, inputs, kwargs, result)
        written = (inputs[0],) if method == "at" else plain(out)
        if out is not None:
            function(*inputs, **kwargs, out=written)
        else:
            function(*inputs, **kwargs)
        if recorder is not None:
            recorder.calls.append(Call(function, inputs, kwargs, written))
        return None if out is None else out[0] if len(out) == 1 else out

    def __array_function__(
        self, func: Callable, types: Iterable[type], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        if any(issubclass(kind, Variable) for kind in types):
            return NotImplemented
        args, kwargs = plain(args), {name: plain(value) for name, value in kwargs.items()}
        result = func(*args, **kwargs)
        recorder = current.recorder
        if recorder is None or func in _OF_SHAPES:
            return result
        if func is np.copyto:
            recorder.calls.append(Call(func, args, kwargs, (args[0],)))
            return None
        out = kwargs.get("out")
        if isinstance(out, np.ndarray):
            recorder.calls.append(Call(func, args, kwargs, (out,)))
            return out.view(RecordedArray)
        if out is not None or result is None:
            recorder.refuse(f"numpy.{func.__name__} writes into an array")
            return result
        return recorder.made(func, args, kwargs, result)

    def __setitem__(self, key: object, value: object) -> None:
        array, key, value = plain(self), plain(key), plain(value)
        array[key] = value
        if current.recorder is not None:
            call = Call(np.ndarray.__setitem__, (array, key, value), {}, (array,))
            current.recorder.calls.append(call)

    def __getitem__(self, key: object) -> Any:
        return _method("__getitem__")(self, key)

    # Arrays without axes replace NumPy's scalars, which support more operations.

    def __hash__(self) -> int:
        return hash(self._read("hash"))

    def __round__(self, *digits: Any) -> Any:
        return round(self._read("round"), *digits)

    def __rmul__(self, other: object) -> Any:
        if isinstance(other, (list, tuple, str)) and self.ndim == 0:
            return other * self._read("repeat")
        return super().__rmul__(other)

    def __getattr__(self, name: str) -> Any:
        if self.ndim or not hasattr(plain(self)[()], name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._read(name), name)

    def _read(self, name):
        _refuse(f"it reads the values of an array ({name})")
        return plain(self)[()]

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: dict) -> Any:
        return self.copy()

    @property
    def flat(self) -> Any:
        _refuse("it goes through the elements of an array (flat)")
        return plain(self).flat

    @flat.setter
    def flat(self, values: object) -> None:
        _refuse("it writes the elements of an array (flat)")
        plain(self).flat = values

    def __bool__(self) -> bool:
        value = bool(plain(self))
        if current.recorder is not None:
            current.recorder.calls.append(Call(bool, (plain(self), value), kind="guard"))
        return value

    def fill(self, value: object) -> None:
        self[...] = value


def _refuse(reason):
    if current.recorder is not None:
        current.recorder.refuse(reason)


def _method(name):
    function = getattr(np.ndarray, name)

    def call(self, *args, **kwargs):
        args = plain((self, *args))
        kwargs = {name: plain(value) for name, value in kwargs.items()}
        result = function(*args, **kwargs)
        recorder = current.recorder
        if recorder is None:
            return result
        if kwargs.get("out") is not None:
            recorder.calls.append(Call(function, args, kwargs, (kwargs["out"],)))
            return kwargs["out"].view(RecordedArray)
        return recorder.made(function, args, kwargs, result)

    return call


def _refused_method(name, reason):
    function = getattr(np.ndarray, name)

    def call(self, *args, **kwargs):
        _refuse(reason)
        return function(plain(self), *plain(args), **kwargs)

    return call


for _name in _ALLOCATING.split():
    setattr(RecordedArray, _name, _method(_name))
for _name in _READING.split():
    _reason = f"it reads the values of an array ({_name.strip('_')})"
    setattr(RecordedArray, _name, _refused_method(_name, _reason))
for _name in _CHANGING.split():
    if hasattr(np.ndarray, _name):
        _reason = f"ndarray.{_name} changes an array"
        setattr(RecordedArray, _name, _refused_method(_name, _reason))
