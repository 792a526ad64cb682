"""Serve the control socket of a pipeline."""

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from waltap.services.control.protocol import address, unix_socket

log = logging.getLogger(__name__)

MOST_CLIENTS = 16
PERMISSIONS = 0o600
JOIN_S = 5.0
TOO_LONG = b'{"ok":false,"reason":"the request is longer than a signal may be"}\n'


class ControlSocket:
    """Answer the requests that clients send to a Unix socket.

    The socket at ``path`` exists while the block lasts. ``answer`` maps a request line to an answer
    line, both without the newline; it runs in the connection's thread and may wait. Lines have at
    most ``longest`` bytes. The caller must hold the pipeline's lock, because a file that an earlier
    process left at ``path`` is replaced. A pipeline runs without a socket that cannot be made; the
    log has a warning.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes], *, longest: int) -> None:
        self._path, self._answer, self._longest = path, answer, longest
        self._listener: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._made = 0
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, threading.Thread] = {}

    def __enter__(self) -> Self:
        # everything that needs a file descriptor is made here: the process may have none left
        with ExitStack() as made:
            try:
                listener = made.enter_context(unix_socket())
                waker, woken = map(made.enter_context, socket.socketpair())
                selector = made.enter_context(selectors.DefaultSelector())
                self._path.unlink(missing_ok=True)
                with address(self._path) as name:
                    listener.bind(name)
                self._path.chmod(PERMISSIONS)
                self._made = self._path.stat().st_ino
                # the kernel refuses connections until here, so only the owner can ever connect
                listener.listen(MOST_CLIENTS)
            except OSError as error:
                log.warning(
                    "no control socket at %s: %s; `waltap signal` does not reach this run",
                    self._path,
                    error.strerror or error,
                )
                return self
            made.pop_all()
        self._listener, self._waker = listener, waker
        self._thread = threading.Thread(
            target=self._accept,
            args=(listener, woken, selector),
            name="waltap-control",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        """End every connection, and remove the socket."""
        if self._listener is None or self._waker is None or self._thread is None:
            return
        with suppress(OSError):
            if self._path.stat().st_ino == self._made:
                self._path.unlink()  # another inode is the socket of a process that took over
        self._waker.close()
        self._thread.join(JOIN_S)
        with self._lock:
            clients = dict(self._clients)
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RD)  # an answer under way still goes out
        for thread in clients.values():
            thread.join(JOIN_S)
        self._listener = None

    def _accept(
        self, listener: socket.socket, woken: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        with listener, woken, selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while all(key.fileobj is not woken for key, _ in selector.select()):
                try:
                    client, _ = listener.accept()
                except OSError as error:
                    # too many open files: waiting clients run into their time-outs
                    log.warning("control socket: %s", error.strerror)
                    return
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        thread = threading.Thread(
            target=self._talk, args=(client,), name="waltap-control-client", daemon=True
        )
        with self._lock:
            full = len(self._clients) >= MOST_CLIENTS
            if not full:
                self._clients[client] = thread
        if full:
            client.close()
        else:
            thread.start()

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as lines, suppress(OSError):
                while line := lines.readline(self._longest + 1):
                    if len(line) > self._longest:
                        client.sendall(TOO_LONG)
                        return
                    if line.strip():
                        client.sendall(self._answer(line.rstrip(b"\n")) + b"\n")
        finally:
            with self._lock:
                self._clients.pop(client, None)
