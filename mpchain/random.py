"""Random draws that belong to samples.

Functions draw from the generator that :func:`source` returns: the global generator of NumPy or CuPy
by default, and a :class:`SampleGenerator` within the updates of a multi-node optimizer. The draws
of a SampleGenerator depend on the index of the sample in the batch of all ranks. A sample therefore
gets the same dropout mask, noise or latent value on any rank and on any device, for any number of
ranks.

The first axis of an array is taken for samples if its length is a multiple of the number of
samples. Scalars and parameters get draws that all ranks share. For arrays whose shape does not show
their samples, the program calls :func:`rows_of` and :func:`shared`.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mpchain import kernels
from mpchain.backends import cuda
from mpchain.observers import draws, refuse
from mpchain.typing import Array

_TWO_TO_32 = 2.0**32
_CALLS = 1 << 20  # A turn with more calls would use the random numbers of the next turn.


class _Rows(NamedTuple):
    """A program's declaration of which sample each row along an axis belongs to; ``samples`` is
    None if rows are in the order of samples."""

    samples: np.ndarray | None
    axis: int


class _Local(threading.local):
    generator: Any = None
    rows: _Rows | None = None
    is_shared = False


_local = _Local()


def source(xp: ModuleType, shared: bool = False) -> Any:
    """Returns the generator that functions draw from.

    Args:
        xp: the module of the arrays to draw, NumPy or CuPy.
        shared: whether the next draw belongs to no sample (see :func:`shared`).

    Returns:
        ``xp.random``, or an object with those methods of ``xp.random`` that mpchain uses.

    Example:
        >>> from mpchain.random import source
        >>> source(np) is np.random  # outside of the updates of a multi-node optimizer
        True
    """
    generator = _local.generator
    if generator is None:
        return draws(xp.random)
    refuse("several ranks draw random numbers by sample")
    return draws(_Source(generator, xp, shared))


def draw(xp: ModuleType, name: str, *parameters: Any, size: tuple[int, ...]) -> Array:
    """Draws an array of shape (repeats, *batch) for distributions, where ``batch`` begins with the
    samples; called only if :func:`is_by_sample` returns True.

    Args:
        xp: the array module of the parameters and the result.
        name: the name of a method of ``numpy.random``.
        parameters: arrays that broadcast to ``size``.
        size: the shape of the result.

    Example:
        >>> from mpchain.random import SampleGenerator, draw
        >>> with SampleGenerator((1, 2), 0, first=0, n=3).in_use():
        ...     draw(np, "uniform", size=(2, 3, 4)).shape
        (2, 3, 4)
    """
    rows, generator = _local.rows, _local.generator
    if rows is not None and generator.fits(size[1:], rows):
        rows = _Rows(rows.samples, rows.axis + 1)
    elif generator.is_repeated_batch(size):
        rows = _Rows(None, 1)
    with _saying(rows, _local.is_shared):
        return getattr(source(xp), name)(*parameters, size=size)


@contextlib.contextmanager
def _saying(rows, is_shared):
    outer = _local.rows, _local.is_shared
    _local.rows, _local.is_shared = rows, is_shared
    try:
        yield
    finally:
        _local.rows, _local.is_shared = outer


def rows_of(samples: object = None, axis: int = 0) -> contextlib.AbstractContextManager[None]:
    """Context manager: declares, for draws within the block, which rows of arrays belong to which
    sample.

    Use the context manager for arrays whose first axis is time, atoms, the concatenated elements of
    sequences, or samples in another order, because the shape does not show the samples of such
    arrays. The draws of a row depend on its sample and on its index among the sample's rows. Arrays
    of another length along the axis are drawn normally. Outside of the updates of a multi-node
    optimizer, the context manager has no effect.

    Args:
        samples: array or list of integers: for each row, the index of its sample among this rank's
            current samples, from 0. None means that the samples are in order, each with the same
            number of consecutive rows.
        axis: the axis along which rows are counted.

    Raises:
        ValueError: ``samples`` has values that are not indices of this rank's samples, or ``axis``
            is negative.

    Example:
        >>> lengths = [2, 3]  # atoms of two molecules
        >>> with mpchain.random.rows_of(np.repeat(np.arange(2), lengths)):
        ...     F.dropout(np.ones((5, 4))).shape
        (5, 4)
        >>> with mpchain.random.rows_of(axis=1):  # for arrays (time, samples, ...)
        ...     F.dropout(np.ones((7, 2, 4))).shape
        (7, 2, 4)
    """
    if axis < 0:
        raise ValueError(f"rows_of: axis must not be negative, but is {axis}")
    if samples is not None:
        samples, given = np.asarray(cuda.to_cpu(samples)), samples
        # n is 0 if the samples are unknown.
        n = (_local.generator and _local.generator.n) or math.inf
        is_right = samples.ndim == 1 and (samples.dtype.kind in "iu" or samples.size == 0)
        if not is_right or ((samples < 0) | (samples >= n)).any():
            highest = "" if math.isinf(n) else f", from 0 to {n - 1}"
            raise ValueError(
                "rows_of: samples must be one integer for each row, the index of the row's sample "
                f"among this rank's samples{highest}, but is {given!r:.200}"
            )
        samples = samples.astype(np.int64)
    return _saying(_Rows(samples, axis), False)


def shared() -> contextlib.AbstractContextManager[None]:
    """Context manager: draws within the block belong to no sample, and are the same on all ranks in
    the updates of a multi-node optimizer.

    Draws of shape () and draws for parameters are shared without it. Use this context manager for
    all other values that a single process draws once for a batch, such as masks of computed
    weights, or the layers that stochastic depth skips.

    Example:
        >>> with mpchain.random.shared():
        ...     mpchain.random.source(np).uniform(size=3).shape
        (3,)
    """
    return _saying(_local.rows, True)


def sorted_samples(order: np.ndarray) -> contextlib.AbstractContextManager[None]:
    """Context manager: declares that functions in the block receive sequences in another order than
    the samples.

    Args:
        order: the original index of each sequence.

    Example:
        >>> from mpchain.random import sorted_samples
        >>> with sorted_samples(np.array([1, 0])):
        ...     pass  # functions get the second sequence first
    """
    samples = _samples_of(len(order))
    return contextlib.nullcontext() if samples is None else rows_of(samples[order])


def joined_steps(steps: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """Context manager: declares that the first axis of arrays in the block concatenates the time
    steps of sequences.

    Args:
        steps: the number of sequences at each step; the longest sequences come first.

    Example:
        >>> from mpchain.random import SampleGenerator, joined_steps
        >>> with SampleGenerator((1, 2), 0, first=0, n=3).in_use(), joined_steps([3, 2]):
        ...     F.dropout(np.ones((5, 4))).shape
        (5, 4)
    """
    samples = _samples_of(steps[0])
    if samples is None:
        return contextlib.nullcontext()
    return rows_of(np.concatenate([samples[:n] for n in steps]))


def _samples_of(n_rows):
    """Returns the sample of each row; None if the samples of the rows are unknown."""
    generator, rows = _local.generator, _local.rows
    if generator is None or _local.is_shared:
        return None
    if rows is not None and rows.samples is not None and len(rows.samples) == n_rows:
        return rows.samples
    n = generator.n
    return np.arange(n_rows) // (n_rows // n) if n and n_rows and n_rows % n == 0 else None


def counters(
    xp: ModuleType, shape: tuple[int, ...], shared: bool = False
) -> kernels.Counters | None:
    """Returns the counters with which a kernel draws an array without storing random numbers.

    Outside of the updates of a multi-node optimizer, the counters depend on the seed of CuPy's
    generator.

    Args:
        xp: CuPy; within the update of a multi-node optimizer, NumPy or CuPy.
        shape: the shape of the array.
        shared: as in :func:`source`.

    Returns:
        The counters; None if the program declared the sample of each row. In this case, use
        :func:`source`.

    Example:
        >>> from mpchain.random import SampleGenerator, counters
        >>> with SampleGenerator((1, 2), step=7, first=4, n=2).in_use():
        ...     counters(np, (2, 5))
        Counters(first=4, n_rows=2, call=0, step=7, low=1, high=2)
    """
    if _local.generator is not None:
        return _local.generator.counters(shape, shared)
    seed = int(xp.random.get_random_state()._get_seed(max(math.prod(shape), 1)))
    return kernels.Counters(0, 1, 0, 0, seed % (1 << 32), seed >> 32)


def library_seed(xp: ModuleType) -> int:
    """Draws a seed of 63 bits for the generator of a library.

    Outside of the updates of a multi-node optimizer, the result depends on the seed of CuPy's
    generator. Within the updates, it belongs to no sample: each rank draws its own seed.

    Example:
        >>> from mpchain.random import SampleGenerator, library_seed
        >>> with SampleGenerator((1, 2), step=7, first=4, n=2, stream=1).in_use():
        ...     library_seed(np) == library_seed(np)
        False
    """
    if _local.generator is not None:
        return _local.generator.seed()
    return int(xp.random.get_random_state()._get_seed(1)) % (1 << 63)


def is_by_sample() -> bool:
    """Returns whether draws belong to samples now.

    Example:
        >>> mpchain.random.is_by_sample()
        False
    """
    return _local.generator is not None


def get_state() -> tuple:
    """Returns the generator in use (None for the global generators), its number of calls, and the
    program's declarations about arrays.

    Example:
        >>> mpchain.random.get_state()
        (None, None, None, False)
    """
    generator = _local.generator
    n_calls = None if generator is None else generator.n_calls
    return generator, n_calls, _local.rows, _local.is_shared


def set_state(state: tuple) -> None:
    """Restores a state that :func:`get_state` returned.

    Example:
        >>> mpchain.random.set_state(mpchain.random.get_state())
    """
    _local.generator, n_calls, _local.rows, _local.is_shared = state
    if _local.generator is not None:
        _local.generator.n_calls = n_calls


class _Place(NamedTuple):
    """The Philox counters from which the random words of an array are computed."""

    axis: int  # Rows are counted along this axis.
    samples: Any  # These are the samples of the rows.
    numbers: Any  # These are the rows' indices within their samples.
    high: int  # This is the high word of the key.


class SampleGenerator:
    """A counter-based generator, Philox4x32-10, that numbers its draws by sample.

    A draw is a function of the key, the step, the number of the call within the step, the sample
    and the index of the element within the sample's part of the array. If the length of the first
    axis of an array is the number of samples, or a multiple where the rows of a sample are
    adjacent, each sample has its own counters; with ``rows_of(samples)``, each row has its own
    counters. Arrays of shape (), and :func:`shared` arrays, are the same for all streams. All other
    arrays are drawn from counters of the stream.

    Args:
        key: 64 bits in two words. Generators with different keys are independent.
        step: the number of the training step.
        turn: the number of the batch within the step.
        first: the index of the first sample in the batch of all ranks. None means that the index is
            unknown; then no arrays are drawn by sample.
        n: the number of samples.
        stream: the rank, which distinguishes draws that belong to no particular sample.
        tell: a function that is called with a message if the shape of an array does not show its
            samples.
        shapes: a dict, by number of the call, of the shapes drawn for previous batches, to which
            this generator adds its shapes. The shapes reveal a first axis whose length does not
            grow with the number of samples.

    Attributes:
        n: the number of samples; 0 if their indices are unknown.
        n_calls: the number of arrays drawn so far.

    Example:
        >>> from mpchain.random import SampleGenerator, source
        >>> with SampleGenerator((1, 2), step=0, first=0, n=4).in_use():
        ...     whole = source(np).uniform(size=(4, 2))
        >>> with SampleGenerator((1, 2), step=0, first=2, n=2).in_use():  # the second rank of two
        ...     bool((source(np).uniform(size=(2, 2)) == whole[2:]).all())
        True

    See J. K. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """

    def __init__(
        self,
        key: tuple[int, int],
        step: int,
        turn: int = 0,
        *,
        first: int | None = None,
        n: int = 0,
        stream: int = 0,
        tell: Callable[[str], None] | None = None,
        shapes: dict[int, tuple[int, tuple[int, ...]]] | None = None,
    ):
        self._key, self._step, self._turn = key, step, turn
        self._first, self.n, self._stream = first or 0, n if first is not None else 0, stream
        self._tell, self._shapes = tell, {} if shapes is None else shapes
        self.n_calls = 0

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: functions draw from this generator."""
        return _InUse(self)

    def words(
        self, xp: ModuleType, shape: tuple[int, ...], n_words: int, shared: bool = False
    ) -> Array:
        """Draws 32-bit words.

        Args:
            xp: NumPy or CuPy.
            shape: the shape of the array to draw.
            n_words: the number of words per element.
            shared: as in :func:`source`.

        Returns:
            array of uint32 (*shape, n_words).
        """
        place = self._place(shape, shared)
        words = self._words(xp, place, math.prod(shape) * n_words)
        if place.axis == 0:
            return words.reshape(*shape, n_words)
        others = shape[: place.axis] + shape[place.axis + 1 :]
        words = words.reshape(shape[place.axis], *others, n_words)
        return xp.moveaxis(words, 0, place.axis)

    def row_seeds(self, shape: tuple[int, ...], shared: bool = False) -> tuple[np.ndarray, int]:
        """Returns a seed of 4 words for each row of an array, for draws that take a varying number
        of words, and the axis of the rows."""
        place = self._place(shape, shared)
        return self._words(np, place, 4 * shape[place.axis]).reshape(-1, 4), place.axis

    def _words(self, xp, place, n):
        n_rows = len(place.samples)
        n_row_words = n // n_rows if n_rows else 0
        n_blocks = -(-n_row_words // 4)
        begins = xp.asarray(place.numbers * n_blocks)
        counters = xp.asarray(place.samples), begins, n_blocks, self._next_call(), self._step
        words = kernels.random_words(*counters, self._key[0], place.high)
        return words.reshape(n_rows, 4 * n_blocks)[:, :n_row_words]

    def counters(self, shape: tuple[int, ...], shared: bool = False) -> kernels.Counters | None:
        """Returns the counters that the next call of :meth:`words` would use with one word per
        element; None if :func:`rows_of` describes the array's rows."""
        rows = _local.rows
        if rows is not None and not _is_shared(shape, shared) and self.fits(shape, rows):
            return None
        place = self._place(shape, shared)
        key = self._key[0], place.high
        first, n_rows = int(place.samples[0]), len(place.samples)
        return kernels.Counters(first, n_rows, self._next_call(), self._step, *key)

    def seed(self) -> int:
        """Returns 63 bits that differ for each call, step and stream."""
        low, high = self._words(np, _whole(self._high_of_stream()), 2)[0].tolist()
        return (high << 32 | low) % (1 << 63)

    def _high_of_stream(self):
        return (self._key[1] + (self._stream + 1) * 0x9E3779B9) % (1 << 32)

    def _next_call(self):
        self.n_calls += 1
        return self._turn * _CALLS + self.n_calls - 1

    def fits(self, shape: tuple[int, ...], rows: _Rows) -> bool:
        """Returns whether an array has the rows that :func:`rows_of` describes."""
        if self.n == 0 or len(shape) <= rows.axis:
            return False
        length = shape[rows.axis]
        return length % self.n == 0 if rows.samples is None else length == len(rows.samples)

    def _place(self, shape, shared):
        """Returns the counters of an array's draws: one for each row that :func:`rows_of` assigns
        to a sample, or else one for each sample, or one for the whole array."""
        high, n, rows = self._key[1], self.n, _local.rows
        if _is_shared(shape, shared):
            return _whole(high)
        if rows is not None and self.fits(shape, rows):
            if rows.samples is not None:
                samples, numbers = self._first + rows.samples, _numbers(rows.samples)
                return _Place(rows.axis, samples, numbers, high)
            return _Place(rows.axis, *self._in_order(), high)
        if n and shape[0] % n == 0:
            if self._tell is not None:
                self._look_again(shape, self._tell)
            return _Place(0, *self._in_order(), high)
        if self._tell is not None and math.prod(shape):
            self._tell(_no_multiple(shape, n) if n else _UNKNOWN)
        return _whole(self._high_of_stream())

    def _in_order(self):
        return np.arange(self._first, self._first + self.n), np.zeros(self.n, np.int64)

    def _look_again(self, shape, tell):
        """Reports a first axis whose length may be a multiple of the number of samples only by
        chance."""
        n, before = self.n, self._shapes.get(self.n_calls)
        self._shapes[self.n_calls] = n, shape
        if before is not None and before[0] != n and before[1] == shape:
            tell(
                f"random numbers of shape {shape} are drawn for {n} samples, and were drawn for "
                f"{before[0]} samples before: the first axis is taken for samples, but does not "
                "grow with them; " + _REMEDY
            )
        elif len(shape) == 3 and shape[0] > n == shape[1]:
            tell(
                f"random numbers of shape {shape} are drawn for {n} samples: the first axis is "
                f"taken for {shape[0] // n} rows of each sample, but may be time; " + _REMEDY
            )

    def is_repeated_batch(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the second axis of a draw is the samples and the first axis repeats the
        batch."""
        n = self.n
        if len(shape) < 2 or n == 0 or shape[1] % n:
            return False
        # A vector as long as the batch is more likely to have one draw per sample than one per
        # parameter.
        return len(shape) > 2 or shape[0] != n


_REMEDY = (
    "declare the samples of the rows by mpchain.random.rows_of, or use mpchain.random.shared if "
    "the numbers belong to no sample"
)
_UNKNOWN = (
    "random numbers belong to no sample, because the samples of this rank are unknown: use "
    "comm.batch, or MultiNodeUpdater with an iterator of create_sharded_iterator"
)


def _no_multiple(shape, n):
    return (
        f"random numbers of shape {shape} are drawn for {n} samples: the shape does not show which "
        "row belongs to which sample; " + _REMEDY
    )


def _is_shared(shape, shared):
    return shared or _local.is_shared or shape == ()


def _whole(high):
    zero = np.zeros(1, np.int64)
    return _Place(0, zero, zero, high)


def _numbers(samples):
    """Returns the index of each row among the rows of its sample."""
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    numbers = np.empty_like(samples)
    numbers[order] = np.arange(len(samples)) - np.repeat(
        begins, np.diff(begins, append=len(samples))
    )
    return numbers


class _InUse:  # A generator-based context manager would take several times as long, in every step.
    def __init__(self, generator):
        self._generator = generator

    def __enter__(self):
        self._outer, _local.generator = _local.generator, self._generator

    def __exit__(self, *exc_info):
        _local.generator = self._outer


class _Source:
    """The methods of ``numpy.random`` on a :class:`SampleGenerator`, for one call."""

    def __init__(self, generator, xp, shared):
        self._generator, self._xp, self._shared = generator, xp, shared

    def _uniforms(self, size, n=1):
        """Returns a float64 array (*size, n) of numbers with 32 random bits each, uniform in the
        open interval (0, 1)."""
        words = self._generator.words(self._xp, _shape(size), n, self._shared)
        return (words + 0.5) / _TWO_TO_32

    def random_sample(self, size=None):
        return self._uniforms(size)[..., 0]

    random = random_sample

    def uniform(self, low=0.0, high=1.0, size=None):
        return low + (high - low) * self.random_sample(size)

    def randint(self, low, high, size=None):
        return low + self._xp.floor(self.random_sample(size) * (high - low)).astype(np.int64)

    # This is the transform of G. E. P. Box and M. E. Muller, 1958.
    def standard_normal(self, size=None):
        u = self._uniforms(size, 2)
        radius = self._xp.sqrt(-2 * self._xp.log(u[..., 0]))
        return radius * self._xp.cos(2 * math.pi * u[..., 1])

    def standard_exponential(self, size=None):
        return -self._xp.log(self.random_sample(size))

    def gumbel(self, size=None):
        return -self._xp.log(self.standard_exponential(size))

    def laplace(self, size=None):
        u = self.random_sample(size) - 0.5
        return -self._xp.sign(u) * self._xp.log1p(-2 * abs(u))

    def standard_cauchy(self, size=None):
        return self._xp.tan(math.pi * (self.random_sample(size) - 0.5))

    def __getattr__(self, name):
        """Returns a method of ``numpy.random`` that needs a varying number of words. The method
        draws each row with a generator of its own."""
        if not hasattr(np.random.RandomState, name):
            raise AttributeError(f"mpchain.random has no method {name!r}")
        return lambda *parameters, size=None: self._by_rows(name, parameters, _shape(size))

    def _by_rows(self, name, parameters, size):
        if size == ():
            return self._by_rows_of_shape(name, parameters, (1,), True)[0]
        return self._by_rows_of_shape(name, parameters, size, self._shared)

    def _by_rows_of_shape(self, name, parameters, size, shared):
        seeds, axis = self._generator.row_seeds(size, shared)
        parameters = [
            np.moveaxis(np.broadcast_to(cuda.to_cpu(p), size), axis, 0) for p in parameters
        ]
        shape = size[:axis] + size[axis + 1 :]
        rows = [
            getattr(np.random.RandomState(seed), name)(*(p[i] for p in parameters), size=shape)
            for i, seed in enumerate(seeds)
        ]
        return self._xp.asarray(np.stack(rows, axis) if rows else np.empty(size))


def _shape(size):
    return () if size is None else tuple(np.atleast_1d(size).tolist())
