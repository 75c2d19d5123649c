"""Counts uses of private attributes of other files' objects.

python -m tests.tools.reaches [ROOT] prints the uses.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

from tests.tools.syntax import trees

ROOT = pathlib.Path(__file__).parents[2]
_OWN = {"self", "cls"}
_OF_NAMED_TUPLES = {"_make", "_replace"}


def reaches(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the lines where a file uses a private attribute that other files define.

    These are ``x._name``, where ``x`` is neither ``self`` nor ``cls`` nor ``super()``, and only
    other files of mpchain define ``_name``. So ``sys._getframe`` is none.

    >>> [line for line in reaches() if "sys._getframe" in line]
    []
    """
    files = trees(root, "mpchain")
    names = {path: set(defined(tree)) for path, tree in files.items()}
    of_all = set().union(*names.values())
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in of_all
        and node.attr not in names[path]
        and is_of_another(node)
    ]


def is_of_another(node: ast.Attribute) -> bool:
    """Returns whether an attribute belongs to another object, and is not a method of named
    tuples."""
    return node.attr not in _OF_NAMED_TUPLES and not _is_own(node.value)


def _is_own(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "super"
    return isinstance(node, ast.Name) and node.id in _OWN


def defined(tree: ast.AST) -> Iterator[str]:
    """Yields the private names that a file defines: functions, classes, variables, attributes."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr if _is_own(node.value) else ""
        if name.startswith("_") and not name.endswith("__"):
            yield name


if __name__ == "__main__":
    found = reaches(*map(pathlib.Path, sys.argv[1:]))
    print(*found, len(found), sep="\n")
