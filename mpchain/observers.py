"""Observers: objects that are notified of what a thread computes.

Profiles, exporters and other tools derive from :class:`Observer`, which declares everything that an
observer may see. mpchain notifies the observers that are active in a thread. If there are none,
``current.observers`` is None.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from mpchain.configuration import add_hook, remove_hook
from mpchain.typing import Array, Arrays


class Span:
    """A part of a thread's work, from its beginning to its end, as observers see it.

    Attributes:
        kind: the kind of work, as listed in the table.
        name: the name of the work, as described in the table.
        thing: the object that does the work, as described in the table.
        args: the arguments of the call.
        result: the result of the call, set at the end.
        has_failed: whether an exception ended the work.

    ================  ===================================  =======================================
    kind              name                                 thing
    ================  ===================================  =======================================
    link              name of the class                    the link; ``result`` is its output
    call              name of the public function          None
    input             iterator, converter                  the iterator, converter or updater
    forward           forward                              the optimizer that calls the function
    backward          backward                             None
    optimizer         optimizer                            the optimizer that updates
    evaluation        evaluation                           the evaluator
    extension         name of the extension                the extension
    extensions        extensions                           the trainer, whose iteration ends
    gradients         what is done for their exchange      None, or the object that sums them
    collective        name of the communicator's method    the communicator
    bucket            bucket 0, ...                        this object; ``result`` is the request
    progress          progress                             the request that is advanced
    wait              an operation, other ranks            the request, or None for other ranks
    ================  ===================================  =======================================

    Example:
        >>> with span("input", "iterator"):  # no observer is active
        ...     pass
    """

    __slots__ = ("_begun", "_observers", "args", "has_failed", "kind", "name", "result", "thing")

    def __init__(self, kind: str, name: str, thing: Any, args: tuple, observers: tuple):
        self.kind, self.name, self.thing, self.args = kind, name, thing, args
        self.result: Any = None
        self.has_failed = False
        self._observers = observers

    def __enter__(self) -> Self:
        self._begun = [observer.begins(self) for observer in self._observers]
        return self

    def __exit__(self, kind: type | None, error: object, traceback: TracebackType | None) -> None:
        self.has_failed = kind is not None
        for observer in reversed(self._observers):
            observer.ends(self, self._begun.pop())


class _Unseen:
    """A span without observers; it discards attributes, so that it keeps no result alive."""

    def __setattr__(self, name, value):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass


_unseen = _Unseen()


def span(kind: str, name: str, thing: Any = None, args: tuple = ()) -> Any:
    """Returns a context manager that shows the work in its block to observers, as a :class:`Span`.

    Example:
        >>> class Names(Observer):
        ...     def begins(self, span):
        ...         print(span.name)
        >>> with Names(), span("backward", "backward"):
        ...     pass
        backward
    """
    observers = current.observers
    return _unseen if observers is None else Span(kind, name, thing, args, observers)


def observed(kind: str, name: str) -> Callable[[Callable], Callable]:
    """Decorator: observers see each call of a method; see :func:`span`.

    Example:
        >>> class Doubling:
        ...     @observed("input", "converter")
        ...     def __call__(self, batch):
        ...         return 2 * batch
        >>> Doubling()(3)
        6
    """

    def decorate(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if current.observers is None:
                return method(self, *args, **kwargs)
            with span(kind, name, self, args or tuple(kwargs.values())) as seen:
                seen.result = method(self, *args, **kwargs)
            return seen.result

        return call

    return decorate


class Observer:
    """Base of observers, which see what a thread does in a ``with`` block. By default, the methods
    do nothing; override the methods that you need.

    Programs define a :class:`mpchain.FunctionHook` instead. Under :mod:`mpchain.compat`, hooks get
    objects with Chainer's names in place of nodes.

    Example:
        >>> class Labels(Observer):
        ...     def forward_preprocess(self, function, in_data):
        ...         print(function.label)
        >>> with Labels():
        ...     y = F.tanh(F.exp(np.zeros(2)))
        exp
        tanh
    """

    sees_functions = True
    """Whether the observer sees functions. If True, each call of a function takes longer."""

    sees_operations = False
    """Whether the observer sees operations of :mod:`mpchain.kernels`. If True, each call of an
    operation takes longer."""

    sees_links = False
    """Whether the observer sees each call of a link. If True, no link computes the results of
    several child links in one call."""

    def __enter__(self) -> Self:
        _set_observers([*(current.observers or ()), self])
        if self.sees_functions:
            add_hook("function_hooks", self._name(), self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        _set_observers([x for x in current.observers or () if x is not self])
        if self.sees_functions:
            remove_hook("function_hooks", self._name())

    def _name(self):
        """Returns a name that is unique among function hooks, so that several observers of a class
        can be active."""
        return f"{type(self).__module__}.{type(self).__name__} {id(self)}"

    def begins(self, span: Span) -> Any:
        """Called when a span begins; the result is passed to :meth:`ends`."""

    def ends(self, span: Span, begun: object) -> None:
        """Called when a span ends, even if an exception ends it."""

    def forward_preprocess(self, function: object, in_data: Arrays) -> None:
        """Called with the node of a function before it computes its outputs."""

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        """Called with the node of a function after it has computed its outputs."""

    def computed(self, function: object, outputs: Arrays) -> None:
        """Called with the arrays that the function computed, after :meth:`forward_postprocess`."""

    def differentiates(self, function: object) -> Any:
        """Called with the node of a function before it computes gradients; the result is passed to
        :meth:`differentiated`."""

    def differentiated(self, function: object, begun: object) -> None:
        """Called with the node of a function after it has computed gradients; ``begun`` is the
        result of the call of :meth:`differentiates`."""

    def positions(self, name: str, x: object, constants: tuple, positions: Array) -> Array:
        """Called with positions that were found in ``x`` (see
        :func:`mpchain.functions.positions.shown`); returns the positions to use."""
        return positions

    def parts(self, optimizer: object, parts: Sequence) -> Sequence:
        """Called with the micro-batches that an optimizer is about to compute: pairs of a number of
        samples and a loss function without arguments. Returns the micro-batches to compute
        instead."""
        return parts

    def operation(self, operation: object, args: tuple) -> None:
        """Called with an operation of :mod:`mpchain.kernels` and its arguments before the operation
        runs, if :attr:`sees_operations` is True."""

    def n_parts(self, optimizer: object) -> int:
        """Called with a multi-node optimizer before its batch is divided; returns the number of
        parts, each of which stands for the batch of a rank and is computed after the previous
        part."""
        return 1

    def folder(self, path: str) -> str:
        """Called with each folder of results or checkpoints before it is read or written; returns
        the folder to use instead."""
        return path

    def communicator(self, comm: object) -> None:
        """Called with each communicator that :func:`mpchain.create_communicator` has made."""


class Recording(Observer):
    """Base of recorders, which record the operations of a training step so that the step can be
    repeated.

    A thread has at most one active recording. By default, most methods do what the step would do
    without a recording.
    """

    sees_functions = False
    sees_operations = True
    _on_leaf: Any = None

    holds_messages = False
    """Whether a replay of the step sends messages to other ranks."""

    def __enter__(self) -> Self:
        current.recorder = self
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__()
        current.recorder = None

    calls: list[Any]
    """The calls of functions of NumPy and other libraries that a replay makes, in order."""

    def made(self, function: Callable, args: tuple, kwargs: dict, result: Array) -> Array:
        """Called with an array that a NumPy function made; returns its replacement."""
        return result

    def refuse(self, reason: str) -> None:
        """Called with the reason why the step cannot be repeated."""

    def note_inputs(self, variables: Sequence[Any]) -> None:
        """Called with the Variables that a function receives."""

    def compute(self, operation: Any, args: tuple) -> Any:
        """Computes an operation of :mod:`mpchain.kernels`."""
        return operation.select(*args).compute(*args)

    def one_call(self, function: Callable, args: tuple) -> Any:
        """Calls a function of arrays that recordings see as one call (see :func:`one_call`)."""
        return function(*args)

    def draws(self, generator: object) -> Any:
        """Returns the object to draw from instead of a generator."""
        return generator

    def call_again(self, function: Callable, args: tuple) -> Any:
        """Calls a function that has effects other than its result (see :func:`outside`)."""
        return function(*args)

    def exchange(self, function: Callable, array: Array) -> Any:
        """Exchanges an array with other ranks (see :func:`exchanged`)."""
        return function(array)

    def update_of_ranks(self, optimizer: Any, parts: Sequence, observations: Any) -> Any:
        """Called by the method ``update_in_parts`` of a multi-node optimizer, with the arguments of
        that method.

        Returns:
            The object that records the update's messages; None if they are not recorded.
        """
        if reason := optimizer.why_not_replayed(parts, observations):
            self.refuse(reason)
            return None
        return self if self.holds_messages else None

    def number(self, function: Callable[[], float], like: Array) -> Array:
        """Returns an array like ``like`` that holds the number that ``function`` returns; each
        replay calls ``function`` again."""
        raise NotImplementedError

    def repeat(self, function: Callable, *args: Any) -> None:
        """Called with a function that sends data to other ranks, which replays must call again."""
        raise NotImplementedError

    def on_leaf(self, on_leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the function that backward should call with each leaf whose gradient is final, so
        that replays call ``on_leaf``."""
        self._on_leaf = on_leaf
        return on_leaf

    def backward(self, on_leaf: Callable[[Any], Any]) -> None:
        """Called at the beginning of a backward that calls ``on_leaf`` with each leaf."""
        if on_leaf is not self._on_leaf:
            self.refuse("backward calls a function, on_leaf, that is not recorded")


class Graph(Recording):
    """Records a step as a CUDA graph.

    Attributes:
        workspace: the GPU array that cuBLAS uses as its workspace.
        in_use: the objects that a communicator keeps alive for this capture, by the CUDA event
            after which the communicator may free them.
        alike: values of the capture that must be the same on all ranks.
        is_released: whether :meth:`release` was called.
    """

    workspace: Any
    in_use: dict[Any, tuple]
    alike: list[Any]
    is_released = False

    def __enter__(self) -> Self:
        current.graph = self
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__()
        current.graph = None

    def keep(self, thing: object) -> None:
        """Keeps an object that the graph's kernels need, such as their compiled code, alive."""

    def before(self, function: Callable, *args: Any) -> None:
        """Registers a function to call before each launch, even if the launch is canceled."""
        raise NotImplementedError

    def numbers_of(self, describe: Callable[[], tuple[str, list]]) -> Array:
        """Returns the GPU array from which a kernel reads its scalar arguments.

        Args:
            describe: a function that returns the source text of the kernel and a list of its scalar
                arguments; it is called before each launch of the graph.
        """
        raise NotImplementedError

    def scales(self, *noted: Any) -> None:
        """Called for an optimizer with a dynamic loss scale, with the values to record for each
        step."""

    def drawing(
        self, make: Callable[[], contextlib.AbstractContextManager]
    ) -> contextlib.AbstractContextManager:
        """Context manager: random draws within the block are repeated before each launch, in the
        context manager that ``make`` returns."""
        raise NotImplementedError

    def exchanging(self, comm: object) -> contextlib.AbstractContextManager:
        """Context manager: a communicator's operations within the block become part of the
        graph."""
        raise NotImplementedError

    def joins(self, comm: object) -> None:
        """Called by a communicator before NCCL takes part in the capture."""

    def release(self) -> None:
        """Destroys the graph, before a communicator is destroyed."""


class _Current(threading.local):
    observers: tuple[Observer, ...] | None = None
    of_functions: tuple[Observer, ...] = ()  # These observers see functions.
    of_operations: tuple[Observer, ...] | None = None  # These observers see operations.
    recorder: Recording | None = None
    graph: Graph | None = None
    foresees_graph = False  # A later call of this step may be captured as a CUDA graph.


current = _Current()


def _set_observers(observers):
    current.observers = tuple(observers) or None
    current.of_functions = tuple([x for x in observers if x.sees_functions])
    current.of_operations = tuple([x for x in observers if x.sees_operations]) or None


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Context manager: the thread's recorder ignores operations in the block.

    >>> with unrecorded():
    ...     current.recorder is None
    True
    """
    observers, recorder = current.observers, current.recorder
    _set_observers([x for x in observers or () if x is not recorder])
    current.recorder = None
    try:
        yield
    finally:
        _set_observers(observers or ())
        current.recorder = recorder


@contextlib.contextmanager
def before_graph() -> Iterator[None]:
    """Context manager: operations in the block also compile the kernels that only graphs use,
    because loading code during a capture may spoil it.

    >>> with before_graph():
    ...     current.foresees_graph
    True
    """
    current.foresees_graph = True
    try:
        yield
    finally:
        current.foresees_graph = False


def see_links() -> bool:
    """Returns whether an active observer sees each call of a link.

    >>> see_links()
    False
    """
    return any(observer.sees_links for observer in current.observers or ())


def n_parts(optimizer: object) -> int:
    """Returns the number of parts into which a multi-node optimizer divides its batch, where each
    part stands for a rank.

    >>> n_parts(None)
    1
    """
    found = 1
    for observer in current.observers or ():
        found = max(found, observer.n_parts(optimizer))
    return found


def folder(path: str) -> Any:
    """Returns the folder that training uses instead of the given folder of results or checkpoints.

    >>> folder("result")
    'result'
    """
    for observer in current.observers or ():
        path = observer.folder(path)
    return path


def refuse(reason: str) -> None:
    """Tells the thread's recorder, if any, why a step cannot be repeated.

    >>> refuse("it reads a clock")
    """
    if current.recorder is not None:
        current.recorder.refuse(reason)


def compute(operation: Any, args: tuple) -> Any:
    """Computes an operation of :mod:`mpchain.kernels`, and notifies observers.

    >>> compute(mpchain.kernels.linear, (np.ones((1, 2)), np.ones((3, 2)), None))
    array([[2., 2., 2.]])
    """
    for observer in current.of_operations or ():
        observer.operation(operation, args)
    if current.recorder is not None:
        return current.recorder.compute(operation, args)
    return operation.select(*args).compute(*args)


def draws(generator: object) -> Any:
    """Returns the object to draw from: the generator, or its replacement in a recorded step.

    >>> draws(np.random) is np.random
    True
    """
    return generator if current.recorder is None else current.recorder.draws(generator)


def outside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that has effects other than its result; replays of a recording call the
    function again.

    Args:
        function: called with ``arguments``; its result must not be used.

    Example:
        >>> outside(print, "updated")
        updated
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.call_again(function, arguments)


def show_computed(function: object, outputs: Arrays) -> None:
    """Shows the outputs of a function to the observers that see functions.

    Example:
        >>> class Results(Observer):
        ...     def computed(self, function, outputs):
        ...         print(function.label, *outputs)
        >>> with Results():
        ...     y = F.exp(np.zeros(1))
        exp [1.]
    """
    for observer in current.of_functions:
        observer.computed(function, outputs)


def shown_parts(optimizer: object, parts: Sequence) -> Sequence:
    """Returns the micro-batches that an optimizer computes; see :meth:`Observer.parts`.

    Example:
        >>> shown_parts(None, [(2, None)])
        [(2, None)]
    """
    for observer in current.observers or ():
        parts = observer.parts(optimizer, parts)
    return parts


def one_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of arrays, which recordings see as one call.

    Use ``one_call`` for functions whose operations cannot be recorded one by one: functions that
    write into arrays that they made, index constants, or call SciPy.

    Args:
        function: a function at module level, because recordings compare functions. The function
            changes no argument, and returns an array, or arrays in nested tuples and lists. If the
            function has a parameter ``out``, replays may pass memory for the first result there.

    Example:
        >>> one_call(np.take, np.array([0.5, 2.0]), np.array([1, 1, 0]))
        array([2. , 2. , 0.5])
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.one_call(function, arguments)


def exchanged(function: Callable[[np.ndarray], Any], array: Array) -> np.ndarray:
    """Exchanges an array with other ranks; the result depends on the data of all ranks.

    In an eager step, ``exchanged`` returns ``function(array)``. In a step that is recorded, the
    call is recorded: each replay calls ``function`` again, even if the result is not used, with the
    array that the replay has computed, in order with the other messages. When a step is compared
    with its replay, the function is called once: the replay receives the step's result, after a
    check that it would have sent the same array. So ranks that record or compare a step send the
    same messages as ranks that replay the step or run it normally.

    Args:
        function: receives the array or a copy, and returns an array whose shape and dtype depend
            only on those of its argument. The function's operations are not recorded, so it should
            only exchange data.
        array: the array to send.

    Returns:
        The result of ``function``. If the step is recorded, the result must not control Python
        code, such as an ``if``: use ``where``.

    Raises:
        ValueError: in a replay, the function returned an array of another shape or dtype.

    Example:
        >>> exchanged(lambda count: count + 3, np.array([2]))  # 3 samples of other ranks
        array([5])
    """
    recorder = current.recorder
    return function(array) if recorder is None else recorder.exchange(function, array)
