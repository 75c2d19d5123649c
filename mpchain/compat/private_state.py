"""Private state of Chainer's classes that subclasses in old programs use, as data."""

import operator
from collections.abc import Callable
from typing import Any

from mpchain import links
from mpchain.datasets import LabeledImageDataset, SubDataset, TupleDataset
from mpchain.function_node import FunctionNode
from mpchain.iterators import SerialIterator
from mpchain.link import Link
from mpchain.reporter import DictSummary, Reporter, Summary
from mpchain.training import Trainer
from mpchain.training.extensions import LogReport, PlotReport
from mpchain.update_rule import UpdateRule
from mpchain.variable import VariableNode


class Renamed:
    """State that mpchain keeps at another place: it is read and set there.

    Args:
        place: where it is, by attributes: ``_means._trigger``.
    """

    def __init__(self, place: str):
        self._owner, _, self._name = place.rpartition(".")

    def _find(self, instance):
        return operator.attrgetter(self._owner)(instance) if self._owner else instance

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else getattr(self._find(instance), self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(self._find(instance), self._name, value)


RENAMED: list[tuple[type, str, str]] = [
    (FunctionNode, "_input_indexes_to_retain", "_inputs_to_retain"),
    (FunctionNode, "_output_indexes_to_retain", "_outputs_to_retain"),
    (FunctionNode, "_retained_output_data", "_retained_outputs"),
    (Link, "_local_link_hooks", "_hooks"),
    (LogReport, "_keys", "_means._keys"),
    (LogReport, "_summary", "_means._summary"),
    (LogReport, "_trigger", "_means._trigger"),
    (PlotReport, "_data", "_points"),
    (PlotReport, "_summary", "_means._summary"),
    (PlotReport, "_trigger", "_means._trigger"),
    (Trainer, "_start_at", "_started_at"),
    (UpdateRule, "_state", "state"),
]
"""Class, Chainer's name, and the place here."""


def _init_summary(self):
    def begin():
        self._summary = DictSummary()

    return begin


def _sum_of_squares(self):
    return self._squares + (self._x**2 / self._n if self._n else 0.0)


def _end_of(name):
    def find(self):
        if not isinstance(self._indices, range):
            raise AttributeError(f"SubDataset._{name}: its order is no range; use _order")
        return getattr(self._indices, name)

    return find


COMPUTED: list[tuple[type, str, Callable[[Any], Any]]] = [
    (
        LabeledImageDataset,
        "_label_dtype",
        lambda self: self._labels[0].dtype if self._labels else None,
    ),
    (Link, "_n_local_link_hooks", lambda self: len(self._hooks or ())),
    (LogReport, "_init_summary", _init_summary),
    (PlotReport, "_init_summary", _init_summary),
    (Reporter, "_observer_names", lambda self: {key: v[0] for key, v in self._observers.items()}),
    (SerialIterator, "_epoch_size", lambda self: len(self._order)),
    (SerialIterator, "_shuffle", lambda self: self.order_sampler is not None),
    (SubDataset, "_finish", _end_of("stop")),
    (SubDataset, "_start", _end_of("start")),
    (Summary, "_x2", _sum_of_squares),
    (TupleDataset, "_length", len),
    (VariableNode, "_data", lambda self: self.data),
    (links.BatchNormalization, "_initial_avg_mean", lambda self: self._initial_averages[0]),
    (links.BatchNormalization, "_initial_avg_var", lambda self: self._initial_averages[1]),
    (links.BatchNormalization, "_highprec_dtype", lambda self: self._dtype),
]
"""Class, Chainer's name, and its value."""
