"""Adds private state of Chainer's classes that subclasses in old programs use."""

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any

from mpchain import links
from mpchain.datasets import LabeledImageDataset, SubDataset, TupleDataset
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.optimizers import MultiNodeOptimizer
from mpchain.function_node import FunctionNode
from mpchain.iterators import SerialIterator
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.reporter import DictSummary, Reporter, Summary
from mpchain.training import Trainer
from mpchain.training.extensions import LogReport, PlotReport, PrintReport
from mpchain.training.extensions.schedules import LinearShift, Schedule
from mpchain.training.extensions.snapshot import Snapshot
from mpchain.training.progress import print_line
from mpchain.update_rule import UpdateRule
from mpchain.variable import VariableNode


class Renamed:
    """A descriptor that reads and sets an attribute that mpchain keeps under another name.

    Args:
        place: the path of attributes to mpchain's attribute, such as ``_means._trigger``.
    """

    def __init__(self, place: str):
        self._owner, _, self._name = place.rpartition(".")

    def _find(self, instance):
        return operator.attrgetter(self._owner)(instance) if self._owner else instance

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else getattr(self._find(instance), self._name)

    def __set__(self, instance: object, value: object) -> None:
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
    (PrintReport, "_log_len", "_n_written"),
    (PrintReport, "_log_report", "_name"),
    (Snapshot, "_target", "target"),
    (Trainer, "_snapshot_elapsed_time", "_earlier_elapsed_time"),
    (Trainer, "_start_at", "_started_at"),
    (UpdateRule, "_state", "state"),
]
"""Rows of class, Chainer's attribute name, and mpchain's attribute path."""


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


IteratorState = collections.namedtuple("IteratorState", "current_position epoch is_new_epoch order")


def _state_of_iterator(self):
    order = None if self.order_sampler is None else self._order
    return IteratorState(self.current_position, self.epoch, self.is_new_epoch, order)


def _set_state_of_iterator(self, state):
    self.current_position, self.epoch, self.is_new_epoch, order = state
    if order is not None:
        self._order = order


def _done(self):
    return self._final_elapsed_time is not None


def _set_done(self, is_done):
    """Sets whether training is done; a program that sets it to False runs the trainer again."""
    self._earlier_elapsed_time = self.elapsed_time
    self._started_at = None
    self._final_elapsed_time = self._earlier_elapsed_time if is_done else None


def _header(self):
    """Returns the header of a PrintReport, or None once it is printed; a program may set it."""
    if self._widths:
        return None
    cells = [f"{name:<{max(10, len(name))}}  " for name in self.entries]
    return self.__dict__.get("_own_header", "".join(cells) + "\n")


def _set_header(self, text):
    self._own_header = text


def _templates(self):
    widths = [max(10, len(name)) for name in self.entries]
    return [(n, f"{{:<{w}g}}  ", " " * (w + 2)) for n, w in zip(self.entries, widths)]


_print_header = PrintReport._print_header


def _print_own_header(self):
    own = self.__dict__.get("_own_header")
    _print_header(self) if own is None else print_line(own.rstrip("\n"), self._out)
    self._widths = self._widths or [max(10, len(name)) for name in self._entries]


def _print(self, observation):
    """Prints one entry; a subclass may override this method."""
    _write(self, [observation])


_write = PrintReport.write


def _print_each(self, entries):
    for entry in entries:
        self._print(entry)


def _get_optimizer(self, trainer):
    return self._optimizer or trainer.updater.get_optimizer("main")


def _update_value(self, optimizer, value):
    """Sets the attribute; a subclass may override this method."""
    setattr(optimizer, self._attr, value)
    self._last_value = value


def _set_value(self):
    self._update_value(self._optimizer, self.value(self._t))


def _multi_node_mean(self, sendbuf, recvbuf):
    """Writes the mean over ranks of ``sendbuf`` (or of ``recvbuf`` itself) into ``recvbuf``."""
    recvbuf[...] = self.allreduce(recvbuf if sendbuf is None else sendbuf) / self.size


def _is_changed(self, target):
    """Returns whether names or initialization of the parameters differ from the last call's."""
    before = self.target_params
    now = [(name, param.is_initialized) for name, param in sorted(target.namedparams())]
    self.__dict__["_seen_params"] = now
    return now != before


_update = MultiNodeOptimizer.update


@functools.wraps(_update)
def _update_and_see(self, *args, **kwargs):
    _update(self, *args, **kwargs)
    self.is_changed(self.target)


REPLACED: list[tuple[type, str, Any]] = [
    (Communicator, "_init_ranks", lambda self: None),
    (Communicator, "_multi_node_mean", _multi_node_mean),
    (MultiNodeOptimizer, "is_changed", _is_changed),
    (
        MultiNodeOptimizer,
        "target_params",
        property(lambda self: self.__dict__.get("_seen_params", [])),
    ),
    (MultiNodeOptimizer, "update", _update_and_see),
    (PrintReport, "_header", property(_header, _set_header)),
    (PrintReport, "_print", _print),
    (PrintReport, "_print_header", _print_own_header),
    (PrintReport, "write", _print_each),
    (Schedule, "_get_optimizer", _get_optimizer),
    (Schedule, "_last_value", None),
    (Schedule, "_set", _set_value),
    (Schedule, "_update_value", _update_value),
    (SerialIterator, "_state", property(_state_of_iterator, _set_state_of_iterator)),
    (Trainer, "_done", property(_done, _set_done)),
    (VariableNode, "_old_style_grad_generator", None),
]
"""Rows of class, Chainer's attribute name, and the attribute's value."""


def _hooks_at(timing):
    def find(self):
        return {name: hook for name, (when, hook) in (self._hooks or {}).items() if when == timing}

    return find


COMPUTED: list[tuple[type, str, Callable[[Any], Any]]] = [
    *(
        (Communicator, f"_{name}", operator.attrgetter(name))
        for name in ("intra_rank", "intra_size", "inter_rank", "inter_size")
    ),
    (
        LabeledImageDataset,
        "_label_dtype",
        lambda self: self._labels[0].dtype if self._labels else None,
    ),
    (Link, "_n_local_link_hooks", lambda self: len(self._hooks or ())),
    (LogReport, "_init_summary", _init_summary),
    (LinearShift, "_value_range", lambda self: (self._init, self._end)),
    (Optimizer, "_post_update_hooks", _hooks_at("post")),
    (Optimizer, "_pre_update_hooks", _hooks_at("pre")),
    (PlotReport, "_init_summary", _init_summary),
    (PrintReport, "_templates", _templates),
    (Reporter, "_observer_names", lambda self: {key: v[0] for key, v in self._observers.items()}),
    (SerialIterator, "_epoch_size", lambda self: len(self._order)),
    (SerialIterator, "_shuffle", lambda self: self.order_sampler is not None),
    (SubDataset, "_finish", _end_of("stop")),
    (SubDataset, "_start", _end_of("start")),
    (Summary, "_x2", _sum_of_squares),
    (TupleDataset, "_length", len),
    (VariableNode, "_data", lambda self: self.data),
    (VariableNode, "_rank", lambda self: self.rank),
    (links.BatchNormalization, "_initial_avg_mean", lambda self: self._initial_averages[0]),
    (links.BatchNormalization, "_initial_avg_var", lambda self: self._initial_averages[1]),
    (links.BatchNormalization, "_highprec_dtype", lambda self: self._dtype),
]
"""Rows of class, Chainer's property name, and the function that computes the property."""
