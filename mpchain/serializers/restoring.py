"""Restoring an object from stored arrays: all of it, or nothing where something does not fit."""

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mpchain.serializer import DamagedFileError, Deserializer, MissingKeyError, SerializationError
from mpchain.serializers.values import header_of, is_array, misfit
from mpchain.typing import Array

_MOST_LISTED = 20  # number of names in a message
_OF_CONTENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What an object raises when it is given values that it does not expect."""


class StoredArrays(Mapping[str, Array]):
    """The arrays of an open file by name, which are read on access.

    Subclasses define :meth:`read`, :meth:`header` and :meth:`verify`.

    Args:
        entries: the file's entry for each array, by name.
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
        """Returns the array of that name from the file."""
        raise NotImplementedError

    def header(self, key: str) -> tuple[tuple[int, ...], Any] | None:
        """Returns (shape, dtype) of an array without reading it; None for None."""
        raise NotImplementedError

    def verify(self, keys: Collection[str]) -> None:
        """Verifies all arrays; keeps those of the given names in memory."""
        raise NotImplementedError


def restore_checked(function: str, file: str, deserializer: Deserializer, obj: object) -> None:
    """Restores an object after checking that everything it asks for is there and fits.

    Arrays that do not fit, or that are missing, are found before anything is overwritten, and from
    the shapes and dtypes in the file, before any content is read. Content that the object asks for
    is then read, and all of it is verified, before the first array is overwritten.

    Args:
        function: the public function, for messages.
        file: name of the file, for messages.
        deserializer: an ``NpzDeserializer``. Its ``npz`` is a mapping, which may have ``header``
            and ``verify`` as :class:`StoredArrays`.
        obj: the object.

    Raises:
        SerializationError: something does not fit; the message names the file and the entry.
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
    """Returns the names that ``obj`` asks for; raises SerializationError if something is wrong."""
    probe = _Probe(deserializer)
    _run(probe, obj)
    probe.give_back()
    if probe.missing and not any(probe.asked.values()):
        # Numbers decide which keys are read, so reading is repeated with the file's numbers, which
        # are then undone.
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
        f"arrays that are missing: {_listing(missing)}; arrays that nothing asks for: "
        f"{_listing(set(deserializer.npz) - set(asked))}{_elsewhere(missing, deserializer.npz)}"
    )


def _run(probe, obj):
    """Lets an object ask, again after each missing name that it does not do without.

    An object may fail on values that will be others later. What it would have asked for after that
    is not checked; loading it will raise the error.
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
    """Returns each value unchanged; records what an object asks for, and what does not fit.

    Args:
        deserializer (NpzDeserializer): where the object will be restored from.
        replaced (dict): name -> what the object had before, for scalars, which are restored; None
            leaves them alone.

    Attributes:
        asked (dict): name of each array that is asked for -> what is wrong with it, or None.
        missing (list): names that are missing; MissingKeyError is raised for each once.
        remembered (dict): id of each object that replaces attributes -> it, and those it had.
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
        """Gives objects the attributes that they had before they were asked."""
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
    """Gives back the scalars that a probe has replaced.

    It may come to objects that the probe, which stops when much is missing, has not come to.
    """

    def __init__(self, probe, path):
        self.probe, self.path, self.remember = probe, path, probe.remember

    def __getitem__(self, key):
        return _Undo(self.probe, f"{self.path}{key.strip('/')}/")

    def __call__(self, key, value):
        return self.probe.replaced.get(self.path + key.lstrip("/"), value)


def _header(arrays, name):
    """(shape, dtype) of a stored array; None for None, or where only reading it would show them."""
    if isinstance(arrays, dict):
        return header_of(arrays[name])
    return arrays.header(name) if hasattr(arrays, "header") else None


def _listing(keys):
    more = ", ..." if len(keys) > _MOST_LISTED else ""
    return ", ".join(sorted(keys)[:_MOST_LISTED]) + more if keys else "nothing"


def _elsewhere(missing, found):
    """Advice, if what is missing is in the file, but below another path."""
    for name in found:
        path = name.removesuffix(missing[0])
        if path.endswith("/") and path != name and all(path + key in found for key in missing):
            return f"; all that is missing is there below path={path!r}"
    return ""
