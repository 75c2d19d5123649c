"""The extension that reports to the live page, and its connection."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpchain import annexes
from mpchain.reporter import is_scalar
from mpchain.training import page_facts
from mpchain.training.extension import Extension
from mpchain.training.progress import print_line
from mpchain.training.triggers import interval
from mpchain.utils.memory import pool_bytes, resident_bytes

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer

VARIABLE = "MPCHAIN_PAGE"
"""Variable in which ``mpchain-launch --page`` passes a pipe: file descriptor, device and inode."""

INTERVAL = 0.5
"""Seconds between two reports to the page."""

MOST_ENTRIES = 50
"""The most entries of the log in one report, except the first, which has earlier entries, too."""

MOST_EARLIER_ENTRIES = 2000
MOST_KEPT = 1 << 18  # bytes of reports that wait to be sent
TIME_TO_END = 20.0  # the page has a lower priority than the ranks, so it is slow on a busy host
_NO_CURVES = ("epoch", "iteration", "elapsed_time", "ranks/slowest")


class PageReport(Extension):
    """Shows the training live in a browser: curves, throughput, memory, the tail of the log.

    When training begins, the extension starts a process that serves the page on the loopback
    interface. The extension prints the path of the file that contains the address, and also the
    address with its secret token if standard error is a terminal. The page ends with the training.
    The page needs Tornado: ``pip install 'mpchain[page]'``.

    With ``mpchain-launch --page`` no program needs this extension: the launcher serves a page with
    all ranks, and trainers report to it by themselves.

    Args:
        control: whether the page has a button that stops training after an iteration, as SIGTERM
            does. Under the launcher, its option ``--page=control`` decides.

    Raises:
        RuntimeError: the page could not be started.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((2, "epoch"))
        >>> trainer.extend(extensions.LogReport())
        >>> trainer.extend(extensions.PageReport())
        >>> trainer.run()  # doctest: +SKIP
        page: http://127.0.0.1:40123/?token=... (also in ...)
    """

    # The extension is called first, so that snapshots do not list it as an extension that is still
    # to be called.
    priority = math.inf

    def __init__(self, control: bool = False) -> None:
        self._control = control
        self._connection: Any = None
        self._pipe = _launcher_pipe()
        self.is_report = self._pipe is None  # the launcher's page shows all ranks
        self._due = 0.0
        self._times: Any = (0.0, 0.0)  # the seconds spent working and waiting
        self._shares: dict[str, float] = {}
        self._n_sent = 0  # the number of entries of the log that were sent
        self._end = {"state": "finished"}

    def initialize(self, trainer: "Trainer") -> None:
        """Opens the connection to the page."""
        self._trainer = trainer
        if self._pipe is not None:
            self._connection = Connection(self._pipe)
        else:
            self._connection = start_page(self._control)
            about = {"command": " ".join(sys.orig_argv), "title": os.path.basename(sys.argv[0])}
            self._connection.send({"job": {"state": "runs", "start": 1, "n": 1, **about}})
            facts = {"state": "runs", "host": socket.gethostname()}
            self._connection.send({"rank": 0, "facts": facts})
        self._began = self._progress()
        self._rates = page_facts.Rates(self._began[:3])
        self._about = page_facts.about(trainer)

    def trigger(self, trainer: "Trainer") -> bool:
        """Returns whether a report is due."""
        return time.monotonic() >= self._due

    def __call__(self, trainer: "Trainer") -> None:
        """Reports the progress, and stops training if a browser has asked for it."""
        self._report()
        self._due = time.monotonic() + INTERVAL
        if b"stop" in self._connection.receive():
            # SIGTERM ends a trainer after a complete iteration.
            if callable(signal.getsignal(signal.SIGTERM)):
                signal.raise_signal(signal.SIGTERM)

    def on_error(self, trainer: "Trainer", exc: BaseException, tb: TracebackType | None) -> None:
        """Stores the exception that has ended training."""
        state = "failed" if isinstance(exc, Exception) else "stopped"
        self._end = {"state": state, "text": f"{type(exc).__name__}: {exc}"}

    def finalize(self) -> None:
        """Reports the end of training, and ends the page."""
        if self._connection is None:
            return
        self._report()
        if self._pipe is None:
            self._connection.send({"rank": 0, "facts": self._end})
            self._connection.send({"job": self._end})
        self._connection.close()
        self._connection = None

    def _progress(self):
        """Returns the time, and the completed iterations, epochs and share of training."""
        updater, done = self._trainer.updater, 0.0
        length = interval.training_length(self._trainer.stop_trigger)
        with contextlib.suppress(AttributeError):  # updaters need not have epochs
            epochs = updater.epoch_detail
            done = min(interval.progress(updater, length[1]) / length[0], 1.0) if length else 0.0
            return time.monotonic(), updater.iteration, epochs, done
        return time.monotonic(), updater.iteration, 0.0, done

    def _report(self):
        trainer, now = self._trainer, self._progress()
        facts = {"step": now[1], "epoch": now[2], "memory": resident_bytes()}
        facts |= self._shares_of_time()
        self._rates.add(now[:3])
        rates = {"": self._rates.lately, "mean_": self._rates.mean}
        if now[0] - self._began[0] < INTERVAL / 2:  # the first report has no rates yet
            rates = {}
        facts |= {f"{kind}rate": rate[0] for kind, rate in rates.items() if rate}
        if gpu := pool_bytes():
            facts["gpu"] = gpu
        said: dict[str, Any] = {"facts": facts}
        if trainer.writes_reports:
            spent, _, _, done = (b - a for a, b in zip(self._began, now))
            left = (1 - now[3]) * spent / done if done > 0 else None
            said["job"] = {"elapsed": trainer.elapsed_time, "done": now[3], "left": left}
            n = self._number_of_samples()
            samples = {f"{kind}samples": n * rate[1] for kind, rate in rates.items() if rate and n}
            said["job"] |= samples
            said["values"] = self._new_entries(now) + self._values(now, samples.get("samples"))
            if self._about:
                said["about"], self._about = self._about, {}
        self._connection.send(said if self._pipe is not None else {"rank": 0, "said": said})

    def _shares_of_time(self):
        """Returns the recent shares of time that this rank has worked, and waited for other
        ranks."""
        updater = self._trainer.updater
        times = updater.rank_times()
        if not isinstance(times, np.ndarray):
            return {}
        optimizers = updater.get_all_optimizers().values()
        comms = [o.communicator for o in optimizers if o.communicator is not None]
        own = times[:, comms[0].rank if comms else 0]
        work, wait = own - self._times
        if min(work, wait) >= 0 and work + wait > 0:  # ranks do not send their times in every step
            self._shares = {"work": work / (work + wait), "wait": wait / (work + wait)}
        self._times = own
        return self._shares

    def _new_entries(self, now):
        extensions = self._trainer.extensions.values()
        log = next((e.log for e in extensions if isinstance(getattr(e, "log", None), list)), [])
        self._n_sent = min(self._n_sent, len(log))  # training may have gone back
        new = log[self._n_sent :][-MOST_ENTRIES if self._n_sent else -MOST_EARLIER_ENTRIES :]
        self._n_sent = len(log)
        if self._pipe is None:
            for entry in new:
                line = "  ".join(f"{key} {_text(value)}" for key, value in entry.items())
                self._connection.send({"output": f"{line}\n"})
        epochs = now[2] / max(now[1], 1)  # the log contains only whole epochs
        return [
            {
                "kind": "log",
                "at": [entry["iteration"], entry["iteration"] * epochs, entry["elapsed_time"]],
                "values": _scalars(entry),
            }
            for entry in new
        ]

    def _number_of_samples(self):
        with contextlib.suppress(AttributeError, KeyError, TypeError, NotImplementedError):
            return len(self._trainer.updater.get_iterator("main").dataset)
        return 0

    def _values(self, now, samples):
        """Returns the facts about the current iteration."""
        values = _scalars(self._trainer.observation) | page_facts.learning_rates(self._trainer)
        if samples is not None:
            values["samples/s"] = samples
        return [{"kind": "live", "at": [*now[1:3], self._trainer.elapsed_time], "values": values}]


class Connection:
    """Sends reports to the page, or to the launcher; sending never waits for the receiver.

    Args:
        writer: file descriptor of a pipe.
        reader: file descriptor of a pipe with requests; None if there are no requests.
        process: the process of the page; None if the launcher serves the page.

    Example:
        >>> reader, writer = os.pipe()
        >>> connection = Connection(writer)
        >>> connection.send({"facts": {"step": 1}})
        >>> os.read(reader, 100)
        b'{"facts": {"step": 1}}\\n'
        >>> os.close(reader), os.close(writer)
        (None, None)
    """

    def __init__(
        self, writer: int, reader: int | None = None, process: subprocess.Popen | None = None
    ) -> None:
        self._writer, self._reader, self._process = writer, reader, process
        self._rest = b""
        for file in (writer, reader):
            if file is not None:
                os.set_blocking(file, False)

    def send(self, report: dict[str, Any]) -> None:
        """Sends a report; drops the report if too many bytes of earlier reports wait."""
        if len(self._rest) < MOST_KEPT:
            self._rest += json.dumps(report).encode() + b"\n"
        with contextlib.suppress(OSError):  # the pipe is full, or has no reader
            while self._rest:
                self._rest = self._rest[os.write(self._writer, self._rest) :]

    def receive(self) -> bytes:
        """Returns the requests that have arrived, as bytes."""
        with contextlib.suppress(OSError):
            return b"" if self._reader is None else os.read(self._reader, 4096)
        return b""

    def close(self) -> None:
        """Waits until the process of the page has sent the last report to browsers and ended;
        kills it after :data:`TIME_TO_END` seconds."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=TIME_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def start_page(control: bool = False) -> Connection:
    """Starts the process that serves the page, and prints its address.

    Args:
        control: whether browsers may stop training.

    Raises:
        RuntimeError: the process did not start.
        MissingAnnexError: the page was deleted; see :mod:`mpchain.annexes`.

    Example:
        >>> start_page().close()  # doctest: +SKIP
    """
    annexes.require("page", "PageReport")
    command = [sys.executable, "-P", "-m", "mpchain.page", *["--control"] * control]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None and stdout is not None  # stdin and stdout were opened as pipes
    address, _, path = stdout.readline().decode().strip().partition("\t")
    if not path:
        process.communicate()
        raise RuntimeError(
            f"PageReport: the page did not start (exit code {process.returncode}); "
            "the lines above say why"
        )
    where = f"{address} (also in {path})" if sys.stderr.isatty() else f"its address is in {path}"
    print_line(f"page: {where}", sys.stderr)
    return Connection(stdin.fileno(), stdout.fileno(), process)


def add_launched_page(trainer: "Trainer") -> None:
    """Makes a trainer report to the launcher's page, if there is one.

    Example:
        >>> add_launched_page(testing.get_trainer_with_mock_updater())
    """
    reports = (isinstance(each, PageReport) for each in trainer.extensions.values())
    if _launcher_pipe() is not None and not any(reports):
        trainer.extend(PageReport())


def _launcher_pipe():
    """Returns the file descriptor of the pipe to the launcher; None if there is none.

    Processes that the program starts inherit the variable, but not the pipe.
    """
    with contextlib.suppress(ValueError, OSError):
        file, device, inode = map(int, os.environ.get(VARIABLE, "").split(":"))
        status = os.fstat(file)
        return file if (status.st_dev, status.st_ino) == (device, inode) else None
    return None


def _text(value):
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


def _scalars(values):
    """Returns the scalars, and the first element of each pair (value, weight), as numbers."""
    found = {}
    for key, value in values.items():
        value = value[0] if isinstance(value, tuple) and value else value
        if key not in _NO_CURVES and is_scalar(value):
            found[key] = float(getattr(value, "array", value))
    return found
