"""Tests how strict the types are: rules of the checker that are off, ignored lines, and uses of
Any.

The checker itself runs in .ci/run, on the source and on the strict program in tests/typing.
"""

import ast
import pathlib
import re
import tokenize

import pytest

from tests.tools.syntax import trees

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted([*(ROOT / "mpchain").rglob("*.py"), *(ROOT / "launch").rglob("*.py")])
IGNORE = re.compile(r"#\s*(?:pyright|type|basedpyright):\s*ignore(\[[\w, ]+\])?")


def _public_functions(body):
    """Yields public functions and methods, and special methods that Python calls."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _public_functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not node.name.startswith("_") or node.name.endswith("__"):
                yield node


def arguments_of_any(tree):
    """Returns the arguments of public functions, other than *args and **kwargs, whose type is
    Any."""
    found = []
    for function in _public_functions(tree.body):
        own = function.args
        for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs):
            annotation = argument.annotation
            if isinstance(annotation, ast.Name) and annotation.id == "Any":
                found.append(f"{function.name}({argument.arg})")
    return found


def ignores(path):
    """Returns the comments in a file that turn the checker off for a line."""
    if not IGNORE.search(path.read_text("utf-8")):
        return []
    with open(path, "rb") as file:
        comments = [
            t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT
        ]
    return [found for comment in comments if (found := IGNORE.search(comment))]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("def f(x: Any, *args: Any, y: int, z: 'Any'): ...", ["f(x)"]),
        ("class A:\n def g(self, *, x: Any): ...\n def _h(self, x: Any): ...", ["g(x)"]),
        ("class _A:\n def g(self, x: Any): ...", []),
        ("if TYPE_CHECKING:\n def f(x: list[Any], /, y: Any): ...", ["f(y)"]),
    ],
)
def test_any_is_found(text, expected):
    assert arguments_of_any(ast.parse(text)) == expected


def test_few_arguments_are_any():
    found = [
        f"{path}: {argument}"
        for path, tree in (trees(ROOT, "mpchain") | trees(ROOT, "launch")).items()
        for argument in arguments_of_any(tree)
    ]
    assert len(found) <= 150, found


def test_few_categories_of_the_checker_are_off():
    table = (ROOT / "pyproject.toml").read_text("utf-8").split("[tool.basedpyright]\n")[1]
    lines = table.split("\n[")[0].splitlines()
    off = [i for i, line in enumerate(lines) if re.match(r"report\w+ = (false|\"none\")", line)]
    of_libraries = [i for i in off if re.match("reportMissing(ModuleSource|TypeStubs)", lines[i])]
    assert len(off) - len(of_libraries) <= 4
    for i in off:  # each rule that is off needs a line that says why
        assert i in of_libraries or lines[i - 1].startswith("# "), lines[i]


def test_ignores_are_few_and_name_their_rule():
    found = [(path, one) for path in FILES for one in ignores(path)]
    assert all(one[1] for _, one in found), [path for path, one in found if not one[1]]
    assert len(found) <= 3, found


def test_an_ignore_is_found(tmp_path):
    path = tmp_path / "program.py"
    path.write_text('a = f()  # pyright: ignore[reportCallIssue]\nb = "# type: ignore"\n')
    assert [one[1] for one in ignores(path)] == ["[reportCallIssue]"]
