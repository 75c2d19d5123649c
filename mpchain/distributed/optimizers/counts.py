"""Counts over the whole batch, by which losses divide: sums over the ranks and over the parts of a
batch."""

import contextlib
import functools
import itertools
import math
import os
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import summed_dtype
from mpchain.distributed.functions.communication import communicate
from mpchain.distributed.gradients.persistents import remembered
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.optimizers.dry_run import Before
from mpchain.distributed.watch import CollectiveMismatchError
from mpchain.distributed.watch.call_sites import PACKAGE, FileNames, calling_frames
from mpchain.functions import counting
from mpchain.observers import current, exchanged, refuse
from mpchain.typing import Array
from mpchain.variable import Variable

_ASKING = FileNames(
    os.path.abspath(__file__),
    counting.__file__,
    os.path.join(PACKAGE, "functions", "batch.py"),
    os.path.join(PACKAGE, "functions", "recompute.py"),
)

# These are the kinds of messages that a rank sends in a round.
_COUNT, _ARRAY, _END = range(3)

_DTYPES = [np.dtype(name) for name in "float32 float64 int32 int64".split()]

_ROUND = struct.Struct("10d")  # a struct reads and writes floats faster than an array does

# The ids of call sites are below this limit, so that sums of their squares stay exact for thousands
# of ranks.
_NUMBERS = 1 << 20

_MOST_SITES = 4096  # the most call sites that are remembered

# A forward pass gets its denominators in one of these ways: it sums them over the ranks at each
# call; it uses the denominators of the previous pass; it collects them for the next pass; or it
# uses local counts, because gradients are not summed.
_EXCHANGED, _KNOWN, _COLLECTED, _ALONE = range(4)

_EXACT_FORMS = (
    "process the parts of the batch by one call (accumulation= of MultiNodeUpdater, or "
    "update_in_parts), or let the loss be a mean over a weight, which you pass to "
    "comm.batch(weight=...) or set as optimizer.n_samples"
)

_IN_PARTS = (
    "compute a mean that is only added to the loss by F.average(x, weights=...), which parts "
    "allow, or process the batch at once (accumulation=1, without reproducible=True)"
)


class Site(NamedTuple):
    """A site where a program asks for a count.

    Attributes:
        number: an id that is the same on all ranks for the same site.
        text: the program's file and line.
        place: the instruction within the line.
    """

    number: int
    text: str
    place: int = 0


class _Call(NamedTuple):
    site: Site
    rows: int | None = None  # None if the program declares that the call is for the whole batch
    own: Any = None  # the divisor of a mean over these rows; `whole` is the divisor used
    whole: Any = None


class _Question(NamedTuple):
    """A function call that sums a count; replays of a captured step repeat the call."""

    method: Callable[[Site, Any], Any]
    site: Site

    def __call__(self, x):
        return self.method(self.site, x)


def _exchange(method, site, x):
    if current.recorder is None or current.graph is not None:
        return method(site, x)
    return exchanged(_Question(method, site), x if hasattr(x, "dtype") else np.asarray(x))


class Counts:
    """The counts of the batch of all ranks, for losses and :mod:`mpchain.functions.batch`.

    The k-th call of each rank in a step belongs to one mean over the batch: one small sum over the
    ranks, a *round*, adds the counts. Ranks that compute no loss take part as long as the other
    ranks call (:meth:`serve`), until these ranks perform a last round (:meth:`end`). Such steps are
    *sparse*: all their rounds come before the sums of gradients. Each round includes a number of
    the call site, which detects ranks that call at different sites; the last round, or the
    watchdog, detects ranks that make more calls.

    If the loss of the first of several parts asks for a count, all parts are first computed without
    backward to collect the counts.

    Args:
        comm: the communicator of the ranks.
        are_of_batch: whether losses divide by counts of the whole batch, unless the program
            overrides this.
    """

    def __init__(self, comm: Communicator, are_of_batch: bool = True):
        self._comm = comm
        self._room, self._sites, self._are_of_batch = None, {}, are_of_batch
        self._batches = set()  # call sites that are known to cover the whole batch
        # In updates that sum no gradients, each call appends the ratio of its count to its weight.
        self._ratios = []
        self._mode, self._is_open, self._parts = _EXCHANGED, False, []

    def begin(
        self,
        reducer: Reducer,
        parts: Sequence[tuple[float | None, Callable[[], Any]]],
        n_rows: Sequence[int],
        exchanges: bool = True,
        is_accumulated: bool = False,
        n_total: int | None = None,
    ) -> list[tuple[float | None, Callable[[], Any]]]:
        """Begins a step that the reducer has already begun.

        Args:
            reducer: the reducer, which knows each part's share of the batch.
            parts: pairs of a weight and a loss function without arguments.
            n_rows: the number of samples of each part; 0 if it is unknown.
            exchanges: whether gradients are summed over the ranks in this step.
            is_accumulated: whether the step includes gradients of earlier updates.
            n_total: the number of samples of all ranks, if the weights are not numbers of samples;
                0 if it is unknown.

        Returns:
            The parts, with loss functions that use the counts of the batch. If all parts are empty
            and gradients are summed, the first function takes part in the other ranks' rounds.
        """
        self._reducer, self._parts, self._n_rows = reducer, parts, n_rows
        self._exchanges, self._is_accumulated, self._n_total = exchanges, is_accumulated, n_total
        self._places = [i for i, (n, _) in enumerate(parts) if n != 0]
        self._is_open = exchanges
        self._totals: Any = None
        self._mode, self._part, self._calls = _EXCHANGED, 0, []
        parts = [(n, functools.partial(self._compute, i)) for i, (n, _) in enumerate(parts)]
        return parts if self._places or not exchanges else [(0, self.serve), *parts[1:]]

    @property
    def _has_parts(self):
        return len(self._places) > 1

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Context manager: losses inside the block get their counts from this object, if the counts
        of the batch may differ from the counts of the losses."""
        is_whole = self._comm.size == 1 and self._exchanges and not self._is_accumulated
        over = None if self._are_of_batch else counting.CALL
        return counting.using(None if is_whole and not self._has_parts else self, over)

    def is_sparse(self) -> bool:
        """Returns whether some ranks, but not all, compute no loss in this step."""
        return 0 < self._reducer.n_empty() < self._comm.size

    def end_rounds(self) -> None:
        """Makes :meth:`serve` return on the ranks in it; these ranks call it again if rounds
        follow."""
        if self._is_open and self._places and self._comm.size > 1 and self.is_sparse():
            self._round(Site(0, "the end of its step"), _END)

    def repeat(self) -> None:
        """Discards the counts of a loss that will be computed again."""
        self._totals = None

    def end(self) -> None:
        """Ends the step; must be called after backward."""
        self.end_rounds()
        if self._is_open:
            self._ratios = []
        self._is_open = False

    def reset(self) -> None:
        """Discards the current step, and the buffer that was shared with lost ranks."""
        self._room, self._is_open, self._ratios = None, False, []

    # These methods run the passes over the micro-batches.

    def _compute(self, i):
        if i not in self._places:
            return None
        self._part, self._calls = i, []
        if not self._exchanges:
            self._mode = _ALONE
        elif not self._has_parts:
            self._mode = _EXCHANGED
        elif self._totals is None:
            loss = self._collect()
            if self._totals:
                return self._compute(i)
            return loss
        else:
            self._mode = _KNOWN
        loss = self._parts[i][1]()
        if self._mode == _KNOWN and len(self._calls) != len(self._totals):
            self._refuse_parts("a different number of calls from its first pass")
        self._check_calls()
        return loss

    def _collect(self):
        """Computes the losses of all parts to collect counts, if the first loss asks for a
        count."""
        self._mode, self._collected = _COLLECTED, []
        before = Before(remembered(self._comm).values())
        for i in self._places:
            self._part = i
            self._collected.append([])
            loss = self._parts[i][1]()
            if not self._collected[0]:
                self._totals = []
                return loss
            del loss
            if self._comm.micro_shards:  # each micro-shard starts from the previous step's values
                before.restore_all()
        before.restore_all()
        sites = [[site for site, _ in calls] for calls in self._collected]
        for i, of_part in zip(self._places, sites):
            if of_part != sites[0]:
                self._part = i
                self._refuse_parts(_difference(sites[0], of_part))
        own = sum(1 if n is None else n for n, _ in self._parts)
        self._totals = [
            self._sum_counts(calls[0][0], [count for _, count in calls], own)
            for calls in zip(*self._collected)
        ]
        return None

    def _refuse_parts(self, why):
        raise CollectiveMismatchError(
            "MultiNodeOptimizer.update: the losses of the parts of a batch must ask for counts by "
            f"the same calls, but part {self._part + 1} makes {why}"
        )

    # Losses call these methods.

    def denominator(self, count: object, least: object, elements: object) -> Any:
        """See :mod:`mpchain.functions.counting`; ``least`` is the divisor for a single process."""
        return self._denominator(self._at_least_one, count, least, elements)

    def weight_sum(self, total: Any, elements: Any) -> Any:
        """See :func:`mpchain.functions.counting.weight_sum`."""
        if isinstance(total, Variable):
            if total.requires_grad:
                return self.sum(total) * self._reducer.weight(self._parts[self._part][0])
            total = total.array
        # The first pass needs only some nonzero divisor.
        own = cuda.get_array_module(total).where(total == 0, 1, total)
        own = own if self._mode == _COLLECTED else total
        result = self._denominator(self._shared, total.reshape(()), own, elements)
        return result.astype(total.dtype)

    def _denominator(self, method, count, own, elements):
        site = self._site()
        if self._mode in (_ALONE, _COLLECTED):
            self._note(site, count)
            return own
        result = _exchange(method, site, count)
        rows = elements.shape[0] if elements.ndim else 1
        rows = None if counting.current.over == counting.BATCH else rows
        self._calls.append(_Call(site, rows, own, result))
        return result

    def _shared(self, site, count):
        """Returns the count of the whole batch times this part's share of the batch."""
        total, share = self._total(site, count)
        return total * share

    def _at_least_one(self, site, count):
        total, share = self._total(site, count)
        return counting.at_least_one(total) * share

    def count(self, n: Any) -> Any:
        """See :func:`mpchain.functions.batch.batch_count`."""
        site = self._site()
        if self._mode == _COLLECTED:
            self._note(site, n)
            return n or type(n)(1)  # any divisor but zero will do: the pass is repeated
        self._check_whole("batch_count")
        total = _exchange(self._whole, site, n)
        self._calls.append(_Call(site))
        if hasattr(n, "dtype"):
            return total.astype(n.dtype)
        return total if current.recorder is not None else type(n)(total)

    def _whole(self, site, count) -> Any:
        return self._total(site, count)[0]

    def sum(self, x: Variable) -> Variable:
        """Returns the sum of a Variable over the ranks; the sum is differentiable."""
        self._check_whole("batch_sum")
        (y,), _ = communicate("allreduce", self, [x])
        self._calls.append(_Call(self._site()))
        return y

    def share(self) -> float:
        """Returns the weight of the current part's loss in the mean over the whole batch."""
        return self._reducer.weight(self._parts[self._part][0])

    def _check_whole(self, function):
        is_sum = function == "batch_sum"
        in_parts = is_sum and (self._has_parts or self._comm.micro_shards)
        if self._mode == _ALONE or self._is_accumulated or in_parts:
            raise RuntimeError(
                f"{function}: the value is for the whole batch, which is processed in parts: "
                + (_EXACT_FORMS if not in_parts else _IN_PARTS)
            )

    def allreduce(self, x: Array) -> Array:
        """Sums an array over all ranks, including those that compute no loss."""
        if not self._is_open:
            raise RuntimeError(
                "batch_sum: the result must be differentiated within the update in which it was "
                "computed, because the other ranks take part only there"
            )
        return _exchange(self._add, self._site(x.shape, str(x.dtype)), x)

    def _add(self, site, x):
        if current.graph is not None:
            current.graph.refuse("ranks exchange sums over the batch")
        if self._comm.size == 1:
            return x.copy()
        dtype = summed_dtype(x.dtype)
        self._round(site, _ARRAY, 0, 0, x.size, _DTYPES.index(dtype), cuda.is_gpu_array(x))
        total = self._comm.iallreduce(x.reshape(-1).astype(dtype)).Wait()
        return total.reshape(x.shape).astype(x.dtype, copy=False)

    def _weight(self):
        weight = self._parts[self._part][0]
        return 1 if weight is None else weight

    def _note(self, site, count):
        if self._mode == _COLLECTED:
            self._collected[-1].append((site, count))
        elif self._mode == _ALONE:
            self._check_ratio(len(self._calls), float(count) / self._weight())
            self._calls.append(_Call(site))

    def _check_ratio(self, k, ratio):
        """Raises RuntimeError unless counts are proportional to weights, as accumulation
        requires."""
        if k == len(self._ratios):
            self._ratios.append(ratio)
        elif not math.isclose(ratio, self._ratios[k], rel_tol=1e-9):
            raise RuntimeError(
                "MultiNodeOptimizer.no_sync: a loss is a mean over a count (of labels that are not "
                f"ignored, of weights) that is {self._ratios[k]:g} for each sample in one update "
                f"and {ratio:g} in another, but must be the same in all of them: {_EXACT_FORMS}"
            )

    # These methods compute sums over the ranks.

    def _total(self, site, count):
        """Returns the count of the whole batch, and this part's share of the batch's samples."""
        k = len(self._calls)
        if current.graph is not None:
            return self._total_in_graph(site, count)
        if self._mode == _EXCHANGED:
            own = self._weight()
            total, weight = self._sum_counts(site, [count], own)
            if self._is_accumulated:
                self._check_ratio(k, float(count) / own)
                self._check_ratio(k, float(total) / weight)
            return total, own / weight
        collected = self._collected[self._places.index(self._part)] if self._totals else []
        if k >= len(collected) or collected[k][0] != site:
            self._refuse_parts(f"a call at {site.text} that it has not made in the first pass")
        first, (total, weight) = collected[k][1], self._totals[k]
        share = self._weight() / weight
        if cuda.is_gpu_array(count):  # a check would wait for the GPU, so a mismatch gives NaN
            return cuda.cupy.where(count == first, total, math.nan), share
        if count != first:
            self._refuse_parts(f"a call at {site.text} that counts {count}, and {first} before")
        return total, share

    def _total_in_graph(self, site, count):
        graph = current.graph
        assert graph is not None  # a capture is in progress
        total = cuda.cupy.asarray(count, np.float64).reshape(1).copy()
        with graph.exchanging(self._comm):
            self._comm.iallreduce(total).Wait()
        graph.alike.append(site.number)
        total = total.reshape(())
        return total, graph.number(lambda: self._reducer.weight(self._parts[0][0]), total)

    def _sum_counts(self, site, counts, own):
        """Sums counts over the ranks and parts, given one for each of this rank's parts that is not
        empty. Returns the sum of the counts, and the sum of the ranks' weights; this rank's weight
        is ``own``."""
        n_shards, on_gpu = self._comm.micro_shards, cuda.is_gpu_array(counts[0])
        if not (n_shards or on_gpu):
            total = sum(map(np.float64, counts))
            return self._round(site, _COUNT, total, own) if self._comm.size > 1 else (total, own)
        # The sum over micro-shards has the same bits for any number of ranks.
        xp, n = cuda.get_array_module(counts[0]), n_shards or 1
        sums, first = xp.zeros(n), self._comm.own_shards[0]
        for i, count in zip(self._places, counts):
            sums[first + i if n_shards else 0] += count
        if self._comm.size > 1:
            _, own = self._round(site, _ARRAY, 0, own, n, _DTYPES.index(sums.dtype), on_gpu)
            self._comm.iallreduce(sums).Wait()
        return sums.sum(), own

    def serve(self) -> None:
        """Takes part in the rounds of the other ranks until they end."""
        if self._comm.size == 1 or not self.is_sparse():
            return
        for k in itertools.count():
            total, weight, *about = self._round(None)
            kind, size, code, on_gpu = map(int, about)
            if kind == _END:
                return
            if kind == _ARRAY:
                xp = cuda.cupy if on_gpu else np
                self._comm.iallreduce(xp.zeros(size, _DTYPES[code])).Wait()
            elif self._is_accumulated:
                self._check_ratio(k, total / weight)

    def _round(self, site, kind=0, value=0.0, weight=0.0, size=0, code=0, on_gpu=False):
        """Performs a round; returns the sums of the values and weights. Without a site, also
        returns the kind of the other ranks' message and a description of their array."""
        if self._room is None:
            (self._room,) = self._comm.make_buffers([(10, np.float64)])
        room, number = self._room, site and site.number
        if site is None:
            room[:] = 0
        else:
            head = 1, kind == _END, number, number**2
            _ROUND.pack_into(room, 0, *head, value, weight, kind, size, code, on_gpu)
        self._comm.sum_now(room, place=site and site.text)
        n, n_ended, number, squares, value, weight, *about = _ROUND.unpack_from(room)
        if 0 < n_ended < n or int(n) * int(squares) != int(number) ** 2:
            self._raise_mismatch(site)
        value = np.float64(value)
        return (value, weight) if site is not None else [value, weight, *(x // n for x in about)]

    def _raise_mismatch(self, site):
        """Raises an error on all ranks that lists the call site of each rank."""
        held = {}
        for rank, text in enumerate(self._comm.allgather_obj(site and site.text)):
            if text is not None:
                held.setdefault(text, []).append(str(rank))
        text = "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in held.items())
        raise CollectiveMismatchError(
            "MultiNodeOptimizer.update: losses divide by counts of the whole batch, so all ranks "
            f"that have samples must call the same losses in the same order, but their next calls "
            f"are: {text}. For losses of single samples or groups use mpchain.own_counts()"
        )

    # These methods check calls that may or may not cover the whole batch.

    def _check_calls(self):
        """Refuses calls at one site if the result depends on whether each covers only one
        sample."""
        n, of_sites = self._n_rows[self._part], {}
        for call in self._calls:
            if call.rows is not None:
                of_sites.setdefault(call.site, []).append(call)
        for site, calls in of_sites.items():
            rows = [call.rows for call in calls]
            if not self._is_unclear(site, rows, n):
                continue
            refuse("losses may be means over single samples")
            if any(not _is_close(call.own, call.whole) for call in calls):
                raise RuntimeError(
                    f"{site.text}: this rank makes {len(rows)} call{'s'[: len(rows) - 1]}, of "
                    f"{_shortened(rows)} rows, for {n or 'an unknown number of'} samples. The "
                    "calls may be losses of the whole batch, or of one sample or group each, which "
                    "are different means. Call the losses within "
                    "mpchain.shared_counts(), if each is a mean over the batch of all "
                    "ranks, or within mpchain.own_counts(), if each is a mean over its own elements"
                )

    def _is_unclear(self, site, rows, n):
        n_calls = len(rows)
        is_single = n == 1 and self._are_single()
        if n_calls == 1:
            is_unclear = is_single and rows != [1]
        elif not n or any(k % n for k in rows):
            return True
        elif set(rows) == {n}:  # a loop over time, unless each sample has n rows
            is_unclear = (n_calls == n and self._are_alike(n)) or is_single
        else:
            is_unclear = n_calls % n == 0 and self._are_alike(n)
        if not is_unclear and n > 1:
            self._batches.add(site)
        return is_unclear and site not in self._batches

    def _are_alike(self, n):
        """Returns whether all parts may have n samples. If they have different numbers, a loop over
        samples makes a different number of calls in each part, which is an error anyway."""
        if {self._n_rows[i] for i in self._places} != {n}:
            return False
        n_total = self._reducer.n_samples() if self._n_total is None else self._n_total
        if self._has_parts or self._parts[self._part][0] is None or not n_total:
            return True
        return n_total == n * (self._comm.size - self._reducer.n_empty())

    def _are_single(self):
        """Returns whether no part of the batch is known to have more than one sample."""
        if self._has_parts and not self._comm.micro_shards:
            return max(self._n_rows) == 1
        n_total = self._reducer.n_samples() if self._n_total is None else self._n_total
        return n_total <= (self._comm.micro_shards or self._comm.size - self._reducer.n_empty())

    def _site(self, *kind):
        """Returns the current call site: the program's line and the library function that it
        called."""
        inner, outer = calling_frames(sys._getframe(2), _ASKING)
        outer = outer or inner
        key = id(inner.f_code), inner.f_lasti, id(outer.f_code), outer.f_lasti, kind
        found = self._sites.get(key)
        if found is None:
            if len(self._sites) >= _MOST_SITES:  # a sum of arrays has a site for each shape
                self._sites.clear()
            codes = inner.f_code, outer.f_code  # they are kept, so that their ids are not reused
            file = os.path.basename(outer.f_code.co_filename)
            same = f"{file} {outer.f_lineno} {outer.f_lasti} {codes[0].co_name} {kind}"
            text = f"{outer.f_code.co_filename}:{outer.f_lineno} in {codes[1].co_name}"
            text += f" (an array {kind[0]} of {kind[1]})" if kind else ""
            number = zlib.crc32(same.encode()) % (_NUMBERS - 1) + 1
            found = self._sites[key] = Site(number, text, outer.f_lasti), codes
        return found[0]


def _is_close(x, y):
    return math.isclose(float(x), float(y), rel_tol=1e-9)


def _difference(sites, others):
    for site, other in zip(sites, others):
        if site != other:
            return f"a call at {other.text} where the first part makes a call at {site.text}"
    return f"{len(others)} calls, and the first part makes {len(sites)}"


def _shortened(rows):
    return ", ".join(map(str, rows[:4])) + (", ..." if len(rows) > 4 else "")
