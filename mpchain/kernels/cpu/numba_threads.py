"""Divides compiled loops among the threads of OpenMP, which call machine code without a lock.

Threads that call Python wait for one another's lock, which takes longer than a loop over a hundred
thousand elements. Here, numba compiles a function that writes the arguments of a loop to the stack
and calls libgomp, whose threads take the parts of a range one by one and call the loop's machine
code. This function depends on the types of the arguments, not on the loop.
"""

import ctypes
import functools
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.kernels.cpu import loop_cache
from mpchain.kernels.cpu.compiler import as_writable, compile_written_loop, compiled
from mpchain.kernels.cpu.threads import in_parts, n_parts, parallel

_LAUNCH = """
def launch(parallel, loop, n, n_parts, *arguments):
    # {version}
    {divide}(parallel, loop, n, n_parts, arguments)
"""


def in_parts_of(function: Callable, n: int, n_elements: int, *arguments: Any) -> None:
    """Compiles a function, and calls it for parts of range(n) like :func:`run_rows`.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> def square(begin, end, x, y):
        ...     for i in range(begin, end):
        ...         y[i] = x[i] * x[i]
        >>> if load_numba():
        ...     in_parts_of(square, 2, 2, np.array([1.0, 2.0]), np.empty(2))
    """
    run_rows(compiled(function), n, n_elements, *arguments)


def run_rows(loop: Callable, n: int, n_elements: int, *arguments: Any) -> None:
    """Calls a compiled loop for parts of range(n), on several threads if that is faster.

    Args:
        loop: a function that :func:`~mpchain.kernels.cpu.compiler.compile_loop` made. Its first two
            arguments are the begin and the end of a part; a part must not write to memory that
            other parts read or write.
        n, n_elements: see :func:`~mpchain.kernels.cpu.threads.in_parts`.
        arguments: the other arguments of ``loop``.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> def fill(begin, end, x):
        ...     x[begin:end] = 1
        >>> x = np.zeros(4)
        >>> if load_numba():
        ...     run_rows(compiled(fill), 4, 4, x)
    """
    parts = n_parts(n, n_elements)
    if parts == 1:
        loop(0, n, *arguments)
    elif not _launch(False, loop, n, parts, arguments):
        in_parts(lambda begin, end: loop(begin, end, *arguments), n, n_elements)


def run_elements(loop: Callable, n_elements: int, numbers: object, *vectors: Any) -> None:
    """Calls a compiled loop for parts of vectors of the same length, on several threads if that is
    faster.

    Args:
        loop: a function that :func:`~mpchain.kernels.cpu.compiler.compile_loop` made, of
            ``numbers`` and the vectors, which computes each element independently.
        n_elements: see :func:`~mpchain.kernels.cpu.threads.in_parts`.
        numbers: the first argument of ``loop``.
        vectors: arrays (n,).

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> def add(c, x, y):
        ...     for i in range(x.size):
        ...         y[i] = x[i] + c
        >>> y = np.zeros(2)
        >>> run_elements(compiled(add) if load_numba() else add, 2, 0.5, np.ones(2), y)
        >>> y
        array([1.5, 1.5])
    """
    n = vectors[0].size
    parts = n_parts(n, n_elements)
    if parts == 1:
        loop(numbers, *vectors)
    elif not _launch(True, loop, n, parts, (numbers, *vectors)):
        in_parts(lambda i, j: loop(numbers, *[x[i:j] for x in vectors]), n, n_elements)


ways: dict = {}
"""Maps a loop and the kinds of its arguments to a function that calls threads and to the address of
the loop's machine code, or to None if numba cannot compile the function."""


def _launch(is_sliced, loop, n, n_parts, arguments):
    """Calls a loop on threads; returns whether that was possible."""
    arguments = tuple(map(as_writable, arguments))
    key = loop, is_sliced, *map(_kind, arguments)
    if key not in ways:
        try:
            ways[key] = _compile(is_sliced, loop, arguments)
        except Exception as error:  # the compiler of another version of numba may differ
            ways[key] = None
            loop_cache.say(f"threads wait for Python's lock: {type(error).__name__}: {error}")
    if ways[key] is None:
        return False
    launch, address = ways[key]
    launch(_address_of_parallel(), address, n, n_parts, *arguments)
    return True


def _kind(x):
    """Returns what determines the type of an argument for numba."""
    if isinstance(x, np.ndarray):
        return x.dtype, x.ndim, x.flags.num
    return tuple(map(_kind, x)) if type(x) is tuple else type(x)


def _compile(is_sliced, loop, arguments):
    """Returns the function that calls threads, and the address of the loop's machine code."""
    from numba.core import types
    from numba.core.typing.templates import signature

    kinds = tuple(map(loop.typeof_pyval, arguments))
    launch: Any = _compiled_launch(is_sliced)
    launch.compile((*[types.intp] * 4, types.StarArgTuple.from_types(kinds)))
    kinds = kinds if is_sliced else (types.intp, types.intp, *kinds)
    made = loop.get_compile_result(signature(types.none, *kinds))
    return launch, made.library.get_pointer_to_function(made.fndesc.llvm_func_name)


@functools.cache
def _address_of_parallel():
    return ctypes.cast(parallel(), ctypes.c_void_p).value


@functools.cache
def _compiled_launch(is_sliced):
    # The text names this file's contents, because numba's cache does not see that they change.
    version = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    divide = "divide_vectors" if is_sliced else "divide_range"
    text = _LAUNCH.format(version=version, divide=divide)
    known = {"divide_vectors": _divide(True), "divide_range": _divide(False)}
    return compile_written_loop("threads", text, known)


def _divide(is_sliced):
    """Returns a function for numba that calls machine code on the threads of OpenMP.

    Its arguments are the addresses of ``GOMP_parallel`` and of the loop, the length of the range,
    the number of parts, and a tuple of the loop's arguments: those after the begin and the end of a
    part or, with ``is_sliced``, a first argument and vectors of which each part gets a slice.
    """
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    int64, int32 = ir.IntType(64), ir.IntType(32)

    @intrinsic
    def divide(typing_context, address, loop, n, n_parts, arguments):
        def codegen(context, builder, signature, values):
            address, loop, n, n_parts, arguments = values
            held = [int64(0), loop, n, n_parts, *cgutils.unpack_tuple(builder, arguments)]
            of_job = ir.LiteralStructType([x.type for x in held])
            job = cgutils.alloca_once(builder, of_job)
            for i, x in enumerate(held):
                builder.store(x, _field(builder, job, i))
            function = _write_work(context, builder, of_job, signature.args[-1].types, is_sliced)
            of_parallel = ir.FunctionType(
                ir.VoidType(), [function.type, cgutils.voidptr_t, int32, int32]
            )
            # Zero means a team of all threads; libgomp ends threads that a smaller team leaves out.
            call = builder.inttoptr(address, of_parallel.as_pointer())
            data = builder.bitcast(job, cgutils.voidptr_t)
            builder.call(call, [function, data, int32(0), int32(0)])
            return context.get_dummy_value()

        return types.none(*[types.intp] * 4, arguments), codegen

    return divide


def _write_work(context, builder, of_job, kinds, is_sliced):
    """Writes the function that a thread calls, which takes the next part until none is left.

    A job (of the type ``of_job``) holds the next part, the loop, the length of the range, the
    number of parts and the loop's arguments, whose types are ``kinds``.
    """
    from llvmlite import ir
    from numba.core import cgutils, types

    int64 = ir.IntType(64)
    of_function = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
    name = f"parts_of_{builder.function.name}"
    function = ir.Function(builder.module, of_function, name=name)
    function.linkage = "internal"
    first, take, run, end = [function.append_basic_block() for _ in range(4)]
    b = ir.IRBuilder(first)
    job = b.bitcast(function.args[0], of_job.as_pointer())
    fields = range(1, len(of_job.elements))
    address, n, n_parts, *values = [b.load(_field(b, job, i)) for i in fields]
    b.branch(take)
    b.position_at_end(take)
    part = b.atomic_rmw("add", _field(b, job, 0), int64(1), "seq_cst")
    b.cbranch(b.icmp_signed("<", part, n_parts), run, end)
    b.position_at_end(run)
    bounds = [b.sdiv(b.mul(n, i), n_parts) for i in (part, b.add(part, int64(1)))]
    if is_sliced:
        pairs = zip(kinds[1:], values[1:])
        values[1:] = [_slice(context, b, kind, x, *bounds) for kind, x in pairs]
    else:
        kinds, values = (types.intp, types.intp, *kinds), [*bounds, *values]
    of_loop = context.call_conv.get_function_type(types.none, kinds)
    loop = b.inttoptr(address, of_loop.as_pointer())
    context.call_conv.call_function(b, loop, types.none, kinds, values)
    b.branch(take)
    b.position_at_end(end)
    b.ret_void()
    return function


def _field(builder, job, i):
    """Returns the address of a field of a job."""
    from llvmlite import ir

    return builder.gep(job, [ir.IntType(32)(0), ir.IntType(32)(i)])


def _slice(context, b, kind, value, begin, end):
    """Returns elements begin to end of a vector."""
    from numba.core import cgutils
    from numba.np.arrayobj import make_array, populate_array

    x, y = make_array(kind)(context, b, value), make_array(kind)(context, b)
    (stride,) = cgutils.unpack_tuple(b, x.strides)
    data = cgutils.pointer_add(b, x.data, b.mul(begin, stride), x.data.type)
    length, kept = [b.sub(end, begin)], {"meminfo": x.meminfo, "parent": x.parent}
    populate_array(y, data, length, [stride], x.itemsize, **kept)
    return y._getvalue()
