"""Measures the cost of the live page: steps of LeNet-5 in a trainer with and without reports, in
turns.

``python -m tests.benchmarks.page [TURNS]`` prints the CPU time of the training thread in a step
(lower quartiles of means over turns), the CPU time of a report, of which there are two per second,
and the CPU time of the page's process, which has a lower priority, while a browser sends a request
every second.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np

import mpchain.links as L
from mpchain import iterators, optimizers, training
from mpchain.training import extensions, page_report
from tests.benchmarks.profiling import LeNet

TURN = 100  # the number of steps in a turn, each about 10 ms: two reports

_BROWSER = """
import http.cookiejar, json, time, urllib.request
open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open
open({address!r})
number = 0
while True:
    url = {address!r}.partition("?")[0] + f"run?since={{number}}&tab=1"
    number = json.loads(open(url).read())["number"]
    time.sleep(1)  # a browser asks once a second
"""


class Measured(extensions.PageReport):
    """A report that is active in every second turn, and measures all turns."""

    def initialize(self, trainer):
        with mock.patch.object(page_report, "print_line") as said:
            super().initialize(trainer)
        address = pathlib.Path(said.call_args.args[0].split()[-1].rstrip(")")).read_text().strip()
        self.browser = subprocess.Popen([sys.executable, "-c", _BROWSER.format(address=address)])
        self.turns, self.reports, self.of_process = ([], []), [], []
        self.begin = time.thread_time()

    def trigger(self, trainer):
        n = trainer.updater.iteration
        if n % TURN == 0:
            now = time.thread_time()
            self.turns[n // TURN % 2].append((now - self.begin) / TURN)
            self.begin = now
            stat = pathlib.Path(f"/proc/{self._connection._process.pid}/stat").read_text().split()
            seconds = sum(map(int, stat[13:15])) / os.sysconf("SC_CLK_TCK")
            self.of_process.append((time.monotonic(), seconds))
        begin = time.thread_time()
        if n // TURN % 2 and super().trigger(trainer):
            self(trainer)
            self.reports.append(time.thread_time() - begin)
        return False

    def finalize(self):
        self.browser.kill()
        self.browser.wait()
        super().finalize()


def main(turns=40):
    """Prints the comparison."""
    model = L.Classifier(LeNet())
    x = np.random.RandomState(0).randn(24, 1, 28, 28).astype("f")
    updater = training.StandardUpdater(
        iterators.SerialIterator([(each, np.int32(0)) for each in x], 24),
        optimizers.MomentumSGD(lr=1e-9).setup(model),
    )
    trainer = training.Trainer(updater, (turns * TURN, "iteration"), out=tempfile.mkdtemp())
    page = Measured()
    trainer.extend(extensions.LogReport(trigger=(50, "iteration")))
    trainer.extend(page)
    trainer.run()
    without, reporting = (1e3 * np.percentile(each[1:], 25) for each in page.turns)
    report = np.median(page.reports)
    (begin, seconds), (end, seconds_then) = page.of_process[0], page.of_process[-1]
    print(
        f"{without:.3f} ms a step, {reporting:.3f} ms with reports "
        f"({100 * (reporting / without - 1):+.2f} %); {1e6 * report:.0f} us a report: "
        f"{100 * report / page_report.INTERVAL:.2f} % of the time; the process of the page: "
        f"{100 * (seconds_then - seconds) / (end - begin):.2f} % of a core"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
