import os
import threading

import pytest

from launch import lost_ranks


@pytest.fixture
def calls(monkeypatch):
    """Returns the calls of this process's PMIx library."""
    calls = []

    class Library:
        def PMIx_Initialized(self):
            return 1

        def PMIx_Notify_event(self, status, source, place, info, n, *callback):
            affected = lost_ranks._Process.from_address(info._obj.value.data[0])
            processes = [(each.namespace, each.rank) for each in (source._obj, affected)]
            calls.append((status, place.value, info._obj.key, n.value, processes, callback))

    monkeypatch.setattr(lost_ranks, "_library", Library)
    return calls


def test_rank_is_reported_by_the_pmix_of_mpi(calls):
    assert lost_ranks.report(5, {"PMIX_NAMESPACE": "job@1", "PMIX_RANK": "2"})
    processes = [(b"job@1", 2), (b"job@1", 5)]
    assert calls == [(-200, 7, b"pmix.evproc", 1, processes, (None, None))]


def test_lines_are_read_until_the_pipe_ends(calls, monkeypatch):
    for name, value in (("PMIX_NAMESPACE", "job@1"), ("PMIX_RANK", "2")):
        monkeypatch.setenv(name, value)
    reader, writer = os.pipe()
    os.write(writer, b"3\n12\n")
    os.close(writer)
    lost_ranks.listen(reader)
    for thread in threading.enumerate():
        if thread.name == "lost ranks":
            thread.join()
    assert [processes[1][1] for *_, processes, _ in calls] == [3, 12]


def test_rank_whose_mpi_is_not_ready_ends_so_that_the_job_is_restarted(run):
    code = """
import os, sys
from launch import lost_ranks
reader, writer = os.pipe()
os.write(writer, b"3\\n")
lost_ranks.listen(reader)
import threading
threading.Event().wait(60)
"""
    code, _, errors = run(command=("-c", code))
    assert (code, errors) == (75, "rank 3 was lost before MPI was ready in this process\n")
