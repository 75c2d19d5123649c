"""``python -m mpchain.compat`` runs programs of Chainer on mpchain."""

import argparse
import contextlib
import os
import pathlib
import runpy
import sys

from mpchain.compat import install, report, shim

USAGE = """%(prog)s install | uninstall | report PATH | PROGRAM [ARGUMENTS] | -m MODULE [ARGUMENTS]

install      let `import chainer` and `import chainermn` mean mpchain in this environment
uninstall    undo install
report PATH  list the names that a program, or a folder of programs, uses and that mpchain lacks
PROGRAM      run one program with `import chainer` as mpchain, without changing the environment"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser("python -m mpchain.compat", usage=USAGE, add_help=True)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_usage()
        return 0 if arguments else 2
    command, *rest = arguments
    if command == "install":
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
        return shim.install(ask=not parser.parse_args(rest).yes)
    if command == "uninstall":
        return shim.uninstall()
    install()
    if command == "report":
        parser.add_argument("path", nargs="+")
        return _report(parser.parse_args(rest).path)
    if command == "-m" and not rest:
        parser.error("-m needs the name of a module")
    with _reaching_children():
        if command == "-m":
            sys.argv[:] = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = arguments
            sys.path[0] = str(pathlib.Path(command).resolve().parent)
            runpy.run_path(command, run_name="__main__")
    return 0


@contextlib.contextmanager
def _reaching_children():
    """Context manager: lets processes that the program starts also import mpchain as chainer.

    Processes of multiprocessing inherit ``sys.path``, others inherit the environment.
    """
    folder, before = str(shim.PACKAGES), os.environ.get("PYTHONPATH")
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
    try:
        yield
    finally:
        sys.path.remove(folder)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _report(paths):
    found = [entry for path in paths for entry in report.missing(path)]
    for file, line, name in found:
        print(f"{file}:{line}: {name}")
    for file, line, expression in [entry for path in paths for entry in report.doubtful(path)]:
        print(f"{file}:{line}: {expression}: NumPy 2.4 raises TypeError if the array has axes")
    print(
        f"names that are missing: {len(found)}" if found else "mpchain has every name that is used"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
