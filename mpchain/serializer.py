"""The protocol by which objects are saved and restored, whatever the file format.

An object has one method, ``serialize(serializer)``, for both directions. It hands each value to the
serializer and keeps what comes back: a :class:`Serializer` stores the value and returns it, a
:class:`Deserializer` returns the stored one. ``serializer[key]`` is the serializer of a child.
Before a file is loaded, a :class:`Deserializer` that returns each value as it is finds out what the
object asks for.
"""

import abc


class SerializationError(ValueError):
    """A file cannot be restored: it is damaged, or what it holds does not fit the object."""


class DamagedFileError(SerializationError):
    """The content of a file is damaged (not: it does not fit, or could not be read this time)."""


class MissingKeyError(SerializationError, KeyError):
    """The file has no entry of that name (programs that know older files catch it as KeyError)."""

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class AbstractSerializer(abc.ABC):
    """What serializers and deserializers have in common."""

    @abc.abstractmethod
    def __getitem__(self, key):
        """Returns the serializer of the child with that name."""

    @abc.abstractmethod
    def __call__(self, key, value):
        """Saves or restores one value.

        Args:
            key (str): its name.
            value: an array, a variable, a scalar, a string or None.

        Returns:
            ``value`` when saving; the restored value when loading. An array is restored in place.
        """


class Serializer(AbstractSerializer):
    """Base of the serializers that save."""

    def save(self, obj):
        """Saves ``obj`` by its ``serialize`` method."""
        obj.serialize(self)


class Deserializer(AbstractSerializer):
    """Base of the serializers that load.

    Attributes:
        restores (bool): whether it returns what is stored; if not, it returns each value as it is,
            to find out what an object asks for.
    """

    restores = True

    def load(self, obj):
        """Restores ``obj`` by its ``serialize`` method."""
        obj.serialize(self)
