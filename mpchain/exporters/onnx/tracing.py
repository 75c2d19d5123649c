"""Records of a model's call: the applied functions, in order, and the links that call them.

A model is called twice, with batches of two sizes and with different values. A value that differs
between the calls depends on the batch size or on the inputs, and is never exported as a constant.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends.dtypes import is_floating
from mpchain.configuration import force_backprop_mode, using_config
from mpchain.function_node import FunctionNode
from mpchain.link import Link
from mpchain.observers import Observer, Span
from mpchain.typing import Array, Arrays, DTypeLike
from mpchain.variable import Variable

# These functions of integer inputs are recorded; other NumPy functions turn inputs into constants.
RECORDED = {np.where, *(getattr(np, n) for n in "add subtract multiply maximum minimum".split())}
RECORDED |= {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
RECORDED |= {np.logical_and, np.logical_or, np.logical_not, np.negative, np.absolute}
_BITWISE = {
    np.bitwise_and: np.logical_and,
    np.bitwise_or: np.logical_or,
    np.invert: np.logical_not,
}


GROWTH = 3
"""Number of samples by which the second batch is larger. It is odd, so that half of a batch size,
rounded, does not grow in proportion to the batch size."""


class Application(NamedTuple):
    """One application of a function.

    Attributes:
        function: the function node; or the NumPy function or the name of the operation that was
            applied to an integer input, or that found positions, such as argmax.
        in_data: the function's input arrays.
        constants: the other arguments.
        path: the path of the link that called it.
        output: the result of a function of an integer input, or the positions that a function
            such as argmax returned.
        node: the node of the Variable in which the positions were found; None if the input is an
            array.
    """

    function: Any
    in_data: Sequence[Array]
    constants: Sequence[Any]
    path: str
    output: Array | None = None
    node: Any = None

    @property
    def label(self) -> str:
        """The name of the function."""
        named = self.function if isinstance(self.function, FunctionNode) else None
        return named.label if named else str(getattr(self.function, "__name__", self.function))


class IntegerInput(np.ndarray):
    """An input array of integers or booleans; it records the functions that are applied to it."""

    tracer: "Tracer | None" = None

    def __array_finalize__(self, made_from: object) -> None:
        self.tracer = getattr(made_from, "tracer", None)

    def __array_ufunc__(self, ufunc: object, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [_plain(x) for x in inputs]
        result = getattr(ufunc, method)(*plain, **{k: _plain(v) for k, v in kwargs.items()})
        if ufunc in _BITWISE and all(np.asarray(x).dtype == bool for x in plain):
            ufunc = _BITWISE[ufunc]
        if method != "__call__" or kwargs or ufunc not in RECORDED:
            return result
        return self._recorded(ufunc, inputs, (), result)

    def __array_function__(
        self, function: Callable, types: Iterable[type], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        result = function(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
        if function not in RECORDED or kwargs or len(args) != 3:
            return result
        return self._recorded(function, args, (), result)

    def astype(self, dtype: DTypeLike, *args: Any, **kwargs: Any) -> Array:
        """Converts to a dtype, and records the conversion."""
        if np.dtype(dtype) == self.dtype:
            return self
        return self._recorded("astype", [self], (np.dtype(dtype),), _plain(self).astype(dtype))

    def __getitem__(self, key: object) -> Any:
        result = _plain(self)[_plain(key)]
        items = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(i, (int, slice, type(None), type(...))) for i in items):
            return result
        return self._recorded("get_item", [self], (key,), np.asarray(result))

    def _recorded(self, function, inputs, constants, result):
        if self.tracer is None or not isinstance(result, (np.ndarray, np.generic)):
            return result
        return self.tracer.record_array(function, inputs, constants, np.asarray(result))


def _plain(x) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return x.view(np.ndarray) if isinstance(x, IntegerInput) else x


class Tracer(Observer):
    """Records what functions compute within its context.

    >>> tracer = Tracer()
    >>> with tracer.recording():
    ...     y = F.relu(Variable(np.zeros(2, np.float32)) * 2)
    >>> [application.label for application in tracer.applications]
    ['multiply_by_constant', 'relu']

    Args:
        model: the model to call; each function is recorded with the path of its link.
    """

    sees_links = True

    def __init__(self, model: object = None) -> None:
        self.applications: list[Application] = []
        links = model.namedlinks() if isinstance(model, Link) else ()
        self.paths = {id(link): path for path, link in links}
        self.stack = ["/"]

    @property
    def path(self) -> str:
        """The path of the link that is running."""
        return self.stack[-1]

    @contextlib.contextmanager
    def recording(self, path: str = "/") -> Iterator[None]:
        """Context manager: records functions, in inference mode, under the path of a link."""
        self.stack = [path]
        with using_config("train", False), force_backprop_mode(), self:
            yield

    def forward_postprocess(self, function: object, in_data: Arrays) -> None:
        constants = getattr(function, "constants", ())
        self.applications.append(Application(function, in_data, constants, self.path))

    def begins(self, span: Span) -> None:
        if span.kind == "link":
            self.stack.append(self.paths.get(id(span.thing), self.path))

    def ends(self, span: Span, begun: object) -> None:
        if span.kind == "link":
            self.stack.pop()

    def positions(self, name: str, x: Variable, constants: tuple, positions: Array) -> Array:
        return self.record_array(name, [x.array], constants, positions, x.node)

    def input(self, array: Array) -> Variable:
        """Returns a new Variable, without history, whose use is recorded."""
        if not is_floating(array.dtype):
            traced = array.view(IntegerInput)
            traced.tracer = self
            return Variable(traced)
        return Variable(array)

    def record_array(
        self,
        function: object,
        inputs: Sequence[Any],
        constants: Sequence[Any],
        output: Array,
        node: object = None,
    ) -> Array:
        """Records a computed array of integers, and returns the array; see `Application`."""
        traced = output.view(IntegerInput)
        traced.tracer = self
        arrays = tuple([x if isinstance(x, np.ndarray) else np.asarray(x) for x in inputs])
        self.applications.append(Application(function, arrays, constants, self.path, traced, node))
        return traced


def address(array: Array) -> tuple | None:
    """Returns a key that is equal for views of the same elements; None for an empty array.

    >>> x = np.arange(3)
    >>> address(x) == address(np.asarray(x)), address(x) == address(x[:2])
    (True, False)
    """
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def two_batches(array: Array, axis: int | None, name: str) -> tuple[Array, Array]:
    """Returns an input with a batch size of at least 2, and another with a larger one.

    >>> [x.shape for x in two_batches(np.arange(6.0).reshape(2, 3), 0, "x")]
    [(2, 3), (5, 3)]

    The second batch has different values from the same range, which reveals the results that depend
    on these values.

    Args:
        array: the input.
        axis: the axis of the batch; None keeps the shape.
        name: the name of the input, for messages.

    Raises:
        ValueError: the input is empty, or its integers are all equal.
    """
    if not array.size:
        raise ValueError(f"exporters.onnx.export: input {name} of shape {array.shape} is empty")
    if array.dtype.kind in "iu" and (array == array.flat[0]).all():
        raise ValueError(
            f"exporters.onnx.export: the integers of input {name} must not all be equal: pass an "
            "input with different integers, which shows which results depend on the integers"
        )
    if axis is None:
        first, second = array, array
    else:
        n = array.shape[axis]
        first = np.take(array, np.arange(max(n, 2)) % n, axis)
        second = np.take(array, np.arange(max(n, 2) + GROWTH) % n, axis)
    random = np.random.RandomState(0)
    changed = random.permutation(second.reshape(-1)).reshape(second.shape)
    if array.dtype.kind == "b":
        changed = changed ^ (random.rand(*second.shape) < 0.3)
    elif is_floating(array.dtype):
        same = bool((array == array.flat[0]).all())
        noise = random.uniform(0, 0.1, second.shape)
        changed = np.asarray(changed * (1 - noise) + same * noise, array.dtype)
    return first, np.asarray(changed)


class Dim(NamedTuple):
    """A number that depends on the batch size B: (factor * B + offset) ** exponent.

    >>> Dim.of(6, 15, 2)  # of batches of 2 and of 5
    Dim(factor=3, offset=0, exponent=1)
    """

    factor: Any
    offset: Any = 0
    exponent: int = 1

    @classmethod
    def of(cls, first: Any, second: Any, batch: int | None) -> "Dim | None":
        """Returns the Dim that is ``first`` for ``batch``, and ``second`` for the larger batch.

        Returns None if ``batch`` is None, or if no Dim certainly has these two values.
        """
        if batch is None:
            return None
        for exponent in 1, -1:
            if exponent < 0 and not (isinstance(first, float) and first and second):
                break
            a, b = first**exponent, second**exponent
            factor = (b - a) / GROWTH
            if isinstance(a, int):
                factor = int(factor) if factor == int(factor) else factor
            offset = a - factor * batch
            # Any two numbers lie on a line, so only multiples of the batch size, and offsets from
            # it, are unambiguous.
            if isinstance(a, int) and not isinstance(factor, int):
                return None
            if math.isclose(offset, 0, abs_tol=1e-6 * abs(a)):
                return cls(factor, 0, exponent)
            if factor == 1:
                return cls(1, offset, exponent)
        return None
