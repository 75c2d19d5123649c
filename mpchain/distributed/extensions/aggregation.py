"""Extensions that combine what the ranks have: observations, and persistent values of models."""

import json

import numpy as np

from mpchain.backends import cuda
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.reporter import DictSummary
from mpchain.training import PRIORITY_EDITOR, PRIORITY_WRITER, Extension
from mpchain.training.states import serialize_optional, serialize_part_if_stored
from mpchain.training.triggers import get_trigger


class AllreducePersistent(Extension):
    """Replaces the persistent floating-point arrays of a model by their means over the ranks.

    Such are the running statistics of batch normalization, which each rank gathers from its own
    samples. It runs before evaluators do.

    Args:
        model (Link): the model.
        comm (Communicator): the ranks.
    """

    trigger = (1, "epoch")
    priority = PRIORITY_WRITER + 1

    def __init__(self, model, comm):
        self.model = model
        self.comm = comm

    def __call__(self, trainer=None):
        """Averages the arrays."""
        self.model.device_resident_accept(_Averaging(self.comm))


class _Averaging(DeviceResidentsVisitor):
    """Averages persistent arrays over the ranks, in place."""

    def __init__(self, comm):
        self._comm = comm

    def visit_device_resident(self, device_resident):
        """There is nothing to do for the object itself."""

    def visit_variable(self, param):
        """Parameters are the optimizer's."""

    def visit_array(self, array):
        """Returns the array, whose elements are now the means."""
        if array.dtype.kind == "f":
            array[...] = self._comm.allreduce(array) / self._comm.size
        return array


class ObservationAggregator(Extension):
    """Replaces a reported value by what an aggregator makes of all ranks' values.

    Args:
        comm (Communicator): the ranks.
        original_key (str): name of the value in each rank's observation.
        aggregated_key (str): name of the result; None means ``original_key``.
        comm_trigger: when the ranks exchange what each has seen since the last time.
        aggregator: function of a list with one list per rank, of the values in the order in which
            they were reported (numbers, host arrays, or pairs of value and weight), that returns
            the result; called on rank 0 only. None means the mean of all values.
    """

    trigger = (1, "iteration")
    priority = PRIORITY_EDITOR

    def __init__(
        self,
        comm,
        original_key,
        aggregated_key=None,
        *,
        comm_trigger=(1, "iteration"),
        aggregator=None,
    ):
        self.comm = comm
        self.original_key = original_key
        self.aggregated_key = aggregated_key or original_key
        self._comm_trigger = get_trigger(comm_trigger)
        self._aggregator = aggregator or _mean
        self._values = []

    def __call__(self, trainer):
        """Notes the value, and exchanges and aggregates when it is time to."""
        if self.original_key in trainer.observation:
            self._values.append(_as_plain(trainer.observation[self.original_key]))
        if not self._comm_trigger(trainer):
            return
        lists = self.comm.allgather_obj(self._values)
        self._values = []
        if any(lists):
            result = self._aggregator(lists) if self.comm.rank == 0 else None
            trainer.observation[self.aggregated_key] = self.comm.bcast_obj(result)

    def serialize(self, serializer):
        """Saves or restores the trigger and the numbers that wait for it.

        They are this rank's: where the ranks' differ, save for each rank.
        """
        serialize_part_if_stored(self._comm_trigger, serializer["comm_trigger"])
        numbers = [value for value in self._values if not isinstance(value, np.ndarray)]
        self._values = json.loads(serialize_optional(serializer, "values", json.dumps(numbers)))


def _as_plain(value):
    """Returns a reported value as a number or host array; pairs as pairs."""
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


def means_over_ranks(comm, summary):
    """Combines what the ranks have summed up.

    Args:
        comm (Communicator): the ranks.
        summary (DictSummary): this rank's values with their weights; names may differ by rank.

    Returns:
        dict: the weighted mean over all ranks by name, the same on all ranks.
    """
    total = DictSummary()
    for part in comm.allgather_obj(summary):
        total.merge(part)
    return total.compute_mean()
