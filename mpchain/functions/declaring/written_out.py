"""The fast path of declared functions: Python text that is generated for each function.

The generated text determines the cost of operations on small arrays. The text is specialized for
the number of arguments and for the values that the derivatives need, so that nothing constant is
tested at run time. Unusual cases take the generic path through :class:`FunctionNode`. In
measurements, closures in place of text were 6 to 12 % slower in forward, and up to 5 % slower in
forward and backward together.

Each ``declaration`` is a :class:`~mpchain.functions.declaring.declaration.Declaration`, whose file
imports this one.
"""

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.backprop import marked, pass_on
from mpchain.configuration import config
from mpchain.formulas import in_place
from mpchain.formulas.text import compile_text, parameters_of
from mpchain.from_pytorch import OF_FUNCTIONS, check_options
from mpchain.observers import show_computed
from mpchain.utils.type_check import explain_arguments
from mpchain.variable import Variable, VariableNode, as_array, as_variable

_ABSENT = object()  # a missing argument has this value
_FIRST_CALL = compile_text(
    "first call",
    """
def first_call(*args, **kwargs):
    _check(kwargs)
    _write()
    return _function(*args, **kwargs)
""",
    {},
).__code__

_CALL = """
def call({parameters}):
    {refusals}
    {first}
    try:
        {conversions}
    except TypeError as _error:
        _explain(_error, _name, _declared_body, ({given}), {{}})
        raise
    if {unusual} or _config.debug:
        return _apply(({arrays}), ({constants}))
    {before}
    try:
        _array{aux} = _body({arguments})
    except _LinAlgError:
        raise
    except (TypeError, ValueError) as _error:
        raise _refusal(_error, ({inputs}), ({constants})) from None
    if _array.__class__ is not _ndarray:
        _array = _as_array(_array)
    {after}
    _y = _new(_Variable)
    _y._array = _array
    if not ({requires_any}):
        _y._requires_grad = False
        if _marked.exist:
            _pass_on(({arrays}), (_y,))
    elif _config.enable_backprop:
        {node}
        _node.inputs = ({nodes})
        {targets}
        _y._node = _y_node = _new(_VariableNode)
        _y_node._variable = _reference(_y)
        _y_node.shape, _y_node.dtype = _array.shape, _array.dtype
        _y_node.creator_node = _node
        _node.outputs = (_reference(_y_node),)
    return _y
"""

# For each kind of generated call (the usual call, and the call with hooks), these are the first
# lines, the lines before and after the body, and the lines that create the node.
_LINES = {
    "without hooks": {
        "first": "if _config.function_hooks:\n        return _with_hooks({same})",
        "before": "",
        "after": "",
        "node": "_node = _Node()",
    },
    "with hooks": {
        "first": "",
        "before": "_node, _data = _Node(), ({inputs})\n    _node.constants = ({constants})\n"
        "    _node.tell_hooks('forward_preprocess', _data)",
        "after": "_node.tell_hooks('forward_postprocess', _data)\n"
        "    _show_computed(_node, (_array,))",
        "node": "",
    },
}

_PULL = """
def pull(self, targets, gys):
    g = gys[0]
    {guard}
    kept, constants, nodes = self._kept, self.constants, self.inputs
    {lines}
    return {result}
"""

_INPUT = """
{name} = nodes[{i}]._variable()
if {name} is None or {name}._array is not {kept}:
    {name} = nodes[{i}].variable_with({kept})
"""
_OUTPUT = """
{name} = self.outputs[0]()
{name} = {name} and {name}._variable()
if {name} is None or {name}._array is not {kept}:
    {name} = self.output_variable(0, {kept})
"""


def call(declaration: Any) -> Callable:
    """Returns the public function of a declaration, which has the signature of the declaration's
    body.

    The function's code is generated when it is called for the first time.

    Example:
        >>> call(F.relu.declaration)(np.array([-1.0, 2.0])).array
        array([0., 2.])
    """

    def written(kind):
        return compile_text(declaration.name, _text(declaration, _LINES[kind]), namespace)

    def write():
        namespace.update(_namespace(declaration), _with_hooks=write_with_hooks)
        new = written("without hooks")
        function.__code__, function.__defaults__ = new.__code__, new.__defaults__
        function.__kwdefaults__ = new.__kwdefaults__

    def write_with_hooks(*arguments):
        namespace["_with_hooks"] = written("with hooks")
        return namespace["_with_hooks"](*arguments)

    # A function cannot get other globals later, so the generated code will use this dictionary.
    check = functools.partial(check_options, declaration.name, declaration.body)
    namespace = {"_write": write, "_check": check}
    function = namespace["_function"] = types.FunctionType(_FIRST_CALL, namespace)
    return function


def _namespace(declaration):
    parameters = inspect.signature(declaration.body).parameters.values()
    return {
        "_Node": declaration.node_class,
        "_Variable": Variable,
        "_VariableNode": VariableNode,
        "_absent": _ABSENT,
        "_apply": declaration.apply,
        "_as_array": as_array,
        "_as_variable": as_variable,
        "_body": _body(declaration),
        "_config": config,
        "_declared_body": declaration.body,
        "_explain": explain_arguments,
        "_float32": np.dtype(np.float32),
        "_marked": marked,
        "_name": declaration.name,
        "_pass_on": pass_on,
        "_defaults": {p.name: p.default for p in parameters},
        "_ndarray": np.ndarray,
        "_new": object.__new__,
        "_reference": weakref.ref,
        "_refusal": declaration.refusal,
        "_show_computed": show_computed,
        "_LinAlgError": np.linalg.LinAlgError,
    }


def _body(declaration):
    body, arrays = declaration.body, declaration.array_names
    if not declaration.is_elementwise:
        return body
    full = arrays if len(arrays) == 1 else ()
    names = *arrays, *declaration.constant_names
    return _program(body, names, len(arrays), full, declaration.loop(None))


def _derivative(declaration, index):
    derivative = declaration.derivatives[index]
    n_arrays = declaration.elementwise_arrays(derivative)
    if not n_arrays:
        return derivative
    names = parameters_of(derivative)
    lone = len(declaration.array_names) == 1
    # Inputs that the function broadcasts may be smaller than its output and the output's gradient.
    full = [n for n in names[:n_arrays] if lone or n not in declaration.array_names]
    return _program(derivative, names, n_arrays, full, declaration.loop(index))


def _program(formula, names, n_arrays, full, loop):
    sizes = (loop.least, loop.least_of_whole) if loop else ()
    return in_place.program(formula, names, n_arrays, full, loop, *sizes)


def _refusals(declaration):
    """Returns the names of PyTorch's arguments that the call refuses, and the lines of text that
    refuse them."""
    own = inspect.signature(declaration.body).parameters
    names = [name for name in ("dim", "keepdim") if OF_FUNCTIONS[name] in own and name not in own]
    lines = [f"if {name} is not _absent:\n        _check({{{name!r}: {name}}})" for name in names]
    return names, "\n    ".join(lines)


def _text(declaration, lines):
    parameters = inspect.signature(declaration.body).parameters.values()
    listed = ", ".join(
        p.name if p.default is p.empty else f"{p.name}=_defaults[{p.name!r}]" for p in parameters
    )
    refused, refusals = _refusals(declaration)
    if refused:
        listed += ", *, " + ", ".join(f"{name}=_absent" for name in refused)
    names = declaration.array_names
    constants = _join(declaration.constant_names)
    if declaration.takes_sequence or declaration.has_many_outputs:
        inputs = names[0] if declaration.takes_sequence else f"({_join(names)})"
        return f"def call({listed}):\n    {refusals}\n    return _apply({inputs}, ({constants}))"
    unusual = [f"_in_{x}.__class__ is not _ndarray" for x in names]
    # The check for float32 comes first, because it takes a quarter of the time of the other check.
    # The kind of bfloat16 is V.
    kinds = "== 'V'" if declaration.any_dtype else "!= 'f'"
    unusual += [f"(_in_{x}.dtype is not _float32 and _in_{x}.dtype.kind {kinds})" for x in names]
    inputs = _join(f"_in_{x}" for x in names)
    same = _join(p.name for p in parameters)
    fields = {"inputs": inputs, "constants": constants, "same": same}
    return _CALL.format(
        **{place: line.format(**fields) for place, line in lines.items()},
        parameters=listed,
        refusals=refusals,
        conversions="\n        ".join(map(_conversion, names)),
        given=_join(names),
        unusual=" or ".join(unusual),
        arrays=_join(names),
        inputs=inputs,
        constants=constants,
        aux=", _aux" if declaration.has_aux else "",
        arguments=inputs + constants,
        nodes=_join(f"{x}._node or {x}.node" for x in names),
        requires_any=" or ".join(f"{x}._requires_grad" for x in names),
        targets="\n        ".join(_targets(declaration)),
    )


def _join(names):
    return "".join(f"{name}, " for name in names)


def _conversion(x):
    return (
        f"if not isinstance({x}, _Variable):\n            {x} = _as_variable({x})\n"
        f"        _in_{x} = {x}._array"
    )


def _targets(declaration):
    """Returns the lines of text that record which inputs need gradients, and keep the values for
    derivatives."""
    names, constants = declaration.array_names, _join(declaration.constant_names)
    first = [f"_node.constants = ({constants})"] if constants else []
    if len(names) == 1:
        return [*first, _kept(declaration, False)]
    required = [f"{x}._requires_grad" for x in names]
    return [
        *first,
        f"if {' and '.join(required)}:",
        f"    {_kept(declaration, False)}",
        "else:",
        f"    _pairs = enumerate(({_join(required)}))",
        "    _node.differentiable_inputs = tuple([i for i, r in _pairs if r])",
        f"    {_kept(declaration, True)}",
    ]


def _kept(declaration, some):
    """Returns the text that keeps the values that derivatives need; with ``some``, only some inputs
    need gradients."""
    names = declaration.array_names
    values = []
    for name, value in [*zip(names, (f"_in_{x}" for x in names)), ("output", "_array")]:
        by = [x for i, x in enumerate(names) if name in declaration.kept_names((i,))]
        if some and 0 < len(by) < len(names):
            value += f" if {' or '.join(f'{x}._requires_grad' for x in by)} else None"
        values.append(value if by else "None")
    values.insert(-1, "_aux" if declaration.has_aux else "None")
    return f"_node._kept = ({_join(values)})"


def pull_arrays(declaration: object, pull_any: Callable, fit: Callable) -> Callable:
    """Returns the method with which a node of the declaration computes gradients as arrays.

    Args:
        declaration: a declaration with one derivative per array argument.
        pull_any: the method for unusual cases: gradients that are not NumPy arrays.
        fit: the function that converts a gradient to the shape and dtype of its input's node.

    Example:
        >>> y = F.exp(Variable(np.zeros(2)))
        >>> y.creator_node.pull_arrays((0,), [np.ones(2)])
        (array([1., 1.]),)
    """
    guard = "if g.__class__ is not ndarray: return pull_any(self, targets, gys)"
    known = {"ndarray": np.ndarray, "pull_any": pull_any}
    return _pull(declaration, known, fit, guard, _array_lines, _derivative)


def pull_variables(declaration: Any, fit: Callable) -> Callable:
    """Returns the method that computes gradients as Variables, with their graph.

    Example:
        >>> y = F.exp(Variable(np.zeros(2)))
        >>> y.creator_node.pull_variables((0,), [Variable(np.ones(2))])
        (variable([1., 1.]),)
    """
    return _pull(declaration, {}, fit, "", _variable_lines, type(declaration).recorded_derivative)


def _pull(declaration, namespace, fit, guard, lines_for, function_for):
    namespace["fit"] = fit
    lone = len(declaration.array_names) == 1
    lines = [] if lone else ["gxs = []"]
    for i, derivative in enumerate(declaration.derivatives):
        if derivative is None:
            own = ["gx = None"]
        else:
            namespace[f"f{i}"] = function_for(declaration, i)
            own = lines_for(declaration, i)
        if not lone:
            own = [f"if {i} in targets:", *("    " + line for line in [*own, "gxs.append(gx)"])]
        lines += own
    result = "(gx,)" if lone else "gxs"
    text = _PULL.format(guard=guard, lines="\n    ".join(lines), result=result)
    return compile_text(f"backward of {declaration.name}", text, namespace)


def _array_lines(declaration, i):
    asked = parameters_of(declaration.derivatives[i])[1:]
    return [
        f"gx = f{i}(g, {_join(map(declaration.source, asked))})",
        f"if gx.__class__ is not ndarray or gx.dtype is not {_unfit(declaration, i, 'gx')}:",
        f"    gx = fit(gx, nodes[{i}], {declaration.is_elementwise})",
    ]


def _variable_lines(declaration, i):
    lines, arguments = [], []
    for name in parameters_of(declaration.derivatives[i])[1:]:
        source = declaration.source(name)
        if name != "aux" and source.startswith("kept"):
            template = _OUTPUT if source == "kept[-1]" else _INPUT
            variable = f"v_{name}"
            index = declaration.array_names.index(name) if template is _INPUT else 0
            text = template.format(name=variable, i=index, kept=source)
            lines += text.strip().splitlines()
            source = variable
        arguments.append(source)
    return [
        *lines,
        f"gx = f{i}(g, {_join(arguments)})",
        f"if gx is not None and (gx._array.dtype is not {_unfit(declaration, i, 'gx._array')}):",
        f"    gx = fit(gx, nodes[{i}], {declaration.is_elementwise})",
    ]


def _unfit(declaration, i, array):
    # The only array argument of an elementwise function is not broadcast.
    broadcasts = declaration.is_elementwise and len(declaration.array_names) > 1
    shape = f" or {array}.shape != nodes[{i}].shape" if broadcasts else ""
    return f"nodes[{i}].dtype{shape}"
