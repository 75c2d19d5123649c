"""Tests open_atomic."""

import os
import signal
import subprocess
import sys

import pytest

from mpchain.serializers import open_atomic


def test_bytes_and_text(tmp_path):
    with open_atomic(tmp_path / "bytes") as file:
        file.write(b"\0\1")
    with open_atomic(str(tmp_path / "text"), "w") as file:
        file.write("über\n")
    assert (tmp_path / "bytes").read_bytes() == b"\0\1"
    assert (tmp_path / "text").read_text(encoding="utf-8") == "über\n"
    assert sorted(os.listdir(tmp_path)) == ["bytes", "text"]


def test_the_name_appears_at_the_end_only(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with open_atomic(path, "w") as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), open_atomic(path, "w") as file:
        file.write("new")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    program = (
        "import os, signal, sys; from mpchain.serializers import open_atomic\n"
        "with open_atomic(sys.argv[1], 'w') as file:\n"
        "    file.write('new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_permissions_are_those_of_a_new_file(tmp_path):
    old = os.umask(0o027)
    try:
        with open_atomic(tmp_path / "file"):
            pass
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with open_atomic(tmp_path / "link", "w") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_name_of_full_length(tmp_path):
    with open_atomic(tmp_path / ("x" * 255)):
        pass
    assert os.listdir(tmp_path) == ["x" * 255]


def test_wrong_arguments(tmp_path):
    with (
        pytest.raises(ValueError, match="mode must be 'w' or 'wb', not 'a'"),
        open_atomic("x", "a"),
    ):
        pass
    message = f"cannot write file: folder {tmp_path}/missing does not exist"
    with (
        pytest.raises(FileNotFoundError, match=message),
        open_atomic(tmp_path / "missing" / "file"),
    ):
        pass
    with pytest.raises(ValueError, match="is not a regular file"), open_atomic(tmp_path):
        pass
    with pytest.raises(ValueError, match="is not a regular file"), open_atomic(os.devnull):
        pass
