"""The process that serves the page."""

import argparse
import asyncio
import contextlib
import http
import importlib.util
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.page.run import Run
from mpchain.page.site import Site

TIME_TO_LOOK = 10.0
"""Number of seconds that browsers have to see the end of the run. The page ends earlier if all
browsers have seen it."""
MOST_OF_A_REQUEST = 1 << 14
MOST_CONNECTIONS = 100
"""Largest number of open connections. One more closes the oldest, whose browser connects again."""
TIME_TO_ASK = 30.0
"""Number of seconds in which a browser must send a request, and then each later request."""
TIME_TO_SEND_A_BODY = 10.0
TIME_TO_WAIT = 1.0
"""Number of seconds to wait before accepting connections again after file descriptors ran out."""


class Events:
    """Splits standard input into events.

    Args:
        run: the run that handles the events.
        file: file descriptor that can be read without blocking.

    Attributes:
        over: set when the other side has closed standard input.

    Example:
        >>> run, (reader, writer) = Run(), os.pipe()
        >>> events = Events(run, reader)
        >>> _ = os.write(writer, b'{"job": {"title": "train.py"}}\\n{"job')
        >>> events.read(), run.job["title"], os.close(writer), os.close(reader)
        (None, 'train.py', None, None)
    """

    def __init__(self, run: Run, file: int) -> None:
        self._run, self._file = run, file
        self._rest = b""
        self.over = asyncio.Event()

    def read(self) -> None:
        """Handles the events that have arrived."""
        try:
            data = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.over.set()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._run.take(line)


class Door:
    """Accepts connections; when there are too many, drops the oldest ones.

    Args:
        listener: a socket that listens.
        take: function that is called with the stream and the address of each connection.

    Example:
        >>> async def serve():
        ...     with socket.create_server(("127.0.0.1", 0)) as listener:
        ...         Door(listener, print).close()
        >>> asyncio.run(serve())
    """

    def __init__(self, listener: socket.socket, take: Callable[[Any, Any], object]) -> None:
        self._listener, self._take = listener, take
        self._streams: list[Any] = []  # the oldest stream comes first
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._open()

    def _open(self):
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self):
        from tornado.iostream import IOStream

        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        # File descriptors or memory ran out. Without a pause, the waiting connection would trigger
        # the event again at once.
        except OSError:
            self._drop_oldest()
            self.close()
            self._loop.call_later(TIME_TO_WAIT, self._open)
            return
        self._streams = [stream for stream in self._streams if not stream.closed()]
        if len(self._streams) >= MOST_CONNECTIONS:
            self._drop_oldest()
        self._streams.append(IOStream(connection))
        self._take(self._streams[-1], address)

    def _drop_oldest(self):
        if self._streams:
            self._streams.pop(0).close()

    def close(self) -> None:
        """Stops accepting connections."""
        self._loop.remove_reader(self._listener)


async def serve(control: bool = False) -> None:
    """Serves the page until standard input ends.

    When the page is ready, this function prints one line: the address with the token, a tab, and
    the path of a file with the same address, which only its owner may read.

    Args:
        control: whether browsers may stop training.
    """
    import tornado.httpserver
    import tornado.httputil
    import tornado.netutil

    run = Run()
    stop = (lambda: _print("stop")) if control else None
    run.take(b'{"job": {"control": %s}}' % (b"true" if control else b"false"))
    site = Site(run, stop)

    def answer(request: tornado.httputil.HTTPServerRequest) -> None:
        method, target = request.method or "", request.uri or "/"
        # HEAD gets the same answer as GET, without the body.
        asked = "GET" if method == "HEAD" else method
        status, headers, body = site.answer(asked, target, request.headers)
        phrase = http.HTTPStatus(status).phrase
        line = tornado.httputil.ResponseStartLine("HTTP/1.1", status, phrase)
        headers = tornado.httputil.HTTPHeaders({**headers, "Content-Length": str(len(body))})
        if connection := request.connection:
            connection.write_headers(line, headers, b"" if method == "HEAD" else body)
            connection.finish()

    server = tornado.httpserver.HTTPServer(
        answer,
        max_header_size=MOST_OF_A_REQUEST,
        max_body_size=MOST_OF_A_REQUEST,
        idle_connection_timeout=TIME_TO_ASK,
        body_timeout=TIME_TO_SEND_A_BODY,
    )
    (listener,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
    door = Door(listener, server.handle_stream)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={site.token}"
    folder = tempfile.mkdtemp(prefix="mpchain-page-")  # only this user may enter the folder
    try:
        _print(f"{address}\t{write_secret(folder, address)}")
        await _follow(run)
        end = time.monotonic()
        while time.monotonic() < end + TIME_TO_LOOK and not site.all_have_looked(end):
            await asyncio.sleep(0.1)
    finally:
        door.close()
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)


def write_secret(folder: str, address: str) -> pathlib.Path:
    """Writes the address with its token into a file that only its owner may read.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     oct(write_secret(folder, "http://127.0.0.1/?token=secret").stat().st_mode & 0o777)
        '0o600'
    """
    path = pathlib.Path(folder, "address")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w", encoding="utf-8") as stream:
        print(address, file=stream)
    return path


async def _follow(run):
    """Handles events until standard input ends, or until the process that sends events ends."""
    os.set_blocking(0, False)
    events, parent = Events(run, 0), os.getppid()
    asyncio.get_running_loop().add_reader(0, events.read)
    while not events.over.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(events.over.wait(), 1.0)
    asyncio.get_running_loop().remove_reader(0)
    if run.job["state"] in ("runs", "stopping"):
        run.take(b'{"job": {"state": "lost", "text": "the run ended without saying why"}}')


def _print(text):
    with contextlib.suppress(OSError):  # the parent process has ended
        os.write(1, f"{text}\n".encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``python -m mpchain.page``, which the launcher or an extension starts.

    Args:
        arguments: the command line without the program; None uses that of this process.

    Example:
        >>> main([])  # doctest: +SKIP
        0
    """
    parser = argparse.ArgumentParser(
        prog="python -m mpchain.page",
        description="Serves the page of a run. mpchain-launch --page starts it.",
    )
    parser.add_argument("--control", action="store_true", help="browsers may stop training")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("tornado") is None:
        print("the page needs Tornado: pip install 'mpchain[page]'", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):
        os.nice(10)  # the ranks have priority
    asyncio.run(serve(options.control))
    return 0
