"""Messages between two ranks."""

from collections.abc import Sequence
from typing import Any

from mpchain.distributed.communicators import arrays
from mpchain.distributed.watch import CollectiveMismatchError
from mpchain.typing import Array


class PointToPoint:
    """The part of a communicator that sends and receives messages, for a single process.

    Attributes:
        rank, size: this rank, and the number of ranks.
    """

    rank: int
    size: int
    _to_myself: Any  # messages of this rank to itself that it has not received yet
    n_crossing: Any  # the numbers of messages to and from each rank, by tag

    def send(
        self,
        data: Array | Sequence[Array],
        dest: int,
        tag: int = 0,
        *,
        identity: str | None = None,
        confirm: bool = True,
    ) -> None:
        """Sends an array, or a tuple of arrays, and waits until the receiver has arrived.

        A message from a rank to itself is kept until it is received.

        Args:
            data: array or tuple of arrays.
            dest: the receiver's rank.
            tag: the message's tag.
            identity: description of the message; the receiver must expect the same one.
            confirm: whether to wait until the receiver has confirmed the identity.

        Raises:
            CollectiveMismatchError: the receiver expects another message. Both ranks raise the
                error, but only the receiver does without ``confirm`` or without an identity.

        >>> comm.send(np.ones(2), dest=0)
        >>> comm.recv(source=0)
        array([1., 1.])
        """
        self.check_rank("send", "dest", dest)
        is_tuple = isinstance(data, (tuple, list))
        xs = [arrays.check_array("send", "data", x) for x in (data if is_tuple else [data])]
        if dest == self.rank:
            copies = [x.copy() for x in xs]
            self._to_myself.append((tag, tuple(copies) if is_tuple else copies[0], identity))
            return
        is_answered = confirm and identity is not None
        header = is_tuple, [arrays.describe(x) for x in xs], identity, is_answered
        unlike = self._send_header(header, dest, tag)
        if unlike is not None:
            raise _unlike("send", (dest, *unlike), (self.rank, identity, self._place()))
        self._exchange([(dest, arrays.contiguous(x)) for x in xs], [])

    def recv(
        self, source: int, tag: int | None = 0, *, identity: str | tuple[str, ...] | None = None
    ) -> Array | tuple[Array, ...]:
        """Receives the data of :meth:`send`: an array or a tuple of arrays.

        Args:
            source: the sender's rank.
            tag: the message's tag; None accepts any tag.
            identity: description that the message must have, see :meth:`send`; or a tuple of
                allowed descriptions.

        Raises:
            CollectiveMismatchError: another message arrived; see :meth:`send`.
            RuntimeError: ``source`` is this rank, which has sent itself no such message.

        >>> comm.send((np.ones(1), np.zeros(1)), dest=0, tag=3)
        >>> comm.recv(source=0, tag=3)
        (array([1.]), array([0.]))
        """
        self.check_rank("recv", "source", source)
        expected = identity if isinstance(identity, tuple) else (identity,)
        if source == self.rank:
            data, sent = self._take_own_message("recv", tag)
            if sent not in expected:
                mine = self._place()
                raise _unlike("recv", (source, expected, mine), (source, sent, mine))
            return data
        (is_tuple, descriptions, sent, is_answered, place), source = self._recv_header(source, tag)
        is_expected = sent in expected
        if is_answered:
            self._answer(None if is_expected else (expected, self._place()), source)
        xs = []
        if is_expected or not is_answered:  # otherwise the sender sends no arrays
            xs = [arrays.make_room(description) for description in descriptions]
            self._exchange([], [(source, x) for x in xs])
        if not is_expected:
            raise _unlike("recv", (self.rank, expected, self._place()), (source, sent, place))
        return tuple(xs) if is_tuple else xs[0]

    def sendrecv(
        self,
        x: Array,
        dest: int | None,
        source: int | None,
        tag: int = 0,
        *,
        keys: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None,
        again: bool = False,
    ) -> Array | None:
        """Sends an array to one rank, and returns the array that another rank sends to this one.

        The call does not wait for the receiver, which must also call :meth:`sendrecv`. Therefore no
        order of calls causes a deadlock, if each message has a receiver.

        Args:
            x: array; shapes may differ between ranks.
            dest: the receiver's rank; None sends nothing.
            source: the sender's rank; None receives nothing.
            tag: the messages' tag. Messages with one tag between two ranks arrive in order.
            keys: key of the sent message, which the receiver must expect, and key of the received
                message; they replace keys that consist of the tag and the message's number.
            again: whether the result may be
                differentiated again; must be the same on both ranks.

        Returns:
            A new array; None if ``source`` is None.

        Raises:
            CollectiveMismatchError: ``again`` is true on this rank, but not at the source.
            RuntimeError: ``source`` is this rank, which has sent itself no message.

        >>> comm.sendrecv(np.ones(2), dest=0, source=0)
        array([1., 1.])
        """
        for argument, rank in (("dest", dest), ("source", source)):
            if rank is not None:
                self.check_rank("sendrecv", argument, rank)
        sent, received = keys or (self._key("to", dest, tag), self._key("from", source, tag))
        if dest is not None:
            x = arrays.check_array("sendrecv", "x", x)
            if dest == self.rank:
                self._to_myself.append((sent, x.copy(), again))
            else:
                self._post(x, dest, sent, again)
        if source is None:
            return None
        if source == self.rank:
            y, is_again = self._take_own_message("sendrecv", received)
        else:
            y, is_again = self._take(source, received)
        if again and not is_again:
            raise CollectiveMismatchError(
                f"sendrecv: rank {self.rank} uses enable_double_backprop=True for "
                f"what it receives from rank {source}, which does not, by "
                f"{self._place()}; use it on both ranks"
            )
        return y

    def _key(self, way, rank, tag):
        """Returns the key of the next message with a tag to or from a rank."""
        self.n_crossing[way, rank, tag] += rank is not None
        return tag, self.n_crossing[way, rank, tag]

    def _post(self, x, dest, key, again):
        """Sends an array and its key, and does not wait."""
        raise NotImplementedError("one process has no other rank to send to")

    def forget_messages(self) -> None:
        """Discards messages that were not received before ranks were lost."""
        self._to_myself.clear()
        self.n_crossing.clear()

    def unclaimed(self) -> list[tuple[int, tuple]]:
        """Returns the source and key of each message that has arrived but was not received."""
        return []

    def _take(self, source, key):
        """Waits for the message with a key; returns its array and its flag ``again``."""
        raise NotImplementedError("one process has no other rank to receive from")

    def _place(self):
        """Returns this rank's current call and the site of the call, for reports."""
        return "a call"

    def send_obj(self, obj: object, dest: int, tag: int = 0) -> None:
        """Sends any object that can be pickled.

        >>> comm.send_obj("hello", dest=0)
        >>> comm.recv_obj(source=0)
        'hello'
        """
        self.check_rank("send_obj", "dest", dest)
        self._to_myself.append((tag, obj, None))

    def recv_obj(self, source: int, status: object = None, tag: int | None = None) -> Any:
        """Receives an object; see :meth:`send_obj`.

        Args:
            source: the sender's rank; under MPI also ``MPI.ANY_SOURCE``.
            status: an ``mpi4py.MPI.Status``, which is filled with the sender and tag.
            tag: the message's tag; None or ``MPI.ANY_TAG`` accepts any tag.
        """
        self.check_rank("recv_obj", "source", source)
        return self._take_own_message("recv_obj", tag)[0]

    def _take_own_message(self, function, tag):
        for i, (sent_tag, message, identity) in enumerate(self._to_myself):
            takes_any = tag is None or (not isinstance(tag, tuple) and tag < 0)
            if tag == sent_tag or (takes_any and not isinstance(sent_tag, tuple)):
                del self._to_myself[i]
                return message, identity
        raise RuntimeError(
            f"{function}: rank {self.rank} waits for a message with tag {_tag_of(tag)} from "
            "itself, but has sent none, and would wait forever: send the message first"
        )

    def _send_header(self, header, dest, tag):
        """Sends ``(*header, place)``; the last element of ``header`` says whether to wait for the
        receiver's answer.

        Returns:
            None; or, if the receiver expects another message and answers, the identities that it
            expects and the site of its call.
        """
        raise NotImplementedError("one process has no other rank to send to")

    def _recv_header(self, source, tag):
        """Receives a header of :meth:`_send_header`; returns the tuple and the sender's rank."""
        raise NotImplementedError("one process has no other rank to receive from")

    def _answer(self, answer, rank):
        """Sends an answer to a header: None, or the identities that are expected and the receiver's
        site."""
        raise NotImplementedError("one process has no other rank to answer")

    def _exchange(self, outgoing, incoming):
        """Moves contiguous arrays; ``outgoing`` and ``incoming`` are pairs (other rank, array)."""

    def check_rank(self, function: str, argument: str, rank: int) -> None:
        """Raises ValueError, in the name of a function, unless its argument is a valid rank."""
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{function}: {argument} must be a rank from 0 to {self.size - 1}, not {rank}"
            )


def _tag_of(key):
    return key[0] if isinstance(key, tuple) else key


def _unlike(function, expected, sent):
    """Returns the error for a message that the receiver does not expect.

    Args:
        expected: rank, identities and site of the receiver.
        sent: rank, identity and site of the sender.
    """
    receiver, identities, where = expected
    sender, identity, whence = sent
    return CollectiveMismatchError(
        f"{function}: the receiver expects another message:\n"
        f"  rank {receiver} expects {identities[0] or 'any array'}, by {where}\n"
        f"  rank {sender} sends {identity or 'an unidentified array'}, by {whence}"
    )
