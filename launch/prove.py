"""Proves that N ranks compute the same as one process: runs a program both ways.

``python -m mpchain.prove`` runs the program. Its ranks record the first updates; then one process
repeats these updates and compares the results. If the results differ, a second process tests
whether two runs in one process differ, too.
"""

import argparse
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile

from .talk import Parser, say, whole_number

_LINES = 30  # the output lines that are shown if a program failed


def main(arguments: list[str]) -> int:
    """Runs `mpchain-launch prove`: prints the verdict.

    Args:
        arguments: The command line after the word ``prove``.

    Returns:
        0 if the program is proved, otherwise 1.

    Example:
        >>> main(["-n", "2", "train.py"])  # doctest: +SKIP
        0
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.program[:1] == ["--"]:
        del options.program[0]
    if not options.program:
        parser.error("no script given, e.g. mpchain-launch prove -n 2 train.py")
    if not _is_there():
        parser.error("prove needs the annex 'prove', which this copy of mpchain lacks")
    folder = tempfile.mkdtemp(prefix="mpchain-prove-")
    try:
        return _prove(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_there():
    spec = importlib.util.find_spec("mpchain")  # finding the package imports nothing
    folders = (spec and spec.submodule_search_locations) or ()
    return any(os.path.exists(os.path.join(f, "prove", "__main__.py")) for f in folders)


def _parser():
    parser = Parser(
        prog="mpchain-launch prove",
        usage="mpchain-launch prove -n N [options] script [arguments of the script]",
        description="Runs the first updates of a script on N ranks and in one process, and "
        "compares them: functions, losses, reports, gradients, parameters.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--ranks", type=whole_number(2), required=True, metavar="N", help="number of ranks")
    steps = "updates of each optimizer (default: 3)"
    add("--steps", type=whole_number(1), default=3, metavar="N", help=steps)
    add("--float64", action="store_true", help="compute in double precision, for sharper bounds")
    add("-m", "--module", action="store_true", help="run a module, as python -m does")
    add("program", nargs=argparse.REMAINDER, metavar="script", help="the script")
    return parser


def _prove(options, folder):
    n = str(options.ranks)
    flags = [*["--float64"] * options.float64, *["-m"] * options.module]
    run = [folder, n, str(options.steps), *options.program]
    launcher = [sys.executable, "-m", __package__, "-n", n, "--no-prefix", "-m"]
    if failure := _run([*launcher, "mpchain.prove", *flags, "ranks", *run], folder):
        say(f"prove: the program failed on {n} ranks:\n{failure}")
        return 1
    one = [sys.executable, "-m", "mpchain.prove"]
    verdicts = {}
    for role in ("one", "again"):
        if failure := _run([*one, *flags, role, *run], folder):
            say(f"prove: the program failed in one process:\n{failure}")
            return 1
        with open(os.path.join(folder, f"{role}, verdict.pickle"), "rb") as file:
            verdicts[role] = pickle.load(file)
        if verdicts[role]["is_same"] is not False:
            break
    verdict = verdicts[role]
    print(verdict["text"], flush=True)
    return 0 if verdict["is_same"] else 1


def _run(command, folder):
    """Runs a command; returns the last lines of its output if it failed, otherwise an empty
    string."""
    path = os.path.join(folder, "output")
    with open(path, "wb") as output:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    return "" if code == 0 else "\n".join([*lines[-_LINES:], f"(exit code {code})"])
