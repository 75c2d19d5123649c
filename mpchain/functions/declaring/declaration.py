"""Declarations of differentiable functions.

A declaration is a body, which computes the output from arrays, and derivatives by these arrays. All
of them are plain array code. NumPy's dispatch runs the same text on NumPy arrays, on CuPy arrays,
on Variables (which yields all orders of derivatives), and on symbols, which trace formulas.

A derivative's first parameter is the gradient of the output, or ``gys``, the gradients of several
outputs; the names of the other parameters select the values that they receive:

====================  ======================================================================
name                  value
====================  ======================================================================
an array argument     that argument, which is therefore kept for backward
``y`` (``ys``)        the output (the outputs of a function with several), kept likewise
``x_shape``           the shape of the argument ``x`` (``x_dtype``: its dtype); nothing is kept
``aux``               the body's second result, besides the output; not differentiated
another argument      that argument, a constant
====================  ======================================================================
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import numpy as np

from mpchain.backends.cuda import is_gpu_array
from mpchain.backends.dtypes import is_bfloat16, is_floating, widened
from mpchain.backprop import marked, pass_on
from mpchain.configuration import config
from mpchain.formulas.symbol import UntraceableError, Whole
from mpchain.formulas.text import compile_text, parameters_of
from mpchain.formulas.writer import fused_kernel
from mpchain.function_node import FunctionNode
from mpchain.functions.declaring import written_out
from mpchain.functions.declaring.differentiation import differentiate
from mpchain.kernels.cpu.loops import Loop, loop_of
from mpchain.observers import current
from mpchain.typing import Array, Output
from mpchain.utils.type_check import InvalidType, describe
from mpchain.variable import Variable, VariableNode, as_array, as_variable

registry: dict[str, "Declaration"] = {}
"""The declarations of decorated bodies. The keys are the names of mpchain's functions, and module
and name for other functions (``"my_module.sum_to"``).

If a function is declared again in the same module, the new declaration replaces the earlier one, as
with ``def``.
"""


class Declaration:
    """The declaration of a differentiable function.

    Args:
        body: a function of the array arguments, followed by constants. It returns an array, or a
            tuple of arrays if a derivative has the parameter ``gys``, or a pair of these results
            and aux if a derivative has the parameter ``aux``.
        derivatives: for each array argument, a function that returns its gradient, or None if it
            has no gradient.
        joint: instead of ``derivatives``, one function that returns a sequence of all gradients.
        n_arrays: with ``joint``, the number of array arguments; None means that the first argument,
            a sequence of arrays, is the only array argument.
        is_elementwise: whether the function is elementwise; its array arguments then broadcast.
        any_dtype: whether arrays of integers or bool are accepted too.
        takes_bfloat16: whether the body accepts bfloat16 arrays without conversion; see
            :class:`InSingle`.

    Raises:
        TypeError: a derivative has a parameter with an unknown name.

    Example:
        >>> F.exp.declaration.array_names, F.leaky_relu.declaration.constant_names
        (('x',), ('slope',))
    """

    def __init__(
        self,
        body: Callable,
        derivatives: Sequence[Callable | None],
        joint: Callable | None = None,
        n_arrays: int | None = None,
        is_elementwise: bool = False,
        any_dtype: bool = True,
        takes_bfloat16: bool = False,
    ):
        self.body = body
        self.name = body.__name__.lstrip("_")
        self.is_own = body.__module__.partition(".")[0] == __name__.partition(".")[0]
        self.derivatives: Sequence[Any] = derivatives
        self.is_elementwise = is_elementwise
        self.any_dtype = any_dtype
        self.takes_bfloat16 = takes_bfloat16
        self.is_product = hasattr(body, "multiplies_bfloat16")
        self.takes_sequence = joint is not None and n_arrays is None
        n_arrays = n_arrays or len(derivatives) or 1
        names = parameters_of(body)
        self.array_names, self.constant_names = names[:n_arrays], names[n_arrays:]
        asked = {name for d in (joint, *derivatives) for name in parameters_of(d)}
        self.has_aux = "aux" in asked
        self.has_many_outputs = "gys" in asked
        self.joint_derivative = joint
        self.joint_parameters = parameters_of(joint)
        self._kernels, self._loops, self._kept_names = {}, {}, {}
        for derivative in (joint, *derivatives):
            for name in parameters_of(derivative)[1:]:
                # an unknown name raises an error at the declaration, not in backward
                self.source(name)
        attributes = {
            "declaration": self,
            "differentiable_inputs": tuple(range(n_arrays)),
            "row_sums": [i for i, d in enumerate(derivatives) if hasattr(d, "sums_over_rows")],
            "row_gradients": {
                i: rows for i, d in enumerate(derivatives) if (rows := getattr(d, "rows", None))
            },
            "add_part": next(
                (staticmethod(f) for d in derivatives if (f := getattr(d, "add_part", None))), None
            ),
        }
        self.node_class = type(self.name, (Application,), attributes)
        attributes |= {"row_sums": [], "row_gradients": {}, "add_part": None}
        self.node_class_in_single = type(self.name, (InSingle,), attributes)

    # Text is generated and formulas are traced at their first use, because doing so when mpchain is
    # imported would take long.

    @functools.cached_property
    def call(self) -> Callable:
        """The public function, generated by :mod:`mpchain.functions.declaring.written_out`."""
        return written_out.call(self)

    @functools.cached_property
    def joint(self) -> Callable:
        """The joint derivative, bound by :meth:`_bind`."""
        return self._bind(self.joint_derivative, self.joint_derivative)

    @functools.cached_property
    def pulls(self) -> list[Callable]:
        """The derivative by each array argument, bound by :meth:`_bind`."""
        return [self._bind(d, d) for d in self.derivatives]

    @functools.cached_property
    def row_arguments(self) -> list[Callable]:
        """For each derivative, a function that returns its arguments; see :meth:`_bind`."""
        return [self._bind(d, lambda *arguments: arguments) for d in self.derivatives]

    def _bind(self, derivative, function):
        """Returns a function of the output's gradient, kept values, constants and input nodes.

        The result calls ``function`` with the values that the parameters of ``derivative`` name. If
        ``derivative`` is None, the result returns None.
        """
        if derivative is None:
            return lambda g, kept, constants, nodes: None
        arguments = ", ".join(["g", *map(self.source, parameters_of(derivative)[1:])])
        text = f"def pull(g, kept, constants, nodes):\n    return f({arguments})"
        return compile_text(f"derivative of {self.name}", text, {"f": function})

    def source(self, name: str) -> str:
        """Returns the expression for a derivative's parameter in generated text."""
        arrays = self.array_names
        if self._means_output(name):
            return "kept[-1]"
        if name == "aux":
            return "kept[-2]"
        if name in self.constant_names:
            return f"constants[{self.constant_names.index(name)}]"
        owner, _, attribute = (name, "", "") if name in arrays else name.rpartition("_")
        if owner not in arrays or attribute not in ("", "shape", "dtype"):
            raise TypeError(
                f"declaration of {self.name}: a derivative has the parameter {name!r}, which is "
                f"neither an argument ({', '.join((*arrays, *self.constant_names))}), nor the "
                "shape or dtype of an argument (such as x_shape), nor y, ys or aux"
            )
        if self.takes_sequence:
            return f"[node.{attribute} for node in nodes]" if attribute else "kept[:-2]"
        i = arrays.index(owner)
        return f"nodes[{i}].{attribute}" if attribute else f"kept[{i}]"

    def _means_output(self, name):
        return name in ("y", "ys") and name not in self.array_names

    def kept_names(self, targets: tuple[int, ...]) -> set[str]:
        """Returns the names of the array arguments that the derivatives by the inputs with the
        indices ``targets`` need, and ``"output"`` if they need the output."""
        names = self._kept_names.get(targets)
        if names is None:
            names = self._kept_names[targets] = self._find_kept_names(targets)
        return names

    def _find_kept_names(self, targets):
        if self.joint_parameters:
            asked = set(self.joint_parameters)
        else:
            asked = {name for i in targets for name in parameters_of(self.derivatives[i])[1:]}
        output = {"output"} if any(map(self._means_output, asked)) else set()
        return asked.intersection(self.array_names) | output

    def apply(self, inputs: Sequence, constants: Sequence = ()) -> Any:
        """Applies the function to Variables or arrays; returns a Variable, or a tuple of
        Variables."""
        if not (config.function_hooks or config.debug or current.of_functions or current.recorder):
            outputs = self._apply_plainly(inputs, constants)
            if outputs is not None:
                return outputs if self.has_many_outputs else outputs[0]
        is_narrow = True in [_is_bfloat16_array(x) for x in inputs]
        node = self.node_class_in_single() if is_narrow else self.node_class()
        node.constants = constants
        outputs = node.apply(inputs)
        return outputs if self.has_many_outputs else outputs[0]

    def _apply_plainly(self, inputs, constants):
        """Applies the function to NumPy arrays without hooks, in less time than the node's method;
        returns a tuple, or None for other arguments."""
        try:
            variables = [x if isinstance(x, Variable) else as_variable(x) for x in inputs]
        except TypeError:  # the node's method explains the error
            return None
        arrays: tuple = tuple([x._array for x in variables])
        for x in arrays:
            if x.__class__ is not np.ndarray or x.dtype.kind == "V":
                return None
        result = self.compute(arrays, constants)
        result, aux = result if self.has_aux else (result, None)
        outputs = result if self.has_many_outputs else (result,)
        outputs = tuple([y if y.__class__ is np.ndarray else as_array(y) for y in outputs])
        targets = tuple([i for i, x in enumerate(variables) if x.requires_grad])
        if targets and config.enable_backprop:
            node = self.node_class().computed_with(constants, aux)
            return node.connect(variables, arrays, targets, outputs)
        ys = tuple([Variable(y, requires_grad=bool(targets)) for y in outputs])
        if marked.exist and not targets:
            pass_on(variables, ys)
        return ys

    def on(self, *arguments: Any) -> Any:
        """Computes on Variables if an array argument is a Variable, otherwise on arrays or symbols.

        Derivatives run on all of these, so they call declared functions by this method.
        """
        inputs = arguments[0] if self.takes_sequence else arguments[: len(self.array_names)]
        for x in inputs:
            if isinstance(x, Variable):
                return self.call(*arguments)
            if x.__class__ is Whole and self.is_elementwise:
                return x.call(self, arguments)
        result = self.body(*arguments)
        return result[0] if self.has_aux else result

    def compute(self, arrays: Sequence[Array], constants: Sequence) -> Any:
        """Runs the body on arrays; an elementwise function of GPU arrays of one dtype runs as one
        fused kernel if its body can be fused."""
        arguments = (arrays,) if self.takes_sequence else arrays
        if not self.any_dtype and not is_floating(*(x.dtype for x in arrays)):
            raise self.refusal("inputs must be floating point", arguments, constants)
        try:
            on_host = not self.is_elementwise or arrays[0].__class__ is np.ndarray
            kernel = None if on_host else self._fused(None, self.body, arrays)
            if not on_host and arrays[0].__class__ is Whole:
                symbol: Any = arrays[0]
                return symbol.call(self, (*arrays, *constants))
            return (kernel or self.body)(*arguments, *constants)
        except np.linalg.LinAlgError:  # LinAlgError concerns values, not types
            raise
        except (TypeError, ValueError) as error:
            raise self.refusal(error, arguments, constants) from None

    def refusal(
        self, reason: Exception | str, arguments: Sequence, constants: Sequence
    ) -> InvalidType:
        """Returns the InvalidType error for an exception of the body, or for another reason."""
        if isinstance(reason, InvalidType):
            return reason
        values = zip((*self.array_names, *self.constant_names), (*arguments, *constants))
        shown = ", ".join(f"{name}: {describe(value)}" for name, value in values)
        # NumPy's message ends with the shapes, which the new message lists too.
        reason_only = re.sub(r" with shapes [(\d, )]+$", "", str(reason)).rstrip()
        refusal = InvalidType(f"{self.name}: {reason_only}: {shown}")
        if isinstance(reason, Exception) and not self.is_own:
            traceback = reason.__traceback__
            # The traceback of the new error begins at the line of the body that failed.
            refusal.__traceback__ = traceback and traceback.tb_next
        return refusal

    def pull(self, index: int, arrays: Sequence[Array]) -> Callable:
        """Returns the derivative by array argument ``index``, for arrays; see :meth:`_bind`.

        ``arrays`` are the gradient and the kept arrays. If the function is elementwise, the result
        calls the derivative's fused kernel, if there is one, where all of them are on a GPU and
        have one dtype; where they are on the host and a step is recorded, it calls the derivative's
        loop (see :meth:`loop`), if there is one.
        """
        derivative = self.derivatives[index]
        if self.is_elementwise and derivative is not None:
            kernel = self._fused(index, derivative, arrays)
            if kernel is not None:
                return self._bind(derivative, kernel)
        return self.pulls[index]

    def recorded_derivative(self, index: int) -> Callable:
        """Returns the derivative by array argument ``index``, for Variables.

        If the derivative is elementwise, has several operations and can be traced, the result is a
        declared function, which adds one node to the graph. Otherwise, the result is the derivative
        itself.
        """
        return self._declared_derivative(index) or self.derivatives[index]

    def elementwise_arrays(self, formula: Callable) -> int:
        """Returns the number of leading parameters of a derivative that are arrays.

        Returns 0 if the function is not elementwise, if a constant precedes an array, or if a
        parameter is neither an array nor a constant, because the derivative may then not be
        elementwise.
        """
        names = parameters_of(formula)[1:]
        constants = [n for n in names if n in self.constant_names]
        arrays = names[: len(names) - len(constants)]
        is_pure = all(n in self.array_names or self._means_output(n) for n in arrays)
        return 1 + len(arrays) if self.is_elementwise and is_pure else 0

    def _declared_derivative(self, index):
        formula = self.derivatives[index]
        n_arrays = self.elementwise_arrays(formula)
        if not n_arrays:
            return None
        try:
            derivatives = differentiate(formula, parameters_of(formula), n_arrays)
        except UntraceableError:
            return None
        if derivatives is None:
            return None
        declaration = Declaration(formula, derivatives, is_elementwise=True)
        declaration.name = f"{self.name}_derivative"
        return declaration.call

    def _fused(self, index, formula, arrays):
        if isinstance(arrays[0], np.ndarray):
            loop = self.loop(index) if current.recorder is not None else None
            return loop and loop.or_else(formula)
        if not _are_alike(arrays):
            return None
        if index not in self._kernels:
            part = "forward" if index is None else f"derivative_{index}"
            self._kernels[index] = fused_kernel(f"{self.name}_{part}", formula)
        return self._kernels[index]

    def loop(self, index: int | None) -> Loop | None:
        """Returns the loop that computes the function, or a derivative, on large NumPy arrays in
        one pass; None if there is no such loop.

        Args:
            index: the index of the array argument to differentiate by; None means the function
                itself.
        """
        if index not in self._loops:
            formula, n = self.body, self.is_elementwise and len(self.array_names)
            if index is not None:
                formula = self.derivatives[index]
                n = self.elementwise_arrays(formula)
            self._loops[index] = loop_of(formula, parameters_of(formula), n) if n else None
        return self._loops[index]


def multiplies_bfloat16(body: Any) -> Any:
    """Decorator of a body: the body and its derivatives accept bfloat16 arrays on the host.

    Such a body is a product that sums in float32 and rounds once, so its arguments need no float32
    copies.

    Example:
        >>> multiplies_bfloat16(lambda x: x).multiplies_bfloat16
        True
    """
    vars(body)["multiplies_bfloat16"] = True
    return body


def _is_bfloat16_array(x):
    dtype = getattr(x._array if isinstance(x, Variable) else x, "dtype", None)
    return dtype is not None and dtype.kind == "V" and is_bfloat16(dtype)


def sums_over_rows(derivative: Callable, rows: Callable | None = None) -> Callable:
    """Marks a derivative that is a sum over the rows of all its array arguments.

    If a function is applied several times, backpropagation may compute the derivative once, for the
    rows of several applications. ``rows`` is a function of the same arguments that returns a
    :class:`mpchain.row_gradients.RowGradient`, or None if most rows are not zero; it is called
    first if the update needs only nonzero rows.

    Example:
        >>> derivative = sums_over_rows(lambda g, x: np.matmul(np.transpose(g), x))
        >>> derivative.sums_over_rows
        True
    """
    vars(derivative).update(sums_over_rows=True, rows=rows)
    return derivative


def adds_parts(derivative: Callable, add_part: Callable) -> Callable:
    """Marks a derivative, which writes its gradient to a part of new zeros.

    ``add_part`` adds the gradient to this part of a sum of gradients instead. It is called with the
    sum, the gradient and the constants, and returns whether it has added the gradient; called with
    None in place of the sum, it returns whether it would.

    Example:
        >>> adds_parts(lambda g: g, lambda x, g: False).add_part(None, np.ones(2))
        False
    """
    vars(derivative)["add_part"] = add_part
    return derivative


def _are_alike(arrays):
    """Returns whether all arrays are CuPy arrays of the same dtype, as a fused kernel requires."""
    return all(is_gpu_array(x) and x.dtype == arrays[0].dtype for x in arrays)


class Application(FunctionNode):
    """An application of a declared function. All declarations derive their nodes from this class.

    Example:
        >>> type(F.exp(Variable(np.zeros(2))).creator_node).__mro__[1].__name__
        'Application'
    """

    returns_fresh_gradients = True
    declaration: Declaration
    constants: Sequence = ()
    _aux: Any = None
    _kept: Any = None

    @property
    def label(self) -> str:
        return self.declaration.name

    @property
    def is_elementwise(self) -> bool:
        """Whether the function computes each element independently."""
        return self.declaration.is_elementwise

    def forward(self, inputs: Sequence[Array]) -> tuple:
        declaration = self.declaration
        result = declaration.compute(inputs, self.constants)
        if declaration.has_aux:
            result, self._aux = result
        return result if declaration.has_many_outputs else (result,)

    def computed_with(self, constants: Sequence, aux: object) -> "Application":
        """Sets what the body was called with, and its second result; returns the node."""
        self.constants, self._aux = constants, aux
        return self

    def keep(self, in_data: Sequence, targets: Sequence[int], outputs: Sequence) -> None:
        declaration = self.declaration
        names = declaration.kept_names(tuple(targets))
        if declaration.takes_sequence:
            kept = list(in_data) if names else [None] * len(in_data)
        else:
            pairs = zip(declaration.array_names, in_data)
            kept = [array if name in names else None for name, array in pairs]
        output = outputs if declaration.has_many_outputs else outputs[0]
        self._kept = [*kept, self._aux, output if "output" in names else None]

    def pull_arrays(self, targets: Sequence[int], gys: Sequence) -> Sequence:
        declaration = self.declaration
        if declaration.joint_parameters:
            g = gys if declaration.has_many_outputs else gys[0]
            gxs = declaration.joint(g, self._kept, self.constants, self.inputs)
            return [fit(gxs[i], self.inputs[i], False) for i in targets]
        node_class = type(self)
        node_class.pull_arrays = written_out.pull_arrays(declaration, _pull_any_arrays, fit)
        return node_class.pull_arrays(self, targets, gys)

    def kept(self, as_variables: bool) -> Sequence:
        """Returns the inputs, then ``aux`` and the output; inputs and outputs that no derivative
        needs are None.

        Inputs and output are arrays, or with ``as_variables`` the graph's Variables of these
        arrays. ``aux`` is returned as the body computed it.
        """
        if not as_variables:
            return self._kept
        *inputs, aux, output = self._kept
        kept = [None if x is None else self.input_variable(i, x) for i, x in enumerate(inputs)]
        if type(output) is tuple:
            output = tuple(self.output_variable(i, y) for i, y in enumerate(output))
        elif output is not None:
            output = self.output_variable(0, output)
        return [*kept, aux, output]

    def row_arguments(self, index: int, gys: Sequence) -> tuple:
        """Returns the arguments of a derivative: the gradient, kept arrays, and other values such
        as shapes."""
        find = self.declaration.row_arguments[index]
        return find(gys[0], self._kept, self.constants, self.inputs)

    def row_sum(self, index: int, arguments: Sequence) -> Any:
        """Returns the sum of the derivatives of several applications, whose arguments are given
        with concatenated rows."""
        return fit(self.declaration.derivatives[index](*arguments), self.inputs[index], False)

    def pull_variables(self, targets: Sequence[int], gys: Sequence) -> Sequence:
        declaration = self.declaration
        if not declaration.joint_parameters:
            node_class = type(self)
            node_class.pull_variables = written_out.pull_variables(declaration, fit)
            return node_class.pull_variables(self, targets, gys)
        g = gys if declaration.has_many_outputs else gys[0]
        gxs = declaration.joint(g, self.kept(True), self.constants, self.inputs)
        return [fit(gxs[i], self.inputs[i], False) for i in targets]


def _pull_any_arrays(node, targets, gys):
    """Computes what the generated method ``pull_arrays`` computes, for gradients that are not NumPy
    arrays."""
    declaration, nodes = node.declaration, node.inputs
    g = gys if declaration.has_many_outputs else gys[0]
    gxs = _gradients(declaration, targets, g, node._kept, node.constants, nodes)
    return [fit(gx, nodes[i], declaration.is_elementwise) for i, gx in zip(targets, gxs)]


def _gradients(declaration, targets, g, kept, constants, nodes):
    arrays = [x for x in (g, *kept) if x is not None]
    return [declaration.pull(i, arrays)(g, kept, constants, nodes) for i in targets]


class InSingle(Application):
    """An application to arrays of which at least one is bfloat16; the application computes in
    float32.

    NumPy sums bfloat16 arrays in bfloat16, promotes them to float32 in operations with numbers, or
    refuses them. The body and the derivatives therefore receive float32 copies, and their results
    are rounded: a derivative to the dtype of its argument, and an output to bfloat16 if all
    floating-point inputs are bfloat16. If gradients get a graph, each function of the graph rounds
    its result. No copies are made for a body with ``takes_bfloat16``, or for a product whose arrays
    are all bfloat16 on the host (see :func:`multiplies_bfloat16`).

    Example:
        >>> x = Variable(np.ones((1, 300), mpchain.mixed_bf16))
        >>> y = F.sum(x * 0.5)
        >>> y.array, y.dtype
        (array(150, dtype=bfloat16), dtype(bfloat16))
    """

    def forward(self, inputs: Sequence[Array]) -> tuple:
        if self.declaration.takes_bfloat16 or self._multiplies(inputs):
            return super().forward(inputs)
        outputs = super().forward([widened(x) for x in inputs])
        floating = {x.dtype for x in inputs if is_floating(x.dtype)}
        return tuple([_rounded(y, *floating) for y in outputs])

    def pull_arrays(self, targets: Sequence[int], gys: Sequence) -> Sequence:
        declaration = self.declaration
        if self._multiplies([*gys, *(x for x in self._kept if x is not None)]):
            gxs = _gradients(declaration, targets, gys[0], self._kept, self.constants, self.inputs)
            return [fit(gx, self.inputs[i], False) for i, gx in zip(targets, gxs)]
        nodes = [_Wide(node) for node in self.inputs]
        gys = [widened(g) for g in gys]
        g = gys if declaration.has_many_outputs else gys[0]
        *kept, output = self._kept
        output = tuple(map(widened, output)) if type(output) is tuple else widened(output)
        kept = [*map(widened, kept), output]
        if declaration.joint_parameters:
            gxs = declaration.joint(g, kept, self.constants, nodes)
            gxs = [gxs[i] for i in targets]
        else:
            gxs = _gradients(declaration, targets, g, kept, self.constants, nodes)
        pairs = zip(targets, gxs)
        return [fit(gx, self.inputs[i], declaration.is_elementwise) for i, gx in pairs]

    def _multiplies(self, arrays):
        """Returns whether the function is a product and all arrays are bfloat16 on the host. Such a
        product sums in float32."""
        return self.declaration.is_product and all(
            _is_bfloat16_array(x) and not is_gpu_array(x) for x in arrays
        )


class _Wide:
    """The shape and dtype of a node, as a derivative that computes in float32 sees them."""

    def __init__(self, node):
        self.shape = node.shape
        self.dtype = np.dtype(np.float32) if is_bfloat16(node.dtype) else node.dtype


def _rounded(y, first, *others):
    """Returns a float32 output in the dtype of the floating-point inputs, if they share one dtype;
    otherwise the output itself."""
    return y.astype(first) if not others and y.dtype == np.float32 else y


def fit(gx: Any, node: VariableNode, may_be_broadcast: bool) -> Any:
    """Converts a gradient to the dtype of its argument and, if the argument was broadcast, to the
    argument's shape.

    Example:
        >>> x = Variable(np.zeros(3, np.float32))
        >>> fit(np.ones((2, 3)), x.node, True)
        array([2., 2., 2.], dtype=float32)
    """
    if gx is not None and gx.shape != node.shape and may_be_broadcast:
        gx = _fitting["sum_to"](gx, node.shape)
    if gx is not None and gx.dtype != node.dtype:
        gx = _fitting["cast"](gx, node.dtype)
    return gx


_fitting = {}


def fit_with(sum_to: Callable, cast: Callable) -> None:
    """Sets the functions that :func:`fit` uses, which are themselves declared."""
    _fitting.update(sum_to=sum_to, cast=cast)


P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)
Derivative = Callable[..., Any]


class Declare(Protocol):
    """The type of decorators of bodies: the declared function returns a tuple of Variables if the
    body returns a tuple of arrays."""

    @overload
    def __call__(
        self, body: Callable[P, tuple[Output, ...] | tuple[tuple[Output, ...], object]], /
    ) -> "Declared[P, tuple[Variable, ...]]": ...

    @overload
    def __call__(self, body: Callable[P, object], /) -> "Declared[P, Variable]": ...


class Declared(Protocol[P, Result]):
    """A declared function, which is called with Variables or arrays and returns a Variable or a
    tuple of Variables.

    Attributes:
        declaration: the body and derivatives.
        on: the function that derivatives call, because they run on Variables or arrays; see
            :meth:`Declaration.on`.

    Example:
        >>> F.relu.declaration.name
        'relu'
    """

    declaration: Declaration
    on: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...


def elementwise(
    *derivatives: Derivative | None, any_dtype: bool = False
) -> Callable[[Callable[P, object]], Declared[P, Variable]]:
    """Decorator: declares an elementwise function by its derivatives.

    Body and derivatives compute on arrays, using operators and NumPy functions. Derivatives of all
    orders follow from them.

    Args:
        derivatives: for each array argument, a function that returns its gradient, or None if it
            has no gradient. The function's first parameter is the gradient of the output; the names
            of the other parameters select the values that the function receives, as
            :mod:`mpchain.functions.declaring.declaration` lists.
        any_dtype: whether arrays of integers or bool are accepted too.

    Returns:
        Decorator of a body, which takes arrays, followed by constants, and returns an array. The
        arrays broadcast. The declared function keeps the signature of the body; write the body's
        type hints for the callers of the declared function, with :data:`mpchain.typing.Output` as
        the type of the result.

    Raises:
        TypeError: a parameter of a derivative has an unknown name.

    Example:
        >>> @mpchain.elementwise(lambda g, x, slope: g * np.where(x > 0, 1, slope))
        ... def leaky(x, slope=0.5):
        ...     return np.where(x > 0, x, x * slope)
        ...
        >>> x = Variable(np.array([-2.0, 3.0]))
        >>> leaky(x).array
        array([-1.,  3.])
        >>> F.sum(leaky(x)).backward()
        >>> x.grad
        array([0.5, 1. ])
    """
    return lambda body: _publish(
        Declaration(body, derivatives, is_elementwise=True, any_dtype=any_dtype)
    )


@overload
def differentiable(
    *derivatives: Derivative | None, any_dtype: bool = True, takes_bfloat16: bool = False
) -> Callable[[Callable[P, object]], Declared[P, Variable]]: ...


@overload
def differentiable(
    *,
    joint: Derivative,
    n_arrays: int | None = None,
    any_dtype: bool = True,
    takes_bfloat16: bool = False,
) -> Declare: ...


def differentiable(
    *derivatives: Derivative | None,
    joint: Derivative | None = None,
    n_arrays: int | None = None,
    any_dtype: bool = True,
    takes_bfloat16: bool = False,
) -> Callable[..., object]:
    """Decorator: declares a function that is not elementwise by its derivatives.

    Args:
        derivatives: as for :func:`elementwise`; arguments do not broadcast.
        joint: instead of ``derivatives``, one function that returns the gradients of all array
            arguments.
        n_arrays: with ``joint``, the number of array arguments; None means that the only array
            argument is a sequence of arrays.
        any_dtype: whether arrays of integers or bool are accepted too.
        takes_bfloat16: whether the body computes on bfloat16 arrays itself. Otherwise it receives
            float32 copies, and the result is rounded.

    Returns:
        Decorator of a body; see :func:`elementwise`. The body returns an array, or a tuple of
        arrays if a derivative has a parameter ``gys``. If a derivative has a parameter ``aux``, the
        body returns a pair of that result and ``aux``.

    Raises:
        TypeError: a parameter of a derivative has an unknown name.

    Example:
        >>> @mpchain.differentiable(lambda g, x_shape: np.broadcast_to(g, x_shape))
        ... def total(x):
        ...     return x.sum()
        ...
        >>> x = Variable(np.array([1.0, 2.0]))
        >>> (gx,) = mpchain.grad([total(x * x)], [x], enable_double_backprop=True)
        >>> mpchain.grad([total(gx)], [x])[0].array
        array([2., 2.])
    """
    return lambda body: _publish(
        Declaration(
            body, derivatives, joint, n_arrays, any_dtype=any_dtype, takes_bfloat16=takes_bfloat16
        )
    )


def _publish(declaration) -> Any:
    """Returns the public function, which has the body's signature and is applied to Variables or
    arrays."""
    hints = declaration.body.__annotations__
    if hints.get("return") == Output:
        hints["return"] = Variable
    module = "" if declaration.is_own else f"{declaration.body.__module__}."
    registry[module + declaration.name] = declaration
    function = functools.wraps(declaration.body)(declaration.call)
    vars(function).update(declaration=declaration, on=declaration.on)
    return function
