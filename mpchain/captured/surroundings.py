"""The references of a function: arrays and links that it may use, and values on which it
depends."""

import argparse
import array
import collections
import contextvars
import functools
import inspect
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from mpchain.captured import code_names
from mpchain.captured.results import is_simple
from mpchain.configuration import config, global_config
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.variable import Parameter, Variable

# The items of a longer list or dict are compared as one value, if they are simple.
_MOST_ITEMS = 1000
_MOST_COMPARED = 10_000  # Only the length of a longer list or dict is guarded.
_LIBRARIES = {"mpchain", "numpy", "scipy", "cupy", "numba", *sys.stdlib_module_names}
_NAMESPACES = types.SimpleNamespace, argparse.Namespace
_CONTAINERS = dict, list, tuple, set
_BYTES = array.array, bytearray
_HOLDING_ALL = "mpchain.distributions", "collections", "queue"
_NEVER_READ = {"__init__", "__new__", "__del__", "__init_subclass__", "__class_getitem__"}
_MISSING = object()

SETTINGS = ("train", "enable_backprop", "dtype", "kernels", "use_cudnn", "cudnn_deterministic")
SETTINGS += ("use_cudnn_tensor_core",)
"""Configuration entries that are part of the key of a recording, so that each of their values has
its own recordings."""


class Place(NamedTuple):
    """The location of a value: an entry of a dict or list, or a cell of a closure.

    Example:
        >>> from mpchain.captured.surroundings import Place
        >>> Place({"a": 1}, "a", "a").get()
        1
    """

    owner: Any
    key: Any
    label: str

    @property
    def is_cell(self) -> bool:
        """Whether the place is a cell, which has no key."""
        return isinstance(self.owner, types.CellType)

    def get(self, default: object = None) -> Any:
        """Returns the value in the place; ``default`` if the place no longer has a value."""
        try:
            return self.owner.cell_contents if self.is_cell else self.owner[self.key]
        except (LookupError, ValueError):
            return default

    def set(self, value: object) -> None:
        """Puts a value into the place."""
        if self.is_cell:
            self.owner.cell_contents = value
        else:
            self.owner[self.key] = value

    @property
    def id(self) -> tuple:
        """The key that identifies a place."""
        return id(self.owner), self.key


class Surroundings:
    """Everything that a function references by closures, defaults, globals and attributes,
    recursively.

    Args:
        function: the function.
        more: further values, such as its arguments.

    Attributes:
        values: maps ids to the values that were found, except simple values and arrays.
        arrays: the places of NumPy arrays, except arrays of parameters.
        loose: arrays whose places cannot be reassigned, such as those in tuples, and arrays that
            have fields or are instances of subclasses.
        variables: the places of Variables that links hold.
        others: the places of Variables elsewhere.
        params: parameters and other leaf Variables that do not belong to links.

    Example:
        >>> from mpchain.captured.surroundings import Surroundings
        >>> model = L.Linear(1, 1)
        >>> Surroundings(lambda x: F.sum(model(x))).found(mpchain.Link) == [model]
        True
    """

    def __init__(self, function: Callable, more: Iterable[Any] = ()):
        self.values: dict[int, Any] = {}
        self.arrays: list[Place] = []
        self.loose: list[np.ndarray] = []
        self.variables: list[Place] = []
        self.others: list[Place] = []
        self.params: list[Variable] = []
        self._guards: list[tuple] = []
        self._cells: list[tuple] = []
        self._lengths: list[tuple] = []
        self._values: list[tuple] = []
        self._attributes: list[tuple] = []
        self._names: set[str] = set()  # code reads attributes and globals with these names
        # These are pairs of an object's name and an attribute's name.
        self._pairs: set[tuple] = set()
        self._unclear: set[str] = set()  # these are names of attributes of objects without names
        self._of_arguments: set[str] = set()  # these are names of attributes of arguments
        self._has_computed = False  # this is True if code computes names of attributes
        self._objects: list[Any] = []
        # These are objects of libraries, with the names of the variables or attributes that hold
        # them.
        self._of_libraries: list[tuple[Any, Any]] = []
        self._of_links: set[int] = set()
        self._done: set[tuple] = set()
        self._stack: list[tuple[Any, Place | None]] = [(x, None) for x in (function, *more)]
        self._root = inspect.unwrap(function)
        self._self = getattr(self._root, "__self__", self._root)
        # These functions are inspected even if they belong to a library.
        self._own = {id(getattr(self._root, "__func__", self._root))}
        # The installed packages of the function and of links are inspected too.
        self._packages = {_package_of(self._root), _package_of(type(self._self))}
        self._look()
        for name in {*vars(global_config), *self._names} - {*SETTINGS, "debug"}:
            if not name.startswith("_") and is_simple(value := getattr(config, name, _MISSING)):
                self._attributes.append((config, name, value))

    def found(self, kind: type) -> list:
        """Returns the values of a class that were found."""
        return [x for x in self.values.values() if isinstance(x, kind)]

    # The methods below handle guards.

    def changed(self) -> list[Place]:
        """Returns the places whose values have changed."""
        try:
            for owner, key, value, _ in self._guards:
                if owner[key] is not value:
                    return self._differing()
            for cell, value, _ in self._cells:
                if cell.cell_contents is not value:
                    return self._differing()
            for container, n, _ in self._lengths:
                if len(container) != n:
                    return self._differing()
            for read, value, _ in self._values:
                if read() != value:
                    return self._differing()
            for thing, name, value in self._attributes:
                if getattr(thing, name, _MISSING) is not value:
                    return self._differing()
        # These errors mean that a place or an attribute no longer has a value.
        except (LookupError, ValueError, AttributeError):
            return self._differing()
        return []

    def _differing(self):
        found = []
        for guards in (self._guards, self._cells):
            for i, (owner, *key, value, label) in enumerate(guards):
                place = Place(owner, key[0] if key else None, label)
                now = place.get(_MISSING)
                if are_exactly_equal(now, value):
                    guards[i] = (owner, *key, now, label)
                else:
                    found.append(place)
        found += [Place(x, len, label) for x, n, label in self._lengths if len(x) != n]
        found += [Place(read, None, label) for read, x, label in self._values if read() != x]
        for i, (thing, name, value) in enumerate(self._attributes):
            now = getattr(thing, name, _MISSING)
            if are_exactly_equal(now, value):
                self._attributes[i] = thing, name, now
            else:
                found.append(Place(thing, name, f"{name} of a {type(thing).__name__}"))
        return found

    def release(self, places: Iterable[Place]) -> None:
        """Stops guarding places whose values change from step to step."""
        gone = {place.id for place in places}
        self._guards = [g for g in self._guards if (id(g[0]), g[1]) not in gone]
        self._cells = [g for g in self._cells if (id(g[0]), None) not in gone]

    def _guard(self, place, value):
        if place.is_cell:
            self._cells.append((place.owner, value, place.label))
        else:
            self._guards.append((place.owner, place.key, value, place.label))

    # The methods below walk over the references.

    def _look(self):
        while self._stack:
            while self._stack:
                self._visit(*self._stack.pop())
            for thing in self._objects:
                self._visit_attributes(thing)
            for thing, name in self._of_libraries:
                self._visit_what_is_read(thing, name)

    def _visit(self, value, place):
        if place is not None:
            if place.id in self._done:
                return
            self._done.add(place.id)
        if isinstance(value, Variable):
            self._visit_variable(value, place)
            return
        if place is not None:
            self._guard(place, value)
        if is_simple(value) or isinstance(value, np.generic):
            return
        if isinstance(value, np.ndarray):
            if place is not None and is_plain_array(value):
                self.arrays.append(place)
            elif value.dtype.hasobject:
                self._stack.append((value.tolist(), None))
                self._values.append((value.tolist, value.tolist(), _label(value, place)))
            else:
                self.loose.append(value)
                if value.dtype.names is not None:
                    self._values.append((value.tobytes, value.tobytes(), _label(value, place)))
            return
        is_new = id(value) not in self.values
        self.values[id(value)] = value
        if is_new:
            self._open(value, place)
            if isinstance(value, _CONTAINERS) and not _is_of_library(type(value)):
                self._objects += [value] if hasattr(value, "__dict__") else []

    def _visit_variable(self, value, place):
        if id(value) not in self.values and (
            place is None or id(place.owner) not in self._of_links
        ):
            if value.creator_node is None:
                self.params.append(value)
        self.values[id(value)] = value
        if isinstance(value, Parameter) or place is None:
            if place is not None:
                self._guard(place, value)
        elif id(place.owner) in self._of_links:
            self.variables.append(place)
        else:
            self.others.append(place)
            self._guard(place, value)

    def _open(self, value, place):
        """Queues the values that a value holds for a visit."""
        label = _label(value, place)
        if isinstance(value, Link):
            self._of_links.add(id(vars(value)))
            kind = type(value).__name__
            for cls in type(value).__mro__:
                if not _is_of_library(cls):
                    self._packages.add(_package_of(cls))
                    self._guard_length(vars(cls), cls.__name__)
            self._guard_length(vars(value), f"a {kind}")
            self._push((vars(value), name, f"{name} of a {kind}") for name in vars(value))
            self._visit_classes(value, all_of_them=True)
        elif isinstance(value, Optimizer):
            self._stack.append((value.target, None))
            self._of_libraries.append((value, _name_of(place)))
        elif isinstance(value, _NAMESPACES):
            self._open(vars(value), place)
        elif isinstance(value, (dict, list, collections.deque)):
            self._open_items(value, label)
        elif isinstance(value, (tuple, set, frozenset)):
            if isinstance(value, set):
                self._values.append((value.copy, set(value), f"the items of {label}"))
            if len(value) <= _MOST_ITEMS:
                self._stack += [(x, None) for x in value]
        elif isinstance(value, functools.partial):
            self._stack += [(x, None) for x in (value.func, value.args, value.keywords)]
        elif inspect.ismethod(value):
            self._stack += [(value.__func__, None), (value.__self__, None)]
        elif inspect.isfunction(value):
            self._open_function(value)
        elif isinstance(value, type):
            if not _is_of_library(value):
                self._objects.append(value)
        elif type(value).__name__ == "Captured":
            self._stack.append((value.function, None))
        elif slots := [n for cls in type(value).__mro__ for n in _slots_of(cls)]:
            if not _is_of_library(type(value)):
                for name in slots:
                    self._attributes.append((value, name, getattr(value, name, _MISSING)))
                    self._stack.append((getattr(value, name, None), None))
                self._objects += [value] if hasattr(value, "__dict__") else []
        elif isinstance(value, functools._lru_cache_wrapper):
            self._stack.append((value.__wrapped__, None))
        elif not self._open_of_python(value, label) and hasattr(value, "__dict__"):
            if not _is_of_library(type(value)) or value is self._self or _holds_all(value):
                self._objects.append(value)
            else:
                self._of_libraries.append((value, _name_of(place)))
            if value is self._root:
                self._visit_class_attribute(type(value), "__call__")

    def _open_of_python(self, value, label):
        """Queues the values in a module or in an object of some standard library classes."""
        if isinstance(value, types.ModuleType):
            package = value.__name__.partition(".")[0]
            is_own = package in self._packages or not _is_installed(value)
            if package not in _LIBRARIES and is_own:
                self._objects.append(value)
            elif value is os and self._names & {"environ", "getenv"}:
                self._stack.append((os.environ, None))
        elif isinstance(value, contextvars.ContextVar):
            read = functools.partial(value.get, None)
            self._stack.append((read(), None))
            self._values.append((read, read(), label))
        elif isinstance(value, _BYTES):
            read = functools.partial(bytes, value)
            self._values.append((read, read(), label))
        elif value is os.environ:
            self._values.append((value.copy, value.copy(), "os.environ"))
        elif isinstance(value, operator.attrgetter):
            names = {part for name in value.__reduce__()[1] for part in name.split(".")}
            self._names |= names
            self._unclear |= names
        else:
            return False
        return True

    def _open_items(self, value, label):
        """Queues the items of a list, a dict or a deque for a visit."""
        self._lengths.append((value, len(value), f"the number of items of {label}"))
        if len(value) <= _MOST_ITEMS:
            keys = value if isinstance(value, dict) else range(len(value))
            self._push((value, k, f"{label}[{k!r:.20}]") for k in keys)
            if isinstance(value, dict):
                self._stack += [(key, None) for key in value if not is_simple(key)]
        elif len(value) <= _MOST_COMPARED:
            items = value.values() if isinstance(value, dict) else value
            if all(map(is_simple, items)):
                self._values.append((value.copy, value.copy(), f"the items of {label}"))

    def _push(self, places):
        for owner, key, label in places:
            place = Place(owner, key, label)
            self._stack.append((place.get(), place))

    def _open_function(self, function):
        code = function.__code__
        if id(function) not in self._own and (
            _is_of_library(function)
            or ("site-packages" in code.co_filename and _package_of(function) not in self._packages)
        ):
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            place = Place(cell, None, f"{name} of a closure")
            if (value := place.get()) is not None:
                self._stack.append((value, place))
        self._stack += [(x, None) for x in (function.__defaults__, function.__kwdefaults__)]
        self._push((vars(function), k, f"{k} of {function.__name__}") for k in vars(function))
        for part in code_names.parts(code):
            read = code_names.read_by(part)
            self._pairs |= {(of, name) for of, name in read.attributes if of is not None}
            self._unclear |= {name for of, name in read.attributes if of is None} | read.as_text
            self._names |= {*part.co_names, *self._unclear}
            self._has_computed |= read.has_computed
            arguments = {*part.co_varnames[: part.co_argcount + part.co_kwonlyargcount]} - {"self"}
            self._of_arguments |= {name for of, name in read.attributes if of in arguments}
            for name in {*part.co_names, *read.as_text}:
                if name in function.__globals__:
                    place = Place(function.__globals__, name, f"the global {name}")
                    self._stack.append((place.get(), place))
            for name in read.modules:
                self._stack.append((sys.modules.get(name), None))

    def _visit_what_is_read(self, thing, name):
        """Visits the attributes of a library's object that code reads through a variable ``name``
        or through any argument."""
        for attribute in {a for of, a in self._pairs if of == name} | self._of_arguments:
            if (id(thing), attribute) in self._done:
                continue
            self._done.add((id(thing), attribute))
            value = getattr(thing, attribute, _MISSING)
            if is_simple(value):
                self._attributes.append((thing, attribute, value))
            elif value is not _MISSING and not callable(value):
                self._stack.append((value, None))

    def _visit_attributes(self, thing):
        """Visits those attributes of an object that code reads."""
        is_class = isinstance(thing, type)
        kind = thing.__name__ if is_class else type(thing).__name__
        held = vars(thing)
        names = self._names
        if thing is self._self:
            # The names that code reads from attributes of the object, such as an optimizer, are not
            # attributes of the object itself.
            others = {name for name, value in held.items() if value is not thing}
            if _is_of_library(type(thing)):
                names = {name for of, name in self._pairs if of == "self"}
            else:
                names = {name for of, name in self._pairs if of not in others} | self._unclear
        is_module = isinstance(thing, types.ModuleType)
        if not is_module:
            self._guard_length(held, kind if is_class else f"a {kind}")
            if _holds_all(thing) or self._has_computed:
                names = {*names, *held}
        if not is_class:
            self._push(
                (held, name, f"{name} of a {kind}")
                for name in [*names]
                if name in held and (id(held), name) not in self._done
            )
        for name in [*names] if is_class else ():
            if name in held:
                self._visit_class_attribute(thing, name)
        if is_class:
            self._visit_classes(thing, names=names)
        elif not is_module:
            self._visit_classes(thing, names=names, of_libraries=thing is self._self)
            for cls in type(thing).__mro__:
                if not _is_of_library(cls):
                    self._guard_length(vars(cls), cls.__name__)
                    for name in self._names & {*vars(cls)}:
                        if is_simple(vars(cls)[name]):
                            self._visit_class_attribute(cls, name)

    def _guard_length(self, attributes, kind):
        """Adds a guard for the number of attributes, because an attribute that is added later may
        hide an attribute of the class."""
        if (id(attributes), len) not in self._done:
            self._done.add((id(attributes), len))
            self._lengths.append((attributes, len(attributes), f"the attributes of {kind}"))

    def _visit_classes(self, thing, names=(), all_of_them=False, of_libraries=False):
        for cls in type(thing).__mro__:
            if not of_libraries and _is_of_library(cls):
                continue
            for name in [*vars(cls)]:
                # Methods such as __len__ and __get__ are visited even if no code names them,
                # because Python calls them.
                is_implied = name.startswith("__") and not _is_of_library(cls)
                if all_of_them or is_implied or name in names:
                    self._visit_class_attribute(cls, name)

    def _visit_class_attribute(self, cls, name):
        value = inspect.getattr_static(cls, name, None)
        if name.startswith("__"):
            if name != "__call__" and (name in _NEVER_READ or not _is_written(value)):
                return
        if callable(vars(cls).get(name)) and not _is_of_library(cls):
            self._guard_class_attribute(cls, name, value)
        value = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        if inspect.isfunction(value):
            if id(value) not in self.values:
                if _is_of_library(cls) and cls in type(self._self).__mro__:
                    self._own.add(id(value))
                self._stack.append((value, None))
        elif is_simple(value):
            self._guard_class_attribute(cls, name, value)
        # The value may be a descriptor of the program's own class.
        elif id(value) not in self.values and not _is_of_library(type(value)):
            self._stack.append((value, None))

    def _guard_class_attribute(self, cls, name, value):
        if (id(cls), name) not in self._done:
            self._done.add((id(cls), name))
            self._guards.append((vars(cls), name, value, f"{name} of {cls.__name__}"))


def is_plain_array(value: Any) -> bool:
    """Returns whether a value is an ``np.ndarray`` or ``np.memmap`` without objects and fields.
    Instances of other subclasses are excluded, because they may compute differently.

    Example:
        >>> from mpchain.captured.surroundings import is_plain_array
        >>> is_plain_array(np.ones(1)), is_plain_array(np.ma.ones(1))
        (True, False)
    """
    if type(value) not in (np.ndarray, np.memmap):
        return False
    return value.dtype.kind != "O" and value.dtype.names is None


def are_exactly_equal(a: Any, b: Any) -> bool:
    """Returns whether two values are the same object, or equal simple values of the same classes.

    Example:
        >>> from mpchain.captured.surroundings import are_exactly_equal
        >>> are_exactly_equal((1, 0.5), (1, 0.5)), are_exactly_equal(0.0, -0.0)
        (True, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(are_exactly_equal, a, b))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if type(a) in (float, complex):
        return repr(a) == repr(b)  # by repr, 0.0 and -0.0 are different, and NaN equals NaN
    return is_simple(a) and a == b


def exact_key(value: object) -> Any:
    """Returns a key under which only values of the same class count as equal.

    Example:
        >>> from mpchain.captured.surroundings import exact_key
        >>> exact_key(0.0) == exact_key(-0.0), exact_key((1,)) == exact_key((True,))
        (False, False)
    """
    kind = type(value)
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, (tuple, frozenset)):
        keys = map(exact_key, value)
        return kind, frozenset(keys) if isinstance(value, frozenset) else tuple(keys)
    return kind, value


def _is_written(value):
    """Returns whether a value is a function that is written as source code, not generated by
    dataclasses."""
    if not inspect.isfunction(value):
        return False
    # PyTorch's tensors have functions that wrap functions of C, which have no code.
    code = getattr(inspect.unwrap(value), "__code__", value.__code__)
    return code.co_filename != "<string>"


def _is_of_library(thing):
    return _package_of(thing) in _LIBRARIES


def _package_of(thing):
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _slots_of(cls):
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [n for n in slots if not n.startswith("__")]


def _label(value, place):
    return place.label if place is not None else f"a {type(value).__name__}"


def _name_of(place):
    if place is None:
        return None
    return place.label.partition(" ")[0] if place.is_cell else place.key


def _holds_all(thing):
    """Returns whether an object holds the values that its uninspected methods read."""
    module = type(thing).__module__
    return module.startswith(_HOLDING_ALL) or _is_installed(sys.modules.get(module))


def _is_installed(module):
    return "site-packages" in (getattr(module, "__file__", None) or "")
