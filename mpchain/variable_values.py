"""The array of a variable: its shape, and its values as numbers, NumPy arrays and text."""

from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.typing import DTypeLike

if TYPE_CHECKING:
    from mpchain.backends.device import Device
    from mpchain.variable import Variable


def is_array(value: Any) -> bool:
    """Returns whether a Variable can hold ``value``.

    Example:
        >>> is_array(np.zeros(2)), is_array([0.0, 0.0])
        (True, False)
    """
    # A symbol passes for an array, so that formulas on Variables can be written down.
    return isinstance(value, np.ndarray) or cuda.is_gpu_array(value) or hasattr(value, "is_symbol")


class Values:
    """The part of Variable that describes its array, for what knows no Variables.

    Example:
        >>> x = Variable(np.full((1, 1), 2.5), name="x")
        >>> x.shape, x.item(), x.summary()
        ((1, 1), 2.5, '<variable x (1, 1), float64>')
    """

    if TYPE_CHECKING:  # mpchain.functions.protocol sets these

        def _binary(self, other: Any) -> "Variable": ...
        def _unary(self) -> "Variable": ...
        def _of_axes(self, *args: Any, **kwargs: Any) -> "Variable": ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _binary
        __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _binary
        __pow__ = __rpow__ = __getitem__ = _binary
        __neg__ = __pos__ = __abs__ = _unary
        T = property(_unary)
        mean = reshape = transpose = _of_axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._checked_array("shape").shape

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
        return self._checked_array("dtype").dtype

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
            raise RuntimeError(f"{self._called()} has no array yet, and so no {what}")
        return self._array

    def _called(self):
        name = type(self).__name__
        return name if self._name is None else f"{name} {self._name!r}"

    def item(self) -> Any:
        """Returns the one element as a Python scalar."""
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
        """Returns the array, for ``numpy.asarray`` and libraries that plot or analyze."""
        if self._requires_grad and self.creator_node is not None:
            raise TypeError(
                f"{self._called()} was computed by {self.creator_node.label}, and as a NumPy array "
                "it would lose its history: use its attribute array"
            )
        array = self._checked_array("values")
        if cuda.is_gpu_array(array):
            raise TypeError(f"{self._called()} is on a GPU: use mpchain.cuda.to_cpu(x.array)")
        return np.asarray(array, dtype=dtype, copy=copy)

    def summary(self) -> str:
        """Returns name, shape and dtype in one line."""
        name = "" if self._name is None else f" {self._name}"
        return f"<variable{name} {self.label}>"

    def debug_print(self) -> str:
        """Returns a description with device, shape, dtype and statistics of array and gradient."""
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
        host = cuda.to_cpu(self._array)
        return f"{prefix}{np.array2string(host, separator=separator, prefix=prefix)})"

    def _check_grad(self, grad):
        x = self._array
        if type(grad) is type(x) and grad.shape == x.shape and grad.dtype == x.dtype:
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


def _statistics(array):
    if array.size == 0:
        return "empty"
    array = cuda.to_cpu(array).astype(np.float64)
    return ", ".join(
        f"{name}={getattr(array, name)():.8g}" for name in ("mean", "std", "min", "max")
    )
