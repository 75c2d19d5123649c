"""Measures, on ranks that this launcher starts, which transports carry messages, and how fast."""

import argparse
import json
import os
import re
import shlex
import sys

from . import inquiry, plan
from .findings import FAILURE, OK, WARNING, Finding

GIB = 1 << 30
PROBE = os.path.join(plan.FOLDER, "probe_allreduce.py")
TIME = 240.0
MOST_LATENCY = 1e-3
# These variables make Open MPI, MPICH and UCX print their transports.
SHOWN = {
    "OMPI_MCA_ompi_display_comm": "mpi_init",
    "MPIR_CVAR_DEBUG_SUMMARY": "1",
    "UCX_LOG_LEVEL": "info",
}
_BY_TCP = (
    "there are InfiniBand adapters, but messages between hosts go through TCP: use an Open MPI or "
    "an MPICH with UCX, and unset OMPI_MCA_pml, OMPI_MCA_btl, UCX_TLS, UCX_NET_DEVICES and "
    "FI_PROVIDER"
)


def measure(options: argparse.Namespace, has_adapters: bool = False) -> list[Finding]:
    """Returns the findings about messages between ranks and about an all-reduce.

    Args:
        options: The options of the doctor.
        has_adapters: Whether a host has an adapter of InfiniBand or a similar network.

    Example:
        >>> options = argparse.Namespace(ranks=2, hosts="", hostfile="")
        >>> [finding.item for finding in measure(options)]  # doctest: +SKIP
        ['transports', 'latency', 'bandwidth']
    """
    ranks = str(options.ranks or ("auto" if options.hosts or options.hostfile else 2))
    launcher = [sys.executable, "-m", __package__, "-n", ranks, "--no-prefix", "--timeout=120"]
    for name in ("hosts", "hostfile"):
        if getattr(options, name):
            launcher += [f"--{name}", getattr(options, name)]
    for_all = [f"--env={name}={value}" for name, value in SHOWN.items() if name not in os.environ]
    command = [*inquiry.with_own_path(), *launcher, *for_all, PROBE]
    code, output, errors = inquiry.run_on_all({"": command}, TIME)[""]
    if code != 0:
        reason = errors.strip().rpartition("\n")[2].removeprefix("mpchain-launch: ")
        by_hand = shlex.join([*launcher, PROBE])
        hint = f"fix this first; run it by hand: {by_hand}"
        return [Finding("all-reduce", FAILURE, reason, hint)]
    measured = json.loads(next(line for line in output.splitlines() if line.startswith('{"ranks"')))
    return [judge(output, measured["between"], has_adapters), *_judge_sums(measured)]


def judge(output: str, between: dict, has_adapters: bool) -> Finding:
    """Returns a finding about the transports that the library reports, and their speed.

    Args:
        output: The output of the ranks.
        between: The positions of two ranks, the seconds of a short message between them, and the
            bytes per second of a long message.
        has_adapters: The same as in `measure`.

    Example:
        >>> between = {"places": ["rank 0 on a", "rank 1 on b"], "latency": 2e-6, "speed": 1e10}
        >>> judge("  off-host: all connections are tcp", between, False).found
        'off-host tcp: 2 µs, 9.31 GiB/s between rank 0 on a and rank 1 on b'
    """
    found = _transports(output)
    words = ", ".join(f"{where} {what}" for where, what in found.items()) or "unknown"
    speed = f"{1e6 * between['latency']:.3g} µs, {between['speed'] / GIB:.2f} GiB/s between "
    words += f": {speed}{' and '.join(between['places'])}"
    if has_adapters and re.search(r"\b(?:tcp|sockets)\b", found.get("off-host", "")):
        return Finding("transports", WARNING, words, _BY_TCP)
    return Finding("transports", OK, words)


def _transports(output):
    """Returns the transports within and between hosts, if the library reports them."""
    said = re.findall(r"^ *(on-host|off-host): +all connections are (\S.*?) *$", output, re.M)
    found = {where: what for where, what in said if what != "n/a"}
    # Only newer versions of Open MPI show the transports of UCX.
    for where, what in re.findall(r"UCX +INFO .*(intra|inter)-node cfg#\d+ tag\((.*?)\)", output):
        place = {"intra": "on-host", "inter": "off-host"}[where]
        if found.get(place, "ucx") == "ucx":
            found[place] = f"ucx={what}"
    if provider := re.search(r"^libfabric provider: (\S+)", output, re.M):
        found["off-host"] = f"libfabric {provider[1]}"
    return found


def _judge_sums(measured):
    times = {int(size): seconds for size, seconds in measured["seconds"].items()}
    ranks = f"between {measured['ranks']} ranks"
    small, large = min(times), max(times)
    verdict, hint = OK, ""
    if times[small] > MOST_LATENCY:
        verdict, hint = WARNING, "other programs keep the cores busy, or the network is slow"
    found = f"{1e6 * times[small]:.0f} µs for {small} bytes {ranks}"
    latency = Finding("latency", verdict, found, hint)
    speeds = [f"{size >> 10} KiB in {1e3 * t:.2f} ms" for size, t in times.items() if size > small]
    bandwidth = f"{large / times[large] / GIB:.2f} GiB/s ({', '.join(speeds)}) {ranks}"
    return [latency, Finding("bandwidth", OK, bandwidth)]
