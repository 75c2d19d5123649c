"""Imitates several hosts on one machine: network namespaces with their own names, and sshd in
each."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))

# At its start, a host mounts its own file systems for shared memory, /run, /sys (which lists
# network cards) and /proc (which lists its processes), sets its name, learns the names of the other
# hosts, waits for its cable, and serves ssh until it is killed. It is the first process of its
# namespace, with which all other processes there end.
HOST = """
set -e
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t sysfs sysfs /sys
mount -t proc proc /proc
mkdir /run/sshd
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
echo ready
read cable
ip addr add {address}/24 dev cable
ip link set cable up
echo up
exec {sshd} -D -e -f {folder}/sshd_config
"""

SSHD_CONFIG = """
ListenAddress 0.0.0.0
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
SetEnv TMPDIR=/run
MaxStartups 100
"""

SSH = """#!/bin/sh
exec {ssh} -F /dev/null -i {folder}/key -o UserKnownHostsFile=/dev/null \\
    -o StrictHostKeyChecking=no -o LogLevel=ERROR "$@"
"""


def why_not() -> str:
    """Returns why hosts cannot be made on this machine; an empty string if they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    missing = [name for name in ("ip", "unshare", "nsenter", "ssh") if not shutil.which(name)]
    if missing or not SSHD:
        return f"needs {', '.join([*missing, *['sshd'] * (not SSHD)])}: openssh-server and iproute2"
    command = ["unshare", *NAMESPACES, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    refusal = answer.stderr.strip()
    return f"namespaces are not permitted: {refusal}" if answer.returncode else ""


def may_mount() -> bool:
    """Returns whether file systems can be mounted here, in a mount namespace."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Hosts:
    """Hosts with the given names on one network, as a context manager.

    They share the files of this machine, but each has its own network card and shared memory.

    Args:
        names: Their names; the first is where `command` runs things by default.
    """

    def __init__(self, *names: str):
        self.names = names
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hosts."))
        self.addresses = {name: f"10.77.0.{i}" for i, name in enumerate(names, 1)}
        self._processes = {}

    def __enter__(self):
        try:
            self._write_files()
            self._processes["switch"] = self._shell("ip link add bridge type bridge\n", "switch")
            self._say("switch", "ip link set dev bridge up && echo up", expect="up")
            for name in self.names:
                self._start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for name, process in self._processes.items():
            # The process ended at its start.
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(self._first_process(name)), signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        shutil.rmtree(self.folder)

    def command(self, *words: str, host: str | None = None) -> list[str]:
        """Returns the command line that runs a command on a host (None means the first host)."""
        process = self._first_process(host or self.names[0])
        return ["nsenter", "-t", process, *NAMESPACES, f"--wd={os.getcwd()}", *words]

    def environment(self) -> dict[str, str]:
        """Returns the variables with which ssh reaches the hosts, and MPI keeps its files on each
        host."""
        return {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "TMPDIR": "/run"}

    def cut(self, name: str):
        """Disconnects a host from the network."""
        subprocess.run(self.command("ip", "link", "set", "cable", "down", host=name), check=True)

    def join(self, name: str):
        """Connects a host to the network again."""
        subprocess.run(self.command("ip", "link", "set", "cable", "up", host=name), check=True)

    def log(self, name: str) -> str:
        """Returns the log of a host's sshd."""
        return (self.folder / f"{name}.log").read_text()

    def _write_files(self):
        lines = [f"{address} {name}\n" for name, address in self.addresses.items()]
        self._write("hosts", "127.0.0.1 localhost\n" + "".join(lines))
        self._write("sshd_config", SSHD_CONFIG.format(folder=self.folder))
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")]
        subprocess.run(keygen, check=True)
        (self.folder / "bin").mkdir()
        self._write("bin/ssh", SSH.format(ssh=shutil.which("ssh"), folder=self.folder))
        (self.folder / "bin/ssh").chmod(0o755)

    def _write(self, name, text):
        (self.folder / name).write_text(text)

    def _start(self, name):
        script = HOST.format(name=name, folder=self.folder, address=self.addresses[name], sshd=SSHD)
        self._processes[name] = self._shell(script, name)
        self._expect(name, "ready")
        here, there = map(self._first_process, (name, "switch"))
        cable = f"ip link add cable netns {here} type veth peer name {name} netns {there}"
        subprocess.run(cable.split(), check=True)
        self._say("switch", f"ip link set dev {name} master bridge up && echo up", expect="up")
        self._say(name, "", expect="up")

    def _first_process(self, name):
        parent = self._processes[name].pid
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return file.read().strip()

    def _shell(self, script, name):
        (self.folder / f"{name}.sh").write_text(script)
        with open(self.folder / f"{name}.log", "wb") as log:
            # The shell first reads the script, then the commands that are sent to it.
            return subprocess.Popen(
                [
                    *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", f". {self.folder}/{name}.sh; . /dev/stdin"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _say(self, name, line, *, expect):
        self._processes[name].stdin.write(line + "\n")
        self._processes[name].stdin.flush()
        self._expect(name, expect)

    def _expect(self, name, word):
        line = self._processes[name].stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"host {name} said {line!r}, not {word!r}: {self.log(name)}")
