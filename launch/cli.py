"""The command line."""

import argparse
import importlib.util
import math
import os
import shlex
import sys

from . import allocations, binding, environments, mpirun
from .job import Job, say
from .plan import Plan
from .processes import fill_standard_files

WRONG_USE = 2


class Parser(argparse.ArgumentParser):
    """A parser whose complaints take one line."""

    def error(self, message):
        say(f"{message} (mpchain-launch --help explains the options)")
        raise SystemExit(WRONG_USE)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `mpchain-launch`.

    Args:
        arguments: Its arguments; those of this process if None.

    Returns:
        The exit code of the first rank that failed, 128 + n if signal n ended it; 0 if none failed;
        2 for wrong use.
    """
    fill_standard_files()
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        plan = _plan(parser, options)
        if options.dry_run:
            print(describe(plan))
            return 0
        _say_what_is_special(plan)
        return Job(plan).run()
    except KeyboardInterrupt:
        return 130


def describe(plan: Plan) -> str:
    """What a plan would run: added environment variables, those of each rank, the command."""
    environment = {**os.environ, **plan.variables}
    lines = [f"{name}={value}" for name, value in plan.variables.items()]
    for rank in range(plan.n):
        share = binding.rank_variables(environment, rank, plan.n)
        lines.append(f"[{rank}] " + " ".join(f"{name}={value}" for name, value in share.items()))
    return "\n".join([*lines, shlex.join(plan.command)])


def _parser():
    parser = Parser(
        prog="mpchain-launch",
        usage="mpchain-launch -n N [options] script [arguments of the script]",
        description="Runs a Python script on N ranks.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--ranks", type=_number_of_ranks, required=True, metavar="N", help="number of ranks")
    add("-m", "--module", action="store_true", help="run a module, as python -m does")
    add(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        help="put the number of the rank before each line, as in '[2] text' (default: if N > 1)",
    )
    add("--timeout", type=_seconds, metavar="SECONDS", help="end the job after this time")
    add(
        "--grace",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="time from asking ranks to end to SIGKILL (default: 5)",
    )
    add("--dry-run", action="store_true", help="print the command and the environment, run nothing")
    add("program", nargs=argparse.REMAINDER, metavar="script", help="the script and its arguments")
    return parser


def _number_of_ranks(text):
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text!r}")
    return seconds


def _plan(parser, options):
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    _check_place(parser)
    _check_program(parser, program, options.module)
    starter = _starter(parser, options.ranks)
    runner = ["-m", "mpi4py"] if importlib.util.find_spec("mpi4py") else []
    module = ["-m"] if options.module else []
    return Plan(
        n=options.ranks,
        program=[sys.executable, *runner, *module, *program],
        starter=starter,
        oversubscribed=options.ranks > binding.cores(),
        variables=_variables(starter),
        prefix=options.ranks > 1 if options.prefix is None else options.prefix,
        timeout=options.timeout,
        grace=options.grace,
    )


def _check_place(parser):
    here = environments.detect(os.environ)
    if here.size > 1 and here.starter != "Slurm":
        parser.error(
            f"this is already rank {here.rank} of {here.size}, started by {here.starter}: "
            "start the script itself here, or mpchain-launch outside"
        )
    hosts = allocations.hosts(os.environ)
    if len(hosts) > 1:
        parser.error(
            f"{len(hosts)} hosts are allocated ({hosts[0]}, ...), and only one can be used: "
            "allocate one, or start 'python -m mpi4py script' with the mpirun or srun of the site"
        )


def _check_program(parser, program, is_module):
    if not program:
        what = "module" if is_module else "script"
        parser.error(f"which {what}? e.g. mpchain-launch -n 2 {'-m ' * is_module}train")
    name = program[0]
    if is_module:
        sys.path.insert(0, os.getcwd())  # as python -m does
        top = name.partition(".")[0]
        if not top or not importlib.util.find_spec(top):
            parser.error(f"there is no module {name!r} to run")
    elif not os.path.exists(name):
        parser.error(f"there is no script {name!r} in {os.getcwd()}")


def _starter(parser, n):
    try:
        found = mpirun.find()
    except mpirun.UnknownMpirunError as error:
        parser.error(f"{error}; install one of them with: pip install 'mpchain[mpi]'")
    if not found and n > 1:
        parser.error(f"{n} ranks need mpirun; install it with: pip install 'mpchain[mpi]'")
    return found or mpirun.Direct()


def _variables(starter):
    # Without it, what a rank prints would appear late, and be lost when it is killed.
    unbuffered = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    return {**starter.variables(os.environ), **unbuffered}


def _say_what_is_special(plan):
    as_root = " and ".join(name for name in plan.variables if name.startswith("OMPI_"))
    if as_root:
        say(f"running as root: {as_root} set for Open MPI")
    if plan.oversubscribed:
        say(f"{plan.n} ranks share {binding.cores()} cores, which makes each of them slower")
    devices = binding.gpus(os.environ)
    if 0 < len(devices) < plan.n:
        number = f"{len(devices)} GPU{'s' * (len(devices) > 1)}"
        say(f"{plan.n} ranks share {number}; NCCL needs one for each rank")
