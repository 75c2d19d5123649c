import os
import sys

import pytest

from launch import mpi_library

ELF = b"\x7fELF..."


@pytest.fixture
def answer(tmp_path, python_at):
    """Returns a function that sets what Python prints when the launcher runs it."""

    def answer(text):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho '{text}'\n")
        path.chmod(0o755)
        python_at(path)

    return answer


@pytest.fixture
def wheel(tmp_path, monkeypatch, environment_at, answer):
    """Returns the folder lib of an environment in which mpi4py is a wheel, and Python's answer
    names no library."""
    package = tmp_path / "site" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "MPI.openmpi.so").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    environment_at(tmp_path)
    answer("cannot load MPI library")
    for name in ("LD_PRELOAD", "MPI4PY_LIBMPI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "lib").mkdir()
    return tmp_path / "lib"


def test_wheel_takes_mpich_before_open_mpi(wheel):
    (wheel / "libmpi.so.40").write_bytes(ELF)
    assert mpi_library.find() == str(wheel / "libmpi.so.40")
    (wheel / "libmpi.so.12").write_bytes(ELF)
    assert mpi_library.find() == str(wheel / "libmpi.so.12")


def test_text_for_the_linker_is_no_library(wheel):
    (wheel / "libmpi.so").write_text("INPUT(libmpi.so.40)")
    (wheel / "libmpi.so.40").write_bytes(ELF)
    assert mpi_library.find() == str(wheel / "libmpi.so.40")


def test_links_are_followed(wheel):
    (wheel / "libmpi.so.40.1").write_bytes(ELF)
    (wheel / "libmpi.so").symlink_to("libmpi.so.40.1")
    assert mpi_library.find() == str(wheel / "libmpi.so.40.1")


@pytest.mark.parametrize("place", ["other", "other/libmpi.so.12"])
def test_library_that_the_user_names(wheel, tmp_path, monkeypatch, place):
    (wheel / "libmpi.so.40").write_bytes(ELF)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "libmpi.so.12").write_bytes(ELF)
    monkeypatch.setenv("MPI4PY_LIBMPI", str(tmp_path / place))
    assert mpi_library.find() == str(tmp_path / "other" / "libmpi.so.12")


def test_mpi4py_is_asked_where_the_loader_decides(wheel, tmp_path, monkeypatch, answer):
    assert mpi_library.find() is None
    library = tmp_path / "libmpi.so.40"
    library.write_bytes(ELF)
    answer(f"a warning\n{library}")
    assert mpi_library.find() == str(library)
    (wheel / "libmpi.so.12").write_bytes(ELF)
    monkeypatch.setenv("LD_PRELOAD", "/x/libmpi.so.40")
    assert mpi_library.find() == str(library)


def test_without_mpi4py(import_from):
    import_from()
    assert mpi_library.find() is None


@pytest.mark.parametrize(
    ("path", "flavour"),
    [
        ("/x/libmpi.so.40.40.7", mpi_library.OPEN_MPI),
        ("/x/libmpi.so.12.4.0", mpi_library.MPICH),
        ("/x/libmpich.so.12", mpi_library.MPICH),
        ("/x/libmpi.40.dylib", mpi_library.OPEN_MPI),
        ("/x/libmpi.12.dylib", mpi_library.MPICH),
        ("/x/libmpi.so.1", None),
    ],
)
def test_flavour(path, flavour):
    assert mpi_library.flavour(path) == flavour


def test_libraries_of_the_installation_of_a_program(tmp_path):
    for name in ("bin", "lib/x86_64-linux-gnu"):
        (tmp_path / name).mkdir(parents=True)
    assert mpi_library.in_installation(str(tmp_path / "bin" / "mpirun")) == []
    names = ["lib/libmpi.so.40", "lib/x86_64-linux-gnu/libmpich.so.12"]
    for name in names:
        (tmp_path / name).write_bytes(ELF)
    (tmp_path / "link").symlink_to(tmp_path / "bin" / "mpirun")
    (tmp_path / "bin" / "mpirun").touch()
    expected = [str(tmp_path / name) for name in names]
    assert mpi_library.in_installation(str(tmp_path / "link")) == expected


@pytest.mark.skipif(mpi_library.mpi4py() is None, reason="needs mpi4py: mpchain[mpi]")
def test_what_is_found_here_is_what_mpi4py_says():
    said = mpi_library.ask([sys.executable, "-m", "mpi4py", "--mpi-library"]).strip()
    assert os.path.samefile(mpi_library.find(), said)
