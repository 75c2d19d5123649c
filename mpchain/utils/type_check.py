"""Checks of what functions are given.

Our own functions call :func:`check`. Users' functions define ``check_type_forward(in_types)``: what
they find there are expressions, which remember how they were written, so that :func:`expect` can show
the condition that does not hold together with the values on both of its sides.
"""

import math
import operator

import numpy as np


class InvalidType(Exception):
    """An argument has the wrong shape or dtype for a function; the message says which and why.

    Args:
        expect (str): what must hold; or, given alone, the whole message.
        actual (str): what holds instead.
        msg (str): the message; None makes it of the other two.

    Attributes:
        expect, actual: those arguments.
    """

    def __init__(self, expect, actual=None, msg=None):
        if msg is None:
            msg = expect if actual is None else f"Expect: {expect}\nActual: {actual}"
        super().__init__(msg)
        self.expect = expect
        self.actual = actual


def check(condition, function, rule, **arrays):
    """Raises InvalidType unless ``condition`` holds.

    Args:
        condition (bool): what must hold.
        function (str): the name of the function that checks.
        rule (str): what must hold, in words.
        arrays: the values concerned, by argument name; of arrays, shape and dtype are shown.
    """
    if not condition:
        shown = ", ".join(f"{name} is {_shown(value)}" for name, value in arrays.items())
        raise InvalidType(f"{function}: {rule}, but {shown}")


def _shown(value):
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} of shape {tuple(shape)}"


class TypeInfo:
    """Shape and dtype of an array.

    Attributes:
        shape (tuple of int), dtype (numpy.dtype), ndim (int), size (int): those of the array.
    """

    def __init__(self, shape, dtype):
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    def __repr__(self):
        return f"{self.dtype} of shape {self.shape}"


class TypeInfoTuple(tuple):
    """The types of a function's arguments, each a :class:`Variable` that holds a TypeInfo."""

    name = "in_types"

    def size(self):
        """Returns an expression of the number of arguments."""
        return Variable(len(self), f"{self.name}.size")


def get_types(data, name, accept_none):
    """Returns the types of arrays as a :class:`TypeInfoTuple`.

    Args:
        data: tuple of arrays.
        name (str): what messages call the tuple.
        accept_none (bool): whether an element may be None; its type is then None.

    Raises:
        TypeError: an element is None, but may not be.
    """
    types = []
    for i, x in enumerate(data):
        if x is None and not accept_none:
            raise TypeError(f"get_types: {name}[{i}] is None, but an array is needed")
        types.append(Variable(None if x is None else TypeInfo(x.shape, x.dtype), f"{name}[{i}]"))
    types = TypeInfoTuple(types)
    types.name = name
    return types


def check_forward(function, in_data):
    """Runs ``function.check_type_forward`` on arrays; what it raises names the function.

    Args:
        function: a FunctionNode or Function.
        in_data: tuple of its input arrays.

    Raises:
        InvalidType: the function does not accept these inputs.
    """
    try:
        function.check_type_forward(get_types(in_data, "in_types", False))
    except InvalidType as error:
        message = f"\nInvalid operation is performed in: {function.label} (Forward)\n\n{error}"
        raise InvalidType(error.expect, error.actual, message) from None


class Expr:
    """An expression that is evaluated later, by :meth:`eval`; its ``str`` is what was written.

    Attributes, indexing, calls, arithmetic and comparison of expressions are expressions.
    """

    _priority = 9
    __array_ufunc__ = None  # NumPy scalars on the left leave the operation to the expression
    __hash__ = None
    __iter__ = None  # or Python would try the indexes 0, 1, 2, ... and never find an end

    def eval(self):
        """Returns the value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement eval")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Derived(lambda: getattr(self.eval(), name), f"{_grouped(self, 9)}.{name}")

    def __getitem__(self, key):
        parts = (key.start, key.stop, key.step) if isinstance(key, slice) else None
        if parts is None:
            text = _text(key)
        else:
            start, stop, step = ("" if part is None else _text(part) for part in parts)
            text = f"{start}:{stop}" + (f":{step}" if step else "")

        def value():
            index = _value(key) if parts is None else slice(*map(_value, parts))
            return self.eval()[index]

        return _Derived(value, f"{_grouped(self, 9)}[{text}]")

    def __call__(self, *args):
        text = ", ".join(map(_text, args))
        return _Derived(lambda: self.eval()(*map(_value, args)), f"{_grouped(self, 9)}({text})")

    def __bool__(self):
        raise RuntimeError(
            "An Expr instance cannot be evaluated as bool. "
            "Please use mpchain.utils.type_check.eval() to evaluate an expression."
        )


class _Derived(Expr):
    """An expression made of others."""

    def __init__(self, value, text, priority=9):
        self._value, self._written, self._priority = value, text, priority

    def eval(self):
        return self._value()

    def __str__(self):
        return self._written


class Constant(Expr):
    """A value that is shown as it is."""

    def __init__(self, value):
        self.value = value

    def eval(self):
        return self.value

    def __str__(self):
        return _text(self.value)


class Variable(Expr):
    """A value that is shown by a name.

    Args:
        value: the value.
        name (str): what messages call it.
    """

    def __init__(self, value, name):
        self.value = value
        self.name = name

    def eval(self):
        return self.value

    def __str__(self):
        return self.name


class _Comparison(Expr):
    _priority = 1

    def __init__(self, compare, sign, opposite, left, right):
        self._compare, self._sign, self._opposite = compare, sign, opposite
        self._left, self._right = left, right

    def eval(self):
        return self._compare(_value(self._left), _value(self._right))

    def __str__(self):
        return f"{_grouped(self._left, 1)} {self._sign} {_grouped(self._right, 2)}"

    def _failure(self):
        """What was written and what it is instead, with values as ``print`` shows them."""
        left, right = (
            _grouped(side, 2) if isinstance(side, Expr) else _text(side, str)
            for side in (self._left, self._right)
        )
        actual = f"{_value(self._left)} {self._opposite} {_value(self._right)}"
        return InvalidType(f"{left} {self._sign} {right}", actual)


def _value(x):
    """The value of an expression, of the expressions in a tuple or list, or of anything else."""
    if isinstance(x, (tuple, list)):
        return type(x)(map(_value, x))
    return x.eval() if isinstance(x, Expr) else x


def _text(x, show=repr):
    if isinstance(x, Expr):
        return str(x)
    if type(x) in (tuple, list):
        items = ", ".join(map(_text, x))
        return f"[{items}]" if type(x) is list else f"({items},)" if len(x) == 1 else f"({items})"
    return show(x)


def _grouped(x, priority):
    """The text of an operand, in parentheses if it binds less tightly than ``priority``."""
    if isinstance(x, Expr) and x._priority < priority:
        return f"({x})"
    return _text(x)


def _binary(function, sign, priority, swapped=False):
    right_first = sign == "**"

    def operation(x, y):
        left, right = (y, x) if swapped else (x, y)
        text = (
            f"{_grouped(left, priority + right_first)} {sign} "
            f"{_grouped(right, priority + (not right_first))}"
        )
        return _Derived(lambda: function(_value(left), _value(right)), text, priority)

    return operation


def _unary(function, sign):
    return lambda x: _Derived(lambda: function(x.eval()), f"{sign}{_grouped(x, 7)}", 7)


def _comparison(name, sign, opposite):
    compare = getattr(operator, name)
    return lambda x, y: _Comparison(compare, sign, opposite, x, y)


_BINARY = [
    ("or", operator.or_, "|", 2),
    ("xor", operator.xor, "^", 3),
    ("and", operator.and_, "&", 4),
    ("lshift", operator.lshift, "<<", 5),
    ("rshift", operator.rshift, ">>", 5),
    ("add", operator.add, "+", 6),
    ("sub", operator.sub, "-", 6),
    ("mul", operator.mul, "*", 6.5),
    ("truediv", operator.truediv, "/", 6.5),
    ("floordiv", operator.floordiv, "//", 6.5),
    ("mod", operator.mod, "%", 6.5),
    ("pow", operator.pow, "**", 8),
]
_COMPARISONS = [("eq", "==", "!="), ("ne", "!=", "=="), ("lt", "<", ">="), ("le", "<=", ">")]
_COMPARISONS += [("gt", ">", "<="), ("ge", ">=", "<")]

for _name, _function, _sign, _priority in _BINARY:
    setattr(Expr, f"__{_name}__", _binary(_function, _sign, _priority))
    setattr(Expr, f"__r{_name}__", _binary(_function, _sign, _priority, swapped=True))
for _name, _function, _sign in [
    ("neg", operator.neg, "-"),
    ("pos", operator.pos, "+"),
    ("invert", operator.invert, "~"),
]:
    setattr(Expr, f"__{_name}__", _unary(_function, _sign))
for _name, _sign, _opposite in _COMPARISONS:
    setattr(Expr, f"__{_name}__", _comparison(_name, _sign, _opposite))


def eval(exp):
    """Returns the value of an expression; of a tuple or list, those of its elements."""
    return _value(exp)


def expect(*bool_exprs):
    """Raises InvalidType unless every condition holds.

    The conditions are evaluated in their order, up to the first that does not hold.

    Args:
        bool_exprs: expressions; mostly comparisons, of which both sides are shown.
    """
    for i, condition in enumerate(bool_exprs):
        if _value(condition):
            continue
        if isinstance(condition, _Comparison):
            raise condition._failure()
        shown = condition if isinstance(condition, Expr) else f"condition {i} to hold"
        raise InvalidType(str(shown), str(_value(condition)))


def make_variable(value, name):
    """Returns a value as an expression that messages call ``name``."""
    return Variable(value, name)


def same_types(*arrays):
    """Returns whether the types (classes) of all arguments are the same."""
    return len({type(array) for array in arrays}) <= 1


def prod(xs):
    """Returns an expression of the product of a sequence of integers, such as a shape."""
    return Variable(lambda values: int(np.prod(values)), "prod")(xs)


def expect_broadcast_shapes(*shape_types):
    """Raises InvalidType unless shapes can be broadcast together.

    Args:
        shape_types: expressions of shapes.
    """
    shapes = [shape.eval() for shape in shape_types]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        lines = [f"{name} = {shape}" for name, shape in zip(shape_types, shapes)]
        message = "\n".join(["cannot broadcast inputs of the following shapes:", *lines])
        raise InvalidType("shapes that can be broadcast", ", ".join(map(str, shapes)), message)
