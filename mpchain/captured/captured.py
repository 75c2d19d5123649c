"""Functions that are recorded and replayed."""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.host_memory import keep_freed_memory
from mpchain.captured.graph_step import AS_ALWAYS
from mpchain.captured.ranks import Ranks, RanksOfOptimizer
from mpchain.captured.results import is_array, overlapping, without_graph
from mpchain.captured.step import Known, Step
from mpchain.captured.surroundings import SETTINGS, Surroundings, exact_key, is_plain_array
from mpchain.configuration import config
from mpchain.observers import current
from mpchain.optimizer import Optimizer
from mpchain.variable import Variable

_MOST_RECORDINGS = 8
_ALL: weakref.WeakSet = weakref.WeakSet()  # all captured functions that are alive

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [each._forget_other_threads() for each in _ALL])


class Captured:
    """A captured function, which is recorded and then replayed without Python's overhead for each
    operation.

    :func:`mpchain.capture` makes objects of this class.

    Attributes:
        reason: the reason why the latest call was not replayed; None if it was replayed.

    Example:
        >>> model = L.Linear(2, 1)
        >>> optimizer = optimizers.SGD().setup(model)
        >>> step = mpchain.capture(lambda x: optimizer.update(lambda: F.sum(model(x))))
        >>> for _ in range(4):
        ...     step(np.ones((3, 2), np.float32))
        >>> print(step.reason)
        None
    """

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function, updated=())
        keep_freed_memory()
        self.function = function
        self._known = Known()
        self._steps: dict = {}
        self._ranks: Ranks | None = None
        self._lock = threading.Lock()
        self.reason: str | None = None
        _ALL.add(self)

    def _forget_other_threads(self):
        """Called in a forked process, because a thread of the parent process may have held this
        object's lock."""
        if self._lock.locked():
            self._lock, self._steps = threading.Lock(), {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = [x for x in (*args, *kwargs.values()) if is_array(x)]
        key = self._key(args, kwargs)
        lock = self._lock
        if self._ranks is not None and self._ranks.computes_no_loss():
            self.reason = "this rank's batch has no weight in this step"
            return self._eager(args, kwargs)
        if key is None or not lock.acquire(blocking=False):
            self.reason = self.reason if key is None else "another thread is running it"
            return self._eager(args, kwargs)
        try:
            return self._run(key, arrays, args, kwargs)
        finally:
            lock.release()

    def _key(self, args, kwargs):
        """Returns the key of the arguments' recording. If the arguments have no key, returns None
        and sets :attr:`reason`."""
        if reason := _why_eager(args, kwargs):
            self.reason = reason
            return None
        values, ids = [*args, *kwargs.values()], []
        parts: list = []
        for x in values:
            if is_array(x):
                if not (is_plain_array(x) or is_gpu_array(x)):
                    self.reason = f"an argument is a {type(x).__name__} of {x.dtype}"
                    return None
                ids.append(id(x))
                parts.append((x.shape, x.dtype, *_layout(x)))
            elif isinstance(x, Variable):
                self.reason = "an argument is a Variable: pass its array"
                return None
            else:
                parts.append(exact_key(x))
        if len(set(ids)) < len(ids):  # an array is passed more than once
            parts.append(tuple([ids.index(x) for x in ids]))
        if len(ids) > 1 and (pairs := overlapping(filter(is_array, values))):
            parts.append(pairs)
        settings = [getattr(config, name) for name in SETTINGS]
        key = (*parts, *kwargs, len(args), *settings)
        try:
            hash(key)
        except TypeError:
            self.reason = "an argument is neither an array nor hashable"
            return None
        return key

    def _run(self, key, arrays, args, kwargs):
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= _MOST_RECORDINGS:
                self.reason = f"it was called with more than {_MOST_RECORDINGS} kinds of arguments"
                return self._eager(args, kwargs)
            step = self._steps[key] = Step(
                self.function, self._known, self._eager, self._find_ranks
            )
        self.reason, result = step(arrays, args, kwargs)
        return result

    def instead(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls another function while other ranks may be calling this captured function."""
        if current.recorder is None:
            self._find_ranks().agree(AS_ALWAYS)
        return function(*args)

    def _find_ranks(self):
        if self._ranks is None:
            found = Surroundings(self.function).found(Optimizer)
            of_ranks = [x for x in found if x.communicator is not None]
            self._ranks = RanksOfOptimizer(of_ranks[0]) if of_ranks else Ranks()
        return self._ranks

    def _eager(self, args, kwargs):
        return self.instead(self._call, args, kwargs)

    def _call(self, args, kwargs):
        return without_graph(self.function(*args, **kwargs))


def _layout(x):
    """Returns those properties of an array, besides shape and dtype, that code may read."""
    if not isinstance(x, np.ndarray):
        return (str(x.device),)
    return x.flags.c_contiguous, x.flags.f_contiguous, x.flags.writeable


def _why_eager(args, kwargs):
    if config.debug:
        return "debug mode is on, in which each operation is checked"
    if current.recorder is not None:
        return "it is called by a function that is being recorded"
    if config.function_hooks or config.link_hooks or current.observers is not None:
        return "hooks of functions or links are in use"
    return None


def capture(function: Callable[..., Any]) -> Captured:
    """Records what a function computes, and replays it in later calls with equal shapes.

    The first call with arguments of certain shapes runs normally. The next two calls are recorded
    and compared (two more if the replay differs once), and all later calls are replayed. A replay
    makes the same calls of NumPy and of kernels, in memory that was planned once, and creates
    neither Variables nor a graph. Optimizers update normally, with the gradients that a replay
    computed. A replay repeats reports, random draws, and the step's writes into arrays.

    A replay is trusted only as far as it was compared: results, gradients, persistent values and
    reports. In the first call in which an argument differs from its value in all calls before, the
    step runs and is compared once more. Attributes, closures, defaults and globals that the
    function reads are guards: if one changes, the step is recorded again; after eight changes in a
    short time, replays stop. Each call also checks bools that are read from arrays, and shapes that
    depend on data. Values of parameters, arrays and hyperparameters of optimizers may change at any
    time.

    A step that cannot be replayed runs normally; a warning, and the captured function's attribute
    ``reason``, say why. A step cannot be replayed if it reads values of arrays
    (``float(loss.array)``), changes numbers that are not arrays, returns objects other than nested
    tuples, lists, dicts and dataclasses, or computes by other means than NumPy and mpchain. The
    guide to performance lists what is compared, guarded and refused, and the few effects that
    cannot be detected, such as reading files.

    On a GPU the second call is captured as a CUDA graph, which is compared with the step before its
    results are used. Graphs contain NCCL's sums of gradients, so either all ranks launch their
    graphs, or all run the step normally. The gradients of parameters are overwritten by the next
    replay.

    Args:
        function: a function of arrays, which may be keyword arguments. Other arguments must be
            hashable; each of up to eight values has a recording. The function may use optimizers,
            and links that it reaches through its closure, globals or ``self``. It calls
            ``backward`` itself, because Variables that it returns have no graph.

    Returns:
        The captured function.

    Example:
        >>> model = L.Linear(2, 1)
        >>> predict = mpchain.capture(lambda x: F.relu(model(x)).array)
        >>> [predict(np.ones((3, 2), np.float32)).shape for _ in range(4)][-1]
        (3, 1)
        >>> print(predict.reason)
        None
    """
    return Captured(function)
