"""Extensions that combine observations, and persistent values of models, over the ranks."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.distributed.communicators import Communicator
from mpchain.link import Link
from mpchain.reporter import DictSummary
from mpchain.serializer import AbstractSerializer
from mpchain.training import PRIORITY_EDITOR, PRIORITY_WRITER, Extension, Trainer
from mpchain.training.states import parse_json, serialize_optional, serialize_part_if_stored
from mpchain.training.triggers import get_trigger
from mpchain.training.triggers.interval import TriggerLike


class AllreducePersistent(Extension):
    """Replaces the persistent floating-point arrays of a model with their means over the ranks.

    Running statistics of batch normalization are such arrays: each rank computes them from its own
    samples. The extension runs before evaluators.

    Args:
        model: the model.
        comm: the communicator of the ranks.

    Example:
        >>> from mpchain.distributed.extensions import AllreducePersistent
        >>> AllreducePersistent(L.BatchNormalization(3), comm).trigger
        (1, 'epoch')
    """

    trigger = (1, "epoch")
    priority = PRIORITY_WRITER + 1

    def __init__(self, model: Link, comm: Communicator):
        self.model, self.comm = model, comm

    def __call__(self, trainer: Trainer | None = None) -> None:
        """Averages the persistent arrays of the model over the ranks; collective."""
        self.model.device_resident_accept(_Averaging(self.comm))


class _Averaging(DeviceResidentsVisitor):
    """Averages persistent arrays over the ranks, in place."""

    def __init__(self, comm):
        self._comm = comm

    def visit_device_resident(self, device_resident):
        """Does nothing for the object itself."""

    def visit_variable(self, param):
        """Does nothing for parameters, which the optimizer keeps equal."""

    def visit_array(self, array):
        """Replaces the elements with their means; returns the array."""
        if is_floating(array.dtype):
            array[...] = self._comm.allreduce(array) / self._comm.size
        return array


class ObservationAggregator(Extension):
    """Replaces a reported value with an aggregate of all ranks' values.

    Args:
        comm: the communicator of the ranks.
        original_key: name of the value in each rank's observation.
        aggregated_key: name of the result; None means ``original_key``.
        comm_trigger: when the ranks gather the values that were reported since the last time.
        aggregator: function that returns the result for a list with one list per rank, which holds
            the rank's values in the order in which they were reported (numbers, host arrays, or
            pairs of value and weight); called on rank 0 only. None means the mean of all values.

    Example:
        >>> from mpchain.distributed.extensions import ObservationAggregator
        >>> greatest = lambda lists: max(value for values in lists for value in values)
        >>> extension = ObservationAggregator(comm, "main/loss", aggregator=greatest)
    """

    trigger = (1, "iteration")
    priority = PRIORITY_EDITOR

    def __init__(
        self,
        comm: Communicator,
        original_key: str,
        aggregated_key: str | None = None,
        *,
        comm_trigger: TriggerLike = (1, "iteration"),
        aggregator: Callable[[list[list]], Any] | None = None,
    ):
        self.comm = comm
        self.original_key = original_key
        self.aggregated_key = aggregated_key or original_key
        self._comm_trigger = get_trigger(comm_trigger)
        self._aggregator = aggregator or _mean
        self._values = []

    def __call__(self, trainer: Trainer) -> None:
        """Records the value; if the trigger fires, gathers and aggregates the values of all
        ranks."""
        if self.original_key in trainer.observation:
            self._values.append(_as_plain(trainer.observation[self.original_key]))
        if not self._comm_trigger(trainer):
            return
        lists = self.comm.allgather_obj(self._values)
        self._values = []
        if any(lists):
            result = self._aggregator(lists) if self.comm.rank == 0 else None
            trainer.observation[self.aggregated_key] = self.comm.bcast_obj(result)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the trigger and this rank's values, except arrays, that were not
        aggregated yet.

        Each rank must save its own state if the ranks' values differ.
        """
        serialize_part_if_stored(self._comm_trigger, serializer["comm_trigger"])
        numbers = [value for value in self._values if not isinstance(value, np.ndarray)]
        stored = serialize_optional(serializer, "values", json.dumps(numbers))
        self._values = parse_json(stored, list)


def _as_plain(value):
    """Returns a reported value as a number or host array, or as a pair of them for a pair."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_as_plain, value))
    value = cuda.to_cpu(getattr(value, "array", value))
    is_scalar = isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0
    return value.item() if is_scalar else value


def _mean(lists):
    summary = DictSummary()
    for values in lists:
        for value in values:
            summary.add({"value": tuple(value) if isinstance(value, (list, tuple)) else value})
    return summary.compute_mean().get("value")


def means_over_ranks(comm: Communicator, summary: DictSummary) -> dict[str, Any]:
    """Combines the summaries of the ranks.

    Args:
        comm: the communicator of the ranks.
        summary: this rank's values with their weights; ranks may have different names.

    Returns:
        A dict from each name to the weighted mean over all ranks, the same on all ranks.

    Example:
        >>> summary = DictSummary()
        >>> summary.add({"loss": 1.0})
        >>> summary.add({"loss": 3.0})
        >>> means_over_ranks(comm, summary)
        {'loss': 2.0}
    """
    total = DictSummary()
    for part in comm.allgather_obj(summary):
        total.merge(part)
    return total.compute_mean()
