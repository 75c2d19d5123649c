"""Tests `.ci/commits`, which checks the subjects of commits."""

import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent / ".ci" / "commits"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="needs a clone of the repository"),
]


def git(folder, *arguments):
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in NAMES}
    command = ["git", "-C", str(folder), *arguments]
    options = {"env": os.environ | names, "capture_output": True, "text": True}
    return subprocess.run(command, check=True, **options).stdout.strip()


NAMES = ("NAME", "EMAIL")


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / ".ci")
    git(folder, "init", "-q")
    return folder


def commit(folder, subject):
    git(folder, "commit", "-q", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def check(folder, *arguments):
    command = [str(folder / ".ci" / "commits"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_commits_after_the_first(repository):
    first = commit(repository, "a" * 100)
    commit(repository, "é" * 72)
    assert check(repository, first) == (0, "1 subjects checked\n")
    long = commit(repository, "b" * 73)[:7]
    code, output = check(repository, first)
    assert code == 1
    assert f"subject of 73 characters: {long} {'b' * 73}\n" in output
    assert "2 subjects checked\n" in output


def test_without_commits_and_without_the_first_one(repository):
    code, output = check(repository)
    assert code == 0
    assert output == "left out: there is no git repository here, or it has no commit\n"
    commit(repository, "a" * 100)
    code, output = check(repository, "1" * 40)
    assert (code, output) == (0, f"left out: this repository does not have {'1' * 40}\n")


@pytest.mark.parametrize("n", [72, 73])
def test_shallow_clone(repository, tmp_path, n):
    git(repository, "add", ".ci")
    first = commit(repository, "c" * 100)
    commit(repository, "d" * n)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    code, output = check(clone, first)
    assert code == (n > 72)
    assert output.startswith("this clone is shallow: only its commits are checked\n")
    assert output.endswith("1 subjects checked\n")
