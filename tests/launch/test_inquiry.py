import os

import pytest

from launch import inquiry

FILE = inquiry.__file__


@pytest.fixture
def ssh(tmp_path, monkeypatch, local_hosts):
    """Replaces ssh by a shell script; its last argument is a shell command."""
    local_hosts("here")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def ssh(text):
        path = tmp_path / "ssh"
        path.write_text(f"#!/bin/sh\nfor line; do :; done\n{text}\n")
        path.chmod(0o755)

    ssh('exec sh -c "$line"')
    return ssh


def complaint(host="there", file=FILE, seconds=5):
    return inquiry.complaints([host], ("ssh",), file, seconds).get(host, "")


@pytest.mark.parametrize("host", ["here", "there"])
def test_all_is_well(ssh, host):
    assert complaint(host) == ""


def test_no_python(ssh, python_at):
    python_at("/missing/python")
    assert complaint() == (
        "host there has no Python at /missing/python: install mpchain there at the same place as "
        "here, or on a file system that both share"
    )


def test_no_launcher(ssh):
    assert complaint(file="/missing/file") == (
        f"host there has no mpchain-launch at {os.path.dirname(FILE)}: install mpchain there at "
        "the same place as here, or on a file system that both share"
    )


def test_no_folder(ssh, tmp_path, monkeypatch):
    ssh(f'exec sh -c "$(printf %s "$line" | sed s,{tmp_path}/gone,/missing,)"')
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    words = f"host there has no folder {tmp_path}/gone: start where all hosts share one"
    assert complaint() == words


def test_unreachable(ssh):
    ssh("echo 'ssh: some words' >&2; echo 'ssh: No route to host' >&2; exit 255")
    assert complaint() == (
        "host there cannot be reached (ssh: No route to host): 'ssh there true' must work by itself"
    )


def test_no_answer(ssh):
    ssh("exec sleep 60")
    assert "host there cannot be reached (no answer within 0 s)" in complaint(seconds=0.1)


def test_no_ssh(ssh, monkeypatch):
    monkeypatch.setenv("PATH", "/missing")
    assert "host there cannot be reached (ssh: No such file or directory)" in complaint()


def test_each_host_has_its_answer():
    commands = {str(i): ["sh", "-c", f"echo {i}; exit {i % 3}"] for i in range(100)}
    answers = inquiry.run_on_all(commands, 60)
    assert answers == {str(i): (i % 3, f"{i}\n", "") for i in range(100)}


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (
            ("ssh",),
            ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=7", "there", "echo 'a b'"],
        ),
        (("blaunch",), ["blaunch", "there", "echo 'a b'"]),
        (("srun", "--nodelist"), ["srun", "--nodelist", "there", "sh", "-c", "echo 'a b'"]),
    ],
)
def test_command_on_a_host(ssh, shell, expected):
    assert inquiry.command_on("there", shell, "echo 'a b'", 7) == expected
    assert inquiry.command_on("here", shell, "echo 'a b'", 7) == ["sh", "-c", "echo 'a b'"]
