"""The base class of devices."""

from types import TracebackType
from typing import Any, Self

from mpchain.typing import Array


class Device:
    """A place where arrays live and computations run.

    Attributes:
        xp: the array module (``numpy`` or ``cupy``).
        name: the specifier, such as ``'@numpy'``, from which :func:`mpchain.get_device` returns
            this device.
        supported_array_types: tuple of array types that the device can use.

    Example:
        >>> device = mpchain.get_device("@numpy")
        >>> device.send((np.zeros(2), None)), device.is_array_supported(np.zeros(2))
        ((array([0., 0.]), None), True)
    """

    xp: Any = None
    name: Any = None
    supported_array_types: tuple[type, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __str__(self) -> str:
        return self.name

    def __enter__(self) -> Self:
        raise RuntimeError(
            f"device {self.name}: use 'with mpchain.using_device({self.name!r})' to make it current"
        )

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def create_context(self) -> Any:
        """Returns a context manager in which this device is the current device of its kind."""
        return self

    def use(self) -> None:
        """Makes this device the current device of its kind in this thread."""

    def is_current(self) -> bool:
        """Returns whether this device is the current device of its kind in this thread."""
        return True

    def send(self, arrays: object) -> Any:
        """Transfers an array, or a tuple, list or dict of arrays (None included), to the device.

        Arrays that are already on the device are returned, not copied.
        """
        if isinstance(arrays, (tuple, list)):
            return type(arrays)([self.send(array) for array in arrays])
        if isinstance(arrays, dict):
            return {key: self.send(array) for key, array in arrays.items()}
        return None if arrays is None else self.send_array(arrays)

    def send_array(self, array: object) -> Array:
        """Transfers one array to the device."""
        raise NotImplementedError(f"{type(self).__name__} does not implement send_array")

    @staticmethod
    def from_array(array: object) -> "Device | None":
        """Returns the device of this class on which an array lives, or None."""
        return None

    def is_array_supported(self, array: object) -> bool:
        """Returns whether ``array`` lives on this device."""
        return isinstance(array, self.supported_array_types)
