"""Finds names of Chainer that a program uses and that mpchain lacks."""

import ast
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator

from mpchain.compat.layout import layout

_TOPS = ("chainer", "chainermn", "chainerx")


def missing(path: str | pathlib.Path) -> list[tuple[str, int, str]]:
    """Returns (file, line, name) of each missing name in a program or a folder of programs, and
    (file, line, error) of each file that cannot be read.

    The program is parsed, not run: names are found where they are written out, as in
    ``from chainer.links import Linear`` or ``F.relu`` after ``import chainer.functions as F``.
    """
    trees, found = _trees(path)
    own = {attribute for tree in trees.values() for attribute in _defined(tree)}
    for file, tree in trees.items():
        found += [(file, line, name) for line, name in _names(tree) if not exists(name)]
        found += [(file, line, name) for line, name in _attributes(tree, own)]
    return sorted(found)


def doubtful(path: str | pathlib.Path) -> list[tuple[str, int, str]]:
    """Returns (file, line, expression) of each ``float`` or ``int`` that converts the attribute
    ``array``, ``data`` or ``grad`` of an object.

    NumPy 2.4 raises TypeError there if the array has axes, even if it has only one element.
    """
    return [
        (file, node.lineno, ast.unparse(node))
        for file, tree in _trees(path)[0].items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("float", "int")
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Attribute)
        and node.args[0].attr in ("array", "data", "grad")
    ]


def _trees(path):
    """Returns the syntax tree of each file, and reports of the files that cannot be read."""
    path = pathlib.Path(path)
    trees, unread = {}, []
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        try:
            trees[str(file)] = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            unread.append((str(file), getattr(error, "lineno", 0) or 0, f"cannot be read: {error}"))
    return trees, unread


def exists(name: str) -> bool:
    """Returns whether mpchain supports the name ``chainer.a.b``."""
    top, *parts = name.split(".")
    value, module = importlib.import_module(top), top
    for part in parts:
        if f"{module}.{part}" in layout():
            module = f"{module}.{part}"
            value = importlib.import_module(module)
        elif hasattr(value, part):
            value, module = getattr(value, part), ""
        else:
            return False
    return not getattr(value, "is_absent", False)


def _imported(tree):
    """Yields the line, Chainer's name, the program's name, and its meaning, of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top in _TOPS:
                    meant = alias.name if alias.asname else top
                    yield node.lineno, alias.name, alias.asname or top, meant
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").partition(".")[0] in _TOPS:
                for alias in node.names:
                    if alias.name != "*":
                        name = f"{node.module}.{alias.name}"
                        yield node.lineno, name, alias.asname or alias.name, name


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the names of Chainer that a program mentions, with their lines."""
    known = {}  # maps the program's own names to the objects that they stand for
    for line, name, own, meant in _imported(tree):
        yield line, name
        known[own] = meant
    longest = {}
    of_properties = set(_parts_of_properties(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in of_properties:
            parts = _chain(node)
            if parts and parts[0] in known:
                name = ".".join([known[parts[0]], *parts[1:]])
                longest.setdefault(name, node.lineno)
    for name, line in sorted(longest.items(), key=lambda item: item[1]):
        if _is_static(name):
            yield line, name


def _parts_of_properties(tree):
    """Yields decorators such as ``@accuracy.setter``, which name a property of the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if getattr(decorator, "attr", "") in ("getter", "setter", "deleter"):
                    yield decorator


def _chain(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def _is_static(name):
    """Returns whether all parts of a name but the last are modules; others cannot be checked."""
    return name.rpartition(".")[0] in layout()


def _defined(tree):
    """Yields the attributes and variables that a program sets, and its functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _attributes(tree, own):
    """Yields lines and names of private attributes of Chainer's classes that subclasses use."""
    known = {own_name: meant for _, _, own_name, meant in _imported(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [cls for base in node.bases if (cls := _class_of(base, known)) is not None]
        asked = {
            part.attr: part.lineno
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id == "self"
            and re.match("_(?!_)", part.attr)
        }
        for name, line in asked.items():
            if bases and name not in own and not any(_mentions(cls, name) for cls in bases):
                yield line, f"{bases[0].__name__}.{name}"


def _class_of(base, known):
    """Returns the class of mpchain that stands for a base class of Chainer; None for others."""
    parts = [base.id] if isinstance(base, ast.Name) else _chain(base)
    if not parts or parts[0] not in known:
        return None
    name = ".".join([known[parts[0]], *parts[1:]])
    if not exists(name):
        return None
    module, _, last = name.rpartition(".")
    cls = getattr(importlib.import_module(module), last, None) if module in layout() else None
    return cls if isinstance(cls, type) else None


def _mentions(cls, name):
    """Returns whether a class has an attribute, or its source or its bases' source mentions it."""
    sources = (inspect.getsource(c) for c in cls.__mro__ if c.__module__.startswith("mpchain."))
    return hasattr(cls, name) or any(re.search(rf"\b{name}\b", source) for source in sources)
