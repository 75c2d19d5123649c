import os
import signal
import socket
import types

import pytest

from launch.loop import Loop, Writer
from launch.messages import HEADER, Channel, message, watch_over, words


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for each in pair:
        each.close()


def test_messages_in_pieces(loop, sockets):
    there, here = sockets
    got = []
    Channel(loop, here, lambda *each: got.append(each), got.append)
    data = message(b"O", b"hello") + message(b"X") + message(b"E", bytes(100000))
    for i in range(0, len(data), 1000):
        there.sendall(data[i : i + 1000])
        loop.run(until=iter([False, True]).__next__)
    there.close()
    loop.run(until=lambda: got and got[-1] is None)
    assert got == [(b"O", b"hello"), (b"X", b""), (b"E", bytes(100000)), None]


def test_sender_learns_when_to_pause(loop, sockets):
    there, here = sockets
    full, got = [], []
    sender = Channel(loop, here, None, None, on_full=lambda: full.append(sender.full))
    receiver = Channel(loop, there, lambda kind, payload: got.append(len(payload)), None)
    receiver.pause()
    sender.send(b"O", bytes(3 * Writer.LIMIT))
    assert full == [True]
    receiver.resume()
    loop.run(until=lambda: sender.sent and got)
    assert full == [True, False]
    assert got == [3 * Writer.LIMIT]


def test_lost_connection_is_told_once(loop, sockets):
    there, here = sockets
    lost = []
    channel = Channel(loop, here, None, lambda error: lost.append(1))
    there.close()
    channel.send(b"O", b"x")
    loop.run(until=lambda: lost)
    channel.send(b"O", b"y")
    assert (lost, channel.open, channel.sent) == ([1], False, True)


def test_message_that_is_too_long_ends_the_connection(loop, sockets):
    there, here = sockets
    got, lost = [], []
    channel = Channel(loop, here, lambda *each: got.append(each), lost.append)
    channel.longest = 8
    there.sendall(message(b"H", bytes(8)) + HEADER.pack(b"H", 9))
    loop.run(until=lambda: lost)
    assert (got, channel.open) == ([(b"H", bytes(8))], False)
    assert isinstance(lost[0], OSError)


def test_words():
    assert words("127.0.0.1", 80, 0.5) == b"127.0.0.1 80 0.5"


def test_alarms_in_order(loop):
    calls = []
    loop.after(0.002, lambda: calls.append("second"))
    loop.after(0.001, lambda: calls.append("first"))
    loop.run(until=lambda: len(calls) == 2)
    assert calls == ["first", "second"]


@pytest.fixture
def set_waits(clock, loop, monkeypatch):
    """Returns a function that sets the duration of each wait of the loop."""

    def set_waits(*seconds):
        waits = iter(seconds)
        poll = types.SimpleNamespace(poll=lambda limit: clock.sleep(next(waits)) or [])
        monkeypatch.setattr(loop, "_poll", poll)

    return set_waits


def test_time_in_which_the_process_was_stopped_does_not_count(clock, loop, set_waits):
    set_waits(2, 3600, 2, 2.5)
    begin, calls = loop.time, []
    for seconds in (2, 4, 8):
        loop.after(seconds, lambda: calls.append(loop.time - begin))
    loop.run(until=lambda: len(calls) == 3)
    assert calls == [2, 4, 8.5]
    assert clock.now > 3600


def test_time_does_not_count_if_the_process_was_stopped_in_an_action(clock, loop, set_waits):
    set_waits(2, 0, 2)
    begin, calls = loop.time, []

    def be_stopped():
        clock.now += 3600

    for seconds, action in ((2, be_stopped), (2, list), (4, list)):
        loop.after(seconds, lambda action=action: calls.append((loop.time - begin, action())))
    loop.run(until=lambda: len(calls) == 3)
    assert [seconds for seconds, _ in calls] == [2, 2, 4]


def test_signal(loop):
    calls = []
    loop.on_signal(signal.SIGUSR1, calls.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run(until=lambda: calls)
    assert calls == [signal.SIGUSR1]


def test_signals_go_back_to_those_who_had_them():
    handler, wakeup = signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    loop = Loop()
    loop.on_signal(signal.SIGUSR1, print)
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert signal.set_wakeup_fd(wakeup) == wakeup


def test_silent_side_is_given_up():
    listener = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(listener.getsockname())
    watch_over(connection, 9)
    options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    numbers = [getattr(socket, name) for name in options if hasattr(socket, name)]
    values = [connection.getsockopt(socket.IPPROTO_TCP, number) for number in numbers]
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert values == [3, 3, 2, 9000][: len(values)]
    connection.close()
    listener.close()


def test_writer_tells_of_an_error(loop):
    """The source that waited for the writer continues after the error."""
    reader, writer = os.pipe()
    os.close(reader)
    errors, full = [], []
    out = Writer(
        loop,
        writer,
        lambda data: os.write(writer, data),
        on_full=lambda: full.append(out.full),
        on_error=errors.append,
    )
    out.put(bytes(2 * Writer.LIMIT))
    loop.run(until=lambda: errors)
    os.close(writer)
    assert isinstance(errors[0], BrokenPipeError)
    assert full == [True, False]
    assert not len(out)
