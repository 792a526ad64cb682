"""The sockets of the status page: few connections, little time for each request."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from waltap.monitor.requests import MonitorRequest, RequestRefused, body_length, taken_apart

__all__ = ["JSON", "Answer", "MonitorListener"]

log = logging.getLogger(__name__)

MOST: Final = 64
"""Connections at a time; the one whose request or answer takes longest to pass gives way to another."""
REQUEST_S: Final = 30.0
"""Time for a request, from the end of the one before it: whoever sends byte by byte is cut off."""
JSON: Final = "application/json"

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class MonitorListener(ThreadingHTTPServer):
    """Has ``answer`` give what each request gets, with ``headers`` besides. Raises: OSError."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(
        self,
        place: tuple[str, int],
        answer: Callable[[MonitorRequest], Answer],
        headers: Mapping[str, str],
    ) -> None:
        self.answer, self.headers = answer, headers
        self._reading: dict[socket.socket, float] = {}
        self._answered: set[socket.socket] = set()
        self._open = 0
        self._lock = threading.Lock()
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, RequestHandler)

    def reads(self, connection: socket.socket) -> None:
        """A request on ``connection`` is waited for from now on."""
        self._reading[connection] = time.monotonic()

    def answers(self, connection: socket.socket, *, begin: bool) -> None:
        """A request on ``connection`` has come whole, and its answer is made now; or was."""
        (self._answered.add if begin else self._answered.discard)(connection)

    def service_actions(self) -> None:
        """Cut off who takes too long; called twice a second."""
        limit = time.monotonic() - REQUEST_S
        for connection, since in list(self._reading.items()):
            if since < limit:
                self._cut_off(connection)

    def _cut_off(self, connection: socket.socket) -> None:
        self._reading.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _give_way(self) -> bool:
        """Cut off the connection whose request and answer have taken longest to pass; False where there is
        none."""
        waiting = [
            (since, connection)
            for connection, since in list(self._reading.items())
            if connection not in self._answered
        ]
        if not waiting:
            return False
        self._cut_off(min(waiting, key=lambda each: each[0])[1])
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection: slow and idle ones give way, so that a probe is answered."""
        with self._lock:
            # who was cut off needs a moment to end
            refused = self._open >= MOST and (self._open >= 2 * MOST or not self._give_way())
            self._open += not refused
        if refused:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._reading.pop(request, None)
            self._answered.discard(request)
            with self._lock:
                self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone, in most cases: nobody has to know."""
        log.debug("a request for the status page failed: %s", sys.exc_info()[1])


class RequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server: MonitorListener

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self.server.reads(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    def do_POST(self) -> None:
        """Answer."""
        self._answer()

    def _answer(self) -> None:
        try:
            asked = taken_apart(
                self.command,
                self.path,
                list(self.headers.items()),
                malformed=bool(self.headers.defects),
            )
            length = body_length(asked)
        except RequestRefused as error:
            self.close_connection = True
            self._send((error.status, JSON, msgspec.json.encode({"error": error.reason})))
            return
        body = self.rfile.read(length) if length else b""
        if len(body) < length:
            self.close_connection = True
            return
        self.server.answers(self.connection, begin=True)
        answer = self.server.answer(replace(asked, body=body))
        self.server.answers(self.connection, begin=False)
        self._send(answer)  # who does not read it gives way as who does not ask does

    def _send(self, answer: Answer) -> None:
        status, kind, body = answer
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **({"Connection": "close"} if self.close_connection else {}),
            **self.server.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of this server; its version is nobody's business."""
        return "waltap"

    def log_message(self, *_arguments: object) -> None:
        """Requests are not logged: they may have a token in their address."""
