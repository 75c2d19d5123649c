"""The live page of a job, which a process of mpchain serves."""

import json
import os
import select
import subprocess
import sys

from . import report
from .rank import PAGE_VARIABLE
from .talk import Parser, say

TYPE_CHECKING = False  # importing typing would slow the start
if TYPE_CHECKING:
    from .job import Job
    from .remote_rank import Rank

INTERVAL = 0.5
TIME_TO_END = 20.0  # the page has a lower priority than the ranks, so it is slow on a busy host
LONGEST_LINE = 200  # characters
MOST_KEPT = 1 << 20  # bytes


def start(parser: Parser, command: str, mode: str) -> "Page":
    """Starts the page, and prints its address.

    The address contains a secret token, so it is printed only on a terminal, which no other user
    can read. Otherwise the path of the file that contains the address is printed.

    Args:
        parser: The parser that reports an error if the page does not start.
        command: The command that the ranks run.
        mode: "view", or "control" if browsers may stop training.

    Example:
        >>> start(parser, "train.py", "view")  # doctest: +SKIP
    """
    page = Page(command, mode == "control")
    if not page.path:
        page.close()
        parser.error("--page: the page did not start; the lines above say why")
    where = f"its address is in {page.path}"
    if sys.stderr.isatty():
        where = f"{page.address} (also in {page.path})"
    say(f"page: {where}")
    return page


class Page:
    """The process that serves the page; it receives events and sends requests as lines.

    Args:
        command: The command that the ranks run.
        has_control: Whether browsers may stop training.

    Attributes:
        address: The address with the token.
        path: The file that contains the address; empty if the process did not start.

    Example:
        >>> page = Page("train.py", has_control=False)  # doctest: +SKIP
        >>> page.close()  # doctest: +SKIP
    """

    def __init__(self, command: str, has_control: bool):
        environment = {name: os.environ[name] for name in os.environ if name != PAGE_VARIABLE}
        arguments = [sys.executable, "-P", "-m", "mpchain.page", *["--control"] * has_control]
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C then ends the page only after the job
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # stdin and stdout were opened as pipes
        self.address, _, self.path = stdout.readline().decode().strip().partition("\t")
        self._input, self._requests = stdin.fileno(), stdout.fileno()
        for file in (self._input, self._requests):
            os.set_blocking(file, False)
        self._command: str = command
        self._job: Job | None = None
        self._n_starts, self._waiting = 0, bytearray()
        self._reports, self._shown = {}, {}

    def follow(self, job: "Job") -> None:
        """Shows a job, which replaces an earlier job on the page."""
        self._job = job
        self._n_starts += 1
        self._reports, self._shown = {}, {}
        for screen in (job.stdout, job.stderr):
            screen.reader = self._take_output
        about = {"title": os.path.basename(self._command.partition(" ")[0]), "n": job.plan.n}
        n = job.plan.n - job.plan.spares
        about["command"] = f"mpchain-launch -n {n} {self._command}"
        self._send({"job": {**about, "start": self._n_starts, "state": "runs", "text": ""}})
        job.loop.on_readable(self._requests, lambda: self._take_request(job))
        self._look(job)

    def take(self, rank: int, data: bytes) -> None:
        """Sends the page the lines of JSON that a rank has written for it."""
        *lines, rest = (self._reports.get(rank, b"") + data).split(b"\n")
        self._reports[rank] = rest[:MOST_KEPT]
        for line in lines:
            self._put(b'{"rank": %d, "said": %b}\n' % (rank, line))

    def close(self) -> None:
        """Shows how the last job ended, and ends the page when browsers have received that, or
        when TIME_TO_END has passed."""
        if self._job:
            sentence, code = self._job.verdict or ("the launcher failed", 1)
            state = "failed" if code else "finished"
            self._look_at_ranks(self._job)
            state = "stopped" if self._job.is_final else state
            self._send({"job": {"state": state, "text": sentence}})
        while self._waiting and select.select([], [self._input], [], TIME_TO_END)[1]:
            self._flush()
        try:
            self._process.communicate(timeout=TIME_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _look(self, job):
        self._look_at_ranks(job)
        job.loop.after(INTERVAL, lambda: self._look(job))

    def _look_at_ranks(self, job):
        for rank in job.ranks.values():
            number, facts = rank.place, describe(rank)
            if facts != self._shown.get(number):
                self._shown[number] = facts
                self._send({"rank": number, "facts": facts})
        self._flush()

    def _take_output(self, data):
        self._send({"output": data.decode(errors="replace")})

    def _take_request(self, job):
        try:
            data = os.read(self._requests, 4096)
        except BlockingIOError:
            return
        if b"stop" in data:
            job.stop_in_good_order()
        if not data:  # the page has ended, but the job has not
            job.loop.on_readable(self._requests, None)

    def _send(self, event):
        self._put(json.dumps(event).encode() + b"\n")

    def _put(self, line):
        # If the page no longer reads, the line is dropped.
        if len(self._waiting) + len(line) <= MOST_KEPT:
            self._waiting += line
            self._flush()

    def _flush(self):
        try:
            while self._waiting:
                del self._waiting[: os.write(self._input, self._waiting[:65536])]
        except BlockingIOError:
            pass
        except OSError:  # the page has ended
            self._waiting.clear()


def describe(rank: "Rank") -> dict[str, str]:
    """Returns the page's entry for a rank.

    Example:
        >>> describe(rank)  # doctest: +SKIP
        {'host': 'node1', 'line': 'epoch 2', 'state': 'runs', 'text': ''}
    """
    state, text = "runs", "is suspended" if rank.is_stopped else ""
    if rank.lost:
        state, text = "failed", f"was lost: {rank.lost}"
    elif rank.ended:
        state, text = "stopped", "terminated by mpchain-launch"
        if rank.ended_itself:
            state = "finished" if rank.code == 0 else "failed"
            text = report.describe_end(rank.code) + rank.cause if rank.code else ""
        # After a loss, the launcher kills surviving ranks that are done, because MPI would not end.
        elif rank.done:
            state, text = "finished", ""
    line = rank.last_line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return {"host": rank.host, "line": line[-LONGEST_LINE:], "state": state, "text": text}
