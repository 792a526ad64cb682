"""Ports of the loopback for servers of tests: no two servers of this machine get the same one."""

import random
import socket
from pathlib import Path

# below the ports that a kernel gives to outgoing connections: a client must not take the port of a server
# that a test has killed and starts again
_clients = Path("/proc/sys/net/ipv4/ip_local_port_range")
_first = int(_clients.read_text().split()[0]) if _clients.exists() else 32_000
RANGE = range(10_000, min(32_000, max(12_000, _first)))

_choice = random.SystemRandom()  # a test, and hypothesis, may seed the other one
_held: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, all different; this process keeps them until it ends."""
    found: list[int] = []
    while len(found) < count:
        port = _choice.choice(RANGE)
        if _reserve(port):
            found.append(port)
    return found


def _reserve(port: int) -> bool:
    """Hold the UDP port of this number against every other process of tests, if its TCP port is free."""
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        held.close()
        return False
    _held.append(held)
    return True
