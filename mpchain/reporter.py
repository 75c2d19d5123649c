"""Reporters, which collect values that a program reports, and statistics of these values."""

import contextlib
import json
import numbers
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends.dtypes import is_bfloat16
from mpchain.configuration import config
from mpchain.observers import outside
from mpchain.serializer import AbstractSerializer, Deserializer, MissingKeyError


class _Current(threading.local):
    """The reporters whose ``with`` blocks this thread is in; the last reporter receives the
    reported values."""

    def __init__(self):
        self.reporters = []


_current = _Current()


class Reporter:
    """Collects reported values in a dictionary, by names that begin with the name of the reporting
    object.

    A reporter becomes the thread's current one in a ``with`` block (``with reporter:``) or in a
    scope.

    Attributes:
        observation (dict): the values reported so far, by name.

    Example:
        >>> reporter, model = Reporter(), L.Linear(3, 2)
        >>> reporter.add_observer("main", model)
        >>> with reporter.scope({}):
        ...     reporter.report({"loss": 0.5}, model)
        ...     reporter.observation
        {'main/loss': 0.5}
    """

    def __init__(self) -> None:
        self._observers = {}
        self.observation = {}

    def __enter__(self) -> "Reporter":
        _current.reporters.append(self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        _current.reporters.pop()

    @contextlib.contextmanager
    def scope(self, observation: dict[str, Any]) -> Iterator[None]:
        """Context manager: makes the reporter current and collects values in ``observation``."""
        with self, _Collecting(self, observation):
            yield

    def add_observer(self, name: str, observer: object) -> None:
        """Gives a name to an object that reports values."""
        # Keeping a reference to the observer prevents the reuse of its id.
        self._observers[id(observer)] = name, observer

    def add_observers(self, prefix: str, observers: Iterable[tuple[str, Any]]) -> None:
        """Gives names to several objects.

        Args:
            prefix: text that is put before each name.
            observers: pairs of a name and an object, such as ``link.namedlinks()``.
        """
        for name, observer in observers:
            self.add_observer(prefix + name, observer)

    def report(self, values: Mapping[str, Any], observer: object = None) -> None:
        """Adds values to the observation.

        A variable is stored without its graph, unless ``config.keep_graph_on_report`` is set.

        Args:
            values: the reported values, by name.
            observer: the object that reports the values. Its name and a slash are put before each
                name; None leaves the names unchanged.

        Raises:
            KeyError: the observer has no name.
        """
        prefix = ""
        if observer is not None:
            if id(observer) not in self._observers:
                raise KeyError(
                    f"Reporter.report: the observer, a {type(observer).__name__}, "
                    "has no name in this reporter (see add_observer)"
                )
            prefix = self._observers[id(observer)][0] + "/"
        for key, value in values.items():
            self.observation[prefix + key] = (
                value if config.keep_graph_on_report else _without_graph(value)
            )


# A generator-based context manager would take several times as long, in every step.
class _Collecting:
    def __init__(self, reporter, observation):
        self._reporter, self._observation = reporter, observation

    def __enter__(self):
        reporter = self._reporter
        self._outer, reporter.observation = reporter.observation, self._observation

    def __exit__(self, *exc_info):
        self._reporter.observation = self._outer


def _without_graph(value):
    """Returns a computed Variable as a leaf with the same array; returns other values unchanged."""
    if getattr(value, "creator_node", None) is None:
        return value
    return type(value)(value.array, name=value.name, requires_grad=value.requires_grad)


def get_current_reporter() -> Reporter:
    """Returns the reporter that is current in this thread.

    Raises:
        RuntimeError: there is no current reporter.

    Example:
        >>> with Reporter() as reporter:
        ...     get_current_reporter() is reporter
        True
    """
    if not _current.reporters:
        raise RuntimeError(
            "get_current_reporter: no reporter is current; call it in a block 'with reporter:' or "
            "'with reporter.scope(observation):'"
        )
    return _current.reporters[-1]


def report(values: Mapping[str, Any], observer: object = None) -> None:
    """Reports values to the current reporter; does nothing if there is none.

    Args:
        values: the reported values, by name: numbers, or pairs of a number and its weight in means
            over batches, iterations and ranks.
        observer: the object that reports the values (see :meth:`Reporter.report`).

    Example:
        >>> with Reporter() as reporter:
        ...     report({"loss": 0.5})
        >>> reporter.observation
        {'loss': 0.5}
    """
    if _current.reporters:
        outside(_current.reporters[-1].report, values, observer)


def report_scope(observation: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Context manager: makes the current reporter collect in ``observation``.

    Example:
        >>> observation = {}
        >>> with Reporter(), report_scope(observation):
        ...     report({"loss": 0.5})
        >>> observation
        {'loss': 0.5}
    """
    return _Collecting(get_current_reporter(), observation)


class Summary:
    """Mean and standard deviation of scalars that are added one by one.

    The sums are kept in float64, on the device of the values. Squares are summed around the running
    mean, which avoids cancellation.

    Example:
        >>> summary = Summary()
        >>> summary.add(1.0)
        >>> summary.add(5.0, weight=3)
        >>> float(summary.compute_mean())
        4.0
    """

    def __init__(self) -> None:
        self._n = 0.0  # This is the sum of the weights.
        self._x = 0.0  # This is the sum of weight * value.
        self._squares = 0.0  # This is the sum of weight * (value - mean)**2.

    def add(self, value: object, weight: object = 1) -> None:
        """Adds a value.

        Args:
            value: a number, or an array (on any device) or variable of shape ().
            weight: the weight of the value, of the same types as ``value``; a value of weight 0 is
                ignored.

        Raises:
            ValueError: the value or the weight is not a scalar, or the weight is negative.
        """
        number = _as_float64(value)
        if number is None:
            raise ValueError(
                f"Summary.add: value must be a number or have shape (), but is {value!r}"
            )
        self._add_number(number, _as_weight(weight))

    def _add_number(self, value, weight):
        if weight == 0:
            return
        if type(value) is type(self._x) is float:
            self._add(value, weight)
        else:
            with backend.cuda.get_device_from_array(value, self._x):
                self._add(value, weight)

    def _add(self, value, weight):
        old_mean = self._x / self._n if self._n else value
        self._n += weight
        self._x = self._x + weight * value
        new_mean = self._x / self._n
        self._squares = self._squares + weight * (value - old_mean) * (value - new_mean)

    def merge(self, other: "Summary") -> None:
        """Adds all values of another summary, such as one from another process."""
        if not other._n:
            return
        if self._n:
            distance = other._x / other._n - self._x / self._n
            between = distance * distance * (self._n * other._n / (self._n + other._n))
            self._squares = self._squares + other._squares + between
        else:
            self._squares = other._squares
        self._x = self._x + other._x
        self._n += other._n

    def __getstate__(self) -> dict[str, float]:
        # The sums are pickled as numbers, because another process may not have this GPU.
        return {name: float(value) for name, value in vars(self).items()}

    def compute_mean(self) -> Any:
        """Returns the weighted mean, a scalar on the device of the values.

        Raises:
            ZeroDivisionError: nothing has been added.
        """
        if not self._n:
            raise ZeroDivisionError("Summary: there is no mean, since no value has been added")
        with backend.cuda.get_device_from_array(self._x):
            return self._x / self._n

    def make_statistics(self) -> tuple[Any, Any]:
        """Returns the weighted mean and standard deviation (the root of the mean square deviation).

        Raises:
            ZeroDivisionError: nothing has been added.
        """
        mean = self.compute_mean()
        xp = backend.get_array_module(mean)
        with backend.cuda.get_device_from_array(mean):
            return mean, xp.sqrt(xp.maximum(self._squares / self._n, 0))

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the sums.

        Chainer's files hold the sum of the squares around zero, ``_x2``, and an integer number of
        values. These entries are saved too, and are restored from Chainer's files.
        """
        if isinstance(serializer, Deserializer):
            serializer.remember(self)
            self._n = serializer("_n", self._n)
            self._x = serializer("_x", self._x)
            try:
                self._squares = serializer("_squares", self._squares)
            except MissingKeyError:
                self._squares = serializer("_x2", 0.0) - self._square_of_mean()
        else:
            serializer("_n", int(self._n) if self._n.is_integer() else self._n)
            serializer("_x", self._x)
            serializer("_squares", self._squares)
            with backend.cuda.get_device_from_array(self._x):
                serializer("_x2", self._squares + self._square_of_mean())

    def _square_of_mean(self):
        return self._x * self._x / self._n if self._n else 0.0


class DictSummary:
    """A :class:`Summary` for each entry of dictionaries that are added one by one.

    Example:
        >>> total, part = DictSummary(), DictSummary()
        >>> total.add({"loss": (1.0, 3)})
        >>> part.add({"loss": 5.0, "accuracy": 0.5})
        >>> total.merge(part)
        >>> total.compute_mean()
        {'loss': 2.0, 'accuracy': 0.5}
    """

    def __init__(self) -> None:
        self._summaries = {}

    def add(self, d: Mapping[str, Any], default_weight: float = 1) -> None:
        """Adds the scalars of a dictionary; other entries are ignored.

        Args:
            d: values by name; a pair is a value and its weight (see :meth:`Summary.add`).
            default_weight: the weight of values without a weight.

        Raises:
            ValueError: a weight is not a scalar, or is negative.
        """
        for name, number, weight in weighted_numbers(d, default_weight):
            if name not in self._summaries:
                self._summaries[name] = Summary()
            self._summaries[name]._add_number(number, weight)

    def merge(self, other: "DictSummary") -> None:
        """Adds all entries of another summary, which may have other names.

        To combine the sums of several processes, send their summaries and merge them in the same
        order everywhere.
        """
        for name, summary in other._summaries.items():
            self._summaries.setdefault(name, Summary()).merge(summary)

    def compute_mean(self) -> dict[str, Any]:
        """Returns the weighted mean of each entry that has values of a weight above 0."""
        return {name: s.compute_mean() for name, s in self._summaries.items() if s._n}

    def sums(self) -> dict[str, tuple[Any, float]]:
        """Returns, for each entry with values of a weight above 0, the sum of values times weights
        and the sum of weights; the former is on the device of the values."""
        return {name: (s._x, s._n) for name, s in self._summaries.items() if s._n}

    def make_statistics(self) -> dict[str, Any]:
        """Returns the weighted mean of each entry, and by the name ``<name>.std`` its standard
        deviation.

        Entries without values of a weight above 0 are left out.
        """
        statistics = {}
        for name, summary in self._summaries.items():
            if summary._n:
                statistics[name], statistics[name + ".std"] = summary.make_statistics()
        return statistics

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores all sums."""
        if isinstance(serializer, Deserializer):
            serializer.remember(self)
        names = json.loads(serializer("_names", json.dumps(list(self._summaries))))
        self._summaries = {name: self._summaries.get(name, Summary()) for name in names}
        for i, summary in enumerate(self._summaries.values()):
            summary.serialize(serializer[f"_summaries/{i}"])


class OfWeighted(str):
    """The name of a value that was reported with a weight: ``mpchain.report({name: (x, weight)})``.

    Example:
        >>> from mpchain.reporter import OfWeighted
        >>> OfWeighted("loss") == "loss"
        True
    """


def weighted_numbers(
    d: Mapping[str, Any], default_weight: float = 1
) -> Iterator[tuple[str, Any, float]]:
    """Yields name, number and weight of the scalars that :meth:`DictSummary.add` adds.

    Numbers are floats, or float64 arrays for values on a GPU. The arguments and errors are those of
    :meth:`DictSummary.add`.

    Example:
        >>> list(weighted_numbers({"loss": (Variable(np.array(2.0)), 3), "image": np.zeros(5)}))
        [('loss', 2.0, 3.0)]
    """
    for name, value in d.items():
        weight = default_weight
        if isinstance(value, tuple) and len(value) == 2:
            value, weight = value
            if not is_scalar(weight):
                raise ValueError(
                    f"DictSummary.add: the weight of {name!r} must be a scalar, not {weight!r}"
                )
        number = _as_float64(value)
        if number is not None:
            plain = type(weight) is int and weight >= 0
            yield name, number, float(weight) if plain else _as_weight(weight)


def is_scalar(value: object) -> bool:
    """Returns whether summaries accept a value: a real number, or an array or variable of shape ().

    Example:
        >>> is_scalar(np.float32(1)), is_scalar(np.zeros(1))
        (True, False)
    """
    if type(value) in (float, int):
        return True
    value = getattr(value, "array", value)
    if isinstance(value, np.ndarray) or backend.cuda.is_gpu_array(value):
        return value.shape == () and _is_real(value.dtype)
    return isinstance(value, numbers.Real) or (
        isinstance(value, np.generic) and _is_real(value.dtype)
    )


def _is_real(dtype):
    return dtype.kind in "biuf" or is_bfloat16(dtype)


def _as_float64(value):
    """Returns a scalar as a float, or as a float64 array if it is on a GPU; None if the value is
    not a scalar."""
    if type(value) in (float, int):
        return float(value)
    value = getattr(value, "array", value)
    if type(value) is np.ndarray:
        return float(value) if value.shape == () and _is_real(value.dtype) else None
    if not is_scalar(value):
        return None
    if not backend.cuda.is_gpu_array(value):
        return float(value)
    with backend.cuda.get_device_from_array(value):
        return value.astype(np.float64)


def _as_weight(value):
    """Returns a weight as a float."""
    weight = _as_float64(value)
    if weight is None:
        raise ValueError(f"Summary.add: weight must be a number or have shape (), but is {value!r}")
    if weight < 0:
        raise ValueError(f"Summary.add: weight must not be negative, but is {weight}")
    return float(weight)
