"""The settings of a job, complete before it starts."""

import os
import sys
from collections.abc import Iterable, Mapping

from . import mpirun
from .losses import Elastic

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .page import Page

FOLDER = os.path.dirname(os.path.abspath(__file__))
START_RANK = os.path.join(FOLDER, "start_rank.py")


class Plan:
    """The settings of a job, complete before it starts.

    Args:
        n: The number of ranks.
        program: The arguments of ``python`` on each rank.
        starter: The starter of the ranks.
        hosts: The number of slots of each host; empty if all ranks run on this host.
        remote_shell: The same as in `allocations.Allocation`.
        oversubscribed: Whether there may be more ranks than cores or slots.
        variables: The environment variables that are added for all ranks.
        prefix: Whether lines begin with the number of their rank.
        merge: Whether equal lines of several ranks are shown once; requires prefixes.
        is_verbose: Whether known, uninformative messages of MPI libraries are shown in full.
        log_dir: Folder for one file per rank, or None.
        timeout: Seconds after which the job is ended, or None.
        grace: Seconds between the request to a rank to end and SIGKILL.
        host_timeout: Seconds without a heartbeat after which the launcher takes a host for lost.
        page: The `page.Page` that shows the job, or None.
        elastic: The limits within which the job continues without lost ranks; with None, a loss
            ends it.
        spares: The number of spare ranks, which are the last ranks and wait to replace lost ranks.

    Example:
        >>> plan = Plan(n=2, program=["train.py"], starter=mpirun.OpenMpi("mpirun"))
        >>> plan.replace(n=3).command({})[:5]
        ['mpirun', '--bind-to', 'none', '-n', '3']
    """

    # The constructor is written by hand, because importing dataclasses would take a quarter of the
    # launcher's start.
    def __init__(
        self,
        *,
        n: int,
        program: list[str],
        starter: mpirun.Direct,
        hosts: dict[str, int] | None = None,
        remote_shell: tuple[str, ...] = ("ssh",),
        oversubscribed: bool = False,
        variables: dict[str, str] | None = None,
        prefix: bool = True,
        merge: bool = True,
        is_verbose: bool = False,
        log_dir: str | None = None,
        timeout: float | None = None,
        grace: float = 5.0,
        host_timeout: float = 10.0,
        page: "Page | None" = None,
        elastic: Elastic | None = None,
        spares: int = 0,
    ):
        self.n, self.program, self.starter = n, program, starter
        self.hosts, self.remote_shell = hosts or {}, remote_shell
        self.oversubscribed, self.variables = oversubscribed, variables or {}
        self.prefix, self.merge, self.log_dir = prefix, merge, log_dir
        self.is_verbose = is_verbose
        self.timeout, self.grace, self.host_timeout = timeout, grace, host_timeout
        self.page = page
        self.elastic, self.spares = elastic, spares

    def replace(self, **changes: object) -> "Plan":
        """Returns a copy of this plan with some settings changed."""
        return Plan(**{**vars(self), **changes})

    def command(self, environment: Mapping[str, str], added: Iterable[str] = ()) -> list[str]:
        """Returns the command that starts the ranks.

        Args:
            environment: The environment of the launcher.
            added: The names of variables that ranks need besides `variables`.
        """
        # In isolated mode and without site-packages, the guards start in half the time.
        guard = [sys.executable, "-I", "-S", START_RANK]
        forwarded = mpirun.forwarded(environment, [*self.variables, *added])
        start = self.starter.command(self.n, self.hosts, self.oversubscribed, forwarded)
        return [*start, *guard, *self.program]
