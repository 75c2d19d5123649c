"""The messages between a rank's supervisor and the launcher, over a socket.

A message is a kind (one byte), a length (four bytes) and a payload of that length. Several values
are sent as words, because importing json would double the time of a rank's start.
"""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable

from .loop import Loop, Writer

# The supervisor sends these messages: HELLO has the job's token, the rank, the name of its host,
# the process ID of the supervisor, and a text about the binding. OUTPUT and ERRORS have bytes that
# the program wrote to standard output or error.
HELLO = b"H"
OUTPUT = b"O"
ERRORS = b"E"
# TOLD says that mpirun has ended the guard. PHASE has the latest startup phase that the program has
# begun. DONE says that the program is over and did not fail; only MPI_Finalize is left.
TOLD = b"T"
PHASE = b"F"
DONE = b"D"
# END has the exit code (-n for signal n), 1 if the supervisor had sent a signal, and the number of
# processes that its host's kernel has meanwhile ended because memory ran out (-1 if unknown).
END = b"X"
# The program wrote the bytes of these messages: STACKS about its position in the code, REPORT for
# the page, and NOTE about lost ranks.
STACKS = b"K"
REPORT = b"R"
NOTE = b"N"
# The launcher sends these messages: LOST has a lost rank, whose loss mpirun may not notice. PASS
# has a signal that is passed on to the program. STOP has a signal for the program, the seconds
# until SIGKILL, and 1 to request stacks.
LOST = b"L"
PASS = b"P"
STOP = b"S"
# Both sides send BEAT. The launcher sends 1 to request the state of the program; the supervisor
# sends the program's state, CPU seconds, bytes read and written, and number of wake-ups.
BEAT = b"B"

# These are the longest payloads, in bytes: of any message, and of the first message of a client
# that has not identified itself.
LONGEST, LONGEST_HELLO = 1 << 24, 1 << 10

HEADER = struct.Struct("!cI")
THIS_HOST = "127.0.0.1"  # the launcher's address if all ranks are on this host


def words(*values: object) -> bytes:
    """Returns values as the payload of a message.

    Example:
        >>> words("a", 1, 2.5)
        b'a 1 2.5'
    """
    return " ".join(map(str, values)).encode()


def message(kind: bytes, payload: bytes = b"") -> bytes:
    """Returns a message that is ready to be sent.

    Example:
        >>> message(OUTPUT, b"hello")
        b'O\\x00\\x00\\x00\\x05hello'
    """
    return HEADER.pack(kind, len(payload)) + payload


def watch_over(connection: socket.socket, seconds: float) -> None:
    """Makes the kernel close a connection whose other side has been silent for ``seconds``.

    A host that loses power or network cannot close its connections. The kernel of a live host
    answers even if its program is busy. Connections within one host must not use this function,
    because they may be silent for any time while the user pauses the terminal.

    Example:
        >>> with socket.socket() as connection:
        ...     watch_over(connection, seconds=10)
        ...     connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        1
    """
    third = max(1, round(seconds / 3))
    wanted = {"TCP_KEEPIDLE": third, "TCP_KEEPINTVL": third, "TCP_KEEPCNT": 2}
    wanted["TCP_USER_TIMEOUT"] = round(seconds * 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in wanted.items():
        if hasattr(socket, name):  # some systems lack some of these options
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Channel:
    """A connection that carries messages both ways without ever blocking.

    Args:
        loop: The `Loop` that calls the channel.
        connection: A connected socket.
        on_message: Function that is called with the kind and the payload of each message that
            arrives.
        on_close: Function that is called once when the other side is gone, with the OSError, or
            with None if the other side closed the connection.
        on_full: Function that is called when `full` changes.

    Attributes:
        longest: The longest payload of a message; a longer payload ends the connection.
        open: Whether neither side has closed the connection.

    Example:
        >>> from .loop import Loop
        >>> loop, ends, got = Loop(), socket.socketpair(), []
        >>> a, b = (Channel(loop, end, lambda *message: got.append(message), print) for end in ends)
        >>> a.send(OUTPUT, b"hello")
        >>> loop.run(until=lambda: got)
        >>> got, a.close(), b.close(), loop.close()
        ([(b'O', b'hello')], None, None, None)
    """

    longest = LONGEST

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        on_message: Callable[[bytes, bytes], object],
        on_close: Callable[[OSError | None], object],
        on_full: Callable[[], object] = lambda: None,
    ):
        connection.setblocking(False)
        self._loop, self._connection = loop, connection
        self._on_message, self._on_close = on_message, on_close
        self._incoming = bytearray()
        self._writer = Writer(loop, connection, connection.send, on_full, self._lose)
        self.open = True
        self.resume()

    @property
    def full(self) -> bool:
        """Whether the buffer is so full that the source should pause."""
        return self._writer.full

    @property
    def sent(self) -> bool:
        """Whether no message waits to be sent."""
        return not len(self._writer)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Sends a message; does nothing when the connection is closed."""
        self._writer.put(message(kind, payload))

    def pause(self) -> None:
        """Stops receiving messages until `resume`."""
        self._loop.on_readable(self._connection, None)

    def resume(self) -> None:
        """Receives messages again."""
        if self.open:
            self._loop.on_readable(self._connection, self._receive)

    def say_goodbye(self) -> None:
        """Closes this side after the last message; the other side then closes its own side.

        Later messages are not sent, but arriving messages are still received.

        Closing both directions at once while unread messages remain here would drop messages that
        the other side has not read yet.
        """
        if self.open:
            self._writer.close()
            with contextlib.suppress(OSError):  # the other side has closed the connection
                self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection without calling `on_close`."""
        if self.open:
            self.open = False
            self._writer.close()
            self.pause()
            self._connection.close()

    def _lose(self, error=None):
        self.close()
        self._on_close(error)

    def _receive(self):
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose()
            return
        self._incoming += data
        while self.open and len(self._incoming) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._incoming)
            if length > self.longest:
                self._lose(OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE)))
                return
            end = HEADER.size + length
            if len(self._incoming) < end:
                return
            payload = bytes(self._incoming[HEADER.size : end])
            del self._incoming[:end]
            self._on_message(kind, payload)
