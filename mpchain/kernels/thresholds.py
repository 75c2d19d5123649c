"""The sizes from which on another implementation is faster, as measured on one machine.

They count elements, multiplications or bytes. None changes what is computed; they only choose the
kernel and the parts of the work. They were measured on two cores of an x86 processor with AVX-512.
``python -m tests.benchmarks.thresholds`` measures the main ones again, and prints the times of both
implementations at several sizes; for the others, the headings below name the benchmark.

Example:
    >>> from mpchain.kernels import thresholds
    >>> with thresholds.using(loop=0):
    ...     thresholds.loop
    0
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

_caches = []  # functions that clear caches


def remembered(maxsize: int) -> Callable[[Callable], Callable]:
    """Decorator: caches a function's results until the thresholds or the number of threads change.

    Args:
        maxsize: the maximum number of results that are kept.

    Example:
        >>> @remembered(maxsize=8)
        ... def is_large(n):
        ...     return n > loop
        >>> is_large(1)
        False
    """

    def decorate(function):
        cached = functools.lru_cache(maxsize)(function)
        _caches.append(cached.cache_clear)
        return cached

    return decorate


def forgets(choices: dict) -> None:
    """Registers a dictionary that is cleared when a threshold or the number of threads changes.

    Example:
        >>> choices = {"a": 1}
        >>> forgets(choices)
        >>> with using(loop=0):
        ...     choices
        {}
    """
    _caches.append(choices.clear)


def forget() -> None:
    """Clears all caches, because something that they depend on has changed.

    Example:
        >>> forget()
    """
    for clear in _caches:
        clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # the child process uses another number of threads


@contextlib.contextmanager
def using(**values: Any) -> Iterator[None]:
    """Context manager: sets thresholds for the whole process, and restores them.

    Elementwise functions that have already been called keep the :data:`loop` of their first call.

    Args:
        values: numbers by name.

    Raises:
        AttributeError: there is no number of that name.

    Example:
        >>> from mpchain.kernels import thresholds
        >>> with thresholds.using(compiled_loop=0, compiled_step=0):
        ...     thresholds.compiled_loop
        0
    """
    before = put(**values)
    try:
        yield
    finally:
        put(**before)


def put(**values: Any) -> dict[str, Any]:
    """Sets thresholds for the whole process; returns their previous values.

    Args:
        values: numbers by name.

    Raises:
        AttributeError: there is no number of that name.

    Example:
        >>> before = put(loop=0)
        >>> put(**before)
        {'loop': 0}
    """
    before = {name: _number(name) for name in values}
    globals().update(values)
    forget()
    return before


def _number(name):
    if name.startswith("_") or callable(globals().get(name)) or name not in globals():
        raise AttributeError(f"thresholds.using: there is no number {name!r}")
    return globals()[name]


# Loops that numba compiles, by ``python -m tests.benchmarks.thresholds loop compiled``.

loop = 1 << 16
"""Elements of an array from which on a formula is one loop instead of several passes of NumPy."""

loop_row = 32
"""Elements of a row from which on a formula of arrays that broadcast is one loop."""

compiled_loop = 1 << 26
"""Elements after which a formula has cost about as much as compiling it: a second or two."""

special_loop = 1 << 10
"""Elements of an array from which on special functions, such as that of errors, are compiled."""

compiled = 1 << 16
"""Elements from which on softmax, reductions and the like are compiled."""

compiled_images = 1 << 13
"""The same of batch normalization and pooling, which take NumPy several passes."""

compiled_samples = 1 << 12
"""The same of normalization of samples, which are rows."""

compiled_rows = 1 << 13
"""The same of sums of rows, for which NumPy adds one element at a time."""

sum_part = 1 << 16
"""Elements of each part of a sum over rows, which the threads share."""

light_loop = 4
"""Elements of a quick loop that take as long as one element of other loops."""

threads = 1 << 18
"""Elements with which a thread of a loop is busy for longer than it takes to wake it."""

# Steps of optimizers, by ``python -m tests.benchmarks.optimizers``.

compiled_step = 1 << 26
"""Elements after which a step has cost about as much as compiling it."""

small, gathered = 1024, 1 << 14
"""Most elements of arrays that are copied into a gathered one, and its elements, which stay in the
cache: calls cost more than copies."""

worth_gathering = (2, 16)
"""Least small arrays that are gathered, of rules with states and of rules without."""

step_block = 1 << 17
"""Bytes of a block of an array that stays in the cache through a step."""

# NumPy, by ``python -m tests.benchmarks.thresholds few_rows`` and ``tests.benchmarks.compare``.

few_rows, rearranged = range(4, 49), 1 << 18
"""Rows of x, and elements of W, for which BLAS spends x W^T on rearranging W."""

few_rows_of_flat, rearranged_flat = range(16, 49), 1 << 14
"""The same for W with no more rows than columns."""

long_sum, sum_row = 1 << 12, 1 << 10
"""Elements from which on a sum is one of rows, and those of such a row, whose sum is as exact as
NumPy's."""

pointwise_weights, pointwise_pixels = 1 << 16, 32
"""Elements of 1x1 filters, and pixels of a sample, for which one product of all samples pays."""

logistic_block = 1 << 16
"""Elements of a block of the logistic function, whose steps stay in the cache."""

random_chunk = 1 << 13
"""Blocks of random words that stay in the cache through all rounds."""

scaled = 1 << 16
"""Elements of an array from which on shifting and scaling goes sample by sample."""

# oneDNN, by ``python -m tests.benchmarks.thresholds product product_by_rows`` and
# ``tests.benchmarks.compare``.

shared = 1 << 18
"""Multiplications from which on OpenBLAS uses its threads, so oneDNN's compute it instead."""

product, product_by_rows = 1 << 21, 1 << 20
"""Multiplications of a product, and of x W^T, that oneDNN gains more on than calling it costs."""

thin_rows, thin_weights = range(2, 65), 1 << 18
"""Rows, and elements of the other matrix, of thin products that oneDNN computes faster."""

sgemm_rows, primitive_columns = 12, 8
"""Most rows of x, and columns, for which dnnl_sgemm computes x W^T: it rearranges W for more."""

stacked = 8
"""Least rows and columns of matrices in stacks that oneDNN multiplies."""

channels = {"output": 1, "input": 8, "filter": 1}
"""Least channels of a convolution: with fewer, the blocks of the library are hardly filled."""

channels_of_groups = 3
"""The same in groups of more than one channel."""

many_channels, worth_filters = 128, {"output": 16, "input": 48, "filter": 4}
"""With many channels, pixels times this must outnumber them, or filters outweigh the windows."""

channels_last = 8
"""Channels of a result that is laid out with channels last: NumPy computes by rows of them."""

convolution_threads = 1 << 22
"""Multiplications below which waking a thread takes longer than what it could do."""

pointwise, sample_pixels = 1 << 21, 128
"""Multiplications of a pointwise convolution, and pixels of a sample with a product of its own."""

# Winograd's tiles, by ``python -m tests.benchmarks.thresholds tiles``.

tiles = 1 << 24
"""Multiplications of a convolution. Infinity leaves all convolutions to sums of products, whose
errors are smaller: reproducible communicators and old programs set it."""

tile_channels = 32
"""Channels that are summed at once: this halves the errors of sums of 256, for 7 to 10 % of the
time that tiles gain. Where there are more than 128, twice as many, as filters are read for each
part."""

tiles_at_once = 1 << 20
"""Elements of tiles for each thread that are worked on in one go."""

of_tile, of_tile_for_threads, of_filter = 25, 45, 70
"""Multiplications that take as long as reading and writing an element of a tile, or of filters."""

saved = 0.1
"""The part of the multiplications that tiles must save."""
