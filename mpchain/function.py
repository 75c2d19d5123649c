"""Old-style functions, which can be differentiated once and whose derivative is written on
arrays."""

import copy
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpchain.backends.cuda import is_gpu_array
from mpchain.configuration import config
from mpchain.function_node import FunctionNode, Gradients
from mpchain.typing import Array, Arrays, Input
from mpchain.utils.type_check import TypeInfoTuple
from mpchain.variable import Variable, VariableNode, as_array, as_variable

if TYPE_CHECKING:
    from mpchain.function_hook import FunctionHook


class Function:
    """A function that is differentiable once: its ``backward`` takes and returns arrays.

    Subclass it and define ``forward`` and ``backward`` (or ``forward_cpu``, ``forward_gpu``,
    ``backward_cpu``, ``backward_gpu``), each from tuples of arrays to a tuple of arrays. The inputs
    are kept for ``backward`` unless ``forward`` calls :meth:`retain_inputs`. Write new functions as
    a :class:`FunctionNode`, which can be differentiated to any order.

    An instance is called with Variables or arrays, any number of times. The ``backward`` of a call
    sees the attributes that its ``forward`` assigned to ``self``.

    Example:
        >>> class Square(Function):
        ...     def forward(self, inputs):
        ...         return (inputs[0] ** 2,)
        ...
        ...     def backward(self, inputs, grad_outputs):
        ...         return (2 * inputs[0] * grad_outputs[0],)
    """

    _own_node = None
    _node_in_graph: Any = None

    def __call__(self, *inputs: Input) -> Variable | tuple[Variable, ...]:
        """Applies the function.

        Args:
            inputs: Variables or arrays.

        Returns:
            a Variable, or a tuple of Variables if there are several outputs.
        """
        previous = self._node_in_graph and self._node_in_graph()
        if previous is not None:
            previous.detach()
            self._node_in_graph = None
        outputs = self.node.apply(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def node(self) -> "FunctionAdapter":
        """The :class:`FunctionAdapter` that stands for the function in the graph."""
        # The node in the graph holds the function; the opposite reference would be a cycle.
        node = self._node_in_graph and self._node_in_graph()
        if node is None:
            node = self._own_node
        if node is None:
            node = self._own_node = FunctionAdapter(self)
        return node

    @property
    def label(self) -> str:
        """The name shown in graphs and messages."""
        return type(self).__name__

    @property
    def inputs(self) -> tuple[VariableNode, ...] | None:
        """The input variables' nodes; None unless the function is in a graph."""
        return self.node.inputs

    @property
    def outputs(self) -> tuple | None:
        """Weak references to the output variables' nodes; None before the function is in a
        graph."""
        return self.node.outputs

    @property
    def output_data(self) -> Arrays:
        """The tuple of output arrays; None for an array that is not retained and whose variable is
        freed."""
        return self.node.output_data

    @property
    def rank(self) -> int:
        """The number of functions on the longest path from a leaf to an input."""
        return self.node.rank

    @property
    def stack(self) -> Any:
        """The stack of the call that applied the function, in debug mode; else None."""
        return self.node.stack

    @property
    def local_function_hooks(self) -> dict:
        """The hooks of only this function, by name."""
        return self.node.local_function_hooks

    def add_hook(self, hook: "FunctionHook", name: str | None = None) -> None:
        """Adds a FunctionHook that sees only this function."""
        self.node.add_hook(hook, name)

    def delete_hook(self, name: str) -> None:
        """Removes the hook of that name."""
        self.node.delete_hook(name)

    def unchain(self) -> None:
        """Removes the function from the graph: its outputs become leaves."""
        self.node.unchain()

    def check_type_forward(self, in_types: TypeInfoTuple) -> None:
        """Called with the inputs' types before ``forward``, unless ``config.type_check`` is False;
        override it to check them."""

    def retain_inputs(self, indexes: Iterable[int]) -> None:
        """Keeps these inputs for ``backward``, which gets None for all other inputs; call this in
        ``forward``."""
        self.node.retain_inputs(indexes)

    def retain_outputs(self, indexes: Iterable[int], retain_after_backward: bool = False) -> None:
        """Keeps these outputs for ``backward`` (see :attr:`output_data`); call this in ``forward``.

        ``retain_after_backward`` has no effect: retained outputs live as long as the graph.
        """
        self.node.retain_outputs(indexes)

    def forward(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays; by default, calls ``forward_cpu`` or
        ``forward_gpu``."""
        return (self.forward_gpu if _any_on_gpu(inputs) else self.forward_cpu)(inputs)

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays from NumPy arrays."""
        raise NotImplementedError(f"{self.label} defines neither forward nor forward_cpu")

    def forward_gpu(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays from CuPy arrays."""
        raise NotImplementedError(f"{self.label} defines neither forward nor forward_gpu")

    def backward(self, inputs: Arrays, grad_outputs: Arrays) -> Arrays:
        """Computes gradients of inputs; by default, calls ``backward_cpu`` or ``backward_gpu``.

        Args:
            inputs: tuple of the input arrays; None for an input that is not retained.
            grad_outputs: tuple of the outputs' gradient arrays; None for an output without a
                gradient.

        Returns:
            tuple with an array, or None, for each input.
        """
        on_gpu = _any_on_gpu(inputs + grad_outputs)
        return (self.backward_gpu if on_gpu else self.backward_cpu)(inputs, grad_outputs)

    def backward_cpu(self, inputs: Arrays, grad_outputs: Arrays) -> Arrays:
        """Computes gradients of inputs from NumPy arrays; by default returns None for each
        input."""
        return (None,) * len(inputs)

    def backward_gpu(self, inputs: Arrays, grad_outputs: Arrays) -> Arrays:
        """Computes gradients of inputs from CuPy arrays; by default returns None for each input."""
        return (None,) * len(inputs)


def _any_on_gpu(arrays):
    return any(is_gpu_array(array) for array in arrays)


class FunctionAdapter(FunctionNode):
    """The node of the graph that applies an old-style function.

    Args:
        function: the function.

    Example:
        >>> class Twice(Function):
        ...     def forward(self, inputs):
        ...         return (inputs[0] * 2,)
        >>> type(Twice()(Variable(np.ones(2))).creator_node).__name__
        'FunctionAdapter'
    """

    def __init__(self, function: Function):
        self._function = function
        checks = type(function).check_type_forward is not Function.check_type_forward
        self._checks_types = checks

    @property
    def function(self) -> Function:
        """The old-style function."""
        return self._function

    @property
    def label(self) -> str:
        return self._function.label

    @property
    def output_data(self) -> Arrays:
        data = list(super().output_data)
        for i, array in zip(self._outputs_to_retain, self._retained_outputs):
            data[i] = array
        return tuple(data)

    def creator(self) -> Function:
        return self._function

    def check_type_forward(self, in_types: TypeInfoTuple) -> None:
        self._function.check_type_forward(in_types)

    def detach(self) -> None:
        """Replaces the function by a copy, whose attributes the next call of the original cannot
        change."""
        self._function = copy.copy(self._function)
        self._function._node_in_graph = weakref.ref(self)

    def apply(self, inputs: Sequence[Input]) -> tuple[Variable, ...]:
        function = self._function
        function._node_in_graph, function._own_node = weakref.ref(self), None
        return super().apply(inputs)

    def forward(self, inputs: Arrays) -> Arrays:
        self.retain_inputs(range(len(inputs)))
        return self._function.forward(inputs)

    def backward(
        self, target_input_indexes: tuple[int, ...], grad_outputs: Gradients
    ) -> Sequence[Variable | None]:
        in_data: list[Array | None] = [None] * len(self.inputs)
        for i, array in zip(self._inputs_to_retain, self._retained_inputs):
            in_data[i] = array
        grad_data = tuple([None if g is None else g.array for g in grad_outputs])
        gxs = self._function.backward(tuple(in_data), grad_data)
        gxs = _as_gradients(self.label, gxs, len(in_data))
        if config.enable_backprop:
            return self._with_graph(gxs, grad_outputs)
        return tuple([None if gx is None else as_variable(gx) for gx in gxs])

    def _with_graph(self, gxs, grad_outputs) -> tuple[Variable | None, ...]:
        """Returns the gradients as Variables that depend on the inputs and output gradients."""
        known = [gx for gx in gxs if gx is not None]
        if not known:
            return (None,) * len(gxs)
        sources = [node.get_variable() for node in self.inputs]
        sources += [g for g in grad_outputs if g is not None]
        variables = iter(_OldStyleGradient(self.label, known).apply(sources))
        return tuple([None if gx is None else next(variables) for gx in gxs])


class _OldStyleGradient(FunctionNode):
    """The results of an old-style backward, which can be used but not differentiated."""

    def __init__(self, function, arrays):
        self._function_label = function
        self._arrays = arrays

    @property
    def label(self):
        return f"gradient of {self._function_label}"

    def forward(self, inputs):
        arrays, self._arrays = self._arrays, None
        return tuple(arrays)

    def backward(self, target_input_indexes, grad_outputs):
        raise RuntimeError(
            f'cannot twice-differentiate an old style Function "{self._function_label}": '
            "write it as a FunctionNode, whose backward takes and returns Variables"
        )


def _as_gradients(label, gradients, n_inputs):
    """Returns the result of an old-style ``backward`` as a list of arrays and None."""
    if not isinstance(gradients, (tuple, list)):
        raise TypeError(f"{label}.backward must return a tuple, not {type(gradients).__name__}")
    if len(gradients) != n_inputs:
        raise ValueError(
            f"{label}.backward must return a gradient, or None, for each of its "
            f"{n_inputs} inputs, but returned {len(gradients)}"
        )
    return [None if gx is None else as_array(gx) for gx in gradients]
