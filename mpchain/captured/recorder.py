"""The recorder of a step, which records the step's calls of NumPy and of kernels, in order."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends.dtypes import is_bfloat16
from mpchain.captured.comparison import Description
from mpchain.captured.proof import Proof
from mpchain.captured.recorded import (
    Call,
    RecordedArray,
    arrays_in,
    depends_on_data,
    owner_of,
    plain,
)
from mpchain.captured.results import arrays_of, without_graph
from mpchain.captured.state import State
from mpchain.captured.surroundings import Place
from mpchain.captured.unseen import Unseen
from mpchain.kernels.cpu.channels_last import is_last
from mpchain.kernels.cpu.onednn import prepared_product
from mpchain.kernels.reference import product
from mpchain.link import Link
from mpchain.observers import Recording, unrecorded
from mpchain.optimizer import Optimizer
from mpchain.typing import Array
from mpchain.variable import Parameter, Variable, own_grad

# The references of these operations make only one or two calls of NumPy, which are recorded
# instead.
_SEEN_THROUGH = {"linear", "product"}
_OF_OTHERS = {"convolution_with_bias"}  # the references of these operations call another operation


class Draws:
    """Stands in for a random generator.

    Args:
        generator: the generator that draws.
        draw: a function that is called with the name of a method, the method, and the arguments of
            the call.

    Example:
        >>> from mpchain.captured.recorder import Draws
        >>> draws = Draws(np.random, lambda name, function, *args: (name, *args))
        >>> draws.rand(3)
        ('rand', 3)
    """

    def __init__(self, generator: object, draw: Callable):
        self._generator, self._draw = generator, draw

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._draw, name, getattr(self._generator, name))


class Flattened(NamedTuple):
    """A function that calls another function and flattens its result, nested tuples and lists of
    arrays, into a tuple of arrays.

    Example:
        >>> from mpchain.captured.recorder import Flattened
        >>> Flattened(np.divmod)(np.array(7), np.array([2]))
        (array([3]), array([1]))
    """

    function: Callable

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> tuple:
        return tuple(arrays_in(self.function(*args, **kwargs)))


def _with_arrays(value, arrays):
    """Returns nested tuples and lists in which each array is replaced by the next array of
    ``arrays``."""
    if isinstance(value, (tuple, list)):
        return type(value)([_with_arrays(v, arrays) for v in value])
    return next(arrays) if isinstance(value, np.ndarray) else value


class _Leaf(NamedTuple):
    """Called when the gradient of a parameter is final."""

    on_leaf: Callable
    leaf: Variable

    def __call__(self):
        grad = own_grad(self.leaf)
        self.on_leaf(self.leaf)
        # If the callback did not replace the gradient, the parameter needs a copy of its own.
        if grad is not None and own_grad(self.leaf) is grad:
            self.leaf.grad = grad.copy()


class Recorder(Recording):
    """Records the calls of one step.

    Args:
        state: the state that the step may change, besides the arrays that it makes.
        inputs: the arrays that the step receives.
        proof: a :class:`Proof` that records the step's effects, for the comparison with a replay;
            or None.
        unseen: an :class:`Unseen` that detects effects that are not recorded as calls.

    Attributes:
        calls: the calls.
        owners: the arrays that the step created and that own their memory, by ``id``.
        reason: the reason why the step cannot be replayed; None if no reason was found.
        unknown_links: links that an optimizer updates, but that are not in ``state``.
        unknown_params: parameters that functions received, but that are not in ``state``.
        left: pairs of a place and the array or Variable that the step left for the next one.
    """

    holds_messages = True

    def __init__(
        self,
        state: State,
        inputs: Sequence[np.ndarray] = (),
        proof: Proof | None = None,
        unseen: Unseen | None = None,
    ):
        self.state = state
        self.inputs = inputs
        self._proof = proof
        self.unseen = unseen if unseen is not None else Unseen([], [])
        self.calls: list[Call] = []
        self.owners: dict[int, np.ndarray] = {}
        self.reason: str | None = None
        self.unknown_links: list[Link] = []
        self.unknown_params: list[Parameter] = []
        self.left: list[tuple[Place, Any]] = []
        self._note_grads()
        left = [(p.name, p.grad) for p in state.params if p.grad is not None]
        self._first_grads = {id(owner_of(grad)): (name, grad) for name, grad in left}

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Context manager: records this thread's computations."""
        self.state.begin(RecordedArray)
        self.state.wrap(RecordedArray)
        if self._proof is not None:
            self._proof.begin()
        try:
            with self:
                yield
        finally:
            for param in self.state.params:
                if isinstance(param.grad, RecordedArray):
                    param.grad = plain(param.grad)
            self.left = list(self.state.end().values())
            for place, value in self.left:
                # A Variable is not copied, because the next step may need its graph.
                if isinstance(value, Variable):
                    value.array = plain(value.array)
                else:
                    place.set(plain(value))
            if replaced := self.state.unwrap():
                self.refuse(f"{replaced} was replaced by another array")

    def refuse(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason + _place()

    def refuse_if(self, reason: str | None) -> None:
        """Refuses the step for a reason that was found after the step's end. Does nothing if the
        reason is None."""
        if self.reason is None:
            self.reason = reason

    def describe(self, result: object) -> Description:
        """Returns the step's effects, for comparison with another recording."""
        groups = [self.inputs, [*self.state.arrays()], self.owners.values()]
        return Description(self.calls, groups, result)

    def has_acted(self) -> bool:
        """Returns whether the step had effects, such as updates, that a second run would repeat."""
        return any(
            call.kind not in ("call", "guard", "shape")
            or any(id(owner_of(x)) not in self.owners for x in call.results)
            for call in self.calls
        )

    def decisions(self) -> list:
        """Returns the values that determined the step: bools that were read, and shapes."""
        bools = [c.args[1] for c in self.calls if c.kind == "guard"]
        return bools + [[x.shape for x in c.results] for c in self.calls if c.kind == "shape"]

    def _note(self, *values):
        if self._proof is not None:
            self._proof.note(*values)

    def made(
        self, function: Callable, args: tuple, kwargs: dict, result: Array, kind: str = "call"
    ) -> Any:
        """Records a call. Returns its result as recorded arrays; views are not recorded as calls. A
        result that contains more than arrays is refused, and returned unchanged."""
        if kind == "call" and depends_on_data(function, args, kwargs):
            kind = "shape"
        memory = {id(owner_of(x)) for x in arrays_in(args, kwargs)}
        results = result if isinstance(result, (tuple, list)) else (result,)
        of_views = {id(owner_of(r)) for r in results if isinstance(r, np.ndarray)} & memory
        if of_views:
            if kind == "shape" or memory != of_views:
                self.refuse(f"{function.__name__} chooses a part of an array by data")
            if results is result:
                # Functions such as split return several arrays.
                return _like(result, [_recorded(r) for r in result])
            return _recorded(result)
        if isinstance(result, (tuple, list)):
            if not all(isinstance(r, (np.ndarray, np.generic)) for r in result):
                self.refuse(f"{function.__name__} returns more than arrays")
                return result
            arrays = tuple([self._own(r) for r in result])
            self.calls.append(Call(function, args, kwargs, arrays, kind))
            return _like(result, arrays)
        if not isinstance(result, (np.ndarray, np.generic)):
            self.refuse(f"{function.__name__} reads the values of an array")
            return result
        array = self._own(result)
        if self._proof is not None:
            self._multiply_as_replays(function, args, kwargs, plain(array))
        if kind == "draw":
            self._note(plain(array).copy())
        self.calls.append(Call(function, args, kwargs, (array,), kind))
        return array

    def _multiply_as_replays(self, function, args, kwargs, result):
        """Computes a product of matrices again, with the bits of replays. Otherwise rounding, which
        may change which slope a rectifier has, could make a replay differ from this step."""
        if way := way_of_product(function, args, kwargs, result):
            with unrecorded():
                way[0](*way[1])

    def one_call(self, function: Callable, args: tuple) -> Any:
        """Records a function as one call; its results may be nested in tuples and lists."""
        args = plain(args)
        with unrecorded():
            result = function(*args)
        if isinstance(result, (np.ndarray, np.generic)):
            return self.made(function, args, {}, result)
        made = iter(self.made(Flattened(function), args, {}, tuple(arrays_in(result))))
        return _with_arrays(result, made)

    def _own(self, result):
        result = np.asarray(result)
        array = np.ndarray.copy(result.view(RecordedArray), "K" if is_last(result) else "C")
        self.owners[id(array)] = array
        return array

    def note_inputs(self, variables: Sequence[Variable]) -> None:
        for x in variables:
            if isinstance(x, Parameter) and not isinstance(x.array, RecordedArray):
                self.unknown_params.append(x)
            elif id(x) in self.state.with_graph:
                self.refuse(
                    f"{self.state.with_graph[id(x)][0]} keeps the graph of the step before: call "
                    "the loss's method unchain_backward"
                )

    def compute(self, operation: Any, args: tuple) -> Any:
        if operation.name in _SEEN_THROUGH and not is_bfloat16(args[0].dtype):
            # The array must be a recorded array, because a method call on a plain array would not
            # be recorded.
            return operation.kernels[-1].compute(*[_recorded(x) for x in args])
        args = plain(args)
        kernel = operation.select(*args)
        if operation.name in _OF_OTHERS and kernel.library == "reference":
            return kernel.compute(*[_recorded(x) for x in args])
        return self.one_call(kernel.compute, args)

    def draws(self, generator: object) -> Any:
        return Draws(generator, self._draw)

    def _draw(self, name, function, *args, **kwargs):
        self.unseen.check_draws()
        result = function(*plain(args), **kwargs)
        self.unseen.note()
        return self.made(function, plain(args), kwargs, result, "draw")

    def exchange(self, function: Callable, array: np.ndarray) -> np.ndarray:
        sent = plain(array).copy()
        with unrecorded():
            result = np.asarray(function(sent.copy()))
        self._note(sent, result.copy())
        made = self._own(result)
        self.calls.append(Call(function, (plain(array),), {}, (made,), "exchange"))
        return made

    def repeat(self, function: Callable, *args: Any) -> None:
        self._note()
        self.calls.append(Call(function, args, kind="send"))

    def number(self, function: Callable[[], float], like: np.ndarray) -> np.ndarray:
        array = self._own(np.full(like.shape, function(), like.dtype))
        self._note(plain(array).copy())
        self.calls.append(Call(function, (), {}, (array,), "number"))
        return array

    def on_leaf(self, on_leaf: Callable[[Variable], Any]) -> Callable[[Variable], Any]:
        def call(leaf):
            leaf.grad = plain(leaf.grad)
            if leaf.grad is not None:
                if id(owner_of(leaf.grad)) not in self.owners:
                    self.refuse("a gradient was computed by means that are not recorded")
            grads = ((leaf, leaf.grad),)
            self._note((), _copies(grads))
            self.calls.append(Call(_Leaf(on_leaf, leaf), kind="send", grads=grads))
            try:
                with unrecorded():
                    on_leaf(leaf)
            finally:
                self._note_grads()

        return super().on_leaf(call)

    def call_again(self, function: Callable, args: tuple, kind: str = "again") -> Any:
        """Calls a function with plain arrays and Variables without a graph; replays call the
        function again.

        If the function is an optimizer's method, the parameters have the gradients of this point of
        the step.
        """
        owner, grads = getattr(function, "__self__", None), ()
        if isinstance(owner, Optimizer):
            optimizer = owner.actual_optimizer
            target = optimizer.target
            if not self.state.has(target):
                self.unknown_links.append(target)
            self._note_loss_scale(optimizer, is_number=optimizer is not owner)
            for param in target.params():
                param.grad = plain(param.grad)
            grads = self.grads()
            kind = "update"
        self._note(_copies_of(args), _copies(grads))
        self.calls.append(Call(function, args, kind=kind, grads=grads))
        self.unseen.check()
        self.state.unwrap()
        try:
            with unrecorded():
                return function(*without_graph(args, lambda array: array.copy()))
        finally:
            if kind == "update":
                if self._proof is not None:
                    self._proof.note_state()
                self._note_grads()
            self.unseen.note_all()
            self.state.wrap(RecordedArray)

    def _note_loss_scale(self, optimizer, is_number):
        if optimizer.has_dynamic_loss_scale:
            self.refuse("an optimizer's dynamic loss scale changes in each step")
        if optimizer.loss_scale is not None and not is_number:
            self.state.scales.append((optimizer, optimizer.loss_scale))

    def _note_grads(self):
        """Notes the gradients that parameters have now; :meth:`grads` refuses the step if it finds
        others that the step did not create by recorded calls."""
        self._others = {id(p): own_grad(p) for p in self.state.params}

    def grads(self) -> tuple:
        """Returns pairs of a parameter and its gradient: None, or an array that the step
        created."""
        pairs = [(p, None if p.grad is None else plain(p.grad)) for p in self.state.params]
        known = []
        for param, grad in pairs:
            if grad is None or id(owner_of(grad)) in self.owners:
                known.append((param, grad))
            elif grad is not self._others.get(id(param)):
                self.refuse("a gradient was computed by means that are not recorded")
        return tuple(known)

    def refuse_first_grads(self) -> None:
        """Refuses a step that computes with gradients left by the previous call."""
        for call in self.calls:
            for x in arrays_in(call.args, call.kwargs):
                if found := self._first_grads.get(id(owner_of(x))):
                    return self.refuse_if(
                        f"it reads the gradient of {found[0]} from the call before, or adds to it: "
                        "call cleargrads() in the step"
                    )
        return None


def way_of_product(
    function: Callable, args: tuple, kwargs: dict, result: Array
) -> tuple[Callable, tuple] | None:
    """Returns a function and its arguments that write to ``result`` what a call of NumPy returns,
    if this is a product of matrices; else None. Replays compute products in this way.

    Example:
        >>> way_of_product(np.add, (np.ones(2), np.ones(2)), {}, np.ones(2))
    """
    is_dot = function in (np.ndarray.dot, np.dot) and result.ndim == 2
    if kwargs or not (is_dot or function is np.matmul):
        return None
    if not all(isinstance(x, np.ndarray) for x in args):
        return None
    a, b = args
    if a.ndim > 2 or b.ndim > 2:
        return product, (a, b, result)
    return prepared_product(a, b, result) or (np.matmul, (a, b, result))


def _copies(grads):
    return [None if grad is None else grad.copy() for _, grad in grads]


def _copies_of(args):
    return [array.copy() for array in arrays_of(args)]


def _like(result, arrays):
    kind = type(result)
    return kind._make(arrays) if hasattr(kind, "_make") else kind(arrays)


def _recorded(value):
    return value.view(RecordedArray) if isinstance(value, np.ndarray) else value


def _place():
    """Returns the file and line of the innermost caller outside of this package and NumPy."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in ("mpchain", "numpy", "contextlib"):
            return f" ({frame.f_code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
