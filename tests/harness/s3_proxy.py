"""A door before the S3 server of the tests: requests fail at random, all are refused, or nobody answers."""

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

__all__ = ["S3Door", "s3_door"]

RESET = struct.pack("ii", 1, 0)
PER_LINK = ("expect", "connection", "transfer-encoding", "content-length")
FAULTS = ("500", "503", "lost request", "lost reply")


class S3Door:
    """What the door does. ``share``: the share of requests that fail; ``away``: links are reset at once;
    ``answer``: a status and a code of S3's that everybody gets; ``stops``: told of each request's method
    and path before it is passed on. ``did`` counts what was done."""

    def __init__(self, target: str, seed: int) -> None:
        self.target = urlsplit(target)
        self.share = 0.0
        self.away = False
        self.answer: tuple[int, str] | None = None
        self.before: Callable[[str, str], object] = lambda _method, _path: None
        self.did: Counter[str] = Counter()
        self.port = 0
        self._chance, self._lock = random.Random(seed), threading.Lock()

    @property
    def url(self) -> str:
        """Return the endpoint behind the door."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def failed(self) -> int:
        """Return how many requests have failed."""
        return self.did.total() - self.did["passed"]

    def fault(self) -> str | None:
        """Return what becomes of this request, None when it is passed on."""
        with self._lock:
            found = None
            if self.away:
                found = "lost request"
            elif self._chance.random() < self.share:
                found = self._chance.choice(FAULTS)
            self.did[found or "passed"] += 1
            return found


@contextlib.contextmanager
def s3_door(target: str, seed: int = 1) -> Iterator[S3Door]:
    """Open a door to the server at ``target``."""
    made = S3Door(target, seed)

    class Handler(_Handler):
        door = made

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    door: S3Door

    def do_GET(self) -> None:
        body = self._body()
        fault = self.door.fault()
        if fault == "lost request":
            return self._reset()
        if fault in ("500", "503"):
            said = {"500": "InternalError", "503": "SlowDown"}[fault]
            return self._refuse(int(fault), said)
        if self.door.answer is not None:
            return self._refuse(*self.door.answer)
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
        link = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
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

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{code} by the door</Message></Error>"
        self._reply(status, [("Content-Type", "application/xml")], text.encode())

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
