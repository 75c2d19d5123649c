"""Other hosts: which of them are this one, and by which address they reach us."""

import contextlib
import socket


def is_local(host: str) -> bool:
    """Whether this name means the host that we are on."""
    here = socket.gethostname()
    if host in ("localhost", here, here.partition(".")[0]):
        return True
    return any(_is_ours(family, address[0]) for family, address in _addresses(host))


def own_addresses(hosts) -> list[str]:
    """Our addresses as those hosts see us, the most likely first."""
    found = []
    for host in hosts:
        for family, address in _addresses(host):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address[0], 9))  # sends nothing, but chooses a route
                found.append(probe.getsockname()[0])
    # Names that only ssh knows have no address for us: then they may know our name.
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
