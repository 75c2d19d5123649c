import json
import os
import pathlib
import re

import pytest

import mpchain.page
from mpchain.page.run import Run
from mpchain.page.site import LARGEST_FILE, STOP_HEADER, Site

HOST = {"Host": "127.0.0.1:4000"}
ASSETS = pathlib.Path(mpchain.page.__file__).with_name("assets")


class Visitor:
    """A site, and the headers of a browser that has exchanged the token for a cookie."""

    def __init__(self, **options):
        self.run, self.stops = Run(), []
        stop = (lambda: self.stops.append(1)) if options.get("control") else None
        self.site = Site(self.run, stop)
        _, headers, _ = self.site.answer("GET", f"/?token={self.site.token}", HOST)
        self.headers = {**HOST, "Cookie": headers["Set-Cookie"].partition(";")[0]}
        self.set_cookie = headers["Set-Cookie"]

    def get(self, target, method="GET", **headers):
        return self.site.answer(method, target, {**self.headers, **headers})


@pytest.fixture
def visitor():
    return Visitor()


PATHS = ["/", "/page.js", "/page.css", "/curves.js", "/run", "/run?since=0", "/stop", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS"])
def test_no_token_no_page(visitor, path, method):
    status, headers, body = visitor.site.answer(method, path, HOST)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert b"token" in body


@pytest.mark.parametrize("token", ["", "x", "%00", "%ff", "é", "' or 1=1", None])
def test_wrong_tokens(visitor, token):
    token = visitor.site.token[:-1] if token is None else token
    status, headers, _ = visitor.site.answer("GET", f"/?token={token}", HOST)
    assert status == 403
    assert "Set-Cookie" not in headers


def test_token_is_exchanged_for_a_cookie_of_the_browser_alone(visitor):
    status, headers, body = visitor.site.answer("GET", f"/?token={visitor.site.token}", HOST)
    assert (status, headers["Location"], body) == (303, "/", b"")
    attributes = visitor.set_cookie.split("; ")[1:]
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert visitor.site.token not in visitor.set_cookie
    assert visitor.get("/")[0] == 200
    assert visitor.get("/", Cookie=f"other=1; {visitor.headers['Cookie']}; last=2")[0] == 200


def test_wrong_cookies(visitor):
    name, value = visitor.headers["Cookie"].split("=", 1)
    wrong = ["", name, f"{name}=", f"{name}={value}x", f"x{name}={value}", f"{name}={value[:-1]}"]
    wrong += [f"{name}={visitor.site.token}", f"{name}=é", ";;;=;", f"{name} = {value}"]
    assert {visitor.get("/", Cookie=cookie)[0] for cookie in wrong} == {403}
    # The cookie belongs to another run.
    assert visitor.site.answer("GET", "/", Visitor().headers)[0] == 403


GOOD_HOSTS = ["127.0.0.1:80", "localhost", "LOCALHOST:9", "[::1]:8000", "127.0.0.1"]
BAD_HOSTS = [
    "",
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:127",
    "localhost.",
    "127.0.0.1:8000:1",
    "127.0.0.1:8000,evil.example",
    "127.0.0.2",
    "0.0.0.0",
    "localhost\n",
    "localhost:٣",
    "user@localhost",
]


def test_host_must_be_the_loopback_interface(visitor):
    assert {visitor.get("/", Host=host)[0] for host in GOOD_HOSTS} == {200}
    assert {visitor.get("/", Host=host)[0] for host in BAD_HOSTS} == {421}
    target = f"/?token={visitor.site.token}"  # the token does not help
    assert {visitor.get(target, Host=host)[0] for host in BAD_HOSTS} == {421}
    assert visitor.site.answer("GET", target, {})[0] == 421


@pytest.mark.parametrize(
    "path",
    [
        "/../run.py",
        "/page.js/../../site.py",
        "/%2e%2e/site.py",
        "//etc/passwd",
        "/assets/page.js",
        "/index.html",
        "/page.js%00",
        "http://127.0.0.1/",
        "",
        "*",
        "/PAGE.JS",
        "/run/",
    ],
)
def test_no_other_paths(visitor, path):
    assert visitor.get(path)[0] == 404


def test_headers_keep_the_page_to_itself(visitor):
    for path in ("/", "/page.js", "/run", "/nothing"):
        headers = visitor.get(path)[1]
        policy = dict(
            part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
        )
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"


def test_assets_are_the_files_and_need_nothing_from_elsewhere(visitor):
    assert visitor.get("/")[1]["Content-Type"] == "text/html; charset=utf-8"
    for path in ASSETS.iterdir():
        target = "/" if path.name == "index.html" else f"/{path.name}"
        status, _, body = visitor.get(target)
        assert (status, body) == (200, path.read_bytes())
        urls = set(re.findall(rb"https?://[\w./]+", body))
        assert urls <= {b"http://www.w3.org/2000/svg"}
        assert b"innerHTML" not in body


def test_news(visitor):
    visitor.run.take(b'{"output": "hello\\n"}')
    status, headers, body = visitor.get("/run?since=0")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    news = json.loads(body)
    assert news["lines"] == ["hello"]
    assert json.loads(visitor.get(f"/run?since={news['number']}")[2])["lines"] == []
    assert json.loads(visitor.get("/run")[2])["lines"] == ["hello"]


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "٣", "9" * 16, "%00", "+1", "1e3"])
def test_bad_numbers(visitor, since):
    status, _, body = visitor.get(f"/run?since={since}")
    assert (status, body) == (400, b"since must be a whole number.")


def test_methods(visitor):
    assert [visitor.get("/", method)[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3
    assert visitor.get("/stop")[:2][0] == 405
    assert visitor.get("/stop")[1]["Allow"] == "POST"


def test_browsers_that_have_seen_the_end(visitor, clock):
    clock.now = 100.0
    assert visitor.site.all_have_looked(clock.now)
    for tab in ("left", "a", "b"):
        visitor.get(f"/run?tab={tab}")
        clock.now += 7
    assert not visitor.site.all_have_looked(clock.now)
    end, clock.now = clock.now, clock.now + 1
    visitor.get("/run?tab=a")
    assert not visitor.site.all_have_looked(end)
    visitor.get("/run?tab=b")
    assert visitor.site.all_have_looked(end)


STOP = {STOP_HEADER: "stop"}


def test_stop_needs_control_and_a_trainer():
    viewer, driver = Visitor(), Visitor(control=True)
    for each in (viewer, driver):
        each.run.take(b'{"rank": 0, "said": {"facts": {"step": 1}}}')
    status, _, body = viewer.get("/stop", "POST", **STOP)
    assert (status, b"--page=control" in body) == (403, True)
    assert Visitor(control=True).get("/stop", "POST", **STOP)[0] == 409
    origin = f"http://{HOST['Host']}"
    assert driver.get("/stop", "POST", Origin=origin, **STOP)[0] == 202
    assert driver.stops == [1]
    assert json.loads(driver.get("/run")[2])["job"]["state"] == "stopping"
    assert driver.get("/stop", "POST", **STOP)[0] == 409  # a second request is refused
    assert driver.stops == [1]


def test_stop_from_another_site():
    driver = Visitor(control=True)
    driver.run.take(b'{"rank": 0, "said": {"facts": {"step": 1}}}')
    requests = [
        {},
        {STOP_HEADER: "yes"},
        {**STOP, "Origin": "http://evil.example"},
        {**STOP, "Origin": "null"},
        {**STOP, "Origin": "http://127.0.0.1:4001"},
    ]
    assert [driver.get("/stop", "POST", **headers)[0] for headers in requests] == [403] * 5
    assert driver.stops == []


@pytest.fixture
def results(visitor, tmp_path):
    """Returns a run's folder of results, beside a file with a secret."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "result"
    folder.mkdir()
    for name in ("log", ".a.tmp.log"):
        (folder / name).write_text("[]")
    (folder / "a b<c>.png").write_bytes(b"\x89PNG")
    (folder / "snapshot_iter_3").write_bytes(b"much")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "folder.txt").mkdir()
    about = {"about": {"folder": str(folder)}}
    visitor.run.take(json.dumps({"rank": 0, "said": about}).encode())
    return folder


def test_results_are_listed_and_shown(visitor, results):
    news = json.loads(visitor.get("/run")[2])
    assert (news["folder"], news["files"]) == (str(results), ["a b<c>.png", "log"])
    status, headers, body = visitor.get("/files/log")
    assert (status, headers["Content-Type"], body) == (200, "text/plain; charset=utf-8", b"[]")
    status, headers, body = visitor.get("/files/a%20b%3Cc%3E.png")
    assert (status, headers["Content-Type"], body) == (200, "image/png", b"\x89PNG")
    assert "sandbox" in headers["Content-Security-Policy"]
    assert "script" not in headers["Content-Security-Policy"]


NOT_SHOWN = ["snapshot_iter_3", "link.txt", "folder.txt", "missing.png", "", "%00", "%ff.png"]
NOT_SHOWN += [".a.tmp.log"]
OUTSIDE = ["../secret.txt", "%2e%2e%2fsecret.txt", "..%2fsecret.txt", "%2fetc%2fpasswd"]


@pytest.mark.parametrize("name", NOT_SHOWN + OUTSIDE)
def test_nothing_else_is_shown(visitor, results, name):
    assert visitor.get(f"/files/{name}")[0] == 404


def test_results_need_the_cookie(visitor, results):
    assert visitor.site.answer("GET", "/files/log", HOST)[0] == 403
    assert visitor.get("/files/log", "POST")[0] == 405


def test_large_results_are_not_shown(visitor, results):
    os.truncate(results / "log", LARGEST_FILE)
    os.truncate(results / "a b<c>.png", LARGEST_FILE + 1)
    assert json.loads(visitor.get("/run")[2])["files"] == ["log"]
    assert visitor.get("/files/a%20b%3Cc%3E.png")[0] == 404
