"""Intel's oneDNN: convolutions and products of matrices of single precision, by its C interface.

The library is the wheel ``onednn-cpu-gomp`` 2023.2.0 (oneDNN 3.2), the numbers below are those of
its headers. It chooses blocked layouts; what is given and returned is plain (N, C, ...), so a call
is up to two reorders in, the convolution, and one out. Those of one geometry are made once.

Its threads are those of OpenMP (libgomp). NumPy's BLAS has threads too, and both kinds wait in a
loop for more work: where they take turns, each keeps the other from its core. So with several
threads all large products are oneDNN's, and NumPy's BLAS keeps its threads for other programs.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import os
import site
import sys
import threading
from collections.abc import Callable

import numpy as np

from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.kernels.numpy_cpu import refuse_unless_few_rows
from mpchain.kernels.window import Window
from mpchain.recording import empty
from mpchain.typing import Array

_VERSION = (3, 2)
_FLOAT32 = 3
_SINGLE = np.dtype(np.float32)  # comparing dtypes with it is faster than with the type
_ANY = 1
_PLAIN = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7}  # the layout a, ab, abc, ... by number of axes
_CPU, _IN_ORDER, _FORWARD_TRAINING, _DIRECT = 1, 1, 64, 1
_SRC, _DST, _WEIGHTS = 1, 17, 33
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 129, 145, 161
_QUERIES = {_SRC: 129, _DIFF_SRC: 130, _WEIGHTS: 131, _DIFF_WEIGHTS: 132, _DST: 133, _DIFF_DST: 134}
_LEAST_CHANNELS = {"output": 1, "input": 8, "filter": 1}
_LEAST_CHANNELS_OF_GROUPS = 3
_MANY_CHANNELS = 128
_LEAST_WINDOWS = {"output": 16, "input": 1, "filter": 64}  # with many channels
_FEW_ROWS, _MANY_WEIGHTS = range(4, 65), 1 << 18
_WORTH_REARRANGING = 9  # rows of x, in x W^T
# Multiplications of a product. From the first number on, OpenBLAS uses its threads; from the
# second, oneDNN gains more on one thread than calling it costs.
_SHARED, _LARGE = 1 << 18, 1 << 21
# With fewer, waking a thread takes longer than what it could do. It waits for 0.5 ms for more work
# (libgomp's own number is 30 times as large), which is longer than the pauses within a step.
_WORTH_THREADS, _SPINS = 1 << 22, "10000"

# For each open slot the kinds of the two operands, in the order of our kernels, and of the result.
_KINDS = {
    "output": (_SRC, _WEIGHTS, _DST),
    "input": (_DIFF_DST, _WEIGHTS, _DIFF_SRC),
    "filter": (_SRC, _DIFF_DST, _DIFF_WEIGHTS),
}
_ARRAYS = dict(zip((_SRC, _DIFF_SRC, _WEIGHTS, _DIFF_WEIGHTS, _DST, _DIFF_DST), "xxWWyy"))
_DESTRUCTORS = (
    ("primitive_desc_create", "dnnl_primitive_desc_destroy"),
    ("primitive_create", "dnnl_primitive_destroy"),
    ("memory_desc_create", "dnnl_memory_desc_destroy"),
    ("memory_create", "dnnl_memory_destroy"),
)


class _Argument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


def _dims(values):
    return (ctypes.c_int64 * 12)(*values)


class _Library:
    """The loaded library, with an engine and a stream; every call is checked."""

    def __init__(self, path):
        with _short_waits():
            self.c = ctypes.CDLL(path)
        self.c.dnnl_version.restype = ctypes.POINTER(_Version)
        version = self.c.dnnl_version().contents
        if (version.major, version.minor) != _VERSION:
            raise OSError(f"it is version {version.major}.{version.minor}, not 3.2")
        self.c.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self.c.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        operand = [ctypes.c_void_p, ctypes.c_int64]  # address, elements from one row to the next
        self.c.dnnl_sgemm.argtypes = [
            *[ctypes.c_char] * 2,
            *[ctypes.c_int64] * 3,
            ctypes.c_float,
            *operand * 2,
            ctypes.c_float,
            *operand,
        ]
        # The OpenMP runtime that it was loaded with.
        self.openmp = ctypes.CDLL("libgomp.so.1")
        self.threads = self.openmp.omp_get_max_threads()
        if self.threads > 1 and self.openmp.omp_get_dynamic():
            raise OSError("OMP_DYNAMIC may leave it fewer threads than it waits for")
        if self.threads > self.openmp.omp_get_thread_limit():
            raise OSError("OMP_THREAD_LIMIT leaves it fewer threads than it waits for")
        self.lock = threading.Lock()
        self.buffer = np.empty(0, np.uint8)
        self.engine = self.make("dnnl_engine_create", ctypes.c_int(_CPU), ctypes.c_size_t(0))
        self.stream = self.make("dnnl_stream_create", self.engine, ctypes.c_int(_IN_ORDER))

    def make(self, name, *args):
        """Calls a function that returns an object through its first argument."""
        made = ctypes.c_void_p()
        self.check(name, getattr(self.c, name)(ctypes.byref(made), *args))
        return made

    def check(self, name, status):
        if status:
            raise RuntimeError(f"onednn: {name} failed with status {status}")

    @contextlib.contextmanager
    def limited_to(self, threads):
        """Context manager: this thread's calls use that many threads."""
        before = self.openmp.omp_get_max_threads()
        self.openmp.omp_set_num_threads(threads)
        try:
            yield
        finally:
            self.openmp.omp_set_num_threads(before)

    def without_threads(self):
        """Makes it usable in a forked process, which has none of the threads."""
        self.threads = 1
        self.openmp.omp_set_num_threads(1)
        self.lock = threading.Lock()  # of another thread, perhaps, which is no more
        _convolution.cache_clear()  # they wait for the number of threads that they were made for

    def arena(self, memories):
        """Returns addresses for memories of given sizes, which all convolutions use in turn."""
        starts = [0, *itertools.accumulate(-(-size // 64) * 64 for _, size in memories)]
        if starts[-1] > self.buffer.size:
            self.buffer = np.empty(starts[-1] + 64, np.uint8)
        begin = self.buffer.ctypes.data
        return [ctypes.c_void_p(begin + start) for start in starts[:-1]]


@contextlib.contextmanager
def _short_waits():
    """Context manager: OpenMP, if it is loaded now, waits briefly; the user's settings win."""
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]  # which other programs do not inherit


@functools.cache
def _library():
    """Returns the library, or the reason why it is unavailable (str)."""
    if os.name != "posix":
        return "onednn-cpu-gomp exists for Linux alone"
    for folder in (sys.prefix, site.getuserbase()):
        path = os.path.join(folder, "lib", "libdnnl.so.3")
        if os.path.exists(path):
            try:
                library = _Library(path)
                os.register_at_fork(after_in_child=library.without_threads)
                return library
            except (OSError, RuntimeError) as error:
                return f"{path} cannot be used: {error}"
    return "onednn-cpu-gomp is not installed (pip install 'mpchain[cpu]')"


class _Convolution:
    """A convolution, or one of its adjoints, of one geometry, ready to be run.

    Args:
        library: the library.
        operation: ``'output'``, ``'input'`` or ``'filter'``: the slot that is open.
        shapes: of x, W and y.
        window: the geometry.
    """

    def __init__(self, library, operation, shapes, window):
        self.library = library
        self.made = []
        self.shapes = shapes
        work = math.prod(shapes["y"]) * math.prod(shapes["W"][-1 - len(window.ksize) :])
        self.threads = library.threads if work >= _WORTH_THREADS else 1
        with library.limited_to(self.threads):
            self._prepare(operation, window)

    def _prepare(self, operation, window):
        descriptor = self._descriptor(operation, window)
        primitive = self._make("dnnl_primitive_create", descriptor)
        kinds = _KINDS[operation]
        self.plain, self.blocked = [], []  # memories of our arrays; of the arena, with their sizes
        first, second, result = (self._argument(descriptor, kind) for kind in kinds)
        memories = (first[0], second[0], result[0])
        reorders = [reorder for _, reorder in (first, second) if reorder]
        self.steps = [*reorders, (primitive, _arguments(zip(kinds, memories)))]
        if result[1]:
            self.steps.append(result[1])
        self.result_shape = self.shapes[_ARRAYS[kinds[2]]]

    def _make(self, name, *args):
        made = self.library.make(name, *args)
        destroy = next(destroy for word, destroy in _DESTRUCTORS if word in name)
        self.made.append((destroy, made))
        return made

    def __del__(self):
        for destroy, made in reversed(self.made):
            destroy = getattr(self.library.c, destroy)
            destroy(made)

    def _describe(self, shape, layout):
        args = ctypes.c_int(len(shape)), _dims(shape), ctypes.c_int(_FLOAT32), ctypes.c_int(layout)
        return self._make("dnnl_memory_desc_create_with_tag", *args)

    def _descriptor(self, operation, window):
        x, W, y = (self._describe(self.shapes[name], _ANY) for name in "xWy")
        spans = [(k - 1) * d + 1 for k, d in zip(window.ksize, window.dilate)]
        axes = zip(window.out_size, window.stride, spans, window.in_size, window.pad)
        # What cover_all adds at the end; without it, a rest at the end is left out by itself.
        ends = [max((o - 1) * s + span - size - p, p) for o, s, span, size, p in axes]
        dilates = [d - 1 for d in window.dilate]
        geometry = [_dims(sizes) for sizes in (window.stride, dilates, window.pad, ends)]
        engine, direct = self.library.engine, ctypes.c_int(_DIRECT)
        forward = self._make(
            "dnnl_convolution_forward_primitive_desc_create",
            *(engine, ctypes.c_int(_FORWARD_TRAINING), direct, x, W, None, y, *geometry, None),
        )
        if operation == "output":
            return forward
        if operation == "input":
            name = "dnnl_convolution_backward_data_primitive_desc_create"
            return self._make(name, engine, direct, x, W, y, *geometry, forward, None)
        name = "dnnl_convolution_backward_weights_primitive_desc_create"
        return self._make(name, engine, direct, x, W, None, y, *geometry, forward, None)

    def _argument(self, descriptor, kind):
        """Returns the memory that the primitive uses, and the reorder from or to our array's."""
        c, engine, shape = self.library.c, self.library.engine, self.shapes[_ARRAYS[kind]]
        plain = self._describe(shape, _PLAIN[len(shape)])
        chosen = ctypes.c_void_p(c.dnnl_primitive_desc_query_md(descriptor, _QUERIES[kind], 0))
        ours = self._make("dnnl_memory_create", plain, engine, None)
        self.plain.append(ours)
        if c.dnnl_memory_desc_equal(plain, chosen):
            return ours, None
        theirs = self._make("dnnl_memory_create", chosen, engine, None)
        self.blocked.append((theirs, c.dnnl_memory_desc_get_size(chosen)))
        pair, described = (ours, theirs), (plain, engine, chosen, engine)
        if kind in (_DST, _DIFF_SRC, _DIFF_WEIGHTS):
            pair, described = (theirs, ours), (chosen, engine, plain, engine)
        reorder = self._make("dnnl_reorder_primitive_desc_create", *described, None)
        primitive = self._make("dnnl_primitive_create", reorder)
        return theirs, (primitive, _arguments(zip((_SRC, _DST), pair)))

    def __call__(self, first, second):
        result = empty(self.result_shape, np.float32)
        library, c = self.library, self.library.c
        arrays = [np.ascontiguousarray(first), np.ascontiguousarray(second), result]
        with library.lock, library.limited_to(self.threads):
            for memory, array in zip(self.plain, arrays):
                c.dnnl_memory_set_data_handle(memory, ctypes.c_void_p(array.ctypes.data))
            for memory, pointer in zip(self.blocked, library.arena(self.blocked)):
                c.dnnl_memory_set_data_handle(memory[0], pointer)
            for primitive, (n, arguments) in self.steps:
                status = c.dnnl_primitive_execute(primitive, library.stream, n, arguments)
                library.check("dnnl_primitive_execute", status)
            library.check("dnnl_stream_wait", c.dnnl_stream_wait(library.stream))
        return result


def _arguments(pairs):
    pairs = [_Argument(kind, memory.value) for kind, memory in pairs]
    return len(pairs), (_Argument * len(pairs))(*pairs)


@functools.lru_cache(maxsize=512)
def _convolution(operation, x_shape, W_shape, y_shape, window):
    groups = window.groups
    if groups > 1:  # oneDNN gives the groups an axis of their own
        W_shape = (groups, W_shape[0] // groups, *W_shape[1:])
    shapes = {"x": x_shape, "W": W_shape, "y": y_shape}
    return _Convolution(_library(), operation, shapes, window)


def why_absent() -> str | None:
    """Returns why the library cannot be used, None if it can.

    Example:
        >>> reason = why_absent()  # such as 'onednn-cpu-gomp is not installed ...'
    """
    library = _library()
    return library if isinstance(library, str) else None


def _miscounts_slices(window):
    """Returns whether oneDNN's gradient of a 3-D filter is wrong, because of the depth.

    oneDNN counts the slices that each window shares with the input. For the first window past the
    front padding the count is right if that window ends inside the input, or if the padding is at
    most one stride. Otherwise oneDNN reads and writes past the ends of its arrays.
    """
    k, stride, pad, size = (values[0] for values in (*window[:3], window.in_size))
    return 1 < stride < pad and size < k + -pad % stride


def refusal(operation: str, first: Array, second: Array, window: Window) -> str | None:
    """Returns why a convolution is not taken, None if it is.

    Taken is what was measured faster than a matrix product of the windows side by side: all
    channels by themselves; and windows of several elements, with enough channels for the library's
    blocks, but not so many that the filters outweigh the windows. With several threads, so is all
    else that is large: the product would be one of NumPy's BLAS, whose threads are others. Where
    ``config.kernels`` names onednn it takes all that it can, and ``config.autotune`` measures.

    Example:
        >>> refusal("output", np.ones((1, 1, 3)), np.ones((1, 1, 2)), None)
        'not two arrays of single precision'
    """
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return "not two NumPy arrays"
    if first.dtype != np.float32 or second.dtype != np.float32:
        return "not two arrays of single precision"
    if len(window.ksize) > 3:
        return "more than three spatial axes"
    if not first.size or not second.size:
        return "an array without elements"
    if operation == "filter" and len(window.ksize) == 3 and _miscounts_slices(window):
        return "a geometry for which oneDNN 3.2 computes a wrong gradient"
    if config.autotune or "onednn" in (config.kernels or ()):
        return why_absent()
    in_channels = second.shape[1] if operation != "filter" else first.shape[1] // window.groups
    is_depthwise = in_channels == 1 and window.groups > 1
    least = _LEAST_CHANNELS[operation]
    if window.groups > 1:
        least = 1 if is_depthwise else max(least, _LEAST_CHANNELS_OF_GROUPS)
    has_many = in_channels >= _MANY_CHANNELS
    is_slower = (
        window.n_elements == 1
        or in_channels < least
        or (has_many and math.prod(window.out_size) < _LEAST_WINDOWS[operation])
    )
    weights = second.size if operation != "filter" else second.shape[1] * in_channels
    weights *= window.n_elements if operation == "filter" else 1
    is_small = first.shape[0] * math.prod(window.out_size) * weights <= _SHARED
    reason = why_absent()
    if is_slower and (reason or is_small or _library().threads == 1):
        return "not worth it: NumPy is as fast"
    return reason


@reference.convolution_output.kernel("onednn", functools.partial(refusal, "output"))
def _output(x, W, window):
    """y of x * W."""
    y_shape = (x.shape[0], W.shape[0], *window.out_size)
    return _convolution("output", x.shape, W.shape, y_shape, window)(x, W)


@reference.convolution_input.kernel("onednn", functools.partial(refusal, "input"))
def _input(y, W, window):
    """The adjoint of x -> x * W."""
    x_shape = (y.shape[0], W.shape[1] * window.groups, *window.in_size)
    return _convolution("input", x_shape, W.shape, y.shape, window)(y, W)


@reference.convolution_filter.kernel("onednn", functools.partial(refusal, "filter"))
def _filter(x, y, window):
    """The adjoint of W -> x * W."""
    W_shape = (y.shape[1], x.shape[1] // window.groups, *window.ksize)
    W = _convolution("filter", x.shape, W_shape, y.shape, window)(x, y)
    return W if W.shape == W_shape else W.reshape(W_shape)


def _rows(x):
    """Returns whether a matrix is the transpose of one in rows, and their distance in elements."""
    (down, right), n = x.strides, x.itemsize
    if right == n and down >= n * x.shape[1]:
        return (b"N", down // n) if down % n == 0 else None
    is_transposed = down == n and right >= n * x.shape[0] and right % n == 0
    return (b"T", right // n) if is_transposed else None


def _refuse_product(a, b, out=None):
    """Takes what was measured faster than NumPy's BLAS, or what that would use its threads for."""
    if not isinstance(a, np.ndarray) or a.ndim != 2 or b.ndim != 2:
        return "not two NumPy arrays of two axes"
    if a.dtype != _SINGLE or b.dtype != _SINGLE:
        return "not two arrays of single precision"
    work = a.size * b.shape[1]
    if work <= _SHARED:
        return "not worth it: NumPy is as fast"
    library = _library()
    if isinstance(library, str):
        return library
    is_thin = min(a.shape[0], b.shape[1]) in _FEW_ROWS and max(a.size, b.size) >= _MANY_WEIGHTS
    if work < _LARGE and not is_thin and library.threads == 1:
        return "not worth it: NumPy is as fast"
    if _rows(a) is None or _rows(b) is None or (out is not None and not _is_writable(out)):
        return "an array that has gaps"
    return None


def _is_writable(y):
    return y.dtype == np.float32 and (_rows(y) or "?")[0] == b"N"


@reference.product.kernel("onednn", _refuse_product)
def _product(a, b, out=None):
    """a b."""
    y = np.empty((a.shape[0], b.shape[1]), np.float32) if out is None else out
    multiply(a, b, y)
    return y


def multiply(a: Array, b: Array, y: Array, is_sum: bool = False) -> None:
    """Writes the product of two matrices of single precision to ``y``, or adds it.

    Args:
        a, b, y: arrays (n, k), (k, m) and (n, m), whose rows have no gaps in them; those of a and b
            may be columns.
        is_sum: whether to add the product to ``y``.

    Example:
        >>> y = np.empty((2, 4), np.float32)
        >>> if why_absent() is None:
        ...     multiply(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), y)
    """
    (of_a, a_step), (of_b, b_step), (_, y_step) = _rows(a), _rows(b), _rows(y)
    sizes = a.shape[0], b.shape[1], a.shape[1]
    pointers = [x.__array_interface__["data"][0] for x in (a, b, y)]
    operands = pointers[0], a_step, pointers[1], b_step
    library = _library()
    status = library.c.dnnl_sgemm(
        of_a, of_b, *sizes, 1.0, *operands, float(is_sum), pointers[2], y_step
    )
    library.check("dnnl_sgemm", status)


def _refuse_linear(x, W, b):
    if not isinstance(x, np.ndarray):
        return "not NumPy arrays"
    if b is not None and b.dtype != x.dtype:
        return "a bias of another dtype"
    is_large = len(x) >= _WORTH_REARRANGING and x.size * W.shape[0] > _SHARED
    if is_large and refuse_unless_few_rows(x, W, b) is None:
        return "few rows: W x^T is faster"
    return _refuse_product(x, W.T)


@reference.linear.kernel("onednn", _refuse_linear)
def _linear(x, W, b):
    """y = x W^T + b."""
    y = _product(x, W.T)
    if b is not None:
        y += b
    return y


def n_threads() -> int:
    """Returns the number of threads of the library, which must not be absent.

    Example:
        >>> is_alone = why_absent() is None and n_threads() == 1
    """
    return _library().threads


def is_shared(work: int) -> bool:
    """Returns whether NumPy's BLAS would use threads for a product beside those of oneDNN.

    Args:
        work: the number of multiplications.

    Example:
        >>> is_shared(10)
        False
    """
    return work > _SHARED and why_absent() is None and _library().threads > 1


class _Address(ctypes.c_void_p):
    """The address of an array, which it keeps."""

    def __init__(self, array):
        super().__init__(array.ctypes.data)
        self.array = array


def prepared_product(a: Array, b: Array, y: Array) -> tuple[Callable, tuple] | None:
    """Returns a function and its arguments that write the product of two matrices to ``y``.

    They are for calls that are repeated on the same memory, of which none is too small. None if
    the library is absent, and for arrays that it does not take.

    Example:
        >>> prepared_product(np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4)))  # double precision
    """
    arrays = a, b, y
    if any(x.ndim != 2 or x.dtype != np.float32 or not x.size for x in arrays):
        return None
    if why_absent() is not None:
        return None
    (of_a, a_step), (of_b, b_step), (of_y, y_step) = [_rows(x) or (b"", 0) for x in arrays]
    if not of_a or not of_b or of_y != b"N":
        return None
    one, zero, step = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_int64
    sizes = map(step, (a.shape[0], b.shape[1], a.shape[1]))
    operands = _Address(a), step(a_step), _Address(b), step(b_step)
    kinds = ctypes.c_char(of_a), ctypes.c_char(of_b)
    # This function object converts no arguments, which takes as long as a small product.
    function = _library().c["dnnl_sgemm"]
    return function, (*kinds, *sizes, one, *operands, zero, _Address(y), step(y_step))
