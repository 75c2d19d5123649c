import ast
import pathlib
import sys

import pytest

import launch

FILES = sorted(pathlib.Path(launch.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_standard_library_only(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        allowed = sys.stdlib_module_names | {"launch"}
        assert {name.partition(".")[0] for name in names} <= allowed


def test_rank_imports_little(run):
    """Every rank pays for what the guard imports."""
    code = """
import sys
sys.argv = ["start_rank.py"]
try:
    exec(compile(open(r"%s").read(), r"%s", "exec"), {"__file__": r"%s", "__name__": "__main__"})
except SystemExit:
    pass
slow = {"argparse", "asyncio", "dataclasses", "inspect", "json", "re", "subprocess", "typing"}
print(sorted(slow & set(sys.modules)))
""" % ((pathlib.Path(launch.__file__).with_name("start_rank.py"),) * 3)
    assert run(command=("-I", "-S", "-c", code))[:2] == (0, "[]\n")
