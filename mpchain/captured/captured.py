"""Functions that are recorded and replayed."""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.captured.graph_step import AS_ALWAYS, GraphStep
from mpchain.captured.plan import Plan
from mpchain.captured.ranks import Ranks
from mpchain.captured.recorder import RecordedArray, Recorder, difference, plain, without_graph
from mpchain.captured.state import State, found_in
from mpchain.configuration import config
from mpchain.link import Link
from mpchain.recording import current
from mpchain.variable import Variable

_MOST_RECORDINGS = 8
_MOST_ATTEMPTS = 3


class _Step:
    """What is known of a function for arguments of certain shapes."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.n_attempts = 0
        self.has_mismatched = False
        self.reason: str | None = None
        self.plan: Plan | None = None
        self.state: State | None = None
        self.recorder: Recorder | None = None
        self.graph: GraphStep | None = None


class Captured:
    """A function that is recorded, and then replayed without Python's work for each operation.

    Made by :func:`mpchain.capture`.

    Attributes:
        reason: why the latest call was not replayed; None if it was.

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
        self._function = function
        self._links: list | None = None
        self._params: list = []
        self._steps: dict = {}
        self._ranks: Ranks | None = None
        self._lock = threading.Lock()
        self.reason: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = [x for x in (*args, *kwargs.values()) if _is_array(x)]
        key = self._key(args, kwargs)
        if key is None or not self._lock.acquire(blocking=False):
            self.reason = self.reason if key is None else "another thread runs it"
            return self._eager(args, kwargs)
        try:
            return self._run(key, arrays, args, kwargs)
        finally:
            self._lock.release()

    def _key(self, args, kwargs):
        """What a recording holds for; None, and the reason noted, if there can be none."""
        if reason := _why_eager(args, kwargs):
            self.reason = reason
            return None
        values = [*args, *kwargs.values()]
        shapes = [
            (x.shape, x.dtype.char, str(x.device)) if _is_array(x) else (type(x), x) for x in values
        ]
        settings = config.train, config.enable_backprop, str(config.dtype), config.kernels
        settings += config.use_cudnn, config.cudnn_deterministic, config.use_cudnn_tensor_core
        key = (*shapes, *kwargs, len(args), settings)
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
            step = self._steps[key] = _Step()
        if step.graph is not None:
            self.reason, result = step.graph(arrays, args, kwargs)
            return result
        if step.plan is not None and step.recorder is None and step.state.fits():
            self.reason, result = step.plan.replay(arrays)
            return result if self.reason is None else self._eager(args, kwargs)
        self.reason = step.reason
        if step.reason is not None:
            return self._eager(args, kwargs)
        step.n_calls += 1
        if step.n_calls == 1:  # in which parameters are initialized
            self.reason = "it is called for the first time"
            return self._eager(args, kwargs)
        return self._record(step, arrays, args, kwargs)

    def instead(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls another function in the place of this one, which other ranks may call."""
        if current.recorder is None:
            self._find_ranks().agree(AS_ALWAYS)
        return function(*args)

    def _find_ranks(self):
        if self._ranks is None:
            self._ranks = next(iter(found_in(self._function, Ranks)), None) or Ranks()
        return self._ranks

    def _eager(self, args, kwargs):
        return self.instead(self._call, args, kwargs)

    def _call(self, args, kwargs):
        return without_graph(self._function(*args, **kwargs), lambda array: array)

    def _record(self, step, arrays, args, kwargs):
        """Runs the function and records it; compares it with the recording before, if any."""
        if step.plan is not None and not (step.state.fits() and step.state.keeps_the_same()):
            step.plan = step.recorder = None
            step.n_attempts += 1
        if self._links is None:
            self._links = found_in(self._function, Link)
            variables = found_in(self._function, Variable)
            self._params = [x for x in variables if x.array is not None and x.creator_node is None]
        first, expected = step.recorder, None
        if first is None:
            step.state = State(self._links, self._params)
            if not step.state.is_on_host or any(map(is_gpu_array, arrays)):
                step.graph = GraphStep(
                    self._function, self._links, self._params, self._find_ranks()
                )
                self.reason, result = step.graph(arrays, args, kwargs)
                return result
        else:
            expected = step.plan.rehearse(arrays)
        inputs = [x.copy() for x in arrays]
        recorder = Recorder(step.state, inputs, expected)
        result = self._recorded(recorder, inputs, args, kwargs)
        if recorder.unknown_links or recorder.unknown_params:
            self._links += [link for link in recorder.unknown_links if link not in self._links]
            self._params += recorder.unknown_params
            step.plan = step.recorder = None
            step.n_attempts += 1
        elif (
            first is not None and first.numbers != recorder.numbers
        ):  # gradients cannot be compared
            step.plan = step.recorder = None
            step.n_attempts += 1
        elif first is None:
            step.plan = Plan(recorder, inputs, result)
            step.recorder = recorder
            recorder.keep_values()
            recorder.refuse_if(step.plan.reason)
        else:
            recorder.check_at_end()
            reason = difference(first, recorder) or recorder.reason
            if reason is None and recorder.mismatch and not step.has_mismatched:
                # Rounding turned a rectifier on or off, whose input is almost zero: hardly twice.
                step.plan = step.recorder = None
                step.has_mismatched = True
            else:
                recorder.refuse_if(reason or recorder.mismatch)
                step.recorder, step.n_attempts = None, 0
        if step.n_attempts > _MOST_ATTEMPTS:
            recorder.refuse_if("parameters or persistent values are replaced in each step")
        self.reason = step.reason = recorder.reason
        if step.reason is not None:
            step.plan = step.recorder = None
            name = getattr(self._function, "__name__", type(self._function).__name__)
            warnings.warn(f"capture: {name} is not replayed: {step.reason}", stacklevel=4)
        else:
            self.reason = "it is being recorded"
        for param in step.state.params:
            if param.grad is not None:
                param.grad = plain(param.grad)
        return without_graph(result, lambda array: array.copy())

    def _recorded(self, recorder, inputs, args, kwargs):
        """Runs the function on recorded arrays."""
        recorded = iter([x.view(RecordedArray) for x in inputs])
        args = [next(recorded) if isinstance(x, np.ndarray) else x for x in args]
        kwargs = {k: next(recorded) if isinstance(x, np.ndarray) else x for k, x in kwargs.items()}
        with recorder.at_work():
            return self._function(*args, **kwargs)


def _why_eager(args, kwargs):
    if config.debug:
        return "debug mode looks at each operation"
    if config.function_hooks or config.link_hooks:
        return "hooks of functions or links are in use"
    if current.recorder is not None:
        return "it is called by a function that is being recorded"
    return None


def _is_array(value):
    return isinstance(value, np.ndarray) or is_gpu_array(value)


def capture(function: Callable[..., Any]) -> Captured:
    """Records what a function computes, and replays it in later calls with equal shapes.

    The first call with arguments of certain shapes runs as always, the next two are recorded (two
    more if their gradients differ), and all later ones are replayed: the same calls of NumPy and of
    kernels, on memory that was planned once, without Variables, graph and backward's walk.
    Optimizers update as always, on the gradients that a replay computed; reports and random draws
    are made again.

    A step that cannot be replayed runs as always; a warning says why, and ``reason`` of what is
    returned. Such are steps that read values of arrays (``float(loss.array)``), in which numbers
    change that are not arrays, or that compute by other means than NumPy and mpchain.

    What Python decides is decided when a step is recorded: attributes that are changed later, such
    as a ratio or a factor, have no effect, but arguments and hyperparameters of optimizers have.
    Arrays that are neither arguments nor those of links and Variables count as constants.
    On a GPU the second call is captured as a CUDA graph, and the third is compared with it. Graphs
    hold the sums of gradients by NCCL; all ranks launch theirs, or run the step as always.
    The gradients of parameters are overwritten by the next replay.

    Args:
        function: a function of arrays, keywords included; other arguments must be hashable. It may
            use links, which it refers to by its closure, globals or ``self``, and optimizers, and
            calls ``backward`` itself: Variables that it returns have no graph.

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
