"""The updater for several ranks."""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

from mpchain import observers
from mpchain.dataset import Iterator, concat_examples
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.extensions.aggregation import means_over_ranks
from mpchain.distributed.optimizers import MultiNodeOptimizer
from mpchain.distributed.optimizers.draws import check_weight, weighted
from mpchain.distributed.optimizers.parts import Observations
from mpchain.observers import span
from mpchain.reporter import report
from mpchain.training.named_parts import as_arguments
from mpchain.training.updaters import StandardUpdater
from mpchain.typing import DeviceLike
from mpchain.variable import Variable


class MultiNodeUpdater(StandardUpdater):
    """Updates the target of a multi-node optimizer with this rank's part of each batch.

    Gradients, and the values that the model reports, are means over the samples of all ranks, which
    are the same on every rank, and the same as one process computes for the whole batch. A rank
    whose part is empty takes part without computing a loss. Reported values that are not scalars
    are not combined.

    Args:
        iterator: yields this rank's part of each batch
            (:func:`mpchain.distributed.create_sharded_iterator`).
        optimizer: comes from :func:`mpchain.distributed.create_multi_node_optimizer`, set up with
            the model.
        communicator: the communicator of the ranks.
        accumulation: number of micro-batches into which a rank divides its samples, to save memory.
            Gradients are summed over the ranks once. With a reproducible communicator it must be 1,
            because a step processes one micro-shard after another.
        weight: function of the arguments of the loss that returns the weight of this rank's
            samples, such as their number of words; None uses the number of samples. It is for
            losses that are means over something other than samples, except losses of
            :mod:`mpchain.functions` or :mod:`mpchain.functions.batch`, which compute the weight
            themselves. Reports are means by this weight, too.
        converter, device, loss_func, options: see :class:`StandardUpdater`. With accumulation or a
            reproducible communicator, ``graph=True`` only causes a warning.

    Raises:
        TypeError: the optimizer is not a multi-node optimizer.
        ValueError: ``accumulation`` is below 1, or above 1 with a reproducible communicator. In an
            update: a weight is negative or not finite, 0 on all ranks, or not a whole number with a
            reproducible communicator.

    Example:
        >>> from mpchain import distributed, iterators
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> data = [(np.ones(3, np.float32), np.int32(1))] * 8
        >>> optimizer = distributed.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
        >>> batches = iterators.SerialIterator(data, batch_size=4)
        >>> batches = distributed.create_sharded_iterator(batches, comm)
        >>> updater = distributed.MultiNodeUpdater(batches, optimizer, comm)
        >>> updater.update(); updater.epoch_detail
        0.5
    """

    def __init__(
        self,
        iterator: Iterator,
        optimizer: MultiNodeOptimizer,
        communicator: Communicator,
        converter: Callable[..., Any] = concat_examples,
        device: DeviceLike | None = None,
        loss_func: Callable[..., Variable] | None = None,
        accumulation: int = 1,
        *,
        weight: Callable[..., Any] | None = None,
        **options: Any,
    ):
        self.communicator = communicator
        self.accumulation = accumulation
        self.weight: Any = weight
        self._observations = Observations()  # recorded updates keep their observations here
        super().__init__(iterator, optimizer, converter, device, loss_func, **options)
        main = self.get_optimizer("main")
        if not isinstance(main, MultiNodeOptimizer):
            raise TypeError(
                "MultiNodeUpdater: optimizer must come from create_multi_node_optimizer, "
                f"but is {type(main).__name__}"
            )
        if accumulation < 1:
            raise ValueError(
                f"MultiNodeUpdater: accumulation must be at least 1, not {accumulation}"
            )
        if accumulation > 1 and communicator.micro_shards:
            raise ValueError(
                "MultiNodeUpdater: accumulation must be 1 with a reproducible communicator, "
                f"which processes one micro-shard after another, not {accumulation}"
            )

    def _capture(self):
        if self.accumulation == 1 and not self.communicator.micro_shards:
            return super()._capture()
        warnings.warn(
            "MultiNodeUpdater: graph=True has no effect with accumulation, or with a reproducible "
            "communicator, which process a batch in parts",
            stacklevel=4,
        )
        return None

    def step(self, batch: list[Any]) -> None:
        """Updates the main optimizer's target with this rank's samples, which may be none."""
        if self.captured is None:
            self._step_eagerly(batch)
        elif batch:
            self._step_captured(batch)
        else:
            self.captured.instead(self._step_eagerly, batch)

    def _step_captured(self, batch):
        optimizer, (args, kwargs) = self.get_optimizer("main"), self._arguments(batch)
        n = optimizer.n_samples = len(batch)
        weight, scope = n, contextlib.nullcontext()
        with self._division(n):
            if self.weight is not None:
                weight = self._weight_of(args, kwargs)
                if weight == 0:  # a rank of weight 0 computes no loss
                    self.captured.instead(self._step_eagerly, batch)
                    return
                scope = weighted(self.communicator, weight)
            with scope, self._observations.collect(weight):
                self.captured(*args, **kwargs)
        self._report(self._observations, optimizer.current_step.reducer.message.means())

    def _weight_of(self, args, kwargs):
        weight = check_weight("MultiNodeUpdater", self.weight(*args, **kwargs))
        if self.communicator.micro_shards and not weight.is_integer():
            raise ValueError(
                "MultiNodeUpdater: with a reproducible communicator weights must be whole numbers, "
                f"whose sums are exact, but one is {weight}"
            )
        return weight

    def _update_optimizer(self, *args, **kwargs):
        optimizer = self.get_optimizer("main")
        loss = functools.partial(self.loss_func or optimizer.target, *args, **kwargs)
        optimizer.update_in_parts([(optimizer.n_samples, loss)], self._observations)

    def _step_eagerly(self, batch):
        comm, n, parts = self.communicator, len(batch), [batch]
        n_parts = len(comm.own_shards)
        if not comm.micro_shards:
            n_parts = self.accumulation * observers.n_parts(self.get_optimizer("main"))
        if n_parts > 1:
            parts = [batch[slice(*partition(n, i, n_parts))] for i in range(n_parts)]
        losses = [(len(x), functools.partial(self._loss, x)) for x in parts]
        observations, weights = Observations(losses), None
        if self.weight is not None:
            inputs = [self._arguments(x) if x else None for x in parts]
            weights = [0.0 if x is None else self._weight_of(*x) for x in inputs]
            losses = [functools.partial(self._loss_of, x) for x in inputs]
            observations = Observations(zip(weights, losses))
        losses = [(len(x), loss) for x, (_, loss) in zip(parts, observations.parts)]
        with self._division(n):
            optimizer = self.get_optimizer("main")
            means = optimizer.update_in_parts(losses, observations, weights)
        self._report(observations, means)

    def _report(self, observations, means):
        weights = {}
        if means is None:  # means are None within no_sync
            means = means_over_ranks(self.communicator, observations.summary())
        else:
            weights = self.get_optimizer("main").current_step.reducer.message.weights()
        # The log weights the means of iterations by weights that were reported with them.
        means |= {name: (means[name], weight) for name, weight in weights.items()}
        report(observations.last() | means)

    def _division(self, n):
        """Returns a context that sets the division of the batch among the ranks, if it is known."""
        iterator = self.get_iterator("main")
        mine = getattr(iterator, "mine", None)
        if mine is None or mine.stop - mine.start != n:
            return contextlib.nullcontext()
        n_total = getattr(iterator, "n_samples", None)
        if getattr(iterator, "is_divided_evenly", False):
            mine = None  # ``comm.share_of`` then divides the batch
        return self.communicator.batch(n_total, mine=mine)

    def _arguments(self, batch):
        """Returns positional and keyword arguments of the loss of a batch."""
        with span("input", "converter", self):
            return as_arguments(self.convert(batch))

    def _loss(self, batch):
        """Returns the loss of a batch."""
        return self._loss_of(self._arguments(batch))

    def _loss_of(self, arguments):
        args, kwargs = arguments
        loss_func = self.loss_func or self.get_optimizer("main").target
        return loss_func(*args, **kwargs)
