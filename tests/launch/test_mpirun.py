import os
import sys

import pytest

from launch import mpirun

VERSIONS = {
    mpirun.OpenMpi: "mpirun (Open MPI) 5.0.11",
    mpirun.Mpich: "HYDRA build details:\n    Version: 5.0.2",
}


@pytest.fixture
def make_mpirun(tmp_path, monkeypatch):
    """Function that puts a program that says some version into a folder of that name."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def make(folder, version, name="mpirun"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{version}'\n")
        path.chmod(0o755)
        return str(path)

    return make


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


def test_mpiexec_serves_too(make_mpirun):
    path = make_mpirun("path", VERSIONS[mpirun.Mpich], name="mpiexec")
    assert mpirun.find().path == path


def test_file_that_cannot_be_run_is_passed_over(make_mpirun):
    os.chmod(make_mpirun("own", VERSIONS[mpirun.OpenMpi]), 0o644)
    path = make_mpirun("path", VERSIONS[mpirun.Mpich])
    assert mpirun.find().path == path


def test_none(make_mpirun):
    assert mpirun.find() is None


def test_unknown_kind(make_mpirun):
    path = make_mpirun("path", "a carpenter")
    with pytest.raises(mpirun.UnknownMpirunError) as error:
        mpirun.find()
    assert str(error.value) == (f"{path} is neither Open MPI's nor MPICH's: it says 'a carpenter'")


def test_open_mpi_as_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    both = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert mpirun.OpenMpi("mpirun").variables({}) == both
    assert mpirun.OpenMpi("mpirun").variables(both) == {}
    assert mpirun.Mpich("mpirun").variables({}) == {}


def test_open_mpi_as_ordinary_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mpirun.OpenMpi("mpirun").variables({}) == {}


def test_more_ranks_than_cores():
    assert "--oversubscribe" in mpirun.OpenMpi("mpirun").command(3, oversubscribed=True)
    assert "--oversubscribe" not in mpirun.OpenMpi("mpirun").command(2, oversubscribed=False)
    assert mpirun.Mpich("mpirun").command(3, oversubscribed=True) == ["mpirun", "-n", "3"]
