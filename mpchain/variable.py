"""Variables: arrays with the graph of the functions that computed them."""

import contextlib
import copy
import math
import numbers
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import numpy as np

from mpchain import backend, backprop, row_gradients
from mpchain.backends.cuda import is_gpu_array
from mpchain.configuration import config, get_dtype
from mpchain.device_resident import Transferable
from mpchain.from_pytorch import with_names
from mpchain.kernels.cpu.loops import add_arrays
from mpchain.typing import Array, DeviceLike, DTypeLike, InitialValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from mpchain.backends.device import Device
    from mpchain.function_node import FunctionNode


def is_array(value: object) -> TypeGuard[Array]:
    """Returns whether a Variable can hold ``value``.

    Example:
        >>> is_array(np.zeros(2)), is_array([0.0, 0.0])
        (True, False)
    """
    # A symbol counts as an array, so that functions of Variables can be traced into formulas.
    return isinstance(value, np.ndarray) or is_gpu_array(value) or hasattr(value, "is_symbol")


def get_array_types() -> tuple[type, ...]:
    """Returns the types of array that a Variable can hold.

    Example:
        >>> np.ndarray in mpchain.get_array_types()
        True
    """
    return (np.ndarray, backend.cuda.ndarray)


def get_cpu_array_types() -> tuple[type, ...]:
    """Returns the types of array in host memory that a Variable can hold.

    Example:
        >>> [t.__name__ for t in mpchain.get_cpu_array_types()]
        ['ndarray']
    """
    return (np.ndarray,)


def is_arrays_compatible(arrays: Iterable[Any]) -> bool:
    """Returns whether all arrays are on GPUs, or none is. None elements are ignored.

    Example:
        >>> mpchain.is_arrays_compatible([np.zeros(2), None, np.ones(3)])
        True
    """
    on_gpu = {is_gpu_array(array) for array in arrays if array is not None}
    return len(on_gpu) <= 1


def as_variable(obj: "Variable | Array") -> "Variable":
    """Returns ``obj`` if it is a Variable, else a Variable that holds the array and needs no
    gradient.

    Example:
        >>> mpchain.as_variable(np.ones(2)).requires_grad
        False
    """
    if isinstance(obj, Variable):
        return obj
    if obj is None:
        raise _no_array("as_variable: obj", obj)
    return Variable(obj, requires_grad=False)


own_grad = operator.attrgetter("_grad")
"""Returns a Variable's gradient array; None if there is no gradient, or if the gradient has become
a Variable."""


def set_grads(grads: Iterable[tuple["Variable", Any]]) -> None:
    """Sets gradients without checks, which would take a long time for thousands of parameters.

    Args:
        grads: pairs of a Variable and its gradient: an array of the same shape, dtype and device,
            or None.

    Example:
        >>> x = Variable(np.ones(2))
        >>> set_grads([(x, np.zeros(2))])
        >>> x.grad
        array([0., 0.])
    """
    for variable, grad in grads:
        variable._grad, variable._grad_var = grad, None


def _no_array(argument, value):
    """Returns the TypeError for a value that is not an array. The error's attribute ``obj`` lets
    functions name the argument."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    error: Any = TypeError(f"{argument} must be a numpy.ndarray or cupy.ndarray, not {kind}")
    error.obj = value
    return error


def as_array(obj: "ArrayLike | Variable") -> Array:
    """Returns the array of a Variable, or ``obj`` as an array.

    Example:
        >>> mpchain.as_array(Variable(np.ones(2)))
        array([1., 1.])
    """
    if isinstance(obj, Variable):
        return obj.array
    return obj if is_array(obj) else np.asarray(obj)


class VariableNode:
    """A variable's node in the graph. The node does not hold the array, so that the array can be
    freed.

    Attributes:
        creator_node: the :class:`FunctionNode` that computed the variable, or None for a leaf.
        output_index: the index of the variable among the function's outputs.
        shape, dtype, requires_grad, name: the properties of the variable.

    Example:
        >>> (Variable(np.ones(2)) * 2).node.creator_node.label
        'multiply_by_constant'
    """

    creator_node: Any = None
    output_index = 0
    requires_grad = True
    name: str | None = None
    shape: Any = None
    dtype: Any = None
    _retained: Any = None

    def __init__(self, variable: "Variable"):
        array = variable._array
        self._variable = weakref.ref(variable)
        if array is not None:
            self.shape = array.shape
            self.dtype = array.dtype

    @property
    def creator(self) -> Any:
        """The function that computed the variable, None for a leaf. For an old-style Function, this
        is the Function, while :attr:`creator_node` is its node."""
        node = self.creator_node
        return node if node is None else node.creator()

    @creator.setter
    def creator(self, function: object) -> None:
        self.set_creator(function)

    @property
    def data(self) -> Any:
        """The array, if the variable is alive or the node retains the array; else None."""
        if self._retained is not None:
            return self._retained
        variable = self._variable()
        return None if variable is None else variable._array

    @property
    def grad(self) -> Array | None:
        """The gradient array of the variable; None if the variable was freed or has no gradient."""
        variable = self._variable()
        return None if variable is None else variable.grad

    @property
    def grad_var(self) -> "Variable | None":
        """The gradient of the variable, as a Variable; None if the variable was freed or has no
        gradient."""
        variable = self._variable()
        return None if variable is None else variable.grad_var

    @property
    def label(self) -> str:
        """A short text of shape and dtype that graphs show: ``(2, 3), float32``."""
        if not self.shape:
            return "uninitialized" if self.shape is None else str(self.dtype)
        return f"({', '.join(map(str, self.shape))}), {self.dtype}"

    @property
    def rank(self) -> int:
        """The number of functions on the longest path from a leaf."""
        return 0 if self.creator_node is None else self.creator_node.rank + 1

    def get_variable_or_none(self) -> "Variable | None":
        """Returns the variable of this node; None if the variable was freed."""
        return self._variable()

    def get_variable(self) -> "Variable":
        """Returns the variable of this node. If the variable was freed, returns a new Variable,
        which has the array only if the node retains the array."""
        variable = self._variable()
        return self.variable_with(self._retained) if variable is None else variable

    def variable_with(self, array: Array | None) -> "Variable":
        """Returns a variable of this node that holds ``array``: the existing variable if it holds
        ``array``, else a new one."""
        variable = self._variable()
        if variable is None or variable._array is not array:
            variable = Variable.__new__(Variable)
            variable._array = array
            variable._requires_grad = self.requires_grad
            variable._node = self
            if self._variable() is None:
                self._variable = weakref.ref(variable)
        return variable

    def retain_data(self) -> None:
        """Keeps the array of the variable for as long as the node lives."""
        variable = self._variable()
        if variable is None:
            raise RuntimeError("VariableNode.retain_data: the variable of this node was freed")
        self._retained = variable._array

    def set_creator(self, creator: object) -> None:
        """Sets the function that computed the variable."""
        self.set_creator_node(getattr(creator, "node", creator))

    def set_creator_node(self, creator_node: "FunctionNode | None") -> None:
        """Sets the function node that computed the variable."""
        self.creator_node = creator_node

    def unchain(self) -> None:
        """Makes the variable a leaf."""
        self.creator_node = None


@with_names("Variable")
class Variable(Transferable):
    """An array with the history of its computation.

    Args:
        data: ``numpy.ndarray`` or ``cupy.ndarray``; None leaves the variable without an array.
        name: the name that graphs and messages show.
        grad: initial gradient array, of the shape and dtype of ``data``.
        requires_grad: whether gradients flow into the variable.

    Comparison operators raise TypeError, because ``==`` cannot be differentiated: compare the
    arrays. NumPy functions that mpchain knows (``np.exp(x)``, ``np.sum(x, axis=0)``) accept
    Variables.

    Example:
        >>> x = Variable(np.array([1.0, 2.0]))
        >>> F.sum(x * x).backward()
        >>> x.grad
        array([2., 4.])
    """

    if TYPE_CHECKING:  # mpchain.functions.declaring.protocol sets these methods.

        def _binary(self, other: Any) -> "Variable": ...
        def _unary(self) -> "Variable": ...
        def _of_axes(self, *args: Any, **kwargs: Any) -> "Variable": ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _binary
        __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _binary
        __pow__ = __rpow__ = __getitem__ = _binary
        __neg__ = __pos__ = __abs__ = _unary
        T = property(_unary)
        mean = reshape = transpose = _of_axes

    __array_priority__ = 200
    __hash__: ClassVar[None] = None

    _requires_grad = True
    _node = None
    _name = None
    _grad: Any = row_gradients.GradientOnRequest()
    _grad_var = None

    def __init__(
        self,
        data: Array | None = None,
        *,
        name: str | None = None,
        grad: Array | None = None,
        requires_grad: bool = True,
    ):
        if data is not None and not is_array(data):
            raise _no_array("Variable: data", data)
        self._array = data
        self._requires_grad = requires_grad
        if name is not None:
            self._name = name
        if grad is not None:
            self.grad = grad

    @property
    def array(self) -> Any:
        """The array."""
        return self._array

    @array.setter
    def array(self, array: Array | None) -> None:
        self._array = array
        if self._node is not None and array is not None:
            self._node.shape, self._node.dtype = array.shape, array.dtype

    data = array
    raw_array = array

    @property
    def node(self) -> VariableNode:
        """The variable's :class:`VariableNode`."""
        node = self._node
        if node is None:
            node = self._node = VariableNode(self)
            node.requires_grad = self._requires_grad
            node.name = self._name
        return node

    @property
    def name(self) -> str | None:
        """The name, shown in graphs and messages."""
        return self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name
        if self._node is not None:
            self._node.name = name

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow into the variable. This is set when the variable is created."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        raise AttributeError(
            f"{self._called()}.requires_grad cannot be set: to keep optimizers from updating a "
            "link's parameters, use link.disable_update(); to make a variable without a gradient, "
            "use Variable(array, requires_grad=False)"
        )

    @property
    def rank(self) -> int:
        """The number of functions on the longest path from a leaf."""
        return self.node.rank

    @property
    def label(self) -> str:
        """A short text of shape and dtype, such as ``(2, 3), float32``."""
        return self.node.label

    @property
    def layout(self) -> None:
        """The memory layout: always None, the plain layout."""
        return None

    def as_layout(self, layout: None) -> "Variable":
        """Returns the variable itself; None is the only layout."""
        if layout is not None:
            raise ValueError(f"Variable.as_layout: layout must be None, not {layout!r}")
        return self

    @property
    def grad(self) -> Any:
        """The gradient array, or None."""
        if self._grad is None and self._grad_var is not None:
            return self._grad_var.array
        return self._grad

    @grad.setter
    def grad(self, grad: Array | np.generic | None) -> None:
        if isinstance(grad, np.generic):
            grad = np.asarray(grad)
        if grad is not None:
            self._check_grad(grad)
        self._grad, self._grad_var = grad, None

    @property
    def grad_var(self) -> "Variable | None":
        """The gradient as a Variable whose ``array`` is :attr:`grad`, or None."""
        if self._grad_var is None and self._grad is not None:
            self._grad_var = Variable(self._grad, requires_grad=True)
            self._grad = None
        return self._grad_var

    @grad_var.setter
    def grad_var(self, grad_var: "Variable | None") -> None:
        if grad_var is not None:
            self._check_grad(grad_var.array)
        self._grad, self._grad_var = None, grad_var

    def accumulate_grad(self, grad: "Variable | Array") -> None:
        """Adds ``grad``, an array or a Variable with its graph, to the gradient."""
        if isinstance(grad, Variable):
            old = self.grad_var
            self.grad_var = grad if old is None else old + grad
        else:
            old = self._grad if self._grad_var is None else self.grad
            self.grad = grad if old is None else as_array(add_arrays(old, grad))

    def addgrad(self, var: "Variable") -> None:
        """Adds the gradient of ``var`` to the gradient of this variable; a missing gradient counts
        as zeros."""
        gradient = var.grad_var
        if gradient is not None:
            if gradient.device != self.device:
                gradient = Variable(self.device.send(gradient.array))
            old = self.grad_var
            self.grad_var = gradient if old is None else old + gradient

    def cleargrad(self) -> None:
        """Removes the gradient."""
        self._grad = self._grad_var = None

    def zerograd(self) -> None:
        """Sets the gradient to zeros. Deprecated: use :meth:`cleargrad`, which takes less time."""
        self.grad = None if self._array is None else self.xp.zeros_like(self._array)

    def copydata(self, var: "Variable") -> None:
        """Copies the values of the array of ``var`` into the array of this variable, across
        devices.

        A parameter without an array is first initialized with the shape of the other variable. If
        the other variable has no array either, nothing is copied.

        Raises:
            ValueError: a variable has no array and cannot be initialized.
        """
        for variable, other in ((self, var), (var, self)):
            if isinstance(variable, Parameter) and variable.array is None:
                if other.array is None:
                    return
                variable.initialize(other.shape)
        source, target = var.array, self.array
        if source is None or target is None:
            raise ValueError("Variable.copydata: both variables must have an array")
        backend.copyto(target, source)

    def backward(
        self,
        retain_grad: bool = False,
        enable_double_backprop: bool = False,
        loss_scale: float | None = None,
        *,
        on_leaf: Callable[..., object] | None = None,
    ) -> None:
        """Backpropagates from this variable and accumulates gradients in the leaves.

        Args:
            retain_grad: whether to keep the gradients of intermediate variables.
            enable_double_backprop: whether to record the graph of the gradients.
            loss_scale: factor on the initial gradient, if ``grad`` is not set.
            on_leaf: function that is called with each leaf variable as soon as its gradient is
                final, while backward continues.

        Raises:
            ValueError: the variable has several elements and its ``grad`` is not set.
        """
        backprop.backward_from(self, retain_grad, enable_double_backprop, loss_scale, on_leaf)

    @property
    def creator(self) -> Any:
        """The function that computed the variable, None for a leaf."""
        return None if self._node is None else self._node.creator

    @creator.setter
    def creator(self, function: object) -> None:
        self.set_creator(function)

    @property
    def creator_node(self) -> "FunctionNode | None":
        """The :class:`FunctionNode` that computed the variable, None for a leaf."""
        return None if self._node is None else self._node.creator_node

    @creator_node.setter
    def creator_node(self, function: "FunctionNode | None") -> None:
        self.set_creator_node(function)

    def set_creator(self, gen_func: object) -> None:
        """Sets the function that computed the variable."""
        self.node.set_creator(gen_func)

    def set_creator_node(self, fnode: "FunctionNode | None") -> None:
        """Sets the function node that computed the variable."""
        self.node.set_creator_node(fnode)

    def retain_data(self) -> None:
        """Keeps the array for as long as the node lives."""
        self.node.retain_data()

    def unchain(self) -> None:
        """Makes the variable a leaf: removes the link to the function that computed it."""
        if self._node is not None:
            self._node.unchain()

    def unchain_backward(self) -> None:
        """Turns this variable and all variables from which it was computed into leaves (truncated
        backpropagation)."""
        stack = [self.node]
        while stack:
            node = stack.pop()
            function = node.creator_node
            if function is not None:
                node.unchain()
                stack.extend(function.inputs)

    def to_device(self, device: DeviceLike) -> None:
        """Moves the array and the gradient to ``device``, and changes this variable in place. Only
        a leaf can be moved."""
        device = backend.get_device(device)
        if self.creator_node is not None:
            raise RuntimeError(
                "Variable.to_device: only a leaf can be moved, not a computed variable"
            )
        grad = self.grad
        self._array = device.send(self._array)
        self._grad, self._grad_var = device.send(grad), None

    def __copy__(self) -> "Variable":
        # The copy is a leaf with the same array, but with its own gradient.
        return _restore(type(self), {**self.__dict__, "_node": None})

    def __deepcopy__(self, memo: dict) -> "Variable":
        return _restore(type(self), copy.deepcopy(self.__getstate__(), memo))

    def __reduce__(self) -> tuple:
        return _restore, (type(self), self.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickling: everything but the graph; a copy is a leaf."""
        grad = self.grad
        return {**self.__dict__, "_node": None, "_grad": grad, "_grad_var": None}

    def _not_comparable(self, other):
        raise TypeError("Variables cannot be compared: compare their arrays (x.array > y.array)")

    __lt__ = __le__ = __eq__ = __ne__ = __gt__ = __ge__ = _not_comparable

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return (self._array if self._array is not None else self._checked_array("shape")).shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._checked_array("ndim").ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._checked_array("size").size

    @property
    def dtype(self) -> np.dtype:
        """The array's dtype."""
        return (self._array if self._array is not None else self._checked_array("dtype")).dtype

    @property
    def xp(self) -> Any:
        """``numpy`` or ``cupy``."""
        return self.device.xp

    @property
    def device(self) -> "Device":
        """The device that the array is on."""
        return backend.get_device_from_array(self._array)

    def __len__(self) -> int:
        return len(self._checked_array("length"))

    def __bool__(self) -> bool:
        raise TypeError("the truth value of a Variable is not defined: compare its array")

    def _checked_array(self, what):
        if self._array is None:
            raise RuntimeError(f"{self._called()} has no array yet, so it has no {what}")
        return self._array

    def _called(self):
        name = type(self).__name__
        return name if self._name is None else f"{name} {self._name!r}"

    def item(self) -> Any:
        """Returns the only element as a Python scalar."""
        return self._checked_array("item").item()

    def __float__(self) -> float:
        return float(self._only_element("float"))

    def __format__(self, spec: str) -> str:
        return format(self._only_element("format"), spec) if spec else str(self)

    def __int__(self) -> int:
        return int(self._only_element("int"))

    def _only_element(self, function):
        if self.size != 1:
            raise TypeError(
                f"{function}: {self._called()} must have one element, but has shape {self.shape}"
            )
        return self.item()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Returns the array, for ``numpy.asarray`` and for libraries that plot or analyze
        arrays."""
        if self._requires_grad and self.creator_node is not None:
            raise TypeError(
                f"{self._called()} was computed by {self.creator_node.label}, and its graph would "
                "be lost in a NumPy array: use its attribute array"
            )
        array = self._checked_array("values")
        if is_gpu_array(array):
            raise TypeError(f"{self._called()} is on a GPU: use mpchain.cuda.to_cpu(x.array)")
        return np.asarray(array, dtype=dtype, copy=copy)

    def summary(self) -> str:
        """Returns name, shape and dtype in one line."""
        name = "" if self._name is None else f" {self._name}"
        return f"<variable{name} {self.label}>"

    def debug_print(self) -> str:
        """Returns a text of several lines with the device, shape, dtype and statistics of the array
        and the gradient."""
        lines = [self.summary(), f"- device: {self.device}", f"- backend: {type(self._array)}"]
        if self._array is not None:
            lines += [f"- shape: {self.shape}", f"- dtype: {self.dtype}"]
            lines.append(f"- statistics: {_statistics(self._array)}")
        lines.append("- grad: " + ("None" if self.grad is None else _statistics(self.grad)))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self._text(", ")

    def __str__(self) -> str:
        return self._text(" ")

    def _text(self, separator):
        prefix = "variable(" if self._name is None else f"variable {self._name}("
        if self._array is None:
            return f"{prefix}None)"
        host = backend.cuda.to_cpu(self._array)
        return f"{prefix}{np.array2string(host, separator=separator, prefix=prefix)})"

    def _check_grad(self, grad):
        x = self._array
        if x is not None and type(grad) is type(x):
            if grad.shape == x.shape and grad.dtype == x.dtype:
                return
        if not is_array(grad):
            raise TypeError(
                f"{self._called()}.grad must be a numpy.ndarray or cupy.ndarray, "
                f"not {type(grad).__name__}"
            )
        if self._array is not None:
            if grad.shape != self._array.shape:
                raise ValueError(
                    f"{self._called()}.grad must have the shape of its array: "
                    f"grad {grad.shape}, array {self._array.shape}"
                )
            if grad.dtype != self._array.dtype:
                raise TypeError(
                    f"{self._called()}.grad must have the dtype of its array: "
                    f"grad {grad.dtype}, array {self._array.dtype}"
                )


def _restore(cls, state):
    variable = cls.__new__(cls)
    variable.__dict__.update(state)
    return variable


class Parameter(Variable):
    """A variable that an optimizer updates, whose shape may become known only at its first use.

    Args:
        initializer: an Initializer (a callable that fills an array in place), a scalar, or an
            array, which becomes the parameter's array; None fills the array with NaN, so that a
            forgotten initialization is visible.
        shape: the shape, an int or a tuple; None means the shape of ``initializer`` if this is an
            array, and otherwise leaves the parameter uninitialized until :meth:`initialize` is
            called.
        name: the name that graphs and messages show.

    Attributes:
        divided_among: the communicator of the ranks that each hold a part of the parameter; None,
            the default, if the parameter is not divided. Norms of the parameter include all parts.

    Example:
        >>> W = mpchain.Parameter(mpchain.initializers.Constant(0.5))  # shape known later
        >>> W.initialize((1, 2))
        >>> W.array
        array([[0.5, 0.5]], dtype=float32)
    """

    initializer: Any = None
    update_rule: Any = None
    divided_among: Any = None
    update_enabled = True
    _initial_device = backend.CpuDevice()

    def __init__(
        self,
        initializer: InitialValue = None,
        shape: int | Sequence[int] | None = None,
        name: str | None = None,
    ):
        if initializer is None:
            initializer = math.nan
        if is_array(initializer):
            if shape is not None and tuple(np.atleast_1d(shape)) != initializer.shape:
                raise ValueError(
                    f"Parameter: shape {shape} differs from the initial array's {initializer.shape}"
                )
            super().__init__(initializer, name=name)
        else:
            if not callable(initializer) and not isinstance(initializer, numbers.Number):
                raise TypeError(
                    "Parameter: initializer must be an Initializer, a scalar or an array, "
                    f"not {type(initializer).__name__}"
                )
            super().__init__(name=name)
            self.initializer = initializer
            if shape is not None:
                self.initialize(shape)

    @property
    def enabled(self) -> bool:
        """Raises AttributeError, because the update rule and the link decide whether a parameter is
        updated."""
        raise AttributeError(f"{type(self).__name__} has no attribute 'enabled'")

    @enabled.setter
    def enabled(self, value: bool) -> None:
        raise AttributeError(
            f"{self._called()}.enabled cannot be set: use link.disable_update() or, once an "
            "optimizer is set up, param.update_rule.enabled"
        )

    @property
    def is_initialized(self) -> bool:
        """Whether the parameter has an array."""
        return self._array is not None

    @property
    def dtype(self) -> np.dtype:
        """The dtype. Before initialization, this is the initializer's dtype, or the configured
        dtype if the initializer has none."""
        if self._array is not None:
            return self._array.dtype
        # The dtype of a NumPy scalar is ignored, because numbers take the dtype of the
        # configuration.
        given = getattr(self.initializer, "dtype", None) if callable(self.initializer) else None
        return get_dtype(given)

    @property
    def device(self) -> "Device":
        """The device of the array, or the device on which the array will be made."""
        return self._initial_device if self._array is None else super().device

    def initialize(self, shape: int | Sequence[int]) -> None:
        """Makes the array in the given shape, and fills the array with the initializer."""
        shape = (int(shape),) if np.isscalar(shape) else tuple(shape)
        array = np.empty(shape, self.dtype)
        if callable(self.initializer):
            self.initializer(array)
        else:
            array[...] = self.initializer
        self._node = None
        self._array = self._initial_device.send(array)
        if config.debug and math.isnan(self._array.sum()) and callable(self.initializer):
            raise RuntimeError(f"{self._called()}: NaN in the initial values")

    def to_device(self, device: DeviceLike) -> None:
        """Moves the array and the gradient to ``device``. If the parameter is uninitialized, its
        array will be made on ``device``."""
        device = backend.get_device(device)
        if self._array is None:
            self._initial_device = device
        else:
            super().to_device(device)

    @contextlib.contextmanager
    def standing_for(self, value: Variable) -> Iterator[None]:
        """Context manager: within the block, the parameter has the array and the graph of
        ``value``.

        >>> W, x = mpchain.Parameter(np.ones(2)), Variable(np.zeros(2))
        >>> with W.standing_for(x):
        ...     y = F.exp(W)
        >>> W.array, mpchain.grad([y], [x])
        (array([1., 1.]), [variable([1., 1.])])
        """
        before = self._array, self._node
        self._array, self._node = value.array, value.node
        try:
            yield
        finally:
            self._array, self._node = before

    def update(self) -> None:
        """Updates the array by the parameter's update rule, if the parameter has one."""
        if self.update_rule is not None:
            self.update_rule.update(self)


def _statistics(array):
    if array.size == 0:
        return "empty"
    array = backend.cuda.to_cpu(array).astype(np.float64)
    return ", ".join(
        f"{name}={getattr(array, name)():.8g}" for name in ("mean", "std", "min", "max")
    )
