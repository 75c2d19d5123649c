"""The values of a variable, as Python numbers, NumPy arrays and text."""

import numpy as np

from mpchain.backends import cuda


class Values:
    """What a Variable tells of its array to what knows no Variables."""

    def item(self):
        """Returns the one element as a Python scalar."""
        return self._checked_array("item").item()

    def __float__(self):
        return float(self._only_element("float"))

    def __int__(self):
        return int(self._only_element("int"))

    def _only_element(self, function):
        if self.size != 1:
            raise TypeError(
                f"{function}: {self._called()} must have one element, but has shape {self.shape}"
            )
        return self.item()

    def __array__(self, dtype=None, copy=None):
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

    def summary(self):
        """Returns name, shape and dtype in one line."""
        name = "" if self._name is None else f" {self._name}"
        return f"<variable{name} {self.label}>"

    def debug_print(self):
        """Returns a description with device, shape, dtype and statistics of array and gradient."""
        lines = [self.summary(), f"- device: {self.device}", f"- backend: {type(self._array)}"]
        if self._array is not None:
            lines += [f"- shape: {self.shape}", f"- dtype: {self.dtype}"]
            lines.append(f"- statistics: {_statistics(self._array)}")
        lines.append("- grad: " + ("None" if self.grad is None else _statistics(self.grad)))
        return "\n".join(lines)

    def __repr__(self):
        return self._text(", ")

    def __str__(self):
        return self._text(" ")

    def _text(self, separator):
        prefix = "variable(" if self._name is None else f"variable {self._name}("
        if self._array is None:
            return f"{prefix}None)"
        host = cuda.to_cpu(self._array)
        return f"{prefix}{np.array2string(host, separator=separator, prefix=prefix)})"


def _statistics(array):
    if array.size == 0:
        return "empty"
    array = cuda.to_cpu(array).astype(np.float64)
    return ", ".join(
        f"{name}={getattr(array, name)():.8g}" for name in ("mean", "std", "min", "max")
    )
