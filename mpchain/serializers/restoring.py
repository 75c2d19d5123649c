"""Restoring an object from stored arrays: all of it, or nothing where something does not fit."""

import contextlib

import numpy as np

from mpchain.backends import cuda
from mpchain.serializer import (
    DamagedFileError,
    Deserializer,
    MissingKeyError,
    SerializationError,
)
from mpchain.serializers.values import header_of, misfit

_MOST_LISTED = 20  # names in a message
_OF_CONTENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What an object raises that is given values which it does not expect."""


def restore_checked(function, file, deserializer, obj):
    """Restores an object, after it was found out what it asks for and whether that fits.

    Arrays that do not fit, or that are missing, are found before anything is overwritten, and from
    what a file says of shapes and dtypes, before any content is read. Content that the object asks
    for is then read, and all of it is verified, before the first array is overwritten.

    Args:
        function (str): the public function, for messages.
        file (str): name of the file, for messages.
        deserializer (NpzDeserializer): where from. Its ``npz`` may have ``header(key)``, which
            returns (shape, dtype) or None for None, and ``verify(keys)``, which verifies all
            arrays and keeps those of the given names.
        obj: the object.

    Raises:
        SerializationError: something does not fit; the message names the file and what it is.
    """
    try:
        asked = _check(deserializer, obj)
        if hasattr(deserializer.npz, "verify"):
            deserializer.npz.verify(asked)
        deserializer.load(obj)
    except SerializationError as error:
        raise type(error)(f"{function}: {file}: {error}") from error
    except _OF_CONTENT as error:
        raise SerializationError(
            f"{function}: {file}: {deserializer.latest[0]!r} cannot be restored: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check(deserializer, obj):
    """Returns the names that ``obj`` asks for; raises SerializationError if something is wrong."""
    probe = _Probe(deserializer, {})
    asked, missing = probe.asked, probe.missing
    _run(probe, obj)
    problems = [text for text in asked.values() if text]
    if missing and not problems:
        # Numbers decide what is asked for: now with those of the file, which are taken back.
        probe = _Probe(deserializer, {}, replaced={})
        _run(probe, obj)
        with contextlib.suppress(*_OF_CONTENT):
            _Undo(probe.replaced, deserializer.path).load(obj)
        asked, missing = probe.asked, probe.missing
        problems = [text for text in asked.values() if text]
    if not (missing or problems):
        return asked
    if hasattr(deserializer.npz, "verify"):
        deserializer.npz.verify(())  # what does not fit may be damage
    if problems:
        more = f"; and {len(problems) - _MOST_LISTED} more" if problems[_MOST_LISTED:] else ""
        raise SerializationError("; ".join(problems[:_MOST_LISTED]) + more)
    raise MissingKeyError(
        f"arrays that are missing: {_listing(missing)}; arrays that nothing asks for: "
        f"{_listing(set(deserializer.npz) - set(asked))}{_elsewhere(missing, deserializer.npz)}"
    )


def _run(probe, obj):
    """Lets an object ask, again for each name that is missing and that it does not do without.

    An object may fail on values that are not yet what they will be. Then what it would have asked
    for later is not checked, and loading it will say what is wrong.
    """
    while True:
        try:
            probe.load(obj)
        except DamagedFileError:
            raise
        except MissingKeyError as error:
            name = error.args[0]
            if name not in probe.missing and len(probe.missing) <= _MOST_LISTED:
                probe.missing.append(name)
                continue
        except _OF_CONTENT:
            pass
        return


class _Probe(Deserializer):
    """Returns each value as it is; notes what an object asks for, and what does not fit.

    Args:
        deserializer (NpzDeserializer): where the object will be restored from.
        asked (dict): name of each array that is asked for -> what is wrong with it, or None.
        replaced (dict): name -> what the object had before, for scalars. They are restored, and
            filled in here; not if this is None.
        missing (list): names that are missing, of which the object is told only the last.
    """

    def __init__(self, deserializer, asked, replaced=None, missing=None):
        self.deserializer, self.asked, self.replaced = deserializer, asked, replaced
        self.missing = [] if missing is None else missing
        self.restores = replaced is not None

    def __getitem__(self, key):
        return _Probe(self.deserializer[key], self.asked, self.replaced, self.missing)

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
        self.asked[name] = None if header is None else misfit(name, *header, value)
        if self.replaced is None or self.asked[name] or _is_array(value):
            return value
        self.replaced.setdefault(name, value)
        return source(key, value)


class _Undo(Deserializer):
    """Gives scalars back that a probe has replaced."""

    def __init__(self, replaced, path):
        self.replaced, self.path = replaced, path

    def __getitem__(self, key):
        return _Undo(self.replaced, f"{self.path}{key.strip('/')}/")

    def __call__(self, key, value):
        return self.replaced.get(self.path + key.lstrip("/"), value)


def _header(arrays, name):
    """(shape, dtype) of a stored array; None for None, or where only reading it would tell."""
    if isinstance(arrays, dict):
        return header_of(arrays[name])
    return arrays.header(name) if hasattr(arrays, "header") else None


def _is_array(value):
    target = getattr(value, "array", value)
    return target is None or isinstance(target, np.ndarray) or cuda.is_gpu_array(target)


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
