"""Exchange of rows between hosts, when somebody has been waiting for long.

One rank of each host sends the rows of its host to those of the others, by MPI messages from the
watching thread. While nobody waits nothing is sent.
"""

import struct
import zlib

from mpchain.distributed.watch.table import ROW

_HEAD = struct.Struct("dq")
_TAG = 0
_REMEMBERED = 3.0  # seconds for which a host is sent rows after it has asked


class Exchange:
    """The exchange of one host with the others.

    Args:
        mpi (module): ``mpi4py.MPI``.
        comm (mpi4py.MPI.Comm): of all ranks; nothing else uses it.
        rows (list of Row): all ranks' rows.
        leaders (list of int): for each rank, the rank that sends the rows of its host.
    """

    def __init__(self, mpi, comm, rows, leaders):
        self._mpi, self._comm, self._rows = mpi, comm, rows
        self._ranks = {leader: [] for leader in sorted(set(leaders))}
        for rank, leader in enumerate(leaders):
            self._ranks[leader].append(rank)
        self._ranks.pop(comm.rank)
        self._sends = {}
        self._asked_at = dict.fromkeys(self._ranks, float("-inf"))

    def exchange(self, now, local, is_wanted):
        """Takes what has come, and sends this host's rows to those who want to know.

        Args:
            now (float): monotonic time.
            local (list of int): the ranks of this host.
            is_wanted (bool): whether somebody here waits, and wants to know about others.
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
                rows = b"".join(bytes(self._rows[r].memory) for r in local)
                # Questions go to all hosts alike: one number tells how many there were.
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
                asked = max(self._rows[r].asked for r in self._ranks[leader])
                for rank in local:
                    self._rows[rank].asked = max(self._rows[rank].asked, asked)

    def _take(self, row, content, offset):
        asked = row.asked
        row.memory[:] = content
        row.asked = max(asked, row.asked)
        row.since += offset
        row.heartbeat += offset
        row.active += offset
