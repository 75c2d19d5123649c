"""The array class, which computes with NumPy, and refuses what CuPy's array refuses."""

import contextlib
import functools
import operator
import warnings

import numpy as np

from cupy import _machine
from cupy._contract import CONTRACT, check_parameters
from cupy._graphs import in_use, refuse_copy, refuse_library
from cupy._machine import (
    Device,
    Memory,
    MemoryPointer,
    check_current_device,
    check_dtype,
    get_current_stream,
    grain_of,
    launch,
    ledger,
    place,
    wait_on_host,
)
from cupy._products import OTHER_PRODUCTS, PRODUCTS, count_flops, launches_beside, without_values
from cupy._records import bytes_of

SCALARS = (bool, int, float, complex, np.generic)
VIEWS = set(
    "atleast_1d atleast_2d atleast_3d asarray ascontiguousarray asfortranarray astype array_split"
    " broadcast_arrays broadcast_to diagonal dsplit expand_dims flip fliplr flipud getitem hsplit"
    " imag moveaxis ravel real reshape rollaxis rot90 split squeeze swapaxes transpose view vsplit"
    " nan_to_num einsum".split()
)
"""Functions that may return views, and then launch nothing."""
ALLOCATE = {"empty", "empty_like"}
"""Functions that launch nothing, because they return memory without values."""
WAITS = set("argwhere bincount compress extract flatnonzero nonzero unique delete".split())
"""Functions that wait for the device, because the shape of the result depends on values."""
JOIN = set("column_stack concatenate dstack hstack stack vstack".split())
"""Functions that launch a kernel for each array if there are at most 8 arrays."""

DRAWS = set("rand random random_sample ranf sample".split())
"""Functions that draw by cuRAND's kernel; a second kernel converts the drawn numbers."""


class OutOfBoundsError(RuntimeError):
    """An index is outside of the array, which CuPy does not notice. It is not an IndexError,
    because CuPy raises none."""


def refuse_host_arrays(name, tree):
    """Raises TypeError if an argument is a NumPy array, as CuPy does."""
    for item in tree:
        if isinstance(item, np.ndarray):
            raise TypeError(f"Unsupported type {type(item)} (cupy.{name})")
        if isinstance(item, (tuple, list)):
            refuse_host_arrays(name, item)


def to_host(tree, arrays):
    """Replaces arrays among the arguments with host views, and appends the arrays to a list."""
    if isinstance(tree, ndarray):
        arrays.append(tree)
        return tree._host
    if type(tree) in (tuple, list):
        return type(tree)(to_host(item, arrays) for item in tree)
    if isinstance(tree, dict):
        return {key: to_host(item, arrays) for key, item in tree.items()}
    return tree


def from_host(result, arrays=()):
    """Replaces each array and scalar of a NumPy result with an array, as CuPy does.

    Results that share memory with one of the arguments ``arrays`` are views of it.
    """
    if isinstance(result, np.generic):
        result = np.array(result)
    if isinstance(result, np.ndarray):
        pointer = result.__array_interface__["data"][0]
        for array in arrays:
            if result is array._host:
                return array
            if array._memory.covers(pointer) or _root(result) is _root(array._host):
                return ndarray._of(result, array._memory, array)
        check_dtype(result.dtype)
        root = _root(result)
        if root.base is not None or root.nbytes != result.nbytes:
            root = result = result.copy()
        return ndarray._of(result, Memory(root))
    if isinstance(result, (tuple, list)):
        items = [from_host(item, arrays) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _root(host):
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host


def _leaves(result):
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _leaves(item)]
    return [result] if isinstance(result, ndarray) else []


def run(name, function, args, kwargs, writes=()):
    """Computes with NumPy, as a kernel of the current stream would."""
    arrays = []
    host_args, host_kwargs = to_host(args, arrays), to_host(kwargs, arrays)
    capture = in_use()
    if capture is not None:
        capture.keep(arrays)
        if name in PRODUCTS | OTHER_PRODUCTS:
            refuse_library("cuBLAS")
    busy = [array._memory for array in arrays if not array._memory.is_finished()]
    if name not in VIEWS:
        check_current_device(name, arrays)
    if name not in VIEWS or len(arrays) > 1:
        finish(arrays)
    if name in WAITS:
        wait_on_host(name)
    if name in PRODUCTS and not ledger.computes:
        function = without_values
    result = from_host(_quietly(function, host_args, host_kwargs), arrays)
    used = {id(array._memory) for array in arrays}
    new = [array for array in _leaves(result) if id(array._memory) not in used]
    # The result is a copy, and the function read its input too early.
    if name in VIEWS and new and busy:
        finish(arrays)
        return run(name, function, args, kwargs, writes)
    written = [*_leaves([kwargs.get("out")]), *writes]
    if name in ALLOCATE or (name in VIEWS and not new and not written):
        return result
    check_current_device(name, arrays)
    hosts = [array._host if id(array._memory) not in used else None for array in _leaves(result)]

    def again():
        made = _host_leaves(_quietly(function, host_args, host_kwargs))
        for host, value in zip(hosts, made):
            if host is not None:
                host[...] = value

    n_joined = len(arrays) - len(written) if name in JOIN else 1
    beside = [name] * (n_joined - 1) if n_joined <= 8 else []
    work = {"grain": grain_of(arrays, [*new, *written])}
    if name in PRODUCTS:
        work = {"flops": count_flops(*host_args[:2])}
        beside = launches_beside(host_args[:2], host_kwargs.get("out"))
    if name in DRAWS:
        beside = ["generate"]
    launch(name, arrays, [*new, *written], again, **work)
    for launched in beside:
        launch(launched, arrays, [*new, *written])
    return result


def _quietly(function, args, kwargs):
    with np.errstate(all="ignore"):  # a GPU does not warn
        return function(*args, **kwargs)


def _host_leaves(result):
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _host_leaves(item)]
    return [result] if isinstance(result, (np.ndarray, np.generic)) else []


def finish(arrays):
    """Waits for pending work of other libraries on the arrays."""
    for array in arrays:
        array._memory.finish()


class ndarray:
    """An array in the memory of an imitated GPU."""

    __array_priority__ = 100
    __hash__ = None
    __slots__ = ("__weakref__", "_host", "_memory", "base")

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self.base = None
        if memptr is None:
            self._host = np.empty(shape, check_dtype(dtype), order=order)
            self._memory = Memory(self._host)
        else:
            self._memory = memptr.mem
            offset = memptr.ptr - memptr.mem.ptr
            whole = np.frombuffer(bytes_of(memptr.mem.host), np.uint8)
            self._host = np.ndarray(shape, dtype, whole, offset, strides, order)

    @classmethod
    def _of(cls, host, memory, viewed=None):
        self = object.__new__(cls)
        self._host, self._memory = host, memory
        self.base = viewed if viewed is None or viewed.base is None else viewed.base
        return self

    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    dtype = property(lambda self: self._host.dtype)
    flags = property(lambda self: self._host.flags)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    itemsize = property(lambda self: self._host.itemsize)
    device = property(lambda self: Device(self._memory.device_id))
    T = property(lambda self: self.transpose())
    mT = property(lambda self: self.swapaxes(-1, -2))
    real = property(lambda self: from_host(self._host.real, [self]))
    imag = property(lambda self: from_host(self._host.imag, [self]))

    @property
    def data(self):
        return MemoryPointer(self._memory, self._host.__array_interface__["data"][0])

    @property
    def shape(self):
        return self._host.shape

    @shape.setter
    def shape(self, shape):
        view = self._host.view()
        view.shape = shape
        self._host = view

    @property
    def __cuda_array_interface__(self):
        interface = self._host.__array_interface__
        return {**interface, "version": 3, "stream": get_current_stream().ptr or 1}

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        import cupy

        function = getattr(cupy, ufunc.__name__, None)
        known = (*SCALARS, ndarray, np.ndarray)
        if function is None or not all(isinstance(x, known) for x in inputs):
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        if method != "__call__":
            function = getattr(function, method)
        return function(*inputs, **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        import cupy

        if not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        try:
            path = [*func.__module__.split(".")[1:], func.__name__]
            return functools.reduce(getattr, path, cupy)(*args, **kwargs)
        except AttributeError:
            return NotImplemented

    # ---- Copies between host and device.

    def get(self, stream=None, order="C", out=None, blocking=True):
        with self.device:
            stream = stream or get_current_stream()
            _machine.refuse_to_wait([stream])
            ledger.launches["get", place()] += 1
            self._memory.access(stream, writes=False)
            if blocking:
                wait_on_host("get", stream)
        if out is None:
            return np.array(self._host, order=order)
        if not isinstance(out, np.ndarray):
            raise TypeError(f"Only numpy.ndarray can be obtained from cupy.ndarray, not {out!r}")
        if out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(f"out: {out.shape} {out.dtype} instead of {self.shape} {self.dtype}")
        out[...] = self._host
        return out

    def set(self, arr, stream=None):
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        refuse_copy()
        ledger.launches["set", place()] += 1
        with self.device:
            self._memory.access(stream or get_current_stream(), writes=True)
        self._host[...] = arr

    def _value(self, what):
        with self.device:
            stream = get_current_stream()
            _machine.refuse_to_wait([stream])
            self._memory.access(stream, writes=False)
            wait_on_host(what, stream)
        return self._host

    def item(self, *args):
        return self._value("item").item(*args)

    def tolist(self):
        return self._value("tolist").tolist()

    def tobytes(self, order="C"):
        return self._value("tobytes").tobytes(order)

    def __bool__(self):
        return bool(self._value("bool"))

    def __int__(self):
        return int(self._value("int"))

    def __float__(self):
        return float(self._value("float"))

    def __complex__(self):
        return complex(self._value("complex"))

    def __format__(self, spec):
        host = self._value("format")
        return format(host if host.ndim else host[()], spec)

    def __repr__(self):
        return repr(self._host)

    def __str__(self):
        return str(self._host)

    def __reduce__(self):
        import cupy

        return cupy.array, (self.get(),)

    def copy(self, order="C"):
        """Copies the array to the current device."""
        if self._memory.device_id == _machine.here.device:
            return run("copy", lambda host: host.copy(order), (self,), {})
        refuse_copy()
        finish([self])
        copied = from_host(self._host.copy(order))
        _machine.copy_between_devices(self._memory, copied._memory)
        return copied

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        with self.device:
            return self.copy()

    # ---- Elements.

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        for item in index if isinstance(index, tuple) else [index]:
            if getattr(item, "ndim", 0) > 0 and item.dtype.kind == "b":
                wait_on_host("mask")
        return run("getitem", _get, (self, index), {})

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray):
            if value.ndim == 0:
                value = value.item()
            elif isinstance(index, slice) and index == slice(None):
                return self.set(value)
        if not isinstance(value, (*SCALARS, ndarray)):
            raise TypeError(f"Unsupported type {type(value)} (cupy.ndarray.__setitem__)")
        run("setitem", _set, (self, index, value), {}, writes=(self,))

    def view(self, dtype=None, type=None):
        return run("view", lambda host: host.view(dtype or host.dtype), (self,), {})

    def dot(self, b, out=None):
        import cupy

        return cupy.dot(self, b, out)

    def scatter_add(self, slices, value):
        warnings.warn("`ndarray.scatter_add` is deprecated: cupy.add.at", DeprecationWarning, 2)
        run("scatter_add", np.add.at, (self, slices, value), {}, writes=(self,))


@contextlib.contextmanager
def _refused_if_out_of_bounds(index):
    """Refuses array indices out of bounds, which CuPy wraps around without an error."""
    try:
        yield
    except IndexError as error:
        items = index if isinstance(index, tuple) else [index]
        if any(isinstance(item, (np.ndarray, list)) for item in items):
            raise OutOfBoundsError(f"CuPy would take another element: {error}") from error
        raise


def _get(host, index):
    with _refused_if_out_of_bounds(index):
        result = host[index]
        if isinstance(result, np.generic):  # an element of CuPy's array is a view
            result = host[(*(index if isinstance(index, tuple) else [index]), ...)]
        return result


def _set(host, index, value):
    with _refused_if_out_of_bounds(index):
        host[index] = value


def _operate(name, function, reverse, self, other):
    if isinstance(other, np.ndarray):
        raise TypeError(f"Unsupported type {type(other)} (cupy.ndarray.{name})")
    if not isinstance(other, (*SCALARS, ndarray)):
        return NotImplemented
    return run(name, function, (other, self) if reverse else (self, other), {})


def _operate_in_place(name, function, self, other):
    if isinstance(other, np.ndarray) or not isinstance(other, (*SCALARS, ndarray)):
        raise TypeError(f"Unsupported type {type(other)} (cupy.ndarray.{name})")
    # NumPy's in-place operators return a new object for an array without dimensions.
    run(name, functools.partial(_discard, function), (self, other), {}, writes=(self,))
    return self


def _discard(function, x, y):
    function(x, y)


def _operators():
    """Yields (name, method) for all operators in the contract."""
    binary = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()
    yield "__divmod__", lambda self, other: (self // other, self % other)
    for word in [*binary, "lt", "le", "eq", "ne", "gt", "ge"]:
        function = getattr(operator, f"__{word}__")
        in_place = getattr(operator, f"__i{word}__", None)
        for name, implementation, *bound in (
            (f"__{word}__", _operate, function, False),
            (f"__r{word}__", _operate, function, True),
            (f"__i{word}__", _operate_in_place, in_place),
        ):
            if name in CONTRACT["cupy.ndarray"]:
                yield name, functools.partial(implementation, name, *bound)
    for word in ["neg", "pos", "abs", "invert"]:
        function = getattr(operator, word)
        yield f"__{word}__", functools.partial(_operate_unary, word, function)


def _operate_unary(name, function, self):
    return run(name, function, (self,), {})


def _call_method(name, writes, self, *args, **kwargs):
    check_parameters("cupy.ndarray", name, args, kwargs)
    refuse_host_arrays(f"ndarray.{name}", [*args, *kwargs.values()])
    function = functools.partial(_apply, name)
    return run(name, function, (self, *args), kwargs, writes=(self,) if writes else ())


def _apply(name, host, *args, **kwargs):
    return getattr(host, name)(*args, **kwargs)


def _as_method(function):
    """Returns a plain function, which becomes a method when it is looked up on an object."""
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


for _name, _function in _operators():
    setattr(ndarray, _name, _as_method(_function))
for _name in CONTRACT["cupy.ndarray"]:
    if not (_name.startswith("_") or hasattr(ndarray, _name)) and hasattr(np.ndarray, _name):
        _writes = _name in ("fill", "sort", "partition", "put")
        setattr(ndarray, _name, _as_method(functools.partial(_call_method, _name, _writes)))
