"""Gradient checkpointing, which discards a function's intermediate results and recomputes them for
backward."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import backprop, random
from mpchain.backends import cuda
from mpchain.configuration import config, using_config
from mpchain.function_node import FunctionNode
from mpchain.functions import counting
from mpchain.observers import Observer
from mpchain.typing import Input
from mpchain.variable import Variable, as_variable


def forget(func: Callable, *xs: Input) -> Any:
    """Calls a function without keeping its intermediate results, which backward computes again.

    The call saves the memory of the intermediate arrays, and costs one more forward computation.
    Gradients flow to ``xs`` and to every other variable that ``func`` uses, such as the parameters
    of a link. The gradients are differentiable to any order; the computation of higher-order
    gradients calls ``func`` again, too.

    While ``func`` is called again, ``config.in_recomputing`` is True, and ``config.train``,
    ``config.dtype``, ``config.compute_mode`` and the random numbers that are drawn from NumPy's
    global state, ``config.rng`` and CuPy are the same as in the first call. ``func`` must not draw
    from any other generator, and must not draw from NumPy's global state while another thread does.
    If ``config.in_recomputing`` is True, ``func`` must skip effects that may happen only once.

    Args:
        func: a function that takes Variables and returns a Variable or a tuple of Variables.
        xs: Variables or arrays.

    Returns:
        The result of ``func``. If the result is a tuple of one Variable, this Variable is returned.

    Raises:
        TypeError: ``func`` returns neither a Variable nor a tuple of Variables.
        RuntimeError: raised in backward if ``func`` returns other shapes, uses other variables or
            draws other random numbers than in the first call.

    Example:
        >>> x = Variable(np.array([0.0]))
        >>> y = forget(lambda x: np.tanh(np.tanh(x)), x)

    See T. Chen et al., Training deep nets with sublinear memory cost, 2016.
    """
    outputs = _forget(lambda *variables: _checked(func(*variables)), xs)
    return outputs[0] if len(outputs) == 1 else outputs


def _checked(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for i, y in enumerate(outputs):
        if not isinstance(y, Variable):
            raise TypeError(
                "forget: func must return a Variable or a tuple of Variables, "
                f"but its output {i} is a {type(y).__name__}"
            )
    return outputs


def _forget(func, xs):
    """Implements :func:`forget` for a function that returns a tuple of Variables and None."""
    xs = [as_variable(x) for x in xs]
    if not config.enable_backprop:
        return func(*xs)
    node = Forget(func, xs)
    outputs, others = node.first_call(xs)
    if all(y is None for y in outputs):
        return outputs
    results = iter(node.apply((*xs, *others)))
    return tuple([None if y is None else next(results) for y in outputs])


class Forget(FunctionNode):
    """The node of a function that is called again in backward.

    The node's inputs are the function's arguments, followed by all other variables that the
    function used, such as parameters. Backpropagation therefore sees every variable on which the
    function depends.

    Example:
        >>> type(forget(F.exp, Variable(np.zeros(2))).creator_node).__name__
        'Forget'
    """

    def __init__(self, func: Callable, xs: list[Variable]):
        self._func = func
        self._n_arguments = len(xs)
        self._environment = _Environment(xs)

    def first_call(self, xs: list[Variable]) -> tuple:
        """Calls the function; returns its outputs, and the other variables that the function
        used."""
        # The call builds a graph, in which the variables that the function uses are found. The
        # graph is freed with the outputs, and takes no more memory than the graph that backward
        # builds later.
        with self._environment.noted(), _Trace() as trace:
            outputs = self._func(*xs)
        self._shapes = [None if y is None else y.shape for y in outputs]
        self._arrays = tuple([y.array for y in outputs if y is not None])
        arguments = {_place(x.node) for x in xs}
        others = {_place(node): node for node in trace.sources(outputs)}
        return outputs, [n.get_variable() for place, n in others.items() if place not in arguments]

    def forward(self, inputs: tuple) -> tuple:
        self.retain_inputs(range(self._n_arguments))
        arrays, self._arrays = self._arrays, ()
        return arrays

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple) -> tuple:
        given = [i for i, gy in enumerate(grad_outputs) if gy is not None]
        create_graph = config.enable_backprop

        def gradients(*variables):
            return self._gradients(target_input_indexes, given, create_graph, variables)

        call = _forget if create_graph else (lambda function, variables: function(*variables))
        return call(gradients, (*self.get_retained_inputs(), *(grad_outputs[i] for i in given)))

    def _gradients(self, targets, given, create_graph, variables):
        """Returns the gradients of the target inputs, from the arguments and the output
        gradients."""
        xs, gys = variables[: self._n_arguments], variables[self._n_arguments :]
        outputs, sources = self._call_again(xs)
        outputs = [y for y in outputs if y is not None]
        places = [_place(node) for node in self.inputs]
        wanted = {places[i] for i in targets}
        wanted = [(_place(node), node) for node in sources if _place(node) in wanted]
        with _as_leaves(sources):
            gxs = backprop.grad(
                [outputs[i] for i in given],
                [node.get_variable() for _, node in wanted],
                gys,
                enable_double_backprop=create_graph,
            )
        found = {}
        for (place, _), gx in zip(wanted, gxs):
            if gx is not None:
                found[place] = found[place] + gx if place in found else gx
        # A variable that is passed twice gets its gradient once.
        return tuple([found.pop(places[i], None) for i in targets])

    def _call_again(self, xs):
        """Calls the function and records its graph; returns the outputs, and the nodes on which the
        outputs depend."""
        with self._environment.restored(), _Trace() as trace:
            outputs = self._func(*xs)
        shapes = [None if y is None else y.shape for y in outputs]
        if shapes != self._shapes:
            _complain(f"its outputs had shapes {self._shapes} and have {shapes}")
        sources = trace.sources(outputs)
        places = [_place(node) for node in self.inputs]
        arguments, others = places[: self._n_arguments], places[self._n_arguments :]
        if {_place(node) for node in sources}.difference(arguments) != set(others):
            _complain("it used other variables")
        return outputs, sources


def _complain(reason):
    raise RuntimeError(f"forget: func must compute the same when it is called again, but {reason}")


def _place(node):
    """Returns the key of a variable in the graph: an output of a function, or the leaf itself."""
    return node if node.creator_node is None else (node.creator_node, node.output_index)


class _Trace(Observer):
    """Records which functions are applied in a ``with`` block."""

    def __init__(self):
        self.functions = set()

    def forward_preprocess(self, function, in_data):
        self.functions.add(function)

    def sources(self, outputs):
        """Returns the nodes on which the outputs depend and which the recorded functions did not
        compute."""
        found, seen = {}, set()
        stack = [y.node for y in outputs if y is not None and y.requires_grad]
        while stack:
            node = stack.pop()
            function = node.creator_node
            if function not in self.functions:
                found[node] = None
            elif function not in seen:
                seen.add(function)
                stack.extend([x for x in function.inputs if x.requires_grad])
        return list(found)


@contextlib.contextmanager
def _as_leaves(nodes):
    """Context manager: cuts the graph at the nodes, so that no gradients flow beyond them."""
    creators = [node.creator_node for node in nodes]
    for node in nodes:
        node.creator_node = None
    try:
        yield
    finally:
        for node, creator in zip(nodes, creators):
            node.creator_node = creator


class _Memory(threading.local):
    records: Any = ()  # This holds a list of remembered results for each active forget.
    replay: Any = None  # This iterates over the results of the first call.


_memory = _Memory()
_nothing = object()


def remembered(compute: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function; when :func:`forget` repeats the call, returns the first result again.

    Use this function for results that the arguments do not determine, such as a state that each
    call changes.

    Args:
        compute: a function; each active :func:`forget` keeps its result.
        arguments: the arguments of ``compute``.

    Example:
        >>> remembered(lambda: "drawn once")
        'drawn once'
    """
    replay = _memory.replay
    value = compute(*arguments) if replay is None else next(replay, _nothing)
    if value is _nothing:
        _complain("it asked for more remembered values")
    for record in _memory.records:
        record.append(value)
    return value


counting.remembering = remembered


class _Environment:
    """The state, besides the arguments, on which a function's results depend: configuration, random
    numbers and remembered values."""

    def __init__(self, xs):
        names = ("compute_mode", "dtype", "rng", "train")
        self._settings = {name: getattr(config, name) for name in names}
        # CuPy's generator state cannot be read, so on a GPU the function gets another generator.
        on_gpu = any(cuda.is_gpu_array(x.array) for x in xs)
        self._gpu_seed = np.random.randint(2**31) if on_gpu else None
        self._random_state = _random_state()
        self._remembered = []

    @contextlib.contextmanager
    def noted(self):
        """Context manager: records the environment of the first call."""
        outer = _memory.records
        _memory.records = (*outer, self._remembered)
        try:
            with cuda.new_generator(self._gpu_seed):
                yield
        finally:
            _memory.records = outer
        self._random_state_after = _random_state()

    @contextlib.contextmanager
    def restored(self):
        """Context manager: restores the environment of the first call for another call."""
        settings = {**self._settings, "enable_backprop": True, "in_recomputing": True}
        records, replay = _memory.records, _memory.replay
        with contextlib.ExitStack() as stack:
            for name, value in settings.items():
                stack.enter_context(using_config(name, value))
            stack.callback(_set_random_state, _random_state())
            _set_random_state(self._random_state)
            _memory.records, _memory.replay = (), iter(self._remembered)
            try:
                with cuda.new_generator(self._gpu_seed):
                    yield
            finally:
                _memory.records, _memory.replay = records, replay
            # Other threads may draw from NumPy's global generator too, so the check is skipped if
            # there are other threads.
            alone = threading.active_count() == 1
            if alone and not _equal(_random_state(), self._random_state_after):
                _complain(
                    "it drew other random numbers (if its first call initialized parameters, "
                    "initialize them before)"
                )


def _random_state():
    """Returns the states of NumPy's global generator, of ``config.rng`` and of draws by sample."""
    rng = config.rng
    of_rng = None if rng is None else rng.bit_generator.state
    return np.random.get_state(legacy=False), of_rng, random.get_state()


def _set_random_state(state):
    np.random.set_state(state[0])
    if config.rng is not None:
        config.rng.bit_generator.state = state[1]
    random.set_state(state[2])


def _equal(a, b):
    if isinstance(a, (tuple, dict)):
        keys = a if isinstance(a, dict) else range(len(a))
        return all(_equal(a[key], b[key]) for key in keys)
    return np.array_equal(a, b)
