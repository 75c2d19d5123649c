import socket

from launch import reach


def test_names_of_this_host():
    for name in ("localhost", "127.0.0.1", socket.gethostname()):
        assert reach.is_local(name)


def test_names_of_other_hosts():
    # 192.0.2.0/24 is reserved for documentation, and .invalid never resolves.
    assert not reach.is_local("192.0.2.1")
    assert not reach.is_local("host.invalid")


def test_own_addresses():
    assert reach.own_addresses(["127.0.0.1", "127.0.0.2"]) == ["127.0.0.1", socket.gethostname()]


def test_host_that_only_ssh_knows():
    assert reach.own_addresses(["host.invalid"]) == [socket.gethostname()]
