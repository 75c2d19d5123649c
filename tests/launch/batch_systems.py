"""Imitations of PBS's qsub, and of LSF's bsub and blaunch, on hosts that are namespaces (hosts.py).

They read the directives of a script, list hosts in a file, set variables and print messages as the
manuals of OpenPBS (qsub, pbs_resources) and of LSF 10.1 (bsub, blaunch, "Environment variables set
for job execution") describe. An unknown directive is an error. Jobs start at once.
"""

import os
import pathlib
import re
import subprocess
import sys


def qsub(script, hosts):
    """Runs a script as PBS does; returns the printed text."""
    options = _directives(script, "#PBS", r"-(N|q|A|j) (\S+)|-l (select|walltime)=(\S+)")
    chunks, *resources = options["select"].split(":")
    amounts = dict(each.split("=") for each in resources)
    assert set(amounts) <= {"ncpus", "mpiprocs", "ngpus"}, amounts
    assert int(amounts["ncpus"]) >= int(amounts["mpiprocs"])
    assert options["j"] == "oe"
    # There is a line for each MPI process, and the lines of a host are adjacent.
    lines = [host for host in hosts[: int(chunks)] for _ in range(int(amounts["mpiprocs"]))]
    number = f"1.{hosts[0]}"
    variables = {"PBS_NODEFILE": _write("nodefile", lines), "PBS_O_WORKDIR": os.getcwd()}
    variables |= {"PBS_JOBID": number, "PBS_JOBNAME": options["N"]}
    variables |= {"PBS_ENVIRONMENT": "PBS_BATCH"}
    _run(script, variables, f"{options['N']}.o1")
    return number


def bsub(script, hosts):
    """Runs a script as LSF does; returns the printed text."""
    known = r"-(J|n|W|q|P|o) (\S+)|-R \"(span\[ptile|affinity\[core)[=(](\d+)\)?\]\""
    options = _directives(script, "#BSUB", known)
    n, of_host = int(options["n"]), int(options["span[ptile"])
    lines = [host for host in hosts for _ in range(of_host)][:n]
    assert len(lines) == n, "not enough hosts"
    counts = " ".join(f"{host} {lines.count(host)}" for host in dict.fromkeys(lines))
    variables = {"LSB_DJOB_HOSTFILE": _write("hostfile", lines), "LS_SUBCWD": os.getcwd()}
    variables |= {"LSB_HOSTS": " ".join(lines), "LSB_MCPU_HOSTS": counts, "LSB_JOBID": "1"}
    _run(script, variables, options["o"].replace("%J", "1"))
    return "Job <1> is submitted to default queue <normal>."


def blaunch(words):
    """Runs a command on a host in a shell, as rsh and ssh do, which blaunch replaces."""
    assert not words[0].startswith("-"), words
    ssh = os.environ["IMITATED_REMOTE_SHELL"]
    os.execv(ssh, [ssh, words[0], " ".join(words[1:])])


def _directives(script, sign, known):
    options = {}
    for line in script.splitlines():
        if not line.startswith(f"{sign} "):
            continue
        found = re.fullmatch(known, line.removeprefix(f"{sign} "))
        assert found, f"unknown directive: {line}"
        name, value = (each for each in found.groups() if each is not None)
        options[name] = value
    return options


def _write(name, lines):
    path = pathlib.Path(name).absolute()
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def _run(script, variables, output):
    with open(output, "wb") as file:
        subprocess.run(
            ["bash", "-c", script],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )


if __name__ == "__main__":
    if sys.argv[1] == "blaunch":
        blaunch(sys.argv[2:])
    print({"qsub": qsub, "bsub": bsub}[sys.argv[1]](sys.stdin.read(), sys.argv[2].split(",")))
