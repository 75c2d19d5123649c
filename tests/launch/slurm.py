"""Slurm from Debian's packages on hosts that are network namespaces of this machine (hosts.py).

``python -m tests.launch.slurm install`` installs what it needs. ``python -m tests.launch.slurm
shell`` starts a shell on the first of two hosts, where sbatch and srun work.
"""

import os
import shutil
import subprocess
import sys
import time

from tests.launch import hosts

# The package libpmix-dev has the library of PMIx under a name without version, by which Slurm's
# plug-in loads it.
PACKAGES = ("slurm-wlm", "munge", "libpmix-dev", "openssh-server", "openssh-client", "iproute2")
# The nightly run that needs Slurm also tests the doctor on containers and behind a firewall.
PACKAGES += ("podman", "runc", "nftables")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))

CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=/run/slurmctld
TmpFS=/run
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
KillWait=30
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Returns why Slurm cannot be started here; an empty string if it can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]
    if missing:
        return f"needs {', '.join(missing)}: python -m tests.launch.slurm install"
    return hosts.why_not()


class Slurm(hosts.Hosts):
    """Hosts with their own Slurm: the first host runs slurmctld, each host runs munged and slurmd.

    Args:
        names: Their names.
        cpus: Number of cores that Slurm is to believe each of them to have.
    """

    def __init__(self, *names: str, cpus: int = 2):
        super().__init__(*names)
        self.cpus, self._daemons = cpus, []

    def __enter__(self):
        super().__enter__()
        try:
            self._write_configuration()
            for name in self.names:
                self._start_munge(name)
            self._daemon(self.names[0], "mkdir /run/slurmctld && exec slurmctld -c -D")
            for name in self.names:
                self._daemon(name, f"mkdir /run/slurmd && exec slurmd -D -N {name}")
            self._wait(
                lambda: self.ask("sinfo", "-h", "-o", "%t %D").strip(), f"idle {len(self.names)}"
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        for process in self._daemons:
            process.wait()

    def environment(self):
        """Returns the variables of `Hosts`, and one with which Slurm's programs find their
        configuration."""
        variables = super().environment()
        path = f"{variables['PATH']}:/usr/sbin:/sbin"
        return variables | {"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *words: str) -> str:
        """Returns the output of a command on the first host; raises an error if the command
        fails."""
        command = self.command(*words)
        environment = {**os.environ, **self.environment()}
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if answer.returncode:
            raise RuntimeError(f"{' '.join(words)}: {answer.stderr}{self.logs()}")
        return answer.stdout

    def state(self, job: str) -> str:
        """Returns the state of a job, such as ``RUNNING``."""
        shown = self.ask("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait(self, job: str, *states: str, seconds: float = 120.0) -> str:
        """Waits until a job is in one of the given states; returns the state."""
        return self._wait(lambda: self.state(job), *states, seconds=seconds)

    def logs(self) -> str:
        """Returns the ends of the logs of the daemons and hosts."""
        files = sorted(self.folder.glob("*.log"))
        return "".join(f"\n== {path.name}\n{path.read_text()[-3000:]}" for path in files)

    def _write_configuration(self):
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} CPUs={self.cpus} RealMemory=1000 State=UNKNOWN"
            for name, address in self.addresses.items()
        )
        controller = self.names[0]
        text = CONFIGURATION.format(
            controller=controller,
            address=self.addresses[controller],
            folder=self.folder,
            nodes=nodes,
        )
        self._write("slurm.conf", text)
        # Unless a plug-in is named, slurmd looks for a mounted cgroup; tasks are not confined here.
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)

    def stop_munge(self, name: str):
        """Ends munged on a host."""
        line = "pkill -x munged; while pgrep -x munged; do sleep 0.1; done"
        self._run(name, f"{line}; rm -rf /run/munge")

    def change_munge_key(self, name: str):
        """Restarts munged on a host, with another key."""
        self.stop_munge(name)
        (self.folder / "other.key").write_bytes(os.urandom(128))
        (self.folder / "other.key").chmod(0o600)
        self._start_munge(name, "other.key")

    def _start_munge(self, name, key="munge.key"):
        options = f"--key-file={self.folder}/{key} --log-file={self.folder}/munge-{name}.log"
        options += " --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed --force"
        self._daemon(name, f"mkdir -m 755 /run/munge && exec munged --foreground {options}")
        there = lambda: self._run(name, "test -S /run/munge/munge.socket.2")
        self._wait(there, 0)

    def _run(self, name, line):
        command = self.command("sh", "-c", line, host=name)
        return subprocess.run(
            command, env={**os.environ, **self.environment()}, check=False
        ).returncode

    def _daemon(self, name, line):
        """Starts a daemon on a host; the daemon ends with the first process of the host."""
        with open(self.folder / f"daemons-{name}.log", "ab") as log:
            process = subprocess.Popen(
                self.command("sh", "-c", line, host=name),
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(process)

    def _wait(self, question, *wanted, seconds=30.0):
        end = time.monotonic() + seconds
        while (answer := question()) not in wanted:
            if time.monotonic() > end:
                raise RuntimeError(f"not {' or '.join(map(str, wanted))} but {answer}{self.logs()}")
            time.sleep(0.2)  # no event exists to wait for, so poll
        return answer


def main(arguments: list[str]) -> int:
    """Installs Slurm, or runs a command, by default a shell, on the first of two hosts."""
    if arguments == ["install"]:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = [*["sudo", "-E"] * (os.geteuid() != 0), "apt-get", "-o", "DPkg::Lock::Timeout=300"]
        install = ["install", "-y", "--no-install-recommends", *PACKAGES]
        for words in (["update"], install):
            subprocess.run([*apt, *words], env=environment, check=True)
        sys.exit(why_not() or 0)  # a nightly run without these tests must fail
    if reason := why_not():
        sys.exit(reason)
    with Slurm("a", "b") as slurm:
        command = slurm.command(*(arguments[1:] or ["sh"]))
        environment = {**os.environ, **slurm.environment()}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
