"""Where the control socket of a pipeline is, and how to name it to the kernel."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LONGEST", "address"]

LONGEST = 100
"""Bytes that the path of a socket may have: 108 on Linux, 104 elsewhere."""

DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def address(path: Path) -> Iterator[str]:
    """Give a name for ``path`` that the kernel takes while the block lasts: a long one is reached through
    its folder's descriptor, where the system has such names. Raises: OSError."""
    if len(os.fsencode(path)) <= LONGEST or not DESCRIPTORS.is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{DESCRIPTORS}/{folder}/{path.name}"
    finally:
        os.close(folder)


def unix_socket() -> socket.socket:
    """Return a new stream socket of this machine."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
