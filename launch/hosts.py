"""The hosts of a job, from options or from the allocation of a batch system."""

import argparse
import os

from . import allocations
from .talk import Parser, seconds


def add_hosts(parser: Parser) -> None:
    """Adds the options that `find_hosts` reads.

    Example:
        >>> parser = Parser()
        >>> add_hosts(parser)
        >>> parser.parse_args(["--hosts", "a:2,b"]).hosts
        'a:2,b'
    """
    group = parser.add_argument_group(
        "hosts",
        "Without these: the hosts that a batch system allocated, or only this host.",
    )
    either = group.add_mutually_exclusive_group()
    either.add_argument("--hosts", metavar="A:2,B:2", help="hosts with their numbers of ranks")
    either.add_argument("--hostfile", metavar="FILE", help="a file with one host per line")
    group.add_argument(
        "--oversubscribe", action="store_true", help="allow more ranks than the hosts have slots"
    )
    group.add_argument(
        "--host-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="take a host for lost after this time without a heartbeat (default: 10)",
    )


def find_hosts(
    parser: Parser, options: argparse.Namespace
) -> tuple[allocations.Allocation, dict[str, int]]:
    """Returns the allocation, and the slots of each host; an empty dict means only this host.

    Args:
        parser: The parser that reports errors.
        options: The options that `add_hosts` added.

    Example:
        >>> options = argparse.Namespace(hosts="a:2,b", hostfile=None)
        >>> find_hosts(Parser(), options)[1]
        {'a': 2, 'b': 1}
    """
    allocation = allocations.detect(os.environ)
    try:
        if options.hosts:
            return allocation, allocations.read_hosts(options.hosts)
        if options.hostfile:
            return allocation, allocations.read_host_file(options.hostfile)
        return allocation, allocation.slots(os.environ)
    except OSError as error:
        parser.error(f"cannot read the list of hosts {error.filename!r}: {error.strerror}")
    except ValueError as error:
        parser.error(f"hosts are written as a:2,b:2, or as 'a slots=2' in a file, not {error}")
