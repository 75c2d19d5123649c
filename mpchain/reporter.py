"""Collecting the values that a program wants to watch, and their statistics."""

import contextlib
import json
import numbers
import threading

import numpy as np

from mpchain import backend
from mpchain.configuration import config
from mpchain.serializer import Deserializer, MissingKeyError


class _Current(threading.local):
    """The reporters that are current in this thread; the last one is in force."""

    def __init__(self):
        self.reporters = []


_current = _Current()


class Reporter:
    """Collects reported values in a dictionary, under names that tell who reported them.

    A reporter becomes the thread's current one in a ``with`` block (``with reporter:``) or in a
    scope.

        >>> reporter = Reporter()
        >>> observer = object()
        >>> reporter.add_observer('my_observer', observer)
        >>> with reporter.scope({}):
        ...     reporter.report({'x': 1}, observer)
        ...     reporter.observation
        {'my_observer/x': 1}

    Attributes:
        observation (dict): the values reported so far, by name.
    """

    def __init__(self):
        self._observers = {}
        self.observation = {}

    def __enter__(self):
        _current.reporters.append(self)
        return self

    def __exit__(self, *exc_info):
        _current.reporters.pop()

    @contextlib.contextmanager
    def scope(self, observation):
        """Context manager: makes the reporter current and lets it collect in ``observation``."""
        with self, _collecting(self, observation):
            yield

    def add_observer(self, name, observer):
        """Gives a name to an object that reports values."""
        # The observer is kept too, lest another object gets its id.
        self._observers[id(observer)] = name, observer

    def add_observers(self, prefix, observers):
        """Gives names to several objects.

        Args:
            prefix (str): put before each name.
            observers: iterable of pairs (name, object), such as ``link.namedlinks()``.
        """
        for name, observer in observers:
            self.add_observer(prefix + name, observer)

    def report(self, values, observer=None):
        """Adds values to the observation.

        A variable is stored without its graph, unless ``config.keep_graph_on_report`` is set.

        Args:
            values (dict): what is reported, by name.
            observer: who reports it. Its name and a slash are put before each name.

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


@contextlib.contextmanager
def _collecting(reporter, observation):
    old = reporter.observation
    reporter.observation = observation
    try:
        yield
    finally:
        reporter.observation = old


def _without_graph(value):
    """A leaf with the array of a variable that a function made; anything else as it is."""
    if getattr(value, "creator_node", None) is None:
        return value
    return type(value)(value.array, name=value.name, requires_grad=value.requires_grad)


def get_current_reporter():
    """Returns the reporter that is current in this thread.

    Raises:
        RuntimeError: there is none.
    """
    if not _current.reporters:
        raise RuntimeError(
            "get_current_reporter: no reporter is current; use 'with reporter:' or its scope"
        )
    return _current.reporters[-1]


def report(values, observer=None):
    """Reports values to the current reporter; does nothing if there is none.

    Args:
        values (dict): what is reported, by name.
        observer: who reports it (see :meth:`Reporter.report`).
    """
    if _current.reporters:
        _current.reporters[-1].report(values, observer)


@contextlib.contextmanager
def report_scope(observation):
    """Context manager: lets the current reporter collect in ``observation``."""
    with _collecting(get_current_reporter(), observation):
        yield


class Summary:
    """Mean and standard deviation of scalars that come one by one.

    The sums are kept in float64 (on the device of the values), and the squares around the running
    mean, so that nothing is lost by cancellation.
    """

    def __init__(self):
        self._n = 0.0  # sum of the weights
        self._x = 0.0  # sum of weight * value
        self._squares = 0.0  # sum of weight * (value - mean)**2

    def add(self, value, weight=1):
        """Adds a value.

        Args:
            value: a number, or an array (on any device) or variable of shape ().
            weight: how many times the value counts, likewise; with 0 the value is not looked at.

        Raises:
            ValueError: the value or the weight is no scalar, or the weight is negative.
        """
        value, weight = _as_float64("value", value), float(_as_float64("weight", weight))
        if weight < 0:
            raise ValueError(f"Summary.add: weight must not be negative, but is {weight}")
        if weight == 0:
            return
        old_mean = self._x / self._n if self._n else value
        self._n += weight
        self._x = self._x + weight * value
        self._squares = self._squares + weight * (value - old_mean) * (value - self._x / self._n)

    def merge(self, other):
        """Adds all values that another summary has seen, such as one of another process.

        Args:
            other (Summary): the other; it is left as it is.
        """
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

    def __getstate__(self):
        # Another process gets numbers, whatever device the sums are on here.
        return {name: float(value) for name, value in vars(self).items()}

    def compute_mean(self):
        """Returns the weighted mean.

        Raises:
            ZeroDivisionError: nothing has been added.
        """
        if not self._n:
            raise ZeroDivisionError("Summary: there is no mean, since no value has been added")
        return self._x / self._n

    def make_statistics(self):
        """Returns the weighted mean and standard deviation (the root of the mean square deviation).

        Raises:
            ZeroDivisionError: nothing has been added.
        """
        mean = self.compute_mean()
        xp = backend.get_array_module(mean)
        return mean, xp.sqrt(xp.maximum(self._squares / self._n, 0))

    def serialize(self, serializer):
        """Saves or restores the sums.

        Chainer has the sum of the squares around zero, ``_x2``, and a whole number of values, which
        are saved for its sake and restored from its files.
        """
        if isinstance(serializer, Deserializer):
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
            serializer("_x2", self._squares + self._square_of_mean())

    def _square_of_mean(self):
        return self._x * self._x / self._n if self._n else 0.0


class DictSummary:
    """A :class:`Summary` for each entry of dictionaries that come one by one."""

    def __init__(self):
        self._summaries = {}

    def add(self, d):
        """Adds the scalars of a dictionary; entries that are no scalars are left out.

        Args:
            d (dict): values by name; a pair is a value and its weight (see :meth:`Summary.add`).

        Raises:
            ValueError: a weight is no scalar.
        """
        for name, value in d.items():
            weight = 1
            if isinstance(value, tuple) and len(value) == 2:
                value, weight = value
                if not is_scalar(weight):
                    raise ValueError(
                        f"DictSummary.add: the weight of {name!r} must be a scalar, not {weight!r}"
                    )
            if is_scalar(value):
                self._summaries.setdefault(name, Summary()).add(value, weight)

    def merge(self, other):
        """Adds all entries that another summary has seen; the names may differ.

        What several processes have summed up is combined by merging their summaries, which can be
        sent as they are, in the same order everywhere.

        Args:
            other (DictSummary): the other; it is left as it is.

        Example:
            >>> total, part = DictSummary(), DictSummary()
            >>> total.add({"loss": (1.0, 3)})
            >>> part.add({"loss": 5.0, "accuracy": 0.5})
            >>> total.merge(part)
            >>> total.compute_mean()
            {'loss': 2.0, 'accuracy': 0.5}
        """
        for name, summary in other._summaries.items():
            self._summaries.setdefault(name, Summary()).merge(summary)

    def compute_mean(self):
        """Returns the weighted mean of each entry that has values of a weight above 0."""
        return {name: summary.compute_mean() for name, summary in self._weighty_items()}

    def _weighty_items(self):
        return [(name, summary) for name, summary in self._summaries.items() if summary._n]

    def make_statistics(self):
        """Returns the weighted mean of each entry, and under ``<name>.std`` its deviation.

        Entries without values of a weight above 0 are left out.
        """
        statistics = {}
        for name, summary in self._weighty_items():
            statistics[name], statistics[name + ".std"] = summary.make_statistics()
        return statistics

    def serialize(self, serializer):
        """Saves or restores all sums."""
        names = json.loads(serializer("_names", json.dumps(list(self._summaries))))
        self._summaries = {name: self._summaries.get(name, Summary()) for name in names}
        for i, summary in enumerate(self._summaries.values()):
            summary.serialize(serializer[f"_summaries/{i}"])


def is_scalar(value):
    """Returns whether summaries take the value: a real number, or an array or variable of one."""
    value = getattr(value, "array", value)
    if isinstance(value, np.ndarray) or backend.cuda.is_gpu_array(value):
        return value.shape == () and value.dtype.kind in "biuf"
    return isinstance(value, (numbers.Real, np.bool_))


def _as_float64(name, value):
    if not is_scalar(value):
        raise ValueError(f"Summary.add: {name} must be a number or have shape (), but is {value!r}")
    value = getattr(value, "array", value)
    return value.astype(np.float64) if backend.cuda.is_gpu_array(value) else float(value)
