"""Controls headless Chromium by its DevTools protocol."""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request

LIMIT = 120.0
"""Largest number of seconds of any action in a browser."""

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A browser with one window.

    Args:
        folder: an empty folder for its profile.
        width, height: of the window, in pixels.
    """

    def __init__(self, folder, width=1280, height=900):
        command = [PATH, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, start_new_session=True, **quiet)
        self._loop, self._n_calls = asyncio.new_event_loop(), 0
        self.errors = []  # errors that scripts raised, or requests that the browser refused
        try:
            port = wait_for(lambda: (folder / "DevToolsActivePort").read_text().split()[0])
            url = f"http://127.0.0.1:{port}/json/list"
            with urllib.request.urlopen(url, timeout=LIMIT) as answer:
                targets = json.load(answer)
            (page,) = [each for each in targets if each["type"] == "page"]
            self._socket = self._loop.run_until_complete(_connect(page["webSocketDebuggerUrl"]))
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.resize(width, height)

    def call(self, method, **arguments):
        """Calls a method of the protocol; returns its result."""
        self._n_calls += 1
        return self._loop.run_until_complete(
            asyncio.wait_for(self._call(self._n_calls, method, arguments), LIMIT)
        )

    async def _call(self, number, method, arguments):
        await self._socket.write_message(
            json.dumps({"id": number, "method": method, "params": arguments})
        )
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, expression):
        """Returns the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until a JavaScript expression is true; returns its value."""
        return wait_for(lambda: self.run(expression), expression)

    def photograph(self, path, height=None):
        """Writes an image of the whole page, or of its upper part."""
        size = self.run("[document.documentElement.scrollWidth, document.body.scrollHeight + 60]")
        size[1] = min(size[1], height or size[1])
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(image["data"]))

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LIMIT)
        if hasattr(self, "_socket"):
            self._socket.close()
            self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()


async def _connect(url):
    import tornado.websocket

    return await tornado.websocket.websocket_connect(url, max_message_size=1 << 28)


def wait_for(function, what=""):
    """Returns the first true value of a function; an OSError or IndexError counts as false."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            if value := function():
                return value
        except (OSError, IndexError):
            pass
        time.sleep(0.05)  # Neither the page nor the server tells when the function becomes true.
    raise TimeoutError(f"{what or function} did not become true in {LIMIT:g} s")
