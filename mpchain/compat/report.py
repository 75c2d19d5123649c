"""Which names of Chainer a program uses that mpchain does not have."""

import ast
import importlib
import pathlib
from collections.abc import Iterator

from mpchain.compat.layout import layout

_TOPS = ("chainer", "chainermn", "chainerx")


def missing(path: str | pathlib.Path) -> list[tuple[str, int, str]]:
    """Returns (file, line, name) of what a program, or a folder of programs, would not find.

    The program is read, not run: names are found where they are written out, as in
    ``from chainer.links import Linear`` or ``F.relu`` after ``import chainer.functions as F``.
    """
    path = pathlib.Path(path)
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            found.append((str(file), getattr(error, "lineno", 0) or 0, f"cannot be read: {error}"))
            continue
        found += [(str(file), line, name) for line, name in _names(tree) if not exists(name)]
    return found


def exists(name: str) -> bool:
    """Returns whether ``chainer.a.b`` is something that mpchain does."""
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


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names of Chainer that a program mentions, with their lines."""
    known = {}  # maps the program's own names to what they stand for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _TOPS:
                    yield node.lineno, alias.name
                    top = alias.name.partition(".")[0]
                    known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").partition(".")[0] in _TOPS:
                for alias in node.names:
                    if alias.name != "*":
                        name = f"{node.module}.{alias.name}"
                        yield node.lineno, name
                        known[alias.asname or alias.name] = name
    longest = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = _chain(node)
            if parts and parts[0] in known:
                name = ".".join([known[parts[0]], *parts[1:]])
                longest.setdefault(name, node.lineno)
    for name, line in sorted(longest.items(), key=lambda item: item[1]):
        if _is_static(name):
            yield line, name


def _chain(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def _is_static(name):
    """Whether all but the last part of a name are modules: attributes of objects are not judged."""
    return name.rpartition(".")[0] in layout()
