"""Batch scripts for Slurm, PBS and LSF, and the manifest of an MPIJob for Kubernetes."""

import argparse
import os
import re
import shlex
import sys

# These options describe how the job gets its hosts, so they are left out of its command line.
OWN = ("scheduler", "nodes", "gpus", "cores", "time", "name", "queue", "account", "image")
OWN += ("directive", "setup")
LEFT_OUT = (*OWN, "ranks", "module", "program", "dry_run", "help")


def main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints the script for the batch system; returns the exit code 0.

    Example:
        >>> from . import cli
        >>> cli.main(["--scheduler", "slurm", "-n", "2", "--time", "1:00:00", "train.py"])
        #!/bin/bash
        #SBATCH --job-name=train
        ...
    """
    if options.ranks == "auto":
        parser.error("--scheduler needs a number of ranks: -n auto needs the hosts")
    n = options.ranks + options.spares
    if n % options.nodes:
        spare = f" and the {options.spares} of --spares" * bool(options.spares)
        text = f"--nodes {options.nodes} does not divide the {options.ranks} ranks of -n{spare}"
        parser.error(text)
    if options.scheduler == "kubernetes":
        if not options.image:
            parser.error("--scheduler kubernetes needs --image, with mpchain and the script in it")
        for name in ("directive", "setup"):
            if getattr(options, name):
                parser.error(f"--{name} is only for batch scripts: edit the manifest, or the image")
    elif options.image:
        parser.error("--image needs --scheduler kubernetes")
    job = _Job(options, _own_arguments(parser, options))
    _check_texts(parser, options, [*job.launcher_arguments, *job.program])
    print(_kubernetes(job) if options.scheduler == "kubernetes" else _script(job))
    return 0


def _check_texts(parser, options, command):
    """Refuses texts that the batch system's format cannot contain."""
    for name in ("queue", "account"):
        text = getattr(options, name)
        if text and not re.fullmatch(r"[\w.,:@%+/-]+", text):
            parser.error(f"--{name} must be one word, not {text!r}")
    for text in options.directive:
        if not text.isprintable():
            parser.error(f"--directive must be one line of text, not {text!r}")
    for word in command if options.scheduler == "kubernetes" else ():
        if any("\ud800" <= character <= "\udfff" for character in word):
            parser.error(f"words in a manifest must be Unicode text, not {os.fsencode(word)!r}")


class _Job:
    """The values that the scripts of all batch systems need."""

    def __init__(self, options, own_arguments):
        script = options.program[0]
        stem = script if options.module else os.path.basename(script).removesuffix(".py")
        self.name = re.sub(r"[^\w.-]+", "-", options.name or stem)
        self.options, self.nodes = options, options.nodes
        self.n = options.ranks + options.spares
        self.per_node = self.n // self.nodes
        module = ["-m"] if options.module else []
        self.launcher_arguments = ["-n", str(options.ranks), *own_arguments]
        self.program = [*module, "--", *options.program]


# For each batch system, this table holds the prefix of its directives, the shell variable with the
# folder where the job was submitted, a shell expression that yields --resume if the job was started
# before, and the directives. A directive is left out if a value in it is None ({if_time} is None or
# empty).
_SCRIPTS = {
    "slurm": (
        *("#SBATCH", "SLURM_SUBMIT_DIR", "${SLURM_RESTART_COUNT:+--resume}"),
        *("--job-name={name}", "--nodes={nodes}", "--ntasks={n}", "--ntasks-per-node={per_node}"),
        *("--cpus-per-task={cores}", "--gpus-per-node={gpus}", "--time={time}"),
        *("--partition={queue}", "--account={account}"),
        # A minute before the time limit, ranks get a signal, so that they can save a checkpoint.
        *("--signal=B:TERM@60{if_time}", "--requeue", "--open-mode=append", "--output=%x-%j.out"),
    ),
    "pbs": (
        *("#PBS", "PBS_O_WORKDIR", ""),
        *("-N {name}", "-l select={nodes}:ncpus={node_cores}:mpiprocs={per_node}{pbs_gpus}"),
        *("-l walltime={time}", "-q {queue}", "-A {account}", "-j oe"),
    ),
    "lsf": (
        *("#BSUB", "LS_SUBCWD", ""),
        *("-J {name}", "-n {n}", '-R "span[ptile={per_node}]"', '-R "affinity[core({cores})]"'),
        *('-gpu "num={gpus}"', "-W {minutes}", "-q {queue}", "-P {account}", "-o {name}.%J.log"),
    ),
}


def _script(job):
    """Returns the batch script for a job."""
    options = job.options
    sign, folder, requeued, *directives = _SCRIPTS[options.scheduler]
    time = options.time and _clock(options.time)
    values = {**vars(options), **vars(job), "time": time, "if_time": time and ""}
    values["minutes"] = time and time.rpartition(":")[0]
    values["node_cores"] = job.per_node * (options.cores or 1)
    values["pbs_gpus"] = f":ngpus={options.gpus}" if options.gpus else ""
    known = {name: value for name, value in values.items() if value is not None}
    lines = [text.format(**known) for text in directives if set(_fields(text)) <= set(known)]
    lines = [f"{sign} {text}" for text in [*lines, *options.directive]]
    launcher = [sys.executable, "-m", __package__, *job.launcher_arguments]
    resume = [requeued] if requeued and options.checkpoint_dir and not options.resume else []
    words = [shlex.join(launcher), *resume, shlex.join(job.program)]
    # The launcher replaces the shell, so that it receives the signals of the batch system.
    body = ["set -e", f'cd "${folder}"', *options.setup, f"exec {' '.join(words)}"]
    return "\n".join(["#!/bin/bash", *lines, *body])


def _fields(text):
    return re.findall(r"{(\w+)}", text)


def _kubernetes(job):
    options = job.options
    name = re.sub(r"[^a-z0-9-]+", "-", job.name.lower()).strip("-") or "mpchain"
    # The operator makes a service of this name, so it must begin with a letter.
    name = (name if name[0].isalpha() else f"job-{name}")[:50]
    cores = options.cores and job.per_node * options.cores
    limits = _without_none({"cpu": cores, "nvidia.com/gpu": options.gpus})
    worker = {"name": "worker", "image": options.image}
    worker |= {"resources": {"limits": limits}} if limits else {}
    command = ["mpchain-launch", *job.launcher_arguments, *job.program]
    # Kubernetes replaces $(NAME) in a command, and reads $$ as $.
    command = [word.replace("$", "$$") for word in command]
    launcher = {"name": "launcher", "image": options.image, "command": command}
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    policy |= _without_none({"activeDeadlineSeconds": options.time})
    policy |= {"schedulingPolicy": {"queue": options.queue}} if options.queue else {}
    manifest = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": job.per_node,
            "mpiImplementation": "MPICH" if options.mpi == "mpich" else "OpenMPI",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, launcher),
                "Worker": _replicas(job.nodes, worker),
            },
        },
    }
    return "\n".join(_yaml(manifest))


def _without_none(values):
    return {name: value for name, value in values.items() if value is not None}


def _replicas(number, container):
    pod = {"spec": {"containers": [container]}}
    return {"replicas": number, "restartPolicy": "Never", "template": pod}


def _yaml(value, indent=""):
    """Yields the lines of YAML for a dictionary or a list of dictionaries, lists, texts and whole
    numbers."""
    if isinstance(value, dict):
        items = [(f"{key}:", each) for key, each in value.items()]
    else:
        items = [("-", each) for each in value]
    for head, each in items:
        if isinstance(each, dict) and head == "-":
            first, *rest = _yaml(each, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        elif isinstance(each, (dict, list)):
            yield f"{indent}{head}"
            yield from _yaml(each, indent + "  ")
        else:
            yield f"{indent}{head} {_quote(each) if isinstance(each, str) else each}"


def _quote(text):
    """Returns a text as YAML in ASCII, because parsers disagree about other characters."""
    text = text.replace("\\", r"\\").replace('"', r"\"")
    text = re.sub("[^ -~]", lambda match: f"\\U{ord(match[0]):08X}", text)
    return f'"{text}"'


def _own_arguments(parser, options):
    """Returns the options of the command line that do not have their defaults, except those for
    the batch system and those that the script contains anyway, such as ``-n``."""
    arguments = []
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if action.dest in LEFT_OUT or value == action.default:
            continue
        names = [name for name in action.option_strings if name.startswith("--")]
        if isinstance(value, bool):
            arguments.append(names[0] if value else names[-1])
        else:
            for each in value if isinstance(value, list) else [value]:
                text = repr(each).removesuffix(".0") if isinstance(each, float) else str(each)
                arguments.append(f"{names[-1]}={text}")
    return arguments


def _clock(seconds):
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
