"""Tests that modules import only what a table permits; ``ast`` finds the imports of the source."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

from mpchain.annexes import ANNEXES
from tests.tools.syntax import trees

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]

# Each row has rooms that may import each other, and the rooms that they may import. What these
# rooms may import, the row's rooms may import, too.
TABLE = [
    (
        "configuration annexes from_pytorch observers warnings typing backend backends",
        "",
    ),
    ("device_resident", "configuration"),
    ("formulas", "configuration"),
    ("kernels", "formulas"),
    ("random", "kernels"),
    # The package utils is in this row, because functions use its type checks, and its sparse
    # matrices have Variables.
    (
        "variable function_node backprop row_gradients gradient_memory function function_hook "
        "computational_graph utils",
        "device_resident kernels random",
    ),
    ("functions", "variable kernels"),
    ("initializers", "configuration"),
    ("dataset datasets iterators serializer serializers reporter", "configuration"),
    ("parameter_tree link link_hook links", "functions initializers reporter"),
    ("exporters interop", "link"),
    (
        "optimizer update_rule optimizers optimizer_hooks function_hooks",
        "link kernels serializer",
    ),
    ("captured", "optimizer"),
    ("link_hooks", "link function_hooks"),
    ("distributions", "functions"),
    ("gradient_check", "functions link"),
    ("training", "dataset distributions optimizer link_hooks"),
    ("distributed", "training"),
    ("profiling metrics prove replays", "distributed"),
    ("transforms", "parameter_tree"),
    ("testing", "distributed gradient_check"),
    ("gpu_doctor", "testing"),
    ("page", ""),
    ("__main__", "utils kernels"),
    ("compat", "distributed testing exporters"),
]
# The table of packages and modules in mpchain/distributed has the same form.
FLOORS = [
    ("objects", ""),
    ("shared_memory", "objects"),
    ("watch", "shared_memory"),
    ("global_except_hook nccl testing", ""),
    ("communicators", "watch global_except_hook"),
    ("gradients functions datasets iterators", "communicators"),
    ("optimizers", "gradients"),
    ("links", "functions"),
    ("checkpoints", "communicators"),
    ("extensions recovery", "checkpoints"),
    ("updaters multiprocess_parallel", "optimizers extensions"),
    ("notebooks", "communicators"),
]
OPTIONAL = {
    "PIL",
    "cloudpickle",
    "cudnn",
    "cupy",
    "cupyx",
    "google",
    "h5py",
    "isal",
    "llvmlite",
    "matplotlib",
    "ml_dtypes",
    "mlflow",
    "mpi4py",
    "nccl",
    "sacrebleu",
    "numba",
    "nvidia",
    "onnx",
    "onnxruntime",
    "packaging",
    "pytest",
    "scipy",
    "sklearn",
    "tensorboardX",
    "torch",
    "tornado",
    "tqdm",
    "wandb",
}
"""Libraries of extras, which are imported only inside of functions that need them."""

SLOW = {"http.client", "importlib.metadata", "urllib.request"}
"""Modules of the standard library that are seldom needed and slow to import."""

ONE_PLACE = {
    "cupy": {"mpchain/backends/cuda.py"},
    "cupyx": {"mpchain/backends/cuda.py"},
    "ml_dtypes": {"mpchain/backends/dtypes.py"},
    "mpi4py": {"mpchain/distributed/communicators/mpi.py"},
}
"""For each of these libraries, the only files that may import it."""

PLUGIN = "mpchain/testing/doctest_names.py"
IMPORT_THE_TOP = {PLUGIN}
"""Files that import mpchain's top level as users do, for the names in examples."""


OF_LIBRARIES = {"astype", "writeable", "_fields"}
"""Names of attributes that NumPy's arrays and named tuples also have."""


@functools.cache
def _closure(in_distributed=False):
    """Returns, for each room, the rooms that it may import. Only rows above are allowed, so there
    is no circle of rows."""
    allowed = {}
    for rooms, below in FLOORS if in_distributed else TABLE:
        rooms, below = set(rooms.split()), set(below.split())
        reach = rooms | below
        for room in below:
            reach |= allowed[room]
        allowed |= dict.fromkeys(rooms, reach)
    return allowed


class _Import:
    """One module that an import statement names, and the line of the statement."""

    def __init__(self, path, node, module, in_function):
        self.path, self.line, self.module, self.in_function = path, node.lineno, module, in_function

    @property
    def room(self):
        """The imported room of mpchain; None for another package, '' for mpchain itself."""
        package, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if package == "mpchain" else None

    @property
    def floor(self):
        """The imported package or module within mpchain.distributed, as in :attr:`room`."""
        found = self.module.removeprefix("mpchain.distributed.")
        return None if found == self.module else found.partition(".")[0]

    def __repr__(self):
        return f"{self.path}:{self.line}: {self.module}"


def _modules(node):
    """Returns the modules that an import statement names; names imported from mpchain,
    mpchain.distributed or mpchain.kernels count as modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    if module in ("mpchain", ".", "mpchain.distributed", "mpchain.kernels"):
        return [f"{module.rstrip('.')}.{alias.name}" for alias in node.names]
    return [module]


@functools.cache
def _imports(path):
    """Returns the imports in a file, except those for type checkers."""
    relative = path.relative_to(ROOT)
    return [*_find(relative.as_posix(), trees(ROOT, relative.parts[0])[relative.as_posix()])]


def _find(relative, node, in_function=False, types=False):
    for child in ast.iter_child_nodes(node):
        if not types and isinstance(child, ast.If):
            if getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue  # imports for type checkers are not run
        inside = in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield from (_Import(relative, child, m, in_function) for m in _modules(child))
        yield from _find(relative, child, inside, types)


def _files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def _room(path):
    return path.relative_to(ROOT / "mpchain").parts[0].removesuffix(".py")


ROOMS = sorted({_room(path) for path in _files("mpchain")} - {"__init__"})


def _imports_of(room):
    return [i for path in _files("mpchain") if _room(path) == room for i in _imports(path)]


def test_every_room_is_in_the_table():
    assert set(ROOMS) <= set(_closure()), "rooms that the table does not know"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_the_table_allows(room):
    allowed = _closure()[room]
    wrong = [i for i in _imports_of(room) if i.room is not None and i.room not in allowed]
    assert [i for i in wrong if i.room != "" or i.path not in IMPORT_THE_TOP] == []


def test_no_floor_of_the_runtime_imports_what_is_above_it():
    allowed, folder = _closure(in_distributed=True), "mpchain/distributed"
    for path in _files(folder):
        name = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        if name != "__init__":
            assert name in allowed, f"{name} is not in the table"
            wrong = {i for i in _imports(path) if i.floor and i.floor not in allowed[name]}
            assert wrong == set()


def _annex(path):
    """Returns the annex of a file, given its path from the root; None for a file of the core."""
    folders = {f"{folder}/": annex for annex, text in ANNEXES.items() for folder in text.split()}
    return next((annex for folder, annex in folders.items() if path.startswith(folder)), None)


def _annex_of_module(module):
    return _annex(module.replace(".", "/") + "/")


def _leaking_imports(root=ROOT):
    # Imports for type checkers count, too, except where packages list the names of annexes.
    for path, tree in (trees(root, "mpchain") | trees(root, "launch")).items():
        for found in _find(path, tree, types=not path.endswith("__init__.py")):
            if _annex_of_module(found.module) not in (None, _annex(path)):
                yield path, found.module


def test_an_annex_is_imported_by_the_registry_alone():
    assert {*_leaking_imports()} == set()


def _defined(tree):
    """Yields the names of functions, classes, attributes and variables that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _asked_for(tree):
    """Yields the names that a file looks up by ``hasattr`` and ``getattr``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("hasattr", "getattr"):
            if isinstance(node.args[1], ast.Constant):
                yield node.args[1].value


def _leaking_names(root=ROOT):
    files = trees(root, "mpchain") | trees(root, "launch")
    core = {path for path in files if _annex(path) is None}
    defined = {path: {*_defined(tree)} for path, tree in files.items()}
    known = OF_LIBRARIES.union(*(defined[path] for path in core))
    only = set().union(*(defined[path] for path in files.keys() - core)) - known
    return {(path, name) for path in core for name in _asked_for(files[path]) if name in only}


@pytest.mark.long
def test_the_core_asks_for_no_name_that_only_an_annex_defines():
    assert _leaking_names() == set()


def test_the_search_for_leaks_finds_them(tmp_path):
    for annex in ("captured", "metrics"):
        (tmp_path / "mpchain" / annex).mkdir(parents=True)
    (tmp_path / "mpchain/captured/a.py").write_text("class A:\n    def only_here(self): pass\n")
    (tmp_path / "mpchain/metrics/b.py").write_text("from mpchain.captured.a import A\n")
    (tmp_path / "mpchain/core.py").write_text(
        "if TYPE_CHECKING:\n    from mpchain import metrics\n"
        "def f(x):\n    return hasattr(x, 'only_here') or getattr(x, 'elsewhere', 0)\n"
    )
    assert {*_leaking_imports(tmp_path)} == {
        ("mpchain/metrics/b.py", "mpchain.captured.a"),
        ("mpchain/core.py", "mpchain.metrics"),
    }
    assert _leaking_names(tmp_path) == {("mpchain/core.py", "only_here")}


def test_kernels_know_no_variables():
    assert not _closure()["kernels"] & {"variable", "function_node", "backprop", "functions"}


def test_nothing_imports_the_runtime_or_the_tests_tools():
    above = {"compat", "gpu_doctor", "profiling", "metrics", "prove", "replays", "testing"}
    for room in set(ROOMS) - above:
        reach = _closure()[room]
        assert room == "distributed" or "distributed" not in reach
        assert room == "testing" or "testing" not in reach
        assert room in ("gradient_check", "testing") or "gradient_check" not in reach


@pytest.mark.parametrize("room", ROOMS)
def test_imports_are_absolute_and_at_the_top(room):
    for found in _imports_of(room):
        assert not found.module.startswith("."), found
        package = found.module.partition(".")[0]
        if found.in_function:
            assert package in OPTIONAL or found.module in SLOW, found
        elif not (found.path == PLUGIN and package == "pytest"):
            assert package in sys.stdlib_module_names | {"numpy", "mpchain"}, found


@pytest.mark.parametrize("package", ONE_PLACE)
def test_one_place_knows_the_library(package):
    found = [i for path in _files("mpchain") for i in _imports(path)]
    places = {i.path for i in found if i.module.partition(".")[0] == package}
    assert places <= ONE_PLACE[package]


def test_the_launcher_needs_the_standard_library_alone():
    # The launcher's probes run in separate processes, and may import more.
    for path in (path for path in _files("launch") if not path.name.startswith("probe_")):
        for found in _imports(path):
            package = found.module.partition(".")[0]
            assert package in sys.stdlib_module_names | {"", "launch", "mpchain_launch"}, found


def test_the_reader_sees_every_form_of_import():
    text = (
        "import os.path, numpy\n"
        "from mpchain import links as L, config\n"
        "from mpchain.backends.cuda import copy\n"
        "from mpchain.distributed import watch\n"
        "from . import near\n"
        "from .far import thing\n"
        "import mpchain\n"
        "class A:\n    import a\n    def f(self):\n        if True:\n            import b.c\n"
    )
    imports = [*_find("module.py", ast.parse(text))]
    found = [(i.module, i.room, i.in_function) for i in imports]
    assert [i.floor for i in imports if i.floor] == ["watch"]
    assert found == [
        ("os.path", None, False),
        ("numpy", None, False),
        ("mpchain.links", "links", False),
        ("mpchain.config", "config", False),
        ("mpchain.backends.cuda", "backends", False),
        ("mpchain.distributed.watch", "distributed", False),
        (".near", None, False),
        (".far", None, False),
        ("mpchain", "", False),
        ("a", None, False),
        ("b.c", None, True),
    ]


def _in_a_new_process(code):
    """Runs code after ``import mpchain``; returns the lines that it prints."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import mpchain\n{code}"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_importing_mpchain_imports_no_optional_library():
    packages = sorted(OPTIONAL | {"numexpr", "torch"})
    printed = _in_a_new_process(
        "for name in dir(mpchain): getattr(mpchain, name)\n"
        f"print([name for name in {packages} if name in sys.modules])\n"
        f"print([name for name in {sorted(SLOW)} if name in sys.modules])"
    )
    assert printed == ["[]", "[]"]


def test_rooms_are_imported_when_they_are_used():
    printed = _in_a_new_process(
        "loaded = lambda: [n for n in ('links', 'training') if 'mpchain.' + n in sys.modules]\n"
        "print(loaded()); mpchain.links.Linear; print(loaded())\n"
        "from mpchain import training; print(loaded())\n"
        "print(mpchain.Distribution is mpchain.distributions.Distribution)\n"
        "print({'links', 'training', 'scatter_dataset', 'Variable'} <= set(dir(mpchain)))\n"
        "print(hasattr(mpchain, 'no_such_room'))"
    )
    assert printed == ["[]", "['links']", "['links', 'training']", "True", "True", "False"]
