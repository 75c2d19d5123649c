"""Runs a job, and restarts a failed job from its last checkpoint."""

import itertools
import time

from . import binding, reach
from .checkpoints import Checkpoints
from .job import Job
from .plan import START_RANK, Plan
from .talk import say

RESUME = "MPCHAIN_RESUME"
PLACEHOLDER = "{checkpoint}"
LONGEST_WAIT = 60.0


def run(
    plan: Plan,
    restarts: int = 0,
    wait: float = 1.0,
    checkpoints: Checkpoints | None = None,
    min_ranks: int | None = None,
) -> int:
    """Runs a plan, and restarts a job that fails.

    Args:
        plan: The plan to run; its timeout covers all starts together.
        restarts: The maximum number of restarts.
        wait: Seconds before a restart; doubled after each start without a new checkpoint.
        checkpoints: The checkpoints from which ranks resume. The path of the newest checkpoint is
            in the environment variable MPCHAIN_RESUME, and replaces ``{checkpoint}`` in arguments.
        min_ranks: Minimum number of ranks of a restart after hosts are lost; None requires all that
            are not spare.

    Returns:
        The exit code of the last start.

    Example:
        >>> run(plan, restarts=3, checkpoints=Checkpoints("result"))  # doctest: +SKIP
    """
    deadline = None if plan.timeout is None else time.monotonic() + plan.timeout
    newest = checkpoints and checkpoints.newest()
    waits, current, code = 0, plan, 1
    for start in itertools.count(1):
        if current:
            job = Job(_prepare(current, newest, deadline), start)
            code = job.run()
            if code == 0 or job.is_final:
                return code
        if start > restarts:
            return code
        before, newest = newest, checkpoints and checkpoints.newest()
        waits = waits + 1 if newest == before else 1
        seconds = min(LONGEST_WAIT, wait * 2 ** (waits - 1))
        origin = f"from {newest}" if newest else "from the beginning"
        say(f"restart {start} of {restarts} in {seconds:g} s, {origin}")
        time.sleep(seconds)
        current = with_hosts_that_answer(plan, min_ranks or plan.n - plan.spares)
    raise AssertionError("starts are counted without an end")


def with_hosts_that_answer(plan: Plan, min_ranks: int) -> Plan | None:
    """Returns the plan for the hosts that answer. If their slots are too few, prints a message and
    returns None.

    Args:
        plan: A plan for all hosts.
        min_ranks: The minimum number of ranks.

    Example:
        >>> plan = Plan(n=2, program=["train.py"], starter=None)
        >>> with_hosts_that_answer(plan, min_ranks=1) is plan
        True
    """
    if not plan.hosts:
        return plan
    from . import inquiry  # it is seldom needed, and slow to import

    bad = inquiry.complaints(plan.hosts, plan.remote_shell, START_RANK, plan.host_timeout)
    hosts = {host: slots for host, slots in plan.hosts.items() if host not in bad}
    slots = sum(hosts.values())
    n = plan.n if plan.oversubscribed and hosts else min(plan.n, slots)
    for sentence in bad.values():
        say(sentence)
    if n < min_ranks:
        say(f"slots left: {slots}, ranks required: {min_ranks}; --min-ranks allows fewer ranks")
        return None
    spares = max(0, plan.spares - (plan.n - n))
    if n < plan.n:
        say(f"continuing with {n} of {plan.n} ranks on {', '.join(hosts)}")
    plan = plan.replace(spares=spares)
    if all(map(reach.is_local, hosts)):
        return plan.replace(n=n, hosts={}, oversubscribed=n > binding.cores())
    return plan.replace(n=n, hosts=hosts)


def _prepare(plan, checkpoint, deadline):
    """Returns the plan for the next start of the job."""
    variables = {**plan.variables, **({RESUME: checkpoint} if checkpoint else {})}
    program = [word.replace(PLACEHOLDER, checkpoint or "") for word in plan.program]
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    return plan.replace(variables=variables, program=program, timeout=left)
