"""Accept the connections of the status page within limits."""

import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

log = logging.getLogger(__name__)


# Parse HTTP requests strictly. Sans-IO.
#
# A proxy or browser in front of this server must see the same requests in a stream of bytes. So
# an ambiguous request is refused, and its connection ends.

LONGEST_BODY: Final = 1 << 20

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_ONCE: Final = ("host", "content-length", "content-type", "origin", "authorization")


class RequestRefused(Exception):
    """A request gets the answer ``status``, and its connection ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRequest:
    """A parsed request."""

    method: str
    path: str
    # the last value of each name
    query: Mapping[str, str]
    # with lower-case names
    headers: Mapping[str, str]
    body: bytes = b""


def taken_apart(
    method: str, target: str, headers: Sequence[tuple[str, str]], *, malformed: bool = False
) -> MonitorRequest:
    """Return a request without its body.

    ``malformed``: the HTTP library dropped lines of its headers. Raises: RequestRefused.
    """
    if malformed:
        raise RequestRefused(400, "the headers are malformed")
    found: dict[str, str] = {}
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or "\r" in value or "\n" in value:
            raise RequestRefused(400, "a header is malformed")
        lower = name.lower()
        # with two values a proxy could use the other one
        if lower in found and lower in _ONCE:
            raise RequestRefused(400, f"there is more than one {lower} header")
        found[lower] = value.strip(" \t")
    if not target.startswith("/"):
        raise RequestRefused(400, "the request's address is not a path")
    try:
        parts = urlsplit(target)
    except ValueError as cause:
        raise RequestRefused(400, "the request's address is none") from cause
    if parts.netloc:
        # ``//host/path`` names another host than the Host header
        raise RequestRefused(400, "the request's address is not a path")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return MonitorRequest(method=method, path=parts.path, query=query, headers=found)


def body_length(request: MonitorRequest) -> int:
    """Return the length of the body. Raises: RequestRefused."""
    # with Content-Length beside it a Transfer-Encoding makes the end of the body ambiguous
    if "transfer-encoding" in request.headers:
        raise RequestRefused(501, "a body needs Content-Length, and no Transfer-Encoding")
    text = request.headers.get("content-length")
    if text is None:
        if request.method == "POST":
            raise RequestRefused(411, "the body has no length")
        return 0
    if not _DIGITS.fullmatch(text):
        raise RequestRefused(400, "Content-Length is no number")
    length = int(text)
    if length and request.method != "POST":
        raise RequestRefused(400, f"{request.method} has no body")
    if length > LONGEST_BODY:
        raise RequestRefused(413, f"the body is longer than {LONGEST_BODY} bytes")
    return length


MOST: Final = 64
"""Connections at a time; a new connection replaces the one that is slowest."""
REQUEST_S: Final = 30.0
"""Time for a request since the end of the previous one; slower clients are disconnected."""
JSON: Final = "application/json"

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class MonitorListener(ThreadingHTTPServer):
    """Answer each request by ``answer``, and add ``headers``.

    Raises: OSError.
    """

    daemon_threads = True
    request_queue_size = MOST

    def __init__(
        self,
        place: tuple[str, int],
        answer: Callable[[MonitorRequest], Answer],
        headers: Mapping[str, str],
    ) -> None:
        self.answer, self.headers = answer, headers
        # connection → since when its request or answer is in transfer
        self._reading: dict[socket.socket, float] = {}
        # connections whose answer is being computed: they are not slow clients
        self._answered: set[socket.socket] = set()
        self._open = 0
        self._lock = threading.Lock()
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, RequestHandler)

    def reads(self, connection: socket.socket) -> None:
        """Record that the wait for a request starts."""
        self._reading[connection] = time.monotonic()

    def answers(self, connection: socket.socket, *, begin: bool) -> None:
        """Record the start or the end of computing an answer."""
        (self._answered.add if begin else self._answered.discard)(connection)

    def service_actions(self) -> None:
        """Disconnect slow clients; called twice a second."""
        limit = time.monotonic() - REQUEST_S
        for connection, since in list(self._reading.items()):
            if since < limit:
                self._cut_off(connection)

    def _cut_off(self, connection: socket.socket) -> None:
        self._reading.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _give_way(self) -> bool:
        """Disconnect the slowest client.

        Returns whether there was one.
        """
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
        """Start a thread for a connection, or refuse it."""
        with self._lock:
            # Slow and idle connections are closed for a new one, so that a health probe gets its
            # answer. The thread of a closed connection needs a moment to end: hence 2 * MOST.
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
        """Log a failed request for debugging only."""
        # in most cases the client has closed its connection
        log.debug("a request for the status page failed: %s", sys.exc_info()[1])


class RequestHandler(BaseHTTPRequestHandler):
    """Handle the requests of one connection."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server: MonitorListener

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self.server.reads(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a POST request."""
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
            # the bytes that follow could be part of the refused request
            self.close_connection = True
            self._send((error.status, JSON, msgspec.json.encode({"error": error.reason})))
            return
        body = self.rfile.read(length) if length else b""
        if len(body) < length:
            # the client closed its side before the end of the body
            self.close_connection = True
            return
        self.server.answers(self.connection, begin=True)
        answer = self.server.answer(replace(asked, body=body))
        self.server.answers(self.connection, begin=False)
        # a client that does not read its answer is as slow as one that sends no request
        self._send(answer)

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
        """Return the name of this server without a version."""
        return "waltap"

    def log_message(self, *_arguments: object) -> None:
        """Do nothing: the address of a request may have a token."""
