"""Batch scripts for Slurm, PBS and LSF, and the manifest of an MPIJob for Kubernetes."""

import argparse
import os
import re
import shlex
import sys

# Options that say how the job gets its hosts, and so do not belong into its command line.
OWN = ("scheduler", "nodes", "gpus", "cores", "time", "name", "queue", "account", "image")
OWN += ("directive", "setup")
LEFT_OUT = (*OWN, "ranks", "module", "program", "dry_run", "help")


def main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Prints what the batch system reads; returns the exit code 0."""
    if options.ranks == "auto":
        parser.error("--scheduler needs the number of ranks: -n auto is known only on the hosts")
    if options.ranks % options.nodes:
        parser.error(f"--nodes {options.nodes} does not divide the {options.ranks} ranks of -n")
    if options.scheduler == "kubernetes":
        if not options.image:
            parser.error("--scheduler kubernetes needs --image, with mpchain and the script in it")
        for name in ("directive", "setup"):
            if getattr(options, name):
                parser.error(f"--{name} is for batch scripts: edit the manifest, or the image")
    elif options.image:
        parser.error("--image is for --scheduler kubernetes")
    job = _Job(options, _own_arguments(parser, options))
    _check_texts(parser, options, [*job.launcher_arguments, *job.program])
    print(WRITERS[options.scheduler](job))
    return 0


def _check_texts(parser, options, command):
    """Refuses texts that cannot be written where the batch system reads them."""
    for name in ("queue", "account"):
        text = getattr(options, name)
        if text and not re.fullmatch(r"[\w.,:@%+/-]+", text):
            parser.error(f"--{name} must be one word, not {text!r}")
    for text in options.directive:
        if not text.isprintable():
            parser.error(f"--directive must be one line of text, not {text!r}")
    for word in command if options.scheduler == "kubernetes" else ():
        if any("\ud800" <= character <= "\udfff" for character in word):
            parser.error(f"a manifest holds Unicode texts alone, not {os.fsencode(word)!r}")


class _Job:
    """What the writers of all batch systems need to know."""

    def __init__(self, options, own_arguments):
        script = options.program[0]
        stem = script if options.module else os.path.basename(script).removesuffix(".py")
        self.name = re.sub(r"[^\w.-]+", "-", options.name or stem)
        self.options, self.n, self.nodes = options, options.ranks, options.nodes
        self.per_node = self.n // self.nodes
        module = ["-m"] if options.module else []
        self.launcher_arguments = ["-n", str(self.n), *own_arguments]
        self.program = [*module, "--", *options.program]

    def script(self, sign, directives, folder, requeued=""):
        """A batch script.

        Args:
            sign: What its directives begin with.
            directives: Those of the batch system; None is left out.
            folder: Shell variable with the folder where the job was submitted.
            requeued: Shell expression that is ``--resume`` when the job was started before.
        """
        options = self.options
        launcher = [sys.executable, "-m", __package__, *self.launcher_arguments]
        resume = [requeued] if requeued and options.checkpoint_dir and not options.resume else []
        words = [shlex.join(launcher), *resume, shlex.join(self.program)]
        lines = [f"{sign} {text}" for text in (*directives, *options.directive) if text]
        # The launcher takes the place of the shell, so that signals of the batch system reach it.
        body = ["set -e", f'cd "${folder}"', *options.setup, f"exec {' '.join(words)}"]
        return "\n".join(["#!/bin/bash", *lines, *body])


def _slurm(job):
    options = job.options
    directives = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks={job.n}",
        f"--ntasks-per-node={job.per_node}",
        options.cores and f"--cpus-per-task={options.cores}",
        options.gpus and f"--gpus-per-node={options.gpus}",
        options.time and f"--time={_clock(options.time)}",
        options.queue and f"--partition={options.queue}",
        options.account and f"--account={options.account}",
        # A minute before the end ranks are told, and may save a checkpoint.
        options.time and "--signal=B:TERM@60",
        "--requeue",
        "--open-mode=append",
    ]
    return job.script("#SBATCH", directives, "SLURM_SUBMIT_DIR", "${SLURM_RESTART_COUNT:+--resume}")


def _pbs(job):
    options = job.options
    chunk = f"select={job.nodes}:ncpus={job.per_node * (options.cores or 1)}"
    chunk += f":mpiprocs={job.per_node}" + (f":ngpus={options.gpus}" if options.gpus else "")
    directives = [
        f"-N {job.name}",
        f"-l {chunk}",
        options.time and f"-l walltime={_clock(options.time)}",
        options.queue and f"-q {options.queue}",
        options.account and f"-A {options.account}",
        "-j oe",
    ]
    return job.script("#PBS", directives, "PBS_O_WORKDIR")


def _lsf(job):
    options = job.options
    directives = [
        f"-J {job.name}",
        f"-n {job.n}",
        f'-R "span[ptile={job.per_node}]"',
        options.cores and f'-R "affinity[core({options.cores})]"',
        options.gpus and f'-gpu "num={options.gpus}"',
        options.time and f"-W {_clock(options.time).rpartition(':')[0]}",
        options.queue and f"-q {options.queue}",
        options.account and f"-P {options.account}",
        f"-o {job.name}.%J.log",
    ]
    return job.script("#BSUB", directives, "LS_SUBCWD")


def _kubernetes(job):
    options = job.options
    name = re.sub(r"[^a-z0-9-]+", "-", job.name.lower()).strip("-")[:50] or "mpchain"
    limits = {}
    if options.cores:
        limits["cpu"] = job.per_node * options.cores
    if options.gpus:
        limits["nvidia.com/gpu"] = options.gpus
    worker = {"name": "worker", "image": options.image}
    command = ["mpchain-launch", *job.launcher_arguments, *job.program]
    # Kubernetes replaces $(NAME) in a command, and reads $$ as $.
    command = [word.replace("$", "$$") for word in command]
    launcher = {"name": "launcher", "image": options.image, "command": command}
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if options.time:
        policy["activeDeadlineSeconds"] = options.time
    if options.queue:
        policy["schedulingPolicy"] = {"queue": options.queue}
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
                "Worker": _replicas(
                    job.nodes, worker | ({"resources": {"limits": limits}} if limits else {})
                ),
            },
        },
    }
    return "\n".join(_yaml(manifest))


WRITERS = {"slurm": _slurm, "pbs": _pbs, "lsf": _lsf, "kubernetes": _kubernetes}


def _replicas(number, container):
    pod = {"spec": {"containers": [container]}}
    return {"replicas": number, "restartPolicy": "Never", "template": pod}


def _yaml(value, indent=""):
    """Lines of YAML for dictionaries, lists, texts and whole numbers."""
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
    """A text of YAML in ASCII alone, because parsers differ in what else they accept."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character):
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _own_arguments(parser, options):
    """The launcher's own options as they were given, but those that are for the batch system."""
    arguments = []
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if action.dest in LEFT_OUT or value == action.default:
            continue
        name = action.option_strings[-1]
        if isinstance(value, bool):
            names = [each for each in action.option_strings if each.startswith("--")]
            arguments.append(names[0] if value else names[-1])
        else:
            for each in value if isinstance(value, list) else [value]:
                text = repr(each).removesuffix(".0") if isinstance(each, float) else str(each)
                arguments += [f"{name}={text}"]
    return arguments


def _clock(seconds):
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
