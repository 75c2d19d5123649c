"""Observers: what can be seen of what a thread does.

Profiles, exporters and the like derive from :class:`Observer`, which declares all that they may
see. The code tells those that are active in its thread, and asks for nothing else if there are
none: ``current.observers`` is None then.
"""

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mpchain.configuration import config, global_config
from mpchain.typing import Array, Arrays


class Span:
    """A part of the work, from its beginning to its end, as observers see it.

    Attributes:
        kind: what it is, see the table.
        name: which one.
        thing: whose work it is.
        args: what was called with.
        result: what came of it, at the end.
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

    __slots__ = ("_observers", "args", "has_failed", "kind", "name", "result", "thing")

    def __init__(self, kind: str, name: str, thing: Any, args: tuple, observers: tuple):
        self.kind, self.name, self.thing, self.args = kind, name, thing, args
        self.result: Any = None
        self.has_failed = False
        self._observers = observers

    def __enter__(self) -> Self:
        for observer in self._observers:
            observer.begins(self)
        return self

    def __exit__(self, kind: type | None, error: Any, traceback: TracebackType | None) -> None:
        self.has_failed = kind is not None
        for observer in reversed(self._observers):
            observer.ends(self)


class _Unseen:
    """A span that nobody observes."""

    result = None

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

    Those of functions are as in :class:`mpchain.FunctionHook`, which is for users, and may be shown
    other objects than nodes under :mod:`mpchain.compat`.

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

    sees_links = False
    """Whether each call of a link is to be seen: then none computes those of its parts together."""

    def __enter__(self) -> Self:
        current.observers = (*(current.observers or ()), self)
        if self.sees_functions:
            config.function_hooks = {**config.function_hooks, self._name(): self}
        return self

    def __exit__(self, *exc_info: Any) -> None:
        current.observers = tuple([x for x in current.observers or () if x is not self]) or None
        if self.sees_functions:
            config.function_hooks = hooks = dict(config.function_hooks)
            del hooks[self._name()]
            if hooks == global_config.function_hooks:
                del config.function_hooks  # as before: this thread sees what is set there later

    def _name(self):
        """The name among the hooks of functions; many observers of a class can be active."""
        return f"{type(self).__module__}.{type(self).__name__} {id(self)}"

    def begins(self, span: Span) -> None:
        """Called when a part of the work begins."""

    def ends(self, span: Span) -> None:
        """Called when it ends, also by an exception."""

    def forward_preprocess(self, function: Any, in_data: Arrays) -> None:
        """Called with the node of a function before it computes its outputs."""

    def forward_postprocess(self, function: Any, in_data: Arrays) -> None:
        """Called after that."""

    def backward_preprocess(self, function: Any, in_data: Arrays, out_grad: Arrays) -> None:
        """Called with the node of a function before it computes gradients."""

    def backward_postprocess(self, function: Any, in_data: Arrays, out_grad: Arrays) -> None:
        """Called after that."""

    def positions(self, name: str, x: Any, constants: tuple, positions: Array) -> Array:
        """Called with positions that were found in ``x``, see
        :func:`mpchain.functions.positions.shown`; returns them."""
        return positions

    def communicator(self, comm: Any) -> None:
        """Called with each communicator that :func:`mpchain.create_communicator` has made."""


def see_links() -> bool:
    """Returns whether an observer wants to see each call of a link.

    >>> see_links()
    False
    """
    return any(observer.sees_links for observer in current.observers or ())


class _Current(threading.local):
    observers: tuple[Observer, ...] | None = None


current = _Current()
