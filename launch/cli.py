"""The command line."""

import argparse
import importlib.util
import os
import re
import shlex
import sys

from . import allocations, binding, environments, mpi_library, mpirun, reach, restarts
from .checkpoints import PATTERNS, Checkpoints
from .hosts import add_hosts, find_hosts
from .job import COMMAND_VARIABLE
from .losses import Elastic
from .plan import Plan
from .processes import fill_standard_files
from .rank import PAGE_VARIABLE
from .standstill import DEFAULT_TIMEOUT, TIMEOUT_VARIABLE
from .talk import Parser, clock_time, say, seconds, whole_number

_SECONDS = {"type": seconds, "metavar": "SECONDS"}
_NUMBER = {"type": whole_number(1), "metavar": "N"}
_MANY = {"action": "append", "default": []}
SCHEDULERS = ("slurm", "pbs", "lsf", "kubernetes")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command `mpchain-launch`.

    Args:
        arguments: The command's arguments; None stands for the arguments of this process.

    Returns:
        The exit code of the first rank that failed, or 128 + n if signal n ended that rank or the
        job; 124 after ``--timeout``; 1 if ranks could not start; 2 for wrong use; otherwise 0. A
        command such as ``doctor`` has an exit code of its own.

    Example:
        >>> main(["-n", "2", "train.py", "--lr", "0.1"])  # doctest: +SKIP
        0
    """
    fill_standard_files()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["doctor"]:
            from . import doctor  # it is seldom needed, and slow to import

            return doctor.main(arguments[1:])
        if arguments[:1] == ["prove"]:
            from . import prove  # it is seldom needed, and slow to import

            return prove.main(arguments[1:])
        if arguments[:1] in (["replay"], ["diff"]):
            from . import replays  # it is seldom needed

            return replays.main(arguments)
        return _launch(arguments)
    except KeyboardInterrupt:
        return 130


def describe(plan: Plan) -> str:
    """Returns a text that shows a plan: common environment variables; the slots of each host, or
    each rank's own variables if there are no other hosts; the command.

    Example:
        >>> plan = Plan(n=1, program=["train.py"], starter=mpirun.Direct(), variables={"A": "1"})
        >>> print(describe(plan))
        A=1
        [0]...start_rank.py train.py
    """
    environment = {**os.environ, **plan.variables}
    lines = [f"{name}={value}" for name, value in plan.variables.items()]
    lines += [f"host {host}: {slots} slots" for host, slots in plan.hosts.items()]
    for rank in range(0 if plan.hosts else plan.n):  # other hosts set their variables
        share = binding.rank_variables(environment, plan.n - plan.spares)
        lines.append(f"[{rank}] " + " ".join(f"{name}={value}" for name, value in share.items()))
    return "\n".join([*lines, shlex.join(plan.command(os.environ))])


def _launch(arguments):
    parser = _parser()
    # Without an equals sign, argparse would mistake the script for the folder of --record.
    options = parser.parse_args(["--record=" if a == "--record" else a for a in arguments])
    options.program = ["--record" if a == "--record=" else a for a in options.program]
    _check(parser, options)
    if options.scheduler:
        from . import schedulers  # it is seldom needed, and slow to import

        return schedulers.main(parser, options)
    plan = _plan(parser, options)
    if options.dry_run:
        print(describe(plan))
        return 0
    _say_what_is_special(plan)
    for option, folder in (("--log-dir", options.log_dir), ("--trace", options.trace)):
        try:
            if folder:
                os.makedirs(folder, exist_ok=True)
        except OSError as error:
            parser.error(f"{option} {folder}: {error.strerror}")
    os.environ[COMMAND_VARIABLE] = shlex.join(["mpchain-launch", *arguments])
    if options.page:
        from . import page  # it is seldom needed, and slow to import

        plan = plan.replace(page=page.start(parser, shlex.join(options.program), options.page))
    folder = options.checkpoint_dir
    checkpoints = folder and Checkpoints(folder, options.checkpoint_pattern, options.resume)
    again = {"restarts": options.restarts, "wait": options.backoff, "min_ranks": options.min_ranks}
    try:
        return restarts.run(plan, checkpoints=checkpoints, **again)
    finally:
        if plan.page:
            plan.page.close()


class _Version(argparse.Action):
    """Prints the version, which is looked up only when the option is used."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, nargs=0, **options)

    def __call__(self, parser, *_):
        from importlib import metadata  # it is seldom needed, and slow to import

        try:
            version = metadata.version("mpchain")
        except metadata.PackageNotFoundError:
            version = "of mpchain that is not installed"
        print("mpchain-launch", version)
        parser.exit()


def _parser():
    parser = Parser(
        prog="mpchain-launch",
        usage="mpchain-launch -n N [options] script [arguments of the script]\n"
        "       mpchain-launch doctor [options]\n"
        "       mpchain-launch prove -n N [options] script [arguments of the script]\n"
        "       mpchain-launch replay RUN --step K [options]",
        description="Runs a Python script on N ranks; 'doctor' tests the installation; 'prove' "
        "tests whether ranks compute what one process computes; 'replay' computes steps of a "
        "recorded run again, in one process.",
        epilog=f"The launcher ends a job when a rank stands still as it starts, or after other "
        f"ranks have finished, or when mpirun is stopped, for {TIMEOUT_VARIABLE} seconds "
        f"(default: {DEFAULT_TIMEOUT:g}; inf: never).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    ranks = "number of ranks; auto: all slots, or without slots one per GPU, or one per two cores"
    add("-n", "--ranks", type=_ranks, required=True, metavar="N", help=ranks)
    add("-m", "--module", action="store_true", help="run a module, as python -m does")
    add("--env", **_MANY, metavar="NAME[=VALUE]", help="set an environment variable for all ranks")
    prefix = "put the number of the rank before each line, as in '[2] text' (default: if N > 1)"
    add("--prefix", action=argparse.BooleanOptionalAction, help=prefix)
    merge = (
        "show once, as '[0-3] text', what several ranks print at a time (default: with --prefix)"
    )
    add("--merge", action=argparse.BooleanOptionalAction, default=True, help=merge)
    verbose = "show also repeated messages of MPI libraries, and the variables set for them"
    add("-v", "--verbose", action="store_true", help=verbose)
    add("--log-dir", metavar="FOLDER", help="also write the output of each rank to a file there")
    trace = "profile 100 steps: write a timeline of all ranks and a table to this folder"
    add("--trace", metavar="FOLDER", help=trace)
    record = "record fingerprints of each step in this folder (default: record) for 'replay'"
    add("--record", metavar="FOLDER", help=record)
    page = "serve a page on this host that shows the job live in a browser"
    add("--page", action="store_const", const="view", help=page)
    control = "serve the page with a button that stops training after an iteration"
    add("--page=control", dest="page", action="store_const", const="control", help=control)
    add("--timeout", **_SECONDS, help="end the job after this time, restarts included")
    bind = (
        "bind each rank to its own cores, or to a NUMA domain, and print the binding (default: "
        "none: ranks have as many threads as cores)"
    )
    add("--bind", choices=binding.MODES, default="none", help=bind)
    grace = "time from asking ranks to end to SIGKILL (default: 5)"
    add("--grace", **_SECONDS, default=5.0, help=grace)
    mpi = "program that starts the ranks (default: the mpirun of the MPI library of mpi4py)"
    add("--mpi", choices=("auto", "openmpi", "mpich", "srun"), default="auto", help=mpi)
    add("--version", action=_Version, help="print the version of mpchain and exit")
    add("--dry-run", action="store_true", help="print the command and the environment, run nothing")
    add_hosts(parser)
    _add_restarts(parser)
    _add_elastic(parser)
    _add_schedulers(parser)
    add("program", nargs=argparse.REMAINDER, metavar="script", help="the script and its arguments")
    return parser


def _add_restarts(parser):
    group = parser.add_argument_group(
        "restarts",
        "A job that failed resumes from its newest checkpoint, whose path the script finds in the "
        "environment variable MPCHAIN_RESUME and in place of {checkpoint} among its arguments.",
    )
    add = group.add_argument
    most = "maximum number of restarts (default: 0)"
    add("--restarts", type=whole_number(0), default=0, metavar="N", help=most)
    wait = "wait before a restart, twice as long each time without progress (default: 1)"
    add("--backoff", **_SECONDS, default=1.0, help=wait)
    where = "folder of the script's checkpoints; the highest number in a name is the newest"
    add("--checkpoint-dir", metavar="FOLDER", help=where)
    names = f"names of the checkpoints (default: {', '.join(PATTERNS)})"
    add("--checkpoint-pattern", metavar="PATTERN", help=names)
    resume = "resume at the first start, too, from the newest checkpoint of any earlier run"
    add("--resume", action="store_true", help=resume)
    least = (
        "restart on the remaining hosts if they have slots for N ranks (default: all ranks); with "
        "--elastic also end the job when fewer ranks are left (default: 1)"
    )
    add("--min-ranks", **_NUMBER, help=least)


def _add_elastic(parser):
    group = parser.add_argument_group(
        "elastic jobs",
        "With --elastic the other ranks continue when a signal ends a rank, or when its host is "
        "cut off; an exception still ends the job. The option needs Open MPI 5 with ULFM.",
    )
    add = group.add_argument
    add("--elastic", action="store_true", help="continue without ranks that are lost")
    most = "end the job, and restart it if --restarts allows, when more ranks are lost in an hour"
    add("--max-losses-per-hour", type=whole_number(0), metavar="N", help=most)
    spares = "start K more ranks, which wait in run_elastic to replace lost ranks"
    add("--spares", type=whole_number(0), default=0, metavar="K", help=spares)


def _add_schedulers(parser):
    group = parser.add_argument_group(
        "batch systems", "With --scheduler, the launcher runs no job, but prints a script for it."
    )
    add = group.add_argument
    scheduler = "print a batch script, or the manifest of an MPIJob"
    add("--scheduler", choices=SCHEDULERS, help=scheduler)
    add("--nodes", **_NUMBER, default=1, help="number of hosts (default: 1)")
    add("--gpus", **_NUMBER, help="GPUs of each host")
    add("--cores", **_NUMBER, help="cores of each rank")
    add("--time", type=clock_time, metavar="HH:MM:SS", help="time limit")
    add("--name", help="name of the job (default: the name of the script)")
    add("--queue", help="queue or partition")
    add("--account", help="account or project")
    add("--image", help="container image with mpchain and the script (kubernetes)")
    directive = "another line for the batch system, such as '--constraint=a100'"
    add("--directive", **_MANY, metavar="TEXT", help=directive)
    setup = "another line of shell before the start, such as 'module load openmpi'"
    add("--setup", **_MANY, metavar="TEXT", help=setup)


def _ranks(text):
    return text if text == "auto" else whole_number(1)(text)


def _check(parser, options):
    """Reports a missing script, and options that contradict each other or need another option."""
    if options.program[:1] == ["--"]:
        del options.program[0]
    if not options.program:
        what = "module" if options.module else "script"
        example = "-m train" if options.module else "train.py"
        parser.error(f"no {what} given, e.g. mpchain-launch -n 2 {example}")
    if not options.checkpoint_dir:
        for name in ("checkpoint_pattern", "resume"):
            if getattr(options, name):
                parser.error(f"--{name.replace('_', '-')} needs --checkpoint-dir")
        if any(restarts.PLACEHOLDER in word for word in options.program):
            parser.error(f"{restarts.PLACEHOLDER} among the arguments needs --checkpoint-dir")
    for name, is_given in (
        ("max-losses-per-hour", options.max_losses_per_hour is not None),
        ("spares", options.spares > 0),
    ):
        if is_given and not options.elastic:
            parser.error(f"--{name} needs --elastic")
    if options.min_ranks and options.ranks != "auto" and options.min_ranks > options.ranks:
        parser.error(f"--min-ranks {options.min_ranks} is more than the {options.ranks} of -n")


def _plan(parser: Parser, options):
    _check_place(parser)
    _check_program(parser, options.program, options.module)
    allocation, hosts = find_hosts(parser, options)
    n = _number_of_ranks(parser, options, allocation, hosts)
    if all(map(reach.is_local, hosts)):
        hosts = {}
    try:
        starter = mpirun.find(options.mpi, in_slurm=allocation is allocations.SLURM)
    except mpirun.UnknownMpirunError as error:
        parser.error(str(error))
    if not starter and (n > 1 or hosts):
        parser.error(f"several ranks need mpirun; install it with: {mpirun.INSTALL}")
    starter = starter or mpirun.Direct()
    elastic = None
    if options.elastic:
        elastic = Elastic(options.min_ranks or 1, options.max_losses_per_hour)
        try:
            starter = starter.elastic()
        except mpirun.NotElasticError as error:
            parser.error(f"--elastic needs Open MPI 5 with ULFM ({mpirun.INSTALL}): {error}")
    runner = ["-m", "mpi4py"] if mpi_library.mpi4py() else []
    module = ["-m"] if options.module else []
    return Plan(
        n=n,
        program=[*runner, *module, *options.program],
        starter=starter,
        hosts=hosts,
        remote_shell=allocation.remote_shell,
        oversubscribed=options.oversubscribe or (not hosts and n > binding.cores()),
        variables=starter.variables(os.environ, n, hosts) | _added(parser, options),
        prefix=n > 1 if options.prefix is None else options.prefix,
        merge=options.merge,
        is_verbose=options.verbose,
        log_dir=options.log_dir,
        timeout=options.timeout,
        grace=options.grace,
        host_timeout=options.host_timeout,
        elastic=elastic,
        spares=options.spares,
    )


def _check_place(parser):
    here = environments.detect(os.environ)
    if here.size > 1 and here.starter != "Slurm":
        parser.error(
            f"this is already rank {here.rank} of {here.size}, started by {here.starter}: "
            "run the script directly here, or mpchain-launch outside"
        )


def _check_program(parser, program, is_module):
    name = program[0]
    if is_module:
        sys.path.insert(0, os.getcwd())  # as python -m does
        top = name.partition(".")[0]
        if not top or not importlib.util.find_spec(top):
            parser.error(f"no module named {name!r}")
    elif re.fullmatch(r"python[\d.]*", os.path.basename(name)):
        parser.error(f"pass the script without {name}: ranks run the Python of mpchain-launch")
    elif not os.path.exists(name):
        parser.error(f"no script {name!r} in {os.getcwd()}")


def _number_of_ranks(parser, options, allocation, hosts):
    """Returns the number of ranks, including spare ranks."""
    slots, spares = sum(hosts.values()), options.spares
    if options.ranks == "auto":
        if slots and slots <= spares:
            parser.error(f"--spares {spares} leaves none of the {slots} slots to ranks that train")
        return slots or spares + (len(binding.gpus(os.environ)) or max(1, binding.cores() // 2))
    n = options.ranks + spares
    if hosts and n > slots and not options.oversubscribe:
        spare = f", {spares} of them spare," * bool(spares)
        names = ",".join(f"{host}:{number}" for host, number in hosts.items())
        source = "" if options.hosts or options.hostfile else f" of {allocation.name}"
        parser.error(
            f"{n} ranks{spare} need {n} slots, and the hosts{source} have {slots} "
            f"({names}): ask for more slots, use fewer ranks, or add --oversubscribe"
        )
    return n


def _added(parser, options):
    # Buffered output of a rank would appear late, and be lost if the rank is killed.
    added = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    if options.elastic:
        added["MPCHAIN_ELASTIC"] = "1"  # mpchain reads this variable
    if options.trace:
        added["MPCHAIN_TRACE"] = os.path.abspath(options.trace)  # mpchain reads this
    if options.record is not None:
        added["MPCHAIN_RECORD"] = os.path.abspath(options.record or "record")  # mpchain reads this
    if options.bind != "none":
        added[binding.VARIABLE] = options.bind  # the supervisors read this variable
    if options.page:
        added[PAGE_VARIABLE] = options.page  # the supervisors read this variable
    for item in options.env:
        name, equals, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            parser.error(f"--env must be NAME=VALUE or NAME, not {item!r}")
        if not equals and name not in os.environ:
            parser.error(f"--env {name}: this variable is not set; set it, or pass NAME=VALUE")
        added[name] = value if equals else os.environ[name]
    return added


def _say_what_is_special(plan):
    as_root = " and ".join(name for name in plan.variables if name.startswith("OMPI_ALLOW"))
    if as_root and plan.is_verbose:
        say(f"running as root: {as_root} set for Open MPI")
    if plan.hosts:
        return
    n = plan.n - plan.spares
    if n > binding.cores():
        say(f"warning: {n} ranks on {binding.cores()} cores (oversubscribed): expect slower steps")
    devices = binding.gpus(os.environ)
    if 0 < len(devices) < n:
        number = f"{len(devices)} GPU{'s' * (len(devices) > 1)}"
        say(f"{n} ranks share {number}; NCCL needs one GPU for each rank")
