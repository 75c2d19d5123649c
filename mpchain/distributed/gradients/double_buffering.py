"""Averaging gradients while the next step is computed already."""

import copy
import json

from mpchain.distributed.gradients.buckets import GradientReducer


class DoubleBufferingReducer:
    """Like a :class:`GradientReducer`, but hands out in each step the means of the step before.

    So their exchange has a whole step of time. The first step has none yet.

    Args:
        comm, zero_fill, compression: see :class:`GradientReducer`.
    """

    def __init__(self, comm, *, zero_fill=True, compression=None):
        self._params = {}
        self._kept = None  # what waits while nothing is under way: number of samples, means by name
        self._is_under_way = False
        # A compression's memory of this step is not known when the next begins: so it has two.
        self._current, self._previous = (
            GradientReducer(comm, zero_fill=zero_fill, compression=copy.deepcopy(compression))
            for _ in range(2)
        )

    def watch(self, params):
        """Sets the parameters; what waits for its step still does."""
        self._settle()
        self._params = params
        self._current.watch(params)
        self._previous.watch(params)

    def begin(self, n_samples=None, **options):
        """See :meth:`GradientReducer.begin`."""
        self._current.begin(n_samples, **options)

    def ready(self, param):
        """See :meth:`GradientReducer.ready`."""
        self._current.ready(param)

    def share(self):
        """See :meth:`GradientReducer.share`."""
        return self._current.share()

    def n_ranks_with_samples(self):
        """See :meth:`GradientReducer.n_ranks_with_samples`."""
        return self._current.n_ranks_with_samples()

    def finish(self):
        """Begins to exchange the gradients, and sets those of the step before.

        Returns:
            The number of samples of all ranks in that step; 0 if there was none.
        """
        self._current.start()
        self._settle()
        n_samples, means = self._kept or (0, {})
        for name, param in self._params.items():
            param.grad = means.get(name)
        self._current, self._previous = self._previous, self._current
        self._is_under_way, self._kept = True, None
        return n_samples

    def _settle(self):
        """Completes what is under way."""
        if self._is_under_way:
            means = self._previous.means()
            self._kept = self._previous.n_samples(), means
            self._is_under_way = False

    def serialize(self, serializer):
        """Saves or restores the means that wait for their step, and the compression's memory."""
        self._settle()
        self._current.serialize(serializer["current"])
        self._previous.serialize(serializer["previous"])
        n_samples, means = self._kept or (0, {})
        names = json.dumps([name for name, mean in means.items() if mean is not None])
        n_samples = serializer("n_samples", n_samples)
        names = json.loads(str(serializer("names", names)))
        means = {name: serializer(str(i), means.get(name)) for i, name in enumerate(names)}
        self._kept = (int(n_samples), means) if n_samples else None
