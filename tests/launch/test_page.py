import contextlib
import http.client
import importlib.util
import io
import json
import os
import pathlib
import re
import types
import urllib.parse

import pytest

from launch import messages, page
from launch.cli import _parser

LIMIT = 60
needs_tornado = pytest.mark.skipif(
    importlib.util.find_spec("tornado") is None, reason="needs mpchain[page]"
)

SCRIPT = """
    import numpy as np
    from mpchain import iterators, links, optimizers, training
    from mpchain.training import extensions, page_report

    page_report.INTERVAL = 0.05
    data = [(np.ones(3, np.float32), np.int32(0))] * 8
    optimizer = optimizers.SGD().setup(links.Classifier(links.Linear(3, 2)))
    updater = training.StandardUpdater(iterators.SerialIterator(data, 4), optimizer)
    trainer = training.Trainer(updater)
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    print("training begins", flush=True)
    trainer.run()
"""


def read_address(launched):
    """Returns the address in the file that the launcher names, because standard error is not a
    terminal here."""
    while "its address is in" not in (line := launched.process.stderr.readline()):
        assert line, launched.process.communicate()
    assert "token" not in line
    return urllib.parse.urlsplit(pathlib.Path(line.split()[-1]).read_text("utf-8").strip())


class Browser:
    def __init__(self, url):
        self._place, self._cookie = (url.hostname, url.port), ""
        status, headers, _ = self.get(f"/?{url.query}")
        assert status == 303
        self._cookie = headers["Set-Cookie"].partition(";")[0]

    def get(self, target, method="GET", **headers):
        connection = http.client.HTTPConnection(*self._place, timeout=LIMIT)
        try:
            connection.request(method, target, headers={"Cookie": self._cookie, **headers})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def wait(self, function):
        while not function(news := json.loads(self.get("/run")[2])):
            pass
        return news


@pytest.mark.long
@needs_tornado
def test_from_the_start_to_the_stop_after_an_iteration(start, script, tmp_path):
    (tmp_path / "t").mkdir()
    launched = start("-n", 1, "--page=control", script(SCRIPT), env={"TMPDIR": str(tmp_path / "t")})
    browser = Browser(read_address(launched))
    wanted = {("main/loss", "log"), ("main/loss", "live"), ("samples/s", "live")}
    kinds = lambda news: {(curve["key"], curve["kind"]) for curve in news["curves"]}
    news = browser.wait(lambda news: wanted <= kinds(news) and news["ranks"][0].get("line"))
    assert news["lines"] == ["training begins"]
    assert (news["job"]["title"], news["job"]["start"]) == ("script.py", 1)
    (rank,) = news["ranks"]
    assert (rank["state"], rank["line"]) == ("runs", "training begins")
    assert rank["step"] > 0
    assert rank["memory"] > 2**20
    assert browser.get("/stop", "POST", **{"X-Mpchain-Page": "stop"})[0] == 202
    news = browser.wait(lambda news: news["job"]["state"] not in ("runs", "stopping"))
    assert news["job"]["text"] == "training was stopped from the page"
    assert news["job"]["state"] == "stopped"
    code, _, errors = launched.finish()
    assert code == 128 + 15
    assert errors.endswith("mpchain-launch: training was stopped from the page\n")
    assert list((tmp_path / "t").iterdir()) == []


@needs_tornado
@pytest.mark.long
def test_rank_that_fails_after_a_restart(start, script):
    options = ["-n", 1, "--page", "--restarts", 1, "--backoff", 0.01]
    launched = start(*options, script("raise ValueError('bad')"))
    browser = Browser(read_address(launched))
    news = browser.wait(lambda news: news["job"]["state"] != "runs")
    assert news["job"]["state"] == news["ranks"][0]["state"] == "failed"
    assert (news["job"]["start"], len(news["ranks"])) == (2, 1)
    assert news["ranks"][0]["text"] == "ended with exit code 1"
    assert news["lines"][-1] == "ValueError: bad"
    assert launched.finish()[0] == 1


def test_page_that_does_not_start(python_at, capfd):
    python_at("/bin/false")
    with pytest.raises(SystemExit):
        page.start(_parser(), "train.py", "view")
    assert "--page: the page did not start" in capfd.readouterr().err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_token_is_shown_on_terminals_only(monkeypatch, open_terminal, is_terminal):
    made = types.SimpleNamespace(path="/runs/address", address="http://127.0.0.1/?token=secret")
    monkeypatch.setattr(page, "Page", lambda command, has_control: made)
    with contextlib.redirect_stderr(open_terminal() if is_terminal else io.StringIO()) as errors:
        assert page.start(_parser(), "train.py", "view") is made
    shown = errors.getvalue()
    assert "/runs/address" in shown
    assert ("secret" in shown) == is_terminal


def test_options():
    parse = lambda *options: _parser().parse_args(["-n", "1", *options]).page
    assert parse("train.py") is None
    assert parse("--page", "train.py") == "view"
    assert parse("--page=control", "train.py") == "control"


def test_other_modes_are_refused(capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["-n", "1", "--page=write", "train.py"])
    assert "--page" in capsys.readouterr().err


class Unserved(page.Page):
    """A page whose process is replaced by a pipe."""

    def __init__(self, writer):
        self._command, self._n_starts, self._waiting = "train.py --lr 1", 0, bytearray()
        self._reports, self._shown, self._input, self._job = {}, {}, writer, None

    @property
    def n_kept(self):
        return len(self._waiting)


@pytest.fixture
def unserved():
    """Yields a page, and a function that returns the events that it sent."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    shown = Unserved(writer)

    def read():
        try:
            return os.read(reader, 1 << 20)
        except BlockingIOError:
            return b""

    yield shown, read
    os.close(reader)
    os.close(writer)


def test_reports_come_in_pieces(unserved):
    shown, read = unserved
    shown.take(3, b'{"a": 1}\n{"b"')
    shown.take(2, b"other\n")
    shown.take(3, b": 2}\n")
    lines = [b'{"rank": 3, "said": {"a": 1}}', b'{"rank": 2, "said": other}']
    assert read().splitlines() == [*lines, b'{"rank": 3, "said": {"b": 2}}']


def test_page_that_does_not_read(unserved):
    shown, read = unserved
    for _ in range(1500):
        shown.take(0, b"x" * 1000 + b"\n")
    assert page.MOST_KEPT - 2000 < shown.n_kept <= page.MOST_KEPT
    assert set(re.findall(rb"x+", read()[:64000])) >= {b"x" * 1000}


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({}, "runs", ""),
        ({"is_stopped": True}, "runs", "is suspended"),
        ({"lost": "its supervisor was killed"}, "failed", "was lost: its supervisor was killed"),
        ({"ended": True, "code": 0}, "finished", ""),
        ({"ended": True, "code": -9}, "failed", "was killed by SIGKILL (signal 9), perhaps "),
        (
            {"ended": True, "code": 3, "ended_itself": False},
            "stopped",
            "terminated by mpchain-launch",
        ),
        ({"ended": True, "code": -9, "ended_itself": False, "done": True}, "finished", ""),
    ],
)
def test_states(changes, state, text):
    rank = types.SimpleNamespace(lost="", ended=False, ended_itself=True, is_stopped=False)
    rank.done, rank.host, rank.cause, rank.last_line = False, "node", "", b"10%\r" + b"x" * 999
    vars(rank).update(changes)
    facts = page.describe(rank)
    assert (facts["state"], facts["host"], facts["line"]) == (state, "node", "x" * 200)
    assert facts["text"].startswith(text)
    assert bool(facts["text"]) == bool(text)


def test_kinds_of_messages_differ():
    kinds = [value for name, value in vars(messages).items() if name.isupper() and len(name) > 3]
    kinds = [value for value in kinds if isinstance(value, bytes)]
    assert len(set(kinds)) == len(kinds)
