"""The thresholds: sizes from which another implementation is faster, according to measurements on
one machine.

Most thresholds are numbers of elements, multiplications or bytes. They do not change what is
computed, but only which kernel computes it and how the work is divided. They were measured on two
cores of an x86 processor with AVX-512. ``python -m tests.benchmarks.thresholds`` measures the most
important thresholds again, and prints the times of both implementations at several sizes; for the
other thresholds, the headings below name the benchmark.

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

_caches = []  # these functions clear caches


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
    """Clears all caches, because a threshold or the number of threads has changed.

    Example:
        >>> forget()
    """
    for clear in _caches:
        clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # a forked process uses another number of threads


@contextlib.contextmanager
def using(**values: Any) -> Iterator[None]:
    """Context manager: sets thresholds for the whole process, and restores the previous values at
    the end.

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


# ``python -m tests.benchmarks.thresholds loop compiled`` measures these thresholds of loops that
# numba compiles.

loop = 1 << 16
"""The least number of elements of an array for which a formula is computed by one loop instead of
NumPy's passes."""

loop_row = 32
"""The least number of elements of a row for which a formula of arrays that broadcast is computed by
one loop."""

compiled_loop = 1 << 26
"""The number of elements for which NumPy's computation of a formula takes about as long as the
compilation: a second or two."""

loaded = 64
"""The number of loops that are loaded from the cache in the time of one compilation."""

special_loop = 1 << 10
"""The least number of elements of an array for which special functions, such as erf, and
formulas of several operations run as one loop."""

exponential_loop = 1 << 13
"""The least number of elements of an array for which formulas with an exponential run as one loop,
where NumPy does not vectorize exponentials (without AVX-512); elsewhere it is :data:`loop`."""

compiled = 1 << 13
"""The least number of elements of an array for which reductions, softmax, batch normalization,
pooling, sums of rows and similar kernels are compiled."""

compiled_samples = 1 << 12
"""The least number of elements of an array for which the normalization of samples is compiled,
where each sample is a row."""

compiled_cells = 1 << 16
"""The least number of gates of all steps of a recurrent layer for which the steps of its cells are
compiled."""

sum_part = 1 << 16
"""The number of elements in each part of a sum over rows; threads share the parts."""

light_loop = 4
"""The number of elements that a quick loop computes in the time that other loops need for one
element."""

threads = 1 << 16
"""The number of elements for which a loop takes longer than waking a thread."""

# ``python -m tests.benchmarks.optimizers`` measures these thresholds of optimizer steps.

compiled_step = 1 << 26
"""The number of elements for which NumPy's computation of a step takes about as long as the
compilation."""

small, gathered = 1024, 1 << 14
"""The maximum number of elements of an array that is copied into a gathered array, and the maximum
number of elements of a gathered array, which must stay in the cache. Gathering saves time because
calls take longer than copies."""

worth_gathering = (2, 16)
"""The least number of small arrays that are gathered, for rules with states and for rules without
states."""

step_block = 1 << 17
"""The size in bytes of a block of an array, which stays in the cache through a step."""

# ``python -m tests.benchmarks.thresholds few_rows`` and ``tests.benchmarks.compare`` measure these
# thresholds of NumPy.

few_rows, rearranged = range(4, 49), 1 << 18
"""The numbers of rows of x, and the least number of elements of W, for which BLAS spends most of
the time for x W^T on rearranging W."""

few_rows_of_flat, rearranged_flat = range(16, 49), 1 << 14
"""The same numbers if W has no more rows than columns."""

plain_loop = 1 << 10
"""The least number of multiplications of a product of repeated elements, which NumPy computes by a
plain loop, for which copies that BLAS multiplies are faster."""

long_sum, sum_row = 1 << 12, 1 << 10
"""The least number of elements of an array that is summed by rows, and the number of elements of
such a row. These sums are as exact as NumPy's."""

pointwise_weights, pointwise_pixels = 1 << 16, 32
"""With at least this number of elements of 1x1 filters, and fewer than this number of pixels of a
sample, one product of all samples is faster."""

logistic_block = 1 << 16
"""The number of elements in a block of the logistic function, which stays in the cache."""

random_chunk = 1 << 13
"""The number of blocks of random words that stay in the cache through all rounds."""

scaled = 1 << 16
"""The least number of elements of an array that is shifted and scaled one sample after the
other."""

# ``python -m tests.benchmarks.thresholds product product_by_rows`` and ``tests.benchmarks.compare``
# measure these thresholds of oneDNN.

shared = 1 << 18
"""The least number of multiplications of a product for which OpenBLAS would use its threads."""

product, product_by_rows = 1 << 21, 1 << 20
"""The least number of multiplications of a product, and of x W^T, for which a call of oneDNN is
faster."""

product_of_avx2, long_sums, cached_result = 1 << 23, 64, 1 << 18
"""Without AVX-512, the least number of multiplications of a product with a transposed second matrix
that oneDNN computes; and the least number of terms of the sums, and the most elements of the
result, for which it leaves a product with a transposed first matrix to NumPy's BLAS. Measured on an
AMD Zen 3."""

thin_rows, thin_weights = range(2, 65), 1 << 18
"""The numbers of rows or columns of one matrix, and the least number of elements of the other, of
thin products that oneDNN computes faster."""

sgemm_rows, primitive_columns = 12, 8
"""dnnl_sgemm computes x W^T if x has at most ``sgemm_rows`` rows, or the product has fewer columns
than ``primitive_columns``. For larger products, dnnl_sgemm would rearrange W."""

conflicting_distance, conflicting_lines = 1 << 11, 32
"""The distance between lines of a matrix, in bytes, at whose multiples the lines displace each
other from the cache, and the least number of lines for which this takes time. Measured on a
processor without AVX-512 (AMD Zen 3)."""

copied = 64
"""The least number of products of each element for which a copy of the matrix with gaps between its
lines saves time."""

large_product = 1 << 30
"""The number of multiplications from which oneDNN itself copies the lines of matrices."""

stacked = 8
"""The least number of rows and columns of matrices in stacks that oneDNN multiplies."""

channels = {"output": 1, "input": 8, "filter": 1}
"""The least number of channels of a convolution that oneDNN computes. Fewer channels would leave
most of the library's blocks empty."""

channels_of_groups = 3
"""The least number of channels of a group, for convolutions with groups of more than one
channel."""

many_channels, worth_filters = 128, {"output": 16, "input": 48, "filter": 4}
"""With at least ``many_channels``, ``worth_filters`` times the pixels must exceed the number of
channels, because otherwise the filters are larger than the windows."""

channels_last = 8
"""The least number of channels of a result with channels last, because NumPy computes such arrays
by rows of channels."""

convolution_threads = 1 << 22
"""The number of multiplications below which waking a thread takes longer than its work."""

pointwise, sample_pixels = 1 << 21, 128
"""The least number of multiplications of a pointwise convolution, and the least number of pixels of
a sample that has a product of its own."""

# ``python -m tests.benchmarks.thresholds tiles`` measures these thresholds of Winograd's tiles.

tiles = 1 << 24
"""The least number of multiplications of a convolution for which tiles are used. Infinity disables
tiles for all convolutions, which makes errors smaller; reproducible communicators and programs for
Chainer set this value."""

tile_channels = 32
"""The number of channels that are summed at once. Summing in parts halves the errors of sums over
256 channels, and costs 7 to 10 % of the time that tiles save. With more than 128 channels, twice as
many channels are summed at once, because filters are read for each part."""

tiles_at_once = 1 << 20
"""The number of elements of tiles that each thread processes at once."""

of_tile, of_tile_for_threads, of_filter = 25, 45, 70
"""The numbers of multiplications that take as long as reading and writing an element of a tile, on
one thread and on several, and an element of filters."""

saved, saved_by_wide = 0.1, 0.4
"""The fraction of the multiplications that tiles must save, and the fraction on processors with
AVX-512, which multiply faster, but read and write tiles no faster."""
