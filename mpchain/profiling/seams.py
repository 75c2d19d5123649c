"""The methods that are replaced while a recorder is active, and so cost nothing otherwise."""

import functools
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from mpchain import backprop, dataset, functions
from mpchain.distributed.communicators import MpiCommunicator, progress
from mpchain.distributed.gradients.buckets import GradientReducer
from mpchain.distributed.gradients.reducer import Reducer
from mpchain.distributed.optimizers import MultiNodeOptimizer
from mpchain.distributed.watch.fingerprints import WATCHED
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.profiling.recorder import NAME, Calls, Recorder
from mpchain.training import Extension, Trainer
from mpchain.training.extensions import Evaluator
from mpchain.training.updaters import StandardUpdater

SHORTEST = 10_000
"""Nanoseconds: looks at a pending operation that take less are waiting, not work."""

_SPANS = [
    (dataset.Iterator, "__next__", "input", "iterator"),
    (dataset.Converter, "__call__", "input", "converter"),
    (StandardUpdater, "convert", "input", "converter"),
    (backprop, "_walk", "backward", "backward"),
    (Reducer, "begin", "reducer", "begin the exchange"),
    (Reducer, "ready", "reducer", "copy gradients"),
    (Reducer, "end_part", "reducer", "copy gradients"),
    (Reducer, "finish", "reducer", "finish the exchange"),
    (Evaluator, "__call__", "evaluation", "evaluation"),
]
"""Owner, method, kind and name of spans. A method is replaced in the subclasses, too."""

_OTHER_COLLECTIVES = {"split", "finalize", "make_buffers"}
_AFTER_THESE = {"forward", "optimizer", "evaluation"}
"""Kinds of spans at whose ends memory is looked at: forward has kept most arrays."""


class Seams:
    """Replaces methods, in all classes that define them, until :meth:`restore` is called.

    Args:
        recorder: what gets the spans.
        on_communicator: function that is called with each new communicator of several ranks.

    Example:
        >>> from mpchain.profiling.recorder import Recorder
        >>> recorder = Recorder()
        >>> seams = Seams(recorder)
        >>> optimizer = optimizers.SGD().setup(L.Linear(3, 2))
        >>> optimizer.update(lambda: F.sum(optimizer.target(np.ones((5, 3), np.float32))))
        >>> seams.restore()
        >>> [name for _, _, _, name, *_ in recorder.spans]
        ['Linear', 'forward', 'backward', 'optimizer', 'step 1']
    """

    def __init__(self, recorder: Recorder, on_communicator: Callable[[Any], Any] | None = None):
        self._recorder, self._originals = recorder, []
        self._forward = _spans(recorder, "forward", "forward")
        for owner, name, kind, text in _SPANS:
            self._replace(owner, name, _spans(recorder, kind, text))
        self._replace(Link, "__call__", self._link)
        self._replace(backprop._Walk, "_pull_with_hooks", self._derivative)
        for cell in public_cells():
            self._originals.append((cell, "cell_contents", cell.cell_contents))
            cell.cell_contents = self._public(cell.cell_contents)
        self._replace(Trainer, "_call_extensions", self._iteration)
        self._replace(Extension, "__call__", self._extension)
        self._replace(Optimizer, "update", self._update)
        self._replace(MultiNodeOptimizer, "update_in_parts", self._update_in_parts)
        for name, kind in WATCHED.items():
            if not kind.is_part and name not in _OTHER_COLLECTIVES:
                self._replace(MpiCommunicator, name, functools.partial(self._collective, name))
        self._replace(GradientReducer, "_begin_sum", self._bucket)
        self._replace(progress.PendingOperation, "go_on", self._look)
        self._replace(progress.PendingOperation, "Wait", self._wait)
        self._replace(progress, "wait_until", functools.partial(_waiting, recorder))
        if on_communicator is not None:
            announce = functools.partial(_announced, on_communicator)
            self._replace(MpiCommunicator, "__init__", announce)

    def restore(self) -> None:
        """Puts the original methods back."""
        while self._originals:
            setattr(*self._originals.pop())

    def _replace(self, owner, name, wrap):
        for place in [owner] if owner in (backprop, progress, Link) else _subclasses(owner):
            if name in vars(place):
                method = vars(place)[name]
                self._originals.append((place, name, method))
                wrapped = wrap(method)
                functools.update_wrapper(wrapped, method)
                setattr(place, name, wrapped)

    # Steps

    def _iteration(self, method):
        recorder = self._recorder
        call = _spans(recorder, "extensions", "extensions")(method)

        def call_extensions(trainer, *args):
            call(trainer, *args)
            if recorder.is_mine():
                recorder.end_step(trainer)

        return call_extensions

    def _extension(self, method):
        def call(extension, *args, **kwargs):
            name = extension.name or extension.default_name
            timed = _spans(self._recorder, "extension", name)(method)
            return timed(extension, *args, **kwargs)

        return call

    def _update(self, method):
        recorder = self._recorder
        timed = _spans(recorder, "optimizer", "optimizer")(method)
        is_open, targets, forward = recorder.open, recorder.targets, self._forward
        thread, this_thread = recorder.thread, threading.get_ident

        def update(optimizer, lossfun=None, *args, **kwds):
            if "optimizer" in is_open or this_thread() != thread:
                return method(optimizer, lossfun, *args, **kwds)
            targets[id(optimizer.target)] = optimizer.target
            timed(optimizer, lossfun and forward(lossfun), *args, **kwds)
            recorder.end_step()

        return update

    def _update_in_parts(self, method):
        recorder = self._recorder
        timed = _spans(recorder, "optimizer", "optimizer")(method)

        def update_in_parts(optimizer, parts, *args):
            if "optimizer" in recorder.open or not recorder.is_mine():
                return method(optimizer, parts, *args)
            recorder.targets[id(optimizer.target)] = optimizer.target
            means = timed(optimizer, [(n, self._forward(loss)) for n, loss in parts], *args)
            recorder.end_step()
            return means

        return update_in_parts

    # Links, functions and derivatives, which are many: these methods read as little as they can

    def _link(self, method):
        recorder, known = self._recorder, {}  # by id; the values keep the links, and so their ids
        now, record, this_thread = recorder.now, recorder.record, threading.get_ident
        thread = recorder.thread

        def call(link, *args, **kwargs):
            if this_thread() != thread:
                return method(link, *args, **kwargs)
            outer = recorder.calls
            try:
                recorder.calls = calls = known[id(link)]
            except KeyError:
                recorder.calls = calls = known[id(link)] = Calls(link)
            start = now()
            try:
                result = method(link, *args, **kwargs)
                record((start, now(), calls.link))
                return result
            finally:
                recorder.calls = outer

        return call

    def _public(self, function):
        recorder, thread, this_thread = self._recorder, self._recorder.thread, threading.get_ident
        name = function.__name__

        @functools.wraps(function)
        def call(*args, **kwargs):
            outer = recorder.calls
            if (within := outer.within) is None or this_thread() != thread:
                return function(*args, **kwargs)
            recorder.calls = within[name]
            try:
                return function(*args, **kwargs)
            finally:
                recorder.calls = outer

        return call

    def _derivative(self, method):
        recorder = self._recorder
        now, record, outside = recorder.now, recorder.record, recorder.outside

        def pull_with_hooks(walk, function, targets, gys, hooks):
            if hooks is not recorder.hooks or function.local_function_hooks:
                if NAME not in hooks:  # another thread
                    return method(walk, function, targets, gys, hooks)
                start = now()
                gxs = method(walk, function, targets, gys, hooks)
            else:
                start = now()
                if walk.create_graph or walk.leaves_recur:
                    gxs = walk._pull(function, targets, gys)
                else:  # what _pull would do
                    gxs = function.pull_arrays(targets, gys)
            record((start, now(), function.profiled_as or outside[function.label]))
            return gxs

        return pull_with_hooks

    # Communication

    def _collective(self, name, method):
        recorder = self._recorder

        def call(comm, *args, **kwargs):
            if "collective" in recorder.open or not recorder.is_mine():
                return method(comm, *args, **kwargs)
            n_bytes = getattr(args[0] if args else kwargs.get("x"), "nbytes", None)
            recorder.open.add("collective")
            start = recorder.now()
            try:
                result = method(comm, *args, **kwargs)
            finally:
                recorder.open.discard("collective")
                details = None if n_bytes is None else {"bytes": n_bytes}
                recorder.add(start, "communication", name, details)
            if hasattr(result, "Wait") and recorder.label is None:
                recorder.follow(result, name, n_bytes, start)
            return result

        return call

    def _bucket(self, method):
        recorder = self._recorder

        def begin_sum(reducer, bucket):
            if not recorder.is_mine():
                return method(reducer, bucket)
            start, recorder.label = recorder.now(), f"bucket {reducer._n_started}"
            try:
                request = method(reducer, bucket)
                recorder.follow(request, recorder.label, bucket.values.nbytes, start)
            finally:
                recorder.label = None
            return request

        return begin_sum

    def _look(self, method):
        recorder, now = self._recorder, time.perf_counter_ns

        def go_on(request):
            start = now()
            method(request)
            took = now() - start
            if not recorder.is_mine():
                return
            operation = recorder.under_way.get(id(request))
            if took >= SHORTEST:
                name = operation.name if operation else recorder.label or "operation"
                what = "communication", f"sum: {name}", None, None
                recorder.record((start, start + took, what))
                recorder.work += took
                if operation:
                    operation.summing += took
            if operation and request.is_complete:
                recorder.end(recorder.under_way.pop(id(request)))

        return go_on

    def _wait(self, method):
        recorder = self._recorder

        def wait(request):
            operation = recorder.under_way.get(id(request))
            if operation is None or not recorder.is_mine():
                return method(request)
            recorder.open.add("wait")
            start, before = time.perf_counter_ns(), recorder.work
            try:
                return method(request)
            finally:
                recorder.open.discard("wait")
                recorder.add(start, "communication", f"wait: {operation.name}")
                end = operation.end or time.perf_counter_ns()
                operation.waiting += max(0, end - start - (recorder.work - before))

        return wait


def public_cells() -> Iterator[types.CellType]:
    """Yields where the public functions that are written in terms of others hold what they call.

    It is replaced there since a program may have imported the functions themselves.

    >>> "linear" in [cell.cell_contents.__name__ for cell in public_cells()]
    True
    """
    for function in vars(functions).values():
        if hasattr(function, "__wrapped__") and function is not functions.forget:  # calls a user's
            names = function.__code__.co_freevars
            yield from [c for n, c in zip(names, function.__closure__ or ()) if n == "function"]


def _subclasses(owner) -> Iterator[type]:
    """Yields a class and those that derive from it, once each."""
    found, left = {}, [owner]
    while left:
        place = left.pop()
        if place not in found:
            found[place] = None
            left += place.__subclasses__()
    return iter(found)


def _spans(recorder, kind, name):
    """Returns a decorator: the function does the same, in a span unless within one of its kind."""
    shown = {"reducer": "communication", "extension": "extensions"}.get(kind, kind)
    what, looks = (shown, name, None, None), kind in _AFTER_THESE
    now, record, is_open = recorder.now, recorder.record, recorder.open
    thread, this_thread = recorder.thread, threading.get_ident

    def timed(method):
        def call(*args, **kwargs):
            if kind in is_open or this_thread() != thread:
                return method(*args, **kwargs)
            is_open.add(kind)
            start = now()
            try:
                return method(*args, **kwargs)
            finally:
                is_open.discard(kind)
                end = now()
                record((start, end, what))
                if looks and end >= recorder.next_look:
                    recorder.sample_memory(end)

        return call

    return timed


def _waiting(recorder, method):
    def wait_until(is_done):
        if "wait" in recorder.open or not recorder.is_mine():
            method(is_done)
            return
        recorder.open.add("wait")
        start = time.perf_counter_ns()
        try:
            method(is_done)
        finally:
            recorder.open.discard("wait")
            if time.perf_counter_ns() - start >= SHORTEST:
                recorder.add(start, "communication", "wait: other ranks")

    return wait_until


def _announced(announce, method):
    def __init__(comm, *args, **kwargs):
        method(comm, *args, **kwargs)
        if comm.size > 1 and type(comm).__init__ is __init__:  # not that of a base
            announce(comm)

    return __init__
