"""Averaging gradients over ranks, in flat buckets, while backward goes on."""

import collections

import numpy as np

from mpchain import backend

BUCKET_BYTES = 4 * 1024 * 1024
"""Gradients in one bucket; larger ones begin to travel later, smaller ones cost more messages."""

MOST_UNDER_WAY = 2
"""Sums under way while nothing else is left to do: with more, buckets leave the cache meanwhile."""


def sum_plainly(comm, flat):
    """Begins to sum a bucket over the ranks in place, exactly; returns a request."""
    return comm.iallreduce(flat)


class GradientReducer:
    """Replaces the gradients of parameters by their means over the ranks, weighted by samples.

    In the first step the order in which backward finishes the gradients is learned; rank 0's is
    agreed on, and the gradients are laid out in that order in flat buckets, one dtype in each. From
    then on a bucket is summed over the ranks as soon as its last gradient is final, while backward
    goes on. All ranks start the sums in the same order, whatever the order of their own backward.

    A gradient is multiplied by the rank's share of the samples when it is copied into its bucket,
    and the bucket's tail tells which gradients the rank has; so one sum yields the mean, and what
    no rank has stays None. Afterwards ``param.grad`` is a view into the bucket.

    A step is :meth:`begin`, then :meth:`ready` for each final gradient (in any order, or not at
    all), then :meth:`finish`. With one rank, all of them leave the gradients as they are.

    Args:
        comm (Communicator): the ranks.
        zero_fill (bool): whether a gradient that only some of the ranks with samples have counts as
            zeros on the others; if not, ``finish`` raises ValueError.
        begin_sum: how a bucket travels: called with the communicator and the flat array, it begins
            the sum in place and returns a request with ``Test()`` and ``Wait()``.
    """

    def __init__(self, comm, *, zero_fill=True, begin_sum=sum_plainly):
        self._comm = comm
        self._zero_fill = zero_fill
        self._begin_sum = begin_sum
        self._under_way = collections.deque()
        self.watch({})

    def watch(self, params):
        """Sets the parameters, by name; they must be initialised, and the same on all ranks."""
        self._params = params
        self._names = {id(param): name for name, param in params.items()}
        self._order = {}  # names in the order in which gradients became final, in the first step
        self._buckets = None

    def begin(self, n_samples=None):
        """Starts a step in which this rank has so many samples (None: the ranks count equally).

        The ranks tell each other these numbers, and need them at their first :meth:`ready`: so it
        is best called before the forward pass.
        """
        if self._under_way:
            raise RuntimeError(
                "an exception ended the step before while gradients were under way; "
                "the ranks cannot go on after that"
            )
        self._n_samples = 1 if n_samples is None else n_samples
        self._totals = np.array([self._n_samples, self._n_samples > 0], np.float64)
        self._totals_request = self._comm.iallreduce(self._totals)
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
        self._bucket_of[name].take(name, self._share())
        self._start_sums(lambda bucket: bucket.is_full)
        self._complete_oldest(lambda request: request.Test())

    def finish(self):
        """Takes the gradients that were not announced, completes all sums and sets the gradients.

        Returns:
            The number of samples of all ranks (of ranks, where they count equally).
        """
        share = self._share()
        n_samples, n_ranks = self._totals
        if self._comm.size == 1:
            return n_samples
        if self._buckets is None:
            self._lay_out()
        self._start_sums(lambda bucket: self._complete(bucket, share))
        self._complete_oldest(lambda request: request.Wait() or True)
        if not self._zero_fill:
            self._check_presence(n_ranks)
        for bucket in self._buckets:
            bucket.put_back()
        return n_samples

    def _share(self):
        """This rank's share of the samples of all ranks."""
        self._totals_request.Wait()
        return self._n_samples / max(self._totals[0], 1)

    def _start_sums(self, is_ready):
        """Starts the sums of the next buckets, in the agreed order, as long as each is ready."""
        while self._n_started < len(self._buckets):
            bucket = self._buckets[self._n_started]
            if not is_ready(bucket):
                return
            self._under_way.append(self._begin_sum(self._comm, bucket.flat))
            self._n_started += 1

    def _complete(self, bucket, share):
        """Fills a bucket at the end of the step, when all that is left to do is to send them."""
        bucket.take_rest(share)
        if len(self._under_way) >= MOST_UNDER_WAY:
            self._under_way.popleft().Wait()
        return True

    def _complete_oldest(self, is_complete):
        """Drops the oldest sums under way, as long as each is complete; lets the next progress."""
        while self._under_way and is_complete(self._under_way[0]):
            self._under_way.popleft()

    def _lay_out(self):
        """Agrees with the other ranks on the order of parameters and cuts it into buckets."""
        order = self._comm.bcast_obj([*self._order, *sorted(self._params.keys() - self._order)])
        if unlike := self._params.keys() ^ set(order):
            raise ValueError(
                f"parameters must be initialised on all ranks or on none, but on ranks 0 and "
                f"{self._comm.rank} this differs for {', '.join(sorted(unlike))}"
            )
        self._buckets, self._bucket_of = [], {}
        with_room = {}  # for each dtype, the bucket that is not yet large enough
        for name in order:
            param = self._params[name]
            bucket = with_room.get(param.dtype)
            if bucket is None or bucket.nbytes >= BUCKET_BYTES:
                bucket = with_room[param.dtype] = Bucket(param.dtype)
                self._buckets.append(bucket)
            bucket.add(name, param)
            self._bucket_of[name] = bucket
        for bucket in self._buckets:
            bucket.allocate(self._comm.gradient_dtype(bucket.dtype))
            bucket.begin()

    def _check_presence(self, n_ranks):
        lacking = [name for bucket in self._buckets for name in bucket.partly_present(n_ranks)]
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
    """Gradients of one dtype in one flat array, and in its tail which of them the rank has.

    Args:
        dtype: the gradients' dtype.
    """

    def __init__(self, dtype):
        self.dtype = dtype
        self.nbytes = 0
        self._params = {}
        self._slices = {}
        self._n_elements = 0

    def add(self, name, param):
        """Makes room for the gradient of one more parameter."""
        self._params[name] = param
        self._slices[name] = slice(self._n_elements, self._n_elements + param.size)
        self._n_elements += param.size
        self.nbytes = self._n_elements * self.dtype.itemsize

    def allocate(self, wire_dtype):
        """Makes the flat array."""
        xp = next(iter(self._params.values())).xp
        self.flat = xp.zeros(self._n_elements + len(self._params), wire_dtype)

    def begin(self):
        """Starts a step: nothing is taken yet."""
        self._taken = {}

    @property
    def is_full(self):
        """Whether the gradients of all parameters have been taken."""
        return len(self._taken) == len(self._params)

    def take(self, name, share):
        """Takes the final gradient of a parameter (or that it is None), times ``share``."""
        if name in self._taken:
            raise RuntimeError(f"the gradient of {name} became final twice in one step")
        grad = None if share == 0 else self._params[name].grad
        self._taken[name] = grad is not None
        place = self.flat[self._slices[name]]
        if grad is None:
            place[...] = 0
        else:
            xp = backend.get_array_module(grad)
            xp.multiply(grad.reshape(-1), place.dtype.type(share), out=place)
        if self.is_full:
            tail = np.array([self._taken[name] for name in self._params], self.flat.dtype)
            backend.copyto(self.flat[self._n_elements :], tail)

    def take_rest(self, share):
        """Takes all gradients that have not been taken."""
        for name in self._params:
            if name not in self._taken:
                self.take(name, share)

    def put_back(self):
        """Makes each parameter's gradient a view into the bucket; None if no rank had one."""
        for (name, param), n_present in zip(self._params.items(), self._presence(), strict=True):
            if n_present == 0:
                param.grad = None
            else:
                flat = self.flat[self._slices[name]].astype(self.dtype, copy=False)
                param.grad = flat.reshape(param.shape)

    def _presence(self):
        """For each parameter, how many ranks had a gradient."""
        return backend.cuda.to_cpu(self.flat[self._n_elements :]).tolist()

    def partly_present(self, n_ranks):
        """The names of parameters whose gradient some of ``n_ranks``, but not all, had."""
        counts = zip(self._params, self._presence(), strict=True)
        return [name for name, n_present in counts if 0 < n_present < n_ranks]

    def had(self, name):
        """Whether this rank had a gradient for the parameter."""
        return self._taken[name]
