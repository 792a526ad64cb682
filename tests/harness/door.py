"""A door before a real HTTP server: it asks for a login, speaks TLS, is shut, or lets requests fail at random."""

import contextlib
import http.client
import json
import random
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)
PER_LINK = ("expect", "connection", "transfer-encoding", "content-length")
FAULTS = ("500", "503", "lost request", "lost reply")
Refusal = Callable[[int, str], tuple[str, str]]


def of_registry(status: int, said: str) -> tuple[str, str]:
    return "application/json", json.dumps({"error_code": status, "message": said})


def of_s3(_status: int, code: str) -> tuple[str, str]:
    text = f"<Error><Code>{code}</Code><Message>{code} by the door</Message></Error>"
    return "application/xml", text


class Door:
    """What the door does. ``authorization``: the header that it asks for; ``answer``: a status and a code that
    everybody gets; ``share``: the share of requests that fail; ``away``: links are reset at once; ``before``
    gets each request's method and path before it is passed on. ``did`` counts what was done."""

    def __init__(self, target: str, scheme: str = "http", seed: int = 1) -> None:
        self.target = urlsplit(target)
        self.authorization: str | None = None
        self.answer: tuple[int, str] | None = None
        self.share = 0.0
        self.away = False
        self.before: Callable[[str, str], object] = lambda _method, _path: None
        self.refusal: Refusal = of_registry
        self.did: Counter[str] = Counter()
        self.scheme, self.port = scheme, 0
        self._chance, self._lock = random.Random(seed), threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{self.target.path}"

    @property
    def passed(self) -> int:
        return self.did["passed"]

    @property
    def refused(self) -> int:
        return self.did["refused"]

    @property
    def failed(self) -> int:
        return self.did.total() - self.passed

    def fault(self, authorization: str | None) -> str | None:
        """Return what becomes of this request, None when it is passed on."""
        with self._lock:
            found = None
            if self.away:
                found = "lost request"
            elif self._chance.random() < self.share:
                found = self._chance.choice(FAULTS)
            elif self.answer is not None or self.authorization not in (None, authorization):
                found = "refused"
            self.did[found or "passed"] += 1
            return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    door: Door

    def do_GET(self) -> None:
        body, fault = self._body(), self.door.fault(self.headers.get("Authorization"))
        if fault == "lost request":
            return self._reset()
        if fault in ("500", "503"):
            return self._refuse(int(fault), {"500": "InternalError", "503": "SlowDown"}[fault])
        if fault == "refused":
            return self._refuse(*(self.door.answer or (401, "the door is shut")))
        self.door.before(self.command, self.path)
        status, headers, answer = self._passed_on(body)
        if fault == "lost reply":
            return self._reset()
        return self._reply(status, headers, answer)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        target = self.door.target
        link = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=90)
        try:
            link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in PER_LINK:
                    link.putheader(name, value)
            if body or "Content-Length" in self.headers:
                link.putheader("Content-Length", str(len(body)))
            link.endheaders(body)
            answer = link.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            link.close()

    def _refuse(self, status: int, said: str) -> None:
        kind, text = self.door.refusal(status, said)
        self._reply(status, [("Content-Type", kind)], text.encode())

    def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of HEAD: that of what is not sent
            elif name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that do not like the certificate."""


@contextlib.contextmanager
def door(
    target: str,
    certificate: Path | None = None,
    key: Path | None = None,
    clients: Path | None = None,
    seed: int = 1,
) -> Iterator[Door]:
    """Open a door to the server at ``target``; with ``certificate`` and ``key`` it speaks TLS, with
    ``clients`` it lets in who has one of these certificates."""
    made = Door(target, "http" if certificate is None else "https", seed)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"door": made}))
    made.port = server.server_address[1]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        # the handshake is the handler's: one that fails does not hold the others up
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)


@contextlib.contextmanager
def s3_door(target: str, seed: int = 1) -> Iterator[Door]:
    """Open a door to an S3 server."""
    with door(target, seed=seed) as made:
        made.refusal = of_s3
        yield made
