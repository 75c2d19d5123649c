"""Numbers the samples of a batch over all ranks, so that random draws depend on the sample."""

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mpchain import random
from mpchain.backends import cuda
from mpchain.configuration import config, using_config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.control import Control
from mpchain.distributed.gradients.persistents import are_initialized
from mpchain.distributed.gradients.replication import SharedPersistents
from mpchain.distributed.optimizers.nonlinear import (
    REMEDY,
    REMEDY_WITHOUT_NUMBERS,
    watched,
)
from mpchain.distributed.optimizers.scales import difference
from mpchain.distributed.watch.call_sites import calling_frames, describe
from mpchain.iterators.worker import peek_at_random_state
from mpchain.serializer import AbstractSerializer


def batch(
    comm: Communicator,
    n: int | None = None,
    *,
    mine: slice | None = None,
    weight: ArrayLike | None = None,
) -> contextlib.AbstractContextManager[slice]:
    """Context manager: divides a batch of ``n`` samples among the ranks.

    Updates of multi-node optimizers inside the block weight each rank by its number of samples.
    Dropout and other noise inside their loss functions depend on the sample: any number of ranks
    draws the same random numbers as one rank.

    Args:
        n: the total number of samples on all ranks; every rank must pass the same number.
        mine: this rank's samples, if the program divides the batch itself. ``n`` is then
            optional, but saves a message in each update. All ranks' slices must cover the batch
            without overlapping.
        weight: the weight to use instead of the number of samples. For a loss that is a mean over
            words, for example, it is the number of words. Either an array with a number of at least
            0 for each of the ``n`` samples (with ``mine``, for each of this rank's samples), or the
            sum of this rank's weights, which may be 0, but not on all ranks.

    Returns:
        A context manager whose value is the slice of this rank's samples, which may be empty.

    Raises:
        ValueError: ``n`` is not a number of samples; ``weight`` has the wrong length, or is
            negative or not finite; or ``weight`` is used with a reproducible communicator (pass it
            to MultiNodeUpdater instead).

    Example:
        >>> x = np.arange(6.0)
        >>> with comm.batch(len(x)) as mine:  # on one rank, all of them
        ...     print(x[mine].sum())
        15.0
    """
    if mine is None or n is not None:
        if not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"Communicator.batch: n must be an integer of at least 0, not {n!r}")
    n_empty, own = None, slice(None)
    if mine is None:
        assert n is not None  # the caller has checked this
        mine = own = slice(*comm.share_of(n))
        n_empty = n_without(comm, n)
    if weight is None:
        return _Division(comm, mine, n, n_empty)
    if comm.micro_shards:
        raise ValueError(
            "Communicator.batch: a reproducible communicator needs the weight of each "
            "micro-shard: pass a function to MultiNodeUpdater(weight=...)"
        )
    if np.ndim(weight) > 0:
        weight, length = np.asarray(cuda.to_cpu(weight)), n
        if own == slice(None):
            length = mine.stop - mine.start
        if weight.shape != (length,):
            raise ValueError(
                f"Communicator.batch: weight must be a number for each of {length} samples, or the "
                f"sum of this rank's weights, but has the shape {weight.shape}"
            )
        check_weight("Communicator.batch", weight.min(initial=0))
        weight = weight[own].sum()
    return _Division(comm, mine, n, None, check_weight("Communicator.batch", weight))


def check_weight(function: str, weight: ArrayLike) -> float:
    """Returns a weight as a float.

    Raises:
        ValueError: the weight is not a finite number of at least 0.

    >>> check_weight("f", np.int32(3))
    3.0
    """
    number = float(weight) if np.size(weight) == 1 else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{function}: weight must be a finite number of at least 0, not {weight}")
    return number


def n_without(comm: Communicator, n: int) -> int:
    """Returns the number of ranks without samples when ``comm.share_of`` divides ``n`` samples.

    >>> n_without(comm, 3), n_without(comm, 0)
    (0, 1)
    """
    n_shards = comm.micro_shards or comm.size
    if n >= n_shards:
        return 0
    return sum(rank * n_shards // comm.size >= n for rank in range(comm.size))


class Division(NamedTuple):
    """The division of a batch among the ranks; an attribute that is not known is None.

    Attributes:
        mine: this rank's samples.
        n: the number of samples of all ranks.
        n_empty: the number of ranks without samples.
        weight: this rank's weight; None if its weight is its number of samples.

    Example:
        >>> with comm.batch(6, weight=20):
        ...     comm.divided
        Division(mine=slice(0, 6, None), n=6, n_empty=None, weight=20.0)
    """

    mine: slice | None = None
    n: int | None = None
    n_empty: int | None = None
    weight: float | None = None


class _Division(
    contextlib.AbstractContextManager
):  # a generator would take several times as long, in every step
    def __init__(self, comm, *own):
        self._comm, self._own = comm, Division(*own)

    def __enter__(self):
        self._outer = self._comm.divided
        self._comm.__dict__["divided"] = self._own
        return self._own[0]

    def __exit__(self, *exc_info):
        self._comm.__dict__["divided"] = self._outer


def weighted(comm: Communicator, weight: float) -> contextlib.AbstractContextManager:
    """Context manager: sets this rank's weight, inside the block of :func:`batch`.

    Example:
        >>> with comm.batch(6), weighted(comm, 20.0):
        ...     comm.divided.n, comm.divided.weight
        (6, 20.0)
    """
    mine, n, *_ = comm.divided
    return _Division(comm, mine, n, None, weight)


Communicator.batch = batch
Communicator.divided, Communicator.n_draw_keys = Division(), 0


class SampleDraws:
    """Makes the random draws of an optimizer's loss functions depend on the sample, and counts the
    samples.

    Within ``comm.batch`` the index of a rank's first sample is known. Otherwise the ranks are
    assumed to have equal numbers of samples. If the last step has shown that the numbers differ,
    each rank draws from its own independent stream. Rank 0 warns about such draws, and about arrays
    whose shape does not show which axis holds the samples.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        n_own: the number of samples of this rank in the step so far.

    Example:
        >>> draws = SampleDraws(comm)
        >>> draws.set_up()
        >>> ((n, compute_loss),) = draws.numbered([(2, lambda: F.dropout(np.ones(2)))], step=0)
        >>> np.array_equal(compute_loss().array, compute_loss().array)
        True
    """

    def __init__(self, comm: Communicator):
        self._comm = comm
        self._key = (0, 0)
        self._n_turns = self.n_own = 0
        self._are_equal = True
        self._shapes = {}  # the argument ``shapes`` of `SampleGenerator`
        self._compares_scales, self._scales, self._loss_place = False, {}, None
        self._persistents = SharedPersistents(comm)

    def set_up(self) -> None:
        """Agrees with the other ranks on a new key, which depends on rank 0's random state."""
        comm = self._comm
        comm.n_draw_keys += 1
        # Peeking does not advance NumPy's state, so other draws stay in Chainer's order.
        seed = comm.bcast_obj(peek_at_random_state() if comm.rank == 0 else None)
        sequence = np.random.SeedSequence([seed, comm.n_draw_keys])
        self._key = tuple(sequence.generate_state(2).tolist())

    def numbered(
        self,
        parts: Sequence[tuple[float | None, Callable[[], Any] | None]],
        step: int,
        weights: Sequence[float] | None = None,
    ) -> list[tuple[float | None, Callable[[], Any] | None]]:
        """Returns the parts of this rank's batch with loss functions that draw by sample.

        Args:
            parts: pairs of a number of samples, or None if it is unknown, and a function without
                arguments.
            step: the number of updates that the optimizer has done.
            weights: the weights of the parts, if they are not numbers of samples; a part of weight
                0 does not count.
        """
        counts = [_n_samples(part[1]) if part[0] is None else part[0] for part in parts]
        n, comm, numbered = sum(counts), self._comm, []
        first, turn, shards = self._first(n), self._n_turns, comm.micro_shards
        counting = [part[0] for part in parts] if weights is None else weights
        n_passes = sum(weight != 0 for weight in counting)
        # Each micro-shard has its own persistent values.
        self.count(n, *(1, 1) if shards else (n_passes, len(parts) or 1))
        initializes = shards and not are_initialized(comm)
        stream = comm.own_shards[0]
        is_divided = comm.size > 1 or len(parts) > 1
        self._compares_scales = step == 0 and is_divided
        for i, (n_own, compute_loss) in enumerate(parts):
            n_part, weight = counts[i], counting[i]
            place = self._place(first if n_part else None, n_part, stream, is_divided)
            if step == 0 and is_divided:
                take = functools.partial(self._take_scales, (turn, i), weight)
                compute_loss = watched(compute_loss, n_part, self._tell_of_loss, take, bool(shards))
            compute_loss = functools.partial(_draw_from, self._key, step, turn, place, compute_loss)
            if shards:
                seed = [*self._key, step, turn + 1]
                compute_loss = functools.partial(_seeded, seed, stream, initializes, compute_loss)
            stream += 1 if shards else comm.size
            if first is not None:
                first += n_part
            numbered.append((n_own, compute_loss))
        return numbered

    def generator(self, n: int, step: int) -> random.SampleGenerator:
        """Returns the generator for all ``n`` samples of this rank in a step."""
        first, comm = self._first(n) if n else None, self._comm
        place = self._place(first, n, comm.rank, comm.size > 1)
        return random.SampleGenerator(self._key, step, self._n_turns, **place)

    def _place(self, first, n, stream, is_divided):
        # With micro-shards of unknown sample counts, any number of ranks draws the same numbers, so
        # no warning is needed.
        is_told = is_divided and not (self._comm.micro_shards and first is None)
        place = {"first": first, "n": n, "stream": stream, "shapes": self._shapes}
        return place | {"tell": self._tell if is_told else None}

    def _tell(self, reason):
        """Lets rank 0 warn about a draw that may differ from the draw of a single process."""
        text = f"{reason}. Other numbers of ranks, or of parts of a batch, draw different numbers"
        Control.of(self._comm).tell(_calling_place(), text)

    def _tell_of_loss(self, place, reason):
        if place is None:
            place = f"{_calling_place()}, whose loss is computed within mpchain"
        Control.of(self._comm).tell(place, reason)

    def _take_scales(self, part, weight, place, scales):
        # A micro-batch may be computed twice to find its counts; only the last pass is used.
        self._scales[part] = weight, scales
        self._loss_place = place

    def _compare_scales(self):
        """Warns if the scales of the first step's losses show that their mean is not the loss of
        the whole batch."""
        own = [*self._scales.values()]
        self._compares_scales, self._scales = False, {}
        parts = [*itertools.chain(*self._comm.allgather_obj(own))]
        if self._comm.rank > 0:
            return
        found = difference([(1 if n is None else n, scales) for n, scales in parts], 1e-5)
        if found:
            remedy = REMEDY if all(n is not None for n, _ in parts) else REMEDY_WITHOUT_NUMBERS
            self._tell_of_loss(self._loss_place, f"the loss {found}, or part of a batch. {remedy}")

    def count(self, n: int, n_passes: int = 1, n_parts: int = 1) -> None:
        """Records an update of ``n`` samples of this rank, which ran ``n_passes`` forward passes. A
        rank with many samples runs ``n_parts`` passes."""
        self._n_turns += 1
        self.n_own += n
        self._persistents.count(n_passes, n_parts)

    def _first(self, n):
        own = self._comm.divided.mine
        if own is not None and n == own.stop - own.start:
            return own.start
        # Reproducible training must use the same information on one rank as on several ranks.
        if self._comm.micro_shards or not self._are_equal:
            return None
        return self._comm.rank * n

    def finish(self, n_total: int) -> None:
        """Ends a step of ``n_total`` samples on all ranks, after its message was received;
        collective. Ranks without samples copy persistent values of other ranks, and rank 0
        warns."""
        # ``n_total`` is the number of samples or, if it is unknown, the number of ranks.
        if n_total > 0 and self._n_turns:
            self._are_equal = n_total in (self.n_own * self._comm.size, self._comm.size)
        self._n_turns = self.n_own = 0
        if self._compares_scales:
            self._compare_scales()
        self._persistents.finish()
        Control.of(self._comm).warn()

    def reset(self) -> None:
        """Discards the current step."""
        self._n_turns = self.n_own = self._persistents.n_passes = 0
        self._scales = {}

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the key of the random streams."""
        self._key = tuple(np.asarray(serializer("draws", np.array(self._key, np.uint32))).tolist())


def _calling_place():
    _, frame = calling_frames(sys._getframe(2))
    return describe(frame, None) if frame is not None else "a thread"


def _draw_from(key, step, turn, place, compute_loss):
    with random.SampleGenerator(key, step, turn, **place).in_use():
        return compute_loss()


def _seeded(seed, shard, initializes, compute_loss):
    """Calls a function with the global generators seeded for a micro-shard.

    Persistent values that the function initializes are the same in all micro-shards.
    """
    rng = config.rng
    if rng is None and initializes:
        rng = np.random.RandomState(seed)
    state = np.random.get_state()
    np.random.seed([*seed, shard])
    gpu_seed = np.random.randint(2**31) if cuda.available else None
    try:
        with using_config("rng", rng), cuda.new_generator(gpu_seed):
            return compute_loss()
    finally:
        np.random.set_state(state)


def _n_samples(compute_loss):
    """Returns the length of the function's first argument that has a length; 0 if none has."""
    lengths = (_length(x) for x in getattr(compute_loss, "args", ()))
    return next((length for length in lengths if length is not None), 0)


def _length(x):
    if isinstance(x, (list, tuple)):
        return len(x)
    shape = getattr(x, "shape", None)
    return shape[0] if shape else None
