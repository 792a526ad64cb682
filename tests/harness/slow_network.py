"""A network that brings one message of the server at a time: a change and its commit come in two reads, as they
may from any server, whenever the client is quicker than the walsender."""

import socket
from weakref import WeakKeyDictionary

import pytest

from waltap.errors import ConnectionLost
from waltap_postgres.replication.transport import SocketTransport

HEAD = 5
"""A message begins with its type and its length, which counts itself."""


def one_message_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Have replication streams that are opened from now on read one message of what has arrived."""

    def take(transport: SocketTransport) -> bytes | None:
        link = transport._socket
        try:
            head = link.recv(HEAD, socket.MSG_PEEK)
            if not head:
                raise ConnectionLost("the server closed the connection")
            whole = 1 + int.from_bytes(head[1:], "big") if len(head) == HEAD else len(head)
            left = left_of.get(transport, 0) or whole
            data = link.recv(left)
        except BlockingIOError:
            return None
        left_of[transport] = left - len(data)
        return data

    left_of = WeakKeyDictionary[SocketTransport, int]()
    patch.setattr(SocketTransport, "_take", take)
    patch.setattr(SocketTransport, "_gather", lambda _transport: None)
