"""The HTTP server of a run: a page for people, metrics, health, status and signals."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from waltap.errors import ConfigurationError, Problem
from waltap.monitor.access import Access, is_loopback
from waltap.monitor.exposition import Exposition
from waltap.monitor.history import History
from waltap.pipeline.status_document import status_document
from waltap.signals.inbox import SignalAnswer

if TYPE_CHECKING:
    from waltap.pipeline import Engine

__all__ = ["Monitor", "address_of"]

log = logging.getLogger(__name__)

LONGEST_BODY = 1 << 20
WAIT_S = 10.0
WELL = frozenset({"checking", "standby", "snapshot", "streaming", "reconnecting", "stopping"})
READY = frozenset({"streaming", "snapshot", "standby"})
JSON = "application/json"


Handle = Callable[["Monitor", bytes], tuple[int, str, bytes]]
"""What answers a request, of its body: status, content type, body."""


class SignalAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """The body of ``POST /api/signal``."""

    kind: str
    data: dict[str, object] = {}


def address_of(text: str) -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT`` or ``:PORT``. Raises: ConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        problem = Problem("waltap.http", "is no address", value=text, allowed="HOST:PORT")
        raise ConfigurationError([problem])
    return host.strip("[]") or "127.0.0.1", int(port)


class Monitor:
    """Answers while its block lasts; in threads of its own, which only read."""

    def __init__(self, engine: "Engine", address: str, token: str | None) -> None:
        """Raises: ConfigurationError, LibraryMissing."""
        self._engine = engine
        self._host, self._port = address_of(address)
        if token is None and not is_loopback(self._host):
            problem = Problem(
                "waltap.http.token",
                f"is missing: {self._host} can be reached from other machines",
                allowed="a secret that readers send, or waltap.http=127.0.0.1:PORT",
            )
            raise ConfigurationError([problem])
        self._access = Access(self._host, token)
        self.exposition = Exposition(engine.profile.name, engine.status)
        self._history = History(engine.status)
        self._page = files("waltap.monitor").joinpath("page.html").read_bytes()
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        """Return the port, also where 0 was asked for."""
        assert self._server is not None
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_GET(self) -> None:
                monitor._answer(self, b"")

            def do_POST(self) -> None:
                length = self.headers.get("content-length", "")
                if not length.isdigit() or int(length) > LONGEST_BODY:
                    self.close_connection = True
                    monitor._send(self, 413, JSON, _error("the body is too long, or has no length"))
                    return
                monitor._answer(self, self.rfile.read(int(length)))

            def log_message(self, *_arguments: object) -> None:
                """Requests are not logged: they may have a token in their address."""

        try:
            server = ThreadingHTTPServer((self._host, self._port), Handler)
        except OSError as cause:
            problem = Problem(
                "waltap.http",
                f"cannot be listened at: {cause.strerror}",
                value=f"{self._host}:{self._port}",
            )
            raise ConfigurationError([problem]) from cause
        server.daemon_threads = True
        self._server = server
        self._history.start()
        threading.Thread(target=server.serve_forever, name="waltap-http", daemon=True).start()
        log.info("http://%s:%d/ shows the pipeline", self._host, self.port)
        return self

    def __exit__(self, *_details: object) -> None:
        self._history.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    # --- answers -------------------------------------------------------------------------------------

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            parts = urlsplit(request.path)
        except ValueError:
            self._send(request, 400, JSON, _error("the request's address is none"))
            return
        query = parse_qs(parts.query)
        headers = {name.lower(): value for name, value in request.headers.items()}
        refused = self._access.refusal(
            request.command,
            headers,
            query.get("token", [None])[0],
            open_to_all=parts.path in {"/healthz", "/readyz"},
        )
        if refused is not None:
            self._send(request, refused[0], JSON, _error(refused[1]))
            return
        answer = self._ANSWERS.get((request.command, parts.path))
        if answer is None:
            self._send(request, 404, JSON, _error("there is nothing here"))
            return
        self._send(request, *answer(self, body))

    def _show(self, _body: bytes) -> tuple[int, str, bytes]:
        return 200, "text/html; charset=utf-8", self._page

    def _metrics(self, _body: bytes) -> tuple[int, str, bytes]:
        return 200, "text/plain; version=0.0.4; charset=utf-8", self.exposition.text()

    def _health(self, _body: bytes) -> tuple[int, str, bytes]:
        return self._state(WELL | {"stopped"})

    def _ready(self, _body: bytes) -> tuple[int, str, bytes]:
        return self._state(READY)

    def _state(self, good: frozenset[str]) -> tuple[int, str, bytes]:
        state = self._engine.state
        return 200 if state in good else 503, JSON, msgspec.json.encode({"state": state})

    def _status(self, _body: bytes) -> tuple[int, str, bytes]:
        document = status_document(self._engine.status())
        document["history"] = [msgspec.to_builtins(point) for point in self._history.points()]
        return 200, JSON, msgspec.json.encode(document)

    def _signal(self, body: bytes) -> tuple[int, str, bytes]:
        try:
            asked = msgspec.json.decode(body, type=SignalAsked)
        except msgspec.MsgspecError as cause:
            return 400, JSON, _error(f"this is no signal: {cause}")
        future: Future[SignalAnswer] = self._engine.signal(asked.kind, asked.data)
        try:
            given = future.result(WAIT_S)
        except TimeoutError:
            return 202, JSON, msgspec.json.encode({"state": self._engine.state})
        status = 200 if given.taken else 422
        return status, JSON, msgspec.json.encode({"taken": given.taken, "reason": given.reason})

    _ANSWERS: ClassVar[Mapping[tuple[str, str], "Handle"]] = {
        ("GET", "/"): _show,
        ("GET", "/metrics"): _metrics,
        ("GET", "/healthz"): _health,
        ("GET", "/readyz"): _ready,
        ("GET", "/api/status"): _status,
        ("POST", "/api/signal"): _signal,
    }

    def _send(self, request: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
        request.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
        }.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
