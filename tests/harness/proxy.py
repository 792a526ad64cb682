"""A TCP proxy that can turn into a black hole: connections stay open, and pass nothing."""

import contextlib
import selectors
import socket
import threading
from typing import Self

STEP = 1 << 16


class Proxy:
    """Forwards to a server on this machine. `swallow` makes what is open a black hole; connections that
    are made later pass, unless ``all_of_them``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}
        self._swallowed: set[socket.socket] = set()
        self._endless: set[socket.socket] = set()
        self._deaf = self._ended = False
        self.accepted = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def swallow(self, *, only: int | None = None, all_of_them: bool = False) -> None:
        """``only``: the connection that the server sees come from this port, whose end is not passed
        on either."""
        for end, other in list(self._other.items()):
            if only is None or end.getsockname()[1] == only:
                self._swallowed |= {end, other}
                self._endless |= {end, other} if only else set()
        self._deaf = all_of_them

    def pass_again(self) -> None:
        """Let connections that are made from now on pass."""
        self._deaf = False

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._server:
                    self._accept()
                else:
                    self._forward(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._server.accept()
        self.accepted += 1
        server = socket.create_connection(self._target)
        self._other |= {client: server, server: client}
        if self._deaf:
            self._swallowed |= {client, server}
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        if source not in self._other:
            return
        try:
            data = source.recv(STEP)
            if data and source not in self._swallowed:
                self._other[source].sendall(data)
        except OSError:
            data = b""
        if not data and source in self._endless:
            self._selector.unregister(source)
        elif not data:
            self._close(source)

    def _close(self, end: socket.socket) -> None:
        other = self._other.pop(end)
        del self._other[other]
        for each in (end, other):
            if each in self._selector.get_map():
                self._selector.unregister(each)
            each.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ended = True
        self._thread.join(10)
        for end in [self._server, *self._other]:
            with contextlib.suppress(OSError):
                end.close()
        self._selector.close()
