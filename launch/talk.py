"""Messages to the user, errors about the command line, and types of options."""

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable

WRONG_USE = 2


def say(text: str) -> None:
    """Prints a message of the launcher on standard error, and replaces a progress bar there.

    Example:
        >>> say("the job exceeded --timeout")  # prints on standard error
    """
    with contextlib.suppress(OSError, AttributeError):  # standard error may be closed
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        start = "\r\x1b[K" if is_terminal else ""
        print(f"{start}mpchain-launch: {text}", file=sys.stderr, flush=True)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog):
        width = 100
        with contextlib.suppress(OSError):
            width = min(width, os.get_terminal_size().columns - 2)
        # Without a width, argparse would import shutil, which takes as long as everything else that
        # it does.
        super().__init__(prog, width=width)


class Parser(argparse.ArgumentParser):
    """A parser that prints each error in one line.

    Example:
        >>> parser = Parser(prog="mpchain-launch")
        >>> parser.error("no script given")
        Traceback (most recent call last):
        SystemExit: 2
    """

    def _get_formatter(self):
        return _Formatter(self.prog)

    def error(self, message: str):
        say(f"{message} (mpchain-launch --help explains the options)")
        raise SystemExit(WRONG_USE)


def whole_number(least: int) -> Callable[[str], int]:
    """Returns the type of an option that is a whole number of at least ``least``.

    Example:
        >>> whole_number(1)("12")
        12
    """

    def number(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not {text!r}"
            )
        return int(text)

    return number


def seconds(text: str) -> float:
    """Converts the text of an option to a positive number of seconds.

    Example:
        >>> seconds("2.5")
        2.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text!r}")
    return number


def clock_time(text: str) -> int:
    """Converts the text of an option, hours:minutes:seconds, to seconds.

    Example:
        >>> clock_time("1:30:00")
        5400
    """
    if not re.fullmatch(r"\d+:[0-5]\d:[0-5]\d", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be hours:minutes:seconds, not {text!r}")
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds
