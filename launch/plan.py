"""All that is decided before a job starts."""

import os
import sys

from .mpirun import Direct

START_RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_rank.py")


class Plan:
    """All that is decided before a job starts.

    Args:
        n: Number of ranks.
        program: What each rank runs, with its arguments.
        starter: What starts the ranks.
        oversubscribed: Whether there are more ranks than cores.
        variables: Environment variables added for all ranks.
        prefix: Whether lines get the number of their rank.
        timeout: Seconds after which the job is ended, or None.
        grace: Seconds between asking a rank to end and SIGKILL.
    """

    # By hand: importing dataclasses would cost a quarter of the launcher's start.
    def __init__(
        self,
        *,
        n: int,
        program: list[str],
        starter: Direct,
        oversubscribed: bool,
        variables: dict[str, str],
        prefix: bool,
        timeout: float | None,
        grace: float,
    ):
        self.n, self.program, self.starter = n, program, starter
        self.oversubscribed, self.variables, self.prefix = oversubscribed, variables, prefix
        self.timeout, self.grace = timeout, grace

    @property
    def command(self) -> list[str]:
        """What the launcher starts."""
        # Isolated and without site-packages, the guards start in half the time.
        guard = [sys.executable, "-I", "-S", START_RANK]
        return [*self.starter.command(self.n, self.oversubscribed), *guard, *self.program]
