import os
import sys

import pytest

from launch import mpi_library, mpirun

HOSTS = {"a": 1, "b": 1}
VERSIONS = {
    mpirun.OpenMpi: "mpirun (Open MPI) 5.0.11",
    mpirun.Mpich: "HYDRA build details:\n    Version: 5.0.2",
}
LIBRARIES = {mpirun.OpenMpi: "libmpi.so.40", mpirun.Mpich: "libmpi.so.12"}
OTHER = {mpirun.OpenMpi: mpirun.Mpich, mpirun.Mpich: mpirun.OpenMpi}


@pytest.fixture
def load_library(monkeypatch):
    """Returns a function that sets the library that mpi4py loads."""
    return lambda path: monkeypatch.setattr(mpi_library, "find", lambda: path)


@pytest.fixture
def be_user(monkeypatch):
    """Returns a function that sets the user who runs the launcher."""
    return lambda number: monkeypatch.setattr(os, "geteuid", lambda: number)


@pytest.fixture
def make_mpirun(tmp_path, monkeypatch, python_at, environment_at, load_library):
    """Returns a function that makes a program mpirun with a given version in a given folder."""
    python_at(tmp_path / "own" / "python")
    environment_at(tmp_path / "prefix")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    load_library(None)

    def make(folder, version, name="mpirun"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{version}'\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def make_library(tmp_path, load_library):
    """Returns a function that makes a library in a folder; mpi4py loads it if `loaded` is true."""

    def make(folder, kind, loaded=True):
        path = tmp_path / folder / LIBRARIES[kind]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x7fELF")
        if loaded:
            load_library(str(path))
        return str(path)

    return make


@pytest.fixture
def refusal():
    """Returns a function that calls `mpirun.find` and returns its error, which must be one line."""

    def refusal(*arguments):
        with pytest.raises(mpirun.UnknownMpirunError) as error:
            mpirun.find(*arguments)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refusal


@pytest.mark.parametrize("kind", VERSIONS)
def test_kind_is_told_by_its_version(make_mpirun, kind):
    path = make_mpirun("path", VERSIONS[kind])
    found = mpirun.find()
    assert type(found) is kind
    assert found.path == path


@pytest.mark.parametrize("own", ["own", "prefix/bin"])
def test_own_environment_comes_before_path(make_mpirun, own):
    make_mpirun("path", VERSIONS[mpirun.OpenMpi])
    path = make_mpirun(own, VERSIONS[mpirun.Mpich])
    assert mpirun.find().path == path


@pytest.mark.parametrize("name", ["mpiexec", "mpiexec.hydra", "mpirun.mpich"])
def test_other_names(make_mpirun, name):
    path = make_mpirun("path", VERSIONS[mpirun.Mpich], name=name)
    assert mpirun.find().path == path


def test_file_that_cannot_be_run_is_passed_over(make_mpirun):
    os.chmod(make_mpirun("own", VERSIONS[mpirun.OpenMpi]), 0o644)
    path = make_mpirun("path", VERSIONS[mpirun.Mpich])
    assert mpirun.find().path == path


def test_none(make_mpirun):
    assert mpirun.find() is None


def test_unknown_kind(make_mpirun, refusal):
    path = make_mpirun("path", "a carpenter")
    assert refusal() == (
        f"{path} belongs neither to Open MPI nor to MPICH, according to its --version; "
        "install one of them with: pip install 'mpchain[mpi]'"
    )


@pytest.mark.parametrize("kind", VERSIONS)
def test_the_mpirun_of_the_library_comes_first(make_mpirun, make_library, kind):
    make_mpirun("path", VERSIONS[OTHER[kind]])
    make_library("site/lib", kind)
    # The version of this mpirun is not needed.
    path = make_mpirun("site/bin", "nothing")
    found = mpirun.find()
    assert (type(found), found.path) == (kind, path)


def test_library_in_a_folder_of_the_architecture(make_mpirun, make_library):
    make_library("usr/lib/x86_64-linux-gnu/openmpi/lib", mpirun.OpenMpi)
    path = make_mpirun("usr/bin", VERSIONS[mpirun.OpenMpi])
    assert mpirun.find().path == path


def test_two_flavours_in_one_environment(make_mpirun, make_library):
    """The mpirun is Open MPI's, whose wheel was installed last, but mpi4py loads MPICH."""
    make_library("own/lib", mpirun.OpenMpi, loaded=False)
    make_library("own/lib", mpirun.Mpich)
    make_mpirun("own/bin", VERSIONS[mpirun.OpenMpi])
    path = make_mpirun("own/bin", VERSIONS[mpirun.Mpich], name="mpiexec.hydra")
    assert mpirun.find().path == path


@pytest.mark.parametrize("kind", VERSIONS)
def test_mismatch_names_both(make_mpirun, make_library, refusal, kind):
    library = make_library("site/lib", kind)
    path = make_mpirun("path", VERSIONS[OTHER[kind]])
    assert refusal() == (
        f"{path} ({OTHER[kind].flavour}) is not the mpirun of {library} ({kind.flavour}), which "
        "mpi4py loads: put the right one into PATH, or reinstall both with: "
        "pip install 'mpchain[mpi]'"
    )


def test_mpirun_of_another_installation(make_mpirun, make_library, refusal, monkeypatch):
    library = make_library("site/lib", mpirun.OpenMpi)
    make_library("other/lib", mpirun.OpenMpi, loaded=False)
    path = make_mpirun("other/bin", VERSIONS[mpirun.OpenMpi])
    monkeypatch.setenv("PATH", os.path.dirname(path))
    assert f"{path} (Open MPI) is not the mpirun of {library} (Open MPI)" in refusal()


def test_kind_that_the_user_wants(make_mpirun, refusal):
    make_mpirun("own", VERSIONS[mpirun.OpenMpi])
    path = make_mpirun("path", VERSIONS[mpirun.Mpich])
    assert mpirun.find("mpich").path == path
    os.remove(path)
    own = os.path.join(os.path.dirname(sys.executable), "mpirun")
    assert refusal("mpich") == (
        f"no mpirun of MPICH, only {own} (Open MPI): install it, or leave --mpi out"
    )


def test_kind_that_does_not_fit_the_library(make_mpirun, make_library, refusal):
    library = make_library("own/lib", mpirun.OpenMpi)
    make_mpirun("own/bin", VERSIONS[mpirun.OpenMpi])
    assert refusal("mpich") == (
        f"--mpi mpich does not fit mpi4py, which loads {library} (Open MPI): leave --mpi out, or "
        "set MPI4PY_LIBMPI to the library of MPICH"
    )


def test_srun(make_mpirun, make_library, refusal):
    assert refusal("srun") == "no srun in PATH: --mpi srun needs Slurm"
    path = make_mpirun("path", "slurm 24.05", name="srun")
    assert mpirun.find() is None
    assert mpirun.find(in_slurm=True).path == mpirun.find("srun").path == path
    make_library("lib", mpirun.OpenMpi)
    command = mpirun.find("srun").command(6, {"a": 4, "b": 4}, True, [])
    assert command == [
        *(path, "--kill-on-bad-exit=0", "--cpu-bind=none", "--ntasks=6", "--mpi=pmix"),
        *("--nodes=2", "--nodelist=a,b", "--overcommit"),
    ]


def test_mpirun_comes_before_srun(make_mpirun):
    make_mpirun("path", "slurm 24.05", name="srun")
    path = make_mpirun("path", VERSIONS[mpirun.Mpich])
    assert mpirun.find(in_slurm=True).path == path


def test_open_mpi_as_root(be_user):
    be_user(0)
    both = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert mpirun.OpenMpi("mpirun").variables({}, 2, HOSTS) == both
    assert mpirun.OpenMpi("mpirun").variables(both, 2, HOSTS) == {}
    assert mpirun.Mpich("mpirun").variables({}, 2, HOSTS) == {}


def test_open_mpi_as_ordinary_user(be_user):
    be_user(1000)
    assert mpirun.OpenMpi("mpirun").variables({}, 2, HOSTS) == {}


def test_more_ranks_than_cores():
    assert "--oversubscribe" in mpirun.OpenMpi("mpirun").command(3, {}, True, ["A"])
    assert "--oversubscribe" not in mpirun.OpenMpi("mpirun").command(2, {}, False, ["A"])
    assert mpirun.Mpich("mpirun").command(3, {}, True, ["A"]) == ["mpirun", "-n", "3"]


def test_hosts():
    hosts = {"a": 2, "b": 1}
    open_mpi = mpirun.OpenMpi("mpirun").command(3, hosts, False, ["A", "B"])
    where = ["--host", "a:2,b:1", "-x", "A", "-x", "B"]
    assert open_mpi == ["mpirun", "--bind-to", "none", *where, "-n", "3"]
    mpich = mpirun.Mpich("mpirun").command(3, hosts, False, ["A", "B"])
    assert mpich == ["mpirun", "-hosts", "a:2,b:1", "-n", "3"]


def test_variables_for_other_hosts():
    environment = dict.fromkeys(("HOME", "PATH", "NCCL_DEBUG", "PYTHONPATH", "SECRET"), "")
    assert mpirun.forwarded(environment, ["A", "PATH"]) == ["A", "PATH", "NCCL_DEBUG", "PYTHONPATH"]


@pytest.fixture
def shared_memory(monkeypatch, tmp_path, be_user):
    """Returns a function that sets how much of /dev/shm is free; no file contains settings of Open
    MPI."""
    be_user(1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    return lambda free: monkeypatch.setattr(mpirun, "_free_shared_memory", lambda: free)


@pytest.mark.parametrize(
    ("free", "hosts", "environment", "added"),
    [
        (1 << 30, {}, {}, {"OMPI_MCA_btl": "^tcp"}),
        (1 << 26, {}, {}, {}),
        (1 << 30, HOSTS, {}, {}),
        (1 << 30, {}, {"OMPI_MCA_btl": "self,tcp"}, {}),
    ],
)
def test_ranks_of_one_host_do_without_tcp(shared_memory, tmp_path, free, hosts, environment, added):
    shared_memory(free)
    starter = mpirun.OpenMpi(str(tmp_path / "bin" / "mpirun"))
    assert starter.variables(environment, 2, hosts) == added


@pytest.mark.parametrize("path", [".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"])
@pytest.mark.parametrize(
    ("line", "added"), [("btl = self,tcp", {}), ("#btl = x", {"OMPI_MCA_btl": "^tcp"})]
)
def test_settings_of_a_site_hold(shared_memory, tmp_path, path, line, added):
    shared_memory(1 << 30)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(f"btl_tcp_links = 2\n{line}\n")
    starter = mpirun.OpenMpi(str(tmp_path / "bin" / "mpirun"))
    assert starter.variables({}, 2, {}) == added
