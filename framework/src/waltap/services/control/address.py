"""Address Unix sockets whose paths may be too long."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LONGEST", "address"]

# sockaddr_un holds 108 bytes on Linux and 104 elsewhere
LONGEST = 100

DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield a name of ``path`` that the kernel accepts.

    The name is valid while the block lasts. Raises: OSError.
    """
    if len(os.fsencode(path)) <= LONGEST or not DESCRIPTORS.is_dir():
        yield str(path)
        return
    # the descriptor's name is short however deep the state folder is
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{DESCRIPTORS}/{folder}/{path.name}"
    finally:
        os.close(folder)


def unix_socket() -> socket.socket:
    """Return a new Unix stream socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
