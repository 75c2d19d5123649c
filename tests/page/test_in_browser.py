import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from launch import mpirun
from tests.page import browser as chromium
from tests.page.browser import Browser, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 120
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("tornado") is None, reason="needs mpchain[page]"),
    pytest.mark.skipif(chromium.PATH is None, reason="needs Chromium (apt install chromium)"),
    pytest.mark.skipif(
        mpirun.find() is None or importlib.util.find_spec("mpi4py") is None,
        reason="needs mpchain[mpi]",
    ),
]

# The script trains until the test ends it, so tests wait for what they check, not for a fixed time.
SCRIPT = """
    import os, pathlib, signal, time
    import numpy as np
    import mpchain
    from mpchain import distributed, iterators, links, optimizers, training
    from mpchain.training import extensions

    comm = mpchain.create_communicator()
    np.random.seed(0)
    x = np.random.normal(size=(64, 5)).astype("f")
    data = list(zip(x, (x[:, 0] > 0).astype("i")))
    model = links.Classifier(links.Linear(5, 2))
    optimizer = distributed.create_multi_node_optimizer(optimizers.SGD(), comm).setup(model)
    batches = iterators.SerialIterator(data, 16)
    batches = distributed.create_sharded_iterator(batches, comm)
    updater = distributed.MultiNodeUpdater(batches, optimizer, comm)
    trainer = training.Trainer(updater)
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(extensions.PrintReport(["iteration", "main/loss"]))

    def act(trainer):
        time.sleep(0.02)  # a step that takes a while
        if os.path.exists(f"slow{comm.rank}"):
            time.sleep(0.05)
        if os.path.exists(f"kill{comm.rank}"):
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.extend(act)
    print("<b>bold</b> of", comm.rank)
    trainer.run()
"""


class Job:
    def __init__(self, folder, *options):
        (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
        self.folder = folder
        output, errors = folder / "output", folder / "errors"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launch", "-n", "2", *options, "script.py"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        found = wait_for(lambda: re.search(r"its address is in (.+)\n", errors.read_text()))
        self.url = pathlib.Path(found[1]).read_text("utf-8").strip()

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def job(tmp_path):
    made = []

    def job(*options):
        folder = tmp_path / f"job{len(made)}"
        folder.mkdir()
        made.append(Job(folder, *options))
        return made[-1]

    yield job
    for each in made:
        each.close()


@pytest.fixture
def browse(tmp_path):
    made = []

    def browse(**options):
        folder = tmp_path / f"browser{len(made)}"
        folder.mkdir()
        made.append(Browser(folder, **options))
        return made[-1]

    yield browse
    for each in made:
        each.close()
    for path in tmp_path.glob("browser*"):
        shutil.rmtree(path, ignore_errors=True)


PATH = "document.querySelector('#curves path:not(.live)')?.getAttribute('d')"
ITERATION = "Number(document.querySelector('#numbers dd')?.textContent ?? 0)"
STATES = "[...document.querySelectorAll('#ranks tbody tr')].map(row => row.className)"


def test_curves_move_in_two_browsers_at_once(job, browse):
    running = job("--page")
    browsers = [browse(), browse(width=400, height=800)]
    for each in browsers:
        each.open(running.url)
        each.wait(PATH)
        assert each.run("location.search") == ""  # the address does not contain the token any more
    for each in browsers:
        before = each.run(PATH), each.run(ITERATION)
        each.wait(f"{PATH} !== {before[0]!r} && {ITERATION} > {before[1]}")
        titles = "[...document.querySelectorAll('figcaption b')].map(title => title.textContent)"
        assert each.run(titles)[:2] == ["main/loss", "main/accuracy"]
        assert each.run(titles)[-1] == "samples/s"
        each.wait(f"{STATES}.length === 2")
        assert all("runs" in state for state in each.run(STATES))
        each.wait("document.getElementById('output').textContent.includes('<b>bold</b> of')")
        assert each.run("document.querySelector('#output b')") is None
        assert each.run("document.getElementById('stop').hidden")
        assert not set(each.run(titles)) & {"ranks/slowest", "slowest"}
        each.wait("document.getElementById('numbers').textContent.includes('learning rate0.01')")
        assert "SGD(lr=0.01)" in each.run("document.getElementById('settings').textContent")
        assert not each.run("document.querySelector('svg').textContent.includes('NaN')")
        log = each.run("[...document.querySelectorAll('#files a')].map(a => a.href)")
        assert [path.rpartition("/")[2] for path in log] == ["log"]
        # No part of the page is wider than the window.
        assert each.run("document.documentElement.scrollWidth <= innerWidth")
        assert each.errors == []
        place = "document.querySelector('svg').getBoundingClientRect()"
        x, y = each.run(f"[{place}.x + {place}.width / 2, {place}.y + 90]")
        each.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        each.wait("!!document.querySelector('svg line.cross')")
        assert " · iteration " in each.run("document.querySelector('figcaption b').textContent")
    browsers[0].run("document.getElementById('axis').value = '2'")
    browsers[0].run("document.getElementById('axis').dispatchEvent(new Event('change'))")
    browsers[0].wait("/[0-9]:[0-9][0-9]/.test(document.querySelector('svg').textContent)")
    before = running.folder.joinpath("output").stat().st_size
    for each in browsers:  # training continues without browsers
        each.open("about:blank")
    wait_for(lambda: running.folder.joinpath("output").stat().st_size > before)


def test_slow_rank_is_named(job, browse):
    running, window = job("--page"), browse()
    (running.folder / "slow1").touch()
    window.open(running.url)
    window.wait(f"{STATES}[1]?.includes('slowest')")
    assert "slowest" in window.run("document.querySelectorAll('td.share')[1].textContent")
    window.wait("!!document.querySelector('[aria-label=\"curve of waiting\"] path')")


def test_killed_rank_turns_red(job, browse):
    running, window = job("--page"), browse()
    window.open(running.url)
    window.wait(f"{ITERATION} > 2")
    (running.folder / "kill1").touch()
    window.wait("document.getElementById('state').textContent === 'failed'")
    rows = window.run(STATES)
    assert "failed" in rows[1]
    assert "failed" not in rows[0]
    color = "getComputedStyle(document.querySelectorAll('#ranks tbody tr')[1].cells[0]).boxShadow"
    assert "rgb(209, 41, 61)" in window.run(color)
    assert "rank 1 of 2" in window.run("document.getElementById('text').textContent")
    window.wait("!!document.querySelector('#curves svg line.mark.lost')")
    assert "rank 1 was killed" in window.run("document.getElementById('marks').textContent")
    assert "mean samples/s" in window.run("document.getElementById('numbers').textContent")
    assert window.run("document.querySelectorAll('#files a').length") == 0
    assert running.process.wait(LIMIT) == 128 + signal.SIGKILL
    assert window.run(PATH)  # the data that the page has received stays


# A loss that falls over decades, and whose fifth value is the lowest.
FIGURES = """
    import("/curves.js").then(({ Figure }) => {
        window.figure = new Figure("loss");
        document.getElementById("curves").append(figure.element);
        const points = [100, 10, 1, 0.1, 0.05, 0.2].map((loss, i) => [100 * i, i, i, loss]);
        const extremes = [points[4], points[0]];
        figure.add("validation/main/loss", "log", points, true, extremes);
        figure.marks = [{ kind: "restart", at: [250, 2.5, 2.5], text: "restart 1" }];
        figure.show({ axis: 0, scale: "automatic" });
    })
"""


def test_scale_best_value_and_marks_of_a_figure(job, browse):
    running, window = job("--page"), browse()
    window.open(running.url)
    window.wait(PATH)
    window.run(FIGURES)
    window.wait("!!window.figure?.svg.querySelector('circle.best')")
    assert "(log scale)" in window.run("figure.title.textContent")
    best = "best: 0.05 at iteration 400"
    assert window.run("figure.svg.querySelector('circle.best title').textContent") == best
    assert window.run("figure.svg.querySelector('.mark title').textContent") == "restart 1"
    texts = "[...figure.svg.querySelectorAll('text')].map(text => text.textContent)"
    assert {"100", "10", "1", "0.1"} <= set(window.run(texts))
    window.run("figure.show({ axis: 0, scale: 'linear' })")
    assert "(log scale)" not in window.run("figure.title.textContent")
    for first, last in ((100, 900), (1, 999), (480, 520)):
        window.run(
            f"figure.curves.get('validation/main/loss').log = "
            f"[[{first}, 0, 0, 1], [{last}, 1, 1, 2]]"
        )
        window.run("figure.show({ axis: 0, scale: 'linear' })")
        below = "[...figure.svg.querySelectorAll('text')].filter(t => +t.getAttribute('y') > 200)"
        assert window.run(f"{below}.length") >= 3


def test_no_token_no_page(job, browse):
    running, window = job("--page"), browse()
    address = running.url.partition("?")[0]
    for url in (address, address + "?token=wrong", address + "run", address + "page.js"):
        window.open(url)
        assert "token" in window.run("document.body.textContent")
        assert window.run("document.getElementById('curves')") is None
    window.open(running.url)
    window.wait(PATH)
    assert window.run("document.cookie") == ""  # scripts cannot read the cookie
    window.open(address)
    window.wait(PATH)


def test_stop_after_this_iteration(job, browse):
    running, window = job("--page=control"), browse()
    window.open(running.url)
    button = "document.getElementById('stop')"
    window.wait(f"!{button}.disabled && !{button}.hidden")
    window.run(f"{button}.click()")
    window.wait("document.getElementById('state').textContent === 'stopped'")
    assert running.process.wait(LIMIT) == 128 + signal.SIGTERM
    text = "document.getElementById('text').textContent"
    assert window.run(text) == "training was stopped from the page"
