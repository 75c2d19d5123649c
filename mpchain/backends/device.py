"""What every kind of device has in common."""


class Device:
    """A place where arrays live and computations run.

    Attributes:
        xp: the array module (``numpy`` or ``cupy``).
        name: the specifier that :func:`mpchain.get_device` turns into this device: ``'@numpy'``.
        supported_array_types: tuple of array types that the device can use.
    """

    xp = None
    name = None
    supported_array_types = ()

    def __eq__(self, other):
        return type(self) is type(other) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"<{type(self).__name__} {self.name}>"

    def __str__(self):
        return self.name

    def __enter__(self):
        raise RuntimeError(
            f"device {self.name}: use 'with mpchain.using_device({self.name!r})' to make it current"
        )

    def __exit__(self, exc_type, exc_value, traceback):
        return None

    def create_context(self):
        """Returns a context manager in which the device is the current one of its kind."""
        return self

    def use(self):
        """Makes the device the current one of its kind in this thread."""

    def send(self, arrays):
        """Transfers an array, or a tuple, list or dict of arrays (None included), to the device.

        What is there already is returned as it is, not copied.
        """
        if isinstance(arrays, (tuple, list)):
            return type(arrays)([self.send(array) for array in arrays])
        if isinstance(arrays, dict):
            return {key: self.send(array) for key, array in arrays.items()}
        return None if arrays is None else self.send_array(arrays)

    def send_array(self, array):
        """Transfers one array to the device."""
        raise NotImplementedError(f"{type(self).__name__} does not implement send_array")

    def is_array_supported(self, array):
        """Returns whether ``array`` lives on this device."""
        return isinstance(array, self.supported_array_types)
