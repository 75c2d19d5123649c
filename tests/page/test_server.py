import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import select
import socket
import stat
import subprocess
import sys
import urllib.parse

import pytest

from mpchain.page import server
from mpchain.page.run import Run

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 60
needs_tornado = pytest.mark.skipif(
    importlib.util.find_spec("tornado") is None, reason="needs mpchain[page]"
)


class Served:
    """The process of a page, and a browser that has opened the page."""

    def __init__(self, folder, *options, settings=""):
        program = (
            f"import sys; from mpchain.page import server; {settings}; sys.exit(server.main())"
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                *(["-c", program] if settings else ["-m", "mpchain.page"]),
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
            bufsize=0,
        )
        assert select.select([self.process.stdout], [], [], LIMIT)[0]
        self.address, path = self.process.stdout.readline().decode().strip().split("\t")
        self.path, url = pathlib.Path(path), urllib.parse.urlsplit(self.address)
        self.place, self.token = (url.hostname, url.port), url.query.partition("=")[2]
        self.cookie = ""
        status, headers, _ = self.get(f"/?{url.query}")
        assert status == 303
        self.cookie = headers["Set-Cookie"].partition(";")[0]

    def get(self, target, method="GET", **headers):
        connection = http.client.HTTPConnection(*self.place, timeout=LIMIT)
        try:
            connection.request(method, target, headers={"Cookie": self.cookie, **headers})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def send(self, **event):
        self.process.stdin.write(json.dumps(event).encode() + b"\n")

    def end(self):
        _, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, errors


@pytest.fixture
def serve(tmp_path):
    made = []

    def serve(*options, **settings):
        made.append(Served(tmp_path, *options, **settings))
        return made[-1]

    yield serve
    for each in made:
        each.process.kill()
        each.process.communicate(timeout=LIMIT)


@needs_tornado
@pytest.mark.slow
def test_from_the_token_to_the_end(serve, tmp_path):
    served = serve()
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o700
    assert served.path.read_text() == served.address + "\n"
    assert len(served.token) >= 32

    status, headers, body = served.get("/")
    assert (status, b"<title>mpchain</title>" in body) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert served.get("/", Cookie="")[0] == 403
    assert served.get("/", Host="evil.example")[0] == 421
    assert served.get("/../../setup.py")[0] == 404
    assert served.get("/stop", "POST", **{"X-Mpchain-Page": "stop"})[0] == 403

    with socket.create_connection(served.place, timeout=LIMIT) as connection:
        connection.sendall(b"\x16\x03\x01 GET nothing\r\n\r\n")  # this request is not HTTP
        assert b"200" not in connection.recv(4096)
    long = {"Cookie": "x" * 100_000}
    try:
        assert served.get("/", **long)[0] in (400, 403, 431)
    except (ConnectionError, http.client.HTTPException):
        pass  # the connection was closed while the headers were sent

    served.process.stdin.write(b"no event\n" + json.dumps({"output": "one"}).encode())
    served.process.stdin.write(b'\n{"output": "\\n"}\n')
    while not (news := json.loads(served.get("/run")[2]))["lines"]:
        pass
    assert news["lines"] == ["one"]
    served.process.stdin.close()
    served.process.stdin = None
    while (job := json.loads(served.get("/run")[2])["job"])["state"] == "runs":
        pass
    assert (job["state"], job["text"]) == ("lost", "the run ended without saying why")
    assert served.end() == (0, b"")
    assert list(tmp_path.iterdir()) == []


@needs_tornado
@pytest.mark.slow
def test_request_to_stop_reaches_who_started_the_page(serve):
    served = serve("--control")
    served.send(rank=0, said={"facts": {"step": 3}})
    while not json.loads(served.get("/run")[2])["job"]["can_stop"]:
        pass
    assert served.get("/stop", "POST", **{"X-Mpchain-Page": "stop"})[0] == 202
    assert select.select([served.process.stdout], [], [], LIMIT)[0]
    assert served.process.stdout.readline() == b"stop\n"


def test_page_without_tornado(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tornado", None)
    assert server.main([]) == 1
    assert capsys.readouterr().err == "the page needs Tornado: pip install 'mpchain[page]'\n"


def test_events_may_come_in_pieces():
    run, (reader, writer) = Run(), os.pipe()
    os.set_blocking(reader, False)
    events = server.Events(run, reader)
    events.read()
    for piece in (b'{"output"', b': "a\\n"}', b'\n{"output": "b\\n"}\n{'):
        os.write(writer, piece)
        events.read()
    assert run.since(0)["lines"] == ["a", "b"]
    assert not events.over.is_set()
    os.close(writer)
    events.read()
    assert events.over.is_set()
    os.close(reader)


HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def _half_requests(served, n):
    connections = [socket.create_connection(served.place, timeout=LIMIT) for _ in range(n)]
    for connection in connections:
        connection.sendall(HALF)
    return connections


@needs_tornado
@pytest.mark.slow
def test_head(serve):
    served = serve()
    for target, expected in [("/", 200), ("/nowhere", 404), ("/stop", 405)]:
        status, headers, body = served.get(target, "HEAD")
        assert (status, body) == (expected, b"")
        assert int(headers["Content-Length"]) > 0
        assert served.get(target)[0] == expected
    assert served.end() == (0, b"")


@needs_tornado
@pytest.mark.slow
def test_half_requests_are_closed(serve):
    served = serve(settings="server.TIME_TO_ASK = server.TIME_TO_SEND_A_BODY = 0.2")
    (headers,) = _half_requests(served, 1)
    (body,) = _half_requests(served, 1)
    body.sendall(b"Content-Length: 1000\r\n\r\nhalf")
    for connection in (headers, body):
        with contextlib.closing(connection):
            assert connection.recv(1000) == b""
    assert served.get("/")[0] == 200
    assert served.end() == (0, b"")


@needs_tornado
@pytest.mark.slow
def test_connections_are_limited(serve):
    served = serve()
    connections = _half_requests(served, server.MOST_CONNECTIONS + 20)
    for connection in connections[:20]:
        assert connection.recv(1000) == b""  # the oldest connections are closed
    assert served.get("/")[0] == 200
    for connection in connections[-50:]:
        connection.sendall(b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 403")
    for connection in connections:
        connection.close()
    assert served.end() == (0, b"")


@needs_tornado
@pytest.mark.slow
def test_files_run_out(serve):
    """The server answers where it can, and prints no error while it has no free files."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))"
    served = serve(settings=f"server.TIME_TO_WAIT = 0.02; {limit}")
    connections = _half_requests(served, 60)
    assert served.get("/")[0] == 200
    for connection in connections:
        connection.close()
    assert served.get("/")[0] == 200
    assert served.end() == (0, b"")
