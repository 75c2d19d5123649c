"""The programs that start ranks: mpirun of Open MPI or MPICH, srun, or none for a single rank."""

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping

from . import mpi_library
from .processes import ask, find_program

Hosts = Mapping[str, int]  # maps each host to its number of slots
INSTALL = "pip install 'mpchain[mpi]'"
# The launcher forwards these variables, and those that it sets, to ranks on other hosts. Open MPI
# forwards no variables by default.
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES")
FORWARDED_PREFIXES = ("PYTHON", "MPCHAIN_", "NCCL_", "UCX_", "OMP_", "MKL_", "OPENBLAS_", "MPI4PY_")


# This number of bytes is four times as many as Open MPI takes for a rank.
SHARED_MEMORY_OF_A_RANK = 1 << 26


class UnknownMpirunError(Exception):
    """No usable mpirun was found: all are of an unknown kind, or do not match mpi4py's library or
    the requested kind; or the requested kind does not match the library, or is a missing srun.

    The message is one sentence that says what to do.

    Example:
        >>> find("srun")  # doctest: +SKIP
        Traceback (most recent call last):
        launch.mpirun.UnknownMpirunError: no srun in PATH: --mpi srun needs Slurm
    """


class NotElasticError(Exception):
    """A job of this mpirun cannot continue when ranks are lost.

    The message says why it cannot.

    Example:
        >>> Direct().elastic()
        Traceback (most recent call last):
        launch.mpirun.NotElasticError: there is no mpirun: --elastic needs Open MPI's
    """


class Direct:
    """Starts a single rank, without mpirun.

    Example:
        >>> Direct().command(1, {}, False, [])
        []
    """

    path: str | None = None
    flavour: str | None = None
    # A supervisor waits this many seconds for its program to end by itself after the guard is gone.
    # With Open MPI, the launcher recognizes a rank that called MPI_Abort because it ends by itself.
    # With MPICH, that rank prints a message, and mpirun complains unless all ranks are ended at
    # once.
    patience = 0.0

    def command(self, n: int, hosts: Hosts, oversubscribed: bool, forward: list[str]) -> list[str]:
        """Returns the words of the command before the program.

        Args:
            n: The number of ranks.
            hosts: The number of slots of each host; an empty dict means only this host.
            oversubscribed: Whether there may be more ranks than cores or slots.
            forward: The names of the environment variables that ranks on other hosts must have.
        """
        return []

    def variables(self, environment: Mapping[str, str], n: int, hosts: Hosts) -> dict[str, str]:
        """Returns the environment variables to add to ``environment``, which the launcher has; for
        the other arguments see `command`."""
        return {}

    def elastic(self) -> "Direct":
        """Returns a starter whose job continues when ranks are lost.

        Raises:
            NotElasticError: If the MPI of this starter cannot lose ranks.
        """
        reason = f"{self.path} is not" if self.path else "there is no mpirun: --elastic needs"
        raise NotElasticError(f"{reason} Open MPI's")


class Mpich(Direct):
    """The mpirun of MPICH, called Hydra, or of a derived MPI (Intel MPI, MVAPICH).

    Example:
        >>> Mpich("/usr/bin/mpirun").command(2, {"a": 1, "b": 1}, False, [])
        ['/usr/bin/mpirun', '-hosts', 'a:1,b:1', '-n', '2']
    """

    flavour = mpi_library.MPICH

    path: str

    def __init__(self, path: str):
        self.path = path

    def command(self, n: int, hosts: Hosts, oversubscribed: bool, forward: list[str]) -> list[str]:
        """See `Direct`. Hydra accepts any number of ranks, and forwards all variables."""
        where = ["-hosts", _list(hosts)] if hosts else []
        return [self.path, *where, "-n", str(n)]


class OpenMpi(Mpich):
    """The mpirun of Open MPI.

    Example:
        >>> OpenMpi("/usr/bin/mpirun").command(2, {}, True, [])
        ['/usr/bin/mpirun', '--oversubscribe', '--bind-to', 'none', '-n', '2']
    """

    flavour = mpi_library.OPEN_MPI
    patience = 0.5

    def command(self, n: int, hosts: Hosts, oversubscribed: bool, forward: list[str]) -> list[str]:
        """See `Direct`.

        The command switches off binding, because by default Open MPI binds each rank with all its
        threads to one core, and binds the ranks of two jobs to the same cores.
        """
        options = ["--oversubscribe"] if oversubscribed else []
        where = ["--host", _list(hosts)] if hosts else []
        for name in forward if hosts else ():
            where += ["-x", name]
        return [self.path, *options, "--bind-to", "none", *where, "-n", str(n)]

    def variables(self, environment: Mapping[str, str], n: int, hosts: Hosts) -> dict[str, str]:
        """Returns variables that allow mpirun to run as root, let ranks of one host communicate
        without the network, and make mpirun use LSF's blaunch."""
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        added = {name: "1" for name in names if environment.get(name) != "1"}
        if os.geteuid() != 0:
            added = {}
        # Without TCP, ranks communicate only by shared memory, which must be large enough.
        has_room = _free_shared_memory() >= n * SHARED_MEMORY_OF_A_RANK
        if not hosts and has_room and not self._has_setting("btl", environment):
            added["OMPI_MCA_btl"] = "^tcp"
        # Without LSF's own component, as in wheels, mpirun would use ssh, which many sites refuse.
        agent, in_lsf = "PRTE_MCA_plm_ssh_agent", "LSB_DJOB_HOSTFILE" in environment
        if hosts and in_lsf and agent not in environment and (path := _find_program("blaunch")):
            added[agent] = path
        return added

    def elastic(self) -> "ElasticOpenMpi":
        """See `Direct`; runs the ``ompi_info`` that is installed beside mpirun."""
        program = find_program(["ompi_info"], [os.path.dirname(self.path)])
        if not program:
            raise NotElasticError(f"{self.path} has no ompi_info beside it to tell about ULFM")
        if "FT MPI support: yes" not in ask([program]):
            raise NotElasticError(f"{self.path} was built without ULFM, according to {program}")
        return ElasticOpenMpi(self.path)

    def _has_setting(self, name, environment):
        """Returns whether a variable, or a parameter file of the user or installation, sets
        ``name``."""
        if f"OMPI_MCA_{name}" in environment:
            return True
        prefix = os.path.dirname(os.path.dirname(self.path))
        files = [os.path.expanduser("~/.openmpi/mca-params.conf")]
        files += [os.path.join(prefix, "etc", "openmpi-mca-params.conf")]
        for path in files:
            with (
                contextlib.suppress(OSError),
                open(path, errors="replace", encoding="utf-8") as file,
            ):
                if any(line.partition("=")[0].strip() == name for line in file):
                    return True
        return False


class ElasticOpenMpi(OpenMpi):
    """The mpirun of an Open MPI with ULFM, for jobs that continue when ranks are lost.

    Example:
        >>> ElasticOpenMpi("/usr/bin/mpirun").command(2, {}, False, [])[:3]
        ['/usr/bin/mpirun', '--with-ft', 'ulfm']
    """

    def command(self, n: int, hosts: Hosts, oversubscribed: bool, forward: list[str]) -> list[str]:
        """See `Direct`."""
        path, *options = super().command(n, hosts, oversubscribed, forward)
        return [path, "--with-ft", "ulfm", *options]

    def variables(self, environment: Mapping[str, str], n: int, hosts: Hosts) -> dict[str, str]:
        """See `OpenMpi`."""
        added = super().variables(environment, n, hosts)
        if not self._has_setting("coll", environment):
            # These components crash or hang after a loss.
            added["OMPI_MCA_coll"] = "^han,cuda"
        if hosts:  # the loss of a host's daemon would end mpirun
            added["PRTE_MCA_oob_tcp_keepalive_time"] = "0"
        return added


class Srun(Mpich):
    """Slurm's srun, for sites where only srun can start ranks.

    Example:
        >>> Srun("/usr/bin/srun").command(2, {}, False, [])[1:4]
        ['--kill-on-bad-exit=0', '--cpu-bind=none', '--ntasks=2']
    """

    flavour = None
    patience = 0.5

    def command(self, n: int, hosts: Hosts, oversubscribed: bool, forward: list[str]) -> list[str]:
        """See `Direct`. The options keep srun from ending ranks, which the launcher does itself."""
        options = ["--kill-on-bad-exit=0", "--cpu-bind=none", f"--ntasks={n}"]
        library = mpi_library.find()
        plugins = {mpi_library.OPEN_MPI: "pmix", mpi_library.MPICH: "pmi2"}
        if library and (flavour := mpi_library.flavour(library)):
            options.append(f"--mpi={plugins[flavour]}")
        if hosts:
            options += [f"--nodes={len(hosts)}", f"--nodelist={','.join(hosts)}"]
        return [self.path, *options, *["--overcommit"] * oversubscribed]


def find(kind: str = "auto", *, in_slurm: bool = False) -> Direct | None:
    """Returns the mpirun of the MPI library that mpi4py loads, or None if there is no mpirun.

    Without mpi4py, the result is the first mpirun in the environment of the running interpreter or
    in PATH.

    Args:
        kind: ``auto``, ``openmpi``, ``mpich`` or ``srun``.
        in_slurm: Whether to use srun if there is no mpirun.

    Raises:
        UnknownMpirunError: If no mpirun that was found matches the library, if ``kind`` does not
            fit the library, or if there is no srun for ``srun``.

    Example:
        >>> find().path  # doctest: +SKIP
        '/usr/bin/mpirun'
    """
    if kind == "srun":
        return _find_srun() or _refuse("no srun in PATH: --mpi srun needs Slurm")
    library = mpi_library.find()
    own = library and mpi_library.flavour(library)
    wanted = {"openmpi": mpi_library.OPEN_MPI, "mpich": mpi_library.MPICH}.get(kind, own)
    if own and wanted != own:
        _refuse(
            f"--mpi {kind} does not fit mpi4py, which loads {library} ({own}): leave --mpi out, or "
            f"set MPI4PY_LIBMPI to the library of {wanted}"
        )
    others, strangers = [], []
    for path in _candidates(library):
        starter = _recognize(path, library)
        if not starter:
            strangers.append(path)
        elif wanted in (None, starter.flavour) and _fits(starter, library):
            return starter
        else:
            others.append(starter)
    if in_slurm and kind == "auto" and (srun := _find_srun()):
        return srun
    if others:
        _refuse_other(others[0], library, wanted)
    if strangers:
        _refuse(
            f"{strangers[0]} belongs neither to Open MPI nor to MPICH, according to its --version; "
            f"install one of them with: {INSTALL}"
        )
    return None


def forwarded(variables: Mapping[str, str], added: Iterable[str]) -> list[str]:
    """Returns the names of the variables to forward to ranks on other hosts.

    Example:
        >>> forwarded({"PATH": "/bin", "HOME": "/", "OMP_NUM_THREADS": "2"}, added=["A"])
        ['A', 'OMP_NUM_THREADS', 'PATH']
    """
    names = [name for name in variables if name.startswith(FORWARDED_PREFIXES)]
    names += [name for name in FORWARDED if name in variables]
    return list(dict.fromkeys([*added, *names]))


def _refuse(sentence):
    raise UnknownMpirunError(sentence)


def _refuse_other(starter, library, wanted):
    found = f"{starter.path} ({starter.flavour})"
    if not library:
        _refuse(f"no mpirun of {wanted}, only {found}: install it, or leave --mpi out")
    _refuse(
        f"{found} is not the mpirun of {library} ({wanted or 'of unknown kind'}), which mpi4py "
        f"loads: put the right one into PATH, or reinstall both with: {INSTALL}"
    )


def _free_shared_memory():
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return state.f_bavail * state.f_frsize


def _list(hosts):
    return ",".join(f"{host}:{slots}" for host, slots in hosts.items())


def _find_srun():
    path = _find_program("srun")
    return path and Srun(path)


def _find_program(name):
    return find_program([name], os.get_exec_path())


def _candidates(library):
    """Returns the paths of programs that may be the right mpirun, the likeliest first."""
    folders = []
    while library and library != os.path.dirname(library):
        library = os.path.dirname(library)
        folders.append(os.path.join(library, "bin"))
    folders += [os.path.dirname(sys.executable), os.path.join(sys.prefix, "bin")]
    folders += os.get_exec_path()
    paths = []
    for folder in dict.fromkeys(folders):
        for name in ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich"):
            path = find_program([name], [folder])
            if path:
                paths.append(path)
    return paths


def _fits(starter, library):
    """Returns whether a starter and a library may belong to one installation: whether the library
    is in the starter's installation, or no library of the starter's kind is found there."""
    if not library:
        return True
    others = mpi_library.in_installation(starter.path)
    same = [path for path in others if mpi_library.flavour(path) == starter.flavour]
    return not same or any(os.path.samefile(path, library) for path in same)


def _recognize(path, library):
    """Returns the starter for a program; None if the program is of an unknown kind."""
    kinds = {kind.flavour: kind for kind in (OpenMpi, Mpich)}
    around = mpi_library.in_installation(path)
    flavours = set(map(mpi_library.flavour, around))
    # If the library is installed next to the mpirun, the kind of the library is the kind of the
    # mpirun, which then need not be run.
    if library in map(os.path.realpath, around) and len(flavours) == 1 and flavours <= set(kinds):
        return kinds[flavours.pop()](path)
    answer = ask([path, "--version"])
    if "Open MPI" in answer:
        return OpenMpi(path)
    return (
        Mpich(path) if any(name in answer for name in ("HYDRA", "MPICH", "Intel(R) MPI")) else None
    )
