"""A TCP proxy between engine and server whose links can be cut, or pass nothing."""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which closing a socket resets the connection."""


class Proxy:
    """Forwards to ``target`` from ``port``. `cut` ends every link; `hold` lets nothing through while
    TCP stays alive, until `release`; `bury` does so for good for the links that there are;
    `cut_after` cuts once so many more bytes came from the server. ``heard`` gets what the engine
    sends."""

    def __init__(
        self, target: tuple[str, int], heard: Callable[[bytes], object] = lambda _data: None
    ) -> None:
        self._target, self._heard = target, heard
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: list[_Link] = []
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._left: int | None = None
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.end()

    def cut_after(self, count: int) -> None:
        self._left = count

    @property
    def armed(self) -> bool:
        """Whether a cut is to come."""
        return self._left is not None

    def _passed(self, count: int) -> bool:
        """Count bytes from the server; True when the link is to be cut before they pass."""
        left = self._left
        if left is None:
            return False
        self._left = left - count if left >= count else None
        return left < count

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def bury(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.gate = threading.Event()  # never set

    def close(self) -> None:
        self._listener.close()
        self.release()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._listener.accept()
                try:
                    far = socket.create_connection(self._target, timeout=10)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._links = [link for link in self._links if not link.ended]
                    self._links.append(_Link(near, far, self._open, self._passed, self._heard))


class _Link:
    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        gate: threading.Event,
        cuts: Callable[[int], bool],
        heard: Callable[[bytes], object],
    ) -> None:
        self._cuts, self._heard = cuts, heard
        self._ends = (near, far)
        self.gate = gate
        self.ended = False
        threading.Thread(target=self._forward, name="link", daemon=True).start()

    def end(self) -> None:
        self.ended = True
        for side in self._ends:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _forward(self) -> None:
        near, far = self._ends
        other = {near: far, far: near}
        with contextlib.suppress(OSError):
            while not self.ended:
                for side in select.select(self._ends, [], [], 0.5)[0]:
                    while not self.gate.wait(0.2):
                        if self.ended:
                            break
                    data = side.recv(65536)
                    if not data:
                        self.ended = True
                        break
                    if side is far and self._cuts(len(data)):
                        far.shutdown(socket.SHUT_RDWR)
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        self.ended = True
                        break
                    if side is near:
                        self._heard(data)
                    other[side].sendall(data)
        self.end()
        for side in self._ends:
            side.close()
