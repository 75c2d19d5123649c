"""Chainer's function classes, such as ``ReLU`` and ``Convolution2DFunction``.

An object of such a class applies mpchain's function. While compat is installed, variables show
these objects as their creators, and hooks get these objects, instead of mpchain's nodes.
"""

import ast
import functools
import importlib
import inspect
import math
import operator
import pathlib
import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain import functions
from mpchain.backends.dtypes import is_floating
from mpchain.backprop import levels_to_user
from mpchain.compat.attributes import refuse_removed
from mpchain.compat.dtypes import as_chainer
from mpchain.compat.layout import layout
from mpchain.compat.node_attributes import complete, keeps_inputs, retained
from mpchain.configuration import config, no_backprop_mode, using_config
from mpchain.function_node import FunctionNode
from mpchain.observers import Observer
from mpchain.typing import Array, Input
from mpchain.utils.type_check import is_real
from mpchain.variable import Variable, VariableNode, as_variable

_EXTRA = {
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "pow": operator.pow,
    "add_constant": lambda x, value: x + value,
    "mul_constant": lambda x, value: x * value,
    "sub_from_constant": lambda x, value: value - x,
    "div_from_constant": lambda x, value: value / x,
    "pow_const_var": lambda x, value: value**x,
    "pow_var_const": lambda x, value: x**value,
    "by_method": lambda xs, method: getattr(functions, method)(xs),
    "einsum_of": lambda xs, in_subs, out_sub: functions.einsum(f"{in_subs}->{out_sub}", *xs),
}
"""Functions in the table that ``mpchain.functions`` does not export, by name."""

_PARTS = {"sy": "stride 0", "sx": "stride 1", "ph": "pad 0", "pw": "pad 1"} | {
    "kh": "ksize 0", "kw": "ksize 1", "dy": "dilate 0", "dx": "dilate 1"
}  # fmt: skip
"""Maps attributes of Chainer's two-dimensional classes to an argument and an index in it."""

_LABELS = {
    "Absolute": "|_|",
    "Add": "_ + _",
    "AddConstant": "_ + {value}",
    "BatchDet": "det",
    "DiGamma": "digamma",
    "Div": "_ / _",
    "DivFromConstant": "{value} / _",
    "Mul": "_ * _",
    "MulConstant": "_ * {value}",
    "Neg": "__neg__",
    "PowConstVar": "{value} ** _",
    "PowVarConst": "_ ** {value}",
    "PowVarVar": "_ ** _",
    "Sub": "_ - _",
    "SubFromConstant": "{value} - _",
}
_LOWER = set(
    "Arccos Arcsin Arctan Arctan2 Cholesky Cos Cosh Erf Erfc ErfcInv Erfcx ErfInv Exp Expm1 Fmod "
    "LGamma Log Log10 Log1p Log2 Ndtr Ndtri Sin Sinh Sqrt Square Tan Zeta".split()
)
"""Classes of Chainer whose label is the name of the function, not of the class."""

_OF_NODES = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "negative": "Neg",
    "power": "PowVarVar",
    "power_of_constant_base": "PowConstVar",
    "power_of_constant_exponent": "PowVarConst",
    "cube": "PowVarConst",
    "divide_constant": "DivFromConstant",
    "add_constant": "AddConstant",
    "multiply_by_constant": "MulConstant",
    "divide_by_constant": "MulConstant",
    "subtract_from_constant": "SubFromConstant",
    "matrix_product": "MatMul",
    "get_item": "GetItem",
    "reshape": "Reshape",
    "transpose": "Transpose",
}
"""Maps the label of a node that an operator made to Chainer's class."""


class _Line(NamedTuple):
    """A row of the table."""

    name: str
    signature: inspect.Signature
    function: str | None
    places: tuple[str, ...]  # names of the function's positional arguments
    keywords: dict[str, str]  # maps the class's arguments to keywords of the function
    others: tuple[str, ...]  # other functions whose results belong to this class


@functools.cache
def _table():
    text = pathlib.Path(__file__).with_suffix(".txt").read_text("utf-8")
    lines = [_read(line) for line in text.splitlines() if not line.startswith("#")]
    return {line.name: line for line in lines}


def _read(text):
    made, _, rest = text.partition("): ")
    target, _, others = rest.partition("|")
    call = ast.parse(f"def {made}): 0").body[0]
    assert isinstance(call, ast.FunctionDef)
    names = [a.arg for a in call.args.args]
    values = [ast.literal_eval(d) for d in call.args.defaults]
    values = [inspect.Parameter.empty] * (len(names) - len(values)) + values
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, default=d) for n, d in zip(names, values)]
    function, places, keywords = None, ("*",), {name: name for name in names}
    if target.strip():
        node = ast.parse(target.strip(), mode="eval").body
        function = node.id if isinstance(node, ast.Name) else node.func.id
        if isinstance(node, ast.Call):
            places = tuple(map(ast.unparse, node.args)) or ("*",)
            keywords = {ast.unparse(k.value): str(k.arg) for k in node.keywords}
    signature = inspect.Signature(parameters)
    return _Line(call.name, signature, function, places, keywords, tuple(others.split()))


class _Kind(type(FunctionNode)):
    """The metaclass: nodes of mpchain's functions count as instances of Chainer's classes."""

    def __instancecheck__(cls, instance):
        if super().__instancecheck__(instance):
            return True
        made = class_of(instance) if isinstance(instance, FunctionNode) else None
        return made is not None and issubclass(made, cls)


class ChainerFunction(FunctionNode, metaclass=_Kind):
    """Base of Chainer's function classes."""

    _line: Any = None
    _node: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = self._line.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self._arguments = dict(bound.arguments)
        vars(self).update(self._arguments)

    @property
    def label(self) -> str:
        """The function's label, which graphs and hooks show."""
        name = type(self).__name__
        if name in _LOWER:
            return name.lower()
        value = self.__dict__.get("value")
        is_negative = is_real(value) and value < 0
        return _LABELS.get(name, name).format(value=f"({value})" if is_negative else value)

    @property
    def _impl_name(self):
        return type(self).__name__

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            argument, i = _PARTS[name].split()
            value = self.__dict__.get(argument)
            # Pooling accepts stride=None, which means ksize.
            value = self.__dict__.get("ksize") if value is None else value
            if value is not None:
                return value if np.isscalar(value) else value[int(i)]
        if self._node is not None and not name.startswith("__"):
            return getattr(self._node, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def apply(self, inputs: Sequence[Input]) -> tuple[Variable, ...]:
        """Applies the function to Variables or arrays; returns the outputs as a tuple."""
        line = self._line
        if line.function is None:
            raise NotImplementedError(
                f"{line.name}: mpchain computes this by functions only; see mpchain.functions"
            )
        inputs = [as_variable(x) for x in inputs]
        given = {"*": list(inputs), "[x]": [list(inputs)]}
        given |= {f"x{i}": [x] for i, x in enumerate(inputs)}
        given |= {name: [value] for name, value in self._arguments.items()}
        positional = [value for place in line.places for value in given[place]]
        named = {k: self._arguments[name] for name, k in line.keywords.items()}
        outputs = _function(line.function)(*positional, **named)
        outputs = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
        self.inputs = tuple(x.node for x in inputs)
        self.outputs = tuple(weakref.ref(y.node) for y in outputs)
        return outputs

    @property
    def local_function_hooks(self) -> dict[str, Any]:
        """The hooks of the node that this object describes, which see only this function."""
        return (
            self.__dict__.get("_hooks", {})
            if self._node is None
            else (self._node.local_function_hooks)
        )

    @local_function_hooks.setter
    def local_function_hooks(self, hooks: dict[str, Any]) -> None:
        if self._node is None:
            self._hooks = hooks
        else:
            self._node.local_function_hooks = hooks

    def get_retained_inputs(self) -> tuple[Variable, ...]:
        """Returns the input Variables; they have arrays if hooks or the program keep the arrays."""
        return tuple([x.get_variable() for x in self.inputs])

    def forward(self, inputs: object) -> tuple[Any, ...]:
        """Computes the output arrays from the input arrays."""
        with no_backprop_mode():
            return tuple(y.array for y in self.apply(inputs))


def _function(name):
    found = _EXTRA.get(name) or getattr(functions, name, None)
    return found or getattr(importlib.import_module("mpchain.distributed.functions"), name)


@functools.cache
def find(module: str, name: str) -> type | None:
    """Returns the class of that name in a module of Chainer's functions, or None."""
    if name not in layout().get(module, (False, ()))[1] or not name[0].isupper():
        return None
    line = _table().get(name)
    if line is None:
        taken = {f for line in _table().values() for f in (line.function, *line.others)}
        named = [name.lower(), module.rpartition(".")[2]]
        named = [n for n in named if hasattr(functions, n) and n not in taken]
        if not named or any(word in name for word in ("Grad", "Kernel", "Impl", "_")):
            return None
        line = _Line(name, inspect.Signature(), named[0], ("*",), {}, ())
    return _Kind(name, (ChainerFunction,), {"_line": line, "__module__": module})


@functools.cache
def _classes():
    """Returns a dict from names of functions to classes."""
    found = {}
    for module, (_, names) in layout().items():
        if module.startswith("chainer.functions."):
            for cls in filter(None, (find(module, name) for name in names)):
                for function in (cls._line.function, *cls._line.others):
                    found.setdefault(function, cls)
    return found


def class_of(node: FunctionNode) -> type | None:
    """Returns Chainer's class for a node of mpchain, or None."""
    if issubclass(type(node), ChainerFunction):
        return type(node)
    call = node.__dict__.get("_call")
    if call is not None:
        return _classes()[call[0]]
    if node.label in _classes() and node.label not in _OF_NODES:
        return _classes()[node.label]  # the node belongs to a function that another function called
    name = _OF_NODES.get(node.label)
    modules = ("math.basic_math", "math.matmul")
    modules += ("array.get_item", "array.reshape", "array.transpose")
    modules = [f"chainer.functions.{module}" for module in modules]
    return next(filter(None, (find(m, name) for m in modules)), None) if name else None


def describe(node: FunctionNode) -> FunctionNode:
    """Returns an object of Chainer's class that describes the node, or the node if Chainer has no
    class for it."""
    cls = None if issubclass(type(node), ChainerFunction) else class_of(node)
    if cls is None:
        return node
    made = node.__dict__.get("_description", lambda: None)()
    if made is not None and made.inputs is not None:
        return made
    if made is None:
        made = object.__new__(cls)
        vars(node)["_description"] = weakref.ref(made)
    made._node, made.inputs, made.outputs = node, node.inputs, node.outputs
    call = node.__dict__.get("_call")
    if call is None:
        parameters = cls._line.signature.parameters
        made.__dict__.update({p.name: p.default for p in parameters.values()})
        constants = getattr(node, "constants", ()) or (None,)
        made.__dict__.update(zip(list(parameters) or ["value"], constants))
        if node.label == "divide_by_constant":
            made.value = 1 / made.value
        elif node.label == "cube":
            made.value = 3
    else:
        _fill(made, *call)
    if made.inputs is not None:  # hooks also get functions before they are applied
        complete(made)
    return made


def _fill(made, name, args, kwargs):
    """Sets the arguments and inputs of a described call."""
    attributes, inputs = _divide(type(made), name, args, kwargs)
    for argument, value in attributes.items():
        made.__dict__[argument] = _node_of(value).data if isinstance(value, _NOTED) else value
    made.inputs = tuple([_node_of(x) for x in inputs if isinstance(x, _NOTED)])
    if name == "depthwise_convolution_2d":
        x, W, *others = made.inputs
        multiplier, made.groups, *ksize = W.shape
        W = _made_of(W, "transpose", "Transpose", (1, 0, 2, 3), (made.groups, multiplier, *ksize))
        shape = (made.groups * multiplier, 1, *ksize)
        made.inputs = (x, _made_of(W, "reshape", "Reshape", shape, shape), *others)


def _divide(cls, name, args, kwargs):
    """Splits a call's arguments into attributes of Chainer's class and inputs."""
    bound = inspect.signature(_originals[name]).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    attributes = {"keywords_of_call": given.pop("keywords", {})}
    for argument, parameter in cls._line.signature.parameters.items():
        value = given.pop(cls._line.keywords.get(argument, argument), parameter.default)
        if value is not inspect.Parameter.empty:
            attributes[argument] = value
    return attributes, list(_flat(given.values()))


class _Given:
    """Holds an array argument of a call, or only its shape and dtype."""

    def __init__(self, array: Array, is_kept: bool) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._array = array if is_kept else None

    @functools.cached_property
    def node(self) -> VariableNode:
        """Chainer's node for the array, which needs no gradient."""
        array = np.empty(0, self.dtype) if self._array is None else self._array
        variable = Variable(array, requires_grad=False)
        if self._array is None:
            variable.node.shape = self.shape
        else:
            variable.node.retain_data()
            self._variable = variable  # exporters read the node's variable
        return variable.node


_NOTED = (Variable, VariableNode, _Given)


def _node_of(x):
    return x if isinstance(x, VariableNode) else x.node


def _made_of(x, module, name, argument, shape):
    """Applies a function with one further argument to a node; returns the node of the result."""
    make: Any = find(f"chainer.functions.array.{module}", name)
    made = make(argument)
    y = VariableNode(Variable(np.empty(0, x.dtype)))
    y.shape, y.creator_node = shape, made
    made.inputs, made.outputs = (x,), (weakref.ref(y),)
    return y


class _ShownCreator:
    """The attribute ``creator_node``: mpchain gets its own node, others get Chainer's function."""

    def __get__(self, node: Any, owner: Any = None) -> Any:
        if node is None:
            return None  # The attribute of the class itself is None.
        creator = node.__dict__.get("creator_node")
        if creator is None or sys._getframe(1).f_globals.get("__name__", "").startswith("mpchain."):
            return creator
        return creator.shown()

    def __set__(self, node: Any, creator: Any) -> None:
        described = issubclass(type(creator), ChainerFunction) and creator._node
        node.__dict__["creator_node"] = described or creator


def _shown_creator_of_variable(self):
    node = self._node
    creator = None if node is None else node.__dict__.get("creator_node")
    if creator is None or sys._getframe(1).f_globals.get("__name__", "").startswith("mpchain."):
        return creator
    return creator.shown()


def _flat(args):
    for a in args:
        yield from _flat(a) if isinstance(a, (tuple, list)) else (a,)


# While compat is installed, public functions record their name on the node of their result.

_originals: dict[str, Any] = {}


def _light(value, is_kept):
    """Returns the form in which a call's argument is kept: nodes for variables, :class:`_Given` for
    arrays."""
    if isinstance(value, Variable):
        return value.node
    if isinstance(value, (tuple, list)):
        return type(value)([_light(v, is_kept) for v in value])
    if isinstance(value, dict):
        return {key: _light(v, is_kept) for key, v in value.items()}
    if hasattr(value, "dtype") and getattr(value, "ndim", 0):
        return _Given(value, is_kept)
    return value


def _observed(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if kwargs:
            refuse_removed(name, function, kwargs)
        hooks = [x for x in config.function_hooks.values() if not isinstance(x, Observer)]
        if hooks:
            return _with_hooks(name, function, args, kwargs, hooks)
        outputs = function(*args, **kwargs)
        _note(outputs, name, args, kwargs)
        return outputs

    return call


def _note(outputs, name, args, kwargs):
    given = [x for x in _flat((args, tuple(kwargs.values()))) if isinstance(x, Variable)]
    for y in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        node = y.creator_node if isinstance(y, Variable) else None
        if node is not None and not any(y is x for x in given):
            # Arrays are kept if Chainer's function retains them, or if a link hook may need them.
            is_kept = bool(config.link_hooks) or keeps_inputs(_classes()[name].__name__)
            call = name, _light(args, is_kept), _light(kwargs, is_kept)
            if node.__dict__.setdefault("_call", call)[0] == name:
                _hide_parts(node, {x.node for x in given})


def _hide_parts(function, given):
    """Marks the inner nodes of a call, so that hooks get a single function of Chainer."""
    stack = [x.creator_node for x in function.inputs if x not in given]
    while stack:
        part = stack.pop()
        if part is not None and part.__dict__.keys().isdisjoint(("_call", "_is_part")):
            part._is_part = True
            stack += [x.creator_node for x in part.inputs if x not in given]


def _with_hooks(name, function, args, kwargs, hooks):
    """Calls a function; hooks get a single function of Chainer, observers get mpchain's nodes."""
    cls = _classes()[name]
    shown = cls.__new__(cls)
    attributes, inputs = _divide(cls, name, args, kwargs)
    shown.__dict__.update(attributes)
    inputs = [x for x in inputs if hasattr(x, "dtype")]
    arrays = tuple([x.array if isinstance(x, Variable) else x for x in inputs])
    for hook in hooks:
        hook.forward_preprocess(shown, arrays)
    observers = {n: x for n, x in config.function_hooks.items() if isinstance(x, Observer)}
    with using_config("function_hooks", observers):
        outputs = function(*args, **kwargs)
    _note(outputs, name, args, kwargs)
    for y in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if isinstance(y, Variable) and y.creator_node is not None:
            shown._node, shown.outputs = y.creator_node, y.creator_node.outputs
            vars(y.creator_node)["_hook_data"] = retained(cls.__name__, arrays)
    shown.inputs = tuple([x.node for x in inputs if isinstance(x, Variable)])
    for hook in hooks:
        hook.forward_postprocess(shown, arrays)
    return outputs


def _tell_hooks(self, step, in_data):
    """Passes a function of Chainer to hooks instead of a node; observers get the node."""
    shown = describe(self)
    for hook in [*config.function_hooks.values(), *self.local_function_hooks.values()]:
        getattr(hook, step)(self if isinstance(hook, Observer) else shown, in_data)
    if shown is not self and step == "forward_postprocess":
        self._hook_data = retained(type(shown).__name__, in_data)


def _shown_to_hooks(self):
    if self.__dict__.get("_is_part"):
        return None
    shown = self.shown()
    kept = self.__dict__.get("_hook_data")
    if kept is None and shown is self:
        arrays = dict(zip(self._inputs_to_retain, self._retained_inputs))
        kept = tuple([arrays.get(i) for i in range(len(self.inputs))])
    elif kept is None:
        kept = retained(type(shown).__name__, [x.data for x in shown.inputs])
    return shown, kept


def _linear_as_chainer(linear):
    """Returns ``linear`` that applies Chainer's functions to inputs of more than two axes: Reshape,
    LinearFunction and, if there are several batch axes, another Reshape."""

    @functools.wraps(linear)
    def call(x, W, b=None, n_batch_axes=1):
        if not 1 <= n_batch_axes < getattr(x, "ndim", 0) or x.ndim == 2:
            return linear(x, W, b, n_batch_axes)
        batch, rest = x.shape[:n_batch_axes], x.shape[n_batch_axes:]
        y = linear(functions.reshape(x, (math.prod(batch), math.prod(rest))), W, b)
        return y if n_batch_axes == 1 else functions.reshape(y, batch + y.shape[1:])

    return call


def _warning_of_one_sample(normalize):
    """Returns ``batch_normalization`` with Chainer's warning about statistics of one element."""

    @functools.wraps(normalize)
    def call(x, gamma, *args, **kwargs):
        if 0 < getattr(x, "size", 0) == getattr(gamma, "size", 0):
            warnings.warn(
                "A batch with no more than one sample has been given to F.batch_normalization, "
                "whose output is then beta: evaluate with chainer.config.train = False, and train "
                "by an iterator that repeats",
                stacklevel=levels_to_user(),
            )
        return normalize(x, gamma, *args, **kwargs)

    return call


def _along_axis_as_chainer(function):
    """Returns ``scale`` or ``bias`` that broadcasts ``y`` in a separate node, as Chainer does.

    If x is an array, which Chainer treats as a constant, it is cast to the dtype of ``y``.
    """

    @functools.wraps(function)
    def call(x, y, axis=1):
        if not isinstance(x, Variable) and is_floating(x.dtype, y.dtype):
            x = x.astype(y.dtype, copy=False)
        if axis >= 0 and y.shape == x.shape[axis : axis + y.ndim] != x.shape:
            after = x.ndim - axis - y.ndim
            y = functions.reshape(y, (1,) * axis + y.shape + (1,) * after)
            y, axis = functions.broadcast_to(y, x.shape), 0
        return function(x, y, axis)

    return call


def install() -> None:
    """Makes creators, graphs and hooks show Chainer's classes."""
    if _originals:
        return
    for name in _classes():
        if name and name not in _EXTRA and hasattr(functions, name):
            _originals[name] = getattr(functions, name)
    replaced = {name: _observed(name, as_chainer(name, f)) for name, f in _originals.items()}
    replaced["linear"] = _linear_as_chainer(replaced["linear"])
    replaced["batch_normalization"] = _warning_of_one_sample(replaced["batch_normalization"])
    for name in ("scale", "bias"):
        _originals[name] = getattr(functions, name)
        replaced[name] = _along_axis_as_chainer(as_chainer(name, _originals[name]))
    _replace({id(f): replaced[name] for name, f in _originals.items()})
    node_class: Any = FunctionNode
    node_class.shown, node_class.shown_to_hooks = describe, _shown_to_hooks
    node_class.tell_hooks = _tell_hooks
    variable_node_class: Any = VariableNode
    variable_node_class.creator_node = variable_node_class._creator_node = _ShownCreator()
    Variable.creator_node = _creator_node.getter(_shown_creator_of_variable)


def uninstall() -> None:
    """Undoes :func:`install`."""
    if _originals:
        _replace({id(getattr(functions, name)): f for name, f in _originals.items()})
        _originals.clear()
        FunctionNode.shown, FunctionNode.shown_to_hooks, FunctionNode.tell_hooks = _shown
        VariableNode.creator_node = None
        delattr(VariableNode, "_creator_node")
        Variable.creator_node = _creator_node


_shown = FunctionNode.shown, FunctionNode.shown_to_hooks, FunctionNode.tell_hooks
_creator_node: Any = Variable.creator_node


def _replace(new):
    """Replaces functions in ``mpchain.functions`` itself, and in modules of links."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name == "mpchain.functions" or name.startswith(
            ("mpchain.links", "mpchain.distributed.links")
        ):
            for key, value in list(vars(module).items()):
                if id(value) in new:
                    setattr(module, key, new[id(value)])
                elif isinstance(value, type) and value.__module__ == name:
                    _replace_in_class(value, new)


def _replace_in_class(cls, new):
    """Replaces functions that are static methods, or default arguments of methods."""
    members: dict[str, Any] = dict(vars(cls))
    for key, value in members.items():
        if isinstance(value, staticmethod) and id(value.__func__) in new:
            setattr(cls, key, staticmethod(new[id(value.__func__)]))
        elif defaults := getattr(value, "__defaults__", None):
            function: Any = value
            function.__defaults__ = tuple(new.get(id(default), default) for default in defaults)
