"""The updater for several ranks."""

import contextlib
import functools

from mpchain.dataset import concat_examples
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.extensions.aggregation import means_over_ranks
from mpchain.distributed.optimizers import MultiNodeOptimizer
from mpchain.distributed.optimizers.reports import Observations
from mpchain.reporter import report
from mpchain.training.named_parts import as_arguments
from mpchain.training.updaters import StandardUpdater


class MultiNodeUpdater(StandardUpdater):
    """Updates the target of a multi-node optimizer with this rank's part of each batch.

    Gradients, and the values that the model reports, are means over the samples of all ranks: the
    same on every rank, and the same as one process computes of the whole batch. A rank whose part
    is empty takes part without computing anything. Reported values that are no scalars are not
    combined.

    Args:
        iterator: yields this rank's part of each batch
            (:func:`mpchain.distributed.create_sharded_iterator`).
        optimizer (MultiNodeOptimizer): from
            :func:`mpchain.distributed.create_multi_node_optimizer`, set up with the model.
        communicator (Communicator): the ranks.
        accumulation (int): number of parts in which a rank works through its samples, to save
            memory. Gradients travel once. With a reproducible communicator it must be 1: the parts
            are the micro-shards.
        converter, device, loss_func, options: see :class:`StandardUpdater`.

    Raises:
        TypeError: the optimizer is not a multi-node one.
        ValueError: ``accumulation`` is below 1, or above with a reproducible communicator.
    """

    def __init__(
        self,
        iterator,
        optimizer,
        communicator,
        converter=concat_examples,
        device=None,
        loss_func=None,
        accumulation=1,
        **options,
    ):
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
                "MultiNodeUpdater: accumulation must be 1 with a reproducible communicator, whose "
                f"micro-shards are worked through one by one; it is {accumulation}"
            )
        self.communicator = communicator
        self.accumulation = accumulation

    def step(self, batch):
        """Updates the main optimizer's target with this rank's samples, which may be none."""
        micro_shards = self.communicator.micro_shards
        n_parts = micro_shards // self.communicator.size if micro_shards else self.accumulation
        parts = [batch[slice(*partition(len(batch), i, n_parts))] for i in range(n_parts)]
        observations = Observations(
            [(len(part), functools.partial(self._loss, part)) for part in parts]
        )
        optimizer = self.get_optimizer("main")
        optimizer.n_samples = len(batch)
        with self._division(len(batch)):
            optimizer.update_in_parts(observations.parts)
        summary, others = observations.summarize()
        report(others | means_over_ranks(self.communicator, summary))

    def _division(self, n):
        """Says how the batch is divided among the ranks, if the iterator tells."""
        mine = getattr(self.get_iterator("main"), "mine", None)
        is_known = mine is not None and mine.stop - mine.start == n
        return self.communicator.batch(mine=mine) if is_known else contextlib.nullcontext()

    def _loss(self, batch):
        """Returns the loss of a batch."""
        args, kwargs = as_arguments(self.convert(batch))
        loss_func = self.loss_func or self.get_optimizer("main").target
        return loss_func(*args, **kwargs)
