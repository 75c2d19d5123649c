"""Averaging gradients over ranks, in flat buckets, while backward goes on."""

import collections
import sys

import numpy as np

from mpchain.distributed.gradients.compression import configured

BUCKET_BYTES = 4 * 1024 * 1024
"""Gradients in one bucket; larger ones begin to travel later, smaller ones cost more messages."""

MOST_UNDER_WAY = 2
"""Sums under way while nothing else is left to do: with more, buckets leave the cache meanwhile."""


class GradientReducer:
    """Replaces the gradients of parameters by their means over the ranks, weighted by samples.

    In the first step the order in which backward finishes the gradients is learned; rank 0's is
    agreed on, and the gradients are laid out in that order in flat buckets, one dtype in each. From
    then on a bucket is summed over the ranks as soon as its last gradient is final, while backward
    goes on. All ranks start the sums in the same order, whatever the order of their own backward.

    A gradient is multiplied by the rank's share of the samples when it is copied into its bucket
    (unless it is that of a loss that was), and the ranks tell each other which gradients they have;
    so a sum yields the mean, and what no rank has stays None. Afterwards ``param.grad`` is a view
    into the bucket. If a program on any rank still holds one of these views when the next step
    begins, the buckets of all ranks move to other memory, and two such memories are kept for that.

    A step is :meth:`begin`, then :meth:`ready` for each final gradient (in any order, or not at
    all), then :meth:`finish`. With one rank, all of them leave the gradients as they are.

    Args:
        comm (Communicator): the ranks.
        zero_fill (bool): whether a gradient that only some of the ranks with samples have counts as
            zeros on the others; if not, ``finish`` raises ValueError.
        compression: how a bucket travels (:mod:`mpchain.distributed.gradients.compression`):
            called with the communicator and the :class:`Bucket`, it begins to replace its
            ``values`` by their sum over the ranks, and returns a request with ``Test()`` and
            ``Wait()``. None: as the communicator is configured, by default exactly.
    """

    def __init__(self, comm, *, zero_fill=True, compression=None):
        self._comm = comm
        self._zero_fill = zero_fill
        self._compression = configured(comm) if compression is None else compression
        self._under_way = collections.deque()
        # Of samples, of ranks that have any, and of ranks where a program holds gradients in the
        # buckets' memory, and in their other memory.
        self._totals = np.zeros(4)
        self.watch({})

    def watch(self, params):
        """Sets the parameters, by name; they must be initialized, and the same on all ranks."""
        self._params = params
        self._names = {id(param): name for name, param in params.items()}
        self._order = {}  # names in the order in which gradients became final, in the first step
        self._buckets = None

    def begin(self, n_samples=None, *, losses_are_weighted=False):
        """Starts a step in which this rank has so many samples (None: the ranks count equally).

        The ranks tell each other these numbers, and need them at their first :meth:`ready`: so it
        is best called before the forward pass.

        Args:
            n_samples (int): as above.
            losses_are_weighted (bool): whether the gradients will be those of a loss multiplied by
                :meth:`share`, so that they only need to be summed.
        """
        if self._under_way:
            raise RuntimeError(
                "an exception ended the step before while gradients were under way; "
                "the ranks cannot go on after that"
            )
        self._n_samples = 1 if n_samples is None else n_samples
        self._means = {}
        held = [bucket.are_rooms_held() for bucket in self._buckets or ()]
        self._totals[:2] = self._n_samples, self._n_samples > 0
        self._totals[2:] = np.any(held, axis=0) if held else 0
        self._totals_request = self._comm.iallreduce(self._totals)
        self._losses_are_weighted = losses_are_weighted
        self._n_started = 0
        for bucket in self._buckets or ():
            bucket.begin()

    def ready(self, param):
        """Tells that the gradient of ``param`` is final; others' parameters are ignored."""
        name = self._names.get(id(param))
        if name is None or self._comm.size == 1:
            return
        if self._buckets is None:
            self._order[name] = None
            return
        self._bucket_of[name].take(name, self._factor())
        self._start_sums(lambda bucket: bucket.is_full)
        while self._under_way and self._under_way[0].Test():
            self._under_way.popleft()

    def finish(self):
        """Takes the gradients that were not announced, completes all sums and sets the gradients.

        Returns:
            The number of samples of all ranks (of ranks, where they count equally).
        """
        self.start()
        return self.complete()

    def start(self):
        """The first half of :meth:`finish`: afterwards the sums are under way, and the parameters'
        gradients are not needed any more."""
        factor = self._factor()
        if self._comm.size == 1:
            self._means = {name: param.grad for name, param in self._params.items()}
            return
        if self._buckets is None:
            self._lay_out()
        self._start_sums(lambda bucket: self._fill(bucket, factor))
        taken = [bucket.had(name) for name, bucket in self._bucket_of.items()]
        self._marks[:] = taken
        self._under_way.append(self._comm.iallreduce(self._marks))

    def complete(self):
        """The second half of :meth:`finish`, which see."""
        for name, mean in self.means().items():
            if self._params[name].grad is not mean:
                self._params[name].grad = mean
        return self.n_samples()

    def means(self):
        """Completes the sums; returns the gradients' means over all ranks by name, None for those
        that no rank has: views into the buckets, which are valid until the next step begins."""
        while self._under_way:
            self._under_way[0].Wait()
            self._under_way.popleft()
        if self._comm.size > 1:
            if not self._zero_fill:
                self._check_presence()
            counts = dict(zip(self._bucket_of, self._marks.tolist(), strict=True))
            self._means = {
                name: view if counts[name] else None
                for bucket in self._buckets
                for name, view in bucket.gradients()
            }
        return self._means

    def share(self):
        """Returns this rank's share of the samples of all ranks; collective when first called in a
        step, so all ranks call it at the same place."""
        self._totals_request.Wait()
        if self._totals[2] > 0:
            self._move()
        return float(self._n_samples / max(self._totals[0], 1))

    def _move(self):
        """Moves the buckets to memory in which no program holds gradients."""
        self._totals[2] = 0
        if self._totals[3] == 0:
            for bucket in self._buckets:
                bucket.exchange_rooms()
            return
        arrays = self._comm.make_buffers([bucket.specification for bucket in self._buckets])
        for bucket, array in zip(self._buckets, arrays, strict=True):
            bucket.allocate(array)

    def n_samples(self):
        """Returns the number of samples of all ranks (of ranks, where they count equally)."""
        self._totals_request.Wait()
        return int(self._totals[0])

    def n_ranks_with_samples(self):
        """Returns how many ranks have samples in this step."""
        self._totals_request.Wait()
        return int(self._totals[1])

    def serialize(self, serializer):
        """Saves or restores what the compression remembers from step to step."""
        if hasattr(self._compression, "serialize"):
            self._compression.serialize(serializer["compression"], self._comm)

    def _factor(self):
        """What gradients are multiplied by; 0 if those of this rank do not count."""
        share = self.share()
        return float(share > 0) if self._losses_are_weighted else share

    def _start_sums(self, is_ready):
        """Starts the sums of the next buckets, in the agreed order, as long as each is ready."""
        while self._n_started < len(self._buckets):
            bucket = self._buckets[self._n_started]
            if not is_ready(bucket):
                return
            self._under_way.append(self._compression(self._comm, bucket))
            self._n_started += 1

    def _fill(self, bucket, factor):
        """Fills a bucket at the end of the step, when all that is left to do is to send them."""
        bucket.take_rest(factor)
        if len(self._under_way) >= MOST_UNDER_WAY:
            self._under_way[0].Wait()
            self._under_way.popleft()
        return True

    def _lay_out(self):
        """Agrees with the other ranks on the order of parameters and cuts it into buckets."""
        order = self._comm.bcast_obj([*self._order, *sorted(self._params.keys() - self._order)])
        if unlike := self._params.keys() ^ set(order):
            raise ValueError(
                f"parameters must be initialized on all ranks or on none, but on ranks 0 and "
                f"{self._comm.rank} this differs for {', '.join(sorted(unlike))}"
            )
        self._buckets, self._bucket_of = [], {}
        with_room = {}  # for each dtype, the bucket that is not yet large enough
        for name in order:
            param = self._params[name]
            bucket = with_room.get(param.dtype)
            if bucket is None or bucket.nbytes >= BUCKET_BYTES:
                bucket = Bucket(param.dtype, self._comm.gradient_dtype(param.dtype), param.xp)
                with_room[param.dtype] = bucket
                self._buckets.append(bucket)
            bucket.add(name, param)
            self._bucket_of[name] = bucket
        totals = self._totals
        self._totals, self._marks, *arrays = self._comm.make_buffers(
            [(totals.size, totals.dtype), (len(order), np.dtype(np.int64))]
            + [bucket.specification for bucket in self._buckets]
        )
        self._totals[...] = totals
        for bucket, array in zip(self._buckets, arrays, strict=True):
            bucket.allocate(array)
            bucket.begin()

    def _check_presence(self):
        n_ranks = self.n_ranks_with_samples()
        counts = zip(self._bucket_of, self._marks.tolist(), strict=True)
        lacking = [name for name, n_present in counts if 0 < n_present < n_ranks]
        if lacking:
            held = self._comm.allgather_obj(
                [self._n_samples == 0 or self._bucket_of[name].had(name) for name in lacking]
            )
            text = "; ".join(
                f"{name} on rank {', '.join(str(r) for r, has in enumerate(held) if not has[i])}"
                for i, name in enumerate(lacking)
            )
            raise ValueError(
                "gradients are None on some ranks only, and count as zeros only with "
                f"zero_fill=True: {text}"
            )


class Bucket:
    """Gradients of one dtype in one flat array.

    Args:
        dtype: the gradients' dtype.
        wire_dtype: the dtype in which they are summed.
        xp (module): of the gradients' arrays.
    """

    def __init__(self, dtype, wire_dtype, xp):
        self.dtype, self._wire_dtype, self._xp = dtype, wire_dtype, xp
        self.nbytes = 0
        self._room = self._other_room = None
        self._params = {}
        self._slices = {}
        self._n_elements = 0

    def add(self, name, param):
        """Makes room for the gradient of one more parameter."""
        self._params[name] = param
        self._slices[name] = slice(self._n_elements, self._n_elements + param.size)
        self._n_elements += param.size
        self.nbytes = self._n_elements * self.dtype.itemsize

    @property
    def specification(self):
        """What the bucket needs of host memory: a number of elements and their dtype."""
        return (self._n_elements if self._xp is np else 0), self._wire_dtype

    @property
    def values(self):
        """The flat array, of ``wire_dtype``."""
        return self._room.values

    def allocate(self, array):
        """Moves to the flat array that was made as specified, or makes one on the GPU."""
        if self._xp is not np:
            array = self._xp.zeros(self._n_elements, self._wire_dtype)
        self._room, self._other_room = Room(array, self._slices, self._params), self._room

    def exchange_rooms(self):
        """Moves to the memory where it was before."""
        self._room, self._other_room = self._other_room, self._room

    def are_rooms_held(self):
        """Returns whether others hold parts of ``values``, and of the memory where it was before;
        True also if it has none."""
        other = self._other_room
        return self._room.is_held(self._params), other is None or other.is_held(self._params)

    def begin(self):
        """Starts a step: nothing is taken yet."""
        self._taken = {}

    @property
    def is_full(self):
        """Whether the gradients of all parameters have been taken."""
        return len(self._taken) == len(self._params)

    def take(self, name, factor):
        """Takes the final gradient of a parameter (or that it is None), times ``factor``."""
        if name in self._taken:
            raise RuntimeError(f"the gradient of {name} became final twice in one step")
        param = self._params[name]
        grad = None if factor == 0 else param.grad
        self._taken[name] = grad is not None
        view = self._room.views[name]
        if grad is None:
            view[...] = 0
        elif factor == 1:
            view[...] = grad
        else:
            self._xp.multiply(grad, view.dtype.type(factor), out=view)
        if grad is not None and view.dtype == grad.dtype:
            param.grad = view  # the gradient's memory serves what backward goes on with

    def take_rest(self, factor):
        """Takes all gradients that have not been taken."""
        for name in self._params:
            if name not in self._taken:
                self.take(name, factor)

    def had(self, name):
        """Whether this rank had a gradient for the parameter."""
        return self._taken[name]

    def views(self):
        """Returns the parts of ``values`` by parameter name, in the shapes of the parameters."""
        return self._room.views

    def gradients(self):
        """Yields names and what ``values`` holds for them, in the gradients' dtype."""
        for name, view in self._room.views.items():
            yield name, view.astype(self.dtype, copy=False)


class Room:
    """The memory of a bucket.

    Args:
        values: flat array.
        slices (dict): the place of each gradient, by the parameter's name.
        params (dict): the parameters.

    Attributes:
        values: as given.
        views (dict): the gradients, parts of ``values`` in the shapes of the parameters.
    """

    def __init__(self, values, slices, params):
        self.values = values
        self.views = {
            name: values[slices[name]].reshape(param.shape) for name, param in params.items()
        }

    def is_held(self, params):
        """Whether anything but the parameters' ``grad`` refers to a view, or to a part of one."""
        # Each array is referred to by its attribute or dict and by getrefcount's argument, and
        # ``values`` by all arrays that are parts of it, also by parts of the views. A gradient that
        # has become a Variable may be held as such, and counts as held.
        return sys.getrefcount(self.values) > 2 + len(self.views) or any(
            sys.getrefcount(self.views[name]) > 2 + (param._grad is self.views[name])
            for name, param in params.items()
        )
