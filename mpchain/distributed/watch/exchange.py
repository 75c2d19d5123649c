"""Sends rows between hosts when a rank has been waiting for a long time.

One rank of each host sends the rows of its host to a rank of each other host, in MPI messages from
the watchdog thread. While no rank waits, no message is sent.
"""

import ctypes
import struct
import zlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mpchain.distributed.watch.table import ROW, Row

_HEAD = struct.Struct("dq")
_TAG = 0
_REMEMBERED = 3.0  # seconds during which rows are sent to a host after it has asked for them


class Exchange:
    """The exchange of rows between this host and the other hosts.

    Args:
        mpi: the module ``mpi4py.MPI``.
        comm: ``mpi4py.MPI.Comm`` of all ranks; no other code uses it.
        rows: the rows of all ranks.
        leaders: for each rank, the rank that sends the rows of its host.
    """

    def __init__(self, mpi: ModuleType, comm: Any, rows: list[Row], leaders: Sequence[int]):
        self._mpi, self._comm, self._rows = mpi, comm, rows
        self._ranks = {leader: [] for leader in sorted(set(leaders))}
        for rank, leader in enumerate(leaders):
            self._ranks[leader].append(rank)
        self._ranks.pop(comm.rank)
        self._sends = {}
        self._asked_at = dict.fromkeys(self._ranks, float("-inf"))

    def exchange(self, now: float, local: Sequence[int], is_wanted: bool) -> None:
        """Receives rows, and sends this host's rows.

        If a rank on this host waits, the rows go to all other hosts, and ask for the rows of those
        hosts. Otherwise they go only to hosts that have asked recently.

        Args:
            now: monotonic time in seconds.
            local: the ranks of this host.
            is_wanted: whether a rank on this host waits for others, and needs their rows.
        """
        self._receive(now, local)
        content = None
        for leader in self._ranks:
            before = self._sends.get(leader)
            if not is_wanted and now - self._asked_at[leader] > _REMEMBERED:
                continue
            if before is not None and not before[0].Test():
                continue
            if content is None:
                rows = b"".join(bytes(self._rows[r]) for r in local)
                content = _HEAD.pack(now, is_wanted) + zlib.compress(rows, 1)
            request = self._comm.Isend(content, leader, _TAG)
            self._sends[leader] = request, content

    def _receive(self, now, local):
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            content = bytearray(status.Get_count(self._mpi.BYTE))
            leader = status.Get_source()
            self._comm.Recv(content, leader, _TAG)
            sent, is_wanted = _HEAD.unpack_from(content)
            rows = zlib.decompress(content[_HEAD.size :])
            if is_wanted:
                self._asked_at[leader] = now
            for i, rank in enumerate(self._ranks[leader]):
                self._take(self._rows[rank], rows[i * ROW : (i + 1) * ROW], now - sent)
            if any(self._rows[r].is_reporting for r in self._ranks[leader]):
                # A rank asks all hosts at once, so each of its rows holds the number of its
                # questions.
                asked = max(self._rows[r].asked for r in self._ranks[leader])
                for rank in local:
                    self._rows[rank].asked = max(self._rows[rank].asked, asked)

    def _take(self, row, content, offset):
        asked = row.asked
        ctypes.memmove(ctypes.byref(row), content, ROW)
        row.asked = max(asked, row.asked)
        row.offset = offset
        row.since += offset
        row.heartbeat += offset
        row.active += offset
