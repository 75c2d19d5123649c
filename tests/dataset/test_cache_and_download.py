"""Tests the folder of data sets, cache_or_load_file and cached_download."""

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading

import pytest

from mpchain import dataset
from mpchain.dataset import cache, download

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "root"


class Server:
    """A server that sends ``content`` with the given headers once ``may_answer`` is set.

    It closes the connection after ``at_most`` bytes of an answer. ``ranges`` says whether it
    supports requests for ranges; ``log`` lists the Range header of each request.
    """

    def __init__(self):
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.content = CONTENT
        self.at_most = len(CONTENT)
        self.headers = {}
        self.ranges = False
        self.log = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.log.append(self.headers.get("Range"))
                outer.may_answer.wait()
                if self.path == "/missing":
                    self.send_error(404)
                    return
                start = outer.start_for(self.headers)
                if start >= len(outer.content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", outer.content_range(start))
                if self.path != "/unknown-length":
                    self.send_header("Content-Length", str(len(outer.content) - start))
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.content[start : start + outer.at_most])

            def log_message(self, *args):
                """Keeps the test's output clean."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def start_for(self, headers):
        if not self.ranges or headers.get("Range") is None:
            return 0
        if headers.get("If-Range") not in self.headers.values():
            return 0  # the file has another version
        return int(headers["Range"].removeprefix("bytes=").removesuffix("-"))

    def content_range(self, start):
        return f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"

    @property
    def requests(self):
        return len(self.log)


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.server.shutdown()
    thread.join()
    server.server.server_close()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def test_root_from_the_environment(monkeypatch):
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", "first")
    monkeypatch.setenv("CHAINER_DATASET_ROOT", "second")
    assert dataset.get_dataset_root() == "first"
    monkeypatch.delenv("MPCHAIN_DATASET_ROOT")
    assert dataset.get_dataset_root() == "second"
    monkeypatch.delenv("CHAINER_DATASET_ROOT")
    assert dataset.get_dataset_root() == os.path.expanduser("~/.mpchain/dataset")


def test_root_that_was_set(tmp_path):
    dataset.set_dataset_root(tmp_path)
    try:
        assert dataset.get_dataset_root() == str(tmp_path)
    finally:
        dataset.set_dataset_root(None)
    assert dataset.get_dataset_root() == os.environ["MPCHAIN_DATASET_ROOT"]


def test_directory(root):
    path = dataset.get_dataset_directory("a/b", create_directory=False)
    assert path == str(root / "a" / "b")
    assert not root.exists()
    dataset.get_dataset_directory("a/b")
    assert (root / "a" / "b").is_dir()


def test_cache_or_load_file_creates_once(tmp_path):
    path = tmp_path / "file.txt"
    calls = []

    def create(temporary):
        calls.append(temporary)
        assert temporary.endswith(".txt")
        assert not os.path.exists(temporary)
        with open(temporary, "w") as file:
            file.write("made")
        return "made"

    assert dataset.cache_or_load_file(path, create, read) == "made"
    assert dataset.cache_or_load_file(path, create, read) == b"made"
    assert len(calls) == 1
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "file.txt.lock"]


def test_cache_or_load_file_leaves_nothing_of_a_failed_creation(tmp_path):
    def create(temporary):
        with open(temporary, "w") as file:
            file.write("half")
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        dataset.cache_or_load_file(tmp_path / "file", create, read)
    assert os.listdir(tmp_path) == ["file.lock"]


@pytest.mark.parametrize("sha256", [None, SHA256])
@pytest.mark.parametrize("name", ["file", "unknown-length"])
def test_download_happens_once(server, root, name, sha256):
    url = f"{server.url}/{name}"
    path = dataset.cached_download(url, sha256)
    assert path.startswith(str(root))
    assert read(path) == CONTENT
    assert dataset.cached_download(url, sha256) == path
    assert server.requests == 1


def test_download_of_a_file_address(tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    assert read(dataset.cached_download((tmp_path / "source").as_uri(), SHA256)) == CONTENT


@pytest.mark.slow
def test_several_processes_download_once(server):
    program = (
        "from mpchain import dataset; print('ready', flush=True); "
        f"print(dataset.cached_download({server.url + '/x'!r}))"
    )
    server.may_answer.clear()
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    server.may_answer.set()
    paths = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(paths) == 1
    assert read(paths.pop()) == CONTENT
    assert server.requests == 1


def leftovers(root):
    """Returns the endings of the files in the cache, except for locks."""
    names = sorted(os.listdir(root / "_dl_cache"))
    return [name[64:] for name in names if not name.endswith(".lock")]


def test_a_truncated_download_is_no_download(server, root):
    server.at_most = 100_000
    with pytest.raises(OSError, match=r"could not be fetched: .*100000 of 256000 bytes"):
        dataset.cached_download(server.url)
    assert leftovers(root) == []
    server.at_most = len(CONTENT)
    assert read(dataset.cached_download(server.url)) == CONTENT


VERSIONS = [{"ETag": '"1"'}, {"ETag": 'W/"1"', "Last-Modified": "then"}, {"Last-Modified": "then"}]


@pytest.mark.parametrize("headers", VERSIONS, ids=str)
@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_broken_connection_is_continued_at_once(server, root, headers, sha256):
    server.headers, server.ranges, server.at_most = headers, True, 100_000
    path = dataset.cached_download(server.url, sha256)
    assert read(path) == CONTENT
    assert server.log == [None, "bytes=100000-", "bytes=200000-"]
    assert leftovers(root) == ([""] if sha256 else ["", ".sha256"])


def test_a_later_call_continues(server, root):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 10_000
    with pytest.raises(OSError, match=r"could not be fetched: .* after 50000 of 256000 bytes"):
        dataset.cached_download(server.url)
    assert leftovers(root) == [".part", ".part.version"]
    server.at_most = len(CONTENT)
    assert read(dataset.cached_download(server.url)) == CONTENT
    assert server.log[-1] == "bytes=50000-"
    assert leftovers(root) == ["", ".sha256"]


def test_a_killed_process_leaves_what_it_had(server, root):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 70_000
    program = (
        "import os, signal\n"
        "from mpchain.dataset import cached_download, download\n"
        "def update(n):\n"
        "    update.done += n\n"
        "    if update.done > 100_000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "update.done = 0\n"
        "class progress:\n"
        "    def __init__(self, *args): pass\n"
        "    def __enter__(self): return update\n"
        "    def __exit__(self, *args): pass\n"
        "download.progress = progress\n"
        f"cached_download({server.url!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert ".part" in leftovers(root)
    assert read(dataset.cached_download(server.url)) == CONTENT
    assert server.log[2].startswith("bytes=")
    assert int(server.log[2].strip("bytes=-")) >= 70_000


def test_parts_of_different_versions_are_not_joined(server):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 10_000
    with pytest.raises(OSError, match="could not be fetched"):
        dataset.cached_download(server.url)
    server.headers, server.content, server.at_most = {"ETag": '"2"'}, CONTENT[::-1], len(CONTENT)
    assert read(dataset.cached_download(server.url)) == CONTENT[::-1]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"1"'}], ids=str)
def test_without_a_version_nothing_is_continued(server, root, headers):
    server.headers, server.ranges, server.at_most = headers, True, 100_000
    with pytest.raises(OSError, match="after 100000 of 256000 bytes"):
        dataset.cached_download(server.url)
    assert leftovers(root) == []
    assert server.log == [None]


def test_a_server_that_knows_no_ranges(server):
    server.headers, server.at_most = VERSIONS[0], 100_000
    with pytest.raises(OSError, match="after 100000 of 256000 bytes"):
        dataset.cached_download(server.url)
    server.at_most = len(CONTENT)
    assert read(dataset.cached_download(server.url, SHA256)) == CONTENT


def test_a_server_that_continues_elsewhere(server):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 100_000
    server.content_range = lambda start: "bytes 5-255999/256000"
    with pytest.raises(OSError, match="the server continues at byte 5, not at 100000"):
        dataset.cached_download(server.url)
    server.content_range = lambda start: "nonsense"
    with pytest.raises(OSError, match="could not be fetched: invalid literal"):
        dataset.cached_download(server.url)


def damage_part(root, damage):
    (part,) = (path for path in (root / "_dl_cache").iterdir() if path.suffix == ".part")
    part.write_bytes(damage(part.read_bytes()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: b"garbage" + part[7:],
        # The partial file is longer than the file, so the server refuses the range.
        lambda part: part + CONTENT,
    ],
)
def test_a_damaged_part_is_fetched_again_as_a_whole(server, root, damage):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 10_000
    with pytest.raises(OSError, match="could not be fetched"):
        dataset.cached_download(server.url, SHA256)
    damage_part(root, damage)
    server.at_most = len(CONTENT)
    assert read(dataset.cached_download(server.url, SHA256)) == CONTENT
    assert server.log[-1] is None


def test_a_wrong_checksum(server, root):
    with pytest.raises(OSError, match=f"must have the SHA-256 checksum {'0' * 64}, .* {SHA256}"):
        dataset.cached_download(server.url, "0" * 64)
    assert leftovers(root) == []
    assert server.requests == 1


def test_wrong_bytes_in_pieces(server, root):
    server.headers, server.ranges, server.at_most = VERSIONS[0], True, 100_000
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(
        OSError, match=f"must have the SHA-256 checksum {SHA256}, but the download has"
    ):
        dataset.cached_download(server.url, SHA256)
    assert leftovers(root) == []


def test_a_file_that_changed_after_its_first_download_is_refused(server, root):
    path = dataset.cached_download(server.url)
    assert read(f"{path}.sha256").decode() == SHA256
    with open(path, "r+b") as file:
        file.write(b"garbage")
    assert read(dataset.cached_download(server.url)) == CONTENT
    os.unlink(path)
    server.content = CONTENT[::-1]
    message = rf"has changed since its first download: .* delete {path}\.sha256 to accept it"
    with pytest.raises(OSError, match=message):
        dataset.cached_download(server.url)
    assert leftovers(root) == [".sha256"]
    os.unlink(f"{path}.sha256")
    assert read(dataset.cached_download(server.url)) == CONTENT[::-1]


def test_a_proxy_is_used(server):
    """A new process is necessary, because urllib reads the environment only once."""
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    program = (
        "from mpchain.dataset import cached_download\n"
        f"print(cached_download('http://nowhere.invalid/file', {SHA256!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"http_proxy": server.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert read(done.stdout.strip()) == CONTENT
    assert server.requests == 1


def test_a_damaged_file_in_the_cache_is_fetched_again(server):
    path = dataset.cached_download(server.url, SHA256)
    with open(path, "r+b") as file:
        file.write(b"garbage")
    assert dataset.cached_download(server.url, SHA256) == path
    assert read(path) == CONTENT
    assert server.requests == 2


def test_addresses_that_cannot_be_fetched(server, tmp_path):
    for url in (server.url + "/missing", (tmp_path / "missing").as_uri(), "nonsense"):
        with pytest.raises(OSError, match=f"cached_download: {url} could not be fetched"):
            dataset.cached_download(url)


def test_progress_is_printed_as_lines_without_a_terminal(server, capsys):
    dataset.cached_download(server.url + "/data.bin")
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 10
    assert lines[-1] == "data.bin: 0.3 of 0.3 MB"


def test_progress_of_unknown_length(capsys):
    with download.progress("stream", None) as update:
        for _ in range(7):
            update(3_000_000)
    assert capsys.readouterr().err == "stream: 12.0 MB\nstream: 21.0 MB\n"


def test_progress_is_a_bar_on_a_terminal(open_terminal):
    pytest.importorskip("tqdm")
    terminal = open_terminal()
    with download.progress("data", 4000) as update:
        update(1000)
        update(3000)
    assert "100%" in terminal.getvalue()


def test_progress_is_lines_where_tqdm_is_missing(monkeypatch, open_terminal):
    terminal = open_terminal()
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with download.progress("data", 2_000_000) as update:
        update(2_000_000)
    assert terminal.getvalue() == "data: 2.0 of 2.0 MB\n"


def test_files_are_cached_where_the_system_has_no_locks(monkeypatch, server):
    monkeypatch.setattr(cache, "fcntl", None)
    assert read(dataset.cached_download(server.url)) == CONTENT
