"""Answers requests, and refuses requests that do not come from the user's page.

Only the user who started the run may use the page. Other users of the host can connect to the
port, and any web page in the user's browser can send requests to the port. Therefore:

- The address that the user opens has a token, which is exchanged for a cookie. No script can read
  the cookie, and the browser does not send it with requests of other sites.
- The header Host must name the loopback interface, so that a name that an attacker's DNS server
  maps to this address gets no answer.
- The request that stops training needs a header that other sites cannot set.
"""

import contextlib
import hmac
import itertools
import json
import os
import pathlib
import re
import secrets
import time
import urllib.parse
from collections.abc import Callable, Mapping

from mpchain.page.run import Run

Answer = tuple[int, dict[str, str], bytes]
"""The status code, the headers and the body of an answer."""

ABSENT = 12.0
"""Number of seconds after which a browser without a request counts as closed. Hidden pages send a
request every five seconds."""
MOST_TABS = 1000
STOP_HEADER = "X-Mpchain-Page"
FILES = "/files/"
SHOWN = (".csv", ".json", ".log", ".png", ".txt")
LARGEST_FILE = 1 << 24  # the size in bytes
MOST_ENTRIES = 10_000
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?", re.ASCII | re.IGNORECASE)
_ASSETS = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/curves.js": ("curves.js", "text/javascript"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Site:
    """Answers the requests of browsers.

    Args:
        run: the run to show.
        stop: function that is called when a browser requests the end of training; None refuses
            such requests.

    Attributes:
        token: the secret in the address that the user opens.

    Example:
        >>> site = Site(Run())
        >>> site.answer("GET", "/", {"Host": "127.0.0.1:8000"})[0]
        403
        >>> status, headers, _ = site.answer("GET", f"/?token={site.token}", {"Host": "localhost"})
        >>> status, headers["Location"]
        (303, '/')
    """

    def __init__(self, run: Run, stop: Callable[[], object] | None = None) -> None:
        self._run, self._stop = run, stop
        self.token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._looked: dict[str, float] = {}  # maps each browser to the time of its last request
        # Cookies ignore ports. A random name keeps two runs from overwriting each other's cookies.
        self._cookie = f"mpchain-{secrets.token_hex(4)}"
        folder = pathlib.Path(__file__).with_name("assets")
        self._assets = {
            path: (f"{kind}; charset=utf-8", (folder / name).read_bytes())
            for path, (name, kind) in _ASSETS.items()
        }

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        """Returns the answer to one request.

        Args:
            method: the method, such as GET.
            target: the path and query.
            headers: the headers, by name in any case.
        """
        headers = {name.lower(): value for name, value in headers.items()}
        path, _, query = target.partition("?")
        if not _HOST.fullmatch(headers.get("host", "")):
            return _text(421, "This page answers at localhost and 127.0.0.1 only.")
        values = urllib.parse.parse_qs(query, errors="replace", max_num_fields=None)
        if path == "/" and method == "GET" and "token" in values:
            return self._exchange(values["token"][0])
        if not self._knows(headers.get("cookie", "")):
            return _text(
                403, "Open the address with its token, which the launcher printed or wrote."
            )
        if path == "/stop":
            return self._take_stop(method, headers)
        is_file = path.startswith(FILES)
        if path != "/run" and path not in self._assets and not is_file:
            return _text(404, "There is no such page.")
        if method != "GET":
            return _text(405, "Only GET is answered here.", Allow="GET")
        if is_file:
            return self._file(urllib.parse.unquote(path.removeprefix(FILES), errors="replace"))
        if path == "/run":
            return self._news(*(values.get(name, ["0"])[0] for name in ("since", "tab")))
        kind, content = self._assets[path]
        return 200, {**_HEADERS, "Content-Type": kind}, content

    def _exchange(self, token):
        if not _same(token, self.token):
            return _text(403, "The token in this address is not that of this run.")
        cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        return _text(303, "", Location="/", **{"Set-Cookie": cookie})

    def _knows(self, cookies):
        pairs = (each.strip().partition("=") for each in cookies.split(";"))
        return any(name == self._cookie and _same(value, self._session) for name, _, value in pairs)

    def all_have_looked(self, since: float) -> bool:
        """Returns whether every browser that has the page open has sent a request since a time.

        Args:
            since: a time of ``time.monotonic()``.
        """
        return not any(since - ABSENT < when < since for when in self._looked.values())

    def _news(self, since, tab):
        if not (since.isascii() and since.isdigit() and len(since) <= 15):
            return _text(400, "since must be a whole number.")
        if tab in self._looked or len(self._looked) < MOST_TABS:
            self._looked[tab] = time.monotonic()
        news = self._run.since(int(since)) | {"files": names_of_files(self._run.folder)}
        content = json.dumps(news, allow_nan=False).encode()
        return 200, {**_HEADERS, "Content-Type": "application/json"}, content

    def _file(self, name):
        """Returns a file of results, with headers that prevent the browser from running scripts."""
        content = None
        if name in names_of_files(self._run.folder):
            with contextlib.suppress(OSError):
                content = pathlib.Path(self._run.folder, name).read_bytes()
        if content is None:
            return _text(404, "The run has no such file.")
        kind = "image/png" if name.endswith(".png") else "text/plain; charset=utf-8"
        policy = "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'; sandbox"
        return 200, {**_HEADERS, "Content-Security-Policy": policy, "Content-Type": kind}, content

    def _take_stop(self, method, headers):
        if method != "POST":
            return _text(405, "Only POST stops training.", Allow="POST")
        origin = headers.get("origin", f"http://{headers['host']}")
        if headers.get(STOP_HEADER.lower()) != "stop" or origin != f"http://{headers['host']}":
            return _text(403, "This request does not come from the page.")
        if self._stop is None:
            return _text(403, "The run was started without --page=control.")
        if not self._run.can_stop:
            return _text(409, "No trainer runs that could stop after an iteration.")
        self._run.job["state"] = "stopping"
        self._stop()
        return _text(202, "Training stops after this iteration.")


def names_of_files(folder: str) -> list[str]:
    """Returns the names of the results in a folder that a browser can show.

    The results are regular files: the log, texts, tables and plots. Links, large files, and files
    whose names begin with a dot, such as incomplete files, are left out.

    >>> names_of_files("")
    []
    """
    with contextlib.suppress(OSError, ValueError):
        with os.scandir(folder or os.devnull) as entries:
            return sorted(
                entry.name
                for entry in itertools.islice(entries, MOST_ENTRIES)
                if (entry.name == "log" or entry.name.endswith(SHOWN))
                and not entry.name.startswith(".")
                and entry.is_file(follow_symlinks=False)
                and entry.stat().st_size <= LARGEST_FILE
            )
    return []


def _same(given, secret):
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def _text(status, text, **headers):
    kind = {"Content-Type": "text/plain; charset=utf-8"}
    return status, {**_HEADERS, **kind, **headers}, text.encode()
