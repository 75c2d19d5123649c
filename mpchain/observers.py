"""Observers: objects that see what a thread does.

Profiles, exporters and the like derive from :class:`Observer`, which declares everything that they
may see. The code notifies the observers that are active in its thread. If there are none,
``current.observers`` is None, and nothing else is checked.
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
        kind: the kind of work, see the table.
        name: the name of the work, see the table.
        thing: the object that does the work, see the table.
        args: the arguments of the call.
        result: the result of the call, set at the end.
        has_failed: whether an exception ended the work.

    ================  ===================================  =======================================
    kind              name                                 thing
    ================  ===================================  =======================================
    link              of the class                         the link; ``result`` is its output
    call              of the public function               None
    input             iterator, converter                  the iterator, converter or updater
    forward           forward                              the optimizer that calls the function
    backward          backward                             None
    optimizer         optimizer                            the optimizer that is updated
    evaluation        evaluation                           the evaluator
    extension         of the extension                     the extension
    extensions        extensions                           the trainer, whose iteration ends
    gradients         what is done for their exchange      None
    collective        of the communicator's method         the communicator
    bucket            bucket 0, ...                        the sum; ``result`` is its request
    progress          progress                             the request that is brought forward
    wait              of what is waited for                the request; None is any
    ================  ===================================  =======================================

    Example:
        >>> with span("input", "iterator"):  # nobody observes
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
    """A span without observers, which keeps no result alive."""

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
    """Sees what the thread does in a ``with`` block. The methods do nothing by default; override
    some.

    Users write a :class:`mpchain.FunctionHook` instead, which sees other objects than nodes under
    :mod:`mpchain.compat`.

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
    """Whether the observer sees functions; if it does, each call of a function takes longer."""

    sees_operations = False
    """Whether the observer sees operations of :mod:`mpchain.kernels`; if it does, calls take
    longer."""

    sees_links = False
    """Whether the observer sees each call of a link; if it does, no link computes its parts
    together."""

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
        """A unique name among the hooks of functions, so that several observers of a class can be
        active."""
        return f"{type(self).__module__}.{type(self).__name__} {id(self)}"

    def begins(self, span: Span) -> Any:
        """Called when a part of the work begins; the result is passed to :meth:`ends`."""

    def ends(self, span: Span, begun: object) -> None:
        """Called when a part of the work ends, also by an exception."""

    def forward_preprocess(self, function: object, in_data: Arrays) -> None:
        """Called with the node of a function before it computes its outputs."""

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        """Called after that."""

    def computed(self, function: object, outputs: Arrays) -> None:
        """Called with the arrays that the function computed, after :meth:`forward_postprocess`."""

    def differentiates(self, function: object) -> Any:
        """Called with the node of a function before it computes gradients; the result is passed to
        :meth:`differentiated`."""

    def differentiated(self, function: object, begun: object) -> None:
        """Called after that."""

    def positions(self, name: str, x: object, constants: tuple, positions: Array) -> Array:
        """Called with positions that were found in ``x``, see
        :func:`mpchain.functions.positions.shown`; returns them."""
        return positions

    def parts(self, optimizer: object, parts: Sequence) -> Sequence:
        """Called with the parts of a batch that an optimizer is about to compute, pairs of a number
        of samples and a loss function without arguments; returns the parts to compute instead."""
        return parts

    def operation(self, operation: object, args: tuple) -> None:
        """Called with an operation of :mod:`mpchain.kernels`, and its arguments, before it runs, if
        :attr:`sees_operations`."""

    def n_parts(self, optimizer: object) -> int:
        """Called with a multi-node optimizer before its batch is divided; returns the number of
        parts that stand for ranks, one after another."""
        return 1

    def folder(self, path: str) -> str:
        """Called with each folder of results or checkpoints before it is read or written; returns
        the folder to use instead."""
        return path

    def communicator(self, comm: object) -> None:
        """Called with each communicator that :func:`mpchain.create_communicator` has made."""


class Recording(Observer):
    """Records a step in order to repeat it, by replacing functions that the step calls.

    A thread has at most one active recording. By default, the methods do what the step would do
    without a recording.
    """

    sees_functions = False
    sees_operations = True
    _on_leaf: Any = None

    holds_messages = False
    """Whether repeating the step sends messages to other ranks."""

    def __enter__(self) -> Self:
        current.recorder = self
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__()
        current.recorder = None

    calls: list[Any]
    """The calls that a replay makes: functions of NumPy and others, in order."""

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
        """Calls a function of arrays, see :func:`one_call`."""
        return function(*args)

    def draws(self, generator: object) -> Any:
        """Returns the object to draw from instead of a generator."""
        return generator

    def call_again(self, function: Callable, args: tuple) -> Any:
        """Calls a function that acts on more than arrays, see :func:`outside`."""
        return function(*args)

    def exchange(self, function: Callable, array: Array) -> Any:
        """Exchanges an array with other ranks, see :func:`exchanged`."""
        return function(array)

    def update_of_ranks(self, optimizer: Any, parts: Sequence, observations: Any) -> Any:
        """Called by ``update_in_parts`` of a multi-node optimizer, with its arguments.

        Returns:
            The object that records the update's messages; None if they are not recorded.
        """
        if reason := optimizer.why_not_replayed(parts, observations):
            self.refuse(reason)
            return None
        return self if self.holds_messages else None

    def number(self, function: Callable[[], float], like: Array) -> Array:
        """Returns an array like ``like`` with a number; each repetition calls ``function``
        again."""
        raise NotImplementedError

    def repeat(self, function: Callable, *args: Any) -> None:
        """Called with a function that sends data to other ranks, which replays must call again."""
        raise NotImplementedError

    def on_leaf(self, on_leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the function that backward should call with each leaf whose gradient is final, so
        that repetitions call ``on_leaf``."""
        self._on_leaf = on_leaf
        return on_leaf

    def backward(self, on_leaf: Callable[[Any], Any]) -> None:
        """Called when a backward begins that calls a function with each leaf."""
        if on_leaf is not self._on_leaf:
            self.refuse("a function is called for each gradient while backward runs")


class Graph(Recording):
    """Records a step as a CUDA graph.

    Attributes:
        workspace: memory for cuBLAS.
        in_use: the objects that a communicator keeps alive for this capture, by the event after
            which they may be freed.
        alike: values that must be the same on all ranks.
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
        """Keeps an object alive that the graph's kernels need, such as their code."""

    def before(self, function: Callable, *args: Any) -> None:
        """Registers a function to call before each launch, even if the launch is canceled."""
        raise NotImplementedError

    def numbers_of(self, describe: Callable[[], tuple[str, list]]) -> Array:
        """Returns the array from which a kernel reads its numbers.

        Args:
            describe: a function that returns the text of the kernel and its numbers; it is called
                before each launch.
        """
        raise NotImplementedError

    def scales(self, *noted: Any) -> None:
        """Called for an optimizer with a dynamic loss scale, with the arguments to note for each
        step."""

    def drawing(
        self, make: Callable[[], contextlib.AbstractContextManager]
    ) -> contextlib.AbstractContextManager:
        """Context manager: draws within it are repeated before each launch, in the context manager
        that ``make`` returns."""
        raise NotImplementedError

    def exchanging(self, comm: object) -> contextlib.AbstractContextManager:
        """Context manager: a communicator's operations within it become part of the graph."""
        raise NotImplementedError

    def joins(self, comm: object) -> None:
        """Called by a communicator before NCCL takes part in the capture."""

    def release(self) -> None:
        """Destroys the graph, before a communicator is destroyed."""


class _Current(threading.local):
    observers: tuple[Observer, ...] | None = None
    of_functions: tuple[Observer, ...] = ()  # the observers that see functions
    of_operations: tuple[Observer, ...] | None = None  # the observers that see operations
    recorder: Recording | None = None
    graph: Graph | None = None


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


def see_links() -> bool:
    """Returns whether an observer wants to see each call of a link.

    >>> see_links()
    False
    """
    return any(observer.sees_links for observer in current.observers or ())


def n_parts(optimizer: object) -> int:
    """Returns the number of parts of a multi-node optimizer's batch, each of which stands for a
    rank.

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
    """Calls a function that acts on more than arrays; replays of a recording call it again.

    Args:
        function: a method, called with ``arguments``, whose result is not used.

    Example:
        >>> outside(print, "updated")
        updated
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.call_again(function, arguments)


def show_computed(function: object, outputs: Arrays) -> None:
    """Shows observers of functions what a function computed.

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
    """Returns the parts of a batch that an optimizer computes; see :meth:`Observer.parts`.

    Example:
        >>> shown_parts(None, [(2, None)])
        [(2, None)]
    """
    for observer in current.observers or ():
        parts = observer.parts(optimizer, parts)
    return parts


def one_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of arrays, which recordings see as one call.

    Use it for functions whose operations recorded arrays cannot see: functions that write into
    arrays that they made, index constants, or call SciPy.

    Args:
        function: a function at module level, because recordings compare functions. It changes no
            argument, and returns an array, or arrays in nested tuples and lists. A parameter
            ``out``, if there is one, may hold memory for the first result.

    Example:
        >>> one_call(np.take, np.array([0.5, 2.0]), np.array([1, 1, 0]))
        array([2. , 2. , 0.5])
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.one_call(function, arguments)


def exchanged(function: Callable[[np.ndarray], Any], array: Array) -> np.ndarray:
    """Exchanges an array with other ranks, where the result depends on the ranks' data.

    Eagerly this is ``function(array)``. In a step that is recorded, the call is kept: each replay
    calls ``function`` again, even if nobody reads the result, with the array that the replay has
    computed, in order with the other messages. When a step is compared with its replay, the
    function is called once: the replay receives the step's result, after a check that it would have
    sent the same array. So ranks that record or compare a step send the same messages as ranks that
    replay the step or run it normally.

    Args:
        function: receives a copy of the array, and returns an array whose shape and dtype depend
            only on those of the copy. The function's operations are not recorded, so it should only
            exchange data.
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
