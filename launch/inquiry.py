"""Runs commands on hosts, and explains why ranks cannot run there.

Only the doctor and jobs on several hosts import this module, because its imports are slow.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence

from . import reach

MOST_AT_ONCE = 64

# The check that runs on each host ends with one of these exit codes if the host lacks something.
NO_PYTHON, NO_LAUNCHER, NO_FOLDER = 71, 72, 73
_INSTALL = "install mpchain there at the same place as here, or on a file system that both share"


def command_on(host: str, remote_shell: Sequence[str], line: str, seconds: float) -> list[str]:
    """Returns the command that runs a shell command on a host, with a timeout for the connection.

    Example:
        >>> command_on("localhost", ("ssh",), "true", 5)
        ['sh', '-c', 'true']
    """
    if reach.is_local(host):
        return ["sh", "-c", line]
    quick = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}")
    options = quick if remote_shell[0] == "ssh" else ()
    # ssh and blaunch join the words of a command for a shell; other remote shells need an explicit
    # shell.
    wrapped = [line] if remote_shell[0] in ("ssh", "blaunch") else ["sh", "-c", line]
    return [*remote_shell, *options, host, *wrapped]


def complaints(
    hosts: Iterable[str], remote_shell: Sequence[str], needed_file: str, seconds: float
) -> dict[str, str]:
    """Returns a dict from each host on which ranks cannot run to a sentence that says why.

    Args:
        hosts: The hosts' names.
        remote_shell: The same as in `allocations.Allocation`.
        needed_file: A file of the launcher that each host must have.
        seconds: The time limit for the connection, and also for the answer.

    Example:
        >>> complaints(["localhost"], ("ssh",), os.devnull, 30)
        {}
    """
    python, file, folder = map(shlex.quote, (sys.executable, needed_file, os.getcwd()))
    check = (
        f"{python} -I -S -c '' 2>/dev/null || exit {NO_PYTHON}; "
        f"test -r {file} || exit {NO_LAUNCHER}; cd {folder} 2>/dev/null || exit {NO_FOLDER}"
    )
    lines = {host: command_on(host, remote_shell, check, seconds) for host in hosts}
    answers = run_on_all(lines, 2 * seconds)
    bad = {host: answer for host, answer in answers.items() if answer[0] != 0}
    return {host: _sentence(host, remote_shell, *answer) for host, answer in bad.items()}


def with_own_path() -> list[str]:
    """Returns the first words of a command that make Python find modules as this process does.

    Example:
        >>> with_own_path()[0]
        'env'
    """
    return ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"]


def run_on_all(commands: dict[str, list[str]], timeout: float) -> dict:
    """Runs a command for each host, several at the same time.

    Returns:
        A dict from each host to the exit code (None after the timeout, 255 if the command cannot be
        started), standard output and error.

    Example:
        >>> run_on_all({"here": ["echo", "hello"]}, 30)
        {'here': (0, 'hello\\n', '')}
    """
    answers = {}
    names = list(commands)
    for start in range(0, len(names), MOST_AT_ONCE):
        running = {host: _start(commands[host]) for host in names[start : start + MOST_AT_ONCE]}
        answers |= {host: _finish(process, timeout) for host, process in running.items()}
    return answers


def _start(command):
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors="replace",
            start_new_session=True,  # ssh must not ask for a password
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"


def _finish(process, timeout):
    if isinstance(process, str):
        return 255, "", process
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, "", f"no answer within {timeout:.0f} s"
    return process.returncode, output, errors


def _sentence(host, remote_shell, code, output, errors):
    lacks = {
        NO_PYTHON: f"Python at {sys.executable}: {_INSTALL}",
        NO_LAUNCHER: f"mpchain-launch at {os.path.dirname(__file__)}: {_INSTALL}",
        NO_FOLDER: f"folder {os.getcwd()}: start where all hosts share one",
    }
    if code in lacks:
        return f"host {host} has no {lacks[code]}"
    reason = errors.strip().rpartition("\n")[2] or f"exit code {code}"
    shell = " ".join(remote_shell)
    return f"host {host} cannot be reached ({reason}): '{shell} {host} true' must work by itself"
