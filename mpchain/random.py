"""Random draws that belong to samples.

Functions draw from :func:`source`: NumPy's or CuPy's global generator, as everywhere else in a
program. Within the updates of a multi-node optimizer it is a :class:`SampleGenerator` instead,
whose draws depend on the number of the sample in the batch of all ranks. So a sample gets the same
dropout mask, noise or latent value on any rank and on any device, for any number of ranks.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backends import cuda
from mpchain.recording import current
from mpchain.typing import Array

_TWO_TO_32 = 2.0**32
_CALLS = 1 << 20  # calls that one turn may make before its numbers run into the next turn's


class _Local(threading.local):
    generator: Any = None
    order: Any = None  # the samples that sequences belong to, where they are sorted


_local = _Local()


def source(xp: Any, steps: Sequence[int] | None = None) -> Any:
    """Returns the generator that functions draw from.

    Args:
        xp: of the arrays to draw, NumPy or CuPy.
        steps: for arrays whose first axis joins the time steps of sequences, the
            longest first: the number of sequences at each step.

    Returns:
        ``xp.random``, or an object with the methods of that module that this package uses.

    Example:
        >>> from mpchain.random import source
        >>> source(np) is np.random  # outside of the updates of a multi-node optimizer
        True
    """
    generator, recorder = _local.generator, current.recorder
    if generator is not None and recorder is not None:
        recorder.refuse("several ranks draw random numbers by sample")
    draws = xp.random if generator is None else _Source(generator, xp, steps)
    return draws if recorder is None else recorder.draws(draws)


def draw(xp: Any, name: str, *parameters: Any, size: tuple[int, ...]) -> Array:
    """Draws by sample for distributions, whose draws repeat a batch: (repeats, *batch).

    Args:
        xp: of the parameters and the result.
        name: the method of ``numpy.random``.
        parameters: arrays that broadcast to ``size``.
        size: the shape of the result.

    Example:
        >>> from mpchain.random import SampleGenerator, draw
        >>> with SampleGenerator((1, 2), 0, first=0, n=3).in_use():
        ...     draw(np, "uniform", size=(2, 3, 4)).shape
        (2, 3, 4)
    """
    if not _local.generator.is_repeated_batch(size):
        return getattr(source(xp), name)(*parameters, size=size)
    turned = (size[1], size[0], *size[2:])
    parameters = [xp.broadcast_to(p, size).swapaxes(0, 1) for p in parameters]
    return getattr(source(xp), name)(*parameters, size=turned).swapaxes(0, 1)


@contextlib.contextmanager
def sorted_samples(order: np.ndarray) -> Iterator[None]:
    """Context manager: functions get sequences in another order than that of the samples.

    Args:
        order: the sample of each sequence.

    Example:
        >>> from mpchain.random import sorted_samples
        >>> with sorted_samples(np.array([1, 0])):
        ...     pass  # functions get the second sequence first
    """
    outer, _local.order = _local.order, order
    try:
        yield
    finally:
        _local.order = outer


def counters(xp: Any, shape: tuple[int, ...]) -> kernels.Counters:
    """Returns what a kernel draws an array of that shape from, without storing random numbers.

    Outside of the updates of a multi-node optimizer it depends on the seed of CuPy's generator.

    Args:
        xp: CuPy, or NumPy within such an update.

    Example:
        >>> from mpchain.random import SampleGenerator, counters
        >>> with SampleGenerator((1, 2), step=7, first=4, n=2).in_use():
        ...     counters(np, (2, 5))
        Counters(first=4, n_rows=2, call=0, step=7, low=1, high=2)
    """
    if _local.generator is not None:
        return _local.generator.counters(shape)
    seed = int(xp.random.get_random_state()._get_seed(max(math.prod(shape), 1)))
    return kernels.Counters(0, 1, 0, 0, seed % (1 << 32), seed >> 32)


def is_by_sample() -> bool:
    """Whether draws belong to samples now.

    Example:
        >>> mpchain.random.is_by_sample()
        False
    """
    return _local.generator is not None


def get_state() -> tuple:
    """Returns the generator in use, None for the global ones, and its number of calls.

    Example:
        >>> mpchain.random.get_state()
        (None, None)
    """
    generator = _local.generator
    return generator, None if generator is None else generator.n_calls


def set_state(state: tuple) -> None:
    """Makes the generator and the number of calls those that :func:`get_state` returned.

    Example:
        >>> mpchain.random.set_state(mpchain.random.get_state())
    """
    _local.generator, n_calls = state
    if _local.generator is not None:
        _local.generator.n_calls = n_calls


class SampleGenerator:
    """A counter-based generator, Philox4x32-10, that numbers its draws by sample.

    A draw is a function of the key, the step, the number of the call within the step, the sample
    and the place of the element within the sample's part of the array. Where the first axis of an
    array is the samples, or a multiple of them with the rows of a sample side by side, each sample
    has counters for itself. All other arrays are drawn for the stream as a whole.

    Args:
        key: 64 bits in two words. Generators with different keys are independent.
        step: the number of the training step.
        turn: the number of the batch within the step.
        first: the number of the first sample in the batch of all ranks. None if unknown: then
            all arrays are drawn for the stream.
        n: the number of samples.
        stream: distinguishes what is drawn for no sample in particular: the rank.

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
    ):
        self._key, self._step, self._turn = key, step, turn
        self._first, self._n, self._stream = first, n if first is not None else 0, stream
        self.n_calls = 0

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: functions draw from this generator."""
        return _InUse(self)

    def words(
        self, xp: Any, shape: tuple[int, ...], n_words: int, steps: Sequence[int] | None = None
    ) -> Array:
        """Draws 32-bit words.

        Args:
            xp: NumPy or CuPy.
            shape: of the array to draw.
            n_words: words for each of its elements.
            steps: as in :func:`source`.

        Returns:
            array of uint32 (*shape, n_words).
        """
        samples, blocks, n_rows, (low, high) = self._rows(xp, shape, steps)
        n_row_words = math.prod(shape) * n_words // n_rows if n_rows else 0
        n_blocks = -(-n_row_words // 4)
        counters = samples, blocks * n_blocks, n_blocks, self._next_call(), self._step
        words = kernels.random_words(*counters, low, high)
        words = words.reshape(n_rows, -1)[:, :n_row_words]
        return words.reshape(*shape, n_words)

    def counters(self, shape: tuple[int, ...]) -> kernels.Counters:
        """Returns what the next call of :meth:`words` draws one word per element from."""
        (low, high), n = self._key, self._n
        first, n_rows = self._first, n
        if not self._has_samples(shape):
            first, n_rows, high = 0, 1, self._of_stream(high)
        return kernels.Counters(first, n_rows, self._next_call(), self._step, low, high)

    def _next_call(self):
        self.n_calls += 1
        return self._turn * _CALLS + self.n_calls - 1

    def _has_samples(self, shape):
        return self._n and shape and shape[0] % self._n == 0

    def _of_stream(self, high):
        return (high + (self._stream + 1) * 0x9E3779B9) % (1 << 32)

    def _rows(self, xp, shape, steps):
        """Returns the sample of each row, its number among the sample's rows, and the key."""
        low, high = self._key
        n = self._n
        if steps and n == steps[0] and shape[0] == sum(steps):
            order = np.arange(n) if _local.order is None else _local.order
            samples = self._first + np.concatenate([order[:n_rows] for n_rows in steps])
            blocks = np.repeat(np.arange(len(steps)), steps)
        elif self._has_samples(shape):
            samples, blocks = np.arange(self._first, self._first + n), np.zeros(n, np.int64)
        else:
            samples = blocks = np.zeros(1 if math.prod(shape) else 0, np.int64)
            high = self._of_stream(high)
        return xp.asarray(samples), xp.asarray(blocks), len(samples), (low, high)

    def is_repeated_batch(self, shape: tuple[int, ...]) -> bool:
        """Whether the second axis, not the first, is the samples: draws that repeat a batch."""
        n = self._n
        if len(shape) < 2 or n == 0 or shape[1] % n:
            return False
        # Of vectors of parameters as long as the batch, one draw for each sample is more likely.
        return len(shape) > 2 or shape[0] != n

    def row_seeds(self, n_rows: int) -> np.ndarray:
        """Returns for each row of an array a seed (4 words), for draws of varying length."""
        return self.words(np, (n_rows, 4), 1).reshape(n_rows, 4)


class _InUse:  # a generator would cost several times as much, in every step
    def __init__(self, generator):
        self._generator = generator

    def __enter__(self):
        self._outer, _local.generator = _local.generator, self._generator

    def __exit__(self, *exc_info):
        _local.generator = self._outer


class _Source:
    """The methods of ``numpy.random`` on a :class:`SampleGenerator`, for one call."""

    def __init__(self, generator, xp, steps):
        self._generator, self._xp, self._lengths = generator, xp, steps

    def _uniforms(self, size, n=1):
        """Array (*size, n) of float64, uniform in the open interval (0, 1), 32 bits each."""
        shape = () if size is None else tuple(np.atleast_1d(size).tolist())
        words = self._generator.words(self._xp, shape, n, self._lengths)
        return (words + 0.5) / _TWO_TO_32

    def random_sample(self, size=None):
        return self._uniforms(size)[..., 0]

    random = random_sample

    def uniform(self, low=0.0, high=1.0, size=None):
        return low + (high - low) * self.random_sample(size)

    def randint(self, low, high, size=None):
        return low + self._xp.floor(self.random_sample(size) * (high - low)).astype(np.int64)

    def standard_normal(self, size=None):  # G. E. P. Box, M. E. Muller, 1958
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
        """Methods that need a varying number of words draw each row with a generator of its own."""
        if not hasattr(np.random.RandomState, name):
            raise AttributeError(f"mpchain.random has no method {name!r}")
        return lambda *parameters, size: self._by_rows(name, parameters, size)

    def _by_rows(self, name, parameters, size):
        parameters = [np.broadcast_to(cuda.to_cpu(p), size) for p in parameters]
        rows = [
            getattr(np.random.RandomState(seed), name)(*(p[i] for p in parameters), size=size[1:])
            for i, seed in enumerate(self._generator.row_seeds(size[0]))
        ]
        return self._xp.asarray(np.stack(rows) if rows else np.empty(size))
