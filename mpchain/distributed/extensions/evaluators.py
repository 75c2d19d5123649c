"""Evaluation of a model on the samples of all ranks."""

import itertools

from mpchain.configuration import no_backprop_mode
from mpchain.dataset import concat_examples
from mpchain.distributed.extensions.aggregation import means_over_ranks
from mpchain.reporter import DictSummary
from mpchain.training.extensions import Evaluator
from mpchain.training.named_parts import as_arguments


def create_multi_node_evaluator(actual_evaluator, communicator):
    """Makes an evaluator return means over the samples of all ranks, the same on every rank.

    Each rank evaluates its own samples, as many as it has: none, too. Sums and weights are
    combined, not means. Only where an evaluator has an ``evaluate`` of its own, which
    returns nothing but means, are these averaged with equal weights.

    Args:
        actual_evaluator (Evaluator): its iterator yields this rank's share of the data, such as
            those of :func:`mpchain.distributed.create_sharded_iterator` or
            :func:`mpchain.distributed.scatter_dataset`.
        communicator (Communicator): the ranks.

    Returns:
        The evaluator itself, with its method ``evaluate`` replaced.
    """
    summarize = actual_evaluator.summarize
    if type(actual_evaluator).evaluate is not Evaluator.evaluate:
        summarize = _as_summary(actual_evaluator.evaluate)
    if communicator.rank > 0:
        actual_evaluator._progress_bar = False  # one bar is enough
    actual_evaluator.evaluate = lambda: means_over_ranks(communicator, summarize())
    return actual_evaluator


def _as_summary(evaluate):
    def summarize():
        summary = DictSummary()
        summary.add(evaluate())
        return summary

    return summarize


class GenericMultiNodeEvaluator(Evaluator):
    """Base of evaluators whose result is more than a mean over samples, such as a BLEU score.

    Subclasses override :meth:`calc_local` and :meth:`aggregate`. Ranks may have different numbers
    of batches. What ``aggregate`` returns is reported on all ranks.

    Args:
        comm (Communicator): the ranks.
        iterator, target, device, converter: see :class:`mpchain.training.extensions.Evaluator`.
        root (int): the rank that aggregates.
        progress_hook: function that is called with each batch after its evaluation; on the root
            only.
    """

    def __init__(
        self,
        comm,
        iterator,
        target,
        device=None,
        converter=concat_examples,
        root=0,
        *,
        progress_hook=None,
    ):
        super().__init__(iterator, target, converter, device)
        self.comm = comm
        self.root = root
        self._progress_hook = progress_hook if comm.rank == root else None

    def calc_local(self, *args, **kwargs):
        """Evaluates one batch.

        Args:
            args, kwargs: what the converter makes of the batch.

        Returns:
            Any object that can be pickled.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement calc_local")

    def aggregate(self, results):
        """Makes the report of all results; called on the root only.

        Args:
            results (list): what :meth:`calc_local` returned on all ranks: for the first batch of
                each rank, in the order of ranks, then for the second ones, and so on.

        Returns:
            dict: the values to report, by name.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement aggregate")

    def evaluate(self):
        """Returns what :meth:`aggregate` makes of the batches of all ranks, on all ranks."""
        mine = [self._evaluate(batch) for batch in self._restarted_iterator() if len(batch) > 0]
        gathered = self.comm.gather_obj(mine, self.root)
        observation = None
        if gathered is not None:
            nothing = object()
            rounds = itertools.zip_longest(*gathered, fillvalue=nothing)
            observation = self.aggregate(
                [result for results in rounds for result in results if result is not nothing]
            )
        return self.comm.bcast_obj(observation, root=self.root)

    def _evaluate(self, batch):
        args, kwargs = as_arguments(self.converter(batch, self.device))
        with no_backprop_mode():
            result = self.calc_local(*args, **kwargs)
        if self._progress_hook is not None:
            self._progress_hook(batch)
        return result
