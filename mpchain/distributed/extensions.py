"""Trainer extensions for several ranks."""

from mpchain.distributed.reports import means_over_ranks
from mpchain.reporter import DictSummary
from mpchain.training.extensions import Evaluator

__all__ = ["create_multi_node_evaluator"]


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
    summarise = actual_evaluator.summarise
    if type(actual_evaluator).evaluate is not Evaluator.evaluate:
        summarise = _as_summary(actual_evaluator.evaluate)
    actual_evaluator.evaluate = lambda: means_over_ranks(communicator, summarise())
    return actual_evaluator


def _as_summary(evaluate):
    def summarise():
        summary = DictSummary()
        summary.add(evaluate())
        return summary

    return summarise
