"""Tests rules for source files: type hints, examples, sizes, private attributes, code from text,
floating-point dtypes, and habits of tests."""

import ast
import importlib
import inspect
import pathlib
import re

import pytest

from tests.tools import habits
from tests.tools.code_lines import code_lines
from tests.tools.reaches import reaches
from tests.tools.syntax import trees

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted([*(ROOT / "mpchain").rglob("*.py"), *(ROOT / "launch").glob("*.py")])
FOLDERS = sorted({path.parent for path in FILES})
PACKAGES = """
    mpchain mpchain.computational_graph mpchain.dataset mpchain.datasets mpchain.distributed
    mpchain.distributed.extensions mpchain.distributed.functions mpchain.distributed.links
    mpchain.distributions mpchain.function_hooks mpchain.functions mpchain.gradient_check
    mpchain.initializers mpchain.iterators mpchain.link_hooks mpchain.links
    mpchain.optimizer_hooks mpchain.optimizers mpchain.profiling mpchain.metrics
    mpchain.serializers mpchain.testing
    mpchain.training mpchain.training.extensions mpchain.training.triggers
    mpchain.training.updaters
""".split()
"""The packages from which users import."""


def _tree(path):
    relative = path.relative_to(ROOT)
    return trees(ROOT, relative.parts[0])[relative.as_posix()]


def _name(path, node):
    return f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"


def _public_functions(body, in_class=False):
    """Yields functions and methods that users may call, and whether each is a method."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body, in_class=True)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _public_functions(node.body, in_class)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not node.name.startswith("_") or node.name.endswith("__"):
                yield node, in_class


def _arguments(function, is_method):
    own = function.args
    arguments = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    is_bound = is_method and "staticmethod" not in decorators
    return [argument for argument in arguments if argument is not None][is_bound:]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_arguments_have_type_hints(folder):
    """At least 98 of 100 arguments in each folder need a type hint."""
    missing, n = [], 0
    for path in folder.glob("*.py"):
        if not path.name.startswith("_") or path.name == "__init__.py":
            for function, is_method in _public_functions(_tree(path).body):
                arguments = _arguments(function, is_method)
                bare = [argument.arg for argument in arguments if argument.annotation is None]
                n += len(arguments)
                missing += [f"{_name(path, function)}({argument})" for argument in bare]
    assert len(missing) <= 0.02 * n, "\n".join(missing)


def test_public_names_have_examples():
    """At least 95 of 100 public names need an example."""
    missing, n = set(), set()
    for package in map(importlib.import_module, PACKAGES):
        for name in filter(str.isidentifier, dir(package)):
            value = getattr(package, name)
            is_own = getattr(value, "__module__", "").startswith("mpchain.")
            if (
                not name.startswith("_")
                and is_own
                and (inspect.isroutine(value) or inspect.isclass(value))
            ):
                n.add(value)
                if ">>>" not in (value.__doc__ or ""):
                    missing.add(f"{package.__name__}.{name}")
    assert len(missing) <= 0.05 * len(n), f"{len(missing)} of {len(n)}: {sorted(missing)}"


def test_files_and_functions_are_short():
    long = []
    for path in FILES:
        text = path.read_text("utf-8")
        functions = [
            node
            for node in ast.walk(_tree(path))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.end_lineno - node.lineno >= 60
        ]
        if not functions and text.count("\n") <= 500:
            continue  # a file of at most 500 lines has at most 500 code lines
        lines = code_lines(text, _tree(path))
        if len(lines) > 500:
            long.append(path.relative_to(ROOT).as_posix())
        for node in functions:
            if len(lines.intersection(range(node.lineno, node.end_lineno + 1))) > 60:
                long.append(_name(path, node))
    assert long == []


def test_few_files_reach_into_private_attributes_of_others():
    found = reaches()
    assert len(found) <= 60, "\n".join(found)


def test_what_is_a_reach(tmp_path):
    (tmp_path / "mpchain").mkdir()
    (tmp_path / "mpchain/own.py").write_text(
        "class A:\n    _size = 1\n    def _grow(self):\n        self._size, self._seen = 2, 3\n"
        "def same(a):\n    return a._size + a._seen\n"
    )
    (tmp_path / "mpchain/other.py").write_text(
        "import sys\nclass B(A):\n    def f(self, a):\n        super()._grow()\n"
        "        return self._size, a._size, a.b._seen, sys._getframe, a.b._replace()\n"
    )
    expected = ["a._size", "a.b._seen"]
    assert sorted(line.split(": ")[1] for line in reaches(tmp_path)) == expected


def test_one_file_makes_code_of_text():
    calls = {"exec", "eval", "compile"}
    places = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in calls
    }
    assert places == {"mpchain/formulas/text.py"}


def test_one_file_says_what_is_floating_point():
    """Arrays of bfloat16 have another kind than NumPy's floating-point dtypes: ``is_floating``
    knows both."""
    asked = re.compile(r"""kind\s*(==|!=)\s*["']f["']|issubdtype\(|np\.finfo\([a-z]""")
    known = {"mpchain/backends/dtypes.py", "mpchain/functions/declaring/written_out.py"}
    asks = {str(p.relative_to(ROOT)) for p in FILES if asked.search(p.read_text("utf-8"))}
    # These files compare with tolerances of double precision, or imitate names that NumPy removed.
    elsewhere = {
        "mpchain/captured/comparison.py",
        "mpchain/captured/cuda_graph.py",
        "mpchain/compat/removed_names.py",
        "mpchain/distributions/gamma_variates.py",
        "mpchain/gradient_check.py",
    }
    assert asks <= known | elsewhere


@pytest.mark.long
def test_habits_of_tests_do_not_grow():
    """On 2026-11-27 there were 149, 150, 115 and 0; lower the limits when the counts are lower."""
    limits = {"replaced": 150, "private_reads": 150, "models": 115, "sleeps": 0}
    counted = {name: list(getattr(habits, name)()) for name in limits}
    too_many = {name: counted[name] for name, most in limits.items() if len(counted[name]) > most}
    assert not {name: (len(found), found) for name, found in too_many.items()}


def test_habits_are_found(tmp_path):
    texts = {
        "mpchain/a.py": "class A:\n    def __init__(self):\n        self._x = self._y = 1\n",
        "launch/b.py": "_c = 1\n",
        "tests/test_a.py": (
            "def test(monkeypatch):\n    monkeypatch.setattr(a, 'b', 1)\n    assert a._x == b._c\n"
            "    self._y, own._z\n    time.sleep(1)\n    time.sleep(1)  # why\n"
            "class M(mpchain.Chain):\n    _z = 1\nclass N(M): pass\n"
        ),
        "tests/models.py": "class Shared(mpchain.Chain): pass\n",
        "tests/gpu/doubles/d.py": "_x = 1\n",
        "tests/gpu/doubles/e.py": "d._x + d._y\n",
        "tests/compat/test_b.py": "a._x\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "launch").mkdir(exist_ok=True)
    assert habits.replaced(tmp_path) == ["tests/test_a.py:2: monkeypatch.setattr(a, 'b', 1)"]
    reads = [line.split(": ")[1] for line in habits.private_reads(tmp_path)]
    assert sorted(reads) == ["a._x", "b._c", "d._y"]
    assert habits.models(tmp_path) == ["tests/test_a.py:7: M"]
    # The second call has a comment, so it is allowed.
    assert list(habits.sleeps(tmp_path)) == ["tests/test_a.py:5: time.sleep(1)"]
