"""Counts habits in tests that make changes of the source hard.

python -m tests.tools.habits prints where tests have these habits, and the counts.
"""

import ast
import pathlib
import re
from collections.abc import Iterator

from tests.tools import reaches
from tests.tools.syntax import trees

ROOT = pathlib.Path(__file__).parents[2]


def replaced(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the places where tests replace an attribute by ``monkeypatch.setattr``."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path, tree in trees(root, "tests").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setattr"
        and ast.unparse(node.func.value) == "monkeypatch"
    ]


def private_reads(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the places where tests read a private attribute of the source.

    These are ``x._name`` as :func:`tests.tools.reaches.reaches` counts them, where mpchain or the
    launcher defines ``_name``. Files that define the name themselves do not count, nor do files of
    a double for names that another file of the double defines, nor programs for Chainer, whose
    private names :mod:`mpchain.compat` shows on purpose.
    """
    source, tests = trees(root, "mpchain") | trees(root, "launch"), trees(root, "tests")
    of_source = set().union(*(reaches.defined(tree) for tree in source.values()))
    own = {path: set(reaches.defined(tree)) for path, tree in tests.items()}
    of_doubles = set().union(*(names for path, names in own.items() if "/doubles/" in path))
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for path, tree in tests.items()
        if not path.startswith("tests/compat/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in of_source
        and node.attr not in own[path]
        and not ("/doubles/" in path and node.attr in of_doubles)
        and reaches.is_of_another(node)
    ]


def models(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the subclasses of links and chains that tests define outside tests/models.py."""
    return [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in trees(root, "tests").items()
        if path != "tests/models.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"(^|\.)(Link|Chain|ChainList)$", ast.unparse(b)) for b in node.bases)
    ]


def sleeps(root: pathlib.Path = ROOT) -> Iterator[str]:
    """Yields the lines where a test sleeps and no comment nearby gives a reason.

    The comment is on the line, or on one of the two lines above it. Lines in texts of programs
    count as well.
    """
    for path in sorted((root / "tests").rglob("*.py")):
        lines = path.read_text("utf-8").splitlines()
        for i, line in enumerate(lines):
            if re.search(r"\btime\.sleep\(", line) and not any(
                "#" in x for x in lines[max(i - 2, 0) : i + 1]
            ):
                yield f"{path.relative_to(root).as_posix()}:{i + 1}: {line.strip()}"


if __name__ == "__main__":
    for count in (replaced, private_reads, models, sleeps):
        found = list(count())
        print(*found, f"{len(found)} {count.__name__}", sep="\n")
