"""A door before a real registry: it asks for a login, speaks TLS, or is shut for a while."""

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Door", "door"]


class Door:
    """What the door does. ``authorization``: the header that it asks for; ``answer``: a status that it
    gives to everybody, None to let requests through; ``refused`` and ``passed`` count requests."""

    def __init__(self, target: str, scheme: str) -> None:
        self.target = urlsplit(target)
        self.authorization: str | None = None
        self.answer: int | None = None
        self.refused = self.passed = 0
        self.scheme, self.port = scheme, 0

    @property
    def url(self) -> str:
        """Return where the registry is found behind the door."""
        return f"{self.scheme}://127.0.0.1:{self.port}{self.target.path}"


@contextmanager
def door(
    target: str,
    certificate: Path | None = None,
    key: Path | None = None,
    clients: Path | None = None,
) -> Iterator[Door]:
    """Open a door to the registry at ``target``; with ``certificate`` and ``key`` it speaks TLS, with
    ``clients`` it lets in who has one of these certificates."""
    made = Door(target, "http" if certificate is None else "https")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._pass_on()

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = made.answer
            if made.authorization not in (None, self.headers.get("Authorization")):
                status = 401
            if status is not None:
                made.refused += 1
                self._reply(status, b'{"error_code":%d,"message":"the door is shut"}' % status)
                return
            host = made.target
            there = http.client.HTTPConnection(str(host.hostname), host.port or 80, timeout=90)
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() in ("accept", "content-type")
            }
            there.request(self.command, self.path, body, headers)
            answer = there.getresponse()
            data = answer.read()
            there.close()
            made.passed += 1
            self._reply(answer.status, data)

        def _reply(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that do not like the certificate."""

    server = Server(("127.0.0.1", 0), Handler)
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
    thread = threading.Thread(target=server.serve_forever, name="door", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
