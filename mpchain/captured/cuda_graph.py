"""Steps on GPUs, which are captured as CUDA graphs; one call of the driver launches a graph.

A graph holds the kernels of a whole step, with the addresses of their arrays. Values that change
from step to step are updated before each launch: arguments are copied, random draws are made again,
and a kernel writes the optimizers' scalars, such as learning rates, where the optimizers' kernels
read them. With several ranks, the graph also contains NCCL's sums of gradients; ranks exchange all
other messages before and after each launch.
"""

import contextlib
import functools
import gc
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.captured.comparison import are_all_close, are_same
from mpchain.captured.graph_memory import GraphMemory
from mpchain.captured.ranks import capture_update
from mpchain.captured.recorder import Draws
from mpchain.captured.results import simple_of, why_not_returned, without_graph
from mpchain.captured.state import Carried, State, other_values
from mpchain.observers import Graph, Recording
from mpchain.optimizer import Optimizer
from mpchain.typing import Array
from mpchain.update_rule import takes_plain_steps
from mpchain.variable import Parameter, Variable, own_grad, set_grads

_MOST_ATTEMPTS = 3
_MOST_NUMBERS = 8192
_AT_ONCE = 256  # the number of arguments that the kernel gets by value
_STORE = f"""struct Numbers {{ double of[{_AT_ONCE}]; }};
extern "C" __global__ void mpchain_store_numbers(const Numbers numbers, double* to, int n) {{
  int i = threadIdx.x;
  if (i < n) to[i] = numbers.of[i];
}}
"""


class _Refused(Exception):
    """Raised when the step cannot be captured; the argument is the reason."""


class _Differs(Exception):
    """Raised when an optimizer's formula differs from the formula that was captured."""


class _Repeated(Recording):
    """A recorder that gives a step the random numbers that a replay drew, and converts the arrays
    that the step reports."""

    def __init__(self, drawn, convert=None):
        self._drawn, self._convert, self.reason = iter(drawn), convert, None

    def call_again(self, function, args):
        is_update = isinstance(getattr(function, "__self__", None), Optimizer)
        if self._convert is not None and not is_update:
            args = without_graph(args, self._convert)
        return function(*args)

    def draws(self, generator):
        return Draws(generator, self._draw)

    def _draw(self, name, function, *args, **kwargs):
        of_replay, array = next(self._drawn, (None, None))
        if array is not None and of_replay == (name, args, kwargs):
            return array.copy()
        self.reason = f"it draws by {name} in one step, but not in another"
        return function(*args, **kwargs)

    def refuse(self, reason):
        self.reason = reason


class CudaGraph(Graph):
    """A captured step.

    Args:
        state: the state that the step may change, besides the arrays that it creates.
        arrays: the step's arguments.
        others: further arrays, such as persistent values, that the step may use or change.

    Attributes:
        unknown_params: parameters that functions received, but that are not in ``state``.
    """

    def __init__(self, state: State, arrays: Sequence[Array], others: Sequence[Array] = ()):
        self.state, self.unknown_params, self._others = state, [], others
        self.in_use, self.alike = {}, []
        self._exchanging: Any = None
        self._is_of_ranks = False
        self._drawing: Callable[[], contextlib.AbstractContextManager] | None = None
        self._graph: Any = None
        self._before: list[tuple[Callable, tuple]] = []
        self._asked: list[tuple[Callable[[], float], int]] = []
        self._known = {id(param) for param in state.params}
        self._persistents = [
            (vars(link), name, vars(link)[name])
            for link in _parts(state.links)
            for name in sorted(link._persistents)
        ]
        self._cupy = cuda.cupy
        on_gpu = (x for x in (*(p.array for p in state.params), *arrays) if cuda.is_gpu_array(x))
        self.device: Any = next(on_gpu).device
        self._kept: list[Any] = []
        self._again: list[tuple[Callable, tuple]] = []
        self._draws: list[tuple] = []
        self._has_drawn = False
        self._numbers: list[tuple[Callable, str, int, int]] = []
        self._n_numbers = 0
        self._counts: list[tuple[Any, int]] = []
        self._updates: list[tuple[Optimizer, list]] = []
        self._states: list[tuple[dict, str, Array]] = []
        self._scales: list[tuple] = []
        self._written: list[int] = []
        with self.device:
            self._memory = GraphMemory()
            with self._memory.serving():
                capability = int(self.device.compute_capability)
                cublas = annexes.find("gpu_kernels", "kernels.gpu.cublas")
                n_bytes = cublas.workspace_bytes(capability) if cublas else 0
                self.workspace = self._cupy.empty(n_bytes, np.uint8)
                self._stored: Any = self._cupy.zeros(_MOST_NUMBERS, np.float64)
                # The graph's memory begins with other values than the arguments. Otherwise, the
                # comparison would not notice launches that do not copy arguments.
                self._inputs = [other_values(x) for x in arrays]
                self._carried = Carried(_parts(state.links))

    # Code calls the methods below during a capture.

    def refuse(self, reason: str) -> None:
        raise _Refused(reason)

    def exchange(self, function: Callable, array: Array) -> Any:
        raise _Refused("ranks exchange values that depend on data")

    def keep(self, thing: object) -> None:
        self._kept.append(thing)

    def note_inputs(self, variables: Sequence[Variable]) -> None:
        for x in variables:
            if x.creator_node is None:
                self._kept.append(x.array)
                if isinstance(x, Parameter) and id(x) not in self._known:
                    self.unknown_params.append(x)

    def draws(self, generator: object) -> Any:
        return Draws(generator, self._draw)

    def _draw(self, name, function, *args, **kwargs):
        if any(cuda.is_gpu_array(x) for x in (*args, *kwargs.values())):
            raise _Refused(f"{name} draws with parameters that are arrays")
        with self._outer:
            array = function(*args, **kwargs)
        again = functools.partial(function, *args, **kwargs)
        if self._drawing is not None:
            again = functools.partial(_within, self._drawing, again)
        self._draws.append(((name, args, kwargs), again, array))
        return array

    @contextlib.contextmanager
    def drawing(self, make: Callable[[], contextlib.AbstractContextManager]) -> Iterator[None]:
        self._drawing = make
        try:
            yield
        finally:
            self._drawing = None

    def call_again(self, function: Callable, args: tuple) -> None:
        owner = getattr(function, "__self__", None)
        if not isinstance(owner, Optimizer):
            self._again.append((function, without_graph(args)))
            return
        if owner.has_dynamic_loss_scale and owner.scale_on_gpu is None:
            raise _Refused("the loss scale of an optimizer is dynamic, and kept on the host")
        rules = [p.update_rule for p in owner.target.params() if p.update_rule is not None]
        counted = [(x, x.t) for x in (owner, *rules)]
        try:
            function(*args)
        finally:
            self._counts += [(x, x.t - t) for x, t in counted if x.t != t]
        for param in owner.target.params(include_uninit=False):
            rule = param.update_rule
            if rule is None:
                continue
            if not takes_plain_steps(type(param), type(rule)):
                name = type(rule).__name__
                raise _Refused(f"{name} overrides update, and may compute with numbers that change")
            self._states += [(rule.state, k, x) for k, x in (rule.state or {}).items()]
            if rule._fp32_param is not None:
                copy = vars(rule._fp32_param)
                self._states.append((copy, "_array", copy["_array"]))
        self._updates.append((owner, _settings(owner)))

    def scales(self, *noted: Any) -> None:
        self._scales.append(noted)

    def numbers_of(self, describe: Callable[[], tuple[str, list]]) -> Array:
        text, numbers = describe()
        begin = self._places(len(numbers))
        self._numbers.append((describe, text, begin, self._n_numbers))
        return self._stored[begin : max(self._n_numbers, begin + 1)]

    def _places(self, n):
        begin, self._n_numbers = self._n_numbers, self._n_numbers + n
        if self._n_numbers > _MOST_NUMBERS:
            raise _Refused(f"its optimizers have more than {_MOST_NUMBERS} rates and other scalars")
        return begin

    def number(self, function: Callable[[], float], like: Array) -> Array:
        place, array = self._places(1), self._cupy.empty(like.shape, like.dtype)
        self._asked.append((function, place))
        array[...] = self._stored[place]
        return array

    def before(self, function: Callable, *args: Any) -> None:
        self._before.append((function, args))

    def update_of_ranks(self, optimizer: Any, parts: Sequence, observations: Any) -> None:
        super().update_of_ranks(optimizer, parts, observations)
        if reason := optimizer.why_not_in_graphs():
            raise _Refused(reason)
        self._is_of_ranks = True
        n, compute_loss = parts[0]
        capture_update(self, optimizer, n, compute_loss, observations)

    @contextlib.contextmanager
    def exchanging(self, comm: Any) -> Iterator[None]:
        self._exchanging = comm
        try:
            # The call neither waits for other ranks nor sends messages, so other ranks need not
            # make the same call.
            with comm.unwatched():
                yield
        finally:
            self._exchanging = None

    def joins(self, comm: object) -> None:
        # All ranks capture such a call, or no rank does.
        if comm is not self._exchanging:
            raise _Refused("ranks exchange more than gradients")

    # The methods below capture and replay the step.

    def capture(self, function: Callable, args: Sequence, kwargs: dict) -> None:
        """Captures the function's work, which the GPU does not run yet.

        Raises:
            Exception: the function cannot be captured; the optimizers' counts are unchanged.
        """
        # The memory is freed first, because the graph's pool cannot use free blocks of other pools.
        gc.collect()
        self._cupy.get_default_memory_pool().free_all_blocks()
        inputs = iter(self._inputs)
        args = [next(inputs) if cuda.is_gpu_array(x) else x for x in args]
        kwargs = {k: next(inputs) if cuda.is_gpu_array(x) else x for k, x in kwargs.items()}
        before = {id(p): own_grad(p) for p in self.state.params}
        self._carried.begin()
        try:
            with self._at_work():
                result = function(*args, **kwargs)
                self._result = without_graph(result)
                if odd := why_not_returned(result, cuda.is_gpu_array):
                    raise _Refused(odd)
                self._grads = [
                    (p, p.grad) for p in self.state.params if p.grad is not before[id(p)]
                ]
                result = None
            self._carried.end()
        except BaseException:
            self._count(-1)
            raise
        self._unchanged = {id(x) for x in self._arrays()}

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        cupy = self._cupy
        with self.device:
            self._outer, stream = cupy.cuda.get_current_stream(), self._memory.stream
            with stream, self._memory.serving():
                stream.begin_capture()
                try:
                    with self:
                        yield
                except BaseException:
                    with contextlib.suppress(Exception):  # CUDA reports that no graph was captured
                        stream.end_capture()
                    raise
                self._graph = stream.end_capture()

    def fits(self) -> bool:
        """Returns whether parameters, persistent values, and the states, settings and hooks of
        optimizers are the same as when the step was captured."""
        return (
            self._graph is not None
            and self.state.fits()
            and all(names.get(name) is value for names, name, value in self._persistents)
            and all(states.get(name) is array for states, name, array in self._states)
            and all(_settings(optimizer) == settings for optimizer, settings in self._updates)
        )

    def lacks_scale(self) -> bool:
        """Returns whether a dynamic loss scale was moved to the host, as happens when an optimizer
        is saved."""
        scales = [o.scale_on_gpu for o, _ in self._updates if o.has_dynamic_loss_scale]
        return None in scales

    def carries_the_same(self) -> bool:
        """Returns whether links keep state of the same shapes as when the step was captured."""
        return self._carried.fits()

    def release(self) -> None:
        """Destroys the graph, because NCCL destroys a communicator only after all graphs that
        contain its operations are destroyed (``commDestroySync`` in its ``init.cc``)."""
        self._graph, self.is_released = None, True

    def prepare(self) -> bool:
        """Prepares a launch: counts updates, and computes the scalars of optimizers.

        Returns:
            Whether the graph can be launched; False if an optimizer's formula has changed.
        """
        for optimizer, _ in self._updates:
            optimizer._learn(waits=False)
        self._count(1)
        try:
            self._values = self._numbers_now()
        except _Differs:
            self._count(-1)
            return False
        return True

    def cancel(self) -> None:
        """Undoes :meth:`prepare`."""
        self._count(-1)

    def prepare_first(self) -> None:
        """Prepares a launch with the arguments and random draws of the capture."""
        self._values = self._numbers_now()
        self._has_drawn = True

    def replay(self, arrays: Sequence[Array]) -> Any:
        """Launches the graph, which :meth:`prepare` has prepared, for arguments; returns the step's
        result."""
        with self.device:
            self._begin(arrays)
            result = self._launched()
            for i in self._written:
                self._cupy.copyto(arrays[i], self._inputs[i])
            return result

    def _begin(self, arrays):
        self._store_numbers()
        for place, array in zip(self._inputs, arrays, strict=True):
            self._cupy.copyto(place, array)
        self._carried.load()
        if not self._has_drawn:
            for _, draw, array in self._draws:
                self._cupy.copyto(array, draw())
        self._has_drawn = False

    def _store_numbers(self):
        for function, args in self._before:
            function(*args)
        for function, place in self._asked:
            self._values[place] = function()
        self._store(self._values)

    def _launched(self):
        self._graph.launch()
        for (scale, *noted), (optimizer, _) in zip(self._scales, self._scaled()):
            scale.note(optimizer.t, *noted)
        set_grads(self._grads)
        self._carried.leave(lambda array: array.copy())
        for function, args in self._again:
            function(*without_graph(args, self._copied))
        return without_graph(self._result, self._copied)

    def _scaled(self):
        return [pair for pair in self._updates if pair[0].scale_on_gpu is not None]

    def _copied(self, array):
        return array if id(array) in self._unchanged else array.copy()

    def _count(self, direction):
        for counted, n in self._counts:
            counted.t += direction * n

    def _numbers_now(self):
        values = np.zeros(self._n_numbers)
        for describe, text, begin, end in self._numbers:
            found, numbers = describe()
            if found != text or len(numbers) != end - begin:
                raise _Differs
            values[begin:end] = numbers
        return values

    def _store(self, values):
        kernel = cuda.raw(_STORE, "mpchain_store_numbers")
        for begin in range(0, len(values), _AT_ONCE):
            portion = values[begin : begin + _AT_ONCE]
            numbers = np.zeros(1, [("of", np.float64, _AT_ONCE)])
            numbers["of"][0, : len(portion)] = portion
            kernel((1,), (_AT_ONCE,), (numbers, self._stored[begin:], np.int32(len(portion))))

    def _arrays(self) -> Iterator[Any]:
        """Yields the arrays that a step may change."""
        yield from (p.array for p in self.state.params)
        yield from (v for _, _, v in self._persistents if cuda.is_gpu_array(v))
        yield from (x for _, _, x in self._states if cuda.is_gpu_array(x))
        yield from (x for scale, *_ in self._scales for x in scale.arrays())
        known = {id(p.array) for p in self.state.params}
        yield from (x for x in self._others if id(x) not in known)

    def compare(
        self, arrays: Sequence[Array], function: Callable[[], Any]
    ) -> tuple[Any, str | None]:
        """Calls the step normally, and compares its results with those of the prepared replay.

        Returns:
            the step's result, and a description of the difference; None in place of the description
            if there is no difference.
        """
        with self.device:
            before: list[tuple[Any, np.ndarray]] = [(x, x.get()) for x in self._arrays()]
            self._begin(arrays)
            self._graph.launch()
            drawn = [(what, array) for what, _, array in self._draws]
            grads = [g for _, g in self._grads]
            expected = self._outcome(grads, self._result, self._carried.computed(), self._inputs)
            written = zip(arrays, expected["arguments"], strict=True)
            differs = [not are_same(cuda.to_cpu(x), y) for x, y in written]
            self._written = list(itertools.compress(range(len(arrays)), differs))
            updated = self._values_of_params()
            for array, value in before:
                array.set(value)
            self._count(-1)
            result, listener = self._as_always(function, drawn, before)
            if self._graph is None:
                return result, listener.reason or "the GPU's memory does not suffice for its graph"
            grads = [p.grad for p, _ in self._grads]
            found = self._outcome(grads, result, self._carried.found(), arrays)
            params = [value for _, value in before[: len(updated)]]
            reason = listener.reason or _difference(expected, found)
            if not (reason or _move_alike(params, updated, self._values_of_params())):
                reason = "a replay updated parameters differently"
            # Replays do not need the memory of the eager step that ran with the graph.
            self._cupy.get_default_memory_pool().free_all_blocks()
        if simple_of(result) != simple_of(self._result):
            reason = reason or "it returns other numbers in each step"
        return result, reason

    def _as_always(self, function, drawn, before):
        """Runs the step in memory of its own, or in the graph's memory if the GPU has no other free
        memory. If this memory does not suffice, drops the graph and runs the step again, but raises
        MemoryError for an update of several ranks."""
        counts = [(counted, counted.t) for counted, _ in self._counts]
        try:
            if self._memory.is_short():
                return self._in_its_memory(function, drawn)
            with _Repeated(drawn) as listener:
                return function(), listener
        except MemoryError:
            if self._is_of_ranks:
                raise
        for param, _ in self._grads:
            param.cleargrad()
        self._give_up_memory()
        for array, value in before:
            array.set(value)
        for counted, t in counts:
            counted.t = t
        with _Repeated(drawn) as listener:
            return function(), listener

    def _in_its_memory(self, function, drawn):
        """Runs the step in the graph's memory. Drops the graph if the step keeps arrays that it
        computes."""
        used = self._memory.used_bytes()
        # These references keep the arrays alive, because the graph's stream may be reading them.
        old_grads = [own_grad(p) for p in self.state.params]
        with self._memory.lent() as moved_out:

            def moved(array):
                return array if id(array) in self._unchanged else moved_out(array)

            with _Repeated(drawn, moved) as listener:
                result = without_graph(function(), moved)
            self._carried.convert(moved)
            for param, grad in self._grads:
                if grad is not None and param.grad is not None:
                    self._cupy.copyto(grad, param.grad)
                    set_grads([(param, grad)])
        del old_grads
        gc.collect()
        if self._memory.used_bytes() > used:
            grads = [(p, p.grad) for p, _ in self._grads]
            self._give_up_memory()
            set_grads([(p, None if g is None else g.copy()) for p, g in grads])
            listener.reason = (
                "it keeps arrays that it computes, and the GPU's memory does not suffice for a "
                "step in addition to its graph"
            )
        return result, listener

    def _give_up_memory(self):
        """Frees the memory of the graph and of earlier steps, and returns it to CUDA."""
        self.release()
        self._result, self._grads, self._inputs, self._kept = None, [], [], []
        self._unchanged, self.workspace = set(), None
        gc.collect()
        self._memory.free()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _values_of_params(self):
        return [p.array.get() for p in self.state.params]

    def _outcome(self, grads, result, carried, arguments):
        """Returns copies, in host memory, of the results of a step."""
        results: list[Array] = []
        without_graph(result, results.append)
        persistents = (v for _, _, v in self._persistents)
        parts = {"gradients": grads, "results": results, "persistent values": persistents}
        parts["states of optimizers"] = [v for _, _, v in self._states]
        parts["arrays"] = self._others
        parts |= {"state that links carry": carried, "arguments": arguments}
        return {k: [x.get() for x in xs if cuda.is_gpu_array(x)] for k, xs in parts.items()}


def _move_alike(before, first, second):
    """Returns whether two steps changed all parameters, taken together, by similar amounts.
    Parameters are not compared one by one, because Adam's step of a parameter may depend only on
    rounding errors."""

    def squares(arrays, others):
        pairs = ((a.astype(np.float64), b.astype(np.float64)) for a, b in zip(arrays, others))
        return sum(float(np.sum(np.nan_to_num(a - b) ** 2)) for a, b in pairs)

    rounding = 1e-12 * squares(before, [np.zeros(1)] * len(before))
    return squares(first, second) <= 0.25 * squares(second, before) + rounding


def _parts(links):
    """Returns links and their descendants, without duplicates."""
    return list({id(part): part for link in links for part in link.links()}.values())


def _within(make, function):
    with make():
        return function()


def _difference(expected, found):
    for what, arrays in found.items():
        if not are_all_close(expected[what], arrays, of_one_size=True):
            return f"a replay computed other {what}"
    return None


def _settings(optimizer):
    """Returns the settings that determine an optimizer's kernels and the constants in these
    kernels."""
    scale = optimizer.scale_on_gpu
    values = [optimizer._loss_scale if scale is None else id(scale)]
    for timing in ("pre", "post"):
        for hook in optimizer._hooks.at(timing):
            values += [timing, id(hook), *_attributes(hook)]
    first = None
    for param in optimizer.target.params(include_uninit=False):
        if (rule := param.update_rule) is not None:
            hooks = [id(h) for timing in ("pre", "post") for h in rule._hooks.at(timing)]
            n_own = len(vars(rule.hyperparam))
            first = rule if first is None else first
            values.append((id(rule), rule.enabled, rule.t - first.t, n_own, *hooks))
    return values


def _attributes(thing):
    for name, value in getattr(thing, "__dict__", {}).items():
        is_simple = value is None or isinstance(value, (bool, int, float, str))
        yield name, value if is_simple else id(value)


def explain(error: BaseException) -> str:
    """Returns the reason why a step could not be captured, given the error that the capture raised.

    Example:
        >>> from mpchain.captured.cuda_graph import explain
        >>> explain(ValueError("no such axis"))
        'ValueError: no such axis'
    """
    text = f"{error}"
    if isinstance(error, (_Refused, MemoryError)):
        return f"{text}{_place(error)}"
    if "capturing" in text or "StreamCapture" in text or "CapturedEvent" in text:
        return f"it reads the values of an array, or waits for the GPU{_place(error)}"
    return f"{type(error).__name__}: {text}{_place(error)}"


def _place(error):
    """Returns the file and line, outside of mpchain and array libraries, from which an error was
    raised."""
    libraries = [sys.modules[name] for name in ("mpchain", "cupy") if name in sys.modules]
    inside = [os.path.dirname(x.__file__ or "") for x in (*libraries, contextlib)]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*inside, "<"))
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
