"""Serve page, metrics, health, status and signals of a run."""

import base64
import hashlib
import hmac
import logging
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from waltap.base.files.durable_file import UNREADABLE, replace_durably
from waltap.base.plugin_errors import needing
from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch, TransactionPart, TransactionRun
from waltap.errors import ConfigurationError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.state_folder import HTTP_KEY, unusable
from waltap.ports.signals.inbox import SignalAnswer
from waltap.services.monitor.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    EVENT_LAG,
    FAILURES,
    FLUSH_SECONDS,
    METRICS,
    SCHEMA_CHANGES,
    ObservedMetric,
)
from waltap.services.monitor.status import PipelineStatus, StatusHistory, status_document

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from waltap.services.monitor.status import ObservedEngine

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


def parsed_request(
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
    request_queue_size = 2 * MOST

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[MonitorRequest], Answer],
        headers: Mapping[str, str],
    ) -> None:
        self.answer, self.headers = answer, headers
        # connection → since when its request or answer is in transfer
        self.reading: dict[socket.socket, float] = {}
        # connections whose answer is being computed: they are not slow clients
        self.answered: set[socket.socket] = set()
        self._open = 0
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, RequestHandler)

    def server_bind(self) -> None:
        """Bind the address without its name, whose lookup can take long and is not needed."""
        TCPServer.server_bind(self)

    def service_actions(self) -> None:
        """Disconnect slow clients; called twice a second."""
        limit = time.monotonic() - REQUEST_S
        for connection, since in list(self.reading.items()):
            if since < limit:
                self._cut_off(connection)

    def _cut_off(self, connection: socket.socket) -> None:
        self.reading.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _give_way(self) -> bool:
        """Disconnect the slowest client; return whether there was one."""
        waiting = {c: since for c, since in list(self.reading.items()) if c not in self.answered}
        if waiting:
            self._cut_off(min(waiting, key=waiting.__getitem__))
        return bool(waiting)

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
        self.reading[request] = time.monotonic()  # here, in the order that they came
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.reading.pop(request, None)
            self.answered.discard(request)
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
        super().handle_one_request()
        self.server.reading[self.connection] = time.monotonic()

    def do_GET(self) -> None:
        try:
            asked = parsed_request(
                self.command,
                self.path,
                list(self.headers.items()),
                malformed=bool(self.headers.defects),
            )
            length = body_length(asked)
        except RequestRefused as error:
            # the bytes that follow could be part of the refused request
            self.close_connection = True
            self._send(_json(error.status, error=error.reason))
            return
        body = self.rfile.read(length) if length else b""
        if len(body) < length:
            # the client closed its side before the end of the body
            self.close_connection = True
            return
        self.server.answered.add(self.connection)
        answer = self.server.answer(replace(asked, body=body))
        self.server.answered.discard(self.connection)
        # a client that does not read its answer is as slow as one that sends no request
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

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
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "waltap"

    def log_message(self, *_arguments: object) -> None:
        """Do nothing: the address of a request may have a token."""


# Access rules of the HTTP server.
#
# Any page in a user's browser can send requests to this machine. So the Host header must name the
# address of this server, and the Origin must be its own page. Every user of this machine can reach
# its ports, too. A request that changes something needs a token everywhere; a request that only
# reads needs one from another machine.

# Sec-Fetch-Site of requests that the server's own page, or the user in the address bar, makes
OWN = frozenset({"same-origin", "none"})
# methods that change nothing
READS = frozenset({"GET", "HEAD"})
# least characters of a token
LEAST: Final = 8


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def load_or_make_token(path: Path) -> str:
    """Return the token in a file, or write a new one.

    Only the file's owner may read it. Raises: OSError.
    """
    with suppress(FileNotFoundError):
        stored = path.read_text("ascii", "replace").strip()
        if len(stored) >= LEAST:
            return stored
    token = secrets.token_urlsafe()
    replace_durably(path, f"{token}\n".encode())
    return token


class RequestAccess:
    """Decide whether a request may be answered.

    ``host`` is the server's address. A request that changes something needs the token that ``token``
    returns. Reads need it too, except health checks, unless ``open_reads``. ``token_file`` is the token's
    file, for the error message.
    """

    def __init__(
        self, host: str, token: Callable[[], str], *, open_reads: bool, token_file: str = ""
    ) -> None:
        self._local, self._token, self._open_reads = is_loopback(host), token, open_reads
        self._token_hint = f"; it is in {token_file}" if token_file else ""

    def refusal(
        self, method: str, headers: Mapping[str, str], token: str | None, *, open_to_all: bool
    ) -> tuple[int, str] | None:
        """Return (status, reason) of a refusal, None for a permitted request.

        ``token`` comes from the address; ``headers`` have lower-case names.
        """
        asked = _name(headers.get("host", ""))
        if self._local and not is_loopback(asked):
            return 421, "the Host header names another machine"
        origin = headers.get("origin")
        foreign = origin is not None and _authority(origin) != headers.get("host", "")
        if foreign or (method == "POST" and headers.get("sec-fetch-site", "none") not in OWN):
            return 403, "the page that sent this is another's"
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if method == "POST" and kind != JSON:
            return 415, "the body must be application/json"
        if method in READS and (open_to_all or self._open_reads):
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ") or token or ""
        if given and hmac.compare_digest(given.encode(), self._token().encode()):
            return None
        text = f"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN{self._token_hint}"
        return 401, text


def _name(host: str) -> str:
    """Return the name in a Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str | None:
    """Return name and port of an Origin header.

    None: the header is not an address.
    """
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


class MetricsExposition:
    """Count batches as an observer, and read the status per scrape."""

    def __init__(self, pipeline: str, status: Callable[[], PipelineStatus]) -> None:
        """Register the metrics. Raises: LibraryMissing."""
        with needing("metrics need prometheus-client", extra="monitor"):
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        self._pipeline, self._status = pipeline, status
        self.registry = registry = CollectorRegistry()

        kinds: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}

        def made(metric: ObservedMetric) -> Any:
            more = {"buckets": metric.buckets} if metric.buckets else {}
            labels = ("pipeline", *metric.labels)
            found = kinds[metric.kind](
                metric.name, metric.summary, labels, registry=registry, **more
            )
            return found if metric.labels else found.labels(pipeline)

        self._failures, self._changes = made(FAILURES), made(SCHEMA_CHANGES)
        self._write, self._size = made(BATCH_SECONDS), made(BATCH_EVENTS)
        self._flush, self._lag = made(FLUSH_SECONDS), made(EVENT_LAG)
        registry.register(self)  # any object with `collect` is a collector

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> "Iterator[Family]":
        """Yield the metrics of the status for the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.summary, labels=("pipeline", *metric.labels))
            for labels, value in metric.read(status):
                family.add_metric(
                    [self._pipeline, *(labels[name] for name in metric.labels)], value
                )
            yield family

    @hookimpl
    def on_batch(self, batch: Batch, seconds: float) -> None:
        self._write.observe(seconds)
        self._size.observe(batch.events)
        parts = batch.parts
        last = parts.last if isinstance(parts, TransactionRun) else parts[-1] if parts else None
        if isinstance(last, TransactionPart) and last.commit_ts:
            # not below 0: the clock of the server can be ahead of this machine's
            self._lag.observe(max(0.0, time.time() - last.commit_ts / 1_000_000))

    @hookimpl
    def on_flush(self, durable: Positions, seconds: float) -> None:
        self._flush.observe(seconds)

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        code = getattr(error, "code", "WT-9000")
        self._failures.labels(self._pipeline, code, str(retried).lower()).inc()

    @hookimpl
    def on_schema_change(self, old: object) -> None:
        if old is not None:
            self._changes.inc()


WAIT_S = 10.0
# states in which /healthz answers 200; a stopped run is healthy, too
WELL = frozenset({"checking", "standby", "snapshot", "streaming", "reconnecting"})
# states in which /readyz answers 200
READY = frozenset({"streaming", "snapshot", "standby"})
INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)

Handle = Callable[["MonitorServer", MonitorRequest], Answer]


class SignalAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """The body of ``POST /api/signal``."""

    kind: str
    data: dict[str, object] = {}


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``:PORT``.

    Raises: ConfigurationError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError.of("waltap.http", "is no address", value=text, allowed="HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


class MonitorServer:
    """Serve HTTP requests in threads while the block lasts.

    A request waits ``wait_s`` for the answer to its signal.
    """

    def __init__(
        self, engine: "ObservedEngine", address: str, token: str | None, *, wait_s: float = WAIT_S
    ) -> None:
        """Check the address. Raises: ConfigurationError, LibraryMissing."""
        self._engine, self._wait_s = engine, wait_s
        self._host, self._port = address_of(address)
        if token is None and not is_loopback(self._host):
            raise ConfigurationError.of(
                "waltap.http.token",
                f"is missing: {self._host} can be reached from other machines",
                allowed="a secret that readers send, or waltap.http=127.0.0.1:PORT",
            )
        self._access = (
            None if token is None else RequestAccess(self._host, lambda: token, open_reads=False)
        )
        self.exposition = MetricsExposition(engine.profile.name, engine.status)
        self._history = StatusHistory(engine.status)
        self._page = files("waltap.services.monitor").joinpath("page.html").read_bytes()
        self._listener: MonitorListener | None = None
        engine.watch()

    @property
    def port(self) -> int:
        """Return the port, also if the system chose it."""
        assert self._listener is not None
        return int(self._listener.server_address[1])

    def __enter__(self) -> Self:
        address = self._host, self._port
        try:
            self._listener = listener = MonitorListener(address, self._answer, _headers(self._page))
        except (OSError, TypeError) as cause:  # TypeError: no name of a host
            why = cause.strerror if isinstance(cause, OSError) else cause
            raise ConfigurationError.of(
                "waltap.http",
                f"cannot be listened at: {why}",
                value=f"{self._host}:{self._port}",
            ) from cause
        self._access = self._access or self._own_access()
        self._history.start()
        threading.Thread(target=listener.serve_forever, name="waltap-http", daemon=True).start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        log.info("http://%s:%d/ shows the pipeline", host, self.port)
        return self

    def __exit__(self, *_details: object) -> None:
        self._history.stop()
        if self._listener is not None:
            self._listener.shutdown()
            self._listener.server_close()

    def _own_access(self) -> RequestAccess:
        """Return an access with the token of the state folder.

        A user that may read the folder may change the pipeline. Raises: StateFolderUnusable.
        """
        path = self._engine.profile.state_dir / HTTP_KEY
        try:
            load_or_make_token(path)
        except OSError as error:
            raise unusable(path.parent, error) from error
        # read again for each request: a standby process may have replaced the file
        return RequestAccess(
            self._host, partial(load_or_make_token, path), open_reads=True, token_file=str(path)
        )

    # --- answers -------------------------------------------------------------------------------------

    def _answer(self, request: MonitorRequest) -> Answer:
        assert self._access is not None
        refused = self._access.refusal(
            request.method,
            request.headers,
            request.query.get("token"),
            open_to_all=request.path in {"/healthz", "/readyz"},
        )
        if refused is not None:
            return _json(refused[0], error=refused[1])
        method = "GET" if request.method in READS else request.method
        answer = self._ANSWERS.get((method, request.path))
        if answer is None:
            return _json(404, error="there is nothing here")
        return answer(self, request)

    def _show(self, _request: MonitorRequest) -> Answer:
        return 200, "text/html; charset=utf-8", self._page

    def _metrics(self, _request: MonitorRequest) -> Answer:
        return 200, "text/plain; version=0.0.4; charset=utf-8", self.exposition.text()

    def _health(self, _request: MonitorRequest) -> Answer:
        return self._state(WELL | {"stopped"})

    def _ready(self, _request: MonitorRequest) -> Answer:
        if self._engine.status().stalled:
            # the engine's state stays streaming while the sink blocks
            return _json(503, state=self._engine.state, problem="the sink does not answer")
        return self._state(READY)

    def _state(self, good: frozenset[str]) -> Answer:
        state = self._engine.state
        return _json(200 if state in good else 503, state=state)

    def _status(self, request: MonitorRequest) -> Answer:
        since = request.query.get("since", "0")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return _json(400, error="since is a time in ms")
        document = status_document(self._engine.status())
        document["history"] = self._history.points(int(since))
        return _json(200, **document)

    def _signal(self, request: MonitorRequest) -> Answer:
        try:
            asked = msgspec.json.decode(request.body, type=SignalAsked)
        except UNREADABLE as cause:
            return _json(400, error=f"this is no signal: {cause}")
        except RecursionError:
            return _json(400, error="this is no signal: it is nested too deeply")
        future: Future[SignalAnswer] = self._engine.signal(asked.kind, asked.data)
        try:
            given = future.result(self._wait_s)
        except TimeoutError:
            # the engine reads signals between batches, so not during an initial snapshot
            return _json(202, state=self._engine.state)
        return _json(200 if given.accepted else 422, taken=given.accepted, reason=given.reason)

    _ANSWERS: ClassVar[Mapping[tuple[str, str], "Handle"]] = {
        ("GET", "/"): _show,
        ("GET", "/metrics"): _metrics,
        ("GET", "/healthz"): _health,
        ("GET", "/readyz"): _ready,
        ("GET", "/api/status"): _status,
        ("POST", "/api/signal"): _signal,
    }


def _headers(page: bytes) -> dict[str, str]:
    # a browser must run the page's own script and no other
    allowed = {b"script": "", b"style": ""}
    for kind, text in INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; script-src{allowed[b'script']}; style-src{allowed[b'style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Content-Security-Policy": policy,
    }


def _json(status: int, **members: object) -> Answer:
    return status, JSON, msgspec.json.encode(members)
