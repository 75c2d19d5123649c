"""Declaring differentiable functions.

A declaration is a body, which computes the output from arrays, and one derivative per array argument.
Both are plain array code: NumPy's own dispatch lets the same text read NumPy arrays, CuPy arrays,
Variables (whence every order of derivative) and the symbols from which fused GPU kernels are written.

A derivative's first parameter is the gradient of the output; the names of the others say what it needs:

====================  ======================================================================
name                  value
====================  ======================================================================
an array argument     that argument, which is therefore kept for backward
``y`` (``ys``)        the output (the outputs of a function with several), kept likewise
``x_shape``           the shape of the array argument ``x`` (or ``x_dtype``); nothing is kept
``aux``               what the body returned beside the output; it is not differentiated
another argument      that argument, a constant
====================  ======================================================================
"""

import functools
import inspect
import weakref

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.configuration import config
from mpchain.function_node import FunctionNode
from mpchain.functions import symbol
from mpchain.utils.type_check import InvalidType
from mpchain.variable import Variable, VariableNode, as_array, as_variable

_new = object.__new__
_reference = weakref.ref

registry = {}
"""Every declaration by name."""


class Declaration:
    """A differentiable function, declared once.

    Args:
        body: takes the array arguments, then constants; returns an array, or a tuple of arrays if a
            derivative asks for ``gys``, or (that, aux) if one asks for ``aux``.
        derivatives: a function (or None: not differentiable) for each array argument.
        joint: instead, one function for all, which returns a sequence of gradients.
        n_arrays (int): with ``joint``, the number of array arguments; None: the first argument is a
            sequence of arrays, the only one.
        is_elementwise (bool): arguments broadcast; body and derivatives can be fused.
        any_dtype (bool): integers are accepted too.
    """

    def __init__(
        self, body, derivatives, joint=None, n_arrays=None, is_elementwise=False, any_dtype=True
    ):
        self.body = body
        self.name = body.__name__.lstrip("_")
        self.derivatives = derivatives
        self.is_elementwise = is_elementwise
        self.any_dtype = any_dtype
        self.takes_sequence = joint is not None and n_arrays is None
        n_arrays = n_arrays or len(derivatives) or 1
        names = _parameters(body)
        self.array_names, self.constant_names = names[:n_arrays], names[n_arrays:]
        self.joint = self._bind(joint, joint)
        self.pulls = [self._bind(d, d) for d in derivatives]
        asked = {name for d in (joint, *derivatives) for name in _parameters(d)}
        self.has_aux = "aux" in asked
        self.has_many_outputs = "gys" in asked
        self.joint_parameters = _parameters(joint)
        self._keepers, self._kernels = {}, {}

    def _bind(self, derivative, function):
        """Returns ``function`` as one of (gradient, kept values, constants, input nodes).

        It passes what the parameters of ``derivative`` ask for: the same each time, so written out once.
        """
        if derivative is None:
            return lambda g, kept, constants, nodes: None
        arguments = ", ".join(["g", *map(self._source, _parameters(derivative)[1:])])
        return eval(f"lambda g, kept, constants, nodes: f({arguments})", {"f": function})

    def _source(self, name):
        arrays = self.array_names
        if self._means_output(name):
            return "kept[-1]"
        if name == "aux":
            return "kept[-2]"
        if name in self.constant_names:
            return f"constants[{self.constant_names.index(name)}]"
        owner, _, attribute = (name, "", "") if name in arrays else name.rpartition("_")
        if owner not in arrays or attribute not in ("", "shape", "dtype"):
            raise TypeError(f"declaration of {self.name}: a derivative asks for {name!r}")
        if self.takes_sequence:
            return f"[node.{attribute} for node in nodes]" if attribute else "kept[:-2]"
        i = arrays.index(owner)
        return f"nodes[{i}].{attribute}" if attribute else f"kept[{i}]"

    def _means_output(self, name):
        return name in ("y", "ys") and name not in self.array_names

    def keeper(self, targets):
        """Returns a function of (arrays, aux, outputs) that lists what the derivatives of ``targets`` need.

        The list has a place for every input, None where that is not needed, and ends with aux and output.
        """
        if targets not in self._keepers:
            asked = set(self.joint_parameters)
            if not self.joint_parameters:
                asked = {name for i in targets for name in _parameters(self.derivatives[i])[1:]}
            output = "outputs" if self.has_many_outputs else "outputs[0]"
            output = output if any(map(self._means_output, asked)) else "None"
            names = self.array_names
            if self.takes_sequence:
                inputs = "*arrays" if names[0] in asked else "*[None] * len(arrays)"
            else:
                kept = [f"arrays[{i}]" if n in asked else "None" for i, n in enumerate(names)]
                inputs = ", ".join(kept)
            code = f"lambda arrays, aux, outputs: [{inputs}, aux, {output}]"
            self._keepers[targets] = eval(code)
        return self._keepers[targets]

    def apply(self, inputs, constants=()):
        """Applies the function to Variables or arrays; returns a Variable, or a tuple of them."""
        node = _new(Application)
        node.declaration = self
        node.constants = constants
        if config.debug or config.function_hooks or self.has_many_outputs:
            outputs = node.apply(inputs)
            return outputs if self.has_many_outputs else outputs[0]
        # The common case of FunctionNode.apply and connect, without the steps that it does not need:
        # these lines decide what an operation on small arrays costs.
        variables, arrays, targets = [], [], ()
        for x in inputs:
            if not isinstance(x, Variable):
                x = as_variable(x)
            if x._requires_grad:
                targets += (len(variables),)
            variables.append(x)
            arrays.append(x._array)
        try:
            array = self.compute(arrays, constants)
        except Exception:
            node.check_inputs(variables)
            raise
        if self.has_aux:
            array, node._aux = array
        if array.__class__ is not np.ndarray:
            array = as_array(array)
        y = _new(Variable)
        y._array = array
        if not targets:
            y._requires_grad = False
        elif config.enable_backprop:
            nodes, rank = [], 0
            for x in variables:
                input_node = x._node or x.node
                nodes.append(input_node)
                creator = input_node.creator_node
                if creator is not None and creator.rank >= rank:
                    rank = creator.rank + 1
            node.inputs = nodes
            node.rank = rank
            node.differentiable_inputs = targets
            y._node = output_node = VariableNode(y)
            output_node.creator_node = node
            node.outputs = (_reference(output_node),)
            keeper = self._keepers.get(targets) or self.keeper(targets)
            node._kept = keeper(arrays, node._aux, (array,))
        return y

    def on(self, *arguments):
        """Computes on what it is given: Variables if an array argument is one, else arrays.

        Derivatives, which are read with both, call declared functions through this.
        """
        n = len(self.array_names)
        inputs, constants = arguments[:n], arguments[n:]
        if self.takes_sequence:
            (inputs,) = inputs
        for x in inputs:
            if isinstance(x, Variable):
                return self.apply(inputs, constants)
        result = self.body(*arguments)
        return result[0] if self.has_aux else result

    def compute(self, arrays, constants):
        """Runs the body on arrays, as one fused kernel where that pays: elementwise on a GPU."""
        if self.takes_sequence:
            return self.body(arrays, *constants)
        if not self.is_elementwise:
            return self.body(*arrays, *constants)
        if not self.any_dtype:
            for x in arrays:
                if x.dtype.kind != "f":
                    raise InvalidType(
                        f"{self.name}: inputs must be floating point: {self._told(arrays)}"
                    )
        try:
            if arrays[0].__class__ is not np.ndarray and _are_alike(arrays):
                kernel = self._kernel(None, self.body)
                if kernel is not None:
                    return kernel(*arrays, *constants)
            return self.body(*arrays, *constants)
        except ValueError as error:
            raise InvalidType(f"{self.name}: {error}: {self._told(arrays)}") from None

    def _told(self, arrays):
        names = self.array_names
        return ", ".join(f"{n}: {x.dtype}{list(x.shape)}" for n, x in zip(names, arrays))

    def pull(self, index, g):
        """Returns the derivative by array argument ``index`` as a function of what :meth:`_bind` says.

        It is a fused kernel where that pays: elementwise, for a gradient ``g`` on a GPU.
        """
        if self.is_elementwise and is_gpu_array(g) and self.derivatives[index] is not None:
            kernel = self._kernel(index, self.derivatives[index])
            if kernel is not None:
                return self._bind(self.derivatives[index], kernel)
        return self.pulls[index]

    def _kernel(self, index, formula):
        if index not in self._kernels:
            part = "forward" if index is None else f"derivative_{index}"
            self._kernels[index] = symbol.kernel(f"{self.name}_{part}", formula)
        return self._kernels[index]


@functools.cache
def _parameters(function):
    return () if function is None else tuple(inspect.signature(function).parameters)


def _are_alike(arrays):
    """Whether one kernel type fits: CuPy arrays of one dtype."""
    return all(is_gpu_array(x) and x.dtype == arrays[0].dtype for x in arrays)


class Application(FunctionNode):
    """One application of a declared function: the only node class that declarations need."""

    returns_fresh_gradients = True
    _aux = None

    @property
    def label(self):
        return self.declaration.name

    @property
    def is_elementwise(self):
        """Whether the function works on each element alone."""
        return self.declaration.is_elementwise

    def forward(self, inputs):
        declaration = self.declaration
        result = declaration.compute(inputs, self.constants)
        if declaration.has_aux:
            result, self._aux = result
        return result if declaration.has_many_outputs else (result,)

    def keep(self, in_data, targets, outputs):
        self._kept = self.declaration.keeper(targets)(in_data, self._aux, outputs)

    def pull_arrays(self, targets, gys):
        return self._pull(targets, gys, self._kept)

    def pull_variables(self, targets, gys):
        *inputs, aux, output = self._kept
        kept = [None if x is None else self.input_variable(i, x) for i, x in enumerate(inputs)]
        if type(output) is tuple:
            output = tuple(self.output_variable(i, y) for i, y in enumerate(output))
        elif output is not None:
            output = self.output_variable(0, output)
        return self._pull(targets, gys, [*kept, aux, output])

    def _pull(self, targets, gys, kept):
        declaration, constants, nodes = self.declaration, self.constants, self.inputs
        g = gys if declaration.has_many_outputs else gys[0]
        if declaration.joint_parameters:
            gxs = declaration.joint(g, kept, constants, nodes)
            return [_cast_to(gxs[i], nodes[i]) for i in targets]
        fit = _fit if declaration.is_elementwise else _cast_to
        pulls = declaration.pulls
        if g.__class__ is not np.ndarray:
            pulls = [declaration.pull(i, g) for i in range(len(pulls))]
        gxs = []
        for i in targets:
            node = nodes[i]
            gx = pulls[i](g, kept, constants, nodes)
            if gx.__class__ is not np.ndarray or gx.dtype != node.dtype or gx.shape != node.shape:
                gx = fit(gx, node)
            gxs.append(gx)
        return gxs


def _fit(gx, node):
    """Reduces the gradient of an argument that was broadcast to the argument's shape and dtype."""
    if gx is not None and gx.shape != node.shape:
        gx = registry["sum_to"].on(gx, node.shape)
    return _cast_to(gx, node)


def _cast_to(gx, node):
    """Gives the gradient of an argument the argument's dtype."""
    if gx is not None and gx.dtype != node.dtype:
        gx = registry["cast"].on(gx, node.dtype)
    return gx


def elementwise(*derivatives, any_dtype=False):
    """Decorator: declares an elementwise function by its derivatives, one per array argument.

    Example:
        >>> @elementwise(lambda gy, y: gy * y * (1 - y))
        ... def sigmoid(x):
        ...     return np.tanh(x * 0.5) * 0.5 + 0.5
    """
    return lambda body: _publish(
        Declaration(body, derivatives, is_elementwise=True, any_dtype=any_dtype)
    )


def differentiable(*derivatives, joint=None, n_arrays=None):
    """Decorator: declares any other function by its derivatives, or by one for all array arguments."""
    return lambda body: _publish(Declaration(body, derivatives, joint, n_arrays))


def _publish(declaration):
    """Makes the public function: the body's signature, applied to Variables or arrays."""
    body = declaration.body
    registry[declaration.name] = declaration
    parameters = inspect.signature(body).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    listed = [
        f"{p.name}=defaults[{p.name!r}]" if p.name in defaults else p.name for p in parameters
    ]
    arrays = declaration.array_names
    inputs = arrays[0] if declaration.takes_sequence else _tuple(arrays)
    code = f"lambda {', '.join(listed)}: apply({inputs}, {_tuple(declaration.constant_names)})"
    function = eval(code, {"apply": declaration.apply, "defaults": defaults})
    functools.update_wrapper(function, body)
    function.declaration = declaration
    function.on = declaration.on
    return function


def _tuple(names):
    return "(" + "".join(name + ", " for name in names) + ")"
