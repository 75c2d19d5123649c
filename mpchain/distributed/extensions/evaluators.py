"""Evaluation of a model on the samples of all ranks."""

import itertools
from collections.abc import Callable
from typing import Any

from mpchain.configuration import no_backprop_mode
from mpchain.dataset import Iterator, concat_examples
from mpchain.distributed.communicators import Communicator
from mpchain.reporter import DictSummary
from mpchain.training.extensions import Evaluator
from mpchain.training.named_parts import as_arguments
from mpchain.typing import DeviceLike


def create_multi_node_evaluator(actual_evaluator: Evaluator, communicator: Communicator) -> Any:
    """Makes an evaluator return means over the samples of all ranks, the same on every rank.

    Each rank evaluates any number of its own samples, including zero. The ranks combine sums and
    weights, not means. If a subclass overrides ``evaluate``, which returns only means, the ranks
    average these means with equal weights.

    Args:
        actual_evaluator: the evaluator. Its iterator yields this rank's share of the data, from
            :func:`mpchain.distributed.create_sharded_iterator` or
            :func:`mpchain.distributed.scatter_dataset`, for example.
        communicator: the communicator of the ranks.

    Returns:
        The evaluator itself, with its method ``evaluate`` replaced.

    Example:
        >>> from mpchain import datasets, iterators
        >>> data = datasets.TupleDataset(np.ones((4, 3), "f"), np.zeros(4, "i"))
        >>> iterator = iterators.SerialIterator(data, 2, repeat=False, shuffle=False)
        >>> evaluator = extensions.Evaluator(iterator, L.Classifier(L.Linear(3, 2)))
        >>> sorted(mpchain.distributed.create_multi_node_evaluator(evaluator, comm)())
        ['main/accuracy', 'main/loss']
    """
    summarize = actual_evaluator.summarize
    if type(actual_evaluator).evaluate is not Evaluator.evaluate:
        evaluate_own = actual_evaluator.evaluate

        def summarize():
            summary = DictSummary()
            summary.add(evaluate_own())
            return summary

    if communicator.rank > 0:
        actual_evaluator.progress_bar = False  # only rank 0 shows a progress bar

    def evaluate():
        total, doubts = DictSummary(), []
        for summary, doubt in communicator.allgather_obj((summarize(), actual_evaluator.doubt)):
            total.merge(summary)
            doubts.append(doubt)
        # A rank may find a doubt in its own values; one warning, by rank 0, is enough.
        actual_evaluator.warn(next(filter(None, doubts), None) if communicator.rank == 0 else None)
        return total.compute_mean()

    actual_evaluator.evaluate = evaluate
    return actual_evaluator


class GenericMultiNodeEvaluator(Evaluator):
    """Base of evaluators whose result is not a mean over samples, such as a BLEU score.

    Subclasses override :meth:`calc_local` and :meth:`aggregate`, whose result is reported on all
    ranks. Ranks may have different numbers of batches.

    Args:
        comm: the communicator of the ranks.
        iterator, target, device, converter: see :class:`mpchain.training.extensions.Evaluator`.
        root: the rank that aggregates.
        progress_hook: function that is called with each batch after its evaluation, on the root
            only; None calls nothing.

    Example:
        >>> class Largest(mpchain.distributed.GenericMultiNodeEvaluator):
        ...     def calc_local(self, x):
        ...         return x.max()
        ...     def aggregate(self, results):
        ...         return {"largest": max(results)}
    """

    def __init__(
        self,
        comm: Communicator,
        iterator: Iterator | dict[str, Iterator],
        target: object,
        device: DeviceLike | None = None,
        converter: Callable = concat_examples,
        root: int = 0,
        *,
        progress_hook: Callable[[Any], None] | None = None,
    ):
        super().__init__(iterator, target, converter, device)
        self.comm, self.root = comm, root
        self._progress_hook = progress_hook if comm.rank == root else None

    def calc_local(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one batch; returns any object that can be pickled.

        Args:
            args, kwargs: the converted batch.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement calc_local")

    def aggregate(self, results: list) -> dict[str, Any]:
        """Returns the values to report, by name; called on the root only.

        Args:
            results: the results of :meth:`calc_local` on all ranks: for the first batch of each
                rank, in the order of the ranks, then for the second batches, and so on.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement aggregate")

    def evaluate(self) -> dict[str, Any]:
        """Returns the result of :meth:`aggregate` for the batches of all ranks, on all ranks."""
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
