"""Observers: what can be seen of what a thread does.

Profiles, exporters and the like derive from :class:`Observer`, which declares all that they may
see. The code tells those that are active in its thread, and asks for nothing else if there are
none: ``current.observers`` is None then.
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
    """A part of the work, from its beginning to its end, as observers see it.

    Attributes:
        kind: its kind, see the table.
        name: which one.
        thing: whose work it is.
        args: the arguments of the call.
        result: the result, at the end.
        has_failed: whether an exception ended it.

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
    """Returns a context manager, by which observers see the work in the block: a :class:`Span`.

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
    """Sees what the thread does in a ``with`` block. The methods do nothing; override some.

    A :class:`mpchain.FunctionHook` is for users, and is shown other objects than nodes under
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
    """Whether functions are to be seen: then each call of one takes longer."""

    sees_operations = False
    """Whether operations of :mod:`mpchain.kernels` are to be seen: then each call takes longer."""

    sees_links = False
    """Whether each call of a link is to be seen: then none computes those of its parts together."""

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
        """The name among the hooks of functions; many observers of a class can be active."""
        return f"{type(self).__module__}.{type(self).__name__} {id(self)}"

    def begins(self, span: Span) -> Any:
        """Called when a part of the work begins; returns what :meth:`ends` is given."""

    def ends(self, span: Span, begun: object) -> None:
        """Called when it ends, also by an exception."""

    def forward_preprocess(self, function: object, in_data: Arrays) -> None:
        """Called with the node of a function before it computes its outputs."""

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        """Called after that."""

    def computed(self, function: object, outputs: Arrays) -> None:
        """Called after that with the arrays that the function computed."""

    def differentiates(self, function: object) -> Any:
        """Called with the node of a function before it computes gradients; returns what
        :meth:`differentiated` is given."""

    def differentiated(self, function: object, begun: object) -> None:
        """Called after that."""

    def positions(self, name: str, x: object, constants: tuple, positions: Array) -> Array:
        """Called with positions that were found in ``x``, see
        :func:`mpchain.functions.positions.shown`; returns them."""
        return positions

    def parts(self, optimizer: object, parts: Sequence) -> Sequence:
        """Called with the parts of a batch that an optimizer is about to compute, pairs of a number
        of samples and a loss function without arguments; returns those to compute instead."""
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
        the one to use in its place."""
        return path

    def communicator(self, comm: object) -> None:
        """Called with each communicator that :func:`mpchain.create_communicator` has made."""


class Recording(Observer):
    """Records a step, to repeat it: it answers in the place of what the step calls.

    It is the only one of its kind in a thread. These methods do what the step would do without it.
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
    """What a replay calls: functions of NumPy and others, in their order."""

    def made(self, function: Callable, args: tuple, kwargs: dict, result: Array) -> Array:
        """Called with an array that a NumPy function made; returns its replacement."""
        return result

    def refuse(self, reason: str) -> None:
        """Called with the reason why the step cannot be repeated."""

    def note_inputs(self, variables: Sequence[Any]) -> None:
        """Called with the Variables that a function gets."""

    def compute(self, operation: Any, args: tuple) -> Any:
        """Computes an operation of :mod:`mpchain.kernels`."""
        return operation.select(*args).compute(*args)

    def one_call(self, function: Callable, args: tuple) -> Any:
        """Calls a function of arrays, see :func:`one_call`."""
        return function(*args)

    def draws(self, generator: object) -> Any:
        """Returns the source of draws in place of a generator."""
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
            What takes note of the update's messages; None if nothing does.
        """
        if reason := optimizer.why_not_replayed(parts, observations):
            self.refuse(reason)
            return None
        return self if self.holds_messages else None

    def number(self, function: Callable[[], float], like: Array) -> Array:
        """Returns an array like another, of a number that is asked for again in each repetition."""
        raise NotImplementedError

    def repeat(self, function: Callable, *args: Any) -> None:
        """Called with a function that sends data to other ranks, which replays must call again."""
        raise NotImplementedError

    def on_leaf(self, on_leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns what backward is to call with each leaf whose gradient is final, so that a
        repetition calls ``on_leaf``."""
        self._on_leaf = on_leaf
        return on_leaf

    def backward(self, on_leaf: Callable[[Any], Any]) -> None:
        """Called when backward begins that is to call a function with each leaf."""
        if on_leaf is not self._on_leaf:
            self.refuse("a function is called for each gradient while backward runs")


class Graph(Recording):
    """Records a step as a graph of a GPU's work.

    Attributes:
        workspace: memory for cuBLAS.
        in_use: what a communicator keeps of this capture, by the event after which it need not.
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
        """Keeps something alive that the graph's kernels need, such as their code."""

    def before(self, function: Callable, *args: Any) -> None:
        """Notes a function to be called before each launch, also before one that is undone."""
        raise NotImplementedError

    def numbers_of(self, describe: Callable[[], tuple[str, list]]) -> Array:
        """Returns where a kernel finds its numbers.

        Args:
            describe: returns the text of the kernel and its numbers. It is asked before each
                launch.
        """
        raise NotImplementedError

    def scales(self, *noted: Any) -> None:
        """Called for an optimizer with a dynamic loss scale, with the needs of its steps."""

    def drawing(
        self, make: Callable[[], contextlib.AbstractContextManager]
    ) -> contextlib.AbstractContextManager:
        """Context manager: what is drawn within is drawn in another one, which ``make`` returns,
        before each launch."""
        raise NotImplementedError

    def exchanging(self, comm: object) -> contextlib.AbstractContextManager:
        """Context manager: what a communicator does within becomes a part of the graph."""
        raise NotImplementedError

    def joins(self, comm: object) -> None:
        """Called by a communicator that is about to let NCCL take part in the capture."""

    def release(self) -> None:
        """Gives up the graph, before the end of a communicator."""


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
    """Returns into how many parts a multi-node optimizer's batch is divided, as ranks divide it.

    >>> n_parts(None)
    1
    """
    found = 1
    for observer in current.observers or ():
        found = max(found, observer.n_parts(optimizer))
    return found


def folder(path: str) -> Any:
    """Returns the folder that training uses in the place of one of results or checkpoints.

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
    """Returns what to draw from: a generator, or what stands for it in a step that is recorded.

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

    So do functions by whose parts recorded arrays are not asked: those that write into arrays that
    they made, index constants, or call SciPy.

    Args:
        function: defined once, not in a function, as recordings compare it; it changes no argument,
            and returns an array, or arrays in nested tuples and lists. If it has a parameter
            ``out``, that may hold memory for the first of them.

    Example:
        >>> one_call(np.take, np.array([0.5, 2.0]), np.array([1, 1, 0]))
        array([2. , 2. , 0.5])
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.one_call(function, arguments)


def exchanged(function: Callable[[np.ndarray], Any], array: Array) -> np.ndarray:
    """Exchanges an array with other ranks, where what they get depends on data.

    Eagerly this is ``function(array)``. In a step that is recorded, the call is kept: each replay
    calls ``function`` again, also if nobody reads the result, with the array that the replay has
    computed, in order with the other messages. Where a step is compared with its replay, the
    function is called once: the replay gets what the step has received, after a check that it would
    have sent the same array. So a rank that records or compares a step sends what ranks send that
    replay it or run it normally.

    Args:
        function: gets a copy of the array, and returns an array whose shape and dtype follow from
            those of that one. What it does is not recorded, so it should only exchange.
        array: the array to send.

    Returns:
        What ``function`` returns. If the step is recorded, this must not decide what Python does,
        such as in an ``if``: use ``where``.

    Raises:
        ValueError: in a replay, the function returned an array of another shape or dtype.

    Example:
        >>> exchanged(lambda count: count + 3, np.array([2]))  # 3 samples of other ranks
        array([5])
    """
    recorder = current.recorder
    return function(array) if recorder is None else recorder.exchange(function, array)
