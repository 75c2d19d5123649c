"""How the launcher talks with its user: its lines, its complaints, the types of its options."""

import argparse
import contextlib
import math
import os
import re
import sys

WRONG_USE = 2


def say(text: str):
    """Prints one line of the launcher's own on standard error."""
    with contextlib.suppress(OSError, AttributeError):  # standard error may be closed
        print(f"mpchain-launch: {text}", file=sys.stderr, flush=True)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog):
        width = 100
        with contextlib.suppress(OSError):
            width = min(width, os.get_terminal_size().columns - 2)
        # Without a width argparse imports shutil, which takes as long as all else that it does.
        super().__init__(prog, width=width)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints take one line."""

    def __init__(self, **options):
        super().__init__(formatter_class=_Formatter, **options)

    def error(self, message):
        say(f"{message} (mpchain-launch --help explains the options)")
        raise SystemExit(WRONG_USE)


def whole_number(least: int):
    """The type of an argument that is a whole number of at least so much."""

    def number(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not {text!r}"
            )
        return int(text)

    return number


def seconds(text: str) -> float:
    """The type of an argument that is a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text!r}")
    return number


def clock_time(text: str) -> int:
    """The type of an argument that is a time as hours:minutes:seconds; returns seconds."""
    if not re.fullmatch(r"\d+:[0-5]\d:[0-5]\d", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be hours:minutes:seconds, not {text!r}")
    hours, minutes, seconds = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + seconds
