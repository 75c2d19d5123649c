"""Names of hosts: which names mean this host, and at which addresses other hosts reach it."""

import contextlib
import socket
from collections.abc import Iterable


def is_local(host: str) -> bool:
    """Returns whether a name means this host.

    Example:
        >>> is_local("localhost"), is_local(socket.gethostname())
        (True, True)
    """
    here = socket.gethostname()
    if host in ("localhost", here, here.partition(".")[0]):
        return True
    return any(_is_ours(family, address[0]) for family, address in _addresses(host))


def own_addresses(hosts: Iterable[str]) -> list[str]:
    """Returns this host's addresses as seen from other hosts, the most likely first.

    Example:
        >>> "127.0.0.1" in own_addresses(["127.0.0.1"])
        True
    """
    found = []
    for host in hosts:
        for family, address in _addresses(host):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address[0], 9))  # this sends nothing, but selects a route
                found.append(probe.getsockname()[0])
    # Only ssh can resolve some names. Their hosts may be able to resolve this host's name, so the
    # name counts as an address, too.
    return list(dict.fromkeys([*found, socket.gethostname()]))


def _addresses(host):
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in answers]


def _is_ours(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
        return True
    except OSError:
        return False
