"""Observes the updates of a program and their results."""

import functools
import hashlib
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.distributed.iterators import MultiNodeIterator, SynchronizedIterator
from mpchain.function_node import FunctionNode
from mpchain.observers import Observer, Span
from mpchain.optimizer import GradientMethod, Optimizer
from mpchain.prove import batches
from mpchain.prove.records import Application, Evaluation, Pass, Samples, State, Update, on_host
from mpchain.reporter import get_current_reporter
from mpchain.serializers import DictionarySerializer
from mpchain.training.extensions import Evaluator
from mpchain.training.updaters.replica import collecting
from mpchain.typing import Arrays

MOST_UPDATES = 20
"""Maximum number of updates in a step; a critic, for example, may need several updates."""

_MOST_LOOSE = 20000  # largest number of functions outside of loss functions that are recorded

_MOST_SAMPLES = 5000
"""Number of samples up to which a dataset is read completely for the comparison."""

_MOST_SECONDS = 2.0  # number of seconds after which reading a dataset stops

_NUMBERS = (int, float, np.number)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")
)


class EnoughError(SystemExit):
    """Ends the program, because the requested updates are done."""


class Tracer(Observer):
    """Observes updates of optimizers; subclasses define what to do with the observed results.

    Args:
        steps: the number of steps of each optimizer after which the program ends.
        doubles: whether floating-point batches are converted to double precision.
        files: the folder that replaces all folders of results; None replaces none.

    Attributes:
        updates: the number of updates so far.
        optimizers: the optimizers that were updated.
        update: the current update; None between updates.
        results: the results of evaluators since the latest update began, by name.
        evaluators: maps the trainers' evaluators to their names.
        evaluated: the evaluators that have run.
    """

    sees_links = True

    def __init__(self, steps: int, doubles: bool = False, files: str | None = None):
        self.steps, self._doubles, self._files = steps, doubles, files
        self.updates = 0
        self.optimizers: list[Optimizer] = []
        self.update: Update | None = None
        self.results: dict[str, Any] = {}
        self.evaluators: dict[Evaluator, str] = {}
        self.evaluated: set[Evaluator] = set()
        self._counts, self._communicators = {}, []
        self._depth = self._n_evaluating = self._n_iterating = 0
        self._iterators, self._samples, self._drawn = [], [], []
        self._links, self._paths = [], {}
        self._in_data: Arrays | None = None
        self._close(Pass(None))

    # Subclasses override these methods.

    def begin_update(self, optimizer: object) -> None:
        """Is called when an optimizer begins an update, after :attr:`update` is set."""

    def replace(self, evaluation: Evaluation, parts: Sequence, optimizer: object) -> Sequence:
        """Returns the micro-batches to compute instead of the given micro-batches."""
        return parts

    def replace_batch(self, iterator: int, batch: object) -> Any:
        """Returns the batch to use instead of a batch of the iterator with the given index."""
        return batch

    def see_gradients(self, evaluation: Evaluation, optimizer: object) -> None:
        """Is called when the gradients of an evaluation are known, before the step."""

    def end_update(self, optimizer: object) -> None:
        """Is called at the end of each update."""

    # The program's events call these methods.

    def folder(self, path: str) -> str:
        if self._files is None or os.path.abspath(path).startswith(self._files):
            return path
        return os.path.join(self._files, os.path.abspath(path).replace(os.sep, "_"))

    def communicator(self, comm: object) -> None:
        self._communicators.append(comm)

    def begins(self, span: Span) -> Any:
        if span.kind == "optimizer":
            self._depth += 1
            if self._depth == 1:
                self._begin(span.thing)
            elif isinstance(span.thing, GradientMethod):
                self._find_gradients(span.thing)
        elif span.kind == "link":
            self._links.append(self._paths.get(id(span.thing), type(span.thing).__name__))
        elif span.kind == "evaluation":
            self._n_evaluating += 1
            self.evaluated.add(span.thing)
        elif span.kind == "extensions":
            held = span.thing.extensions.items()
            self.evaluators |= {e: name for name, e in held if isinstance(e, Evaluator)}
        elif span.kind == "input" and span.name == "iterator":
            self._n_iterating += 1

    def ends(self, span: Span, begun: object) -> None:
        if span.kind == "optimizer":
            self._depth -= 1
            if span.has_failed:
                return
            if self.update is not None and isinstance(span.result, dict):
                self.update.results |= on_host(span.result)
            if self._depth == 0:
                self._end(span.thing)
        elif span.kind == "link":
            self._links.pop()
        elif span.kind == "evaluation":
            self._n_evaluating -= 1
            if isinstance(span.result, dict):
                self.results |= {f"evaluator's {k}": v for k, v in on_host(span.result).items()}
        elif span.kind == "input" and span.name == "iterator":
            self._n_iterating -= 1
            if not (self._n_iterating or self._n_evaluating or span.has_failed):
                span.result = self._drew(span.thing, span.result)

    def _drew(self, iterator, batch):
        if all(known is not iterator for known in self._iterators):
            self._iterators.append(iterator)
            dataset = getattr(iterator, "dataset", None)
            n = len(dataset) if hasattr(dataset, "__len__") else None
            is_shared = isinstance(iterator, (SynchronizedIterator, MultiNodeIterator))
            seen = _read(dataset) if n else {}
            self._samples.append(Samples(type(iterator).__name__, n, is_shared, **seen))
        number = next(i for i, known in enumerate(self._iterators) if known is iterator)
        self._drawn.append((number, on_host(batch)))
        return self.replace_batch(number, batch)

    def _begin(self, optimizer):
        if optimizer.target is None:
            return
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        if self._is_enough(optimizer):
            raise EnoughError(0)
        self.updates += 1
        self._t = optimizer.t
        self._paths |= {id(link): path for path, link in optimizer.target.namedlinks()}
        kind = type(optimizer.actual_optimizer).__name__
        is_of_ranks = optimizer.communicator is not None
        number, place = self.optimizers.index(optimizer), place_of(sys._getframe(2))
        self.update = Update(number, kind, is_of_ranks, place, state_of(optimizer))
        self.update.results, self.results = self.results, {}
        self.update.iterators = list(self._samples)
        self.update.drawn, self._drawn = self._drawn, []
        self.begin_update(optimizer)

    def _is_enough(self, optimizer):
        known = [*self.optimizers, *(o for comm in self._communicators for o in _set_up(comm))]
        counts = [self._counts.get(id(known_one), 0) for known_one in known]
        return min(counts) >= self.steps or self.updates >= MOST_UPDATES * self.steps

    def _end(self, optimizer):
        if self.update is None:
            return
        if optimizer.t > self._t:
            self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        self.update.after = state_of(optimizer)
        self.end_update(optimizer)
        self.update = None
        self._close(Pass(None))

    # These methods trace losses.

    def parts(self, optimizer: object, parts: Sequence) -> Sequence:
        if self.update is None:
            return parts
        held = [batches.found(function) if n != 0 else {} for n, function in parts]
        evaluation = Evaluation(held, [n for n, _ in parts])
        self.update.evaluations.append(evaluation)
        parts = self.replace(evaluation, parts, optimizer)
        evaluation.passes = [Pass(n) for n, _ in parts]
        return [(n, self._traced(f, p)) for (n, f), p in zip(parts, evaluation.passes)]

    def _traced(self, function, of_part):
        if function is None:
            return None
        if self._doubles:
            function = batches.changed(function, lambda path, value: batches.widened(value))
        if not isinstance(function, functools.partial):
            function = functools.partial(function)
        call = functools.partial(self._compute, function.func, of_part)
        # The first argument determines the number of samples.
        return functools.partial(_Called(call), *function.args, **function.keywords)

    def _compute(self, function, of_part, *args, **kwargs):
        new = Pass(of_part.n)
        before, states = self._pass, generators()
        self._open(new)
        try:
            with collecting(new.reports):
                loss = function(*args, **kwargs)
            _report(new.reports)
        finally:
            self._pass = before
        array = getattr(loss, "array", None)
        new.loss, new.last = on_host(array), self._origins.get(id(array), (None,))[0]
        arrays = {name: getattr(value, "array", None) for name, value in new.reports.items()}
        origins = {name: self._origins.get(id(array)) for name, array in arrays.items()}
        new.origins = {name: origin[0] for name, origin in origins.items() if origin is not None}
        new.reports = on_host(new.reports)
        new.draws = _drawn(states)
        vars(of_part).update(vars(new))  # if there are several passes, only the last counts
        return loss

    def _find_gradients(self, optimizer):
        update = self.update
        if update is None:
            return
        if not update.evaluations:  # this is an update without a loss function
            self._loose.draws = _drawn(self._states)
            update.evaluations.append(Evaluation([{}], [None], [self._loose]))
        evaluation = update.evaluations[-1]
        if evaluation.gradients is None and hasattr(optimizer.target, "namedlinks"):
            named = optimizer.target.namedparams(include_uninit=False)
            evaluation.gradients = {name: on_host(param.grad) for name, param in named}
        self.see_gradients(evaluation, optimizer)

    # These methods trace functions.

    def _close(self, new):
        self._loose, self._states = new, generators()
        self._open(new)

    def _open(self, new):
        self._pass, self._origins = new, {}
        models = [optimizer.target for optimizer in self.optimizers]
        params = [item for m in models for item in m.namedparams(include_uninit=False)]
        self._params = {id(param.array): name for name, param in params}

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        self._in_data = in_data

    def computed(self, function: FunctionNode, outputs: Arrays) -> None:
        done = self._pass.applications
        if (
            self._in_data is None
            or self._n_evaluating
            or (self._pass is self._loose and len(done) > _MOST_LOOSE)
        ):
            return
        # Before its first function, the program has seeded its generators and drawn its data.
        if not (done or self.updates):
            self._states = generators()
        parents, leaves = [], []
        for x in self._in_data:
            origin = self._origins.get(id(x))
            if origin is not None:
                parents.append(origin[0])
            else:
                leaves.append(self._params.get(id(x)) or on_host(x))
        self._in_data = None
        leaves += [c for c in getattr(function, "constants", ()) if isinstance(c, _NUMBERS)]
        for y in outputs:
            self._origins[id(y)] = len(done), y  # the reference to y keeps its id from being reused
        link = self._links[-1] if self._links else ""
        place = place_of(sys._getframe(1))
        arrays = list(map(on_host, outputs))
        exchanges = type(function).__module__.startswith("mpchain.distributed.functions")
        name = function.label.removeprefix("multi_node_")  # a single process sends no messages
        own = Application(name, link, place, arrays, parents, leaves, len(done), exchanges)
        done.append(own)


def _read(dataset):
    """Returns whether a dataset draws random numbers and, if reading is fast, digests of all
    samples; equal samples have equal digests."""
    states, end = generators(), time.monotonic() + _MOST_SECONDS

    def text_of(i):
        (text,) = batches.samples({"": [dataset[i]]}, 1)
        # Reading stops if it takes too long, or if the text contains the address of an object.
        if time.monotonic() > end or b" at 0x" in text:
            raise TimeoutError
        return hashlib.blake2b(text, digest_size=8).digest()

    try:
        first = text_of(0)
        if text_of(0) != first:
            return {"is_random": True}
        if len(dataset) <= _MOST_SAMPLES:
            return {"texts": [first, *map(text_of, range(1, len(dataset)))]}
    except Exception:  # the program will see the error when it reads the sample
        pass
    finally:
        set_generators(states)
    return {}


class _Called:
    """A loss function whose function calls are traced."""

    def __init__(self, call: Callable):
        self._call = call

    def __call__(self, *args, **kwargs):
        return self._call(*args, **kwargs)


def _set_up(comm):
    return [x for x in comm.dependents if isinstance(x, Optimizer) and x.target is not None]


def _report(values):
    try:
        get_current_reporter().observation.update(values)
    except RuntimeError:  # there is no current reporter
        return


def place_of(frame: FrameType | None) -> str:
    """Returns the innermost line outside mpchain and libraries.

    >>> place_of(None)
    'an unknown line'
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<", *_LIBRARIES)):
            return f"line {frame.f_lineno} of {os.path.basename(name)}, in {frame.f_code.co_name}"
        frame = frame.f_back
    return "an unknown line"


def generators() -> dict[str, Any]:
    """Returns the states of the global random generators.

    >>> [*generators()]
    ['numpy.random', 'random']
    """
    return {"numpy.random": np.random.get_state(), "random": random.getstate()}


def set_generators(states: dict[str, Any]) -> None:
    """Restores the states that :func:`generators` returned."""
    np.random.set_state(states["numpy.random"])
    random.setstate(states["random"])


def _drawn(before):
    """Returns the names of the random generators that were used since the given states."""
    now = generators()
    return [name for name in now if not _same(before[name], now[name])]


def _same(x, y):
    return all(np.array_equal(a, b) for a, b in zip(x, y)) if isinstance(x, tuple) else x == y


def state_of(optimizer: Optimizer) -> State:
    """Returns the state of an optimizer and its model.

    Example:
        >>> state_of(optimizers.SGD(lr=0.5).setup(L.Linear(1, 1))).hyperparameters
        {'lr': 0.5}
    """
    model, inner = optimizer.target, optimizer.actual_optimizer
    named = model.namedparams(include_uninit=False)
    params = {name: on_host(param.array) for name, param in named}
    persistents = {name: on_host(p.value) for name, p in named_persistents(model).items()}
    hyper = {} if inner.hyperparam is None else inner.hyperparam.get_dict()
    numbers = {k: v for k, v in hyper.items() if isinstance(v, (int, float, np.number))}
    optimizer.gather_state()
    whole = DictionarySerializer()
    model.serialize(whole["model"])
    if optimizer.communicator is None or optimizer.communicator.rank == 0:
        optimizer.serialize(whole["optimizer"])
    arrays = {name: on_host(value) for name, value in whole.target.items()}
    return State(params, persistents, numbers, arrays, generators())
