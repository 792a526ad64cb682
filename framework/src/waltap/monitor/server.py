"""The HTTP server of a run: a page for people, metrics, health, status and signals."""

import base64
import hashlib
import hmac
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import urlsplit

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import ConfigurationError, PropertyProblem
from waltap.hookspecs import hookimpl
from waltap.monitor.history import StatusHistory
from waltap.monitor.listener import JSON, Answer, MonitorListener
from waltap.monitor.metric import ObservedMetric
from waltap.monitor.metrics import (
    BATCH_EVENTS,
    BATCH_SECONDS,
    EVENT_LAG,
    FAILURES,
    FLUSH_SECONDS,
    METRICS,
    SCHEMA_CHANGES,
)
from waltap.monitor.requests import MonitorRequest
from waltap.offsets.durable_file import replace_durably
from waltap.offsets.state_folder import HTTP_KEY
from waltap.pipeline.lock import unusable
from waltap.pipeline.status import PipelineStatus
from waltap.pipeline.status_document import status_document
from waltap.plugin_errors import LibraryMissing
from waltap.signals.inbox import SignalAnswer
from waltap.source.position import Positions
from waltap.transactions.transaction import Batch, TransactionPart

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from waltap.pipeline import Engine

__all__ = [
    "MetricsExposition",
    "MonitorServer",
    "RequestAccess",
    "address_of",
    "is_loopback",
    "kept_token",
]

log = logging.getLogger(__name__)


# Who may ask over HTTP.
#
# A page that anybody has open in a browser may send requests to this machine; so the Host header
# must be one that we were given, and the Origin our own. Every user of this machine reaches its
# ports, too: what changes something needs a token everywhere, what only reads needs one beyond
# this machine.

OWN = frozenset({"same-origin", "none"})
"""What a browser says of requests that our page, or its user, makes."""
READS = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""
LEAST: Final = 8
"""Characters of a token."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def kept_token(path: Path) -> str:
    """Return the token in the file ``path``, which only its owner reads; a new one where there is none.

    Raises: OSError.
    """
    with suppress(FileNotFoundError):
        kept = path.read_text("ascii", "replace").strip()
        if len(kept) >= LEAST:
            return kept
    token = secrets.token_urlsafe()
    replace_durably(path, f"{token}\n".encode())
    return token


class RequestAccess:
    """Judges requests. ``host`` is where we listen. A request that changes something must have what
    ``token`` returns,
    and so must every other but those for health, unless ``open_reads``. ``place`` is where it is kept."""

    def __init__(
        self, host: str, token: Callable[[], str], *, open_reads: bool, place: str = ""
    ) -> None:
        self._local, self._token, self._open_reads = is_loopback(host), token, open_reads
        self._place = f"; it is in {place}" if place else ""

    def refusal(
        self, method: str, headers: Mapping[str, str], token: str | None, *, open_to_all: bool
    ) -> tuple[int, str] | None:
        """Return (status, reason) where a request may not be answered; None where it may. ``token`` is
        that of the address, ``headers`` have lower-case names."""
        asked = _name(headers.get("host", ""))
        if self._local and not is_loopback(asked):
            return 421, "the Host header names another machine"
        origin = headers.get("origin")
        if origin is not None and _place(origin) != headers.get("host", ""):
            return 403, "the page that sent this is another's"
        if method == "POST" and headers.get("sec-fetch-site", "none") not in OWN:
            return 403, "the page that sent this is another's"
        if (
            method == "POST"
            and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json"
        ):
            return 415, "the body must be application/json"
        if method in READS and (open_to_all or self._open_reads):
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ") or token or ""
        if given and hmac.compare_digest(given.encode(), self._token().encode()):
            return None
        text = f"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN{self._place}"
        return 401, text


def _name(host: str) -> str:
    """Return the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str | None:
    """Return name and port of an Origin header, None where it is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


# Metrics in Prometheus' form, of one engine.


class MetricsExposition:
    """An observer that counts per batch, and a collector that asks ``status`` when it is scraped."""

    def __init__(self, pipeline: str, status: Callable[[], PipelineStatus]) -> None:
        """Raises: LibraryMissing."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as cause:
            raise LibraryMissing("metrics need prometheus-client", extra="monitor") from cause
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
        self._flush, self._late = made(FLUSH_SECONDS), made(EVENT_LAG)
        registry.register(self)  # a collector is what has `collect`

    def text(self) -> bytes:
        """Return the metrics as they are now, in the text form."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def collect(self) -> "Iterator[Family]":
        """Give the metrics of the status (called by the registry)."""
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
        """Count what a batch held."""
        self._write.observe(seconds)
        self._size.observe(batch.events)
        last = batch.parts[-1] if batch.parts else None
        if isinstance(last, TransactionPart) and last.commit_ts:
            self._late.observe(max(0.0, time() - last.commit_ts / 1_000_000))

    @hookimpl
    def on_flush(self, durable: Positions, seconds: float) -> None:
        """Keep how long a flush took."""
        self._flush.observe(seconds)

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        """Count a failure by its code."""
        code = getattr(error, "code", "WT-9000")
        self._failures.labels(self._pipeline, code, str(retried).lower()).inc()

    @hookimpl
    def on_schema_change(self, old: object) -> None:
        """Count a relation that changed."""
        if old is not None:
            self._changes.inc()


WAIT_S = 10.0
WELL = frozenset({"checking", "standby", "snapshot", "streaming", "reconnecting", "stopping"})
READY = frozenset({"streaming", "snapshot", "standby"})
INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)

Handle = Callable[["MonitorServer", MonitorRequest], Answer]


class SignalAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """The body of ``POST /api/signal``."""

    kind: str
    data: dict[str, object] = {}


def address_of(text: str) -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT`` or ``:PORT``. Raises: ConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        problem = PropertyProblem("waltap.http", "is no address", value=text, allowed="HOST:PORT")
        raise ConfigurationError([problem])
    return host.strip("[]") or "127.0.0.1", int(port)


class MonitorServer:
    """Answers while its block lasts; in threads of its own, which only read."""

    def __init__(self, engine: "Engine", address: str, token: str | None) -> None:
        """Raises: ConfigurationError, LibraryMissing."""
        self._engine = engine
        self._host, self._port = address_of(address)
        if token is None and not is_loopback(self._host):
            problem = PropertyProblem(
                "waltap.http.token",
                f"is missing: {self._host} can be reached from other machines",
                allowed="a secret that readers send, or waltap.http=127.0.0.1:PORT",
            )
            raise ConfigurationError([problem])
        self._access = (
            None if token is None else RequestAccess(self._host, lambda: token, open_reads=False)
        )
        self.exposition = MetricsExposition(engine.profile.name, engine.status)
        self._history = StatusHistory(engine.status)
        self._page = files("waltap.monitor").joinpath("page.html").read_bytes()
        self._listener: MonitorListener | None = None
        engine.watch()

    @property
    def port(self) -> int:
        """Return the port, also where 0 was asked for."""
        assert self._listener is not None
        return int(self._listener.server_address[1])

    def __enter__(self) -> Self:
        place = self._host, self._port
        try:
            self._listener = listener = MonitorListener(place, self._answer, _headers(self._page))
        except OSError as cause:
            problem = PropertyProblem(
                "waltap.http",
                f"cannot be listened at: {cause.strerror}",
                value=f"{self._host}:{self._port}",
            )
            raise ConfigurationError([problem]) from cause
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
        """Return an access with the token of the state folder: whoever may read that, may change things.

        Raises: StateFolderUnusable.
        """
        path = self._engine.profile.engine.state_dir / self._engine.profile.name / HTTP_KEY
        try:
            kept_token(path)
        except OSError as error:
            raise unusable(path.parent, error) from error
        # the process that runs the pipeline and one that waits as a standby may both have made one
        return RequestAccess(
            self._host, partial(kept_token, path), open_reads=True, place=str(path)
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
            return refused[0], JSON, _error(refused[1])
        answer = self._ANSWERS.get((request.method, request.path))
        if answer is None:
            return 404, JSON, _error("there is nothing here")
        return answer(self, request)

    def _show(self, _request: MonitorRequest) -> Answer:
        return 200, "text/html; charset=utf-8", self._page

    def _metrics(self, _request: MonitorRequest) -> Answer:
        return 200, "text/plain; version=0.0.4; charset=utf-8", self.exposition.text()

    def _health(self, _request: MonitorRequest) -> Answer:
        return self._state(WELL | {"stopped"})

    def _ready(self, _request: MonitorRequest) -> Answer:
        if self._engine.status().stalled:
            state = {"state": self._engine.state, "problem": "the sink does not answer"}
            return 503, JSON, msgspec.json.encode(state)
        return self._state(READY)

    def _state(self, good: frozenset[str]) -> Answer:
        state = self._engine.state
        return 200 if state in good else 503, JSON, msgspec.json.encode({"state": state})

    def _status(self, request: MonitorRequest) -> Answer:
        since = request.query.get("since", "0")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return 400, JSON, _error("since is a time in ms")
        document = status_document(self._engine.status())
        points = self._history.points(int(since))
        document["history"] = [msgspec.to_builtins(point) for point in points]
        return 200, JSON, msgspec.json.encode(document)

    def _signal(self, request: MonitorRequest) -> Answer:
        try:
            asked = msgspec.json.decode(request.body, type=SignalAsked)
        except UNREADABLE as cause:
            return 400, JSON, _error(f"this is no signal: {cause}")
        except RecursionError:
            return 400, JSON, _error("this is no signal: it is nested too deeply")
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


def _headers(page: bytes) -> dict[str, str]:
    """Return what every answer has: a browser runs the page's own script, and nothing else."""
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


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
