"""Functions that check the arguments of functions.

mpchain's own functions call :func:`check`. Users' functions define
``check_type_forward(in_types)``, whose argument contains expressions. Expressions remember how they
were written, so :func:`expect` can show a failed condition with the values on both sides.
"""

import functools
import inspect
import itertools
import math
import numbers
import operator
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from mpchain.backends.cuda import other_device
from mpchain.from_pytorch import check_options
from mpchain.observers import current, span
from mpchain.typing import Array

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# these are the lowest priority, and the priority of attributes, indexing and calls
_COMPARISON, _TIGHT = 1, 10


class InvalidType(ValueError):
    """Raised when an argument of a function has the wrong shape or dtype.

    The messages of :func:`check` name the function, the rule and the arguments. The class derives
    from ValueError, which NumPy raises for wrong shapes.

    Args:
        expect: the rule; if there are no other arguments, the whole message.
        actual: the actual values.
        msg: the message; None composes a message from ``expect`` and ``actual``.

    Attributes:
        expect, actual: the arguments of the same names.

    Example:
        >>> print(InvalidType("x.ndim == 4", "2 != 4"))
        Expect: x.ndim == 4
        Actual: 2 != 4
    """

    def __init__(self, expect: Any, actual: Any = None, msg: str | None = None):
        if msg is None:
            msg = expect if actual is None else f"Expect: {expect}\nActual: {actual}"
        super().__init__(msg)
        self.expect = expect
        self.actual = actual


def check(condition: bool, function: str, rule: str, **arguments: Any) -> None:
    """Raises InvalidType unless ``condition`` holds.

    Args:
        condition: the condition to check.
        function: the name of the function that checks.
        rule: the condition in words; fields such as ``{x.shape[1]}`` refer to arguments, and are
            filled in when the check fails.
        arguments: the relevant values, by name; :func:`describe` shows them.

    Example:
        >>> x = np.zeros((2, 3), np.float32)
        >>> check(x.ndim == 4, "f", "x must have 4 axes, not {x.ndim}", x=x)
        Traceback (most recent call last):
            ...
        mpchain.utils.type_check.InvalidType: f: x must have 4 axes, not 2: x: float32 (2, 3)
    """
    if not condition:
        fail(function, rule, **arguments)


def fail(function: str, rule: str, **arguments: Any) -> NoReturn:
    """Raises the InvalidType that :func:`check` raises for a condition that is False."""
    shown = ", ".join(f"{name}: {describe(value)}" for name, value in arguments.items())
    raise InvalidType(f"{function}: {rule.format(**arguments)}: {shown}")


def is_integer(value: object) -> "TypeIs[int]":
    """Returns whether a value is an integer of Python or NumPy.

    Example:
        >>> is_integer(np.int32(3)), is_integer(3.0)
        (True, False)
    """
    return isinstance(value, numbers.Integral)


def is_real(value: object) -> "TypeIs[float]":
    """Returns whether a value is a real number of Python or NumPy.

    Example:
        >>> is_real(np.float32(3)), is_real("3")
        (True, False)
    """
    return isinstance(value, numbers.Real)


def describe(value: Any) -> str:
    """Returns a text with the dtype and shape of an array, or of each array in a list; for any
    other value, its repr.

    Example:
        >>> describe([np.zeros(3), Variable(np.zeros((), np.float32))])
        '[float64 (3,), float32 ()]'
    """
    if isinstance(value, list):
        return f"[{', '.join(map(describe, value))}]"
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} {tuple(shape)}"


_OF_ARRAYS = {
    "array",
    "astype",
    "data",
    "device",
    "dtype",
    "ndim",
    "reshape",
    "shape",
    "size",
    "xp",
}


_NOTHING = object()


def explain_arguments(
    error: Exception, name: str, function: Callable, args: Sequence, kwargs: Mapping[str, Any]
) -> None:
    """Raises TypeError if ``error`` was caused by an argument that should be an array.

    Args:
        error: AttributeError, or TypeError, whose ``obj`` is the object that is not an array.
        name: the name of the function in the message.
        function: the function, whose signature has the names of the arguments.
        args, kwargs: the arguments of the call.

    Example:
        >>> F.relu("text")
        Traceback (most recent call last):
            ...
        TypeError: relu: x must be a Variable or an array, not str: 'text'
    """
    is_of_arrays = error.name in _OF_ARRAYS if isinstance(error, AttributeError) else True
    wrong: Any = getattr(error, "obj", _NOTHING)
    if not is_of_arrays or wrong is _NOTHING or hasattr(wrong, "shape"):
        return
    try:
        arguments = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return
    for argument, value in arguments.items():
        several = value if isinstance(value, (list, tuple)) else ()
        places = [f"{argument}[{i}]" for i, item in enumerate(several) if item is wrong]
        if value is wrong or places:
            explained: Any = TypeError(
                f"{name}: {argument if value is wrong else places[0]} must be a Variable or an "
                f"array, not {type(wrong).__name__}: {reprlib.repr(wrong)}"
            )
            explained.obj = wrong  # a caller that has passed this object can name its own argument
            raise explained from None


def called_by_users(function: Callable) -> Callable:
    """Decorator: explains wrong arguments (see :func:`explain_arguments`), and while the function
    runs, makes the GPU of the first GPU array among the arguments current.

    Example:
        >>> @called_by_users
        ... def n_rows(x):
        ...     return x.shape[0]
        >>> n_rows([1, 2])
        Traceback (most recent call last):
            ...
        TypeError: n_rows: x must be a Variable or an array, not list: [1, 2]
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if "cupy" in sys.modules:
            device = other_device(*args)
            if device is not None:
                with device:
                    return call(*args, **kwargs)
        try:
            if current.observers is None:
                return function(*args, **kwargs)
            with span("call", function.__name__):
                return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            check_options(function.__name__, function, kwargs)
            explain_arguments(error, function.__name__, function, args, kwargs)
            raise

    return call


class TypeInfo:
    """The shape and dtype of an array.

    Attributes:
        shape (tuple of int), dtype (numpy.dtype), ndim (int), size (int): the properties of the
        array.

    Example:
        >>> TypeInfo((2, 3), np.dtype(np.float32))
        float32 (2, 3)
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype} {self.shape}"


class TypeInfoTuple(tuple):
    """The types of a function's arguments, each a :class:`Variable` that holds a TypeInfo.

    Example:
        >>> in_types = get_types((np.zeros(3),), "in_types", False)
        >>> print(in_types.size(), in_types[0].shape)
        in_types.size in_types[0].shape
    """

    name = "in_types"

    def size(self) -> "Variable":
        """Returns an expression of the number of arguments."""
        return Variable(len(self), f"{self.name}.size")


def get_types(
    data: Sequence[Any], name: str, accept_none: bool, *, shapes: Sequence[Any] | None = None
) -> TypeInfoTuple:
    """Returns the types of arrays as a :class:`TypeInfoTuple`.

    Args:
        data: tuple of arrays.
        name: the name of the tuple in messages.
        accept_none: whether an element may be None; its type is then None.
        shapes: tuple of shapes to use instead of the shapes of the arrays; None means the shapes of
            the arrays.

    Raises:
        TypeError: an element is None, and ``accept_none`` is False.

    Example:
        >>> get_types((np.zeros((2, 3)),), "in_types", False)[0].eval()
        float64 (2, 3)
    """
    types = []
    for i, x in enumerate(data):
        if x is None and not accept_none:
            raise TypeError(f"get_types: {name}[{i}] is None, but an array is needed")
        shape = None if x is None else x.shape if shapes is None else shapes[i]
        types.append(Variable(None if x is None else TypeInfo(shape, x.dtype), f"{name}[{i}]"))
    types = TypeInfoTuple(types)
    types.name = name
    return types


def check_forward(function: Any, in_data: Sequence[Array]) -> None:
    """Runs ``function.check_type_forward`` on arrays; its errors then name the function.

    Args:
        function: a FunctionNode or Function.
        in_data: tuple of its input arrays.

    Raises:
        InvalidType: the function does not accept these inputs.

    Example:
        >>> check_forward(mpchain.FunctionNode(), (np.zeros(3),))  # accepts everything
    """
    try:
        function.check_type_forward(get_types(in_data, "in_types", True))
    except InvalidType as error:
        message = f"\nInvalid operation is performed in: {function.label} (Forward)\n\n{error}"
        raise InvalidType(error.expect, error.actual, message) from None


class Expr:
    """An expression that :meth:`eval` evaluates later. Its ``str`` is the text of the expression.

    Attributes, indexing, calls, arithmetic and comparison of expressions are expressions.

    Example:
        >>> x = make_variable(np.zeros((2, 3)), "x")
        >>> print(x.shape[0] + 1, (x.shape[0] + 1).eval())
        x.shape[0] + 1 3
    """

    _kind = None
    # with None, NumPy scalars on the left leave the operation to the expression
    __array_ufunc__ = None
    __hash__: ClassVar[None] = None
    __iter__ = None  # without None, Python would iterate over the indices 0, 1, 2, ... forever

    def eval(self) -> Any:
        """Returns the value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement eval")

    def __getattr__(self, name: str) -> "Expr":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Derived(_ATTRIBUTE, self, name)

    def __getitem__(self, key: object) -> "Expr":
        return _Derived(_ITEM, self, key)

    def __call__(self, *args: Any) -> "Expr":
        return _Derived(_CALL, self, *args)

    def __bool__(self) -> bool:
        raise RuntimeError(
            "An Expr instance cannot be evaluated as bool. "
            "Please use mpchain.utils.type_check.eval() to evaluate an expression."
        )


class Variable(Expr):
    """An expression for a value, which messages show by its name.

    Args:
        value: the value.
        name: the value's name in messages.

    Example:
        >>> print(make_variable(3, "n") * 2)
        n * 2
    """

    def __init__(self, value: object, name: str):
        self.value = value
        self.name = name

    def eval(self) -> Any:
        return self.value

    def __str__(self) -> str:
        return self.name


class Constant(Variable):
    """An expression for a constant, which messages show by its value.

    Example:
        >>> print(Constant(3) * 2)
        3 * 2
    """

    def __init__(self, value: object):
        super().__init__(value, _text(value))


class _Kind(NamedTuple):
    """A way to combine expressions into one.

    Attributes:
        function: a function of the operands' values that returns the value of the expression.
        write: a function of the operands that returns the text of the expression.
        priority: the precedence of the operator.
        opposite: for a comparison, the operator of its negation.
    """

    function: Callable
    write: Callable
    priority: int = _TIGHT
    opposite: str | None = None


class _Derived(Expr):
    def __init__(self, kind, *operands):
        self._kind, self._operands = kind, operands

    def eval(self):
        return self._kind.function(*[_value(x) for x in self._operands])

    def __str__(self):
        return self._kind.write(*self._operands)


def _value(x):
    """Returns the value of an expression, or of the expressions in a tuple, list or slice; other
    objects are returned unchanged."""
    if isinstance(x, Expr):
        return x.eval()
    if isinstance(x, slice):
        return slice(_value(x.start), _value(x.stop), _value(x.step))
    return type(x)(map(_value, x)) if type(x) in (tuple, list) else x


def _text(x):
    if type(x) is list:
        return f"[{', '.join(map(_text, x))}]"
    if type(x) is tuple:
        return f"({', '.join(map(_text, x))}{',' * (len(x) == 1)})"
    if isinstance(x, slice):
        start, stop, step = ("" if i is None else _text(i) for i in (x.start, x.stop, x.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return str(x) if isinstance(x, Expr) else repr(x)


def _grouped(x, priority):
    """Returns the text of an operand, in parentheses if it binds less tightly than ``priority``."""
    kind = x._kind if isinstance(x, Expr) else None
    return f"({_text(x)})" if kind is not None and kind.priority < priority else _text(x)


def _writer(sign, priority):
    left = priority + (sign == "**" or priority == _COMPARISON)
    right = priority + (sign != "**")
    return lambda x, y: f"{_grouped(x, left)} {sign} {_grouped(y, right)}"


_ATTRIBUTE = _Kind(getattr, lambda x, name: f"{_grouped(x, _TIGHT)}.{name}")
_ITEM = _Kind(operator.getitem, lambda x, key: f"{_grouped(x, _TIGHT)}[{_text(key)}]")
_CALL = _Kind(
    lambda f, *args: f(*args),
    lambda f, *args: f"{_grouped(f, _TIGHT)}({', '.join(map(_text, args))})",
)


def _define(names, signs, priorities, opposites=None):
    """Defines binary operators of expressions; operators with opposites are comparisons."""
    opposites = opposites.split() if opposites else itertools.repeat(None)
    for name, sign, priority, opposite in zip(names.split(), signs.split(), priorities, opposites):
        function = getattr(operator, f"__{name}__")
        kind = _Kind(function, _writer(sign, priority), priority, opposite)
        setattr(Expr, f"__{name}__", lambda x, y, kind=kind: _Derived(kind, x, y))
        if opposite is None:
            setattr(Expr, f"__r{name}__", lambda x, y, kind=kind: _Derived(kind, y, x))


def _define_unary(name, sign):
    kind = _Kind(getattr(operator, name), lambda x: f"{sign}{_grouped(x, 8)}", 8)
    setattr(Expr, f"__{name}__", lambda x: _Derived(kind, x))


_define("eq ne lt le gt ge", "== != < <= > >=", (_COMPARISON,) * 6, "!= == >= > <= <")
_define("or xor and lshift rshift add sub", "| ^ & << >> + -", (2, 3, 4, 5, 5, 6, 6))
_define("mul truediv floordiv mod pow", "* / // % **", (7, 7, 7, 7, 9))
_define_unary("neg", "-")
_define_unary("pos", "+")
_define_unary("invert", "~")


def eval(exp: object) -> Any:
    """Returns the value of an expression; for a tuple or list, the values of its elements.

    Example:
        >>> eval((make_variable(3, "n") + 1, 5))
        (4, 5)
    """
    return _value(exp)


def expect(*bool_exprs: Any) -> None:
    """Raises InvalidType unless every condition holds.

    The conditions are evaluated in order, up to the first one that fails.

    Args:
        bool_exprs: expressions; for comparisons, the message shows both sides.

    Example:
        >>> expect(make_variable(3, "n") == 4)
        Traceback (most recent call last):
            ...
        mpchain.utils.type_check.InvalidType: Expect: n == 4
        Actual: 3 != 4
    """
    for i, condition in enumerate(bool_exprs):
        if _value(condition):
            continue
        if not isinstance(condition, Expr):
            raise InvalidType(f"condition {i} to hold", str(condition))
        if condition._kind is None or condition._kind.opposite is None:
            raise InvalidType(str(condition), str(condition.eval()))
        written = condition._kind.write(*map(_as_printed, condition._operands))
        left, right = map(_value, condition._operands)
        raise InvalidType(written, f"{left} {condition._kind.opposite} {right}")


def _as_printed(x):
    """Returns an object whose text in messages is plain, if ``x`` is a string or dtype that is a
    whole side of a comparison."""
    return Variable(None, str(x)) if isinstance(x, (str, np.dtype)) else x


def make_variable(value: object, name: str) -> Variable:
    """Returns a value as an expression that messages call ``name``.

    Example:
        >>> print(make_variable(3, "n") > 2)
        n > 2
    """
    return Variable(value, name)


def same_types(*arrays: Any) -> bool:
    """Returns whether the types (classes) of all arguments are the same.

    Example:
        >>> same_types(np.zeros(2), np.ones(3)), same_types(np.zeros(2), [0])
        (True, False)
    """
    return len({type(array) for array in arrays}) <= 1


def prod(xs: object) -> Expr:
    """Returns an expression of the product of a sequence of integers, such as a shape.

    Example:
        >>> prod(make_variable((2, 3), "shape")).eval()
        6
    """
    return Variable(lambda values: int(np.prod(values)), "prod")(xs)


def expect_broadcast_shapes(*shape_types: Expr) -> None:
    """Raises InvalidType unless shapes can be broadcast together.

    Args:
        shape_types: expressions of shapes.

    Example:
        >>> expect_broadcast_shapes(make_variable((2, 1), "a"), make_variable((3,), "b"))
    """
    shapes = [shape.eval() for shape in shape_types]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError as error:
        lines = [f"{name} = {shape}" for name, shape in zip(shape_types, shapes)]
        message = "\n".join(["cannot broadcast inputs of the following shapes:", *lines])
        raise InvalidType("broadcastable shapes", str(error), message) from None
