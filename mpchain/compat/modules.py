"""Makes the modules of Chainer and ChainerMN from mpchain's modules when a program imports them."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import pathlib
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

from mpchain.compat import attributes, function_classes, names, removed_names
from mpchain.compat.layout import layout
from mpchain.configuration import global_config

PACKAGES = ("chainer", "chainermn", "chainerx")
_MISSING = object()


@functools.cache
def _rooms(module):
    """Returns mpchain's modules in which a module of Chainer finds its names, nearest first."""
    if module in names.ROOMS:
        return (importlib.import_module(names.ROOMS[module]),)
    top, *parts = module.split(".")
    path = ["mpchain"] + ["distributed"] * (top == "chainermn") + parts
    if parts[:1] == ["functions"] or parts[:1] == ["links"]:
        # Chainer also has modules such as functions.loss.vae, where mpchain has only functions.
        nearest = ".".join(path[: path.index(parts[0]) + 1])
        return importlib.import_module(nearest), importlib.import_module("mpchain")
    rooms = []
    while path:
        try:
            rooms.append(importlib.import_module(".".join(path)))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("mpchain"):
                raise
        path.pop()
    return tuple(rooms)


class CompatModule(types.ModuleType):
    """A module of Chainer, which looks up names in mpchain when they are used.

    If a program sets a name here, as ``unittest.mock`` does, the name is also set in mpchain's
    nearest module if that module has it.
    """

    def __getattr__(self, name: str) -> Any:
        value = find(self.__name__, name)
        if value is _MISSING:
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r} "
                "(mpchain stands in for Chainer 7.8.1 here)"
            )
        if callable(value) or isinstance(value, types.ModuleType):
            self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, CompatModule) and not _is_module(self.__name__, name):
            return  # a module must not hide the function of that name in its package
        self._in_room(name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if name in self.__dict__.get("__set__", {}):
            room, value = self.__dict__["__set__"].pop(name)
            setattr(room, name, value)

    def _in_room(self, name, value):
        if name.startswith("__") or isinstance(value, CompatModule):
            return
        room = _rooms(self.__name__)[0]
        if name in vars(room) and not isinstance(vars(room)[name], types.ModuleType):
            self.__dict__.setdefault("__set__", {}).setdefault(name, (room, vars(room)[name]))
            setattr(room, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *layout()[self.__name__][1]})


def find(module: str, name: str) -> Any:
    """Returns the object that has a name in a module of Chainer, or ``_MISSING``."""
    if name.startswith("__"):
        return _MISSING
    if name in names.SPECIAL.get(module, ()):
        return _load(names.SPECIAL[module][name])
    if (module, name) == ("chainer", "chainerx"):
        return importlib.import_module("chainerx")
    if _is_module(module, name):
        return importlib.import_module(f"{module}.{name}")
    if module.startswith(("chainer.functions", "chainermn.functions")):
        made = function_classes.find(module, name)
        if made is not None:
            return made
    for room in _rooms(module):
        value = getattr(room, name, _MISSING)
        if value is not _MISSING and not (
            isinstance(value, types.ModuleType) and room.__name__ == "mpchain"
        ):
            return value
    if name in names.ANYWHERE:
        return _load(names.ANYWHERE[name])
    if name in names.IMPORTED:
        return importlib.import_module(names.IMPORTED[name])
    if name in layout()[module][1]:
        return names.absent(module, name)
    return _MISSING


def _is_module(module, name):
    """Returns whether a name is a module, and not a package's function of that name (from_data)."""
    return f"{module}.{name}" in layout() and name not in layout()[module][1]


def _load(place):
    """Returns the object that ``module:attribute`` names, or the value itself."""
    if not isinstance(place, str) or ":" not in place:
        return place
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(f"mpchain.{module}".rstrip(".")), attribute)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the layout below ``chainer``, ``chainermn`` and ``chainerx``."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname not in layout():
            return None
        is_package = layout()[fullname][0]
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return CompatModule(spec.name, _describe(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        public = layout()[module.__name__][1]
        if public:
            module.__dict__["__all__"] = list(public)
        if module.__name__ in (*PACKAGES, "chainer._version"):
            module.__dict__["__version__"] = "7.8.1"
        if module.__name__ in PACKAGES:
            file = pathlib.Path(__file__).with_name("packages") / module.__name__ / "__init__.py"
            module.__dict__["__file__"] = str(file)


def _describe(name):
    room = inspect.getdoc(_rooms(name)[0]) if name.partition(".")[0] != "chainerx" else ""
    return f"mpchain in the place of {name}.\n\n{room or ''}".rstrip()


def install() -> None:
    """Makes ``import chainer``, ``chainermn`` and ``chainerx`` import mpchain, in this process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    attributes.install()
    function_classes.install()
    removed_names.install()
    global_config.take_all_names(True)


def uninstall() -> None:
    """Undoes :func:`install`; modules that were imported before remain usable."""
    function_classes.uninstall()
    attributes.uninstall()
    removed_names.uninstall()
    global_config.take_all_names(False)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name in [n for n, m in sys.modules.items() if isinstance(m, CompatModule)]:
        del sys.modules[name]
