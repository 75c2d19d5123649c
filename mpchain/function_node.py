"""Function nodes: differentiable functions of variables, which are the nodes of the graph."""

import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpchain import backprop
from mpchain.backends.cuda import get_array_module, is_gpu_array, other_device
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.observers import current, show_computed
from mpchain.typing import Array, Arrays, Input
from mpchain.utils import type_check
from mpchain.variable import (
    Variable,
    VariableNode,
    as_array,
    as_variable,
    is_arrays_compatible,
)

if TYPE_CHECKING:
    from mpchain.function_hook import FunctionHook

Gradients: TypeAlias = tuple[Variable | None, ...]


class _Fallback:
    def __repr__(self):
        return "Fallback"

    def __reduce__(self):
        return "Fallback"


Fallback = _Fallback()
"""The value that ChainerX functions returned to request a fallback. mpchain does not use this
value, and keeps the name for compatibility."""


class FunctionNode:
    """A differentiable function, and one application of it as a node of the graph.

    Subclass it to define a function: ``forward`` (or ``forward_cpu`` and ``forward_gpu``) takes and
    returns tuples of arrays, and calls :meth:`retain_inputs` or :meth:`retain_outputs` for what
    ``backward`` will need; ``backward`` takes and returns tuples of Variables, and so can itself be
    differentiated. An instance is applied once, by :meth:`apply`.

    Attributes:
        inputs: tuple of the input variables' nodes; None unless the node is in a graph.
        outputs: tuple of weak references to the output variables' nodes; None before the node is in
            a graph.
        stack: the stack of the call of :meth:`apply`, in debug mode; else None.

    Example:
        >>> class Square(mpchain.FunctionNode):
        ...     def forward(self, inputs):
        ...         self.retain_inputs((0,))
        ...         return (inputs[0] ** 2,)
        ...     def backward(self, target_input_indexes, grad_outputs):
        ...         return (2 * self.get_retained_inputs()[0] * grad_outputs[0],)
        >>> Square().apply((Variable(np.array([3.0])),))[0].array
        array([9.])
    """

    inputs: Any = None
    outputs: Any = None
    _rank: Any = None
    n_outputs = 1
    stack: Any = None
    differentiable_inputs = ()
    local_function_hooks = {}
    observed_as: Any = None  # An observer sets this name in forward and uses it again in backward.
    lazy_grad_sum = False
    is_elementwise = False
    returns_fresh_gradients = False
    # These are the indices of inputs whose gradients are sums over rows.
    row_sums: Sequence[int] = ()
    # This maps some of these inputs to a function that finds the gradient's nonzero rows.
    row_gradients: Mapping[int, Callable] = {}
    # This function adds the gradient of a part of the only input to the gradient of the whole.
    add_part: Callable | None = None
    _checks_types = False
    _inputs_to_retain = ()
    _outputs_to_retain = ()
    _retained_inputs = ()
    _retained_outputs = ()

    @property
    def label(self) -> str:
        """The name shown in graphs and messages."""
        return type(self).__name__

    @property
    def _impl_name(self):
        """The name under which hooks group calls."""
        return self.label

    @property
    def rank(self) -> int:
        """The number of functions on the longest path from a leaf to an input."""
        stack = [self]
        while stack:
            function = stack[-1]
            creators = [n.creator_node for n in function.inputs if n.creator_node is not None]
            unknown = [f for f in creators if f._rank is None]
            if unknown:
                stack += unknown
            else:
                function._rank = max([f._rank + 1 for f in creators], default=0)
                stack.pop()
        return self._rank

    @property
    def output_data(self) -> Arrays:
        """The arrays of the outputs; None for arrays that were freed."""
        if self.outputs is None:
            raise RuntimeError(
                f"{self.label}.output_data: the function has no outputs before it is applied"
            )
        nodes = [reference() for reference in self.outputs]
        return tuple([None if node is None else node.data for node in nodes])

    def creator(self) -> Any:
        """Returns the value of ``Variable.creator`` for the outputs of this node."""
        return self.shown()

    def shown(self) -> Any:
        """Returns the object that hooks get for this node."""
        return self

    def shown_to_hooks(self) -> tuple[Any, Arrays] | None:
        """Returns the function and the input arrays that hooks get in backward; None if hooks are
        not called."""
        return self.shown(), tuple([node.data for node in self.inputs])

    def description(self) -> str:
        """Returns the label and, in debug mode, the stack of the call."""
        if self.stack is None:
            return f"{self.label}; mpchain.set_debug(True) shows where it was called"
        return f"{self.label}, called at\n" + "".join(traceback.format_list(self.stack)).rstrip()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"{self.label}: a FunctionNode cannot be called; use its method apply")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._checks_types = cls.check_type_forward is not FunctionNode.check_type_forward

    def apply(self, inputs: Sequence[Input]) -> tuple[Variable, ...]:
        """Computes the outputs, and makes this node their creator.

        Args:
            inputs: tuple or list of Variables or arrays.

        Returns:
            tuple of Variables.

        Raises:
            RuntimeError: an input has no array, this node was applied before, or, in debug mode, an
                output holds NaN.
            TypeError: an input is not an array, only some inputs are on a GPU, or ``forward`` does
                not return a tuple.
        """
        if self.inputs is not None:
            raise RuntimeError(
                f"{self.label}: this node was applied before; make a new node for each call"
            )
        try:
            variables = [x if isinstance(x, Variable) else as_variable(x) for x in inputs]
        except TypeError as error:
            type_check.explain_arguments(error, self.label, self.apply, (inputs,), {})
            raise
        in_data = tuple([x._array for x in variables])
        if in_data and in_data[0].__class__ is not np.ndarray:
            device = other_device(*in_data)
            if device is not None:
                with device:
                    return self.apply(variables)
        if current.recorder is not None:
            current.recorder.note_inputs(variables)
        debug, hooks = config.debug, config.function_hooks
        if debug:
            self.stack = traceback.extract_stack()[:-1]
        try:
            if self._checks_types and config.type_check:
                type_check.check_forward(self, in_data)
            if hooks or self.local_function_hooks:
                self.tell_hooks("forward_preprocess", in_data)
                outputs = self.forward(in_data)
                self.tell_hooks("forward_postprocess", in_data)
            else:
                outputs = self.forward(in_data)
        except Exception:
            self.check_inputs(variables)
            raise
        if type(outputs) is not tuple:
            kind = type(outputs).__name__
            raise TypeError(f"{self.label}.forward must return a tuple, not {kind}")
        outputs = tuple([y if y.__class__ is np.ndarray else as_array(y) for y in outputs])
        if current.of_functions:
            show_computed(self, outputs)
        if debug:
            self.check_nan(outputs, "forward")
        targets = [i for i, x in enumerate(variables) if x._requires_grad]
        if not targets or not config.enable_backprop:
            ys = tuple([Variable(array, requires_grad=bool(targets)) for array in outputs])
            if backprop.marked.exist and not targets:
                backprop.pass_on(variables, ys)
            return ys
        return self.connect(variables, in_data, tuple(targets), outputs)

    def connect(
        self,
        variables: Sequence[Variable],
        in_data: Sequence[Array],
        targets: Sequence[int],
        outputs: Sequence[Array],
    ) -> tuple[Variable, ...]:
        """Makes this node a part of the graph; returns its output Variables."""
        self.differentiable_inputs = targets
        self.inputs = tuple([x._node or x.node for x in variables])
        results, references = [], []
        for array in outputs:
            y = Variable(array)
            y._node = node = VariableNode(y)
            node.creator_node = self
            node.output_index = len(results)
            references.append(weakref.ref(node))
            results.append(y)
        self.outputs = tuple(references)
        self.n_outputs = len(results)
        self.keep(in_data, targets, outputs)
        return tuple(results)

    def keep(
        self, in_data: Sequence[Array], targets: Sequence[int], outputs: Sequence[Array]
    ) -> None:
        """Keeps the arrays that backward will need."""
        self._retained_inputs = tuple([in_data[i] for i in self._inputs_to_retain])
        self._retained_outputs = tuple([outputs[i] for i in self._outputs_to_retain])

    def check_inputs(self, variables: Sequence[Variable]) -> None:
        """Raises an error that explains why forward failed, if the inputs are the cause."""
        for i, x in enumerate(variables):
            if x._array is None:
                raise RuntimeError(
                    f"{self.label}: input {i}, {x._called()}, has no array yet; initialize it first"
                )
        if not is_arrays_compatible([x._array for x in variables]):
            places = ", ".join(str(x.device) for x in variables)
            raise TypeError(f"{self.label}: all inputs must be on one device, but are on {places}")

    def tell_hooks(self, step: str, in_data: Arrays) -> None:
        """Calls the method named ``step`` of each hook, with this node and its input arrays."""
        for hook in [*config.function_hooks.values(), *self.local_function_hooks.values()]:
            getattr(hook, step)(self, in_data)

    def check_type_forward(self, in_types: type_check.TypeInfoTuple) -> None:
        """Called with the inputs' types before ``forward``, unless ``config.type_check`` is False;
        override it to check them.

        Args:
            in_types: shapes and dtypes of the inputs.
        """

    def check_layout_forward(self, inputs: Sequence[Input]) -> None:
        """Does nothing and is never called, because mpchain has a single memory layout."""

    @property
    def input_layouts(self) -> tuple[None, ...]:
        """The memory layouts of the inputs: None for each."""
        return (None,) * len(self.inputs)

    @property
    def output_layouts(self) -> tuple[None, ...]:
        """The memory layouts of the outputs: None for each."""
        return (None,) * self.n_outputs

    def forward(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays; by default, calls ``forward_cpu`` or
        ``forward_gpu``."""
        if any(is_gpu_array(x) for x in inputs):
            return self.forward_gpu(inputs)
        return self.forward_cpu(inputs)

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays from NumPy arrays."""
        raise NotImplementedError(f"{self.label} defines neither forward nor forward_cpu")

    def forward_gpu(self, inputs: Arrays) -> Arrays:
        """Computes the tuple of output arrays from CuPy arrays."""
        raise NotImplementedError(f"{self.label} defines neither forward nor forward_gpu")

    def retain_inputs(self, indexes: Iterable[int]) -> None:
        """Keeps these inputs for backward; call this in ``forward``."""
        self._inputs_to_retain = tuple(indexes)

    def retain_outputs(self, indexes: Iterable[int]) -> None:
        """Keeps these outputs for backward; call this in ``forward``."""
        self._outputs_to_retain = tuple(indexes)

    def get_retained_inputs(self) -> tuple[Variable, ...]:
        """Returns the Variables of the retained inputs, which are part of the graph."""
        indexes, arrays = self._inputs_to_retain, self._retained_inputs
        return tuple([self.input_variable(i, array) for i, array in zip(indexes, arrays)])

    def get_retained_outputs(self) -> tuple[Variable, ...]:
        """Returns the Variables of the retained outputs, which are part of the graph."""
        indexes, arrays = self._outputs_to_retain, self._retained_outputs
        return tuple([self.output_variable(i, array) for i, array in zip(indexes, arrays)])

    def input_variable(self, index: int, array: Array) -> Variable:
        """Returns a Variable that holds ``array`` and stands for an input."""
        return self.inputs[index].variable_with(array)

    def output_variable(self, index: int, array: Array) -> Variable:
        """Returns a Variable that holds ``array`` and stands for an output."""
        node = self.outputs[index]()
        if node is not None:
            return node.variable_with(array)
        y = Variable(array)
        y.node.creator_node, y.node.output_index = self, index
        return y

    def backward(
        self, target_input_indexes: tuple[int, ...], grad_outputs: Gradients
    ) -> Sequence[Variable | None]:
        """Computes gradients of inputs from gradients of outputs.

        Args:
            target_input_indexes: tuple of the indexes of the inputs whose gradients are wanted.
            grad_outputs: tuple of the outputs' gradients, as Variables; None for an output without
                a gradient.

        Returns:
            tuple of Variables (or None): one for each index in ``target_input_indexes``, or one for
            each input of the function.
        """
        raise NotImplementedError(f"{self.label} does not implement backward")

    def backward_accumulate(
        self, target_input_indexes: tuple[int, ...], grad_outputs: Gradients, grad_inputs: Gradients
    ) -> Gradients:
        """Does the same as :meth:`backward`, and adds given gradients of the inputs to the
        results."""
        gxs = self._checked(self.backward(target_input_indexes, grad_outputs), target_input_indexes)
        return tuple(
            [a if g is None else g if a is None else g + a for g, a in zip(gxs, grad_inputs)]
        )

    def pull_variables(self, targets: tuple[int, ...], gys: Sequence) -> Sequence[Variable | None]:
        """Returns the gradients of the target inputs, as Variables with their graph."""
        return self._checked(self.backward(targets, tuple(gys)), targets)

    def pull_arrays(self, targets: tuple[int, ...], gys: Sequence) -> Sequence[Array | None]:
        """Returns the gradients of the target inputs, as arrays."""
        gys = tuple([None if gy is None else as_variable(as_array(gy)) for gy in gys])
        gxs = self._checked(self.backward(targets, gys), targets)
        return [None if gx is None else gx.array for gx in gxs]

    def row_arguments(self, index: int, gys: Sequence) -> tuple:
        """Returns the values of this node that :meth:`row_sum` needs for an input whose index is in
        ``row_sums``."""
        raise NotImplementedError

    def row_sum(self, index: int, arguments: Sequence) -> Array:
        """Returns the gradient of an input, summed over the concatenated rows of several nodes."""
        raise NotImplementedError

    def _checked(self, gxs, targets):
        """Checks shapes and types of the result of ``backward``, and reduces it to the targets."""
        if not isinstance(gxs, (tuple, list)):
            raise TypeError(f"{self.label}.backward must return a tuple, not {type(gxs).__name__}")
        if len(gxs) == len(self.inputs):
            gxs = tuple([gxs[i] for i in targets])
        elif len(gxs) != len(targets):
            raise ValueError(
                f"{self.label}.backward must return a gradient for each of its {len(self.inputs)} "
                f"inputs or of the {len(targets)} wanted ones, but returned {len(gxs)}"
            )
        for i, gx in zip(targets, gxs):
            if gx is None:
                continue
            if not isinstance(gx, Variable):
                raise TypeError(
                    f"{self.label}.backward must return Variables, but the gradient of input {i} "
                    f"is a {type(gx).__name__}"
                )
            if gx.shape != self.inputs[i].shape:
                raise ValueError(
                    f"{self.label}.backward: the gradient of input {i} must have the shape of the "
                    f"input: gradient {gx.shape}, input {self.inputs[i].shape}"
                )
        return gxs

    def check_nan(self, arrays: Iterable[Array | None], step: str) -> None:
        """Raises RuntimeError if a floating-point array contains NaN (debug mode)."""
        for array in arrays:
            if array is not None and is_floating(array.dtype):
                if bool(get_array_module(array).isnan(array).any()):
                    raise RuntimeError(f"NaN in the {step} pass of {self.description()}")

    def unchain(self) -> None:
        """Removes the node from the graph: its outputs become leaves."""
        for reference in self.outputs:
            node = reference()
            if node is not None:
                node.unchain()
        self.inputs = None

    def add_hook(self, hook: "FunctionHook", name: str | None = None) -> None:
        """Adds a FunctionHook that sees only this function."""
        name = hook.name if name is None else name
        if name in self.local_function_hooks:
            raise KeyError(
                f"{self.label}.add_hook: the node already has a hook {name!r}; delete it, or use "
                "another name"
            )
        self.local_function_hooks = {**self.local_function_hooks, name: hook}
        hook.added(self)

    def delete_hook(self, name: str) -> None:
        """Removes the hook of that name."""
        if name not in self.local_function_hooks:
            raise KeyError(f"{self.label}.delete_hook: the node has no hook {name!r}")
        hooks = dict(self.local_function_hooks)
        hooks.pop(name).deleted(self)
        self.local_function_hooks = hooks
