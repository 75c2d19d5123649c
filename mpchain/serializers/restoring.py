"""Restores an object from stored arrays: completely, or not at all if an array does not match."""

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mpchain.serializer import DamagedFileError, Deserializer, MissingKeyError, SerializationError
from mpchain.serializers.values import header_of, is_array, misfit
from mpchain.typing import Array

_MOST_LISTED = 20  # the most names in a message
_OF_CONTENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""The exceptions that an object may raise if it gets values that it does not expect."""


class StoredArrays(Mapping[str, Array]):
    """The arrays of an open file by name, which are read on access.

    Subclasses define :meth:`read`, :meth:`header` and :meth:`verify`.

    Args:
        entries: dict from the name of each array to its entry in the file.
    """

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries, self._kept = entries, {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Array:
        return self._kept[key] if key in self._kept else self.read(key)

    def read(self, key: str) -> Array:
        """Reads the array with a name from the file."""
        raise NotImplementedError

    def header(self, key: str) -> tuple[tuple[int, ...], Any] | None:
        """Returns (shape, dtype) of an array without reading it; None for a stored None."""
        raise NotImplementedError

    def verify(self, keys: Collection[str]) -> None:
        """Verifies all arrays; keeps the arrays named in ``keys`` in memory."""
        raise NotImplementedError


def restore_checked(function: str, file: str, deserializer: Deserializer, obj: object) -> None:
    """Restores an object after checking that all arrays that it requests exist and match.

    Mismatched and missing arrays are found first, from the shapes and dtypes in the file. The
    content that the object requests is then read and verified. Only then is the first array
    overwritten.

    Args:
        function: the public function, for messages.
        file: name of the file, for messages.
        deserializer: an ``NpzDeserializer``. Its ``npz`` is a mapping, which may have methods
            ``header`` and ``verify`` like those of :class:`StoredArrays`.
        obj: the object.

    Raises:
        SerializationError: an array does not match, is missing or is damaged, or the object cannot
            use a value; the message names the file and the entry.
    """
    try:
        asked = _check(deserializer, obj)
        _verify(deserializer.npz, asked)
        deserializer.load(obj)
    except SerializationError as error:
        raise type(error)(f"{function}: {file}: {error}") from error
    except _OF_CONTENT as error:
        raise SerializationError(
            f"{function}: {file}: {deserializer.latest[0]!r} cannot be restored: "
            f"{type(error).__name__}: {error}"
        ) from error


def _verify(arrays, keys):
    if hasattr(arrays, "verify"):
        arrays.verify(keys)


def _check(deserializer, obj):
    """Returns the names that ``obj`` requests; raises SerializationError if arrays do not match."""
    probe = _Probe(deserializer)
    _run(probe, obj)
    probe.give_back()
    if probe.missing and not any(probe.asked.values()):
        # An object's scalars can determine which keys it reads. Reading is therefore repeated with
        # the scalars of the file; afterwards the object's own scalars are restored.
        probe = _Probe(deserializer, replaced={})
        _run(probe, obj)
        with contextlib.suppress(*_OF_CONTENT):
            _Undo(probe, deserializer.path).load(obj)
        probe.give_back()
    asked, missing = probe.asked, probe.missing
    problems = list(filter(None, asked.values()))
    if not (missing or problems):
        return asked
    _verify(deserializer.npz, ())  # damage may be the reason for a mismatch
    if problems:
        more = f"; and {len(problems) - _MOST_LISTED} more" if problems[_MOST_LISTED:] else ""
        raise SerializationError("; ".join(problems[:_MOST_LISTED]) + more)
    raise MissingKeyError(
        f"arrays that are missing: {_listing(missing)}; arrays that are not requested: "
        f"{_listing(set(deserializer.npz) - set(asked))}{_elsewhere(missing, deserializer.npz)}"
    )


def _run(probe, obj):
    """Lets an object request its arrays; starts again after each missing array that the object
    requires.

    An object may fail here because it still has its old values. Requests after such a failure are
    not checked; loading will raise their errors.
    """
    while True:
        try:
            return probe.load(obj)
        except DamagedFileError:
            raise
        except _OF_CONTENT as error:
            name = error.args[0] if isinstance(error, MissingKeyError) else None
            if name is None or name in probe.missing or len(probe.missing) > _MOST_LISTED:
                return
            probe.missing.append(name)


class _Probe(Deserializer):
    """Returns each value unchanged; records requested arrays, and mismatches.

    Args:
        deserializer (NpzDeserializer): the source from which the object will be restored.
        replaced (dict): collects the object's old scalars by name, while scalars are restored from
            the file; with None, no scalars are restored.

    Attributes:
        asked (dict): maps the name of each requested array to its mismatch, or None.
        missing (list): names of missing arrays; MissingKeyError is raised once for each of them.
        remembered (dict): maps the id of each object that replaces attributes to the object and its
            old attributes.
    """

    def __init__(self, deserializer, replaced=None):
        self.deserializer, self.replaced = deserializer, replaced
        self.asked, self.missing, self.remembered = {}, [], {}
        self.restores = replaced is not None

    def __getitem__(self, key):
        part = copy.copy(self)
        part.deserializer = self.deserializer[key]
        return part

    def remember(self, obj):
        self.remembered.setdefault(id(obj), (obj, dict(vars(obj))))

    def give_back(self):
        """Restores the attributes that objects had before the probe."""
        for obj, attributes in self.remembered.values():
            vars(obj).update(attributes)

    def __call__(self, key, value):
        source = self.deserializer
        name = source.path + key.lstrip("/")
        if source.ignores(name) or name in self.missing:
            return value
        if name not in source.npz:
            if source.strict:
                raise MissingKeyError(name)
            return value
        header = _header(source.npz, name)
        self.asked[name] = None if header is None else misfit(name, header[0], header[1], value)
        target = getattr(value, "array", value)
        if self.replaced is None or self.asked[name] or target is None or is_array(target):
            return value
        self.replaced.setdefault(name, value)
        return source(key, value)


class _Undo(Deserializer):
    """Restores the scalars that a probe has replaced.

    This deserializer may reach objects that the probe has not reached, because the probe stops
    when many arrays are missing.
    """

    def __init__(self, probe, path):
        self.probe, self.path, self.remember = probe, path, probe.remember

    def __getitem__(self, key):
        return _Undo(self.probe, f"{self.path}{key.strip('/')}/")

    def __call__(self, key, value):
        return self.probe.replaced.get(self.path + key.lstrip("/"), value)


def _header(arrays, name):
    """Returns (shape, dtype) of a stored array; None for a stored None, or if shape and dtype are
    unknown without reading the array."""
    if isinstance(arrays, dict):
        return header_of(arrays[name])
    return arrays.header(name) if hasattr(arrays, "header") else None


def _listing(keys):
    more = ", ..." if len(keys) > _MOST_LISTED else ""
    return ", ".join(sorted(keys)[:_MOST_LISTED]) + more if keys else "nothing"


def _elsewhere(missing, found):
    """Returns advice for the message if the missing arrays are in the file below another path."""
    for name in found:
        path = name.removesuffix(missing[0])
        if path.endswith("/") and path != name and all(path + key in found for key in missing):
            return f"; all missing arrays are in the file below path={path!r}"
    return ""
