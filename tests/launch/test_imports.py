import ast
import pathlib
import signal
import subprocess
import sys

import pytest

import launch

FILES = sorted(pathlib.Path(launch.__file__).parent.glob("*.py"))
# The doctor starts these programs in separate processes, to find what is installed.
PROBES = ("probe_host.py", "probe_allreduce.py")


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name not in PROBES], ids=lambda path: path.name
)
def test_standard_library_only(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        allowed = sys.stdlib_module_names | {"launch"}
        assert {name.partition(".")[0] for name in names} <= allowed


def test_launcher_imports_nothing_of_mpchain_and_little_else(run, script):
    path = script("pass")
    code = f"""
import sys
sys.argv = ["mpchain-launch", "-n", "1", "--dry-run", {str(path)!r}]
from launch import main
main()
slow = {{"asyncio", "dataclasses", "inspect", "json", "numpy", "mpi4py", "mpchain"}}
print(sorted(slow & set(sys.modules)))
"""
    code, output, _ = run(command=("-c", code))
    assert (code, output.splitlines()[-1]) == (0, "[]")


def test_importtime_of_the_command_shows_neither_mpchain_nor_numpy(start, script):
    launched = start(
        "-n", 1, "--dry-run", script("pass"), command=("-X", "importtime", "-m", "launch")
    )
    code, _, errors = launched.finish()
    names = {line.rpartition("|")[2].strip() for line in errors.splitlines()}
    assert code == 0
    assert "launch.cli" in names
    assert not {name.partition(".")[0] for name in names} & {"mpchain", "numpy", "mpi4py"}


@pytest.mark.parametrize(("package", "module"), [("launch", "shlex"), ("mpchain.launch", "numpy")])
def test_interrupt_while_the_launcher_is_imported(run, script, package, module):
    """The launcher ends at once, without a traceback of an import."""
    folder = script("import os, signal; os.kill(os.getpid(), signal.SIGINT)", f"{module}.py").parent
    root = pathlib.Path(launch.__file__).parents[1]
    path = {"env": {"PYTHONPATH": f"{folder}:{root}"}}
    code, output, errors = run("-n", 2, "script.py", command=("-m", package), **path)
    assert (code, output, errors) == (-signal.SIGINT, "", "")


def test_first_import_of_the_launcher_lets_interrupts_end_it(tmp_path):
    """This also holds if the module signal, which imports enum, was not imported before."""
    program = """
import os, sys, _signal

class Finder:
    def find_spec(name, *_):
        if name in ("signal", "argparse"):
            os.kill(os.getpid(), _signal.SIGINT)

assert "signal" not in sys.modules
sys.meta_path.insert(0, Finder)
from launch import main
sys.exit(main(["--help"]))
"""
    root = str(pathlib.Path(launch.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (-signal.SIGINT, "")


def test_rank_imports_little(run):
    """Every rank pays for the imports of the guard."""
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
