"""Messages that are sent without waiting for the receiver, which finds them by keys in any order.

Neighbors that exchange values therefore cannot deadlock, in any order of their calls.
"""

import collections
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends.dtypes import as_dtype
from mpchain.distributed.communicators import progress
from mpchain.distributed.communicators.arrays import byte_pieces, describe, make_room
from mpchain.typing import Array

_TAG = 32_100
"""The tag of all messages of mailboxes; no other message of the communicator has it."""

_LARGE = 2**20
"""Bytes above which an array is sent in separate messages after its header."""


class _Mail:
    """The pending messages of one rank.

    Args:
        comm: ``mpi4py.MPI.Comm`` that carries the messages.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.sent = []  # pending requests, with the memory that they read
        # The keys of this dict are pairs of a source and a message's key.
        self.arrived = collections.defaultdict(collections.deque)
        self.ranks = set()  # ranks with which messages were exchanged
        # This dict maps a source to the message that is being received from it: the key in
        # ``arrived``, the content, and the requests.
        self.moving = {}


class Mailbox:
    """The part of an MPI communicator that carries the arrays of :meth:`Communicator.sendrecv`."""

    _mpi: Any
    _messages: Any
    watch: Any
    _host_copy: Any
    owned: Any
    _current_mail: _Mail | None = None

    def _mail(self):
        mail = self._current_mail
        # After a loss of ranks, the communicator has new MPI communicators.
        if mail is None or mail.comm is not self._messages:
            mail = self._current_mail = _Mail(self._messages)
        mail.sent = [(r, x) for r, x in mail.sent if not self._mpi.Request.Testall(r)]
        return mail

    def _post(self, x: Array, dest: int, key: tuple, again: bool) -> None:
        """Sends a copy of an array without waiting."""
        data = np.array(self._host_copy(x), order="C")
        mail, is_large = self._mail(), data.nbytes > _LARGE
        mail.ranks.add(dest)
        head = key, again, describe(x), None if is_large else data.tobytes()
        requests = [mail.comm.isend(head, dest, _TAG)]
        if is_large:
            requests += [mail.comm.Isend(piece, dest, _TAG) for piece in byte_pieces(data)]
        mail.sent.append((requests, data))

    def _take(self, source: int, key: tuple) -> tuple[Array, bool]:
        """Waits for the message with a key; returns its array, and its flag ``again``."""
        mail, wanted = self._mail(), (source, key)
        mail.ranks.add(source)

        def has_arrived():
            while not mail.arrived.get(wanted):
                if not self._fetch(mail, source):
                    return False
            return True

        progress.wait_until(has_arrived)
        data, description, again = mail.arrived[wanted].popleft()
        if not mail.arrived[wanted]:
            del mail.arrived[wanted]
        if description[2]:
            room = make_room(description)
            backend.copyto(room, data)
            data = room
        return data, again

    def unclaimed(self) -> list[tuple[int, tuple]]:
        if not self.owned or self._mpi.Is_finalized():  # no more messages can arrive
            return []
        mail = self._mail()
        for source in mail.ranks:
            while self._fetch(mail, source):
                pass
        return list(mail.arrived)

    def _fetch(self, mail, source):
        """Checks for messages of a rank; returns whether there was one."""
        if source in mail.moving:
            place, content, requests = mail.moving[source]
            if not self._mpi.Request.Testall(requests):
                return False
            mail.arrived[place].append(content)
            del mail.moving[source]
            return True
        message = mail.comm.improbe(source, _TAG)
        if message is not None:
            self._open(mail, message, source)
        return message is not None

    def _open(self, mail, message, source):
        """Reads a message, or the header of messages that carry a large array."""
        key, again, description, content = message.recv()
        shape, dtype, _ = description
        data = np.empty(shape, as_dtype(dtype))
        place, arrived = (source, key), (data, description, again)
        if content is not None:
            data.reshape(-1).view(np.uint8)[...] = np.frombuffer(content, np.uint8)
            mail.arrived[place].append(arrived)
            return
        requests = [mail.comm.Irecv(piece, source, _TAG) for piece in byte_pieces(data)]
        mail.moving[source] = place, arrived, requests
        if self.watch is not None:
            self.watch.row.waits_for = 0  # the rank need not wait for the rest
