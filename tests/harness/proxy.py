"""A TCP proxy before a server, whose links can be cut, held, or turned into black holes."""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which closing a socket resets the connection."""


class Proxy:
    """Forwards to a server from ``port``. `cut` ends every link; `cut_after` does once so many more bytes came
    from the server; `hold` lets nothing through while TCP stays alive, until `release`. ``heard`` gets
    what clients send."""

    def __init__(
        self, host: str, port: int, heard: Callable[[bytes], object] = lambda _data: None
    ) -> None:
        self._target, self.heard = (host, port), heard
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self.open = threading.Event()
        self.open.set()
        self._left: int | None = None
        self._deaf = False
        self.accepted = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        for link in list(self._links):
            link.end()

    def cut_after(self, count: int) -> None:
        self._left = count

    @property
    def armed(self) -> bool:
        """Whether a cut is to come."""
        return self._left is not None

    def cuts(self, count: int) -> bool:
        """Count bytes from the server; True when the link is to be cut before they pass."""
        left = self._left
        if left is None:
            return False
        self._left = left - count if left >= count else None
        return left < count

    def hold(self) -> None:
        self.open.clear()

    def release(self) -> None:
        self.open.set()

    def swallow(
        self, *, only: int | None = None, endless: bool = False, all_of_them: bool = False
    ) -> None:
        """Make black holes of the links that there are: what comes goes nowhere. ``only``: of the one that the
        server sees come from this port; its end, as that of ``endless`` ones, is not passed on either.
        ``all_of_them``: and of later ones, until `pass_again`."""
        self._deaf = all_of_them  # first: a link that is made now is among those, or sees it
        for link in list(self._links):
            if only in (None, link.port):
                link.swallows, link.endless = True, endless or only is not None

    def pass_again(self) -> None:
        """Let connections that are made from now on pass."""
        self._deaf = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._listener.accept()
                self.accepted += 1
                try:
                    far = socket.create_connection(self._target, timeout=10)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                links = [link for link in self._links if not link.ended]
                link = _Link(self, near, far)
                # The link has to be listed before it passes anything: what it passes may cut it.
                self._links = [*links, link]
                if self._deaf:
                    link.swallows = True
                threading.Thread(target=link.forward, name="link", daemon=True).start()


class _Link:
    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._ends = proxy, (near, far)
        self.port: int = far.getsockname()[1]
        self.swallows = self.endless = self.ended = False

    def end(self) -> None:
        self.ended = True
        for side in self._ends:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def forward(self) -> None:
        near, far = self._ends
        other, heard_of = {near: far, far: near}, [near, far]
        with contextlib.suppress(OSError):
            while not self.ended:
                for side in select.select(heard_of, [], [], 0.5)[0]:
                    while not self._proxy.open.wait(0.2) and not self.ended:
                        pass
                    data = side.recv(65536)
                    if not data and self.endless:
                        heard_of.remove(side)
                    elif not data:
                        self.ended = True
                        break
                    elif self.swallows:
                        continue
                    elif side is far and self._proxy.cuts(len(data)):
                        far.shutdown(socket.SHUT_RDWR)
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        self.ended = True
                        break
                    else:
                        if side is near:
                            self._proxy.heard(data)
                        other[side].sendall(data)
        self.end()
        for side in self._ends:
            side.close()
