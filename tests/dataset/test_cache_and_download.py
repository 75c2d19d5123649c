"""The folder of data sets, cache_or_load_file, cached_download."""

import hashlib
import http.server
import os
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
    """Serves CONTENT, once ``may_answer`` is set; ``cut`` is where it ends; counts requests."""

    def __init__(self):
        self.requests = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.cut = len(CONTENT)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                outer.may_answer.wait()
                if self.path == "/missing":
                    self.send_error(404)
                    return
                self.send_response(200)
                if self.path != "/unknown-length":
                    self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT[: outer.cut])

            def log_message(self, *args):
                """Keeps the test's output clean."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


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
    return [name for name in os.listdir(root / "_dl_cache") if not name.endswith(".lock")]


def test_a_truncated_download_is_no_download(server, root):
    server.cut = 100_000
    with pytest.raises(OSError, match=r"could not be fetched: .*100000 of 256000 bytes"):
        dataset.cached_download(server.url)
    assert leftovers(root) == []
    server.cut = len(CONTENT)
    assert read(dataset.cached_download(server.url)) == CONTENT


def test_a_wrong_checksum(server, root):
    with pytest.raises(OSError, match=f"must have the SHA-256 checksum {'0' * 64}, .* {SHA256}"):
        dataset.cached_download(server.url, "0" * 64)
    assert leftovers(root) == []


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


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with download.progress("data", 4000) as update:
        update(1000)
        update(3000)
    assert "100%" in capsys.readouterr().err


def test_progress_is_lines_where_tqdm_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with download.progress("data", 2_000_000) as update:
        update(2_000_000)
    assert capsys.readouterr().err == "data: 2.0 of 2.0 MB\n"


def test_files_are_cached_where_the_system_has_no_locks(monkeypatch, server):
    monkeypatch.setattr(cache, "fcntl", None)
    assert read(dataset.cached_download(server.url)) == CONTENT
