"""The protocol by which objects are saved and restored in any file format.

An object has one method, ``serialize(serializer)``, for saving and loading. The method passes each
value to the serializer and keeps the result: a :class:`Serializer` stores the value and returns it,
a :class:`Deserializer` returns the stored value. ``serializer[key]`` is the serializer of a child.
Before a file is loaded, a :class:`Deserializer` that returns each value unchanged determines which
values the object asks for.

Example:
    >>> class Counter:
    ...     n = 0
    ...     def serialize(self, serializer):
    ...         self.n = serializer("n", self.n)
    >>> mpchain.serializers.save_npz("counter", Counter())
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mpchain.typing import Array


class SerializationError(ValueError):
    """Raised when a file cannot be restored, because the file is damaged or its content does not
    fit the object."""


class DamagedFileError(SerializationError):
    """Raised when the content of a file is damaged."""


class MissingKeyError(SerializationError, KeyError):
    """Raised when a file lacks an entry. The error is also a KeyError, because programs written for
    Chainer catch KeyError.

    Example:
        >>> try:
        ...     mpchain.serializers.NpzDeserializer({}).load(L.Linear(3, 2))
        ... except KeyError as error:
        ...     print(error)
        there is no array 'W'
    """

    __str__ = Exception.__str__  # KeyError.__str__ would put the message in quotes.


class Serializable(Protocol):
    """An object that a serializer can save and restore, such as a link, an optimizer or a
    trainer."""

    def serialize(self, serializer: "AbstractSerializer", /) -> None: ...


class AbstractSerializer:
    """Base of serializers and deserializers.

    Attributes:
        takes_parts: whether each rank saves its own slice of an array, by the serializer's method
            ``part``.
    """

    takes_parts = False

    if TYPE_CHECKING:

        def part(self, key: str, part: Array, start: int, shape: Sequence[int]) -> None: ...

    def __getitem__(self, key: str) -> Any:
        """Returns the serializer of the child that is named ``key``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __getitem__")

    def __call__(self, key: str, value: object) -> Any:
        """Saves or restores one value.

        Args:
            key: the name of the value.
            value: an array, a variable, a scalar, a string or None.

        Returns:
            ``value`` when saving; the restored value when loading. An array is restored in place.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def persistent(self, key: str, value: object) -> Any:
        """Saves or restores a persistent value of a link, which may differ between ranks."""
        return self(key, value)


class Serializer(AbstractSerializer):
    """Base of the serializers that save; see :class:`serializers.DictionarySerializer`."""

    def save(self, obj: "Serializable") -> None:
        """Saves ``obj`` with its ``serialize`` method."""
        obj.serialize(self)


class Deserializer(AbstractSerializer):
    """Base of the serializers that load; see :class:`serializers.NpzDeserializer`.

    Attributes:
        restores (bool): whether the deserializer returns stored values. If False, it returns each
            value unchanged, to determine which values an object asks for.
    """

    restores = True

    if TYPE_CHECKING:  # Type checkers learn here which methods the deserializers of files have.
        npz: Any
        latest: Any

    def load(self, obj: "Serializable") -> None:
        """Restores ``obj`` with its ``serialize`` method."""
        obj.serialize(self)

    def remember(self, obj: object) -> None:
        """Called by an object in ``serialize``, before loaded values replace some of its
        attributes.

        A serializer that only tests whether a load would succeed restores these attributes.
        """
