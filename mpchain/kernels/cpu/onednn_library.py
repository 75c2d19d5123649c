"""Finds and loads Intel's oneDNN: its C interface, an engine, a stream and its threads.

The library is the wheel ``onednn-cpu-gomp`` 2023.2.0 (oneDNN 3.2). It uses the threads of OpenMP
(libgomp). NumPy's BLAS has threads too, and the threads of both libraries busy-wait for more work:
if calls alternate, the waiting threads of one library keep the threads of the other library off the
cores. With several threads, oneDNN therefore also computes products of single precision for which
it is not faster.
"""

import contextlib
import ctypes
import functools
import os
import site
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mpchain.kernels import thresholds

_VERSION = (3, 2)
_CPU, _IN_ORDER = 1, 1
_ANY = 1
BFLOAT16, FLOAT32 = 2, 3
# the values of dnnl_cpu_isa_avx512_core and dnnl_cpu_isa_avx512_core_bf16; later instruction sets
# include their bits
_AVX512, _AVX512_BF16 = 0x27, 0xE7
_DESTRUCTORS = (
    ("primitive_desc_create", "dnnl_primitive_desc_destroy"),
    ("primitive_create", "dnnl_primitive_destroy"),
    ("memory_desc_create", "dnnl_memory_desc_destroy"),
    ("memory_create", "dnnl_memory_destroy"),
    ("attr_create", "dnnl_primitive_attr_destroy"),
    ("post_ops_create", "dnnl_post_ops_destroy"),
)
# With this setting, a thread polls for more work for 0.8 to 3 ms, depending on the processor. This
# is longer than most pauses within a step; libgomp's default is six times as long.
_SPINS = "50000"
_NO_STACK = 2  # SS_DISABLE of signal.h
_signal_stack = ctypes.create_string_buffer(1 << 16)


class _Stack(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Library:
    """The loaded library, with an engine and a stream. Its methods raise RuntimeError if a call
    fails.

    Args:
        path: the path of the shared library.

    Attributes:
        c: the library's functions.
        sgemm: the function for matrix products, whose arguments must have C's types.
        threads: the number of threads that the library uses.
        lock: the lock that is held while memory of :meth:`arena` is in use.
        openmp: the OpenMP runtime of the library.
        engine, stream: the objects of the library that computations need.
        buffer, begin: the memory of :meth:`arena`, and its address.

    Raises:
        OSError: the library cannot be loaded, has another version, or may not use its threads.

    Example:
        >>> loaded = load()
        >>> n_threads = loaded.threads if isinstance(loaded, Library) else 0
    """

    def __init__(self, path: str):
        with _short_waits():
            self.c = ctypes.CDLL(path)
        self.c.dnnl_version.restype = ctypes.POINTER(_Version)
        version = self.c.dnnl_version().contents
        if (version.major, version.minor) != _VERSION:
            raise OSError(f"it is version {version.major}.{version.minor}, not 3.2")
        self.c.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self.c.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        # This function object converts no arguments, because conversion takes as long as a small
        # product.
        self.sgemm = self.c["dnnl_sgemm"]
        # This is the OpenMP runtime that the library was loaded with.
        self.openmp = ctypes.CDLL("libgomp.so.1")
        self._threads = self.openmp.omp_get_max_threads()
        if self.threads > 1 and self.openmp.omp_get_dynamic():
            raise OSError("OMP_DYNAMIC may leave it fewer threads than it waits for")
        if self.threads > self.openmp.omp_get_thread_limit():
            raise OSError("OMP_THREAD_LIMIT leaves it fewer threads than it waits for")
        self.lock = threading.Lock()
        self.buffer, self.begin = np.empty(0, np.uint8), 0
        self.engine = self.make("dnnl_engine_create", ctypes.c_int(_CPU), ctypes.c_size_t(0))
        self.stream = self.make("dnnl_stream_create", self.engine, ctypes.c_int(_IN_ORDER))

    @functools.cached_property
    def has_avx512(self) -> bool:
        """Whether the library multiplies 16 numbers of single precision at once."""
        return self.c.dnnl_get_effective_cpu_isa() & _AVX512 == _AVX512

    @functools.cached_property
    def multiplies_bfloat16(self) -> bool:
        """Whether the library uses instructions of this processor for products of bfloat16."""
        return self.c.dnnl_get_effective_cpu_isa() & _AVX512_BF16 == _AVX512_BF16

    def make(self, name: str, *args: Any) -> ctypes.c_void_p:
        """Calls a function that returns an object through its first argument."""
        made = ctypes.c_void_p()
        self.check(name, getattr(self.c, name)(ctypes.byref(made), *args))
        return made

    def check(self, name: str, status: int) -> None:
        """Raises RuntimeError for the status of a call that failed."""
        if status:
            raise RuntimeError(f"onednn: {name} failed with status {status}")

    @property
    def threads(self) -> int:
        """The number of threads of the library; setting it clears the remembered choices of
        kernels."""
        return self._threads

    @threads.setter
    def threads(self, n: int) -> None:
        self._threads = n
        thresholds.forget()

    @contextlib.contextmanager
    def limited_to(self, threads: int) -> Iterator[None]:
        """Context manager: this thread's calls use at most ``threads`` threads."""
        before = self.openmp.omp_get_max_threads()
        self.openmp.omp_set_num_threads(threads)
        try:
            yield
        finally:
            self.openmp.omp_set_num_threads(before)

    def without_threads(self) -> None:
        """Makes oneDNN usable in a forked process, where its threads do not exist."""
        self.threads = 1
        self.openmp.omp_set_num_threads(1)
        # The old lock may be held by a thread that does not exist after the fork.
        self.lock = threading.Lock()

    def arena(self, size: int) -> int:
        """Returns the address of at least ``size`` bytes of memory that all convolutions share in
        turn."""
        if size > self.buffer.size:
            self.buffer = np.empty(size + 64, np.uint8)
            self.begin = self.buffer.ctypes.data
        return self.begin

    def run(self, steps: Iterable[tuple[ctypes.c_void_p, tuple[int, Any]]]) -> None:
        """Computes primitives with their arguments (see :meth:`Objects.arguments`) in order."""
        for primitive, arguments in steps:
            status = self.c.dnnl_primitive_execute(primitive, self.stream, *arguments)
            self.check("dnnl_primitive_execute", status)
        self.check("dnnl_stream_wait", self.c.dnnl_stream_wait(self.stream))


class _Argument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("memory", ctypes.c_void_p))


def dims(values: Iterable[int]) -> Any:
    """Returns one number per axis as oneDNN's C type.

    Example:
        >>> list(dims([2, 3]))[:3]
        [2, 3, 0]
    """
    return (ctypes.c_int64 * 12)(*values)


class Objects:
    """Objects of the library, which live as long as this Python object.

    Example:
        >>> if not isinstance(load(), str):
        ...     described = Objects(load()).describe((2, 3), (3, 1))
    """

    def __init__(self, onednn: Library):
        self.onednn, self._made = onednn, []

    def make(self, name: str, *args: Any) -> ctypes.c_void_p:
        """Returns the object that a function of the library creates."""
        made = self.onednn.make(name, *args)
        destroy = next(destroy for word, destroy in _DESTRUCTORS if word in name)
        self._made.append((destroy, made))
        return made

    def __del__(self):
        for destroy, made in reversed(self._made):
            destroy = getattr(self.onednn.c, destroy)
            destroy(made)

    def describe(
        self,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        dtype: int = FLOAT32,
    ) -> ctypes.c_void_p:
        """Returns the description of an array.

        Args:
            shape: the shape of the array.
            strides: the strides in elements; None lets the library choose a layout.
            dtype: the library's code of the dtype: :data:`FLOAT32` or :data:`BFLOAT16`.
        """
        args = ctypes.c_int(len(shape)), dims(shape), ctypes.c_int(dtype)
        if strides is None:
            return self.make("dnnl_memory_desc_create_with_tag", *args, ctypes.c_int(_ANY))
        return self.make("dnnl_memory_desc_create_with_strides", *args, dims(strides))

    @staticmethod
    def arguments(pairs: Iterable[tuple[int, ctypes.c_void_p]]) -> tuple[int, Any]:
        """Returns the C array of arguments for :meth:`Library.run`, given pairs of an argument's
        kind and its memory object."""
        given = [_Argument(kind, memory.value) for kind, memory in pairs]
        return len(given), (_Argument * len(given))(*given)


@contextlib.contextmanager
def _short_waits():
    """Context manager: if OpenMP is loaded within the block, its threads wait only briefly for
    work. Settings of the user take precedence."""
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]  # child processes must not inherit this variable


def _give_signals_a_stack():
    """Gives this thread other memory for the handlers of signals, which Python's handlers use.

    dnnl_sgemm moves the stack pointer to its own memory. A handler that ran there would overwrite
    memory of the C library.
    """
    sigaltstack, present = ctypes.CDLL(None).sigaltstack, _Stack()
    if not sigaltstack(None, ctypes.byref(present)) and present.flags & _NO_STACK:
        new = _Stack(ctypes.addressof(_signal_stack), 0, ctypes.sizeof(_signal_stack))
        sigaltstack(ctypes.byref(new), None)


@functools.cache
def load() -> Any:
    """Returns the :class:`Library`, which is loaded at the first call, or the reason (str) why it
    is unavailable.

    Example:
        >>> is_installed = isinstance(load(), Library)
    """
    if not hasattr(os, "register_at_fork"):
        return "onednn-cpu-gomp exists only for Linux"
    for folder in (sys.prefix, site.getuserbase()):
        path = os.path.join(folder, "lib", "libdnnl.so.3")
        if os.path.exists(path):
            try:
                loaded = Library(path)
                _give_signals_a_stack()
                os.register_at_fork(after_in_child=loaded.without_threads)
                return loaded
            except (OSError, RuntimeError) as error:
                return f"{path} cannot be used: {error}"
    return "onednn-cpu-gomp is not installed (pip install 'mpchain[cpu]')"


def why_absent() -> str | None:
    """Returns the reason why the library cannot be used; None if it can be used.

    Example:
        >>> reason = why_absent()  # such as 'onednn-cpu-gomp is not installed ...'
    """
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def n_threads() -> int:
    """Returns the number of threads that the library uses. The library must be installed.

    Example:
        >>> is_alone = why_absent() is None and n_threads() == 1
    """
    return load().threads
