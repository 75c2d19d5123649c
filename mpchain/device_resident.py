"""Objects whose arrays live together on one device, and visitors that move them."""

from typing import TYPE_CHECKING, Any, Self

from mpchain import backend
from mpchain.backends.device import Device
from mpchain.typing import Array, DeviceLike

if TYPE_CHECKING:
    from mpchain.variable import Parameter


class Transferable:
    """Shorthands of ``to_device``, for classes that have this method.

    >>> L.Linear(3, 2).to_cpu().device
    <CpuDevice @numpy>
    """

    if TYPE_CHECKING:

        def to_device(self, device: DeviceLike) -> Any: ...

    def to_cpu(self) -> Self:
        """Moves all arrays to the host; returns the result of ``to_device``."""
        return self.to_device(backend.CpuDevice())

    def to_gpu(self, device: int | None = None) -> Self:
        """Moves all arrays to a GPU (None means the current one); returns the result of
        ``to_device``."""
        cuda = backend.cuda
        cuda.check_cuda_available()
        return self.to_device(
            backend.GpuDevice(cuda.Device() if device is None else cuda.Device(device))
        )

    def to_intel64(self) -> Self:
        """Same as :meth:`to_cpu`."""
        return self.to_device(backend.CpuDevice())

    def to_chx(self) -> None:
        """Raises RuntimeError: mpchain has no ChainerX."""
        backend.to_chx(self)

    def from_chx(self) -> None:
        """Raises RuntimeError: mpchain has no ChainerX."""
        backend.from_chx(self)


class DeviceResident(Transferable):
    """An object whose arrays are on one device; the base of links and distributions.

    >>> L.Linear(3, 2).to_device("@numpy").xp is np
    True
    """

    _device = backend.CpuDevice()

    @property
    def device(self) -> Device:
        """The device of the object's arrays."""
        return self._device

    @property
    def xp(self) -> Any:
        """The array module of the object's device: ``numpy`` or ``cupy``."""
        return self._device.xp

    def device_resident_accept(self, visitor: "DeviceResidentsVisitor") -> None:
        """Shows ``visitor`` the object; subclasses also show it their arrays and children."""
        visitor.visit_device_resident(self)

    def to_device(self, device: DeviceLike) -> Self:
        """Moves all arrays to ``device`` (see :func:`mpchain.get_device`); returns the object."""
        self.device_resident_accept(_Transfer(backend.get_device(device)))
        return self


class DeviceResidentsVisitor:
    """Base of visitors of the arrays of a :class:`DeviceResident`.

    >>> class Count(mpchain.device_resident.DeviceResidentsVisitor):
    ...     n = 0
    ...     def visit_device_resident(self, device_resident): pass
    ...     def visit_variable(self, param): self.n += 1
    >>> count = Count()
    >>> L.Linear(3, 2).device_resident_accept(count)
    >>> count.n
    2
    """

    def visit_device_resident(self, device_resident: DeviceResident) -> None:
        """Called with the object itself and each of its descendants."""
        raise NotImplementedError(f"{type(self).__name__} does not implement visit_device_resident")

    def visit_array(self, array: Array) -> Array:
        """Called with each persistent array; returns its replacement."""
        raise NotImplementedError(f"{type(self).__name__} does not implement visit_array")

    def visit_variable(self, param: "Parameter") -> None:
        """Called with each parameter."""
        raise NotImplementedError(f"{type(self).__name__} does not implement visit_variable")


class _Transfer(DeviceResidentsVisitor):
    def __init__(self, device) -> None:
        self.device = device

    def visit_device_resident(self, device_resident):
        device_resident._device = self.device

    def visit_array(self, array: Array):
        return self.device.send(array)

    def visit_variable(self, param):
        param.to_device(self.device)
