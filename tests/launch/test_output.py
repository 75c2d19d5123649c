import os
import pty
import termios

import pytest

from launch.loop import Loop
from launch.output import LONGEST_LINE, Errors, Lines, Screen, columns_of

TEXT = b"first\n\xff\xfe\r\n\n  3%|##  |\r100%|####|\nlast"
SHOWN = b"[2] first\n[2] \xff\xfe\r\n[2] \n[2]   3%|##  |\r[2] 100%|####|\n[2] last\n"
LOG = b"Traceback (most recent call last):\n  x\nValueError: boom\n"


@pytest.mark.parametrize("size", range(1, len(TEXT) + 1))
def test_prefix_of_each_line_however_it_arrives(size):
    lines = Lines(b"[2] ")
    pieces = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
    assert b"".join(map(lines.take, pieces)) + lines.finish() == SHOWN


def test_line_is_shown_when_complete():
    lines = Lines(b"[0] ")
    assert lines.take(b"a\nb") == b"[0] a\n"
    assert lines.take(b"c\n") == b"[0] bc\n"
    assert lines.finish() == b""


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 17, LONGEST_LINE, LONGEST_LINE + 1, 5_000_000])
def test_prefix_of_a_long_line(size, end):
    lines = Lines(b"[1] ")
    text = b"x" * size + end + b"next\n" * bool(end)
    pieces = [text[i : i + 65536] for i in range(0, len(text), 65536)]
    shown = b"".join(map(lines.take, pieces)) + lines.finish()
    assert shown == b"[1] " + text.replace(b"next", b"[1] next") + b"\n" * (not end)


def test_endless_line_is_not_kept():
    lines = Lines(b"")
    assert lines.take(b"x" * (LONGEST_LINE + 1)) == b"x" * (LONGEST_LINE + 1)
    assert lines.take(b"y") == b""


def test_bytes_pass_without_prefix():
    lines = Lines(None)
    assert lines.take(b"50%\r") == b"50%\r"
    assert lines.finish() == b""


def test_traceback_is_kept_in_one_piece():
    holds = []
    errors = Errors(b"[1] ", lambda: holds.append(1))
    assert errors.take(b"warning\n" + LOG[:50]) == b"[1] warning\n"
    assert errors.take(LOG[50:] + b"more") == b""
    assert (
        errors.finish()
        == b"".join(b"[1] " + line for line in LOG.splitlines(keepends=True)) + b"[1] more\n"
    )
    assert holds == [1]
    assert errors.showed_cause


def test_traceback_that_was_only_logged_is_released():
    holds = []
    errors = Errors(b"", lambda: holds.append(1))
    errors.take(LOG)
    assert errors.release() == LOG
    assert errors.take(b"next\n") == b"next\n"
    errors.take(LOG)
    assert holds == [1, 1]


def test_complaints_of_mpich_about_its_mpirun_are_not_shown():
    errors = Errors(b"", lambda: None)
    abort = b"Abort(3) on node 1: application called MPI_Abort(MPI_COMM_WORLD, 3)\n"
    noise = b"[cli_1]: PMIU_write error; fd=9 buf=:cmd=abort exitcode=3\n:\n"
    assert errors.take(abort + noise) == abort
    assert errors.take(b"system msg for write_line failure : Broken pipe\n:\n") == b""
    assert errors.take(b"text\n:\n") == b"text\n:\n"
    assert errors.showed_cause


OF_OPEN_MPI = b"""\
[vm:00000] *** An error occurred in PMIx Event Notification
[vm:00000] *** reported by process [770441217,0]
[vm:00000] *** on a NULL communicator
[vm:00000] *** Unknown error (this should not happen!)
[vm:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[vm:00000] ***    and MPI will try to terminate your MPI job as well)
"""


def test_message_of_open_mpi_about_a_lost_rank_is_one_line():
    shown = b"[1] Open MPI ends this rank since another one is gone (--verbose shows its message)\n"
    for size in (1, 100, 1000):  # the output arrives in pieces
        errors = Errors(b"[1] ", lambda: None)
        text = b"before\n" + OF_OPEN_MPI + b"after\n"
        pieces = [errors.take(text[i : i + size]) for i in range(0, len(text), size)]
        assert b"".join(pieces) == b"[1] before\n" + shown + b"[1] after\n"
    errors = Errors(b"", lambda: None, is_verbose=True)
    assert errors.take(OF_OPEN_MPI) == OF_OPEN_MPI


RULE = b"-" * 74 + b"\n"
ABORT = b"MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"
BOX = RULE + ABORT + b"\n  Proc: [[54066,1],0]\n  Errorcode: 1\n\nNOTE: invoking it\n" + RULE


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_message_of_open_mpi_about_an_abort_is_one_line(size):
    errors = Errors(b"[1] ", lambda: None)
    text = b"before\n" + BOX + RULE + b"after\n" + RULE
    pieces = [errors.take(text[i : i + size]) for i in range(0, len(text), size)]
    lines = [b"before\n", ABORT + b" (--verbose shows all of this message)\n"]
    lines += [RULE, b"after\n", RULE]  # the program itself printed these lines
    assert b"".join(pieces) + errors.finish() == b"".join(b"[1] " + line for line in lines)
    errors = Errors(b"", lambda: None, is_verbose=True)
    assert errors.take(text) == text


def test_other_messages_of_open_mpi_are_shown():
    errors = Errors(b"", lambda: None)
    other = OF_OPEN_MPI.replace(b"PMIx Event Notification", b"MPI_Allreduce")
    assert errors.take(other) == other


def test_log_with_an_abort_hides_nothing():
    errors = Errors(b"[1] ", lambda: None)
    log = b"before: application called MPI_Abort(MPI_COMM_WORLD, 3)\nafter\n"
    assert errors.take(log) == log.replace(b"before", b"[1] before").replace(b"after", b"[1] after")
    assert errors.take(b"warning\n") == b"[1] warning\n"


def test_no_cause():
    errors = Errors(b"", lambda: None)
    assert errors.take(b"a warning\n") == b"a warning\n"
    assert not errors.showed_cause


FRAMES = (
    b"table\r\n\r 10% |#  |\r\r 20% |## |\r\r           \rrow 1\n\r100% |###|\r\nplain\n\r 5%\r"
)


@pytest.mark.parametrize("size", [1, 2, 7, len(FRAMES)])
def test_a_terminal_shows_the_last_state_of_a_line_that_is_redrawn(size):
    drawn = []
    lines = Lines(b"[2] ", drawn.append)
    pieces = [FRAMES[i : i + size] for i in range(0, len(FRAMES), size)]
    shown = b"".join(map(lines.take, pieces))
    assert shown == b"[2] table\n[2] row 1\n[2] 100% |###|\n[2] plain\n"
    assert drawn[-1] == b"[2]  5%"
    assert lines.finish() == b"[2]  5%\n"  # the program was killed
    assert drawn[-1] == b""
    assert lines.finish() == b""


def test_frames_are_drawn_as_they_come_and_removed_when_blank():
    drawn = []
    lines = Errors(b"", lambda: None, drawn.append)
    frames = [b"\r 10%", b"\r 20%\r", b"\r 20%\r", b"\r     \r", b"\r 30%", b"\r     \r"]
    assert [lines.take(frame) for frame in frames] == [b""] * 6
    assert drawn == [b" 10%", b" 20%", b"", b" 30%", b""]
    assert lines.finish() == b""


def test_text_without_carriage_return_is_not_drawn():
    drawn = []
    lines = Lines(b"[0] ", drawn.append)
    assert lines.take(b"Name? ") == b""
    assert lines.take(b"x" * (LONGEST_LINE + 1)).endswith(b"x\n")
    assert drawn == []


def show_on_terminal(columns, actions):
    """Returns the bytes that a screen writes to a terminal with a number of columns."""
    loop, (terminal, side) = Loop(), pty.openpty()
    termios.tcsetwinsize(side, (24, columns))
    before = os.dup(1)
    os.dup2(side, 1)
    try:
        screen = Screen(loop, side, lambda data: os.write(side, data), print, print)
        for action, data in actions:
            getattr(screen, action)(data)
        loop.run(until=lambda: not len(screen))
        return os.read(terminal, 4096).replace(b"\r\n", b"\n")
    finally:
        os.dup2(before, 1)
        for descriptor in (before, terminal, side):
            os.close(descriptor)
        loop.close()


def test_the_live_line_stays_below_other_output():
    actions = [("put", b"a\n"), ("draw", b"10%"), ("draw", b"10%"), ("put", b"b\n"), ("draw", b"")]
    erase = b"\r\x1b[K"
    expected = [b"a\n", erase + b"10%", erase + b"b\n10%", erase]
    assert show_on_terminal(80, [*actions, ("put", b"c\n")]) == b"".join(expected) + b"c\n"


def test_the_live_line_fits_the_terminal():
    shown = show_on_terminal(10, [("draw", "0123456█9012".encode())])
    assert shown.removeprefix(b"\r\x1b[K").decode() == "0123456█9"
    with open(os.devnull) as file:
        assert columns_of(file.fileno()) == 0
