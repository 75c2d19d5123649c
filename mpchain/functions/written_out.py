"""The hot path of declared functions, written out for each as Python text.

These lines decide what an operation on small arrays costs: with the arguments known, there is no
loop over them, and no question asked whose answer is always the same. Whatever is unusual, an error
to be explained included, goes the long way, through :class:`FunctionNode`.
"""

import inspect
import weakref

import numpy as np

from mpchain.configuration import config
from mpchain.variable import Variable, VariableNode, as_array, as_variable

_STUB = """
def _function(*args, **kwargs):
    _write()
    return _function(*args, **kwargs)
"""

_CALL = """
def call({parameters}):
    {conversions}
    if {unusual} or _config.debug or _config.function_hooks:
        return _apply(({arrays}), ({constants}))
    try:
        _array{aux} = _body({arguments})
    except Exception:
        return _apply(({arrays}), ({constants}))
    if _array.__class__ is not _ndarray:
        _array = _as_array(_array)
    _y = _new(_Variable)
    _y._array = _array
    if not ({requires_any}):
        _y._requires_grad = False
    elif _config.enable_backprop:
        _node = _new(_Node)
        _node.constants = ({constants})
        _node.inputs = ({nodes})
        {targets}
        _y._node = _y_node = _new(_VariableNode)
        _y_node._variable = _reference(_y)
        _y_node.shape, _y_node.dtype = _array.shape, _array.dtype
        _y_node.creator_node = _node
        _node.outputs = (_reference(_y_node),)
    return _y
"""

_PULL = """
def pull_arrays(self, targets, gys):
    g = gys[0]
    if g.__class__ is not ndarray:
        return pull_any(self, targets, gys)
    kept, constants, nodes = self._kept, self.constants, self.inputs
"""


def call(declaration):
    """Returns the function that a user calls, with the signature of the declaration's body.

    Its code is written when it is called for the first time.
    """
    namespace = {}

    def write():
        namespace.update(_namespace(declaration))
        exec(_text(declaration), namespace)
        written = namespace.pop("call")
        function.__code__, function.__defaults__ = written.__code__, written.__defaults__

    # A function keeps its globals for life: these are what the code to come will refer to.
    namespace["_write"] = write
    exec(_STUB, namespace)
    function = namespace["_function"]
    return function


def _namespace(declaration):
    parameters = inspect.signature(declaration.body).parameters.values()
    return {
        "_Node": declaration.node_class,
        "_Variable": Variable,
        "_VariableNode": VariableNode,
        "_apply": declaration.apply,
        "_as_array": as_array,
        "_as_variable": as_variable,
        "_body": declaration.body,
        "_config": config,
        "_defaults": {p.name: p.default for p in parameters},
        "_ndarray": np.ndarray,
        "_new": object.__new__,
        "_reference": weakref.ref,
    }


def _text(declaration):
    parameters = inspect.signature(declaration.body).parameters.values()
    listed = ", ".join(
        p.name if p.default is p.empty else f"{p.name}=_defaults[{p.name!r}]" for p in parameters
    )
    names = declaration.array_names
    constants = _join(declaration.constant_names)
    if declaration.takes_sequence or declaration.has_many_outputs:
        inputs = names[0] if declaration.takes_sequence else f"({_join(names)})"
        return f"def call({listed}):\n    return _apply({inputs}, ({constants}))"
    unusual = [f"_in_{x}.__class__ is not _ndarray" for x in names]
    if not declaration.any_dtype:
        unusual += [f"_in_{x}.dtype.kind != 'f'" for x in names]
    return _CALL.format(
        parameters=listed,
        conversions="\n    ".join(map(_conversion, names)),
        unusual=" or ".join(unusual),
        arrays=_join(names),
        constants=constants,
        aux=", _aux" if declaration.has_aux else "",
        arguments=_join(f"_in_{x}" for x in names) + constants,
        nodes=_join(f"{x}._node or {x}.node" for x in names),
        requires_any=" or ".join(f"{x}._requires_grad" for x in names),
        targets="\n        ".join(_targets(declaration)),
    )


def _join(names):
    return "".join(f"{name}, " for name in names)


def _conversion(x):
    return (
        f"if not isinstance({x}, _Variable):\n        {x} = _as_variable({x})\n"
        f"    _in_{x} = {x}._array"
    )


def _targets(declaration):
    """The lines that note which inputs need gradients, and keep what their derivatives need."""
    names = declaration.array_names
    everything = tuple(range(len(names)))
    kept = declaration.kept_names(everything)
    arrays = [f"_in_{x}" if x in kept else "None" for x in names]
    aux = "_aux" if declaration.has_aux else "None"
    output = "_array" if "output" in kept else "None"
    lines = [
        f"_node.differentiable_inputs = {everything}",
        f"_node._kept = [{_join(arrays)}{aux}, {output}]",
    ]
    if len(names) == 1:
        return lines
    data = _join(f"_in_{x}" for x in names)
    required = _join(f"{x}._requires_grad" for x in names)
    return [
        f"if {' and '.join(f'{x}._requires_grad' for x in names)}:",
        *("    " + line for line in lines),
        "else:",
        "    _node._aux = _aux" if declaration.has_aux else "    pass",
        f"    _some = tuple([i for i, r in enumerate(({required})) if r])",
        "    _node.differentiable_inputs = _some",
        f"    _node.keep(({data}), _some, (_array,))",
    ]


def pull_arrays(declaration, pull_any, fit):
    """Returns the method by which a node of the declaration computes gradients as arrays.

    Args:
        declaration: with a derivative per array argument.
        pull_any: the method for what is unusual: gradients that are no NumPy arrays.
        fit: what gives a gradient the shape and dtype of its input's node.
    """
    text = _PULL
    namespace = {"ndarray": np.ndarray, "fit": fit, "pull_any": pull_any}
    lone = len(declaration.array_names) == 1
    indent = "    " if lone else "        "
    text += "" if lone else "    gxs = []\n"
    for i, derivative in enumerate(declaration.derivatives):
        node = f"nodes[{i}]"
        text += "" if lone else f"    if {i} in targets:\n"
        if derivative is None:
            text += f"{indent}gx = None\n"
        else:
            namespace[f"f{i}"] = derivative
            asked = list(inspect.signature(derivative).parameters)[1:]
            arguments = _join(map(declaration.source, asked))
            # One argument of an elementwise function cannot have been broadcast.
            broadcasts = declaration.is_elementwise and not lone
            shape = f" or gx.shape != {node}.shape" if broadcasts else ""
            text += (
                f"{indent}gx = f{i}(g, {arguments})\n"
                f"{indent}if gx.__class__ is not ndarray or gx.dtype != {node}.dtype{shape}:\n"
                f"{indent}    gx = fit(gx, {node}, {declaration.is_elementwise})\n"
            )
        text += "" if lone else f"{indent}gxs.append(gx)\n"
    exec(text + f"    return {'(gx,)' if lone else 'gxs'}\n", namespace)
    return namespace["pull_arrays"]
