"""Tests the file that says after a failure what each rank called last."""

import os
import re
import socket

import pytest

from mpchain.distributed.watch import CollectiveMismatchError, fingerprints, reports
from mpchain.distributed.watch.exchange import Exchange
from mpchain.distributed.watch.table import RING, ROW, make_rows
from tests.distributed import ranks as under_mpirun
from tests.distributed.watch.imitated_ranks import Operation, Ranks, X, call, enter


@pytest.fixture
def report_to(monkeypatch):
    """Returns a function that sets the folder of the file."""
    return lambda path: monkeypatch.setattr(reports.folder, "path", path and str(path))


@pytest.fixture
def file(tmp_path, report_to):
    report_to(tmp_path / "result")
    return tmp_path / "result" / reports.FILE


def parts_of(file):
    """Returns the lines about each rank."""
    _, *parts = file.read_text().split("\n\nrank ")
    return [part.splitlines() for part in parts]


def test_a_mismatch_is_read_off_the_file(file):
    ranks = Ranks(3)
    for watch in ranks.all:
        call(watch, "allreduce", X)
        ranks.clock.now += 0.25
    enter(ranks[0], "allreduce", X)
    with pytest.raises(CollectiveMismatchError) as raised:
        enter(ranks[2], "bcast", X, 1)
    assert str(file) in str(raised.value)
    assert "collective 2 differs between ranks:" in file.read_text()
    first, second, third = parts_of(file)
    assert first[0].startswith("10 (host near, process ")
    assert [line[0] for line in first[2:]] == [" ", "*"]
    done = r"  1 +0.750 +0.000000  allreduce of \(2, 3\) float32, called at .*:\d+"
    assert re.search(done, first[2])
    assert re.search(r"  2 +0.000 +not done  allreduce of", first[3])
    assert len(second) == 3 and " 1 " in second[2]
    assert third[3].startswith("*") and "bcast of (2, 3) float32 with root 1" in third[3]


def test_a_rank_that_does_not_come(file):
    ranks = Ranks(2)
    for watch in ranks.all:
        call(watch, "barrier")
    enter(ranks[0], "allreduce", X)
    ranks.pass_time(15)
    assert str(file) in ranks.report
    first, second = parts_of(file)
    assert "s in the last collective below" in first[0] and "not done" in first[3]
    assert "s in no collective" in second[0] and len(second) == 3


def test_no_file_without_a_folder(report_to):
    report_to(None)
    assert reports.record(Ranks(1)[0], "why") == "why"


def test_a_folder_that_cannot_be_made(tmp_path, report_to):
    (tmp_path / "file").touch()
    report_to(tmp_path / "file" / "result")
    assert "could not be written" in reports.record(Ranks(1)[0], "why")


def test_links_of_others_are_not_followed(file, tmp_path, report_to, monkeypatch):
    """In a folder that other users may write, somebody could guess the name of the temporary
    file."""
    (tmp_path / "precious").write_text("kept")
    file.parent.mkdir()
    links = [f"{file}.{socket.gethostname()}.{os.getpid()}", f"{file}.guessed"]
    for link in links:
        os.symlink(tmp_path / "precious", link)
    monkeypatch.setattr("secrets.token_hex", lambda n: "guessed")
    assert "could not be written" in reports.record(Ranks(1)[0], "why")
    monkeypatch.undo()
    report_to(file.parent)
    os.symlink(tmp_path / "precious", links[1])
    assert str(file) in reports.record(Ranks(1)[0], "why")
    assert (tmp_path / "precious").read_text() == "kept"
    assert file.exists() and not file.is_symlink()


def test_the_last_ones_are_kept(file):
    ranks = Ranks(1)
    for _ in range(3 * RING):
        call(ranks[0], "barrier")
    ranks[0].record("why")
    numbers = [int(line.split()[0]) for line in parts_of(file)[0][2:]]
    assert numbers == list(range(2 * RING + 1, 3 * RING + 1))


def test_a_sum_is_done_when_its_request_is(file):
    ranks = Ranks(1)
    text, operation = call(ranks[0], "iallreduce", X), Operation(2)
    request = fingerprints.Request(operation, ranks[0], text, ranks[0].reopen())
    ranks.clock.now += 2.0
    assert not request.Test()
    assert ranks[0].row.times_of(1) == (1000.0, 0)
    assert request.Test() and request.Test()
    assert ranks[0].row.times_of(1) == (1000.0, 1002.0)


def test_times_of_another_host():
    (there,), (here,) = make_rows(1), make_rows(1)
    there.n, there.begun[3], there.done[3], there.tags[3] = 3, 5.0, 7.0, 3 << 32
    Exchange._take(None, here, bytes(there), 100.0)
    assert len(bytes(there)) == ROW
    assert here.times_of(3) == (105.0, 107.0)


PROGRAM = """
import sys, numpy as np, mpchain
comm = mpchain.create_communicator()
comm.record_failures(sys.argv[1])
for step in range(70):
    comm.iallreduce(np.ones(3)).Wait()
if comm.rank == 1:
    if sys.argv[2] == "raises":
        raise KeyError("planted")
    comm.bcast(np.ones(4))
comm.allgather_obj(0)
"""


@pytest.mark.parametrize("fault", ["raises", pytest.param("mismatch", marks=pytest.mark.long)])
def test_a_program_that_fails(fault, needs_mpirun, tmp_path):
    status, outputs, _ = under_mpirun.run(2, ["-c", PROGRAM, str(tmp_path), fault], timeout=60)
    assert status not in (0, None)
    assert any(str(tmp_path / reports.FILE) in text for text in outputs), outputs
    zero, one = parts_of(tmp_path / reports.FILE)
    last = {"raises": "iallreduce of (3,) float64", "mismatch": "bcast of (4,) float64"}[fault]
    assert last in one[-1]
    assert len(zero) == len(one) == RING + 2
